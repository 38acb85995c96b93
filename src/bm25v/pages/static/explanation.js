// Point at a word, or give it the focus, to see it alone in both images. Without this script, each
// row of the page still shows where its word is.
const stage = document.querySelector(".stage");
const statusLine = stage.querySelector(".status");
const maps = [...stage.querySelectorAll(".map")];
const rows = [...document.querySelectorAll(".word")];
const stretches = [...document.querySelectorAll("[data-row]")];
const heat = (map) => map.style.getPropertyValue("--heat");
const allWords = maps.map((map) => [heat(map), map.ariaLabel]);
const allWordsStatus = statusLine.textContent;
const noHeat = ["linear-gradient(#0000, #0000)", "The word is not in it"];

function show(row) {
  maps.forEach((map, i) => {
    const own = row && row.querySelector(`.map[data-side="${map.dataset.side}"]`);
    const [layer, label] = own ? [heat(own), own.ariaLabel] : row ? noHeat : allWords[i];
    map.style.setProperty("--heat", layer);
    map.ariaLabel = label;
  });
  statusLine.textContent = row ? `Only ${row.dataset.label}` : allWordsStatus;
  for (const other of rows) other.classList.toggle("on", other === row);
  for (const stretch of stretches) stretch.classList.toggle("on", rows[stretch.dataset.row] === row);
}

function showOnPointer(element, row) {
  element.addEventListener("pointerenter", () => show(row));
  element.addEventListener("pointerleave", () => show(document.activeElement.closest(".word")));
}

for (const row of rows) {
  showOnPointer(row, row);
  row.addEventListener("focusin", () => show(row));
  row.addEventListener("focusout", () => show(null));
}
for (const stretch of stretches) showOnPointer(stretch, rows[stretch.dataset.row]);
