// Groups of the same and nearly the same images: which to keep, and the others into the trash.
import { getJson, loadImage, send, thumbnail } from "./api.js";
import { announce, command, count, fileName, fileSize, h, thousands, whileBusy } from "./dom.js";
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
    h("div.row.list-head", choices(kind)),
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
  const again = h("button.plain-button", "Compare again");
  again.addEventListener("click", () => {
    known.delete(kind);
    shown = null;
    showDuplicates(readState(), content);
  });
  content.querySelector(".list-head").append(again);
  fill(list, groups, writable);
  scrollTo({ top: scroll, behavior: "instant" });
  announce(title.textContent);
}

const compare = (kind) =>
  getJson(`/v1/duplicates?${new URLSearchParams({ near: kind !== "exact", limit: LIMIT })}`);

const choices = (kind) =>
  h(
    "div.choices",
    { role: "group", "aria-label": "Which" },
    Object.entries(KINDS).map(([key, text]) =>
      h(
        "a",
        { href: withChanges({ kind: key }), "aria-current": key === kind ? "true" : null },
        text,
      ),
    ),
  );

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
  const more = h("button.plain-button.more", "Show more");
  const add = () => {
    const start = list.children.length;
    list.append(...groups.slice(start, start + SHOWN).map((group) => makeGroup(group, writable)));
    more.hidden = list.children.length >= groups.length;
  };
  more.addEventListener("click", add);
  list.after(more);
  add();
}

/** Return a group; `images` of it are those that were not moved. */
function makeGroup(group, writable) {
  const moved = h("div.moved", { role: "status" });
  const problem = h("p.no-match", { role: "alert" });
  const figures = new Map(group.images.map((image) => [image.id, makeImage(image)]));
  const others = h("button.plain-button");
  const update = () => {
    const n = group.images.length - 1;
    others.hidden = !n;
    others.textContent =
      n === 1 ? "Move the other to the trash folder" : `Move the ${n} others to the trash folder`;
  };

  async function trash(ids) {
    problem.textContent = "";
    try {
      const answer = await whileBusy(send("/v1/trash", { method: "POST", json: { ids } }));
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
    const isBest = image.id === group.best;
    const button =
      writable && !isBest && group.images.length > 2
        ? h("button.plain-button.small", "Move to trash")
        : null;
    button?.addEventListener("click", () => trash([image.id]));
    const name = fileName(image.path);
    return h(
      "li",
      { class: isBest ? "is-best" : "" },
      h(
        "a.frame",
        { href: withChanges({ photo: image.id }), "aria-label": name },
        loadImage(h("img", { alt: name, loading: "lazy" }), thumbnail(image.id, 256)),
      ),
      h("p.verdict", isBest ? h("b", "Keep") : kindOf(group, image)),
      h("small", sizeOf(image)),
      h("small", image.date.slice(0, 10)),
      command(image.path, "the path"),
      button,
    );
  }

  others.addEventListener("click", () =>
    trash(group.images.map(({ id }) => id).filter((id) => id !== group.best)),
  );
  update();
  return h(
    "li.duplicates",
    h("ol", [...figures.values()]),
    h("div.row", writable && others),
    problem,
    moved,
  );
}

const kindOf = (group, image) =>
  group.kind === "exact" ? "Same content" : image.copy ? "Copy of one before" : "Nearly the same";

const sizeOf = ({ width, height, size }) =>
  `${width ? `${thousands(width)} × ${thousands(height)}, ` : ""}${fileSize(size)}`;
