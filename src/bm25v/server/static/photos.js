// The two photos of an explanation: in colour where words are, with numbers on the first words.
import { getJson, imageAddress, thumbnail } from "./api.js";
import { fileName, h, label } from "./dom.js";
import { findUpload, uploadAddress } from "./form.js";
import { NOWHERE, gridMask, spreadContributions, strongest } from "./masks.js";

const PINS = 3; // words that are numbered in both photos
const PIN_DISTANCE = 0.12; // of a side

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
    words: explanation.words,
    key: "in_query",
    visibility,
    region: state.region,
  });
}

/** Return the hit's side. */
export async function hitSide(explanation, visibility) {
  const address = await imageAddress(thumbnail(explanation.id, 1024)).catch(() => null);
  return photoSide({
    role: "Hit",
    address,
    name: explanation.path,
    words: explanation.words,
    key: "in_hit",
    visibility,
  });
}

async function photoSide({ role, address, name, words, key, visibility, region }) {
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
  const located = words.filter((word) => word[key]);
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
  map.append(...pins(located.slice(0, PINS), key));
  if (region) {
    const [left, top, width, height] = region.map((share) => `${100 * share}%`);
    map.append(h("i", { class: "region", style: { left, top, width, height } }));
  }
  const positive = located
    .filter((word) => word.contribution > 0)
    .map((word) => [word.contribution, word[key]]);
  const all = positive.length ? await gridMask(spreadContributions(positive), visibility) : NOWHERE;
  const masks = new Map([[null, all]]);
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
function pins(words, key) {
  const placed = [];
  return words.map((word, i) => {
    const { x: peak, y } = strongest(word[key]);
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
