// Shows what the address says: all images, or the hits of a search; a dialog above them.
import { ServerError } from "./api.js";
import { browse, stopBrowsing } from "./browse.js";
import { announce, byId, h, withCode } from "./dom.js";
import { fillForm, prepareForm } from "./form.js";
import { search, stopSearch } from "./hits.js";
import { isSearch, onState, readState } from "./state.js";
import { showWhy } from "./why.js";
import { showWord } from "./word.js";
import { prepareMenu } from "./words.js";

const content = byId("content");
let dialogs = ""; // what is open

async function follow(options) {
  const state = readState();
  fillForm(state);
  byId("problem").hidden = true;
  document.title = title(state);
  const below = isSearch(state) ? showHits : showImages;
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

function title(state) {
  if (state.word) return `word ${state.word} · bm25v`;
  if (state.why) return "Why it matches · bm25v";
  if (state.text) return `${state.text} · bm25v`;
  return isSearch(state) ? "Search · bm25v" : "bm25v";
}

/** Open and close dialogs; a word is shown above an explanation. */
function showDialogs(state) {
  for (const name of ["word", "why"]) if (!state[name] && byId(name).open) byId(name).close();
  const wanted = JSON.stringify([state.why, state.word]);
  if (wanted === dialogs) return undefined;
  const [why, word] = dialogs ? JSON.parse(dialogs) : ["", ""];
  dialogs = wanted;
  const shown = [];
  if (state.why && (state.why !== why || !byId("why").open)) shown.push(showWhy(state));
  if (state.word && (state.word !== word || !byId("word").open)) {
    shown.push(
      showWord(state, () => {
        dialogs = "";
        stopSearch(); // chips have the old name
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
  const again = h("button", { type: "button", class: "plain-button" }, "Try again");
  again.addEventListener("click", () => {
    dialogs = "";
    follow(options);
  });
  content.querySelector(".loading")?.remove();
  const parts = [h("p", {}, withCode(message)), again];
  const dialog = ["word", "why"].map(byId).find(({ open }) => open);
  const loading = dialog?.querySelector(".loading");
  if (loading) loading.replaceWith(h("div", { class: "problem", role: "alert" }, parts));
  else {
    byId("problem").replaceChildren(...parts);
    byId("problem").hidden = false;
  }
  announce(message);
}

prepareForm();
prepareMenu();
onState(follow);
