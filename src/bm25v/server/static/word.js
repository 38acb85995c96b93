// One word: what it looks like, how frequent it is, which words are with it, and its name.
import { getJson, imageCrop, loadImage, send, thumbnail, wordCrop } from "./api.js";
import { head, open } from "./dialog.js";
import { announce, byId, command, count, fileName, h, label, thousands, whileBusy } from "./dom.js";
import { newSearch, withChanges } from "./state.js";

const CROPS = 16;
const WHOLE = 8;

/** Show a word in its dialog; `onNamed` is called when it gets another name. */
export async function showWord(state, onNamed) {
  const dialog = byId("word");
  dialog.replaceChildren(
    head(`word ${state.word}`, "word", "word-title"),
    h("p", { class: "loading" }, "Looking at its images…"),
  );
  open(dialog, "word");
  const [word, stats] = await whileBusy(
    Promise.all([
      getJson(`/v1/words/${encodeURIComponent(state.word)}?images=${CROPS}`),
      getJson("/v1/stats"),
    ]),
  );
  if (!dialog.open) return;
  fill(dialog, word, stats, onNamed);
  document.title = `${label(word)} · bm25v`;
  announce(`${label(word)}, in ${count(word.df, "image")}`);
}

function fill(dialog, word, stats, onNamed) {
  const crop = (image) =>
    h(
      "li",
      {},
      h(
        "a",
        {
          href: newSearch({ image: image.id }),
          title: image.path,
          "aria-label": `Search with ${fileName(image.path)}`,
        },
        loadImage(
          h("img", { alt: `${label(word)} in ${fileName(image.path)}`, width: 180, height: 180 }),
          imageCrop(image.id, word.word, 240),
        ),
      ),
    );
  const whole = (image) =>
    h(
      "li",
      {},
      h(
        "a",
        {
          class: "frame",
          href: newSearch({ image: image.id }),
          "aria-label": `Search with ${fileName(image.path)}`,
        },
        loadImage(h("img", { alt: "" }), thumbnail(image.id, 256)),
      ),
    );
  dialog.replaceChildren(
    head(label(word), "word", "word-title"),
    h(
      "p",
      { class: "lead" },
      `${word.name ? `Visual word ${word.word}. ` : "A visual word. "}`,
      word.df
        ? `In ${thousands(word.df)} of ${count(word.n_images, "image")}.`
        : "No image of this gallery has it.",
    ),
    h(
      "div",
      { class: "row" },
      word.df > 0 &&
        h(
          "a",
          { class: "main-button", href: newSearch({ must: [word.word] }) },
          "Search for this word",
        ),
      naming(word, stats, onNamed),
    ),
    ...(word.top.length
      ? [
          h("h2", {}, "Where it is strongest"),
          h("ol", { class: "word-crops-grid" }, word.top.map(crop)),
          h("div", { class: "word-columns" }, facts(word), companions(word)),
          h("h2", {}, "The whole images"),
          h("ol", { class: "word-crops-grid" }, word.top.slice(0, WHOLE).map(whole)),
        ]
      : []),
  );
  byId("word-title").focus({ preventScroll: true });
}

function naming(word, stats, onNamed) {
  if (!stats.writable) {
    return h(
      "div",
      { class: "naming" },
      h("span", {}, word.name ? "Rename it:" : "Give it a name:"),
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
  const problem = h("p", { class: "no-match", role: "alert" });
  const form = h(
    "form",
    { class: "naming" },
    field,
    h("button", { type: "submit", class: "plain-button" }, "Save"),
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
    {},
    h("h2", {}, "How frequent it is"),
    h(
      "dl",
      { class: "word-facts" },
      h(
        "div",
        {},
        h("dt", {}, "of all images"),
        h("dd", {}, `${(100 * share).toFixed(share < 0.01 ? 2 : 0)}%`),
      ),
      h(
        "div",
        {},
        h("dt", {}, "IDF: the rarer, the more it counts"),
        h("dd", {}, word.idf.toFixed(2)),
      ),
    ),
    folders.length > 1 && [
      h("h3", {}, "In which folders"),
      h(
        "ol",
        { class: "folders" },
        folders.map((folder) =>
          h(
            "li",
            {},
            h("span", {}, folder.name),
            h("small", {}, `${thousands(folder.has_word)} of ${thousands(folder.n_images)}`),
            h(
              "div",
              {
                class: "bar",
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

function companions(word) {
  if (!word.companions.length) return null;
  return h(
    "section",
    {},
    h("h2", {}, "Often together with"),
    h(
      "ol",
      { class: "companions" },
      word.companions.map((other) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: withChanges({ word: other.word }) },
            loadImage(h("img", { alt: "", width: 56, height: 56 }), wordCrop(other.word, 112)),
            h(
              "span",
              {},
              h("b", {}, label(other)),
              h("small", {}, `${other.lift.toFixed(1)} × chance`),
            ),
          ),
        ),
      ),
    ),
  );
}
