// The hits of a search: how strong each is, by which words, and whether it is a good one.
import { getJson, loadImage, thumbnail } from "./api.js";
import { announce, count, fileName, h, icon, whileBusy, withCode } from "./dom.js";
import { findUpload } from "./form.js";
import { PAGE, layeredPhoto, showQuery, toRequest } from "./query.js";
import { go, newSearch, readState, withChanges } from "./state.js";
import { addPhotos, chip, hitPhoto, setPhotos } from "./words.js";

const CARD_WORDS = 4;
const QUERY_WORDS = 12; // listed of the query and of each hit

const HOPELESS = [400, 404, 413, 415, 422]; // to try again does not help

let shown = null; // {key, results}
let running = null;

/** What of a state changes the hits. */
const keyOf = (state) => JSON.stringify({ ...state, why: "", word: "" });

/** Forget the hits, when something else is shown. */
export function stopSearch() {
  running?.abort();
  shown = null;
  setPhotos([]);
}

/** Show the hits of what a state asks for. */
export async function search(state, content, { scroll = 0 } = {}) {
  const key = keyOf(state);
  if (shown?.key === key && content.contains(shown.section)) return;
  running?.abort();
  running = new AbortController();
  if (state.upload && !findUpload(state.upload)) {
    stopSearch();
    content.replaceChildren(lostUpload());
    return;
  }
  const { signal } = running;
  const focused = content.contains(document.activeElement)
    ? describe(document.activeElement)
    : null;
  announce("Searching");
  content.setAttribute("aria-busy", "true");
  if (!content.querySelector(".results, .cells"))
    content.replaceChildren(
      h(
        "p",
        { class: "loading" },
        state.upload ? "Sending the image and searching…" : "Searching…",
      ),
    );
  let results;
  try {
    results = await whileBusy(
      getJson("/v1/search", { ...toRequest(state, { k: PAGE, words: QUERY_WORDS }), signal }),
    );
  } catch (error) {
    if (!HOPELESS.includes(error.status)) throw error;
    stopSearch();
    content.replaceChildren(impossible(error.message));
    announce(error.message);
    return;
  } finally {
    content.removeAttribute("aria-busy");
  }
  const { side, photos } = showQuery(state, results);
  const list = h("ol", { class: "hits-list", "aria-label": "Hits" });
  const section = h(
    "div",
    { class: "results" },
    side,
    h("div", { class: "found" }, summary(state, results), list),
  );
  shown = { key, results, section };
  setPhotos(photos);
  content.replaceChildren(section);
  append(list, results.hits);
  if (results.hits.length === PAGE) section.lastChild.append(moreButton(state, list));
  scrollTo({ top: scroll, behavior: "instant" });
  if (focused !== null) focusAgain(content, focused);
  announce(
    results.hits.length
      ? `${heading(results)} ${count(results.hits.length, "hit")}.`
      : heading(results),
  );
}

const describe = (element) => element.dataset.word ?? element.getAttribute("aria-label") ?? "";

/** Give the focus to what had it before, or at least to the hits. */
function focusAgain(content, focused) {
  const controls = [...content.querySelectorAll("a, button")];
  const same = controls.find((control) => describe(control) === focused);
  (same ?? content).focus({ preventScroll: true });
}

/** Whether no word of a text is known. */
const isUnknown = (results) =>
  !results.hits.length && results.not_understood.length > 0 && !results.understood.length;

/** Whether even the best hit is a weak one, as far as the whole query was understood. */
const isWeak = (results) => results.hits[0]?.strength === "weak" && !results.not_understood.length;

function heading(results) {
  const { understood, not_understood: unknown } = results;
  if (isUnknown(results)) return `Nothing known about ${unknown.join(", ")}`;
  const about = understood.length ? ` for ${understood.join(", ")}` : "";
  return judge(results) + about;
}

function judge(results) {
  if (!results.hits.length) return "No match";
  if (isWeak(results)) return "No good match";
  const strengths = results.not_understood.length ? [] : results.hits.map((hit) => hit.strength);
  const strong = strengths.filter((strength) => strength === "strong").length;
  if (strong)
    return `${count(strong, "strong match", "strong matches")}${strong === PAGE ? " or more" : ""}`;
  return strengths[0] === "fair" ? "Fair matches" : "Best matches";
}

function summary(state, results) {
  const hasHits = results.hits.length > 0;
  const unknown = isUnknown(results);
  const reason = hasHits || unknown ? "" : results.no_match;
  return h(
    "div",
    { class: "summary" },
    h("h1", { class: isWeak(results) || !hasHits ? "no-match" : null }, heading(results)),
    reason && h("p", {}, `${reason.charAt(0).toUpperCase()}${reason.slice(1)}.`),
    unknown &&
      h(
        "p",
        {},
        "A text can have words for what photos show, as in “dog on a beach”, names of folders, files and visual words, and dates, as in “June 2023”.",
      ),
    !unknown &&
      results.not_understood.length > 0 &&
      h(
        "p",
        {},
        "Not understood: ",
        results.not_understood.map((term) => [h("span", { class: "term is-unknown" }, term), " "]),
      ),
    !hasHits && h("p", {}, h("a", { href: newSearch({}) }, "Show all images")),
    isWeak(results) &&
      h(
        "p",
        {},
        state.text
          ? "The gallery has nothing that clearly shows this. These are the closest images."
          : "Nothing here is as close as hits usually are in this gallery. These are the closest images.",
      ),
    hasHits &&
      !isWeak(results) &&
      h("p", {}, "Click one to see why it matches. Mark hits as good or bad to refine the search."),
    results.notes.map((note) => h("p", { class: "note" }, note)),
  );
}

