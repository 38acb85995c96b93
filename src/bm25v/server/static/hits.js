// The hits of a search: how strong each is, by which details, and whether it is a good one.
import { PAGE, getJson, thumbnail, toRequest } from "./api.js";
import { addPhotos, chip, fillCrops, hitPhoto, setPhotos } from "./chips.js";
import {
  announce,
  byId,
  count,
  fileName,
  h,
  icon,
  moreButton,
  whileBusy,
  withCode,
} from "./dom.js";
import { layeredPhoto } from "./photos.js";
import { findChanges, showQuery } from "./query.js";
import { selectable } from "./select.js";
import { fillTopics } from "./sides.js";
import { go, hasImages, newSearch, readState, withChanges } from "./state.js";
import { findUpload } from "./uploads.js";

const CROP = 96; // pixels: the menu of a chip shows it larger

const HOPELESS = [400, 404, 413, 415, 422]; // to try again does not help

let shown = null; // {key, results}
let tried = null; // {key, results} of a search whose address is not shown yet
let running = null;

/** What of a state changes the hits. */
const keyOf = (state) => JSON.stringify({ ...state, photo: "", why: "", word: "" });

export const isHopeless = (error) => HOPELESS.includes(error.status);

/** Forget the hits, when something else is shown. */
export function stopSearch() {
  running?.abort();
  shown = null;
  setPhotos([]);
}

/** Return the promise of a page of hits; it ends the search before. */
function load(state, offset = 0) {
  running?.abort();
  running = new AbortController();
  const options = toRequest(state, { k: PAGE, offset, words: 0 });
  return whileBusy(getJson("/v1/search", { ...options, signal: running.signal }));
}

/** Go to a search if it is possible; if not, throw an error and leave the page as it is. */
export async function trySearch(address) {
  const state = readState(new URL(address, location.href).search);
  const content = byId("content");
  content.setAttribute("aria-busy", "true");
  try {
    tried = { key: keyOf(state), results: await load(state) };
  } finally {
    content.removeAttribute("aria-busy");
  }
  go(address);
}

/** Show the hits of what a state asks for. */
export async function search(state, content, { scroll = 0 } = {}) {
  const key = keyOf(state);
  if (shown?.key === key && content.contains(shown.section)) return;
  if (!state.upload.every(findUpload)) {
    stopSearch();
    content.replaceChildren(lostUpload());
    return;
  }
  const focused = content.contains(document.activeElement)
    ? describe(document.activeElement)
    : null;
  announce("Searching");
  content.setAttribute("aria-busy", "true");
  if (!content.querySelector(".results, .cells"))
    content.replaceChildren(
      h("p.loading", state.upload.length ? "Sending the image and searching…" : "Searching…"),
    );
  let results;
  try {
    results = tried?.key === key ? tried.results : await load(state);
    tried = null;
  } catch (error) {
    if (!isHopeless(error)) throw error;
    stopSearch();
    content.replaceChildren(impossible(state, error.message));
    fillCrops([content], CROP);
    announce(error.message);
    return;
  } finally {
    content.removeAttribute("aria-busy");
  }
  const { side, photos } = showQuery(state, results);
  const list = h("ol.hits-list", { "aria-label": "Hits" });
  const section = h("div.results", side, h("div.found", summary(state, results), list));
  if (isUnknown(results)) list.before(topics());
  shown = { key, results, section };
  setPhotos(photos);
  content.replaceChildren(section);
  append(list, results.hits);
  fillCrops([section], CROP);
  if (results.hits.length === PAGE)
    section.lastChild.append(moreButton(() => addMore(state, list)));
  scrollTo({ top: scroll, behavior: "instant" });
  if (focused !== null) focusAgain(content, focused);
  announce(
    results.hits.length
      ? `${heading(results, state)} ${count(results.hits.length, "hit")}.`
      : heading(results, state),
  );
}

/** Return the ids of the hits before and after one. */
export function neighbours(id) {
  const hits = shown?.results.hits ?? [];
  const at = hits.findIndex((hit) => hit.id === id);
  return at < 0 ? {} : { before: hits[at - 1]?.id, after: hits[at + 1]?.id };
}

