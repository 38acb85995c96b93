// All images as a grid. Only cells in view are in the page; images are listed in blocks.
import { getJson, loadImage, thumbnail } from "./api.js";
import { announce, command, count, fileName, h, whileBusy } from "./dom.js";
import { isSearch, newSearch, readState } from "./state.js";

const BLOCK = 200; // images of one request
const SMALLEST = 150; // pixels of a cell
const GAP = 6;
const HEAD = 90; // pixels of the head of the page, which covers the top
const ROWS_AROUND = 2; // above and below what is in view
const SETTLED = 90; // milliseconds without scrolling

let shown = null;

/** Show the images that the filters of a state select; the promise ends when the first are known. */
export async function browse(state, content, { scroll = 0 } = {}) {
  const filters = readFilters(state);
  if (shown?.key === String(filters) && content.contains(shown.list)) return;
  stopBrowsing();
  const load = (offset) =>
    getJson(
      `/v1/images?${new URLSearchParams([...filters, ["offset", offset], ["limit", BLOCK]])}`,
    );
  const first = await whileBusy(load(0));
  const now = readState();
  if (isSearch(now) || String(readFilters(now)) !== String(filters)) return; // somebody was faster
  if (!first.total) {
    content.replaceChildren(nothing(Boolean(String(filters))));
    return;
  }
  const title = h("h1", { class: "count" }, count(first.total, "image"));
  const hint = h(
    "p",
    { class: "hint" },
    "Click one to find more like it. Or type what you look for, or drop, paste or choose an image of yours.",
  );
  const list = h("div", { class: "cells", role: "list", "aria-label": "Images" });
  content.replaceChildren(h("div", { class: "headline" }, title, hint), list);
  shown = makeGrid(list, first, load);
  shown.key = String(filters);
  scrollTo({ top: scroll, behavior: "instant" });
  shown.draw();
  announce(count(first.total, "image"));
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

function nothing(isFiltered) {
  if (isFiltered)
    return h(
      "div",
      { class: "empty-state" },
      h("h1", {}, "No image in this folder and time"),
      h("p", {}, "Change the filter, or clear it."),
    );
  return h(
    "div",
    { class: "empty-state" },
    h("h1", {}, "The gallery has no images yet"),
    h("p", {}, "Add a folder of images. They appear here when you load this page again."),
    command("bm25v index PHOTOS", "index a folder"),
  );
}

function makeGrid(list, first, load) {
  const blocks = new Map([[0, first.images]]);
  const cells = new Map(); // index → element
  const total = first.total;
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
    clearTimeout(timer);
    timer = setTimeout(() => loadBlocks(start, end), SETTLED);
  }

  function makeCell(index) {
    const cell = h("div", {
      class: "cell",
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
    const image = blocks.get(Math.floor(index / BLOCK))?.[index % BLOCK];
    if (!image) return;
    const name = fileName(image.path);
    const link = h(
      "a",
      {
        href: newSearch({ image: image.id }),
        title: image.path,
        tabindex: index === current ? 0 : -1,
        "data-index": index,
        "aria-label": `${name}: find more like it`,
      },
      loadImage(
        h("img", { alt: name, width: 256, height: 256, decoding: "async" }),
        thumbnail(image.id, 256),
      ),
    );
    cell.append(link);
  }

  async function loadBlocks(start, end) {
    for (let block = Math.floor(start / BLOCK); block * BLOCK < end; block += 1) {
      if (blocks.has(block)) continue;
      blocks.set(block, undefined);
      load(block * BLOCK).then(
        (page) => {
          blocks.set(block, page.images);
          draw();
        },
        () => blocks.delete(block), // the next movement asks again
      );
    }
  }

  function focus(index) {
    wanted = Math.max(0, Math.min(total - 1, index));
    const top = Math.floor(wanted / columns) * (size + GAP) + list.getBoundingClientRect().top;
    const step = top < HEAD ? top - HEAD : Math.max(0, top + size + GAP - innerHeight);
    scrollBy({ top: step, behavior: "instant" });
    draw();
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

  let frame = 0;
  const onScroll = () => (frame ||= requestAnimationFrame(() => ((frame = 0), draw())));
  const observer = new ResizeObserver(() => (measure(), draw()));
  list.addEventListener("keydown", onKey);
  addEventListener("scroll", onScroll, { passive: true });
  observer.observe(list);
  measure();
  const stop = () => (
    observer.disconnect(),
    removeEventListener("scroll", onScroll),
    clearTimeout(timer)
  );
  return { list, draw, stop };
}