function append(list, hits) {
  const cards = hits.map((hit) => card(hit));
  list.append(...cards.map(({ item }) => item));
  addPhotos(cards.map(({ photo }) => photo));
}

function card(hit) {
  const name = fileName(hit.path);
  const photo = layeredPhoto(name, (img) => loadImage(img, thumbnail(hit.id, 256)));
  const state = readState();
  const feedback = (list, other, title, kind) => {
    const isOn = state[list].includes(hit.id);
    const next = {
      [list]: isOn ? state[list].filter((id) => id !== hit.id) : [...state[list], hit.id],
      [other]: state[other].filter((id) => id !== hit.id),
    };
    return h(
      "button",
      {
        type: "button",
        class: "icon-button",
        title,
        "aria-label": `${title}: ${name}`,
        "aria-pressed": isOn,
        onclick: () => go(withChanges(next)),
      },
      icon(kind),
    );
  };
  const words = readReasons(hit);
  const reasons = listReasons(hit, words);
  const item = h(
    "li",
    { class: `hit ${hit.strength ?? ""}`, "data-id": hit.id },
    h(
      "a",
      {
        class: "frame",
        href: withChanges({ why: hit.id }),
        "aria-label": `Hit ${hit.rank}, ${hit.strength ? `${hit.strength} match, ` : ""}${name}: why it matches`,
      },
      photo,
    ),
    h(
      "div",
      { class: "figures" },
      h("b", {}, hit.rank),
      hit.strength && h("span", { class: `strength ${hit.strength}` }, hit.strength),
      h(
        "span",
        { class: "tools" },
        feedback("like", "unlike", "Good hit: more like this", "good"),
        feedback("unlike", "like", "Bad hit: less like this", "bad"),
        h(
          "a",
          {
            class: "icon-button",
            href: newSearch({ image: hit.id }),
            title: "Search with this image",
            "aria-label": `Search with ${name}`,
          },
          icon("search"),
        ),
      ),
    ),
    h(
      "p",
      { class: "hit-words" },
      words.slice(0, CARD_WORDS).map((word) => chip(word, { small: true })),
      words.length === 0 && !hit.text.length && h("small", {}, "no word of the query"),
    ),
    h(
      "p",
      { class: "path one-line", title: hit.path },
      reasons && [h("b", {}, reasons), " · "],
      name,
    ),
  );
  return { item, photo: hitPhoto(photo, hit.id) };
}

/** Return the visual words that ordered the hits; by its vector alone, a text has none. */
const readReasons = (hit) =>
  hit.text.length && hit.text.every((part) => !part.by_words) ? [] : hit.words;

/** Return the share of each word of a text, or the names of the first visual words. */
function listReasons(hit, words) {
  const values = [...hit.text.map((part) => part.value), hit.rest];
  const positive = values.reduce((sum, value) => sum + Math.max(0, value), 0) || 1;
  if (hit.text.length > 1)
    return hit.text
      .map((part) => `${part.label} ${Math.round((100 * Math.max(0, part.value)) / positive)}%`)
      .join(", ");
  const named = words.slice(0, CARD_WORDS).filter((word) => word.name);
  return [...new Set(named.map((word) => word.name))].join(", ");
}

function moreButton(state, list) {
  const button = h("button", { type: "button", class: "plain-button more" }, "Show more");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const options = toRequest(state, {
        k: PAGE,
        offset: list.children.length,
        words: QUERY_WORDS,
      });
      const { hits } = await whileBusy(getJson("/v1/search", options));
      const first = list.children.length;
      shown?.results.hits.push(...hits);
      append(list, hits);
      list.children[first]?.querySelector("a").focus();
      if (hits.length < PAGE) button.remove();
    } catch (error) {
      announce(error.message);
      button.textContent = `${error.message} Try again`;
    }
    button.disabled = false;
  });
  return button;
}

function impossible(message) {
  return h(
    "div",
    { class: "empty-state" },
    h("h1", {}, "This search is not possible"),
    h("p", {}, withCode(message)),
    h("a", { href: "/" }, "Show all images"),
  );
}

function lostUpload() {
  return h(
    "div",
    { class: "empty-state" },
    h("h1", {}, "This search used an image that is not in the address"),
    h(
      "p",
      {},
      "An image of somebody’s own device stays in the tab where it was chosen. Drop, paste or choose it here to search with it again.",
    ),
    h("a", { href: "/" }, "Show all images"),
  );
}
