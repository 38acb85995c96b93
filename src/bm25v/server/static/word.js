// One word: what it looks like, how frequent it is, which words are with it, and its name.
// Before and after it are its neighbours in the list of words.
import { getJson, loadImage, send, thumbnail } from "./api.js";
import { emptyCrop, fillCrops } from "./crops.js";
import { head, open } from "./dialog.js";
import { announce, byId, command, count, fileName, h, thousands, whileBusy } from "./dom.js";
import { go, newSearch, withChanges } from "./state.js";
import { wordOrder, wordTitle } from "./wordlist.js";

const IMAGES = 16;
const CROP = 240; // pixels
const WHOLE = 8;

/** Show a word in its dialog; `onNamed` is called when it gets another name. */
export async function showWord(state, onNamed) {
  const dialog = byId("word");
  dialog.replaceChildren(
    head("Visual word", "word", "word-title"),
    h("p.loading", "Looking at its images…"),
  );
  open(dialog, "word");
  const parameters = new URLSearchParams({ images: IMAGES, ...wordOrder(state) });
  const [word, stats] = await whileBusy(
    Promise.all([
      getJson(`/v1/words/${encodeURIComponent(state.word)}?${parameters}`),
      getJson("/v1/stats"),
    ]),
  );
  if (!dialog.open) return;
  fill(dialog, word, stats, onNamed);
  document.title = `${wordTitle(word)} · bm25v`;
  announce(`${wordTitle(word)}, in ${count(word.df, "image")}`);
}

function fill(dialog, word, stats, onNamed) {
  const crop = (image) =>
    h(
      "li",
      h(
        "a",
        {
          href: newSearch({ image: image.id }),
          title: image.path,
          "aria-label": `Search with ${fileName(image.path)}`,
        },
        emptyCrop(),
      ),
    );
  const whole = (image) =>
    h(
      "li",
      h(
        "a.frame",
        {
          href: newSearch({ image: image.id }),
          "aria-label": `Search with ${fileName(image.path)}`,
        },
        loadImage(h("img", { alt: "" }), thumbnail(image.id, 256)),
      ),
    );
  dialog.replaceChildren(
    withNeighbours(dialog, word, head(wordTitle(word), "word", "word-title")),
    h(
      "p.lead",
      word.df
        ? `In ${thousands(word.df)} of ${count(word.n_images, "image")}. `
        : "No image of this gallery has it. ",
      h("small", `Visual word no. ${word.word}`),
    ),
    h(
      "div.row",
      word.df > 0 &&
        h("a.main-button", { href: newSearch({ must: [word.word] }) }, "Search for this word"),
      naming(word, stats, onNamed),
    ),
    ...(word.top.length
      ? [
          h("h2", "Where it is strongest"),
          h("ol.word-crops-grid", word.top.map(crop)),
          h("div.word-columns", facts(word), h("div", companions(word), namesakes(word))),
          h("h2", "The whole images"),
          h("ol.word-crops-grid", word.top.slice(0, WHOLE).map(whole)),
        ]
      : []),
  );
  byId("word-title").focus({ preventScroll: true });
  const crops = [
    ...word.top.map((image) => ({ word: word.word, image: image.id })),
    ...[...word.companions, ...word.same_name].map((other) => ({ word: other.word })),
  ];
  const all = (selector) => [...dialog.querySelectorAll(selector)];
  fillCrops(crops, all(".crop"), CROP, all("img"));
}

/** Add links to the words before and after one to the head of its dialog, and the arrow keys. */
function withNeighbours(dialog, word, top) {
  const link = (number, text, about) =>
    number !== null &&
    h("a.plain-button", { href: withChanges({ word: number }), "aria-label": about }, text);
  top.lastChild.before(
    h(
      "nav.neighbours",
      { "aria-label": "Words of the list" },
      link(word.before, "‹", "Previous word (arrow left)"),
      link(word.after, "›", "Next word (arrow right)"),
    ),
  );
  dialog.onkeydown = (event) => {
    const number = { ArrowLeft: word.before, ArrowRight: word.after }[event.key] ?? null;
    if (number !== null && !event.target.closest("input")) go(withChanges({ word: number }));
  };
  return top;
}

function naming(word, stats, onNamed) {
  if (!stats.writable) {
    return h(
      "div.naming",
      h("span", word.name ? "Rename it:" : "Give it a name:"),
      command(word.name_command, "name the word"),
    );
  }
  const field = h("input", {
    type: "text",
    maxlength: 200,
    value: word.name ?? "",
    "aria-label": `Name of word ${word.word}`,
    placeholder: "Give it a name",
  });
  const problem = h("p.no-match", { role: "alert" });
  const form = h(
    "form.naming",
    field,
    h("button.plain-button", { type: "submit" }, "Save"),
    problem,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      await whileBusy(
        send(`/v1/words/${word.word}/name`, {
          method: "PUT",
          json: { name: field.value.trim() || null },
        }),
      );
      onNamed();
    } catch (error) {
      problem.textContent = error.message;
    }
  });
  return form;
}

function facts(word) {
  const [share, folders] = [word.n_images ? word.df / word.n_images : 0, word.folders.slice(0, 6)];
  return h(
    "section",
    h("h2", "How frequent it is"),
    h(
      "dl.word-facts",
      h(
        "div",
        h("dt", "of all images"),
        h("dd", `${(100 * share).toFixed(share < 0.01 ? 2 : 0)}%`),
      ),
      h("div", h("dt", "IDF: the rarer, the more it counts"), h("dd", word.idf.toFixed(2))),
    ),
    folders.length > 1 && [
      h("h3", "In which folders"),
      h(
        "ol.folders",
        folders.map((folder) =>
          h(
            "li",
            h("span", folder.name),
            h("small", `${thousands(folder.has_word)} of ${thousands(folder.n_images)}`),
            h(
              "div.bar",
              {
                style: {
                  "--start": "0%",
                  "--size": `${(100 * folder.has_word) / folder.n_images}%`,
                },
              },
              h("i"),
            ),
          ),
        ),
      ),
    ],
  );
}

const companions = (word) =>
  others("Often together with", word.companions, ({ lift }) => `${lift.toFixed(1)} × chance`);

const namesakes = (word) =>
  others(`Others named ${word.name}`, word.same_name, ({ df }) => `in ${count(df, "image")}`);

function others(title, words, describe) {
  if (!words.length) return null;
  return h(
    "section",
    h("h2", title),
    h(
      "ol.companions",
      words.map((other) =>
        h(
          "li",
          h(
            "a",
            { href: withChanges({ word: other.word }) },
            emptyCrop(),
            h(
              "span",
              h("b", { class: other.name ? "" : "is-unnamed" }, wordTitle(other)),
              h("small", describe(other)),
            ),
          ),
        ),
      ),
    ),
  );
}
