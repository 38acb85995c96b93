// Why a hit matches: both photos with what matched, and what each word adds to the score.
import { getJson, imageCrop, loadImage } from "./api.js";
import { head, open } from "./dialog.js";
import { announce, byId, count, h, label, minus, thousands, whileBusy } from "./dom.js";
import { hitSide, isTextAlone, querySide } from "./photos.js";
import { toRequest } from "./query.js";
import { newSearch, withChanges } from "./state.js";
import { change } from "./words.js";

const WORDS = 24;
const VISIBILITY = { strong: 1, fair: 0.7, weak: 0.4 };
const ABOUT = {
  strong: "As close as best hits in this gallery usually are.",
  fair: "Less close than most best hits in this gallery.",
  weak: "Less close than nearly all best hits in this gallery: probably not what you look for.",
};
const ABOUT_TEXT = {
  strong: "It probably shows what the text names.",
  fair: "It may show what the text names.",
  weak: "It probably does not show what the text names.",
};

/** Show the explanation of a hit in its dialog. */
export async function showWhy(state) {
  const dialog = byId("why");
  dialog.replaceChildren(
    head("Why it matches", "why", "why-title"),
    h("p", { class: "loading" }, "Comparing both images…"),
  );
  open(dialog, "why");
  const explanation = await whileBusy(
    getJson("/v1/explain", toRequest(state, { hit: state.why, words: WORDS })),
  );
  if (!dialog.open) return;
  await fill(dialog, state, explanation);
  announce(title(explanation));
}

function title(explanation) {
  const { strength, ranking } = explanation;
  const match = strength
    ? `${strength.charAt(0).toUpperCase()}${strength.slice(1)} match`
    : "Match";
  return ranking ? `${match}, rank ${thousands(ranking.rank)}` : match;
}

async function fill(dialog, state, explanation) {
  const meter =
    explanation.strength &&
    h(
      "span",
      { class: `meter ${explanation.strength}`, "aria-hidden": "true" },
      h("i"),
      h("i"),
      h("i"),
    );
  const isText = isTextAlone(state, explanation);
  const seen = isText ? Number(explanation.score > 0) : Math.min(1, 2 * explanation.coverage);
  const visibility = VISIBILITY[explanation.strength] ?? Math.max(VISIBILITY.weak, seen);
  const sides = await Promise.all([
    querySide(state, explanation, visibility),
    hitSide(state, explanation, visibility),
  ]);
  const status = h("p", { class: "status", "aria-live": "polite" }, "In colour: what matched");
  const originals = h("input", { type: "checkbox" });
  const stage = h(
    "div",
    { class: "stage" },
    h(
      "div",
      { class: "photos" },
      sides.map((side) => side.figure),
    ),
    h("div", { class: "controls" }, status, h("label", {}, originals, " Show original photos")),
  );
  originals.addEventListener("change", () =>
    stage.classList.toggle("is-original", originals.checked),
  );
  const show = (row, word, number) => {
    for (const other of dialog.querySelectorAll(".word.on")) other.classList.remove("on");
    row?.classList.add("on");
    status.textContent = word ? `In colour: only ${label(word)}` : "In colour: what matched";
    for (const side of sides) side.show?.(word, number);
  };
  const about = (explanation.terms.length ? ABOUT_TEXT : ABOUT)[explanation.strength] ?? "";
  dialog.replaceChildren(
    head(title(explanation), "why", "why-title", meter),
    h("p", { class: "lead" }, `${about} ${isText ? average(explanation) : shared(explanation)}`),
    ...explanation.notes.map((note) => h("p", { class: "note" }, note)),
    h(
      "div",
      { class: "why-columns" },
      h(
        "div",
        { class: "why-aside" },
        stage,
        sumTable(explanation),
        h(
          "p",
          { class: "row" },
          h(
            "a",
            { class: "plain-button", href: newSearch({ image: explanation.id }) },
            "Search with this hit",
          ),
        ),
      ),
      h(
        "div",
        { class: "contributions" },
        explanation.terms.length > 0 && termList(explanation, show),
        (explanation.words.length > 0 || !isText) && wordList(explanation, show, isText),
        !isText && missing(explanation),
      ),
    ),
  );
  byId("why-title").focus({ preventScroll: true });
}

/** Return how a score compares with others, if they are sums of a vector's and words' parts. */
const average = ({ mode, score }) =>
  mode === "hybrid"
    ? `A photo of anything scores 0, on average; this one ${minus(score.toFixed(3))}.`
    : "";

function shared(explanation) {
  if (!explanation.n_words) return "It has no word of your query.";
  const share = Math.round(100 * explanation.coverage);
  const words = count(explanation.n_words, "word");
  return `It shares ${words} with your query (${share}% of it, rare words counting more).`;
}

function sumTable(explanation) {
  const { ranking, sum } = explanation;
  const lines = sum.map(({ label: name, value, about }, i) => {
    const isLast = i === sum.length - 1;
    const sign = isLast ? "= " : i && value ? "+ " : "";
    const text = i ? name : name.charAt(0).toUpperCase() + name.slice(1);
    return h(
      "div",
      { class: isLast ? "score" : null },
      h("dt", {}, sign + text, " ", h("small", {}, about)),
      h("dd", {}, minus(value)),
    );
  });
  const rank = ranking ? `Why rank ${thousands(ranking.rank)}` : "Why this score";
  const ranks =
    ranking?.rank_by_words &&
    `By similarity alone it would be rank ${thousands(ranking.rank_by_similarity)}, by words ` +
      `alone rank ${thousands(ranking.rank_by_words)}.`;
  return h(
    "section",
    { class: "why" },
    h("h2", {}, rank),
    !explanation.terms.length && h("dl", {}, lines),
    ranks && h("p", {}, ranks),
  );
}

