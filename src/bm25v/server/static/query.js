// The query as people see it: its images and text, its details, and what was changed about it.
import { getJson, loadImage, thumbnail } from "./api.js";
import { fileName, h, icon } from "./dom.js";
import { uploadMasks } from "./masks.js";
import { drawable } from "./region.js";
import { hasImages, newSearch, readState, readWord, withChanges } from "./state.js";
import { findUpload, uploadAddress } from "./uploads.js";
import { ROLES, chip, hitPhoto, nameOf, roleOf, tag, withRole } from "./words.js";

const SINGLE = 3; // details without a name that have a line each

/** Return a photo in two layers: a grey one, and one in colours where a mask is. */
export function layeredPhoto(alt, load) {
  const base = load(h("img", { alt, decoding: "async" }));
  const lit = load(h("img.lit", { alt: "", decoding: "async" }));
  const photo = h("span.photo-box", base, lit);
  base.addEventListener("load", () => {
    const shape = base.naturalWidth / base.naturalHeight;
    photo.style.setProperty("--shape", shape.toFixed(4));
    photo.classList.toggle("is-tall", shape < 1);
  });
  return photo;
}

/** Return the query's side of the page, and the photos in which details can be shown. */
export function showQuery(state, results) {
  const side = h("aside.asked", { "aria-label": "Your query" });
  const parts = [
    ...state.upload.map((key) => uploadedPhoto(state, key, results)),
    ...state.image.map((id) => storedPhoto(state, id)),
  ];
  side.append(
    h(
      "div.query-parts",
      parts.length > 0 &&
        h(
          "div",
          { class: `query-images${parts.length > 1 ? " are-several" : ""}` },
          parts.map(({ figure }) => figure),
        ),
      h(
        "div.query-others",
        state.text &&
          h("p.query-text", h("span", `“${state.text}”`), removeLink("the text", { text: "" })),
        parts.length === 1 && drawable(parts[0].photo, state.region),
        h("button.plain-button.small.add-image", icon("add"), "Add an image"),
      ),
    ),
  );
  if (state.upload.length)
    side.append(
      h(
        "p.about",
        "Your image stays in this browser: the address of this page does not contain it, and the server does not keep it.",
      ),
    );
  const changes = listChanges(state, results);
  if (changes.length) side.append(section("You changed", h("ul.changes", changes)));
  const groups = results.groups.filter((group) => !roleOf(group, state));
  if (groups.length)
    side.append(
      section(
        "What counts",
        h(
          "p.about",
          h("span.wide-only", "Point at one to see where it is. "),
          "Choose one to change the search.",
        ),
        h(
          "ul.chip-list",
          groups.map((group) => h("li", chip(group))),
        ),
      ),
    );
  return { side, photos: parts };
}

const section = (title, ...children) => h("section.part", h("h2", title), children);

/** Return the address without a part of the query; without the last one, that of all images. */
function withoutPart(changes) {
  const next = { ...readState(), ...changes };
  const isQuery = hasImages(next) || next.text || next.like.length || next.must.length;
  return isQuery ? withChanges(changes) : newSearch({});
}

const removeLink = (name, changes) =>
  h(
    "a.icon-button.remove",
    {
      href: withoutPart(changes),
      title: "Remove from the query",
      "aria-label": `Remove ${name} from the query`,
    },
    icon("close"),
  );

function figure(photo, caption, remove) {
  return h("figure", h("div.frame", photo, remove), caption);
}

function storedPhoto(state, id) {
  const caption = h("figcaption.one-line", "\u00a0");
  const photo = layeredPhoto("Your query", (img) => loadImage(img, thumbnail(id, 512)));
  const remove = removeLink("this image", {
    image: state.image.filter((other) => other !== id),
    region: null,
  });
  getJson(`/v1/images/${id}`).then(
    ({ path }) => {
      caption.textContent = fileName(path);
      caption.title = path;
      photo.firstChild.alt = `Your query: ${fileName(path)}`;
      remove.setAttribute("aria-label", `Remove ${fileName(path)} from the query`);
    },
    () => {},
  );
  return { figure: figure(photo, caption, remove), ...hitPhoto(photo, id) };
}

function uploadedPhoto(state, key, results) {
  const file = findUpload(key);
  const photo = layeredPhoto("Your query, an image of yours", (img) => {
    img.addEventListener("error", () => img.replaceWith(h("span.unreadable", file.name)), {
      once: true,
    });
    img.src = uploadAddress(file);
    return img;
  });
  const caption = h("figcaption.one-line", { title: file.name }, file.name);
  const groups = [...results.groups, ...results.hits.flatMap((hit) => hit.groups)];
  const keys = [...new Set(groups.map(({ words }) => words.join()))];
  let masks = null;
  const mask = async ({ words }) => {
    const listed = keys.map((group) => group.split(",").map(Number));
    masks ??= uploadMasks(file, listed).catch((error) => ((masks = null), Promise.reject(error)));
    return (await masks)[keys.indexOf(words.join())] ?? Promise.reject(new Error("not listed"));
  };
  const remove = removeLink(file.name, {
    upload: state.upload.filter((other) => other !== key),
    region: null,
  });
  return { figure: figure(photo, caption, remove), photo, mask };
}

/** Return each change of the query: what it is, and the address without it. */
export function findChanges(state, results) {
  const names = new Map(
    results?.groups.flatMap(({ label, words }) => words.map((word) => [word, label])),
  );
  const lines = [];
  for (const [role, { read, about }] of Object.entries(ROLES)) {
    const keys = read(state).map(readWord);
    const named = Map.groupBy(
      keys.filter((key) => nameOf(key, names)),
      (key) => nameOf(key, names),
    );
    const unnamed = keys.filter((key) => !nameOf(key, names));
    const lists = unnamed.length > SINGLE ? [unnamed] : unnamed.map((key) => [key]);
    for (const [name, list] of [...named, ...lists.map((list) => [null, list])])
      lines.push({
        role,
        about,
        content: tag(name, list.slice(0, SINGLE)),
        label: name ?? "a detail",
        key: name ?? list[0],
        href: withRole(list, ""),
      });
  }
  const titles = { like: "More like this", unlike: "Less like this" };
  for (const [name, about] of Object.entries(titles))
    for (const id of state[name])
      lines.push({
        role: name,
        about,
        content: loadImage(
          h("img.tiny", { alt: "an image", width: 40, height: 40 }),
          thumbnail(id, 64),
        ),
        label: "an image",
        href: withChanges({ [name]: state[name].filter((other) => other !== id) }),
      });
  return lines;
}

const listChanges = (state, results) =>
  findChanges(state, results).map(({ about, content, label, key, href }) =>
    h(
      "li.changed",
      h("small", about),
      content,
      h(
        "a.icon-button",
        { href, title: "Undo", "data-key": key, "aria-label": `Undo: ${about}, ${label}` },
        icon("close"),
      ),
    ),
  );
