"use strict";

// A column is sorted by its button: numbers from the best known end first, words from A; a third click restores the order.
// Positions without a value stand last whichever way.
const original = new WeakMap(); // the rows of each table that was sorted
document.addEventListener("click", ({ target }) => {
  const head = target.closest("main > .scroll th[scope=col], details > .scroll th[scope=col]");
  if (!head) return;
  const table = head.closest("table");
  if (!original.has(table)) original.set(table, [...table.tBodies[0].rows]);
  const first = head.classList.contains("number") ? "descending" : "ascending";
  const second = first === "ascending" ? "descending" : "ascending";
  const now = head.getAttribute("aria-sort");
  const next = now === null ? first : now === first ? second : null;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  if (next) head.setAttribute("aria-sort", next);
  table.tBodies[0].append(...(next ? sorted(original.get(table), head.cellIndex, next) : original.get(table)));
});

function sorted(rows, column, direction) {
  const sign = direction === "ascending" ? 1 : -1;
  const keys = new Map(rows.map((row) => [row, key(row.cells[column])]));
  const { compare } = new Intl.Collator("en", { numeric: true });
  return [...rows].sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : compare(x, y));
  });
}

function key(cell) {
  if (cell.dataset.order !== undefined) return Number(cell.dataset.order);
  const text = cell.textContent.trim();
  return cell.classList.contains("number") || text === "–" ? null : text;
}

// What the marks of a cell mean, and the runs behind it: on hover, on keyboard focus and on a tap.
{
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);

  const tipOf = (cell) => {
    const marks = JSON.parse(cell.closest("tbody")?.parentNode.dataset.marks ?? "{}");
    const has = (mark) => (mark === "bold" ? cell.querySelector("strong") : cell.textContent.includes(mark));
    const meanings = Object.keys(marks).filter(has).map((mark) => `${mark}: ${marks[mark]}`);
    return [...meanings, ...(cell.dataset.tip ? [cell.dataset.tip] : [])].join("\n");
  };
  let shown = null; // the cell of the tip
  const show = (cell) => {
    const text = cell ? tipOf(cell) : "";
    shown?.removeAttribute("aria-describedby");
    shown = text ? cell : null;
    tip.hidden = !text;
    if (!text) return;
    cell.setAttribute("aria-describedby", "tip");
    tip.textContent = text;
    const place = cell.getBoundingClientRect();
    tip.hidden = place.bottom < 0 || place.top > window.innerHeight; // a focused cell that was scrolled away
    const below = place.bottom + 6 + tip.offsetHeight < window.innerHeight;
    tip.style.top = `${below ? place.bottom + 6 : Math.max(4, place.top - 6 - tip.offsetHeight)}px`;
    tip.style.left = `${Math.max(4, Math.min(place.left, window.innerWidth - tip.offsetWidth - 4))}px`;
  };
  const cellOf = (target) => target.closest?.("[data-tip], [data-marks] tbody :is(td, th)") ?? null;
  for (const kind of ["mouseover", "focusin", "click"]) document.addEventListener(kind, ({ target }) => show(cellOf(target)));
  document.addEventListener("scroll", () => show(cellOf(document.activeElement)), true); // a focused cell keeps its tip
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") show(null); });
}

// In a table the arrow keys go from cell to cell: it is one stop of the Tab key, whatever its size.
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
document.addEventListener("keydown", (event) => {
  const step = STEPS[event.key], at = event.target.closest(".scroll, .scroll tbody :is(td, th)");
  if (!step || !at || event.target.closest("button, svg")) return;
  const rows = [...at.closest(".scroll").querySelectorAll("tbody tr:not([hidden])")];
  const isCell = at.matches("td, th"), row = isCell ? rows.indexOf(at.parentNode) + step[0] : 0;
  const cell = rows[row]?.cells[isCell ? at.cellIndex + step[1] : 0];
  event.preventDefault();
  if (!cell) return;
  cell.tabIndex = -1;
  cell.focus();
});

