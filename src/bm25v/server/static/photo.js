// One photo, large: what is known about it, what it shows and where, and images like it.
import { getJson, imageAddress, photo, send, thumbnail } from "./api.js";
import * as grid from "./browse.js";
import {
  announce,
  command,
  fileName,
  fileSize,
  fillDialog,
  h,
  neighbourLinks,
  openDialog,
  thousands,
  whileBusy,
} from "./dom.js";
import * as hits from "./hits.js";
import { makeMap } from "./photos.js";
import { isSearch, leave, newSearch, readState, withChanges } from "./state.js";

const SIMILAR = 9;

/** Show a photo in its dialog. */
export async function showPhoto(state) {
  const id = state.photo;
  const dialog = openDialog("photo", "Photo", "Loading the photo…");
  const [image, stats] = await whileBusy(
    Promise.all([getJson(`/v1/images/${id}`), getJson("/v1/stats")]),
  );
  const isThere = image.file === "current";
  const [address, file] = await Promise.all(
    [thumbnail(id, 1024), isThere && `/v1/images/${id}/file`].map(
      (path) => path && imageAddress(path).catch(() => null),
    ),
  );
  const name = fileName(image.path);
  const map = await makeMap(address, name);
  if (!dialog.open || readState().photo !== id) return;
  const stage = h("div.photo-stage", map?.map ?? h("p.empty", "This photo cannot be shown."));
  if (map && file) addZoom(stage, map.map, h("img", { alt: name, src: file }));
  const shows = h("ul.shown-groups");
  const similar = h("ol.similar");
  const side = h(
    "div.photo-side",
    !isThere && absence(image, stats),
    actions(state, id, image, file),
    h("section.shows", h("h2", "What it shows"), shows),
    facts(image),
    h("section", h("h2", "Similar"), similar),
  );
  fillDialog("photo", name, null, h("div.photo-view", stage, side));
  announce(name);
  await Promise.all([
    addNeighbours(state, image, stage),
    fillGroups(shows, id, map?.light ?? (() => {})),
    fillSimilar(similar, id),
  ]);
}

/** Add links to the photos before and after one, as soon as they are known. */
async function addNeighbours(state, image, stage) {
  const around = isSearch(state)
    ? hits.neighbours(image.id)
    : await grid.neighbours(image).catch(() => ({}));
  if (!stage.isConnected) return;
  const isFree = () => !stage.classList.contains("is-zoomed");
  stage.append(...neighbourLinks("photo", "photo", around, isFree));
}

/** Say why there is no file, and what can be done. */
function absence(image, stats) {
  const [about, help] = ABSENCES[image.file];
  const remove = async () => {
    await whileBusy(send(`/v1/images/${image.id}`, { method: "DELETE" }));
    grid.stopBrowsing(); // it has the image still
    leave("photo");
  };
  const control = stats.writable
    ? h("button.plain-button", { onclick: remove }, "Remove it from the gallery")
    : command(image.remove_command, "remove the image from the gallery");
  return h("div.note", h("p", h("b", about), " ", help), image.file === "missing" && control);
}

const ABSENCES = {
  missing: [
    "The file is missing.",
    "If it was moved, index its folder again. If it was deleted, remove it:",
  ],
  changed: ["The file has changed since it was indexed.", "Index its folder again."],
  none: ["There is no file.", "The image was added from memory."],
};

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

function actions(state, id, image, file) {
  const link = (href, text, more) => h("a.plain-button", { href, ...more }, text);
  return h(
    "p.row",
    h("a.main-button", { href: newSearch({ image: id }) }, "Find similar"),
    isSearch(state) && link(withChanges({ why: id, photo: "" }), "Why it matches"),
    file && link(file, "Open", { target: "_blank" }),
    file && link(file, "Download", { download: fileName(image.path) }),
  );
}

function facts({ path, width, height, file_size: bytes, taken, date }) {
  const folder = path.slice(0, path.lastIndexOf("/"));
  const pixels = width ? `${thousands(width)} × ${thousands(height)}, ` : "";
  return h(
    "div.photo-facts",
    h("span", `${taken ? "Taken" : "Changed"} ${date.slice(0, 16).replace("T", " ")}`),
    h("span", `${pixels}${fileSize(bytes)}`),
    folder && h("a", { href: newSearch({ folder }) }, folder),
    command(path, "the path"),
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
      button.ariaPressed = String(button.textContent === chosen?.label);
    search.hidden = !chosen;
    if (!chosen) return;
    const href = newSearch({ text: chosen.label });
    search.replaceChildren(h("a", { href }, `Search for “${chosen.label}”`));
  };
  const makeButton = (group) => {
    const show = () => light(group.in_hit);
    const end = () => light(chosen?.in_hit);
    return h(
      "button.plain-button",
      {
        "aria-pressed": "false",
        onclick: () => choose(group),
        onpointerenter: show,
        onfocus: show,
        onpointerleave: end,
        onblur: end,
      },
      group.label,
    );
  };
  list.replaceChildren(...groups.map((group) => h("li", makeButton(group))), search);
}

async function fillSimilar(list, id) {
  const similar = await getJson(`/v1/images/${id}/similar?k=${SIMILAR}`).catch(() => ({
    hits: [],
  }));
  const link = (hit) => {
    const name = fileName(hit.path);
    const look = photo(hit.id, 256, { alt: name, loading: "lazy" });
    return h("a", { href: withChanges({ photo: hit.id }), "aria-label": name }, look);
  };
  list.replaceChildren(...similar.hits.map((hit) => h("li", link(hit))));
}
