// One photo, large: what is known about it, what it shows and where, and images like it.
import { getJson, imageAddress, loadImage, send, thumbnail } from "./api.js";
import * as grid from "./browse.js";
import { head, open } from "./dialog.js";
import { announce, byId, command, fileName, fileSize, h, thousands, whileBusy } from "./dom.js";
import * as hits from "./hits.js";
import { gridMasks } from "./masks.js";
import { makeMap } from "./photos.js";
import { go, isSearch, leave, newSearch, readState, withChanges } from "./state.js";

const SIMILAR = 9;

/** Show a photo in its dialog. */
export async function showPhoto(state) {
  const [id, dialog] = [state.photo, byId("photo")];
  dialog.replaceChildren(
    head("Photo", "photo", "photo-title"),
    h("p.loading", "Loading the photo…"),
  );
  open(dialog, "photo");
  const [image, stats] = await whileBusy(
    Promise.all([getJson(`/v1/images/${id}`), getJson("/v1/stats")]),
  );
  const isThere = image.file === "current";
  const [address, file] = await Promise.all(
    [thumbnail(id, 1024), isThere && `/v1/images/${id}/file`].map(
      (path) => path && imageAddress(path).catch(() => null),
    ),
  );
  const [stage, light] = await makeStage(image, address, file);
  if (!dialog.open || readState().photo !== id) return;
  const shows = h("ul.shown-groups");
  const similar = h("ol.similar");
  dialog.replaceChildren(
    head(fileName(image.path), "photo", "photo-title"),
    h(
      "div.photo-view",
      stage,
      h(
        "div.photo-side",
        !isThere && absence(image, stats),
        actions(state, id, image, file),
        h("section.shows", h("h2", "What it shows"), shows),
        facts(image),
        h("section", h("h2", "Similar"), similar),
      ),
    ),
  );
  byId("photo-title").focus({ preventScroll: true });
  announce(fileName(image.path));
  await Promise.all([
    addNeighbours(state, image, stage),
    fillGroups(shows, id, light),
    fillSimilar(similar, id),
  ]);
}

/** Add links to the photos before and after one, as soon as they are known. */
async function addNeighbours(state, image, stage) {
  const { before, after } = isSearch(state)
    ? hits.neighbours(image.id)
    : await grid.neighbours(image).catch(() => ({}));
  if (!stage.isConnected) return;
  const link = (id, kind, about) =>
    id &&
    h("a", { class: kind, href: withChanges({ photo: id }), "aria-label": about }, ARROWS[kind]);
  stage.append(
    ...[
      link(before, "before", "Previous photo (arrow left)"),
      link(after, "after", "Next photo (arrow right)"),
    ].filter(Boolean),
  );
  byId("photo").onkeydown = (event) => {
    const id = { ArrowLeft: before, ArrowRight: after }[event.key];
    if (id && !stage.classList.contains("is-zoomed")) go(withChanges({ photo: id }));
  };
}

/** Say why there is no file, and what can be done. */
function absence(image, stats) {
  const [about, help] = ABSENCES[image.file];
  const remove = h("button.plain-button", "Remove it from the gallery");
  remove.addEventListener("click", async () => {
    await whileBusy(send(`/v1/images/${image.id}`, { method: "DELETE" }));
    grid.stopBrowsing(); // it has the image still
    leave("photo");
  });
  return h(
    "div.note",
    h("p", h("b", about), " ", help),
    image.file === "missing" &&
      (stats.writable
        ? remove
        : command(image.remove_command, "remove the image from the gallery")),
  );
}

const ABSENCES = {
  missing: [
    "The file is missing.",
    "If it was moved, index its folder again. If it was deleted, remove it:",
  ],
  changed: ["The file has changed since it was indexed.", "Index its folder again."],
  none: ["There is no file.", "The image was added from memory."],
};

/** Return the photo, and a function that lights a grid up in it. */
async function makeStage(image, address, file) {
  const stage = h("div.photo-stage");
  byId("photo").onkeydown = null;
  const img = Object.assign(new Image(), { src: address ?? "", alt: fileName(image.path) });
  try {
    await img.decode();
  } catch {
    stage.append(h("p.empty", "This photo cannot be shown."));
    return [stage, () => {}];
  }
  const map = makeMap(address, {
    "aria-label": fileName(image.path),
    style: { "--shape": (img.naturalWidth / img.naturalHeight).toFixed(4) },
  });
  stage.append(map);
  if (file) addZoom(stage, map, h("img", { alt: fileName(image.path), src: file }));
  const light = async (cells) => {
    if (cells) {
      const [mask, edge] = await gridMasks(cells);
      map.style.setProperty("--mask", mask);
      map.style.setProperty("--edge", edge);
    }
    map.classList.toggle("is-lit", Boolean(cells));
  };
  return [stage, light];
}

