
// The age of the page. While a command writes the page again and again, it loads itself, and keeps the position, the order of
// tables and the focus in history.state.
{
  const note = document.getElementById("page-updated");
  const made = 1000 * Number(note.dataset.at);
  const period = 1000 * Number(note.dataset.period ?? 0);
  const STALE = Math.max(60_000, 5 * period);
  const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  function tell() {
    const seconds = Math.max(0, Math.round((Date.now() - made) / 1000));
    const [unit, size] = UNITS.find(([, size]) => seconds >= size) ?? UNITS.at(-1);
    const count = Math.floor(seconds / size);
    const isStale = period > 0 && Date.now() - made > STALE;
    note.classList.toggle("warning", isStale);
    const what = isStale ? "the command that writes this page may have ended" : period ? "this page follows the runs" : "this page is not written any more";
    note.querySelector("span").textContent = ` ${count} ${unit}${count === 1 ? "" : "s"} ago; ${what}.`;
  }

  // The last heading above the window's top edge: what is above it may become longer or shorter.
  const headings = () => [...document.querySelectorAll("h1, h2, h3")];
  const topOf = (heading) => heading.getBoundingClientRect().top;
  const landmark = () => headings().findLast((heading) => topOf(heading) <= 0) ?? headings()[0];

  function restore({ heading, top, sorted, focus }) {
    const tables = document.querySelectorAll("main > .scroll table");
    for (const [table, column, order] of sorted) {
      const head = tables[table]?.tHead.rows[0].cells[column];
      for (let clicks = 0; head && head.getAttribute("aria-sort") !== order && clicks < 3; clicks++) head.querySelector("button").click();
    }
    if (focus) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    const same = headings().find((one) => one.textContent === heading);
    if (same) window.scrollTo(0, window.scrollY + topOf(same) - top);
  }

  function reload() {
    if (document.hidden || pressed) { window.setTimeout(reload, 500); return; }
    const sorted = [...document.querySelectorAll("main > .scroll table")].flatMap((table, number) =>
      [...table.tHead.rows[0].cells].flatMap((head, column) => (head.ariaSort ? [[number, column, head.ariaSort]] : [])));
    const place = { heading: landmark().textContent, top: topOf(landmark()), sorted, focus: document.activeElement?.dataset?.key ?? null };
    history.replaceState({ ...history.state, place }, "");
    window.location.reload();
  }

  let pressed = false;
  document.addEventListener("pointerdown", () => { pressed = true; });
  for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, () => { pressed = false; });
  history.scrollRestoration = "manual";
  tell();
  if (history.state?.place) restore(history.state.place);
  window.setInterval(tell, 1000);
  if (period) window.setTimeout(reload, period);
}
