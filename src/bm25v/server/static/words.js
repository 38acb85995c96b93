// The visual words of the gallery as a list, and one of them in a dialog.
import { getJson, photo, send } from "./api.js";
import { emptyCrop, fillCrops } from "./chips.js";
import {
  announce,
  choices,
  command,
  count,
  fileName,
  fillDialog,
  h,
  moreButton,
  neighbourLinks,
  openDialog,
  thousands,
  whileBusy,
} from "./dom.js";
import { newSearch, readState, replace, withChanges } from "./state.js";

const LIMIT = 48; // words of one request
const LOOKS = 3; // crops of each
const TOGETHER = 8; // words whose crops come by one request
const CARD_CROP = 120; // pixels
const CROP = 240;
const IMAGES = 16; // of one word, by its crops,
const WHOLE = 8; // and as a whole
const PAUSE = 250; // milliseconds between the last letter and the search
const ORDERS = { name: "Named first", df: "Most images first" };

let shown = null;

/** Return what people call a word. */
const titleOf = (word) => word.name ?? "Unnamed word";
const boldTitle = (word) => h("b", { class: word.name ? "" : "is-unnamed" }, titleOf(word));

/** Return in which order the words are listed, as parameters of requests. */
const orderOf = ({ sort, name }) => ({ sort: sort in ORDERS ? sort : "name", name });

/** Load the list again when it is shown next. */
export function forgetWords() {
  shown = null;
}

/** Show the list of words. */
export async function showWords(state, content, { scroll = 0 } = {}) {
  const key = JSON.stringify(orderOf(state));
  const isOpen = shown && content.contains(shown.list);
  if (isOpen && shown.key === key) return;
  const first = await whileBusy(load(state, 0));
  if (readState().page !== "words" || JSON.stringify(orderOf(readState())) !== key) return;
  if (!isOpen) shown = makeView(content);
  shown.key = key;
  shown.fill(state, first);
  scrollTo({ top: isOpen ? 0 : scroll, behavior: "instant" });
}

const load = (state, offset) =>
  getJson(
    `/v1/words?${new URLSearchParams({ ...orderOf(state), best: LOOKS, offset, limit: LIMIT })}`,
  );

function makeView(content) {
  const title = h("h1");
  const about = "Parts that many images have in common. A search compares these.";
  const field = h("input", {
    type: "search",
    maxlength: 200,
    placeholder: "Search by name",
    "aria-label": "Name of a word",
  });
  let timer = 0;
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => replace(withChanges({ name: field.value.trim() })), PAUSE);
  });
  const head = h("div.row.list-head", field);
  const list = h("ol.word-cards");
  content.replaceChildren(h("div.headline", title, h("p.hint", about)), head, list);

  function fill(state, page) {
    if (document.activeElement !== field) field.value = state.name;
    title.textContent = count(page.total, "visual word");
    const change = (sort) => withChanges({ sort });
    head.querySelector(".choices")?.remove();
    head.append(choices("Order", ORDERS, orderOf(state).sort, change));
    list.replaceChildren();
    content.querySelector(".more")?.remove();
    const more = async () => add(await whileBusy(load(state, list.children.length)));
    if (!add(page)) list.after(moreButton(more));
    if (!page.total)
      list.append(h("li.nothing", state.name ? "No word has such a name." : "No words yet."));
    announce(title.textContent);
  }

  /** Add words to the list; return whether these are the last. */
  function add(page) {
    const cards = page.words.map(makeCard);
    list.append(...cards);
    for (let start = 0; start < cards.length; start += TOGETHER)
      fillCrops(cards.slice(start, start + TOGETHER), CARD_CROP);
    return list.children.length >= page.total;
  }

  return { list, fill };
}

function makeCard(word) {
  const crops = word.best.map(({ id }) => emptyCrop(word.word, id));
  return h(
    "li",
    h(
      "a.word-card",
      { href: withChanges({ word: word.word }) },
      h("span.looks", crops),
      boldTitle(word),
      h("small", `in ${count(word.df, "image")} · no. ${word.word}`),
    ),
  );
}

