// The panels open and close without this script. It adds: arrow keys go to the next hit.
const panels = [...document.querySelectorAll(".panel")];

document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const open = panels.findIndex((panel) => panel.matches(":popover-open"));
  const next = panels[open + step];
  if (!step || open < 0 || !next) return;
  event.preventDefault();
  panels[open].hidePopover();
  next.showPopover();
});
