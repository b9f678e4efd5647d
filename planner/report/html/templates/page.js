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
  const descriptions = JSON.parse(document.getElementById(graph.dataset.descriptions).textContent);
  const detail = graph.parentElement.querySelector(".detail");
  const idle = detail.textContent;
  const pick = (id) => {
    graph.classList.toggle("picking", id !== null);
    for (const row of graph.querySelectorAll(".row")) row.classList.toggle("on", id !== null && row.dataset.id === id);
    for (const arc of graph.querySelectorAll("path")) {
      arc.classList.toggle("on", id !== null && (arc.dataset.s === id || arc.dataset.t === id));
    }
    detail.textContent = id === null ? idle : descriptions[id];
  };
  for (const row of graph.querySelectorAll(".row[tabindex]")) {
    row.addEventListener("mouseenter", () => pick(row.dataset.id));
    row.addEventListener("focus", () => pick(row.dataset.id));
    row.addEventListener("click", () => pick(row.dataset.id));
  }
  graph.addEventListener("mouseleave", () => pick(null));
}
