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
  for (const row of graph.querySelectorAll(".row[tabindex]")) {
    for (const event of ["mouseenter", "focus", "click"]) row.addEventListener(event, () => pick(row));
  }
  graph.addEventListener("mouseleave", () => pick(null));
}
