// Grids of patches as masks for style sheets, as `explanations.heatmaps.make_mask` makes them.
import { blobAddress, getJson } from "./api.js";

const VISIBLE = 0.08; // of the peak: below, there is no colour
const FULL = 0.55; // of the peak: above, there is nothing but colour
const SIDE = 56; // pixels
export const NOWHERE = "linear-gradient(#0000, #0000)";

/** Return a mask for a grid, as a value of the property mask-image. */
export async function gridMask(signed, strength = 1) {
  const grid = cutNegative(signed);
  const peak = Math.max(...grid.flat());
  if (!peak) return NOWHERE;
  const pixels = new ImageData(SIDE, SIDE);
  for (let y = 0; y < SIDE; y += 1) {
    for (let x = 0; x < SIDE; x += 1) {
      const share = interpolate(grid, (x + 0.5) / SIDE, (y + 0.5) / SIDE) / peak;
      const rise = Math.min(1, Math.max(0, (share - VISIBLE) / (FULL - VISIBLE)));
      pixels.data[4 * (y * SIDE + x) + 3] = 255 * strength * rise * rise * (3 - 2 * rise);
    }
  }
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
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

/** Return the mask of a word in an image of the gallery. */
export async function wordMask(id, word, signal) {
  return `url(${await blobAddress(`/v1/heatmap?image=${id}&word=${word}`, signal)})`;
}

/** Return a promise of the masks of words in a file of this machine, by word. */
export async function uploadMasks(file, words) {
  const form = new FormData();
  form.append("image", file);
  form.append("query", JSON.stringify({ words }));
  const found = await getJson("/v1/heatmap", { method: "POST", form });
  return new Map(
    await Promise.all(found.words.map(async ({ word, grid }) => [word, await gridMask(grid)])),
  );
}

/** Return a grid without what counts against something. */
const cutNegative = (grid) => grid.map((row) => row.map((cell) => Math.max(0, cell)));

/** Return the sum of grids, each with the peak that is given with it. */
export function addPeaks(parts) {
  const scaled = parts.map(([peak, grid]) => {
    const cells = cutNegative(grid);
    const total = cells.flat().reduce((a, b) => a + b, 0);
    return [(peak * total) / Math.max(1e-12, ...cells.flat()), cells];
  });
  return spreadContributions(scaled);
}

/** Return the sum of contributions, each spread over the patches where its word is active. */
export function spreadContributions(parts) {
  const sum = parts[0][1].map((row) => row.map(() => 0));
  for (const [value, grid] of parts) {
    const total = Math.max(
      1e-12,
      grid.flat().reduce((a, b) => a + b, 0),
    );
    grid.forEach((row, y) => row.forEach((cell, x) => (sum[y][x] += (value * cell) / total)));
  }
  return sum;
}

/** Return where a grid is strongest, as shares of its sides. */
export function strongest(grid) {
  const flat = grid.flat();
  const peak = flat.indexOf(Math.max(...flat));
  const columns = grid[0].length;
  return {
    x: ((peak % columns) + 0.5) / columns,
    y: (Math.floor(peak / columns) + 0.5) / grid.length,
  };
}
