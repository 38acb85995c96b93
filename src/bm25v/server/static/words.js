// Chips of groups of words: point at one to see where it is; click on it to change the search.
import { getJson } from "./api.js";
import { emptyCrop } from "./crops.js";
import { announce, byId, count, h } from "./dom.js";
import { NOWHERE, wordMask } from "./masks.js";
import { toQuery } from "./requests.js";
import { go, isSearch, readState, withChanges } from "./state.js";

const DELAY = 130; // milliseconds that the pointer rests on a chip
const AT_ONCE = 3; // requests for masks
const STRONGER = 4; // twice the weight seldom changes the first hits

/** What a group can be in a search: which ones are, the verb, and what the verb does. */
export const ROLES = {
  required: { read: (state) => state.must, about: "Must have", counted: "must" },
  excluded: { read: (state) => state.without, about: "Leave out", counted: "without" },
  boosted: {
    read: ({ boost }) => Object.keys(boost).filter((key) => boost[key]),
    about: "More",
    effect: "counts four times",
  },
  muted: {
    read: ({ boost }) => Object.keys(boost).filter((key) => !boost[key]),
    about: "Ignore",
    effect: "does not count",
  },
};

let photos = []; // {photo, mask(group, signal)} of the query and the hits
let running = null;

/** Say which photos show where a group is; `mask` returns a promise of a mask. */
export function setPhotos(list) {
  photos = list;
}
export const addPhotos = (list) => photos.push(...list);
export const hitPhoto = (photo, id) => ({
  photo,
  mask: ({ words }, signal) => wordMask(id, words, signal),
});

/** Return what a group is called; without a name, its crop says what it is. */
const titleOf = (group) => group.label ?? "a detail";

/** Return what stands for a group in a query: its name, or its word. */
const keyOf = (group) => group.label ?? group.words[0];

/** Return the name of a key of a query, if it has one. */
export const nameOf = (key, names) => (typeof key === "string" ? key : (names.get(key) ?? null));

/** Return a name, or crops of words that have none. */
export const tag = (name, words) =>
  name === null
    ? h(
        "span.tag",
        { role: "img", "aria-label": "a detail" },
        words.map((word) => h("span", { "data-word": word }, emptyCrop())),
      )
    : h("span.tag", name);

/** Return a chip: what a group looks like, and its name. */
export function chip(group, { small = false } = {}) {
  const name = titleOf(group);
  const role = roleOf(group, readState());
  const button = h(
    "button",
    {
      class: `chip${small ? " small-chip" : ""}${role ? ` is-${role}` : ""}`,
      "data-word": group.words[0],
      "data-key": keyOf(group),
      "aria-haspopup": "dialog",
      title: name,
      "aria-label": `${name}${role ? `, ${ROLES[role].about}` : ""}`,
    },
    emptyCrop(),
    group.label && h("span", group.label),
  );
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(group));
  button.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && light(null));
  button.addEventListener("focus", () => button.matches(":focus-visible") && light(group));
  button.addEventListener("blur", () => light(null));
  button.addEventListener("click", () => {
    openMenu(button, group);
    light(group);
  });
  return button;
}

/** Return what a group is in a search; "" if it was not changed. */
export function roleOf(group, state) {
  const keys = [keyOf(group), group.words[0]].map(String);
  return (
    Object.keys(ROLES).find((role) =>
      ROLES[role].read(state).some((key) => keys.includes(String(key))),
    ) ?? ""
  );
}

/** Show where a group is in all photos; null shows the photos as they are. */
function light(group) {
  running?.abort();
  running = null;
  if (!group) {
    if (byId("word-menu").matches(":popover-open")) return;
    for (const { photo } of photos) photo.classList.remove("is-masked", "is-waiting");
    return;
  }
  running = new AbortController();
  const { signal } = running;
  setTimeout(() => !signal.aborted && showMasks(group, signal), DELAY);
}

