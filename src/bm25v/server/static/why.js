// Why a hit matches: a sentence, both photos, and what each group of words adds to the score.
import { getJson } from "./api.js";
import { head, open } from "./dialog.js";
import { announce, byId, count, h, label, minus, thousands, whileBusy } from "./dom.js";
import { hitSide, querySides } from "./photos.js";
import { toRequest } from "./requests.js";
import { newSearch, withChanges } from "./state.js";
import { changeAll } from "./words.js";

const WORDS = 24; // that are listed under "Details"

/** Show the explanation of a hit in its dialog. */
export async function showWhy(state) {
  const dialog = byId("why");
  dialog.replaceChildren(
    head("Why it matches", "why", "why-title"),
    h("p.loading", "Comparing both images…"),
  );
  open(dialog, "why");
  const explanation = await whileBusy(
    getJson("/v1/explain", toRequest(state, { hit: state.why, words: WORDS })),
  );
  if (!dialog.open) return;
  await fill(dialog, state, explanation);
  announce(`${explanation.title}. ${explanation.sentence}`);
}

async function fill(dialog, state, explanation) {
  const { strength, title, sentence, notes } = explanation;
  const meter =
    strength &&
    h("span", { class: `meter ${strength}`, "aria-hidden": "true" }, h("i"), h("i"), h("i"));
  const [queries, hit] = await Promise.all([querySides(state, explanation), hitSide(explanation)]);
  const sides = [...queries, hit];
  const status = h("p.status", { "aria-live": "polite" }, "Bright: what matched");
  const originals = h("input.show-originals", { type: "checkbox" });
  const stage = h(
    "div.stage",
    h(
      "div.photos",
      sides.map((side) => side.figure),
    ),
    h("div.controls", status, h("label", originals, " Show original photos")),
  );
  const show = (row, part) => {
    for (const other of dialog.querySelectorAll(".group.on")) other.classList.remove("on");
    row?.classList.add("on");
    status.textContent = part ? `Bright: only ${label(part)}` : "Bright: what matched";
    for (const side of sides) side.show?.(part);
  };
  dialog.replaceChildren(
    head(title, "why", "why-title", meter),
    h("p.lead", sentence),
    ...notes.map((note) => h("p.note", note)),
    h(
      "div.why-columns",
      h(
        "div.why-aside",
        stage,
        h(
          "p.row",
          h(
            "a.plain-button",
            { href: newSearch({ image: explanation.id }) },
            "Search with this hit",
          ),
          " ",
          h(
            "a.plain-button",
            { href: withChanges({ photo: explanation.id, why: "" }) },
            "Open the photo",
          ),
        ),
      ),
      h("div.contributions", groupList(explanation, show), details(explanation)),
    ),
  );
  byId("why-title").focus({ preventScroll: true });
}

function groupList({ groups }, show) {
  const rows = groups.map((group) => {
    const row = h(
      "li",
      { class: `group${group.value < 0 ? " against" : ""}`, tabindex: group.in_hit && 0 },
      h("h3", group.label, " ", h("b", group.percent)),
      h("div.bar", { style: { "--size": `${100 * Math.abs(group.share)}%` } }, h("i")),
      group.about && h("small", group.about),
      group.kind === "words" && actions(group),
    );
    if (group.in_hit) {
      row.addEventListener("pointerenter", () => show(row, group));
      row.addEventListener("pointerleave", () => show(null, null));
      row.addEventListener("focusin", () => show(row, group));
      row.addEventListener("focusout", () => show(null, null));
      row.addEventListener("click", ({ target }) => {
        if (!target.closest("button")) row.focus({ preventScroll: true }); // iOS: a tap does not
      });
    }
    return row;
  });
  return [h("h2", "What the score is made of"), h("ol.group-list", rows)];
}

function actions(group) {
  const action = (text, role, about) =>
    h(
      "button.text-button",
      {
        title: about,
        "aria-label": `${text}: ${group.label}`,
        onclick: () => changeAll(group.words, role),
      },
      text,
    );
  return h(
    "p.actions",
    action("More", "boosted", "It counts four times in a new search"),
    action("Ignore", "muted", "It does not count in a new search"),
  );
}

/** Return the numbers behind the groups. */
function details(explanation) {
  const { sum, about_rank: aboutRank, words, n_words: total, missing } = explanation;
  const lines = sum.map(({ label: name, value, about }, i) =>
    h(
      "div",
      { class: i === sum.length - 1 ? "score" : null },
      h("dt", name, " ", h("small", about)),
      h("dd", minus(value)),
    ),
  );
  const rows = words.map((word) =>
    h(
      "tr",
      h("td", h("a", { href: withChanges({ word: word.word }) }, label(word))),
      h("td", minus(word.points.toFixed(2))),
      h("td", thousands(word.df)),
    ),
  );
  return h(
    "details",
    h("summary", "Details"),
    h("dl", lines),
    h("p", aboutRank),
    rows.length > 0 &&
      h(
        "table",
        h("caption", `${count(total, "visual word")}; the first add most (BM25)`),
        h("thead", h("tr", h("th", "word"), h("th", "adds"), h("th", "images"))),
        h("tbody", rows),
      ),
    missing.length > 0 &&
      h("p", "In your query, missing here: ", missing.slice(0, 12).map(label).join(", ")),
  );
}