const describe = (element) => element.dataset.key ?? element.getAttribute("aria-label") ?? "";

/** Give the focus to what had it before, or at least to the hits. */
function focusAgain(content, focused) {
  const controls = [...content.querySelectorAll("a, button")];
  const same = controls.find((control) => describe(control) === focused);
  (same ?? content).focus({ preventScroll: true });
}

/** Whether no word of a text is known. */
const isUnknown = (results) =>
  !results.hits.length && results.not_understood.length > 0 && !results.understood.length;

/** Whether even the best hit is a weak one. */
const isWeak = (results) => results.hits[0]?.strength === "weak";

function heading(results, state) {
  const { understood, not_understood: unknown } = results;
  if (isUnknown(results)) return `Nothing known about ${unknown.join(", ")}`;
  if (!understood.length) return judge(results);
  const parts = [...(hasImages(state) ? ["your image and"] : []), understood.join(", ")];
  return `${judge(results)} for ${parts.join(" ")}`;
}

function judge(results) {
  if (!results.hits.length) return "No match";
  if (isWeak(results)) return "No good match";
  const strengths = results.hits.map((hit) => hit.strength);
  const strong = strengths.filter((strength) => strength === "strong").length;
  if (strong)
    return `${count(strong, "strong match", "strong matches")}${strong === PAGE ? " or more" : ""}`;
  return strengths[0] === "fair" ? "Fair matches" : "Best matches";
}

function summary(state, results) {
  const hasHits = results.hits.length > 0;
  const unknown = isUnknown(results);
  return h(
    "div.summary",
    h("h1", { class: isWeak(results) || !hasHits ? "no-match" : null }, heading(results, state)),
    !hasHits && !unknown && h("p", explainNothing(state, results)),
    unknown &&
      h(
        "p",
        "A text can have words for what photos show, as in “dog on a beach”, names of folders, files and visual words, and dates, as in “June 2023”.",
      ),
    !unknown &&
      results.not_understood.length > 0 &&
      h(
        "p",
        "Not understood: ",
        results.not_understood.map((term) => [h("span.term.is-unknown", term), " "]),
      ),
    !hasHits && steps(state, results),
    isWeak(results) &&
      h(
        "p",
        state.text
          ? "The gallery has nothing that clearly shows this. These are the closest images."
          : "Nothing here is as close as hits usually are in this gallery. These are the closest images.",
      ),
    hasHits &&
      !isWeak(results) &&
      h("p", "Choose a photo to see why it matches. Thumbs up and down refine the search."),
    !unknown && results.notes.map((note) => h("p.note", note)),
  );
}

/** Say why there are no hits; details that have no name are shown below it. */
function explainNothing(state, { no_match: reason }) {
  if (state.must.length + state.without.length) return "No image has all that you require.";
  return `${reason.charAt(0).toUpperCase()}${reason.slice(1)}.`;
}

/** Return what to do if there are no hits. */
function steps(state, results) {
  const step = (href, ...children) => h("a.plain-button", { href }, children);
  return h(
    "p.row.steps",
    findChanges(state, results).map(({ about, content, href }) =>
      step(href, h("span", `Remove “${about}”`), content),
    ),
    (state.folder || state.date) && step(withChanges({ folder: "", date: "" }), "Clear the filter"),
    state.text && hasImages(state) && step(withChanges({ text: "" }), "Search without the text"),
    step(newSearch({}), "Show all images"),
  );
}

/** Return a list of what can be searched for, which is filled later. */
function topics() {
  const list = h("ul.topics.is-wrapped");
  const part = h("section", { hidden: true }, h("h2", "Photos here show"), list);
  fillTopics(list).then(() => (part.hidden = list.hidden));
  return part;
}

function append(list, hits) {
  const cards = hits.map((hit) => card(hit));
  list.append(...cards.map(({ item }) => item));
  list.querySelector(".divide")?.remove();
  const all = [...list.querySelectorAll(".hit")];
  const last = all.findLastIndex((item) => !item.classList.contains("weak"));
  if (last >= 0 && all[last + 1]) all[last].after(h("li.divide", "Less similar from here"));
  addPhotos(cards.map(({ photo }) => photo));
}

