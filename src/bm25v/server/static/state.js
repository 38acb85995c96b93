// The state of the page is its address: every search, explanation and word has a link.

const LISTS = ["image", "upload", "like", "unlike"];
const WORD_LISTS = ["must", "without"]; // numbers, and names that several words may have
const TEXTS = ["text", "folder", "date", "photo", "why", "word"];
const PAGES = ["page", "name", "sort", "kind"]; // a list of words or duplicates

/** Return the state that an address stands for. */
export function readState(search = location.search) {
  const given = new URLSearchParams(search);
  const state = { region: readRegion(given.get("region")), boost: {} };
  for (const name of [...TEXTS, ...PAGES]) state[name] = given.get(name) ?? "";
  for (const name of LISTS) state[name] = given.getAll(name);
  for (const name of WORD_LISTS) state[name] = given.getAll(name).filter(Boolean).map(readWord);
  for (const entry of given.getAll("boost")) {
    const [, word, factor] = /^(.+):(-?[0-9.]+)$/.exec(entry) ?? [];
    if (word && Number.isFinite(Number(factor))) state.boost[word] = Number(factor);
  }
  return state;
}

/** Return a number, or a name. */
export const readWord = (text) => (/^[0-9]+$/.test(text) ? Number(text) : text);

function readRegion(text) {
  const box = (text ?? "").split(",").map(Number);
  return box.length === 4 && box.every((side) => side >= 0 && side <= 1) && box[2] && box[3]
    ? box
    : null;
}

/** Return the address of a state. */
function toAddress(state) {
  const given = new URLSearchParams();
  for (const name of [...PAGES, ...TEXTS])
    if (state[name] || state[name] === 0) given.set(name, state[name]);
  if (state.region)
    given.set("region", state.region.map((side) => Number(side.toFixed(4))).join(","));
  for (const name of [...WORD_LISTS, ...LISTS])
    for (const value of [state[name] ?? []].flat()) given.append(name, value);
  for (const [word, factor] of Object.entries(state.boost ?? {}))
    given.append("boost", `${word}:${factor}`);
  return given.size ? `/?${given}` : "/";
}

/** Return the address of the present state with changes; null takes something away. */
export const withChanges = (changes) => toAddress({ ...readState(), ...changes });

/** Return the address of a new search, with the filters of the present one. */
export function newSearch(query) {
  const { folder, date } = readState();
  return toAddress({ folder, date, ...query });
}

/** Whether the query of a state has an image. */
export const hasImages = (state) => state.image.length + state.upload.length > 0;

/** Whether a state asks for something, apart from filters. */
export const isSearch = (state) =>
  Boolean(
    state.text ||
    hasImages(state) ||
    state.must.length ||
    state.like.length ||
    Object.keys(state.boost).length,
  );

let follow = () => {};

/** Call a function now and whenever the state changes. */
export function onState(listener) {
  follow = listener;
  history.scrollRestoration = "manual";
  addEventListener("popstate", (event) => follow({ scroll: event.state?.scroll ?? 0 }));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='/']");
    if (
      !link ||
      event.defaultPrevented ||
      event.button ||
      event.ctrlKey ||
      event.metaKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  follow({});
}

/** Go to an address of this page. */
export function go(address) {
  if (address === location.pathname + location.search) {
    follow({ scroll: scrollY }); // the last attempt may have failed
    return;
  }
  const steps = countSteps(readState(), readState(new URL(address, location.href).search));
  history.replaceState({ ...history.state, scroll: scrollY }, "");
  history.pushState({ steps }, "", address);
  follow({});
}

/** Change the address of what is shown, without a step in the history. */
export function replace(address) {
  history.replaceState(history.state, "", address);
  follow({ scroll: scrollY });
}

/** Return how many steps back each dialog was closed; 0 if that was before this page. */
function countSteps(before, after) {
  const count = (name) => {
    if (!before[name]) return 1;
    const steps = history.state?.steps?.[name];
    return steps ? steps + 1 : 0;
  };
  return Object.fromEntries(
    ["photo", "why", "word"].map((name) => [name, after[name] ? count(name) : 0]),
  );
}

/** Close a dialog: back to where it was not open, if that was in this page. */
export function leave(name) {
  const steps = history.state?.steps?.[name];
  if (steps) history.go(-steps);
  else {
    history.replaceState(null, "", withChanges({ [name]: "" }));
    follow({});
  }
}