// Wide tables scroll: the first column stays, the second too where both fit, and a soft edge says that there is more. The heads of
// all others stay below the search while the page scrolls.
{
  const width = (element) => element.getBoundingClientRect().width;
  const fit = (scroll) => {
    const [first, second] = scroll.querySelectorAll("table.pair > thead th");
    const fits = second && width(first) + width(second) < 0.55 * scroll.clientWidth;
    scroll.style.setProperty("--second", fits ? `${width(first)}px` : "auto");
    const stays = width(scroll.querySelector("thead th")) + (fits ? width(second) : 0);
    scroll.style.scrollPaddingLeft = `${stays}px`; // a focused cell is beside the columns that stay
    scroll.classList.toggle("narrow", scroll.querySelector("table").offsetWidth <= scroll.clientWidth);
    scroll.classList.toggle("more", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
  };
  const seen = new ResizeObserver((entries) => entries.forEach((entry) => fit(entry.target)));
  document.querySelectorAll(".scroll").forEach((scroll) => seen.observe(scroll));
  document.addEventListener("scroll", ({ target }) => { if (target.classList?.contains("scroll")) fit(target); }, true);
}

// The search: rows, texts and sections stay that have all of its words, in themselves or in the titles above them.
{
  const MOST_OPEN = 200; // rows up to which the folds around them open
  const main = document.querySelector("main");
  const box = document.createElement("search"), count = document.createElement("output"), input = document.createElement("input");
  Object.assign(input, { type: "search", placeholder: "Search: words, numbers, run ids", title: "the key / leads here" });
  input.setAttribute("aria-label", "search this page");
  input.dataset.key = "search";
  box.append(input, count);
  (main.querySelector("nav") ?? main.querySelector("h1"))?.after(box);

  let parts; // what is found: an element, its text, and the elements that are shown with it
  const wereOpen = new Map(); // the folds before the search

  const textOf = (element) => `${element.textContent} ${[...element.querySelectorAll("[data-tip]")].map((one) => one.dataset.tip).join(" ")} `;

  function read(parent, owners, title) {
    let path = [];
    for (const element of parent.children) {
      if (element.matches("h1, nav, search, summary, script, #page-updated")) continue;
      const level = Number(/^H([2-6])$/.exec(element.tagName)?.[1] ?? 0);
      if (level) path = [...path.filter((one) => one.level < level), { level, element }];
      const above = [...owners, ...path.map((one) => one.element).filter((one) => one !== element)];
      const titles = [title, ...path.map((one) => one.element.textContent)].join(" ");
      const add = (one, more, head = "") => parts.push({ element: one, owners: [...above, ...more], text: `${titles} ${head} ${textOf(one)}`.toLowerCase() });
      if (element.matches("details")) {
        wereOpen.set(element, element.open);
        read(element, [...above, element], `${titles} ${element.firstElementChild.textContent}`);
      } else if (element.matches(".scroll")) {
        const caption = element.previousElementSibling?.matches("p") ? [element.previousElementSibling] : [];
        const { tHead, tBodies } = element.querySelector("table");
        for (const row of tBodies[0].rows) add(row, [element, ...caption], tHead.textContent);
      } else if (element.matches("ul")) {
        for (const item of element.children) add(item, [element]);
      } else add(element, []);
    }
  }

  function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length && !parts) return;
    if (!parts) { parts = []; read(main, [], ""); }
    const found = parts.filter(({ text }) => words.every((word) => text.includes(word)));
    const shown = new Set(found.flatMap(({ element, owners }) => [element, ...owners]));
    for (const { element, owners } of parts) for (const one of [element, ...owners]) one.hidden = !shown.has(one);
    const rows = found.filter(({ element }) => element.matches("tr")).length, texts = found.length - rows;
    const counts = [[rows, "row"], [texts, "text"]].filter(([n]) => n).map(([n, what]) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`);
    for (const [fold, was] of wereOpen) fold.open = words.length ? rows <= MOST_OPEN : was;
    count.textContent = !words.length ? "" : found.length ? counts.join(", ") : "nothing has all of these words";
    if (!words.length) parts = undefined;
    history.replaceState({ ...history.state, search: input.value }, "");
    window.dispatchEvent(new Event("resize")); // charts that were hidden have a width again
  }

  const clear = () => { input.value = ""; search(); };
  let wait;
  input.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(search, 100); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === input) clear();
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    input.focus();
  });
  document.addEventListener("click", ({ target }) => { if (parts && target.closest('a[href^="#"]')) clear(); }); // it may lead to hidden text
  input.value = history.state?.search ?? "";
  search();
}
