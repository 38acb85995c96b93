// The two photos of an explanation: in colour where words are, with numbers on the first words.
import { getJson, imageAddress, thumbnail } from "./api.js";
import { fileName, h, label } from "./dom.js";
import { findUpload, uploadAddress } from "./form.js";
import { NOWHERE, addPeaks, gridMask, spreadContributions, strongest } from "./masks.js";

const PINS = 3; // words that are numbered in both photos
const PIN_DISTANCE = 0.12; // of a side

/** Whether the query is a text without an image: its words are what is shown in the hit. */
export const isTextAlone = (state, explanation) =>
  explanation.terms.length > 0 && !state.image && !state.upload;

/** Return the query's side: its figure, and how to show where a word is in it. */
export async function querySide(state, explanation, visibility) {
  if (!state.image && !state.upload) {
    return {
      figure: h(
        "div",
        { class: "empty" },
        h(
          "p",
          {},
          state.text
            ? `The query is a text: “${state.text}”.`
            : "The query has no image, only words.",
        ),
      ),
    };
  }
  const file = findUpload(state.upload);
  const address = file ? uploadAddress(file) : await imageAddress(thumbnail(state.image, 1024));
  const name = file ? file.name : (await getJson(`/v1/images/${state.image}`)).path;
  return photoSide({
    role: "Query",
    address,
    name,
    key: "in_query",
    pinned: explanation.words.map((word) => word.in_query),
    whole: sumWords(explanation.words, "in_query"),
    visibility,
    region: state.region,
  });
}

/** Return the hit's side. */
export async function hitSide(state, explanation, visibility) {
  const { terms, words } = explanation;
  const isText = isTextAlone(state, explanation);
  const address = await imageAddress(thumbnail(explanation.id, 1024)).catch(() => null);
  return photoSide({
    role: "Hit",
    address,
    name: explanation.path,
    key: "in_hit",
    pinned: isText
      ? terms.map((term) => term.value > 0 && term.in_hit)
      : words.map((word) => word.in_hit),
    whole: isText ? sumTerms(terms) : sumWords(words, "in_hit"),
    visibility,
  });
}

/** Return where all words that count for a match are together. */
function sumWords(words, key) {
  const positive = words.filter((word) => word[key] && word.contribution > 0);
  return positive.length
    ? spreadContributions(positive.map((word) => [word.contribution, word[key]]))
    : [[0]];
}

/** Return where the words of a text that count for a match are; everywhere if that is unknown. */
function sumTerms(terms) {
  const positive = terms.filter((term) => term.value > 0);
  const known = positive.filter((term) => term.in_hit);
  return known.length
    ? addPeaks(known.map((term) => [term.value, term.in_hit]))
    : [[Number(positive.length > 0)]];
}

async function photoSide({ role, address, name, key, pinned, whole, visibility, region }) {
  const img = Object.assign(new Image(), { src: address ?? "" });
  try {
    await img.decode();
  } catch {
    return {
      figure: h(
        "div",
        { class: "empty" },
        h("p", {}, `${fileName(name) || role}: the image cannot be shown.`),
      ),
    };
  }
  const layer = (kind) =>
    h("i", {
      class: `photo ${kind}`,
      style: { "background-image": `url(${JSON.stringify(address)})` },
    });
  const map = h(
    "div",
    { class: "map", role: "img", "aria-label": `What matched in the ${role.toLowerCase()}` },
    layer("veiled"),
    layer("matched"),
  );
  map.append(...pins(pinned.slice(0, PINS)));
  if (region) {
    const [left, top, width, height] = region.map((share) => `${100 * share}%`);
    map.append(h("i", { class: "region", style: { left, top, width, height } }));
  }
  const masks = new Map([[null, await gridMask(whole, visibility)]]);
  let last = null;
  const show = async (word, number) => {
    last = word;
    if (!masks.has(word)) masks.set(word, word[key] ? await gridMask(word[key]) : NOWHERE);
    if (last !== word) return; // somebody points at another one by now
    map.style.setProperty("--mask", masks.get(word));
    map.setAttribute(
      "aria-label",
      word
        ? `Where ${label(word)} is in the ${role.toLowerCase()}`
        : `What matched in the ${role.toLowerCase()}`,
    );
    for (const pin of map.querySelectorAll(".pin"))
      pin.classList.toggle("off", Boolean(word) && pin.textContent !== String(number));
  };
  await show(null);
  const caption = h(
    "figcaption",
    {},
    h("small", {}, role),
    h("span", { class: "file", title: name }, h("b", {}, fileName(name))),
  );
  return {
    figure: h(
      "figure",
      { style: { "--shape": (img.naturalWidth / img.naturalHeight).toFixed(4) } },
      map,
      caption,
    ),
    show,
  };
}

/** Return numbers where the first words are strongest; numbers do not cover each other. */
function pins(grids) {
  const placed = [];
  return grids.map((grid, i) => {
    if (!grid) return "";
    const { x: peak, y } = strongest(grid);
    let x = peak;
    const step = x > 0.5 ? -PIN_DISTANCE : PIN_DISTANCE;
    while (
      placed.some((pin) => Math.max(Math.abs(x - pin.x), Math.abs(y - pin.y)) < 0.99 * PIN_DISTANCE)
    )
      x += step;
    placed.push({ x, y });
    return h(
      "b",
      { class: "pin", "aria-hidden": "true", style: { left: `${100 * x}%`, top: `${100 * y}%` } },
      i + 1,
    );
  });
}