/** Show the file in its own size, at least twice as large, around the point of a click. */
function addZoom(stage, map, whole) {
  const button = h("button.zoom", { "aria-label": "Zoom" }, "+");
  const box = h("div.zoomed", { tabindex: 0, role: "group", "aria-label": "Photo" }, whole);
  const zoom = async (isZoomed, x = 0.5, y = 0.5) => {
    stage.classList.toggle("is-zoomed", isZoomed);
    button.setAttribute("aria-pressed", isZoomed);
    button.textContent = isZoomed ? "−" : "+";
    const [width, height] = [map.clientWidth, map.clientHeight];
    (isZoomed ? map : box).replaceWith(isZoomed ? box : map);
    if (!isZoomed) return;
    box.style.height = `${height}px`;
    await whole.decode().catch(() => {});
    whole.style.width = `${Math.max(whole.naturalWidth, 2 * width)}px`;
    box.scrollTo({
      left: x * box.scrollWidth - box.clientWidth / 2,
      top: y * box.scrollHeight - box.clientHeight / 2,
      behavior: "instant",
    });
  };
  map.addEventListener("click", ({ offsetX, offsetY }) =>
    zoom(true, offsetX / map.clientWidth, offsetY / map.clientHeight),
  );
  whole.addEventListener("click", () => zoom(false));
  button.addEventListener("click", () => zoom(!stage.classList.contains("is-zoomed")));
  map.style.cursor = "zoom-in";
  stage.append(button);
}

const ARROWS = { before: "‹", after: "›" };

function actions(state, id, image, file) {
  return h(
    "p.row",
    h("a.main-button", { href: newSearch({ image: id }) }, "Find similar"),
    isSearch(state) &&
      h("a.plain-button", { href: withChanges({ why: id, photo: "" }) }, "Why it matches"),
    file && h("a.plain-button", { href: file, target: "_blank" }, "Open"),
    file && h("a.plain-button", { href: file, download: fileName(image.path) }, "Download"),
  );
}

function facts(image) {
  const folder = image.path.slice(0, image.path.lastIndexOf("/"));
  const size = fileSize(image.file_size);
  const pixels = image.width && `${thousands(image.width)} × ${thousands(image.height)}, ${size}`;
  return h(
    "div.photo-facts",
    h("span", `${image.taken ? "Taken" : "Changed"} ${image.date.slice(0, 16).replace("T", " ")}`),
    h("span", pixels ?? size),
    folder && h("a", { href: newSearch({ folder }) }, folder),
    command(image.path, "the path"),
  );
}

async function fillGroups(list, id, light) {
  const { groups } = await getJson(`/v1/images/${id}/shows`).catch(() => ({ groups: null }));
  if (!groups?.length) {
    list.replaceWith(h("p", groups ? "Nothing that has a name." : "This is not known."));
    return;
  }
  let chosen = null; // stays bright after a click or a tap
  const search = h("li", { hidden: true });
  const choose = (group) => {
    chosen = chosen === group ? null : group;
    light(chosen?.in_hit);
    for (const button of list.querySelectorAll("button"))
      button.setAttribute("aria-pressed", button.textContent === chosen?.label);
    search.hidden = !chosen;
    if (chosen)
      search.replaceChildren(
        h("a", { href: newSearch({ text: chosen.label }) }, `Search for “${chosen.label}”`),
      );
  };
  list.replaceChildren(
    ...groups.map((group) => {
      const button = h("button.plain-button", { "aria-pressed": "false" }, group.label);
      button.addEventListener("click", () => choose(group));
      for (const type of ["pointerenter", "focus"])
        button.addEventListener(type, () => light(group.in_hit));
      for (const type of ["pointerleave", "blur"])
        button.addEventListener(type, () => light(chosen?.in_hit));
      return h("li", button);
    }),
    search,
  );
}

async function fillSimilar(list, id) {
  const { hits: found } = await getJson(`/v1/images/${id}/similar?k=${SIMILAR}`).catch(() => ({
    hits: [],
  }));
  list.replaceChildren(
    ...found.map((hit) =>
      h(
        "li",
        h(
          "a",
          { href: withChanges({ photo: hit.id }), "aria-label": fileName(hit.path) },
          loadImage(h("img", { alt: fileName(hit.path), loading: "lazy" }), thumbnail(hit.id, 256)),
        ),
      ),
    ),
  );
}
