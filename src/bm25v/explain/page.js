// Point at a word, or tap it, to see it alone in both pictures. Without this, each row shows it.
const stage = document.querySelector(".stage");
const says = stage.querySelector(".says");
const maps = [...stage.querySelectorAll(".map")];
const rows = [...document.querySelectorAll(".word")];
const stretches = [...document.querySelectorAll("[data-row]")];
const heat = (map) => map.style.getPropertyValue("--heat");
const all = maps.map((map) => [heat(map), map.ariaLabel]);
const allSays = says.textContent;

function show(row) {
  maps.forEach((map, i) => {
    const own = row && row.querySelector(`.map[data-side="${map.dataset.side}"]`);
    const none = ["linear-gradient(#0000, #0000)", "The word is not in it"];
    const [glow, about] = own ? [heat(own), own.ariaLabel] : row ? none : all[i];
    map.style.setProperty("--heat", glow);
    map.ariaLabel = about;
  });
  says.textContent = row ? `Only ${row.dataset.label}` : allSays;
  for (const other of rows) other.classList.toggle("on", other === row);
  for (const one of stretches) one.classList.toggle("on", rows[one.dataset.row] === row);
}

function follow(element, row) {
  element.addEventListener("pointerenter", () => show(row));
  element.addEventListener("pointerleave", () => show(document.activeElement.closest(".word")));
}

for (const row of rows) {
  follow(row, row);
  row.addEventListener("focusin", () => show(row));
  row.addEventListener("focusout", () => show(null));
}
for (const one of stretches) {
  follow(one, rows[one.dataset.row]);
}
