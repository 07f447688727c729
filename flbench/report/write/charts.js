
// Charts of runs: curves over rounds, the leaderboard as a map, settings and results. A choice in one applies to all, and
// stays in history.state when the page loads itself again. Names become text, never HTML.
{
  const root = document.getElementById("charts-area");
  const { groups, colors } = JSON.parse(document.getElementById("charts-data").textContent);
  const ROWS = 15; // of the list of cells
  const WITH_SEEDS = 12; // cells up to which the curves of their seeds are drawn
  const CROWD = 60; // cells above which the lines are lighter
  const NOTHING = { picked: {}, bound: null, cell: null };
  let choice = { group: 0, color: null, ...NOTHING, ...history.state?.charts };
  let group;

  function element(space, tag, attributes, children) {
    const made = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "style") made.style.cssText = value; // the page's policy forbids the attribute
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }
  const html = (tag, attributes, ...children) => element("http://www.w3.org/1999/xhtml", tag, attributes, children);
  const svg = (tag, attributes, ...children) => element("http://www.w3.org/2000/svg", tag, attributes, children);

  function choose(change) {
    choice = { ...choice, ...change };
    history.replaceState({ ...history.state, charts: choice }, "");
    draw();
  }

  const nameOf = (cell) => group.axes.map((axis, i) => axis.long[cell.at[i]]).join(", ") || "all runs";
  const resultOf = (cell) => cell.value ?? cell.mean.findLast((value) => value !== null) ?? null;
  const written = (value) => (value === null ? "–" : group.percent ? value.toFixed(2) : String(value));
  const better = (a, b) => (group.lower ? a - b : b - a);
  const isPicked = (cell) =>
    group.axes.every((axis, i) => !choice.picked[axis.name]?.length || choice.picked[axis.name].includes(axis.labels[cell.at[i]])) &&
    (choice.bound === null || (resultOf(cell) !== null && better(resultOf(cell), choice.bound) <= 0));
  const isChosen = (cell) => choice.cell === nameOf(cell);
  const colorable = () => group.axes.filter((axis) => axis.labels.length <= colors.length);
  const colorAxis = () => colorable().find((axis) => axis.name === choice.color) ?? group.axes[group.color];
  const colorAt = (place) => {
    const color = colors[colorAxis()?.colors[place] ?? 0];
    return color === "#000000" ? "var(--ink)" : color;
  };
  const colorPlace = (cell) => cell.at[group.axes.indexOf(colorAxis())] ?? 0;
  const colorOf = (cell) => colorAt(colorPlace(cell));
  const toggleCell = (cell) => choose({ cell: isChosen(cell) ? null : nameOf(cell) });

  // What a mouse or the keyboard points at stands out in every chart.
  function pointing(cell) {
    const at = group.cells.indexOf(cell);
    const point = (on) => () => {
      root.classList.toggle("pointing", on);
      root.querySelectorAll(`[data-cell="${at}"]`).forEach((one) => one.classList.toggle("on", on));
    };
    return { "data-cell": at, onmouseenter: point(true), onmouseleave: point(false), onfocus: point(true), onblur: point(false) };
  }

  const resultText = (cell) => cell.text || (resultOf(cell) === null ? "–" : `now ${written(resultOf(cell))}`);
  const tipOf = (cell, lines = []) => [...new Set([nameOf(cell), resultText(cell), ...lines, cell.gaps])].filter(Boolean).join("\n");

  function niceTicks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
    const ticks = [];
    for (let at = Math.ceil(low / step); at * step <= high + step / 1e6; at++) ticks.push(Number((at * step).toPrecision(6)));
    return ticks;
  }

  function rangeOf(values) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const room = Math.max((high - low) * 0.05, group.percent ? 1 : Math.abs(high) * 0.01 || 1e-9);
    return group.percent ? [Math.max(0, low - room), Math.min(100, high + room)] : [low - room, high + room];
  }

  function curves(width) {
    const cells = group.cells.filter((cell) => isPicked(cell) && cell.rounds.length);
    if (!cells.length) return html("p", {}, "No recorded rounds yet.");
    const height = Math.min(380, Math.max(240, width * 0.42));
    const left = 46, right = width - 12, top = 10, bottom = height - 38;
    const last = Math.max(1, ...cells.map((cell) => cell.rounds.at(-1)));
    const seeds = (cell) => (cells.length <= WITH_SEEDS || isChosen(cell) || !cell.mean.length ? cell.runs : []);
    const values = cells.flatMap((cell) => [cell.mean, ...seeds(cell).map((run) => run[2])]).flat().filter((value) => value !== null);
    const [low, high] = rangeOf(values);
    const x = (round) => left + ((right - left) * round) / last;
    const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low);
    const path = (cell, series) => {
      let pen = "M", text = "";
      series.forEach((value, i) => {
        if (value === null) { pen = "M"; return; }
        text += `${pen}${x(cell.rounds[i]).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      });
      return text;
    };
    const line = (cell) => {
      const at = pointing(cell), tip = tipOf(cell);
      const dashes = cell.running ? "5 3" : null;
      const drawn = [svg("path", { class: "reach", d: path(cell, cell.mean) })];
      for (const run of seeds(cell)) drawn.push(svg("path", { class: "seed", d: path(cell, run[2]), "stroke-dasharray": run[1] === "running" ? "3 2" : null }));
      drawn.push(svg("path", { class: "mean", d: path(cell, cell.mean), "stroke-dasharray": dashes }));
      const end = cell.mean.length - 1;
      if (end >= 0) drawn.push(svg("circle", { cx: x(cell.rounds[end]), cy: y(cell.mean[end]), r: 2.5, fill: colorOf(cell) }));
      return svg("g", { ...at, class: isChosen(cell) ? "line chosen" : "line", stroke: colorOf(cell), "data-tip": tip, onclick: () => toggleCell(cell) }, ...drawn);
    };
    const grid = niceTicks(low, high, 6).flatMap((at) => [
      svg("line", { class: "grid", x1: left, x2: right, y1: y(at), y2: y(at) }),
      svg("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, String(at)),
    ]);
    const rounds = niceTicks(0, last, width < 500 ? 4 : 8).map((at) => svg("text", { x: x(at), y: bottom + 16, "text-anchor": "middle" }, String(at)));
    return svg("svg", { width, height, class: cells.length > CROWD ? "crowd" : null, role: "img", "aria-label": `${group.metric} over rounds of ${cells.length} cells` },
      ...grid, ...rounds, svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "round"),
      ...cells.map(line));
  }

  function legend() {
    const axis = colorAxis();
    if (!axis) return "";
    const select = html("select", { "data-key": "color", onchange: (event) => choose({ color: event.target.value }) },
      ...colorable().map((one) => html("option", { value: one.name, ...(one === axis ? { selected: "" } : {}) }, one.name)));
    const entries = axis.labels.map((label, place) => html("li", {}, html("i", { style: `background: ${colorAt(place)}` }), label));
    return html("div", { class: "legend" }, html("label", {}, "colour: ", select), html("ul", {}, ...entries));
  }

  // Cividis at six equal steps: its lightness rises steadily, so that it is readable in grey and for the colour-blind.
  const CIVIDIS = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [202, 185, 105], [255, 234, 70]];
  function shade(share) {
    const at = Math.min(share * 5, 4.999), low = Math.floor(at);
    const mixed = CIVIDIS[low].map((value, i) => Math.round(value + (at - low) * (CIVIDIS[low + 1][i] - value)));
    return `background: rgb(${mixed}); color: ${share < 0.5 ? "#ffffff" : "#000000"}`;
  }

  function map(table) {
    const values = group.tables.flatMap((one) => one.cells.map((cell) => group.cells[cell[2]].value)).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const share = (value) => (high > low ? (group.lower ? high - value : value - low) / (high - low) : 1);
    const body = table.rows.map((name, r) => html("tr", {}, html("th", { scope: "row" }, name), ...table.cols.map((_, c) => {
      const found = table.cells.find((cell) => cell[0] === r && cell[1] === c);
      if (!found) return html("td", {});
      const cell = group.cells[found[2]];
      const style = cell.value === null ? null : shade(share(cell.value));
      const text = cell.value !== null ? written(cell.value) : resultOf(cell) === null ? cell.gaps : resultText(cell);
      const state = `${isChosen(cell) ? "chosen" : ""} ${isPicked(cell) ? "" : "off"}`;
      return html("td", {}, html("button", { ...pointing(cell), type: "button", class: state, style, "aria-pressed": isChosen(cell),
        "data-key": `map ${nameOf(cell)}`, "data-tip": tipOf(cell, found[3]), onclick: () => toggleCell(cell) }, text));
    })));
    return html("div", {}, table.title ? html("h4", {}, table.title) : "",
      html("div", { class: "scroll" }, html("table", { class: "map" },
        html("thead", {}, html("tr", {}, html("td", {}), ...table.cols.map((name) => html("th", { scope: "col" }, name)))), html("tbody", {}, ...body))));
  }

  // One line a cell through its settings to its result. A value is chosen by a click or with the keyboard, and so is the
  // bound of the results.
  function settings(width) {
    const across = Math.max(width, 100 * (group.axes.length + 1)), height = 300, top = 42, bottom = height - 12, left = 10;
    const step = (across - left - 70) / group.axes.length;
    const results = group.cells.map(resultOf).filter((value) => value !== null);
    const [low, high] = results.length ? rangeOf(results) : [0, 1];
    const yOf = (value) => bottom - ((bottom - top) * (value - low)) / (high - low);
    const yAt = (axis, place) => (axis.labels.length > 1 ? bottom - ((bottom - top) * place) / (axis.labels.length - 1) : (top + bottom) / 2);
    const end = left + step * group.axes.length;
    const lines = group.cells.filter((cell) => resultOf(cell) !== null).map((cell) => {
      // Lines of other colours run beside each other, so that none hides another.
      const beside = 2.5 * (colorPlace(cell) - ((colorAxis()?.labels.length ?? 1) - 1) / 2);
      const places = group.axes.map((axis, i) => `${left + step * i} ${yAt(axis, cell.at[i]) + beside}`);
      const state = `${isPicked(cell) ? "line" : "line off"} ${isChosen(cell) ? "chosen" : ""}`;
      const d = `M${[...places, `${end} ${yOf(resultOf(cell))}`].join("L")}`;
      return svg("g", { ...pointing(cell), class: state, stroke: colorOf(cell), "data-tip": tipOf(cell), onclick: () => toggleCell(cell) },
        svg("path", { class: "reach", d }), svg("path", { class: "mean", d, "stroke-dasharray": cell.value === null ? "5 3" : null }));
    });
    const axes = group.axes.map((axis, i) => {
      const every = Math.ceil(axis.labels.length / 16);
      const ticks = axis.labels.map((label, place) => (place % every ? "" : tickOf(axis, label, left + step * i, yAt(axis, place))));
      return svg("g", {}, svg("line", { class: "axis", x1: left + step * i, x2: left + step * i, y1: top, y2: bottom }),
        svg("text", { class: "title", x: left + step * i - 4, y: 14 }, axis.name), ...ticks);
    });
    const marks = niceTicks(low, high, 5).map((at) => svg("text", { x: end + 8, y: yOf(at) + 4 }, String(at)));
    return html("div", { class: "scroll" }, svg("svg", { width: across, height, class: lines.length > CROWD ? "crowd" : null, role: "group", "aria-label": `settings and ${group.metric}` },
      ...lines, ...axes, svg("line", { class: "axis", x1: end, x2: end, y1: top, y2: bottom }),
      svg("text", { class: "title", x: across - 4, y: 14, "text-anchor": "end" }, group.metric), ...marks, bound(end, low, high, yOf)));
  }

  function tickOf(axis, label, x, y) {
    const now = choice.picked[axis.name] ?? [];
    const toggle = () => choose({ picked: { ...choice.picked, [axis.name]: now.includes(label) ? now.filter((one) => one !== label) : [...now, label] } });
    return svg("g", { class: "tick", role: "button", tabindex: 0, "aria-pressed": now.includes(label), "aria-label": `${axis.name} ${label}`,
      "data-key": `tick ${axis.name} ${label}`, onclick: toggle, onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
      } }, svg("circle", { cx: x, cy: y, r: 4 }), svg("text", { x: x + 7, y: y - 7 }, label.length > 16 ? `${label.slice(0, 15)}…` : label));
  }

  // A handle that keeps the results on its better side; arrow keys move it, Escape takes it back.
  function bound(x, low, high, yOf) {
    const worst = group.lower ? high : low, now = choice.bound ?? worst, step = (high - low) / 20;
    const set = (value) => choose({ bound: (value - worst) * (group.lower ? -1 : 1) <= 0 ? null : Number(Math.min(high, Math.max(low, value)).toPrecision(4)) });
    const drag = (event) => {
      const handle = event.target, box = handle.ownerSVGElement.getBoundingClientRect(), start = event.clientY;
      const valueAt = (y) => low + ((yOf(low) - (y - box.top)) / (yOf(low) - yOf(high))) * (high - low);
      const move = (moved) => handle.setAttribute("transform", `translate(0 ${moved.clientY - start})`);
      const drop = (dropped) => { document.removeEventListener("pointermove", move); set(valueAt(dropped.clientY)); };
      document.addEventListener("pointermove", move);
      document.addEventListener("pointerup", drop, { once: true });
      event.preventDefault();
    };
    return svg("polygon", { class: "bound", points: `${x},${yOf(now)} ${x - 12},${yOf(now) - 7} ${x - 12},${yOf(now) + 7}`, tabindex: 0, role: "slider",
      "aria-label": `${group.lower ? "highest" : "lowest"} ${group.metric} shown`, "aria-valuemin": low, "aria-valuemax": high, "aria-valuenow": now,
      "data-key": "bound", onpointerdown: drag, onkeydown: (event) => {
        const change = { ArrowUp: step, ArrowRight: step, ArrowDown: -step, ArrowLeft: -step }[event.key];
        if (change || event.key === "Escape") { event.preventDefault(); set(change ? now + change : worst); }
      } });
  }

  function list() {
    const rank = (cell) => resultOf(cell) ?? (group.lower ? Infinity : -Infinity);
    const cells = group.cells.filter(isPicked).sort((a, b) => better(rank(a), rank(b)) || 0);
    const rows = cells.slice(0, ROWS).map((cell) => html("tr", {},
      html("td", {}, html("button", { ...pointing(cell), type: "button", class: isChosen(cell) ? "chosen" : "", "aria-pressed": isChosen(cell),
        "data-key": `list ${nameOf(cell)}`, onclick: () => toggleCell(cell) }, nameOf(cell))),
      html("td", { class: "number" }, resultText(cell)),
      html("td", {}, cell.gaps || `${cell.seeds}/${cell.seeds}`)));
    const isNarrowed = cells.length < group.cells.length || choice.cell !== null;
    const clear = html("button", { type: "button", class: "plain", "data-key": "clear", onclick: () => choose(NOTHING) }, "show all");
    return html("div", {},
      html("p", { "aria-live": "polite", class: "count" }, `${cells.length} of ${group.cells.length} cells `, isNarrowed ? clear : ""),
      html("div", { class: "scroll" }, html("table", { class: "list" },
        html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "cell"), html("th", { scope: "col", class: "number" }, group.metric), html("th", { scope: "col" }, "seeds"))),
        html("tbody", {}, ...rows))),
      cells.length > ROWS ? html("p", {}, `and ${cells.length - ROWS} more`) : "");
  }

  function draw() {
    const focused = document.activeElement?.dataset?.key;
    group = groups[choice.group] ?? groups[0];
    root.classList.remove("pointing");
    if (!group) { root.replaceChildren(html("p", {}, "No runs to draw.")); return; }
    const width = root.clientWidth;
    const select = html("select", { "data-key": "group", onchange: (event) => choose({ ...NOTHING, group: event.target.selectedIndex, color: null }) },
      ...groups.map((one) => html("option", { ...(one === group ? { selected: "" } : {}) }, one.title)));
    root.replaceChildren(
      html("p", { class: "group" }, groups.length > 1 ? select : html("strong", {}, group.title)),
      html("h3", {}, `Curves: ${group.metric}${group.percent ? " (%)" : ""} over rounds`), legend(), curves(width),
      html("p", { class: "count" }, "Thick: mean of the finished seeds, or of the running ones; thin: single seeds; dashed: still running."),
      ...(group.tables.length ? [html("h3", {}, "Map: the leaderboard so far"), html("div", { class: "maps" }, ...group.tables.map(map))] : []),
      ...(group.axes.length ? [html("h3", {}, `Settings and ${group.metric}`),
        html("p", { class: "count" }, "Choose values on the axes, or move the handle on the last one: all charts show these cells alone."), settings(width)] : []),
      html("h3", {}, "Cells"), list());
    if (focused) root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  draw();
  let drawnAt = root.clientWidth;
  window.addEventListener("resize", () => { if (root.clientWidth !== drawnAt) { drawnAt = root.clientWidth; draw(); } });
}
