// All images as a grid, newest first. Only cells in view are in the page; images are listed in
// blocks. Folders and months are beside it.
import { getJson, photo } from "./api.js";
import { announce, command, count, fileName, h, whileBusy } from "./dom.js";
import { selectable } from "./select.js";
import { fillTopics, locateMonths, makeFolders, makeMonths } from "./sides.js";
import { isSearch, readState, withChanges } from "./state.js";

const BLOCK = 200; // images of one request
const SMALLEST = 150; // pixels of a cell
const GAP = 6;
const ROWS_AROUND = 2; // above and below what is in view
const SETTLED = 90; // milliseconds without scrolling
const coveredPixels = () => (innerWidth <= 720 ? 126 : 78); // by the head of the page and menus

let shown = null;
let opening = Promise.resolve(); // ends when the grid is there

/** Show the images that the filters of a state select; the promise ends when the first are known. */
export function browse(state, content, options) {
  const filters = readFilters(state);
  if (shown?.key === String(filters) && content.contains(shown.list)) return opening;
  stopBrowsing();
  opening = show(filters, content, options);
  return opening;
}

async function show(filters, content, { scroll = 0 } = {}) {
  const load = (offset) => {
    const part = { order: "date", offset, limit: BLOCK };
    return getJson(`/v1/images?${new URLSearchParams([...filters, ...Object.entries(part)])}`);
  };
  let parts;
  try {
    parts = await whileBusy(
      Promise.all([
        load(0),
        getJson(`/v1/months?${filters}`),
        makeFolders(filters.get("folder") ?? ""),
      ]),
    );
  } catch (error) {
    if (![400, 422].includes(error.status)) throw error;
    content.replaceChildren(nothing(true, error.message)); // a wrong date, for example
    return;
  }
  const [first, { months }, folders] = parts;
  const now = readState();
  if (now.page || isSearch(now) || String(readFilters(now)) !== String(filters)) return;
  if (!first.total) {
    content.replaceChildren(nothing(Boolean(String(filters))));
    return;
  }
  const title = h("h1.count", count(first.total, "image"));
  const hint = h("p.hint", "Type what you look for, or drop, paste or choose an image of yours.");
  const topicList = h("ul.topics", { "aria-label": "What many images show" });
  if (String(filters)) topicList.hidden = true;
  else fillTopics(topicList);
  const list = h("div.cells", { role: "list", "aria-label": "Images" });
  const located = locateMonths(months, first.total);
  const { goTo, ...grid } = makeGrid(list, first, load, located, (index) => side.mark(index));
  const side = makeMonths(located, goTo);
  const columns = [folders.list, h("div", list), side.list].filter(Boolean);
  const menus = [folders.menu, side.menu].filter(Boolean);
  content.replaceChildren(
    h("div.headline", title, hint),
    topicList,
    ...(menus.length ? [h("div.menus", menus)] : []),
    h("div.browser", columns),
  );
  folders.list?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  grid.start();
  shown = { ...grid, key: String(filters) };
  scrollTo({ top: scroll, behavior: "instant" });
  shown.draw();
  announce(count(first.total, "image"));
}

/** Return the ids of the images before and after one, if there are any. */
export async function neighbours(image) {
  await opening.catch(() => {});
  return (await shown?.neighbours(image)) ?? {};
}

function readFilters(state) {
  const filters = new URLSearchParams();
  if (state.folder) filters.set("folder", state.folder);
  if (state.date) filters.set("date", state.date);
  return filters;
}

/** Forget the grid, when something else is shown. */
export function stopBrowsing() {
  shown?.stop();
  shown = null;
}

function nothing(isFiltered, reason = "") {
  if (isFiltered)
    return h(
      "div.empty-state",
      h("h1", "No image in this folder and time"),
      h("p", reason, " Change the filter, or ", h("a", { href: "/" }, "show all images"), "."),
    );
  return h(
    "div.empty-state",
    h("h1", "The gallery has no images yet"),
    h("p", "Add a folder of images. They appear here when you load this page again."),
    command("bm25v index PHOTOS", "index a folder"),
  );
}

