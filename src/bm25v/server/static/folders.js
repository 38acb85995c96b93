// Folders beside the grid: a tree on wide screens, a menu on narrow ones; one of them is a filter.
import { getJson } from "./api.js";
import { fileName, h, thousands } from "./dom.js";
import { go, newSearch } from "./state.js";

let folders = null; // of the gallery

/** Return the tree and the menu of folders; neither if all images are in one folder. */
export async function makeFolders(chosen) {
  folders ??= getJson("/v1/folders").catch(() => ((folders = null), { root: "", folders: [] }));
  const known = await folders;
  if (!known.folders.length) return {};
  const parent = ({ path }) => path.slice(0, path.lastIndexOf("/"));
  const isAbove = (path) => chosen === path || chosen.startsWith(`${path}/`);
  const depth = ({ path }) => path.slice(known.root.length).replace(/^\//, "").split("/").length;
  const link = (path, name, level, n) =>
    h(
      "a",
      {
        href: newSearch({ folder: path }),
        title: path,
        style: { "--level": level },
        "aria-current": path === chosen ? "true" : null,
      },
      h("span", name),
      n && h("small", thousands(n)),
    );
  const list = h(
    "nav.folder-tree",
    { "aria-label": "Folders" },
    link("", "All folders", 0),
    known.folders
      .filter((folder) => depth(folder) === 1 || isAbove(parent(folder)))
      .map((folder) =>
        link(folder.path, fileName(folder.path), depth(folder) - 1, folder.n_images),
      ),
  );
  const menu = h(
    "select",
    { "aria-label": "Folder", onchange: () => go(newSearch({ folder: menu.value })) },
    h("option", { value: "" }, "All folders"),
    known.folders.map((folder) =>
      h(
        "option",
        { value: folder.path, selected: folder.path === chosen },
        `${"\u2003".repeat(depth(folder) - 1)}${fileName(folder.path)} (${thousands(folder.n_images)})`,
      ),
    ),
  );
  return { list, menu };
}
