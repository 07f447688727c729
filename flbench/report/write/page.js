"use strict";

// A column is sorted by its button: numbers from the best known end first, words from A; a third click restores the order.
// Positions without a value stand last whichever way.
function sortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const next = now === null ? first : now === first ? second : null;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(original, column, next) : original));
    });
  });
}

function sorted(rows, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const keys = new Map(rows.map((row) => [row, key(row.cells[column])]));
  return [...rows].sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
  });
}

function key(cell) {
  if (cell.dataset.order !== undefined) return Number(cell.dataset.order);
  const text = cell.textContent.trim();
  return cell.classList.contains("number") || text === "–" ? null : text;
}

// The runs behind a cell, on hover, on keyboard focus and on a tap.
function tips() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);
  const show = (event) => {
    const cell = event.target.closest("[data-tip]");
    tip.hidden = !cell;
    if (!cell) return;
    tip.textContent = cell.dataset.tip;
    const place = cell.getBoundingClientRect();
    const below = place.bottom + 6 + tip.offsetHeight < window.innerHeight;
    tip.style.top = `${below ? place.bottom + 6 : Math.max(4, place.top - 6 - tip.offsetHeight)}px`;
    tip.style.left = `${Math.max(4, Math.min(place.left, window.innerWidth - tip.offsetWidth - 4))}px`;
  };
  for (const kind of ["mouseover", "focusin", "click"]) document.addEventListener(kind, show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
}

document.querySelectorAll("table").forEach(sortable);
tips();
