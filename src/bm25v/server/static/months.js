// Months beside the grid: a list of years and months on wide screens, a menu on narrow ones.
import { h, thousands } from "./dom.js";

const toName = (month) =>
  new Date(2000, Number(month) - 1).toLocaleDateString("en-US", { month: "short" });

/** Say where each month starts in the grid; no months if they do not add up to all images. */
export function locateMonths(months, total) {
  let start = 0;
  const located = months.map(({ month, n_images }) => {
    const [year, number] = month.split("-");
    const part = { key: month, year, number, start, n: n_images };
    start += n_images;
    return part;
  });
  return start === total ? located : []; // else images were added between two requests
}

/** Return the name of a month, such as "Jun 2023". */
export const monthName = ({ year, number }) => `${toName(number)} ${year}`;

/**
 * Return the list and the menu of months, and a function that marks the month of an image.
 * `goTo` scrolls to an image, by its position.
 */
export function makeMonths(months, goTo) {
  if (months.length < 2) return { mark: () => {} };
  const years = Map.groupBy(months, ({ year }) => year);
  const buttons = new Map();
  const list = h(
    "nav.months",
    { "aria-label": "Months" },
    [...years].map(([year, parts]) => {
      const n = parts.reduce((sum, part) => sum + part.n, 0);
      return h(
        "section",
        { "data-year": year },
        monthButton(year, n, () => goTo(parts[0].start)),
        h(
          "div",
          parts.map((part) => {
            const button = monthButton(toName(part.number), part.n, () => goTo(part.start));
            buttons.set(part, button);
            return button;
          }),
        ),
      );
    }),
  );
  const menu = h(
    "select",
    { "aria-label": "Month", onchange: () => goTo(months[menu.selectedIndex].start) },
    months.map((part) => h("option", `${monthName(part)} (${thousands(part.n)})`)),
  );
  let current = null;
  const mark = (index) => {
    const next = months.findLast(({ start }) => start <= index);
    if (next === current) return;
    buttons.get(current)?.removeAttribute("aria-current");
    current = next;
    menu.selectedIndex = months.indexOf(current);
    for (const section of list.children)
      section.classList.toggle("is-open", section.dataset.year === current.year);
    const button = buttons.get(current);
    button.setAttribute("aria-current", "true");
    list.scrollTop = button.offsetTop - list.clientHeight / 2;
  };
  return { list, menu, mark };
}

const monthButton = (name, n, onclick) =>
  h("button", { onclick }, h("span", name), " ", h("small", thousands(n)));