function makeGrid(list, first, load, months, mark) {
  const requests = new Map(); // block → promise that it is known
  const images = new Map(); // index → image
  const indexes = new Map(); // id → index
  const cells = new Map(); // index → element
  const labels = new Map(months.map(({ start, title }) => [start, title]));
  const total = first.total;
  let target = null; // the image that somebody went to, and where that was
  let opened = null; // the photo that was opened last
  let [columns, size, timer] = [1, SMALLEST, 0];
  let [current, wanted] = [0, null]; // the image that has the focus, and the one that shall have it

  function measure() {
    const width = list.clientWidth;
    const smallest = innerWidth < 600 ? 100 : SMALLEST;
    columns = Math.max(1, Math.floor((width + GAP) / (smallest + GAP)));
    size = (width - GAP * (columns - 1)) / columns;
    list.style.height = `${Math.ceil(total / columns) * (size + GAP) - GAP}px`;
    for (const [index, cell] of cells) place(cell, index);
  }

  function place(cell, index) {
    const [row, column] = [Math.floor(index / columns), index % columns];
    cell.style.width = cell.style.height = `${size}px`;
    cell.style.transform = `translate(${column * (size + GAP)}px, ${row * (size + GAP)}px)`;
  }

  function range() {
    const above = -list.getBoundingClientRect().top;
    const firstRow = Math.floor(above / (size + GAP)) - ROWS_AROUND;
    const lastRow = Math.ceil((above + innerHeight) / (size + GAP)) + ROWS_AROUND;
    return [Math.max(0, firstRow * columns), Math.min(total, lastRow * columns)];
  }

  function draw() {
    const [start, end] = range();
    for (const [index, cell] of cells) {
      if ((index < start || index >= end) && !cell.contains(document.activeElement)) {
        cell.querySelector("img")?.removeAttribute("src"); // ends its request
        cell.remove();
        cells.delete(index);
      }
    }
    for (let index = start; index < end; index += 1) {
      const cell = cells.get(index) ?? makeCell(index);
      if (!cell.firstChild) fill(cell, index);
    }
    if (wanted !== null) focusWanted();
    mark(target?.scroll === scrollY ? target.index : inFirstRow());
    clearTimeout(timer);
    timer = setTimeout(() => loadBlocks(start, end), SETTLED);
  }

  /** Return the last image of the first row that is in view; at the top, the first image. */
  function inFirstRow() {
    const row = Math.max(
      0,
      Math.round((coveredPixels() - list.getBoundingClientRect().top) / (size + GAP)),
    );
    return row && Math.min(total, (row + 1) * columns) - 1;
  }

  function makeCell(index) {
    const cell = h("div.cell", {
      role: "listitem",
      "aria-posinset": index + 1,
      "aria-setsize": total,
    });
    place(cell, index);
    cells.set(index, cell);
    const next = cells.get(index + 1);
    if (next) next.before(cell);
    else list.append(cell);
    return cell;
  }

  function fill(cell, index) {
    const image = images.get(index);
    if (!image) return;
    const name = fileName(image.path);
    const link = h(
      "a",
      {
        href: withChanges({ photo: image.id }),
        title: image.path,
        tabindex: index === current ? 0 : -1,
        "data-index": index,
        "aria-label": name,
      },
      photo(image.id, 256, { alt: name, width: 256, height: 256, decoding: "async" }),
    );
    cell.append(link);
    if (labels.has(index)) cell.append(h("span.month", labels.get(index)));
    selectable(cell, image, { position: index, between });
  }

  function loadBlocks(start, end) {
    for (let block = Math.floor(start / BLOCK); block * BLOCK < end; block += 1)
      need(block * BLOCK).catch(() => {}); // the next movement asks again
  }

  /** Return a promise that an image is known, with the others of its block. */
  function need(index) {
    const block = Math.floor(index / BLOCK);
    if (!requests.has(block)) {
      const request = load(block * BLOCK).then((page) => (keep(block, page), draw()));
      request.catch(() => requests.delete(block));
      requests.set(block, request);
    }
    return requests.get(block);
  }

  function keep(block, page) {
    page.images.forEach((image, i) => {
      images.set(block * BLOCK + i, image);
      indexes.set(image.id, block * BLOCK + i);
    });
  }

  /** Scroll to an image. */
  function goTo(index) {
    const top = Math.floor(index / columns) * (size + GAP) + list.getBoundingClientRect().top;
    scrollBy({ top: top - coveredPixels(), behavior: "instant" });
    target = { index, scroll: scrollY };
    draw();
  }

  /** Return the images from one to another, also those that were never in view. */
  async function between(from, to) {
    for (let index = from; index <= to; index += 1) if (!images.has(index)) await need(index);
    return Array.from({ length: to + 1 - from }, (_, i) => images.get(from + i));
  }

  function focus(index) {
    wanted = Math.max(0, Math.min(total - 1, index));
    reveal(wanted);
    draw();
  }

  /** Scroll no more than needed to have an image in view. */
  function reveal(index) {
    const top = Math.floor(index / columns) * (size + GAP) + list.getBoundingClientRect().top;
    const covered = coveredPixels();
    const step = top < covered ? top - covered : Math.max(0, top + size + GAP - innerHeight);
    scrollBy({ top: step, behavior: "instant" });
  }

  /** Give the focus to the image that somebody went to, as soon as it is there. */
  function focusWanted() {
    const link = cells.get(wanted)?.querySelector("a");
    if (!link) return;
    list.querySelector("a[tabindex='0']")?.setAttribute("tabindex", -1);
    link.setAttribute("tabindex", 0);
    link.focus({ preventScroll: true });
    [current, wanted] = [wanted, null];
  }

  function onKey(event) {
    const index = wanted ?? Number(event.target.dataset?.index);
    const page = columns * Math.max(1, Math.floor(innerHeight / (size + GAP)) - 1);
    const moves = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      PageDown: page,
      PageUp: -page,
      Home: -total,
      End: total,
    };
    const step = moves[event.key];
    if (step === undefined || Number.isNaN(index) || event.ctrlKey || event.altKey || event.metaKey)
      return;
    event.preventDefault();
    focus(index + step);
  }

  async function neighbours({ id, date }) {
    const month = months.find(({ key }) => date.startsWith(key));
    for (
      let index = month?.start;
      !indexes.has(id) && index < month.start + month.n;
      index += BLOCK
    )
      await need(index);
    if (!indexes.has(id) && month) await need(month.start + month.n - 1);
    if (!indexes.has(id)) return {};
    const at = indexes.get(id);
    if (Math.abs(at - (opened ?? at)) <= 1) reveal(at); // for when the photo is closed
    opened = at;
    const around = [at - 1, at + 1];
    await Promise.all(around.filter((index) => index >= 0 && index < total).map(need));
    const [before, after] = around.map((index) => images.get(index)?.id);
    return { before, after };
  }

  let frame = 0;
  const onScroll = () => (frame ||= requestAnimationFrame(() => ((frame = 0), draw())));
  const observer = new ResizeObserver(() => (measure(), draw()));
  keep(0, first);
  requests.set(0, Promise.resolve());
  list.addEventListener("keydown", onKey);
  const start = () => {
    addEventListener("scroll", onScroll, { passive: true });
    observer.observe(list);
    measure();
  };
  const stop = () => (
    observer.disconnect(),
    removeEventListener("scroll", onScroll),
    clearTimeout(timer)
  );
  return { list, draw, start, stop, goTo, neighbours };
}
