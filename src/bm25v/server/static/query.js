// The query as people see it: its image or text, its words, and what was changed about it.
import { getJson, loadImage, thumbnail } from "./api.js";
import { fileName, h, icon, label } from "./dom.js";
import { findUpload, uploadAddress } from "./form.js";
import { uploadMasks } from "./masks.js";
import { drawable } from "./region.js";
import { go, withChanges } from "./state.js";
import { change, chip, hitPhoto } from "./words.js";

export const PAGE = 24; // hits of one request

/** Return the options of a request for what a state asks for: JSON, or a form with the image. */
export function toRequest(state, more = {}) {
  const query = {
    images: state.image ? [state.image] : [],
    must: state.must,
    without: state.without,
    boost: state.boost,
    like: state.like,
    unlike: state.unlike,
    folder: state.folder ? [state.folder] : [],
    ...(state.text && { text: state.text }),
    ...(state.region && { region: state.region }),
    ...(state.date && { date: state.date }),
    ...more,
  };
  if (!state.upload) return { method: "POST", json: query };
  const form = new FormData();
  form.append("image", findUpload(state.upload));
  form.append("query", JSON.stringify(query));
  return { method: "POST", form };
}

/** Return a photo in two layers: a grey one, and one in colours where a mask is. */
export function layeredPhoto(alt, load) {
  const base = load(h("img", { alt, decoding: "async" }));
  const lit = load(h("img", { alt: "", class: "lit", decoding: "async" }));
  const photo = h("span", { class: "photo-box" }, base, lit);
  base.addEventListener("load", () => {
    const shape = base.naturalWidth / base.naturalHeight;
    photo.style.setProperty("--shape", shape.toFixed(4));
    photo.classList.toggle("is-tall", shape < 1);
  });
  return photo;
}

/** Return the query's side of the page, and the photo in which words can be shown. */
export function showQuery(state, results) {
  const side = h("aside", { class: "asked", "aria-label": "Your query" });
  const photos = [];
  if (state.image || state.upload) {
    const { photo, caption, mask } = state.upload
      ? uploadedPhoto(state, results)
      : storedPhoto(state);
    const controls = drawable(photo, state.region);
    photos.push({ photo, mask });
    side.append(h("figure", {}, h("div", { class: "frame" }, photo), caption), controls);
  }
  if (state.text)
    side.append(h("section", { class: "part" }, h("p", { class: "query-text" }, `“${state.text}”`)));
  const changes = listChanges(state, results);
  if (changes.length)
    side.append(
      h(
        "section",
        { class: "part" },
        h("h2", {}, "You changed"),
        h("ul", { class: "chip-list" }, changes),
      ),
    );
  const words = results.query.filter(
    (word) => word.weight > 0 && word.df > 0 && !isChanged(word.word, state),
  );
  if (words.length && (results.mode !== "dense" || !state.text)) {
    side.append(
      h(
        "section",
        { class: "part" },
        h("h2", {}, state.text ? "Visual words of the text" : "Its visual words"),
        h(
          "p",
          { class: "about" },
          "Point at one to see where it is. Click or tap to require, exclude, boost or mute it.",
        ),
        h(
          "ul",
          { class: "chip-list" },
          words.map((word) => h("li", {}, chip(word))),
        ),
      ),
    );
  }
  return { side, photos };
}

const isChanged = (word, state) =>
  state.must.includes(word) || state.without.includes(word) || word in state.boost;

function storedPhoto(state) {
  const caption = h("figcaption", { class: "one-line" }, "\u00a0");
  const photo = layeredPhoto("Your query", (img) => loadImage(img, thumbnail(state.image, 512)));
  getJson(`/v1/images/${state.image}`).then(
    ({ path }) => {
      caption.textContent = fileName(path);
      caption.title = path;
      photo.firstChild.alt = `Your query: ${fileName(path)}`;
    },
    () => {},
  );
  return { photo, caption, ...hitPhoto(photo, state.image) };
}

function uploadedPhoto(state, results) {
  const file = findUpload(state.upload);
  const photo = layeredPhoto("Your query, an image of yours", (img) => {
    img.addEventListener(
      "error",
      () => img.replaceWith(h("span", { class: "unreadable" }, file.name)),
      { once: true },
    );
    img.src = uploadAddress(file);
    return img;
  });
  const caption = h(
    "figcaption",
    {},
    h("span", { class: "one-line", title: file.name }, file.name),
    h(
      "small",
      {},
      "Your image is only in this tab: the address of this page does not contain it, and the server does not keep it.",
    ),
  );
  let masks = null;
  const listed = [
    ...new Set(
      [...results.query, ...results.hits.flatMap((hit) => hit.words)].map((word) => word.word),
    ),
  ].slice(0, 64);
  const mask = async (word) => {
    masks ??= uploadMasks(file, listed).catch((error) => ((masks = null), Promise.reject(error)));
    return (await masks).get(word) ?? Promise.reject(new Error("not listed"));
  };
  return { photo, caption, mask };
}

function listChanges(state, results) {
  const known = new Map(
    [...results.query, ...results.hits.flatMap((hit) => hit.words)].map((word) => [
      word.word,
      word,
    ]),
  );
  const find = (word) => known.get(word) ?? { word, name: null };
  const entry = (word, title) =>
    h(
      "li",
      { class: "changed" },
      h("small", {}, title),
      chip(find(word)),
      h(
        "button",
        {
          type: "button",
          class: "icon-button",
          "aria-label": `Undo: ${title} ${label(find(word))}`,
          onclick: () => change(find(word), ""),
        },
        icon("close"),
      ),
    );
  const image = (id, name, title) =>
    h(
      "li",
      { class: "changed" },
      h("small", {}, title),
      loadImage(
        h("img", { alt: `${title} hit`, width: 40, height: 40, class: "tiny" }),
        thumbnail(id, 64),
      ),
      h(
        "button",
        {
          type: "button",
          class: "icon-button",
          "aria-label": `Undo: ${title} hit`,
          onclick: () => go(withChanges({ [name]: state[name].filter((other) => other !== id) })),
        },
        icon("close"),
      ),
    );
  return [
    ...state.must.map((word) => entry(word, "required")),
    ...state.without.map((word) => entry(word, "excluded")),
    ...Object.entries(state.boost).map(([word, factor]) =>
      entry(Number(word), factor ? `× ${factor}` : "muted"),
    ),
    ...state.like.map((id) => image(id, "like", "good")),
    ...state.unlike.map((id) => image(id, "unlike", "bad")),
  ];
}
