// Requests to this server: JSON and images, with the token if there is one; errors in plain words.
import { announce, byId, h } from "./dom.js";
import { findUpload } from "./uploads.js";

export const PAGE = 24; // hits of one request

const TOKEN = "bm25v-token";
const ATTEMPTS = 4; // while the server is busy
const KEPT_IMAGES = 1500; // blob URLs, if there is a token

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const headers = () => {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
};
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

/**
 * Return the response to a request, a POST if it has a body; ask for a token, and try again while
 * the server is busy.
 */
export async function send(path, { json, form, signal, method } = {}) {
  const body = json ? JSON.stringify(json) : form;
  const type = json ? { "Content-Type": "application/json" } : {};
  method ??= body ? "POST" : "GET";
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, { method, body, signal, headers: { ...headers(), ...type } });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server does not answer. Is “bm25v serve” still running?");
    }
    if (response.ok) return response;
    if (response.status === 401) {
      await signIn();
      continue;
    }
    const problem = await response.json().catch(() => ({}));
    const wait = Number(response.headers.get("Retry-After"));
    if (wait && attempt < ATTEMPTS) {
      announce("The server is busy. Trying again.");
      await pause(wait);
      continue;
    }
    throw new ServerError(inPlainWords(response.status, problem), response.status);
  }
}

export async function getJson(path, options) {
  return (await send(path, options)).json();
}

function inPlainWords(status, problem) {
  const detail = problem.detail ?? `The server answers with status ${status}.`;
  const isAddress = /^[a-z]+:\/\//.test(detail);
  const sentence = isAddress ? detail : detail.charAt(0).toUpperCase() + detail.slice(1);
  if (problem.type === "urn:bm25v:busy") {
    return `The server is busy with other images. ${sentence}.`;
  }
  if (status === 413) return `The image is too large. ${sentence}.`;
  return `${sentence}${/[.!?]$/.test(sentence) ? "" : "."}`;
}

let signingIn = null;

/** Ask for the token until the server accepts it. */
function signIn() {
  signingIn ??= askForToken().finally(() => (signingIn = null));
  return signingIn;
}

async function askForToken() {
  const dialog = byId("sign-in");
  byId("sign-in-problem").textContent = sessionStorage.getItem(TOKEN)
    ? "The token is not the right one."
    : "";
  if (!dialog.open) dialog.showModal();
  dialog.oncancel = (event) => event.preventDefault();
  for (;;) {
    await new Promise((done) => {
      byId("sign-in-form").onsubmit = (event) => {
        event.preventDefault();
        done();
      };
    });
    const token = byId("token").value.trim();
    // A header takes visible characters only; no token has others.
    const isSendable = /^[!-~]+$/.test(token);
    const response =
      isSendable &&
      (await fetch("/v1/stats", { headers: { Authorization: `Bearer ${token}` } }).catch(
        () => null,
      ));
    if (response && response.ok) {
      sessionStorage.setItem(TOKEN, token);
      byId("token").value = "";
      dialog.close();
      return;
    }
    byId("sign-in-problem").textContent =
      response === null ? "The server does not answer." : "The token is not the right one.";
  }
}

const blobs = new Map(); // request → promise of a blob URL, oldest first

/** Return a promise of an address that an image can have: itself, or a blob if a token is needed. */
export async function imageAddress(path) {
  const isOpen = path.startsWith("blob:") || !sessionStorage.getItem(TOKEN);
  return isOpen ? path : blobAddress(path);
}

/** Return a promise of the blob URL of an image, which is loaded once. */
export function blobAddress(path, options = {}) {
  const key = JSON.stringify([path, options.json]);
  if (!blobs.has(key)) {
    const loaded = send(path, options).then(async (response) =>
      URL.createObjectURL(await response.blob()),
    );
    loaded.catch(() => blobs.delete(key));
    blobs.set(key, loaded);
    if (blobs.size > KEPT_IMAGES) {
      const [oldest, address] = blobs.entries().next().value;
      blobs.delete(oldest);
      address.then(URL.revokeObjectURL, () => {});
    }
  }
  return blobs.get(key);
}

/** Load an image into an element; if there is none, show its name instead. */
export function loadImage(img, path) {
  const fail = () => img.replaceWith(h("span.unreadable", img.alt));
  img.addEventListener("error", fail, { once: true });
  imageAddress(path).then(
    (address) => (img.src = address),
    () => img.dispatchEvent(new Event("error")),
  );
  return img;
}

export const thumbnail = (id, size) => `/v1/images/${id}/thumbnail?size=${size}`;

/** Return a small image of the gallery, no side longer than `size`. */
export const photo = (id, size, attributes) => loadImage(h("img", attributes), thumbnail(id, size));

/** Return the query of a state, without the images of this machine. */
export const toQuery = (state) => ({
  images: state.image,
  must: state.must,
  without: state.without,
  boost: state.boost,
  like: state.like,
  unlike: state.unlike,
  folder: state.folder ? [state.folder] : [],
  merge_copies: true,
  ...(state.text && { text: state.text }),
  ...(state.region && { region: state.region }),
  ...(state.date && { date: state.date }),
});

/** Return the options of a request for what a state means: JSON, or a form with the images. */
export function toRequest(state, more = {}) {
  const query = { ...toQuery(state), ...more };
  if (!state.upload.length) return { json: query };
  return { form: toForm(state.upload.map(findUpload), query) };
}

/** Return a form with images of this machine. */
export function toForm(files, query) {
  const form = new FormData();
  for (const file of files) form.append("image", file);
  form.append("query", JSON.stringify(query));
  return form;
}
