// Why a hit matches: a sentence, both photos, and what each group of words adds to the score.
import { PAGE, getJson, imageAddress, thumbnail, toRequest } from "./api.js";
import { withRole } from "./chips.js";
import {
  announce,
  count,
  fileName,
  fillDialog,
  h,
  label,
  minus,
  openDialog,
  thousands,
  whileBusy,
} from "./dom.js";
import { makeMap } from "./photos.js";
import { go, hasImages, newSearch, withChanges } from "./state.js";
import { findUpload, uploadAddress } from "./uploads.js";

const WORDS = 24; // that are listed under "Details"

/** Show the explanation of a hit in its dialog. */
export async function showWhy(state) {
  const dialog = openDialog("why", "Why it matches", "Comparing both images…");
  const explanation = await whileBusy(
    getJson("/v1/explain", toRequest(state, { hit: state.why, k: PAGE, words: WORDS })),
  );
  const [queries, hit] = await Promise.all([querySides(state, explanation), hitSide(explanation)]);
  if (!dialog.open) return;
  fill(explanation, [...queries, hit]);
  announce(`${explanation.title}. ${explanation.sentence}`);
}

function fill(explanation, sides) {
  const { id, strength, title, sentence, notes } = explanation;
  const meter =
    strength &&
    h("span", { class: `meter ${strength}`, "aria-hidden": "true" }, h("i"), h("i"), h("i"));
  const status = h("p.status", { "aria-live": "polite" }, "Bright: what matched");
  const originals = h("input.show-originals", { type: "checkbox" });
  const figures = sides.map(({ figure }) => figure);
  const controls = h("div.controls", status, h("label", originals, " Show original photos"));
  const show = (row, group) => {
    for (const other of document.querySelectorAll(".group.on")) other.classList.remove("on");
    row?.classList.add("on");
    status.textContent = group ? `Bright: only ${label(group)}` : "Bright: what matched";
    for (const side of sides) side.show?.(group);
  };
  const link = (href, text) => h("a.plain-button", { href }, text);
  fillDialog(
    "why",
    [meter, title],
    null,
    h("p.lead", sentence),
    ...notes.map((note) => h("p.note", note)),
    h(
      "div.why-columns",
      h(
        "div.why-aside",
        h("div.stage", h("div.photos", figures), controls),
        h(
          "p.row",
          link(newSearch({ image: id }), "Search with this hit"),
          link(withChanges({ photo: id, why: "" }), "Open the photo"),
        ),
      ),
      h("div.contributions", groupList(explanation, show), details(explanation)),
    ),
  );
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
      for (const type of ["pointerenter", "focusin"])
        row.addEventListener(type, () => show(row, group));
      for (const type of ["pointerleave", "focusout"])
        row.addEventListener(type, () => show(null, null));
      row.addEventListener("click", ({ target }) => {
        if (!target.closest("button")) row.focus({ preventScroll: true }); // iOS: a tap does not
      });
    }
    return row;
  });
  return [h("h2", "What the score is made of"), h("ol.group-list", rows)];
}

function actions({ label: name, words }) {
  const action = (text, role, title) => {
    const change = () => go(withRole(words, role));
    return h(
      "button.text-button",
      { title, "aria-label": `${text}: ${name}`, onclick: change },
      text,
    );
  };
  return h(
    "p.actions",
    action("More", "boosted", "It counts four times in a new search"),
    action("Ignore", "muted", "It does not count in a new search"),
  );
}

/** Return a side for each image of the query: its figure, and how to show where a group is. */
async function querySides(state, explanation) {
  if (!hasImages(state)) {
    const about = state.text
      ? `The query is a text: “${state.text}”.`
      : state.like.length
        ? "The query is what you marked as good."
        : "The query has no image, only words.";
    return [{ figure: h("div.empty", h("p", about)) }];
  }
  const uploads = state.upload.map(findUpload).filter(Boolean);
  const sources = [
    ...uploads.map(async (file) => [uploadAddress(file), file.name]),
    ...state.image.map((id) =>
      Promise.all([
        imageAddress(thumbnail(id, 1024)).catch(() => null),
        getJson(`/v1/images/${id}`).then(({ path }) => path),
      ]),
    ),
  ];
  return Promise.all(
    sources.map(async (source, n) => {
      const [address, name] = await source;
      const gridOf = (part) => part.in_queries?.[n];
      return photoSide("Query", address, name, gridOf, explanation, n ? null : state.region);
    }),
  );
}

/** Return the hit's side. */
async function hitSide(explanation) {
  const address = await imageAddress(thumbnail(explanation.id, 1024)).catch(() => null);
  return photoSide("Hit", address, explanation.path, (part) => part.in_hit, explanation);
}

async function photoSide(role, address, name, gridOf, explanation, region) {
  const photo = await makeMap(address);
  if (!photo) {
    const about = `${fileName(name) || role}: the image cannot be shown.`;
    return { figure: h("div.empty", h("p", about)) };
  }
  const { map, shape, light } = photo;
  if (region) {
    const [left, top, width, height] = region.map((share) => `${100 * share}%`);
    map.append(h("i.region", { style: { left, top, width, height } }));
  }
  const show = (group) => {
    const what = group ? `Where ${label(group)} is` : "What matched";
    map.setAttribute("aria-label", `${what} in the ${role.toLowerCase()}`);
    return light(gridOf(group ?? explanation), group ? 1 : explanation.visibility);
  };
  await show(null);
  const figure = h(
    "figure",
    { style: { "--shape": shape } },
    map,
    h("figcaption", h("small", role), h("span.file", { title: name }, h("b", fileName(name)))),
  );
  return { figure, show };
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
