// What words look like: all crops of a view come by one request, as one image of squares.
import { blobAddress } from "./api.js";
import { h } from "./dom.js";

const COLUMNS = 8; // of the image

let queue = Promise.resolve(); // one request at a time: thumbnails have the other connections

/** Return an element for what a word looks like. */
export const emptyCrop = () => h("i.crop", { "aria-hidden": "true" });

/**
 * Fill each element with a crop, {word} or {word, image}: by default, the image is the one that
 * shows the word best. The photos that are in view are loaded first.
 */
export async function fillCrops(crops, elements, size, photos = []) {
  await Promise.all(photos.filter(isInView).map(settled));
  const filled = queue.then(() => load(crops, elements, size));
  queue = filled.catch(() => {}); // a word has its name, too
  await queue;
}

async function load(crops, elements, size) {
  if (!elements.some((element) => element.isConnected)) return; // somebody was faster
  const keys = crops.map(({ word, image }) => JSON.stringify({ word, image }));
  const different = [...new Set(keys)];
  const json = { crops: different.map((key) => JSON.parse(key)), size };
  const address = await blobAddress("/v1/crops", { method: "POST", json });
  const [columns, rows] = [
    Math.min(COLUMNS, different.length),
    Math.ceil(different.length / COLUMNS),
  ];
  elements.forEach(({ style }, i) => {
    const at = different.indexOf(keys[i]);
    const [column, row] = [at % COLUMNS, Math.floor(at / COLUMNS)];
    style.backgroundImage = `url(${JSON.stringify(address)})`;
    style.backgroundSize = `${100 * columns}% ${100 * rows}%`;
    style.backgroundPosition = `${position(column, columns)} ${position(row, rows)}`;
  });
}

const position = (i, n) => `${n > 1 ? (100 * i) / (n - 1) : 0}%`;

const isInView = (photo) => photo.getBoundingClientRect().top < innerHeight;

/** Return a promise that ends when a photo has loaded or failed. */
const settled = (photo) =>
  photo.naturalWidth ||
  new Promise((done) => {
    for (const end of ["load", "error"]) photo.addEventListener(end, done, { once: true });
  });
