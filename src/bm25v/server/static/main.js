// Shows what the address says: all images, or the hits of a search; a dialog above them.
import { ServerError } from "./api.js";
import { browse, stopBrowsing } from "./browse.js";
import { prepareMenu } from "./chips.js";
import { announce, byId, h, showProblem, withCode } from "./dom.js";
import { showDuplicates } from "./duplicates.js";
import { fillForm, prepareForm } from "./form.js";
import { search, stopSearch } from "./hits.js";
import { showPhoto } from "./photo.js";
import { isSearch, onState, readState } from "./state.js";
import { restoreUploads } from "./uploads.js";
import { showWhy } from "./why.js";
import { forgetWords, showWord, showWords } from "./words.js";

const PREPARING = 1500; // milliseconds between questions whether the server is ready

const content = byId("content");
const PAGES = new Map([
  ["words", showWords],
  ["duplicates", showDuplicates],
]);
const DIALOGS = { photo: showPhoto, why: showWhy, word: (state) => showWord(state, onNamed) };
let shown = {}; // the state whose dialogs are open

async function follow(options) {
  const state = readState();
  fillForm(state);
  byId("problem").hidden = true;
  document.title = title(state);
  for (const link of document.querySelectorAll(".pages a"))
    link.ariaCurrent = link.dataset.page === state.page ? "page" : null;
  await restoreUploads(state.upload);
  const page = PAGES.get(state.page) ?? (isSearch(state) ? search : browse);
  const show = location.pathname === "/" ? page : showMissing;
  if (show !== browse) stopBrowsing();
  if (show !== search) stopSearch();
  await Promise.all([
    attempt(() => showDialogs(state), options),
    attempt(() => show(state, content, options), options),
  ]);
}

function title(state) {
  if (location.pathname !== "/") return "No such page · bm25v";
  if (state.word) return `word ${state.word} · bm25v`;
  if (state.photo) return "Photo · bm25v";
  if (state.why) return "Why it matches · bm25v";
  if (state.page === "words") return "Visual words · bm25v";
  if (state.page === "duplicates") return "Duplicates · bm25v";
  if (state.text) return `${state.text} · bm25v`;
  return isSearch(state) ? "Search · bm25v" : "bm25v";
}

function showMissing() {
  content.replaceChildren(
    h(
      "div.empty-state",
      h("h1", "There is no page at this address"),
      h("p", "It may be misspelt, or from another version of bm25v."),
      h("p", h("a.main-button", { href: "/" }, "All images")),
    ),
  );
}

/** Open and close dialogs: a word is shown above an explanation, and that above a photo. */
function showDialogs(state) {
  for (const name in DIALOGS) if (!state[name] && byId(name).open) byId(name).close();
  const before = shown;
  shown = state;
  const isNew = (name) => state[name] && (state[name] !== before[name] || !byId(name).open);
  return Promise.all(
    Object.keys(DIALOGS)
      .filter(isNew)
      .map((name) => DIALOGS[name](state)),
  );
}

/** Show everything again that has the old name of a word. */
function onNamed() {
  shown = {};
  stopSearch();
  forgetWords();
  follow({ scroll: scrollY });
}

/** Do something; if it fails, say why, and offer to try again. */
async function attempt(work, options) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    const isKnown = error instanceof ServerError;
    if (!isKnown) console.error(error);
    fail(isKnown ? error.message : "Something went wrong in this page.", options);
  }
}

function fail(message, options) {
  const tryAgain = () => {
    shown = {};
    follow(options);
  };
  const again = h("button.plain-button", { onclick: tryAgain }, "Try again");
  content.querySelector(".loading")?.remove();
  const name = Object.keys(DIALOGS).findLast((key) => byId(key).open); // the uppermost
  const loading = name && byId(name).querySelector(".loading");
  if (loading)
    loading.replaceWith(h("div.problem", { role: "alert" }, h("p", withCode(message)), again));
  else showProblem(withCode(message), again);
  announce(message);
}

/** Say that the server compiles its code, until it has done so. */
async function showPreparing() {
  const response = await fetch("/readyz").catch(() => null);
  const isPreparing = response?.ok && (await response.json()).preparing;
  byId("preparing").hidden = !isPreparing;
  if (isPreparing) setTimeout(showPreparing, PREPARING);
}

prepareForm();
prepareMenu();
onState(follow);
showPreparing();