function card(hit) {
  const { id, rank, strength, path, copies } = hit;
  const state = readState();
  const name = fileName(path);
  const photo = layeredPhoto(name, thumbnail(id, 256));
  const isLiked = state.like.includes(id);
  const about = `Hit ${rank}, ${isLiked ? "liked, " : ""}${strength ? `${strength} match, ` : ""}`;
  const shares = listShares(hit);
  const feedback = (list, other, title, kind) => {
    const isOn = state[list].includes(id);
    const mark = () => {
      const now = readState(); // somebody may have marked another one meanwhile
      const others = now[list].filter((key) => key !== id);
      const marked = isOn ? others : [...others, id];
      go(withChanges({ [list]: marked, [other]: now[other].filter((key) => key !== id) }));
    };
    const said = { title, "aria-label": `${title}: ${name}`, "aria-pressed": isOn };
    return h("button.icon-button", { ...said, onclick: mark }, icon(kind));
  };
  const link = (href, title, said, kind) =>
    h("a.icon-button", { href, title, "aria-label": said }, icon(kind));
  const add = () => {
    const href = withChanges({ image: [...state.image, id], region: null });
    return link(href, "Add to the query", `Add ${name} to the query`, "add");
  };
  const tools = h(
    "span.tools",
    feedback("like", "unlike", "More like this", "good"),
    feedback("unlike", "like", "Less like this", "bad"),
    link(newSearch({ image: id }), "Search with this image", `Search with ${name}`, "search"),
    !state.image.includes(id) && add(),
  );
  const item = h(
    "li.hit",
    { class: `${strength ?? ""}${isLiked ? " is-liked" : ""}`, "data-id": id },
    h(
      "a.frame",
      { href: withChanges({ why: id }), "aria-label": `${about}${name}: why it matches` },
      photo,
    ),
    h(
      "div.figures",
      h("b", rank),
      strength && h("span.strength", { class: strength }, strength),
      isLiked && h("span.liked", "liked"),
      tools,
    ),
    h(
      "p.hit-words",
      hit.groups.map((group) => chip(group, id)),
    ),
    h(
      "p.path.one-line",
      { title: [path, ...copies].join("\n") },
      shares && [h("b", shares), " · "],
      copies.length > 0 && [h("b", `${copies.length + 1} copies`), " · "],
      name,
    ),
  );
  selectable(item, hit);
  return { item, photo: hitPhoto(photo, id) };
}

/** Return the share of each word of a text that has several. */
function listShares(hit) {
  if (hit.text.length < 2) return "";
  const values = [...hit.text.map((part) => part.value), hit.rest];
  const positive = values.reduce((sum, value) => sum + Math.max(0, value), 0) || 1;
  return hit.text
    .map((part) => `${part.label} ${Math.round((100 * Math.max(0, part.value)) / positive)}%`)
    .join(", ");
}

/** Add hits to the list; return whether these are the last. */
async function addMore(state, list) {
  const first = list.querySelectorAll(".hit").length;
  const { hits } = await load(state, first);
  shown?.results.hits.push(...hits);
  append(list, hits);
  const added = [...list.querySelectorAll(".hit")].slice(first);
  fillCrops(added, CROP);
  added[0]?.querySelector("a").focus();
  return hits.length < PAGE;
}

function impossible(state, message) {
  return h(
    "div.empty-state",
    h("h1", "This search is not possible"),
    h("p", withCode(message)),
    steps(state),
  );
}

function lostUpload() {
  return h(
    "div.empty-state",
    h("h1", "This search used an image that is not in the address"),
    h(
      "p",
      "An image of somebody’s own device stays in the tab where it was chosen. Choose it again to search with it.",
    ),
    h(
      "p.row.steps",
      h("button.main-button.choose-image", "Choose an image"),
      h("a.plain-button", { href: "/" }, "Show all images"),
    ),
  );
}
