// Chips of groups of words: point at one to see where it is; click on it to change the search. Crops
// show what words look like: all those of a view come by one request, as one image of squares.
import { blobAddress, getJson, toQuery } from "./api.js";
import { announce, byId, count, h } from "./dom.js";
import { NOWHERE, wordMask } from "./photos.js";
import { go, isSearch, readState, withChanges } from "./state.js";

const DELAY = 130; // milliseconds that the pointer rests on a chip
const AT_ONCE = 3; // requests for masks
const COLUMNS = 8; // of the image of crops
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
        words.map((word) => emptyCrop(word)),
      )
    : h("span.tag", name);

/** Return a chip: what a group looks like, and its name; a small one if it belongs to a hit. */
export function chip(group, hit) {
  const name = titleOf(group);
  const role = roleOf(group, readState());
  const button = h(
    "button",
    {
      class: `chip${hit ? " small-chip" : ""}${role ? ` is-${role}` : ""}`,
      "data-key": keyOf(group),
      "aria-haspopup": "dialog",
      title: name,
      "aria-label": `${name}${role ? `, ${ROLES[role].about}` : ""}`,
    },
    emptyCrop(group.words[0], hit),
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
    const change = () => {
      if (item.ariaDisabled === "true") return;
      menu.hidePopover();
      go(withRole([keyOf(group)], isOn ? "" : next, group.words));
    };
    const item = h(
      "button.menu-item",
      { "aria-pressed": isOn, onclick: change },
      h("b", about),
      small,
    );
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
  const remaining = await getJson("/v1/remaining", { json: query }).catch(() => ({}));
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

let queue = Promise.resolve(); // one request at a time: thumbnails have the other connections

/** Return an element for what a word looks like, by default in the image that shows it best. */
export const emptyCrop = (word, image) =>
  h("i.crop", { "aria-hidden": "true", "data-word": word, "data-image": image });

/** Fill what is in some elements with crops, after the photos there that are in view. */
export async function fillCrops(parts, size) {
  const all = (selector) => parts.flatMap((part) => [...part.querySelectorAll(selector)]);
  const crops = all(".crop");
  if (!crops.length) return;
  await Promise.all(all("img").filter(isInView).map(settled));
  const filled = queue.then(() => load(crops, size));
  queue = filled.catch(() => {}); // a word has its name, too
  await queue;
}

async function load(elements, size) {
  if (!elements.some((element) => element.isConnected)) return; // somebody was faster
  const keys = elements.map(({ dataset: { word, image } }) =>
    JSON.stringify({ word: Number(word), image }),
  );
  const different = [...new Set(keys)];
  const json = { crops: different.map((key) => JSON.parse(key)), size };
  const address = await blobAddress("/v1/crops", { json });
  const [columns, rows] = [
    Math.min(COLUMNS, different.length),
    Math.ceil(different.length / COLUMNS),
  ];
  elements.forEach(({ style }, i) => {
    const at = different.indexOf(keys[i]);
    const [column, row] = [at % COLUMNS, Math.floor(at / COLUMNS)];
    style.backgroundImage = `url(${JSON.stringify(address)})`;
    style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    style.backgroundPosition = `${position(column, columns)} ${position(row, rows)}`;
  });
}

const position = (i, n) => `${n > 1 ? (100 * i) / (n - 1) : 0}%`;

/** Return a promise that ends when a photo has loaded or failed. */
const settled = (photo) =>
  photo.naturalWidth ||
  new Promise((done) => {
    for (const end of ["load", "error"]) photo.addEventListener(end, done, { once: true });
  });