/** Return what each word of a text adds to the score, and the rest of the query. */
function termList(explanation, show) {
  const lines = explanation.sum.slice(0, -1);
  const whole = explanation.parts.reduce((sum, part) => sum + Math.max(0, part.value), 0) || 1;
  const rows = lines.map(({ label: name, value }, i) => {
    const term = explanation.terms[i];
    const carriers = [...new Set((term?.words ?? []).map(label))];
    const row = h(
      "li",
      { class: `word of-text${Number(value) < 0 ? " against" : ""}`, tabindex: term && 0 },
      h("span", { class: "number" }, i + 1),
      h(
        "div",
        { class: "amount" },
        h("h3", {}, name, " ", h("b", {}, minus(value))),
        bar(0, Math.abs(value) / whole),
        carriers.length > 0 && h("small", {}, `carried by ${carriers.join(", ")}`),
      ),
    );
    if (term) showWhenPointedAt(row, term, i + 1, show);
    return row;
  });
  rows.push(plainRow("Score", explanation.sum.at(-1).value, "total"));
  return [
    h("h2", {}, "What each word of the text adds"),
    h("ol", { class: "word-list" }, rows),
  ];
}

const bar = (start, size) =>
  h(
    "div",
    { class: "bar", style: { "--start": `${100 * start}%`, "--size": `${100 * size}%` } },
    h("i"),
  );

function showWhenPointedAt(row, word, number, show) {
  row.addEventListener("pointerenter", () => show(row, word, number));
  row.addEventListener("pointerleave", () => show(null, null));
  row.addEventListener("focusin", () => show(row, word, number));
  row.addEventListener("focusout", () => show(null, null));
}

function wordList(explanation, show, isText) {
  const whole = explanation.words.reduce((sum, word) => sum + Math.max(0, word.points), 0) || 1;
  const total = Math.max(whole, explanation.sparse);
  let before = 0;
  const rows = explanation.words.map((word, i) => {
    const number = isText ? "" : i + 1; // those of a text have numbers then
    const row = wordRow(explanation, word, number, before / total, total, show);
    before += word.points;
    return row;
  });
  const more = explanation.n_words - explanation.words.length;
  if (more > 0)
    rows.push(plainRow(count(more, "more word"), `+${(explanation.sparse - before).toFixed(2)}`));
  const { terms, mode, sparse_factor: factor } = explanation;
  const counted =
    terms.length && mode === "hybrid" ? `, × ${factor.toPrecision(3)} in the score` : "";
  const all = `All ${count(explanation.n_words, "word")}${counted}`;
  rows.push(plainRow(all, explanation.sparse.toFixed(2), "total"));
  const heading = terms.length ? "Visual words that carry them " : "What matched ";
  return [
    h("h2", {}, heading, h("small", {}, "each word in images that show it best")),
    explanation.words.length
      ? h("ol", { class: "word-list" }, rows)
      : h("p", {}, "No word of the query is in this image."),
  ];
}

const plainRow = (name, value, kind = "") =>
  h(
    "li",
    { class: `rest ${kind}` },
    h("div", { class: "amount" }, h("h3", {}, name, " ", h("b", {}, minus(value)))),
  );

function wordRow(explanation, word, number, start, total, show) {
  const name = label(word);
  const size = Math.abs(word.points) / total;
  const action = (text, role) =>
    h(
      "button",
      {
        type: "button",
        class: "text-button",
        "aria-label": `${text} ${name}`,
        onclick: () => change(word, role),
      },
      text,
    );
  const crops = word.example_ids.map((id) =>
    loadImage(h("img", { alt: "", width: 72, height: 72 }), imageCrop(id, word.word, 112)),
  );
  const row = h(
    "li",
    { class: `word${word.points < 0 ? " against" : ""}` },
    h("span", { class: "number" }, number),
    h("div", { class: "crops" }, crops),
    h(
      "div",
      { class: "amount" },
      h(
        "h3",
        {},
        h("a", { href: withChanges({ word: word.word }) }, name),
        " ",
        h("b", {}, `${word.points < 0 ? "−" : "+"}${Math.abs(word.points).toFixed(2)}`),
      ),
      bar(Math.max(0, Math.min(start, start + word.points / total)), size),
      h("small", {}, `in ${thousands(word.df)} of ${count(explanation.n_images, "image")}`),
      h(
        "p",
        { class: "actions" },
        action("Require", "required"),
        action("Exclude", "excluded"),
        action("Boost", "boosted"),
        action("Mute", "muted"),
      ),
    ),
  );
  showWhenPointedAt(row, word, number, show);
  return row;
}

function missing(explanation) {
  if (!explanation.missing.length) return null;
  return [
    h("h2", {}, "In your query, missing here"),
    h(
      "ul",
      { class: "missing-words" },
      explanation.missing.slice(0, 12).map((word) => h("li", {}, label(word))),
    ),
  ];
}
