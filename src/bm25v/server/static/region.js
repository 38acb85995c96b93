// A box over the image of the query: drawn with a pointer, or moved with the keyboard.
import { announce, h, icon } from "./dom.js";
import { go, withChanges } from "./state.js";

const SMALLEST = 0.04; // of a side; less is a click
const STEP = 0.05;
const MIDDLE = [0.25, 0.25, 0.5, 0.5];

/** Let people draw a box on a photo; return the controls that belong to it. */
export function drawable(photo, region) {
  const box = h("i.query-region", { hidden: !region });
  photo.append(box);
  photo.classList.add("drawable");
  let current = region;
  show(region);

  function show(next) {
    current = next;
    box.hidden = !next;
    if (!next) return;
    ["left", "top", "width", "height"].forEach(
      (side, i) => (box.style[side] = `${100 * next[i]}%`),
    );
  }

  const search = (next) => go(withChanges({ region: next, why: "", word: "" }));

  const share = (event) => {
    const frame = photo.getBoundingClientRect();
    const clip = (value) => Math.min(1, Math.max(0, value));
    return [
      clip((event.clientX - frame.left) / frame.width),
      clip((event.clientY - frame.top) / frame.height),
    ];
  };
  let start = null;
  photo.addEventListener("pointerdown", (event) => {
    if (event.button || (event.pointerType === "touch" && !photo.classList.contains("is-drawing")))
      return;
    event.preventDefault();
    photo.setPointerCapture(event.pointerId);
    start = share(event);
  });
  photo.addEventListener("pointermove", (event) => {
    if (start) show(span(start, share(event)));
  });
  photo.addEventListener("pointerup", (event) => {
    if (!start) return;
    const drawn = span(start, share(event));
    start = null;
    if (drawn[2] < SMALLEST || drawn[3] < SMALLEST) show(region);
    else search(drawn);
  });
  photo.addEventListener("pointercancel", () => ((start = null), show(region)));

  const title = region ? "Change the part" : "Search by a part";
  const text = h("span", title);
  const part = h("button.plain-button.small", icon("box"), text);
  part.addEventListener("click", () => {
    if (photo.classList.contains("is-drawing")) {
      search(current);
      return;
    }
    photo.classList.add("is-drawing");
    text.textContent = "Search by this box";
    photo.tabIndex = 0;
    photo.setAttribute("role", "application");
    photo.setAttribute(
      "aria-label",
      "The part to search by. Arrow keys move it, with Shift they resize it, Enter searches.",
    );
    show(current ?? MIDDLE);
    photo.focus();
    announce(
      "Draw a box on the image, or move it with the arrow keys. Enter searches, Escape ends.",
    );
  });
  photo.addEventListener("keydown", (event) => {
    if (!photo.classList.contains("is-drawing")) return;
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (move) show(shift(current, move, event.shiftKey));
    else if (event.key === "Enter") search(current);
    else if (event.key === "Escape") {
      photo.classList.remove("is-drawing");
      text.textContent = title;
      show(region);
      part.focus();
    } else return;
    event.preventDefault();
  });
  const whole = h("button.plain-button.small", { onclick: () => search(null) }, "Use all of it");
  return h("div.row", part, region && whole);
}

function span([x0, y0], [x1, y1]) {
  return [Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0)];
}

function shift([x, y, width, height], [right, down], isResized) {
  if (isResized) {
    return [
      x,
      y,
      Math.min(1 - x, Math.max(STEP, width + STEP * right)),
      Math.min(1 - y, Math.max(STEP, height + STEP * down)),
    ];
  }
  return [
    Math.min(1 - width, Math.max(0, x + STEP * right)),
    Math.min(1 - height, Math.max(0, y + STEP * down)),
    width,
    height,
  ];
}