/** Show a word in its dialog; `onNamed` is called when it gets another name. */
export async function showWord(state, onNamed) {
  const dialog = openDialog("word", "Visual word", "Looking at its images…");
  const parameters = new URLSearchParams({ images: IMAGES, ...orderOf(state) });
  const [word, stats] = await whileBusy(
    Promise.all([
      getJson(`/v1/words/${encodeURIComponent(state.word)}?${parameters}`),
      getJson("/v1/stats"),
    ]),
  );
  if (!dialog.open) return;
  fill(word, stats, onNamed);
  fillCrops([dialog], CROP);
  document.title = `${titleOf(word)} · bm25v`;
  announce(`${titleOf(word)}, in ${count(word.df, "image")}`);
}

function fill(word, stats, onNamed) {
  const isFree = (event) => !event.target.closest("input");
  const use = word.df
    ? `In ${thousands(word.df)} of ${count(word.n_images, "image")}. `
    : "No image of this gallery has it. ";
  const href = newSearch({ must: [word.word] });
  const search = h("a.main-button", { href }, "Search for this word");
  const link = ({ id, path }, attributes, look) => {
    const about = { title: path, "aria-label": `Search with ${fileName(path)}` };
    return h("li", h("a", { href: newSearch({ image: id }), ...about, ...attributes }, look));
  };
  const crops = word.top.map((image) => link(image, {}, emptyCrop(word.word, image.id)));
  const whole = word.top
    .slice(0, WHOLE)
    .map((image) => link(image, { class: "frame" }, photo(image.id, 256, { alt: "" })));
  fillDialog(
    "word",
    titleOf(word),
    h(
      "nav.neighbours",
      { "aria-label": "Words of the list" },
      neighbourLinks("word", "word", word, isFree),
    ),
    h("p.lead", use, h("small", `Visual word no. ${word.word}`)),
    h("div.row", word.df > 0 && search, naming(word, stats, onNamed)),
    ...(word.top.length
      ? [
          h("h2", "Where it is strongest"),
          h("ol.word-crops-grid", crops),
          h("div.word-columns", facts(word), h("div", companions(word), namesakes(word))),
          h("h2", "The whole images"),
          h("ol.word-crops-grid", whole),
        ]
      : []),
  );
}

function naming(word, stats, onNamed) {
  if (!stats.writable) {
    const about = word.name ? "Rename it:" : "Give it a name:";
    return h("div.naming", h("span", about), command(word.name_command, "name the word"));
  }
  const field = h("input", {
    type: "text",
    maxlength: 200,
    value: word.name ?? "",
    "aria-label": `Name of word ${word.word}`,
    placeholder: "Give it a name",
  });
  const problem = h("p.no-match", { role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    const json = { name: field.value.trim() || null };
    try {
      await whileBusy(send(`/v1/words/${word.word}/name`, { method: "PUT", json }));
      onNamed();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const button = h("button.plain-button", { type: "submit" }, "Save");
  return h("form.naming", { onsubmit: save }, field, button, problem);
}

function facts({ df, n_images: n, idf, folders }) {
  const share = n ? df / n : 0;
  const fact = (name, value) => h("div", h("dt", name), h("dd", value));
  const row = ({ name, has_word: has, n_images: all }) =>
    h(
      "li",
      h("span", name),
      h("small", `${thousands(has)} of ${thousands(all)}`),
      h("div.bar", { style: { "--size": `${(100 * has) / all}%` } }, h("i")),
    );
  return h(
    "section",
    h("h2", "How frequent it is"),
    h(
      "dl.word-facts",
      fact("of all images", `${(100 * share).toFixed(share < 0.01 ? 2 : 0)}%`),
      fact("IDF: the rarer, the more it counts", idf.toFixed(2)),
    ),
    folders.length > 1 && [
      h("h3", "In which folders"),
      h("ol.folders", folders.slice(0, 6).map(row)),
    ],
  );
}

const companions = (word) =>
  others("Often together with", word.companions, ({ lift }) => `${lift.toFixed(1)} × chance`);

const namesakes = (word) =>
  others(`Others named ${word.name}`, word.same_name, ({ df }) => `in ${count(df, "image")}`);

function others(title, words, describe) {
  if (!words.length) return null;
  const link = (other) =>
    h(
      "a",
      { href: withChanges({ word: other.word }) },
      emptyCrop(other.word),
      h("span", boldTitle(other), h("small", describe(other))),
    );
  const items = words.map((other) => h("li", link(other)));
  return h("section", h("h2", title), h("ol.companions", items));
}
