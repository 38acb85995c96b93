// Point at a word, tap it, or give it the focus, to see it alone in both images, and to have the
// commands for it. Without this script, the page shows all words together.
const maps = [...document.querySelectorAll(".stage .map")];
const rows = [...document.querySelectorAll(".word")];
const statusLine = document.querySelector(".status");
const allWords = maps.map((map) => [map.style.getPropertyValue("--mask"), map.ariaLabel]);
const allWordsStatus = statusLine.textContent;
const nowhere = "linear-gradient(#0000, #0000)";

function show(row) {
  maps.forEach((map, i) => {
    const own = row && row.style.getPropertyValue(`--${map.dataset.side}`);
    const role = map.dataset.side === "hit" ? "hit" : "query";
    const label = own ? `Where ${row.dataset.label} is in the ${role}` : `${row?.dataset.label} is not in it`;
    map.style.setProperty("--mask", row ? own || nowhere : allWords[i][0]);
    map.ariaLabel = row ? label : allWords[i][1];
    for (const pin of map.querySelectorAll(".pin")) {
      pin.classList.toggle("off", row !== null && pin.dataset.number !== row.dataset.number);
    }
  });
  statusLine.textContent = row ? `In colour: only ${row.dataset.label}` : allWordsStatus;
  for (const other of rows) other.classList.toggle("on", other === row);
  if (row?.dataset.without) {
    const [without, must] = document.querySelectorAll(".change code");
    [without.textContent, must.textContent] = [row.dataset.without, row.dataset.must];
    for (const name of document.querySelectorAll(".chosen")) name.textContent = row.dataset.label;
  }
}

for (const row of rows) {
  row.addEventListener("pointerenter", () => show(row));
  row.addEventListener("pointerleave", () => show(document.activeElement.closest(".word")));
  row.addEventListener("focusin", () => show(row));
  row.addEventListener("click", (event) => {
    // Not every browser gives the focus to what a finger touches.
    if (!event.target.closest("a, button, summary, code")) row.focus({ preventScroll: true });
  });
  row.addEventListener("focusout", () => show(null));
}