async function showMasks(group, signal) {
  const waiting = photos
    .filter(({ photo }) => photo.isConnected)
    .sort((a, b) => isInView(b.photo) - isInView(a.photo));
  for (const { photo } of waiting) {
    photo.classList.remove("is-masked");
    photo.classList.add("is-waiting");
  }
  announce(`In colour: where ${titleOf(group)} is`);
  const work = async () => {
    for (let next = waiting.shift(); next && !signal.aborted; next = waiting.shift()) {
      const mask = await next.mask(group, signal).catch(() => NOWHERE);
      if (signal.aborted) return;
      next.photo.style.setProperty("--mask", mask);
      next.photo.classList.replace("is-waiting", "is-masked");
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

function isInView(photo) {
  const { top, bottom } = photo.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

function openMenu(button, group) {
  const menu = byId("word-menu");
  const state = readState();
  const role = roleOf(group, state);
  const items = Object.entries(ROLES).map(([next, { about, effect, counted }]) => {
    const isOn = role === next;
    const small = h("small", isOn ? "undo" : (effect ?? "…"));
    const item = h("button.menu-item", { "aria-pressed": isOn }, h("b", about), small);
    item.addEventListener("click", () => {
      if (item.getAttribute("aria-disabled") !== "true") changeGroup(group, isOn ? "" : next);
    });
    return { item, small, counted: isOn ? null : counted };
  });
  menu.replaceChildren(
    h("div.menu-head", button.querySelector(".crop").cloneNode(), h("b", titleOf(group))),
    ...(isSearch(state) ? items.map(({ item }) => item) : []),
    h(
      "a.menu-item",
      { href: withChanges({ word: group.words[0] }) },
      h("b", "Show examples"),
      h("small", "and name it"),
    ),
  );
  menu.showPopover();
  place(menu, button);
  menu.querySelector("button, a").focus();
  menu.ontoggle = (event) => {
    if (event.newState !== "closed") return;
    light(null);
    if (menu.contains(document.activeElement) || document.activeElement === document.body)
      button.focus({ preventScroll: true });
  };
  if (isSearch(state)) showCounts(group, state, items);
}

/** Say how many images each choice leaves; what leaves none cannot be chosen. */
async function showCounts(group, state, items) {
  const isOther = (key) => key !== keyOf(group) && !group.words.includes(key);
  const query = {
    ...toQuery({ ...state, region: null, boost: {} }), // which rule out nothing
    must: state.must.filter(isOther),
    without: state.without.filter(isOther),
    word: keyOf(group),
  };
  const remaining = await getJson("/v1/remaining", { method: "POST", json: query }).catch(
    () => ({}),
  );
  for (const { item, small, counted } of items) {
    if (!counted) continue;
    const n = remaining[counted];
    small.textContent = n === undefined ? "" : count(n, "image");
    if (n === 0) item.setAttribute("aria-disabled", "true");
  }
}

function place(menu, button) {
  const anchor = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = anchor.bottom + 6 + height <= innerHeight;
  menu.style.left = `${Math.max(8, Math.min(anchor.left, innerWidth - width - 8))}px`;
  menu.style.top = `${Math.max(8, below ? anchor.bottom + 6 : anchor.top - height - 6)}px`;
}

/** Give a group a role in the search, or none. */
function changeGroup(group, role) {
  byId("word-menu").hidePopover();
  go(withRole([keyOf(group)], role, group.words));
}

/** Give words a role in the search. */
export const changeAll = (words, role) => go(withRole(words, role));

/** Return the address of the search in which words or names have a role; `also` lose theirs. */
export function withRole(keys, role, also = []) {
  const state = readState();
  const isOther = (key) => ![...keys, ...also].map(String).includes(String(key));
  const boost = Object.fromEntries(Object.entries(state.boost).filter(([key]) => isOther(key)));
  for (const key of keys) {
    if (role === "boosted") boost[key] = STRONGER;
    if (role === "muted") boost[key] = 0;
  }
  return withChanges({
    must: [...state.must.filter(isOther), ...(role === "required" ? keys : [])],
    without: [...state.without.filter(isOther), ...(role === "excluded" ? keys : [])],
    boost,
    why: "",
    word: "",
  });
}

export function prepareMenu() {
  const menu = byId("word-menu");
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.querySelectorAll(".menu-item")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
  });
  menu.addEventListener("click", (event) => event.target.closest("a") && menu.hidePopover());
}
