// The query as people see it: its images and text, its details, and what was changed about it.
import { getJson, photo as loadPhoto, thumbnail } from "./api.js";
import { ROLES, chip, hitPhoto, nameOf, roleOf, tag, withRole } from "./chips.js";
import { announce, fileName, h, icon } from "./dom.js";
import { layeredPhoto, uploadMasks } from "./photos.js";
import { go, hasImages, newSearch, readState, readWord, withChanges } from "./state.js";
import { findUpload, uploadAddress } from "./uploads.js";

const SINGLE = 3; // details without a name that have a line each
const SMALLEST = 0.04; // side of a box, as a share; less is a click
const STEP = 0.05;
const MIDDLE = [0.25, 0.25, 0.5, 0.5];

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
  const photo = layeredPhoto("Your query", thumbnail(id, 512));
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
  const photo = layeredPhoto(`Your query: ${file.name}`, uploadAddress(file));
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
  for (const { read, about } of Object.values(ROLES)) {
    const keys = read(state).map(readWord);
    const named = Map.groupBy(
      keys.filter((key) => nameOf(key, names)),
      (key) => nameOf(key, names),
    );
    const unnamed = keys.filter((key) => !nameOf(key, names));
    const lists = unnamed.length > SINGLE ? [unnamed] : unnamed.map((key) => [key]);
    for (const [name, list] of [...named, ...lists.map((list) => [null, list])])
      lines.push({
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
        about,
        content: loadPhoto(id, 64, { class: "tiny", alt: "an image", width: 40, height: 40 }),
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

/** Let people draw a box on a photo; return the controls that belong to it. */
function drawable(photo, region) {
  const box = h("i.query-region", { hidden: !region });
  photo.append(box);
  photo.classList.add("drawable");
  let current = region;
  show(region);

  function show(next) {
    current = next;
    box.hidden = !next;
    if (!next) return;
    ["left", "top", "width", "height"].forEach(
      (side, i) => (box.style[side] = `${100 * next[i]}%`),
    );
  }

  const search = (next) => go(withChanges({ region: next, why: "", word: "" }));

  const share = ({ clientX, clientY }) => {
    const { left, top, width, height } = photo.getBoundingClientRect();
    return [clip((clientX - left) / width), clip((clientY - top) / height)];
  };
  let start = null;
  photo.addEventListener("pointerdown", (event) => {
    if (event.button || (event.pointerType === "touch" && !photo.classList.contains("is-drawing")))
      return;
    event.preventDefault();
    photo.setPointerCapture(event.pointerId);
    start = share(event);
  });
  photo.addEventListener("pointermove", (event) => {
    if (start) show(span(start, share(event)));
  });
  photo.addEventListener("pointerup", (event) => {
    if (!start) return;
    const drawn = span(start, share(event));
    start = null;
    if (drawn[2] < SMALLEST || drawn[3] < SMALLEST) show(region);
    else search(drawn);
  });
  photo.addEventListener("pointercancel", () => ((start = null), show(region)));

  const title = region ? "Change the part" : "Search by a part";
  const text = h("span", title);
  const part = h("button.plain-button.small", icon("box"), text);
  part.addEventListener("click", () => {
    if (photo.classList.contains("is-drawing")) {
      search(current);
      return;
    }
    photo.classList.add("is-drawing");
    text.textContent = "Search by this box";
    photo.tabIndex = 0;
    photo.role = "application";
    photo.ariaLabel =
      "The part to search by. Arrow keys move it, with Shift they resize it, Enter searches.";
    show(current ?? MIDDLE);
    photo.focus();
    announce(
      "Draw a box on the image, or move it with the arrow keys. Enter searches, Escape ends.",
    );
  });
  photo.addEventListener("keydown", (event) => {
    if (!photo.classList.contains("is-drawing")) return;
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (move) show(shift(current, move, event.shiftKey));
    else if (event.key === "Enter") search(current);
    else if (event.key === "Escape") {
      photo.classList.remove("is-drawing");
      text.textContent = title;
      show(region);
      part.focus();
    } else return;
    event.preventDefault();
  });
  const whole = h("button.plain-button.small", { onclick: () => search(null) }, "Use all of it");
  return h("div.row", part, region && whole);
}

function span([x0, y0], [x1, y1]) {
  return [Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0)];
}

function shift([x, y, width, height], [right, down], isResized) {
  const resize = (side, start, step) => Math.min(1 - start, Math.max(STEP, side + STEP * step));
  if (isResized) return [x, y, resize(width, x, right), resize(height, y, down)];
  const move = (start, side, step) => clip(start + STEP * step, 1 - side);
  return [move(x, width, right), move(y, height, down), width, height];
}

const clip = (value, most = 1) => Math.min(most, Math.max(0, value));
