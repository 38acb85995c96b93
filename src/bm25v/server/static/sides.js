// What is beside and above the grid: months, folders (menus on narrow screens), and topics.
import { getJson, photo } from "./api.js";
import { fileName, h, thousands } from "./dom.js";
import { go, newSearch } from "./state.js";

/** Say where each month starts in the grid; no months if they do not add up to all images. */
export function locateMonths(months, total) {
  let start = 0;
  const located = months.map(({ month, n_images: n }) => {
    const [year, number] = month.split("-");
    const name = new Date(2000, number - 1).toLocaleDateString("en-US", { month: "short" });
    const part = { key: month, year, name, title: `${name} ${year}`, start, n };
    start += n;
    return part;
  });
  return start === total ? located : []; // else images were added between two requests
}

/**
 * Return the list and the menu of months, and a function that marks the month of an image.
 * `goTo` scrolls to an image, by its position.
 */
export function makeMonths(months, goTo) {
  if (months.length < 2) return { mark: () => {} };
  const button = (name, n, start) =>
    h("button", { onclick: () => goTo(start) }, h("span", name), " ", h("small", thousands(n)));
  const buttons = new Map(months.map((part) => [part, button(part.name, part.n, part.start)]));
  const sections = [...Map.groupBy(months, ({ year }) => year)].map(([year, parts]) => {
    const n = parts.reduce((sum, part) => sum + part.n, 0);
    const ofMonths = parts.map((part) => buttons.get(part));
    return h("section", { "data-year": year }, button(year, n, parts[0].start), h("div", ofMonths));
  });
  const list = h("nav.months", { "aria-label": "Months" }, sections);
  const menu = h(
    "select",
    { "aria-label": "Month", onchange: () => goTo(months[menu.selectedIndex].start) },
    months.map((part) => h("option", `${part.title} (${thousands(part.n)})`)),
  );
  let current = null;
  const mark = (index) => {
    const next = months.findLast(({ start }) => start <= index);
    if (next === current) return;
    buttons.get(current)?.removeAttribute("aria-current");
    current = next;
    menu.selectedIndex = months.indexOf(current);
    for (const section of sections)
      section.classList.toggle("is-open", section.dataset.year === current.year);
    const marked = buttons.get(current);
    marked.setAttribute("aria-current", "true");
    list.scrollTop = marked.offsetTop - list.clientHeight / 2;
  };
  return { list, menu, mark };
}

let folders = null; // of the gallery

/** Return a promise of the folders, each with its name and its depth below the one of all images. */
async function loadFolders() {
  folders ??= getJson("/v1/folders").catch(() => ((folders = null), { root: "", folders: [] }));
  const known = await folders;
  return known.folders.map(({ path, n_images: n }) => {
    const below = path.slice(known.root.length).replace(/^\//, "");
    return { path, n, name: fileName(path), level: below.split("/").length - 1 };
  });
}

/** Fill a menu with the folders; what is selected stays so. */
export async function fillFolderMenu(menu) {
  const options = (await loadFolders()).map(({ path, n, name, level }) =>
    h("option", { value: path }, `${"\u2003".repeat(level)}${name} (${thousands(n)})`),
  );
  const chosen = menu.value;
  menu.replaceChildren(h("option", { value: "" }, "All folders"), ...options);
  chooseFolder(menu, chosen);
}

/** Select a folder in a menu, also one that the gallery does not have. */
export function chooseFolder(menu, folder) {
  if (![...menu.options].some(({ value }) => value === folder))
    menu.append(h("option", { value: folder }, fileName(folder)));
  menu.value = folder;
}

/** Return the tree and the menu of folders; neither if all images are in one folder. */
export async function makeFolders(chosen) {
  const known = await loadFolders();
  if (!known.length) return {};
  const isAbove = (path) => chosen === path || chosen.startsWith(`${path}/`);
  const isShown = ({ path, level }) => !level || isAbove(path.slice(0, path.lastIndexOf("/")));
  const link = ({ path, n, name, level }) =>
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
  const all = { path: "", name: "All folders", level: 0 };
  const links = [all, ...known.filter(isShown)].map(link);
  const list = h("nav.folder-tree", { "aria-label": "Folders" }, links);
  const onchange = () => go(newSearch({ folder: menu.value }));
  const menu = h("select", { "aria-label": "Folder", onchange });
  await fillFolderMenu(menu);
  chooseFolder(menu, chosen);
  return { list, menu };
}

let topics = null; // of the gallery, once they are known

/** Fill a list, at once if the topics are known; it is hidden if there are none. */
export async function fillTopics(list) {
  if (!topics) ({ topics } = await getJson("/v1/topics").catch(() => ({ topics: null })));
  list.hidden = !topics?.length;
  list.replaceChildren(...(topics ?? []).map(makeLink));
}

const makeLink = ({ name, n_images, id }) =>
  h(
    "li",
    h(
      "a.topic",
      { href: newSearch({ text: name }) },
      photo(id, 128, { alt: "", width: 64, height: 64 }),
      h("span", name, " ", h("small", thousands(n_images))),
    ),
  );
