// Images that somebody collects over several searches, and what can be done with them.
import { getJson, photo, send } from "./api.js";
import {
  announce,
  byId,
  copyText,
  count,
  fileName,
  fileSize,
  h,
  icon,
  thousands,
  whileBusy,
} from "./dom.js";
import { newSearch } from "./state.js";

const KEPT = "bm25v-selection"; // in the storage of the tab
const MOST = 1000; // of one request

const selected = new Map(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")); // id → path
const images = new WeakMap(); // element → image
let anchor = null; // {list, position}: where a range starts
const parts = {}; // of the bar, once there is one
let isWritable = null; // promise: whether names can be given

/**
 * Let people select an image by a check mark in its element, or by a key on its link.
 *
 * `between` returns the images from one position to another, if the page does not have all of them.
 */
export function selectable(item, { id, path }, { position, between = listBetween } = {}) {
  isWritable ??= getJson("/v1/stats").then(
    ({ writable }) => writable,
    () => false,
  );
  const choose = async (isRange) => {
    const list = item.parentElement;
    const at = position ?? [...list.children].indexOf(item);
    const from = isRange && anchor?.list === list ? anchor.position : at;
    anchor = { list, position: at };
    if (from === at) change([{ id, path }], !selected.has(id));
    else
      try {
        change(await between(Math.min(from, at), Math.max(from, at), list), true);
      } catch (error) {
        say(error.message);
      }
  };
  const check = h(
    "button.check",
    {
      role: "checkbox",
      tabindex: -1,
      title: "Select (key x). With Shift: all from the last one on.",
      "aria-label": `Select ${fileName(path)}`,
      onclick: (event) => choose(event.shiftKey),
    },
    icon("check"),
  );
  const link = item.querySelector("a");
  link.setAttribute("aria-keyshortcuts", "x");
  link.addEventListener("keydown", (event) => {
    const isKey = event.key.toLowerCase() === "x" || event.key === " ";
    if (!isKey || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose(event.shiftKey);
  });
  item.append(check);
  item.dataset.selectable = "";
  images.set(item, { id, path });
  mark(item);
  if (selected.size && !parts.count) show(); // what was selected before the page was loaded again
}

const listBetween = (from, to, list) =>
  [...list.children].slice(from, to + 1).flatMap((item) => images.get(item) ?? []);

function mark(item) {
  const isOn = selected.has(images.get(item).id);
  item.classList.toggle("is-selected", isOn);
  item.querySelector(".check").setAttribute("aria-checked", isOn);
}

function change(changed, isOn) {
  for (const { id, path } of changed)
    if (!isOn) selected.delete(id);
    else if (selected.size < MOST) selected.set(id, path);
  const isFull = isOn && changed.some(({ id }) => !selected.has(id));
  show();
  say(isFull ? `At most ${thousands(MOST)} images can be selected.` : "");
  announce(`${count(selected.size, "image")} selected`);
}

/** Show what is selected, in the list of images and in the bar. */
function show() {
  sessionStorage.setItem(KEPT, JSON.stringify([...selected]));
  document.querySelectorAll("[data-selectable]").forEach(mark);
  const bar = byId("selection");
  bar.hidden = !selected.size;
  document.body.classList.toggle("has-selection", !bar.hidden);
  if (bar.hidden) return;
  if (!bar.firstChild) fillBar(bar);
  parts.count.textContent = `${thousands(selected.size)} selected`;
}

function fillBar(bar) {
  const button = (text, onclick, kind = "plain-button", title = null) =>
    h("button", { class: kind, title, onclick }, text);
  parts.count = h("span");
  parts.download = button("Download", download, "main-button", "All files in one zip file");
  parts.name = button("Name…", showNaming);
  parts.name.hidden = true;
  parts.said = h("span.said", { role: "status" });
  const wide = (text) => h("span.wide-only", text);
  bar.append(
    button([parts.count, icon("up")], showSelected, "quiet-button", "Show what is selected"),
    parts.download,
    button(["Copy", wide(" paths")], copyPaths),
    parts.name,
    button([icon("close"), wide("Clear")], clear, "quiet-button", "Clear the selection"),
    parts.said,
  );
  isWritable.then((answer) => (parts.name.hidden = !answer));
}

const clear = () => change(listSelected(), false);
const listSelected = () => [...selected].map(([id, path]) => ({ id, path }));

function say(...content) {
  parts.said?.replaceChildren(...content);
}

async function download() {
  parts.download.disabled = true;
  say("Making the zip file…");
  try {
    const json = { ids: [...selected.keys()] };
    const response = await whileBusy(send("/v1/zip", { json }));
    const zip = await whileBusy(response.blob()).catch(() => {
      throw new Error("The download was interrupted. Try again.");
    });
    const address = URL.createObjectURL(zip);
    h("a", { href: address, download: "images.zip" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
    const end = await zip.slice(-128).text(); // a zip file ends with the name of its last file
    say(
      end.includes("missing.txt")
        ? "Some files could not be read: missing.txt in the zip file lists them."
        : `Downloaded: ${fileSize(zip.size)}`,
    );
  } catch (error) {
    say(error.message);
  }
  parts.download.disabled = false;
}

async function copyPaths() {
  const paths = [...selected.values()].join("\n");
  const hidden = { "aria-hidden": "true", style: { "white-space": "pre" } };
  const text = h("span.unseen", hidden, paths);
  document.body.append(text);
  await copyText(text);
  text.remove();
  say(`${count(selected.size, "path")} copied`);
}

function showDialog(...content) {
  const dialog = byId("selected");
  dialog.onclick = (event) => {
    if (event.target === dialog) dialog.close(); // beside it
  };
  dialog.replaceChildren(...content);
  if (!dialog.open) dialog.showModal();
}

const closeDialog = () => byId("selected").close();
const closeButton = (text) => h("button.plain-button", { onclick: closeDialog }, text);

function showSelected() {
  const title = h("h2", { id: "selected-title" });
  const showCount = () => (title.textContent = `${thousands(selected.size)} selected`);
  const row = (image) => {
    const name = fileName(image.path);
    const remove = () => {
      const next = (item.nextElementSibling ?? item.previousElementSibling)?.lastChild;
      change([image], false);
      item.remove();
      showCount();
      if (next) next.focus();
      else closeDialog();
    };
    const about = `Remove ${name} from the selection`;
    const item = h(
      "li",
      { title: image.path },
      photo(image.id, 128, { alt: name, loading: "lazy" }),
      h("button.icon-button", { "aria-label": about, onclick: remove }, icon("close")),
    );
    return item;
  };
  showCount();
  const list = h("ul.selected-list", listSelected().map(row));
  showDialog(title, list, h("div.row", closeButton("Close")));
}

async function showNaming() {
  const { names } = await getJson("/v1/names").catch(() => ({ names: [] }));
  const field = h("input", { maxlength: 100, required: true, autocomplete: "off", list: "given" });
  const options = names.map(({ name }) => h("option", { value: name }));
  const problem = h("p.no-match", { role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    try {
      const { name, n_images: n } = await putName(field.value, [...selected.keys()]);
      const link = h("a", { href: newSearch({ text: name }) }, `“${name}”`);
      say(link, ` is the name of ${count(n, "image")} now.`);
      closeDialog();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const form = h(
    "form",
    { method: "dialog", onsubmit: save },
    h("h2", { id: "selected-title" }, `Name ${count(selected.size, "image")}`),
    h("p", "A search for the name then shows them."),
    h("label", "Name", field),
    h("datalist", { id: "given" }, options),
    problem,
    h("div.row", h("button.main-button", { type: "submit" }, "Name"), closeButton("Cancel")),
  );
  showDialog(form, ...(names.length ? listNames(names) : []));
  field.focus();
}

const putName = (name, ids) =>
  getJson("/v1/names", { method: "PUT", json: { name, ids, add: ids.length > 0 } });

function listNames(names) {
  const row = ({ name, n_images: n }) => {
    let isSure = false;
    const remove = async () => {
      if (isSure)
        await putName(name, []).then(
          () => item.remove(),
          (error) => announce(error.message),
        );
      isSure = true;
      button.textContent = "Really remove this name?";
    };
    const about = `Remove the name ${name}`;
    const button = h("button.text-button", { "aria-label": about, onclick: remove }, "Remove");
    const link = h("a", { href: newSearch({ text: name }), onclick: closeDialog }, name);
    const item = h("li", link, h("small", thousands(n)), button);
    return item;
  };
  return [h("h3", "Names in this gallery"), h("ul.given-names", names.map(row))];
}
