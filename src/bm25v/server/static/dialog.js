// Dialogs are part of the address: they close by going back.
import { h, icon } from "./dom.js";
import { leave } from "./state.js";

/** Open a dialog that closes by going back. */
export function open(dialog, name) {
  dialog.oncancel = (event) => {
    event.preventDefault();
    leave(name);
  };
  dialog.onclick = (event) => {
    if (event.target === dialog) leave(name); // beside it
  };
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** Return the head of a dialog: its title, and a button that closes it. */
export function head(text, name, id, ...before) {
  return h(
    "div.dialog-head",
    h("h1", { id, tabindex: -1 }, before, text),
    h("button.icon-button", { "aria-label": "Close", onclick: () => leave(name) }, icon("close")),
  );
}
