// The visual words of the gallery: how each looks, its name, and how many images have it.
import { getJson } from "./api.js";
import { emptyCrop, fillCrops } from "./crops.js";
import { announce, count, h, whileBusy } from "./dom.js";
import { readState, replace, withChanges } from "./state.js";

const LIMIT = 48; // words of one request
const LOOKS = 3; // crops of each
const TOGETHER = 8; // words whose crops come by one request
const CROP = 120; // pixels
const PAUSE = 250; // milliseconds between the last letter and the search
const ORDERS = { name: "Named first", df: "Most images first" };

let shown = null;

/** Return what people call a word. */
export const wordTitle = (word) => word.name ?? "Unnamed word";

/** Return in which order the words are listed, as parameters of requests. */
export const wordOrder = ({ sort, name }) => ({ sort: sort in ORDERS ? sort : "name", name });

/** Load the list again when it is shown next. */
export function forgetWords() {
  shown = null;
}

/** Show the list of words. */
export async function showWords(state, content, { scroll = 0 } = {}) {
  const key = JSON.stringify(wordOrder(state));
  const isOpen = shown && content.contains(shown.list);
  if (isOpen && shown.key === key) return;
  const first = await whileBusy(load(state, 0));
  if (readState().page !== "words" || JSON.stringify(wordOrder(readState())) !== key) return;
  if (!isOpen) shown = makeView(content);
  shown.key = key;
  shown.fill(state, first);
  scrollTo({ top: isOpen ? 0 : scroll, behavior: "instant" });
}

const load = (state, offset) =>
  getJson(
    `/v1/words?${new URLSearchParams({ ...wordOrder(state), best: LOOKS, offset, limit: LIMIT })}`,
  );

function makeView(content) {
  const title = h("h1");
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
  const orders = h("div.choices", { role: "group", "aria-label": "Order" });
  const list = h("ol.word-cards");
  const more = h("button.plain-button.more", "Show more");
  content.replaceChildren(
    h(
      "div.headline",
      title,
      h("p.hint", "Parts that many images have in common. A search compares these."),
    ),
    h("div.row.list-head", field, orders),
    list,
    more,
  );

  function fill(state, page) {
    if (document.activeElement !== field) field.value = state.name;
    title.textContent = count(page.total, "visual word");
    orders.replaceChildren(
      ...Object.entries(ORDERS).map(([sort, text]) =>
        h(
          "a",
          {
            href: withChanges({ sort }),
            "aria-current": sort === wordOrder(state).sort ? "true" : null,
          },
          text,
        ),
      ),
    );
    list.replaceChildren();
    add(page);
    if (!page.total)
      list.append(h("li.nothing", state.name ? "No word has such a name." : "No words yet."));
    announce(title.textContent);
    more.onclick = async () => {
      more.disabled = true;
      try {
        add(await whileBusy(load(state, list.children.length)));
      } finally {
        more.disabled = false;
      }
    };
  }

  function add(page) {
    const cards = page.words.map(makeCard);
    list.append(...cards);
    more.hidden = list.children.length >= page.total;
    for (let start = 0; start < cards.length; start += TOGETHER) {
      const words = page.words.slice(start, start + TOGETHER);
      const crops = words.flatMap(({ word, best }) => best.map(({ id }) => ({ word, image: id })));
      const elements = cards
        .slice(start, start + TOGETHER)
        .flatMap((card) => [...card.querySelectorAll(".crop")]);
      fillCrops(crops, elements, CROP);
    }
  }

  return { list, fill };
}

function makeCard(word) {
  return h(
    "li",
    h(
      "a.word-card",
      { href: withChanges({ word: word.word }) },
      h("span.looks", word.best.map(emptyCrop)),
      h("b", { class: word.name ? "" : "is-unnamed" }, wordTitle(word)),
      h("small", `in ${count(word.df, "image")} · no. ${word.word}`),
    ),
  );
}
