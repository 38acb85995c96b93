// Chips of words: point at one to see where it is; click on it to change the search.
import { loadImage, wordCrop } from "./api.js";
import { announce, byId, count, h, label } from "./dom.js";
import { NOWHERE, wordMask } from "./masks.js";
import { go, readState, withChanges } from "./state.js";

const DELAY = 130; // milliseconds that the pointer rests on a chip
const AT_ONCE = 3; // requests for masks
const STRONGER = 2;

let photos = []; // {photo, mask(word, signal)} of the query and the hits
let running = null;

/** Say which photos show where a word is; `mask` returns a promise of a mask. */
export function setPhotos(list) {
  photos = list;
}
export const addPhotos = (list) => photos.push(...list);
export const hitPhoto = (photo, id) => ({
  photo,
  mask: (word, signal) => wordMask(id, word, signal),
});

/** Return a chip: what a word looks like and, unless it is `small`, its name. */
export function chip(word, { small = false } = {}) {
  const name = label(word);
  const state = readState();
  const role = roleOf(word.word, state);
  const button = h(
    "button",
    {
      type: "button",
      class: `chip${small ? " small-chip" : ""}${role ? ` is-${role}` : ""}`,
      "data-word": word.word,
      "aria-haspopup": "dialog",
      title: name,
      "aria-label": `${name}${role ? `, ${role}` : ""}`,
    },
    loadImage(h("img", { alt: "", width: 28, height: 28 }), wordCrop(word.word, 64)),
    !small && h("span", {}, name),
  );
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(word));
  button.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && light(null));
  button.addEventListener("focus", () => button.matches(":focus-visible") && light(word));
  button.addEventListener("blur", () => light(null));
  button.addEventListener("click", () => {
    openMenu(button, word);
    light(word);
  });
  return button;
}

function roleOf(word, state) {
  if (state.must.includes(word)) return "required";
  if (state.without.includes(word)) return "excluded";
  if (word in state.boost) return state.boost[word] ? "boosted" : "muted";
  return "";
}

/** Show where a word is in all photos; null shows the photos as they are. */
function light(word) {
  running?.abort();
  running = null;
  if (!word) {
    if (byId("word-menu").matches(":popover-open")) return;
    for (const { photo } of photos) photo.classList.remove("is-masked");
    return;
  }
  running = new AbortController();
  const { signal } = running;
  setTimeout(() => !signal.aborted && showMasks(word, signal), DELAY);
}

async function showMasks(word, signal) {
  const waiting = photos.filter(({ photo }) => photo.isConnected);
  announce(`In colour: where ${label(word)} is`);
  const work = async () => {
    for (let next = waiting.shift(); next && !signal.aborted; next = waiting.shift()) {
      const mask = await next.mask(word.word, signal).catch(() => NOWHERE);
      if (signal.aborted) return;
      next.photo.style.setProperty("--mask", mask);
      next.photo.classList.add("is-masked");
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

function openMenu(button, word) {
  const menu = byId("word-menu");
  const state = readState();
  const role = roleOf(word.word, state);
  const choose = (text, about, next) =>
    h(
      "button",
      {
        type: "button",
        class: "menu-item",
        "aria-pressed": role === next,
        onclick: () => change(word, role === next ? "" : next),
      },
      h("b", {}, text),
      h("small", {}, about),
    );
  const isSearch =
    state.text || state.image || state.upload || state.must.length || state.like.length;
  menu.replaceChildren(
    h(
      "div",
      { class: "menu-head" },
      loadImage(
        h("img", { alt: `What ${label(word)} looks like`, width: 72, height: 72 }),
        wordCrop(word.word, 144),
      ),
      h(
        "p",
        {},
        h("b", {}, label(word)),
        word.df !== undefined && h("small", {}, `in ${count(word.df, "image")}`),
      ),
    ),
    isSearch && choose("Require", "only with it", "required"),
    isSearch && choose("Exclude", "only without it", "excluded"),
    isSearch && choose("Boost", "counts double", "boosted"),
    isSearch && choose("Mute", "does not count", "muted"),
    h(
      "a",
      { class: "menu-item", href: withChanges({ word: word.word }) },
      h("b", {}, "Open the word"),
      h("small", {}, "and name it"),
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
}

function place(menu, button) {
  const anchor = button.getBoundingClientRect();
  const { width, height } = menu.getBoundingClientRect();
  const below = anchor.bottom + 6 + height <= innerHeight;
  menu.style.left = `${Math.max(8, Math.min(anchor.left, innerWidth - width - 8))}px`;
  menu.style.top = `${Math.max(8, below ? anchor.bottom + 6 : anchor.top - height - 6)}px`;
}

/** Give a word a role in the search: required, excluded, boosted, muted, or none. */
export function change(word, role) {
  byId("word-menu").hidePopover();
  const state = readState();
  const without = (list) => list.filter((other) => other !== word.word);
  const boost = { ...state.boost };
  delete boost[word.word];
  if (role === "boosted") boost[word.word] = STRONGER;
  if (role === "muted") boost[word.word] = 0;
  go(
    withChanges({
      must: role === "required" ? [...without(state.must), word.word] : without(state.must),
      without:
        role === "excluded" ? [...without(state.without), word.word] : without(state.without),
      boost,
      why: "",
      word: "",
    }),
  );
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
