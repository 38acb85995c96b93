// Groups of the same and nearly the same images: which to keep, and the others into the trash.
import { getJson, photo, send } from "./api.js";
import {
  announce,
  choices,
  command,
  count,
  fileName,
  fileSize,
  h,
  moreButton,
  thousands,
  whileBusy,
} from "./dom.js";
import { readState, withChanges } from "./state.js";

const LIMIT = 1000; // groups of one request, as each request compares all images
const SHOWN = 20; // groups that are added at once
const KINDS = { "": "Near and exact", exact: "Exact only" };

const known = new Map(); // kind → promise of groups
let shown = null;

/** Show groups of duplicates; comparing images may take minutes. */
export async function showDuplicates(state, content, { scroll = 0 } = {}) {
  const kind = state.kind in KINDS ? state.kind : "";
  if (shown?.kind === kind && content.contains(shown.list)) return;
  const list = h("ol.duplicate-list");
  shown = { kind, list };
  const title = h("h1", "Duplicates");
  const about = h("p.hint", "Comparing images. In a large gallery this takes minutes.");
  content.replaceChildren(
    h("div.headline", title, about),
    h(
      "div.row.list-head",
      choices("Which", KINDS, kind, (key) => withChanges({ kind: key })),
    ),
    list,
  );
  announce(about.textContent);
  if (!known.has(kind)) known.set(kind, compare(kind));
  const [page, { writable }] = await whileBusy(
    Promise.all([known.get(kind), getJson("/v1/stats")]),
  ).catch((error) => {
    known.delete(kind);
    content.replaceChildren();
    shown = null;
    throw error;
  });
  if (readState().page !== "duplicates" || shown?.list !== list) return;
  const groups = page.groups.filter(({ images }) => images.length > 1); // others were moved
  title.textContent = count(groups.length, "group");
  about.textContent = describe(page, writable);
  const again = () => {
    known.delete(kind);
    shown = null;
    showDuplicates(readState(), content);
  };
  const button = h("button.plain-button", { onclick: again }, "Compare again");
  content.querySelector(".list-head").append(button);
  fill(list, groups, writable);
  scrollTo({ top: scroll, behavior: "instant" });
  announce(title.textContent);
}

const compare = (kind) =>
  getJson(`/v1/duplicates?${new URLSearchParams({ near: kind !== "exact", limit: LIMIT })}`);

function describe({ total, groups, n_left_out }, writable) {
  const parts = [];
  if (!total) parts.push("No image is there twice.");
  else if (writable) parts.push("Files are moved to a folder beside the gallery, never deleted.");
  else parts.push("To move files here, start the server with --writable.");
  if (total > groups.length) parts.push(`These are the first of ${thousands(total)} groups.`);
  if (n_left_out)
    parts.push(`Not compared: ${count(n_left_out, "image")} whose files are missing or changed.`);
  return parts.join(" ");
}

function fill(list, groups, writable) {
  const add = () => {
    const start = list.children.length;
    list.append(...groups.slice(start, start + SHOWN).map((group) => makeGroup(group, writable)));
    return list.children.length >= groups.length;
  };
  if (!add()) list.after(moreButton(add));
}

/** Return a group; `images` of it are those that were not moved. */
function makeGroup(group, writable) {
  const moved = h("div.moved", { role: "status" });
  const problem = h("p.no-match", { role: "alert" });
  const figures = new Map(group.images.map((image) => [image.id, makeImage(image)]));
  const trashOthers = () =>
    trash(group.images.map(({ id }) => id).filter((id) => id !== group.best));
  const others = h("button.plain-button", { onclick: trashOthers });
  const update = () => {
    const n = group.images.length - 1;
    others.hidden = !n;
    others.textContent =
      n === 1 ? "Move the other to the trash folder" : `Move the ${n} others to the trash folder`;
  };

  async function trash(ids) {
    problem.textContent = "";
    try {
      const answer = await whileBusy(send("/v1/trash", { json: { ids } }));
      const { images } = await answer.json();
      group.images = group.images.filter(({ id }) => !ids.includes(id));
      for (const id of ids) figures.get(id).remove();
      moved.append(
        ...images.map(({ path, file }) =>
          h("p", `${fileName(path)} is now at `, command(file, "the path in the trash folder")),
        ),
      );
      update();
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  function makeImage(image) {
    const { id, path, date } = image;
    const name = fileName(path);
    const isBest = id === group.best;
    const hasButton = writable && !isBest && group.images.length > 2;
    return h(
      "li",
      { class: isBest ? "is-best" : "" },
      h(
        "a.frame",
        { href: withChanges({ photo: id }), "aria-label": name },
        photo(id, 256, { alt: name, loading: "lazy" }),
      ),
      h("p.verdict", isBest ? h("b", "Keep") : kindOf(group, image)),
      h("small", sizeOf(image)),
      h("small", date.slice(0, 10)),
      command(path, "the path"),
      hasButton && h("button.plain-button.small", { onclick: () => trash([id]) }, "Move to trash"),
    );
  }

  update();
  const row = h("div.row", writable && others);
  return h("li.duplicates", h("ol", [...figures.values()]), row, problem, moved);
}

const kindOf = (group, image) =>
  group.kind === "exact" ? "Same content" : image.copy ? "Copy of one before" : "Nearly the same";

const sizeOf = ({ width, height, size }) =>
  `${width ? `${thousands(width)} × ${thousands(height)}, ` : ""}${fileSize(size)}`;
