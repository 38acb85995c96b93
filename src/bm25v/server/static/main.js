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
const PAGES = { words: showWords, duplicates: showDuplicates };
const DIALOGS = ["word", "why", "photo"]; // the uppermost first
let dialogs = ""; // what is open

async function follow(options) {
  const state = readState();
  fillForm(state);
  byId("problem").hidden = true;
  document.title = title(state);
  for (const link of document.querySelectorAll(".pages a"))
    link.ariaCurrent = link.dataset.page === state.page ? "page" : null;
  await restoreUploads(state.upload);
  const below = state.page in PAGES ? showPage : isSearch(state) ? showHits : showImages;
  await Promise.all([
    attempt(() => showDialogs(state), options),
    attempt(() => below(state, options), options),
  ]);
}

function showHits(state, options) {
  stopBrowsing();
  return search(state, content, options);
}

function showImages(state, options) {
  stopSearch();
  return browse(state, content, options);
}

function showPage(state, options) {
  stopBrowsing();
  stopSearch();
  return PAGES[state.page](state, content, options);
}

function title(state) {
  if (state.word) return `word ${state.word} · bm25v`;
  if (state.photo) return "Photo · bm25v";
  if (state.why) return "Why it matches · bm25v";
  if (state.page === "words") return "Visual words · bm25v";
  if (state.page === "duplicates") return "Duplicates · bm25v";
  if (state.text) return `${state.text} · bm25v`;
  return isSearch(state) ? "Search · bm25v" : "bm25v";
}

/** Open and close dialogs; a word is shown above an explanation, and that above a photo. */
function showDialogs(state) {
  for (const name of DIALOGS) if (!state[name] && byId(name).open) byId(name).close();
  const wanted = JSON.stringify([state.photo, state.why, state.word]);
  if (wanted === dialogs) return undefined;
  const [photo, why, word] = dialogs ? JSON.parse(dialogs) : ["", "", ""];
  dialogs = wanted;
  const shown = [];
  if (state.photo && (state.photo !== photo || !byId("photo").open)) shown.push(showPhoto(state));
  if (state.why && (state.why !== why || !byId("why").open)) shown.push(showWhy(state));
  if (state.word && (state.word !== word || !byId("word").open)) {
    shown.push(
      showWord(state, () => {
        dialogs = "";
        stopSearch(); // chips have the old name
        forgetWords();
        follow({ scroll: scrollY });
      }),
    );
  }
  return Promise.all(shown);
}

/** Do something; if it fails, say why, and offer to try again. */
async function attempt(work, options) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ServerError)) console.error(error);
    fail(
      error instanceof ServerError ? error.message : "Something went wrong in this page.",
      options,
    );
  }
}

function fail(message, options) {
  const again = h("button.plain-button", "Try again");
  again.addEventListener("click", () => {
    dialogs = "";
    follow(options);
  });
  content.querySelector(".loading")?.remove();
  const dialog = DIALOGS.map(byId).find(({ open }) => open);
  const loading = dialog?.querySelector(".loading");
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
