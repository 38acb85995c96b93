// Point at a group, tap it, or give it the focus, to see it alone in both photos. Without this
// script, a page shows all groups together.
for (const explained of document.querySelectorAll(".explained")) {
  const maps = [...explained.querySelectorAll(".map")];
  const rows = [...explained.querySelectorAll(".group")];
  const statusLine = explained.querySelector(".status");

  const show = (row) => {
    const label = row?.dataset.label;
    for (const map of maps) {
      const { side } = map.dataset;
      const value = (name) => row.style.getPropertyValue(name) || "linear-gradient(#0000, #0000)";
      map.style.setProperty("--mask", row ? value(`--${side}`) : "var(--all)");
      map.style.setProperty("--edge", row ? value(`--${side}-edge`) : "var(--all-edge)");
      const role = side === "hit" ? "hit" : "query";
      map.ariaLabel = `${row ? `Where ${label} is` : "What matched"} in the ${role}`;
    }
    statusLine.textContent = row ? `Bright: only ${label}` : "Bright: what matched";
    for (const other of rows) other.classList.toggle("on", other === row);
  };

  for (const row of rows.filter((row) => row.dataset.label)) {
    row.addEventListener("pointerenter", () => show(row));
    row.addEventListener("pointerleave", () => show(null));
    row.addEventListener("focusin", () => show(row));
    row.addEventListener("focusout", () => show(null));
    row.addEventListener("click", () => row.focus({ preventScroll: true })); // iOS: a tap does not
  }
}
