// What starts a search: the text field, images that are dropped, pasted or chosen, and the filters.
import { getJson } from "./api.js";
import { announce, byId, h, showProblem } from "./dom.js";
import { isHopeless, trySearch } from "./hits.js";
import { chooseFolder, fillFolderMenu } from "./sides.js";
import { go, hasImages, isSearch, newSearch, readState, withChanges } from "./state.js";
import { forgetOldUploads, keepUpload } from "./uploads.js";

const PAUSE = 150; // milliseconds between the last letter and suggestions
const PLACEHOLDER = byId("text").placeholder;

/** Search with a file, or add it to the query; if that is not possible, the page stays as it is. */
async function searchWith(file, isAdded = false) {
  const key = keepUpload(file);
  const { upload } = readState();
  const added = { upload: [...upload, key], region: null, photo: "", why: "", word: "" };
  try {
    await trySearch(isAdded ? withChanges(added) : newSearch({ upload: key }));
  } catch (error) {
    if (error.name === "AbortError") return;
    const again = h(
      "button.plain-button",
      { onclick: () => searchWith(file, isAdded) },
      "Try again",
    );
    const controls = isHopeless(error) ? [] : [again];
    showProblem([h("b", file.name), ": ", error.message], ...controls);
    announce(error.message);
  }
}

export function prepareForm() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("text").value.trim();
    const isBeside = hasImages(readState()); // the text says more about the images
    const changes = { text, photo: "", why: "", word: "" };
    go(isBeside ? withChanges(changes) : newSearch(text ? { text } : {}));
  });
  let isAdded = false;
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#choose, .choose-image, .add-image")) return;
    isAdded = Boolean(event.target.closest(".add-image"));
    byId("file").click();
  });
  byId("file").addEventListener("change", () => {
    const [file] = byId("file").files;
    byId("file").value = "";
    if (file) searchWith(file, isAdded);
  });
  forgetOldUploads();
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea, dialog")) return;
    event.preventDefault();
    byId("text").select();
  });
  prepareDrop();
  prepareSuggestions();
  prepareFilters();
}

function prepareDrop() {
  const drop = byId("drop");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    byId("drop-to-add").hidden = !isSearch(readState());
    drop.hidden = false;
  });
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("dragleave", (event) => event.relatedTarget === null && (drop.hidden = true));
  addEventListener("drop", (event) => {
    drop.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    const isAdded = isSearch(readState()) && event.clientX > innerWidth / 2;
    if (file) searchWith(file, isAdded);
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((item) =>
      item.type.startsWith("image/"),
    );
    if (!file) return;
    event.preventDefault();
    searchWith(file);
  });
}

/** Suggest names for the last word, while somebody types. */
function prepareSuggestions() {
  let [timer, last] = [0, ""];
  byId("text").addEventListener("input", () => {
    clearTimeout(timer);
    const text = byId("text").value;
    const [, before, word] = /^(.*?)([^\s,]*)$/s.exec(text);
    if (word.length < 2 || text === last) return;
    timer = setTimeout(async () => {
      last = text;
      const { terms } = await getJson(`/v1/terms?${new URLSearchParams({ prefix: word })}`).catch(
        () => ({ terms: [] }),
      );
      if (byId("text").value !== text) return;
      byId("terms").replaceChildren(...terms.map((term) => h("option", { value: before + term })));
    }, PAUSE);
  });
}

function prepareFilters() {
  byId("filter").addEventListener("click", () => showFilters(byId("filters").hidden));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("folder").addEventListener("change", () =>
    go(withChanges({ folder: byId("folder").value })),
  );
  for (const id of ["from", "to"]) {
    byId(id).addEventListener("change", () => {
      const [from, to] = [byId("from").value, byId("to").value];
      go(withChanges({ date: from || to ? `${from}..${to}` : "" }));
    });
  }
  byId("no-filter").addEventListener("click", () => {
    go(withChanges({ folder: "", date: "" }));
    showFilters(false);
    byId("filter").focus();
  });
}

function showFilters(isVisible) {
  byId("filters").hidden = !isVisible;
  byId("filter").setAttribute("aria-expanded", isVisible);
  if (isVisible) fillFolderMenu(byId("folder"));
}

/** Show what an address says in the fields. */
export function fillForm(state) {
  byId("text").value = state.text;
  byId("text").placeholder = hasImages(state) ? "Add words" : PLACEHOLDER;
  const [from, to] = state.date.includes("..") ? state.date.split("..") : [state.date, state.date];
  byId("from").value = from;
  byId("to").value = to;
  chooseFolder(byId("folder"), state.folder);
  const n = Number(Boolean(state.folder)) + Number(Boolean(state.date));
  byId("filter").classList.toggle("is-on", n > 0);
  byId("filter").setAttribute(
    "aria-label",
    n ? `Filter by folder and date: ${n} in use` : "Filter by folder and date",
  );
  if (n && byId("filters").hidden) showFilters(true);
}
