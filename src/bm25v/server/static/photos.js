// Photos in layers: bright and outlined where words are, dark elsewhere. The masks are for style
// sheets; grids of patches become masks as `explain.heatmaps.make_mask` makes them.
import { blobAddress, getJson, loadImage, toForm } from "./api.js";
import { h } from "./dom.js";

const VISIBLE = 0.2; // of the peak: below, a photo is dark
const FULL = 0.45; // of the peak: above, it is as it is
const SIDE = 224; // pixels
export const NOWHERE = "linear-gradient(#0000, #0000)";

/** Return where a grid is active, and the outline of that, as values of mask-image. */
async function gridMasks(grid, strength = 1) {
  const peak = Math.max(...grid.flat());
  if (!(peak > 0)) return [NOWHERE, NOWHERE];
  const shown = new Float32Array(SIDE * SIDE);
  for (let y = 0; y < SIDE; y += 1) {
    for (let x = 0; x < SIDE; x += 1) {
      const share = interpolate(grid, (x + 0.5) / SIDE, (y + 0.5) / SIDE) / peak;
      const rise = Math.min(1, Math.max(0, (share - VISIBLE) / (FULL - VISIBLE)));
      shown[y * SIDE + x] = rise * rise * (3 - 2 * rise);
    }
  }
  const isInside = (x, y) => x >= 0 && y >= 0 && x < SIDE && y < SIDE && shown[y * SIDE + x] >= 0.5;
  const isEdge = (x, y) =>
    isInside(x, y) &&
    !(isInside(x - 1, y) && isInside(x + 1, y) && isInside(x, y - 1) && isInside(x, y + 1));
  return Promise.all([
    maskOf((x, y) => 255 * strength * shown[y * SIDE + x]),
    maskOf((x, y) => (isEdge(x, y) ? 255 * strength : 0)),
  ]);
}

const gridMask = async (grid) => (await gridMasks(grid))[0];

async function maskOf(opacity) {
  const pixels = new ImageData(SIDE, SIDE);
  for (let i = 0; i < SIDE * SIDE; i += 1)
    pixels.data[4 * i + 3] = opacity(i % SIDE, Math.floor(i / SIDE));
  const canvas = h("canvas", { width: SIDE, height: SIDE });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done));
  return `url(${URL.createObjectURL(blob)})`;
}

function interpolate(grid, x, y) {
  const [rows, columns] = [grid.length, grid[0].length];
  const [left, top] = [x * columns - 0.5, y * rows - 0.5];
  const [column, row] = [Math.floor(left), Math.floor(top)];
  const at = (r, c) =>
    grid[Math.min(rows - 1, Math.max(0, r))][Math.min(columns - 1, Math.max(0, c))];
  const [right, down] = [left - column, top - row];
  const upper = at(row, column) * (1 - right) + at(row, column + 1) * right;
  const lower = at(row + 1, column) * (1 - right) + at(row + 1, column + 1) * right;
  return upper * (1 - down) + lower * down;
}

/** Return the mask of words in an image of the gallery. */
export async function wordMask(id, words, signal) {
  const parameters = new URLSearchParams([["image", id], ...words.map((word) => ["word", word])]);
  return `url(${await blobAddress(`/v1/heatmap?${parameters}`, { signal })})`;
}

/** Return a promise of the masks of groups of words in a file of this machine, in their order. */
export async function uploadMasks(file, groups) {
  const form = toForm([file], { groups });
  const { grids } = await getJson("/v1/heatmap", { form });
  return Promise.all(grids.map(gridMask));
}

/** Return a photo in two layers: a grey one, and one in colours where a mask is. */
export function layeredPhoto(alt, path) {
  const base = loadImage(h("img", { alt, decoding: "async" }), path);
  const lit = loadImage(h("img.lit", { alt: "", decoding: "async" }), path);
  const photo = h("span.photo-box", base, lit);
  base.addEventListener("load", () => {
    const shape = base.naturalWidth / base.naturalHeight;
    photo.style.setProperty("--shape", shape.toFixed(4));
    photo.classList.toggle("is-tall", shape < 1);
  });
  return photo;
}

/**
 * Return a photo in layers: dark, bright where a mask is, and an outline; its shape; and `light`,
 * which shows where a grid is active. If the photo cannot be shown, return null.
 */
export async function makeMap(address, alt) {
  const img = h("img", { src: address ?? "" });
  try {
    await img.decode();
  } catch {
    return null;
  }
  const shape = (img.naturalWidth / img.naturalHeight).toFixed(4);
  const style = { "background-image": `url(${JSON.stringify(address)})` };
  const map = h(
    "div.map",
    { role: "img", "aria-label": alt, style: { "--shape": shape } },
    h("i.photo.veiled", { style }),
    h("i.photo.matched", { style }),
    h("i.photo.edge"),
  );
  const known = new Map();
  let last = null;
  const light = async (grid, strength = 1) => {
    last = grid;
    if (grid && !known.has(grid)) known.set(grid, await gridMasks(grid, strength));
    if (last !== grid) return; // somebody points at another group by now
    const [mask, edge] = known.get(grid) ?? [NOWHERE, NOWHERE];
    map.style.setProperty("--mask", mask);
    map.style.setProperty("--edge", edge);
    map.classList.toggle("is-lit", Boolean(grid));
  };
  return { map, shape, light };
}
