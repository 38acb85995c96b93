// Makes elements, and dialogs, which close by going back. Texts are always texts, never markup.
import { go, leave, withChanges } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
const PATHS = {
  good: "M7 11v9H4v-9zM7 11l4-7c1.6 0 2.4 1.2 2 2.8L12.5 10H19c1.2 0 2 1.1 1.7 2.2l-1.7 6.3c-.2.9-1 1.5-1.9 1.5H7",
  bad: "M17 13V4h3v9zM17 13l-4 7c-1.6 0-2.4-1.2-2-2.8l.5-3.2H5c-1.2 0-2-1.1-1.7-2.2L5 5.5C5.2 4.6 6 4 6.9 4H17",
  search: "M10.5 17a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM15.5 15.5L20 20",
  add: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  up: "M6 15l6-6 6 6",
  check: "M5 12.5l4.5 4.5L19 7.5",
  box: "M4 8V4h4M16 4h4v4M20 16v4h-4M8 20H4v-4",
};

/**
 * Return an element: `h("p.note", { title: "…", onclick: work }, ...children)`. What comes first may
 * be attributes, functions that are called on events, and `style`. Children that are null or false
 * are left out.
 */
export function h(selector, ...content) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  if (tag === "button") element.type = "button";
  const isGiven = content[0]?.constructor === Object;
  const { class: more, ...attributes } = isGiven ? content.shift() : {};
  const names = [...classes, more].filter(Boolean).join(" ");
  if (names) element.className = names;
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (value !== false || name.startsWith("aria-"))
      element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  element.append(
    ...content
      .flat(Infinity)
      .filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** Return a command, and a button that copies it. */
export function command(text, label) {
  const code = h("code", text);
  const copy = async () => {
    await copyText(code);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  const button = h("button", { "aria-label": `Copy: ${label}`, onclick: copy }, "Copy");
  return h("span.command", code, button);
}

/** Select the text of an element, and copy it. */
export async function copyText(element) {
  getSelection().selectAllChildren(element);
  try {
    await navigator.clipboard.writeText(element.textContent);
  } catch {
    document.execCommand("copy"); // over HTTP, pages have no right to the clipboard
  }
}

/** Return links to the addresses that `change` returns for some choices, of which one is `chosen`. */
export const choices = (about, texts, chosen, change) =>
  h(
    "div.choices",
    { role: "group", "aria-label": about },
    Object.entries(texts).map(([key, text]) =>
      h("a", { href: change(key), "aria-current": key === chosen ? "true" : null }, text),
    ),
  );

/** Return a button that calls a function for more of a list, until that returns true: it was all. */
export function moreButton(addMore) {
  const add = async () => {
    button.disabled = true;
    try {
      if (await addMore()) button.remove();
      button.textContent = "Show more";
    } catch (error) {
      announce(error.message);
      button.textContent = `${error.message} Try again`;
    }
    button.disabled = false;
  };
  const button = h("button.plain-button.more", { onclick: add }, "Show more");
  return button;
}

/** Open a dialog, which closes by going back, and say that its content is loading. */
export function openDialog(name, title, about) {
  const dialog = byId(name);
  dialog.oncancel = (event) => {
    event.preventDefault();
    leave(name);
  };
  dialog.onclick = (event) => {
    if (event.target === dialog) leave(name); // beside it
  };
  dialog.onkeydown = null;
  dialog.replaceChildren(dialogHead(name, title), h("p.loading", about));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  return dialog;
}

/** Fill an open dialog: its title, controls beside that, and the other content. */
export function fillDialog(name, title, controls, ...content) {
  byId(name).replaceChildren(dialogHead(name, title, controls), ...content.filter(Boolean));
  byId(`${name}-title`).focus({ preventScroll: true });
}

const dialogHead = (name, title, controls) =>
  h(
    "div.dialog-head",
    h("h1", { id: `${name}-title`, tabindex: -1 }, title),
    controls,
    h("button.icon-button", { "aria-label": "Close", onclick: () => leave(name) }, icon("close")),
  );

/** Return links to what is before and after something in a list; the arrow keys follow them. */
export function neighbourLinks(name, noun, { before, after }, isFree = () => true) {
  const isKnown = (value) => value !== null && value !== undefined;
  byId(name).onkeydown = (event) => {
    const value = { ArrowLeft: before, ArrowRight: after }[event.key];
    if (isKnown(value) && isFree(event)) go(withChanges({ [name]: value }));
  };
  const link = (value, kind, text, about) =>
    isKnown(value) &&
    h(
      `a.plain-button.${kind}`,
      { href: withChanges({ [name]: value }), "aria-label": about },
      text,
    );
  return [
    link(before, "before", "‹", `Previous ${noun} (arrow left)`),
    link(after, "after", "›", `Next ${noun} (arrow right)`),
  ].filter(Boolean);
}

export const byId = (id) => document.getElementById(id);
export const thousands = (n) => n.toLocaleString("en-US");
export const count = (n, noun, plural = `${noun}s`) => `${thousands(n)} ${n === 1 ? noun : plural}`;
export const label = (word) => word.label ?? word.name ?? `word ${word.word}`;
export const fileName = (path) => path.slice(path.lastIndexOf("/") + 1) || path;
export const fileSize = (bytes) =>
  bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
export const minus = (text) => text.replace("-", "−");

/** Return a message in which commands are between backticks. */
export const withCode = (text) =>
  text.split("`").map((part, i) => (i % 2 ? h("code", part) : part));

/** Tell people who do not see the page. */
export function announce(text) {
  byId("live").textContent = text;
}

/** Say what went wrong, above what is there. */
export function showProblem(message, ...controls) {
  byId("problem").replaceChildren(h("p", message), ...controls);
  byId("problem").hidden = false;
}

let working = 0;

/** Show that something takes long, until the promise ends. */
export async function whileBusy(promise) {
  working += 1;
  const timer = setTimeout(() => (byId("busy").hidden = false), 200);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    working -= 1;
    if (!working) byId("busy").hidden = true;
  }
}
