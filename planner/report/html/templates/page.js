"use strict";
// Folds of the op graph: one is shown, chosen by the buttons above it.
for (const bar of document.querySelectorAll(".switch")) {
  const buttons = [...bar.querySelectorAll("button")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) {
        const shown = other === button;
        other.setAttribute("aria-pressed", String(shown));
        document.getElementById(other.dataset.shows).hidden = !shown;
      }
    });
  }
}
// A stage that is pointed at, tapped or focused shows what travels to and from it, and says so below.
for (const graph of document.querySelectorAll(".graph")) {
  const detail = graph.parentElement.querySelector(".detail");
  const idle = detail.textContent;
  const pick = (picked) => {
    graph.classList.toggle("picking", picked !== null);
    const id = picked && picked.dataset.id;
    for (const row of graph.querySelectorAll(".row")) row.classList.toggle("on", row === picked);
    for (const arc of graph.querySelectorAll("path")) {
      arc.classList.toggle("on", picked !== null && (arc.dataset.s === id || arc.dataset.t === id));
    }
    detail.textContent = picked ? picked.dataset.description : idle;
  };
  const rows = [...graph.querySelectorAll(".row[tabindex]")];
  for (const row of rows) {
    for (const event of ["mouseenter", "focus", "click"]) row.addEventListener(event, () => pick(row));
  }
  // One row is in the tab order; the arrow keys go on from it.
  graph.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const shown = rows.filter((row) => !row.hidden);
    const next = step && shown[shown.indexOf(document.activeElement) + step];
    if (!next) return;
    event.preventDefault();
    for (const row of rows) row.tabIndex = row === next ? 0 : -1;
    next.focus();
  });
  graph.addEventListener("mouseleave", () => pick(null));
}
// Search: what does not hold the words is hidden, and what is folded opens where something in it does.
const find = document.getElementById("find");
const places = [...document.querySelectorAll("[data-find]")];
const words = new Map(places.map((place) => [place, (place.dataset.description || place.textContent).toLowerCase()]));
find.addEventListener("input", () => {
  const wanted = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const place of places) {
    place.hidden = !wanted.every((word) => words.get(place).includes(word));
    found += !place.hidden;
    const folded = place.parentElement.closest("details");
    if (folded && wanted.length && !place.hidden) folded.open = true;
  }
  for (const graph of document.querySelectorAll(".graph")) graph.classList.toggle("sought", wanted.length > 0);
  document.querySelector("nav output").textContent = wanted.length ? `${found} of ${places.length}` : "";
});
