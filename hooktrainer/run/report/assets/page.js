"use strict";
// Draws the charts of the page; those of a closed section when it is opened. A chart is drawn again when its width changes.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 200, TOP = 8, BOTTOM = 22, RIGHT = 12, COLOURS = 8, DOTS = 60;
const tip = document.getElementById("tip");
const smoothing = document.getElementById("smoothing");
const drawn = new Map();

function make(parent, name, attributes, text) {
  const made = parent.namespaceURI === SVG || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function shown(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(5)));
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function extent(lists, spare) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) { if (value < low) low = value; if (value > high) high = value; }
  if (low === Infinity) return null;
  if (low === high) { const wide = spare(low); return [low - wide, high + wide]; }
  return [low, high];
}

function smoothed(values, weight) {
  let mean = 0, scale = 0;
  return values.map((value) => { mean = weight * mean + (1 - weight) * value; scale = weight * scale + 1 - weight; return mean / scale; });
}

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) { const middle = (low + high) >> 1; if (steps[middle] < step) low = middle + 1; else high = middle; }
  return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
}

// The length of the start that names have in common, up to a slash: "timing_s/" of timing_s/gen and timing_s/step.
function prefix(names) {
  if (names.length < 2) return 0;
  const slash = names[0].lastIndexOf("/") + 1;
  for (let end = slash; end > 0; end = names[0].lastIndexOf("/", end - 2) + 1)
    if (names.every((name) => name.startsWith(names[0].slice(0, end)))) return end;
  return 0;
}

// The curves of a chart, with the colour and the name of each.
function curvesOf(chart) {
  const byGroup = data.groups.length > 1;
  const shared = byGroup ? 0 : prefix(chart.series.map((place) => data.curves[place].key));
  return chart.series.map((place, index) => {
    const curve = data.curves[place], colour = byGroup ? curve.group : index;
    const seeds = data.groups[curve.group].seeds;
    return { ...curve, steps: data.axes[curve.x], paint: `c${colour % COLOURS}`, dashed: colour >= COLOURS,
      name: byGroup ? data.groups[curve.group].name : curve.key.slice(shared), seeds };
  });
}

function stack(curves) {
  let below = curves[0].steps.map(() => 0);
  return curves.map((curve) => {
    const base = below;
    below = base.map((value, place) => value + curve.y[place]);
    return { ...curve, base, top: below };
  });
}

// Splits points where rows without a finite value lie between them.
function pieces(curve) {
  const breaks = (curve.nonfinite || []).map((range) => range[0]), found = [];
  let piece = [], next = 0;
  curve.steps.forEach((step, place) => {
    let cut = false;
    while (next < breaks.length && breaks[next] < step) { next++; cut = true; }
    if (cut && piece.length) { found.push(piece); piece = []; }
    piece.push(place);
  });
  if (piece.length) found.push(piece);
  return found;
}

function path(piece, x, steps, values) {
  return piece.map((place, n) => `${n ? "L" : "M"}${x(steps[place]).toFixed(1)} ${values[place].toFixed(1)}`).join("");
}

function scales(figure, chart, curves) {
  const stacked = chart.kind === "stack";
  const ys = extent(stacked ? [[0], ...curves.map((curve) => curve.top)] : curves.flatMap((curve) => [curve.y, curve.low || [], curve.high || []]),
    (value) => Math.abs(value) * 0.1 || 1);
  if (ys && ys[0] === -1 && ys[1] === 1 && curves.every((curve) => curve.y.every((value) => value === 0))) ys[0] = 0;
  const marks = curves.flatMap((curve) => (curve.nonfinite || []).flat());
  const xs = extent([...curves.map((curve) => curve.steps), marks], () => 0.5) || [0, 1];
  if (ys && !stacked) { const pad = (ys[1] - ys[0]) * 0.05; ys[0] -= ys[0] >= 0 && ys[0] < pad ? ys[0] : pad; ys[1] += pad; }
  const labels = ys ? ticks(ys[0], ys[1], 5) : [];
  const left = 14 + 6.4 * Math.max(1, ...labels.map((value) => shown(value).length));
  const width = Math.max(160, figure.clientWidth - 24);
  const x = (step) => left + ((step - xs[0]) / (xs[1] - xs[0])) * (width - left - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - ys[0]) / (ys[1] - ys[0])) * (HEIGHT - TOP - BOTTOM);
  return { xs, ys, x, y, left, width, labels };
}

function drawAxes(svg, scale) {
  const bottom = HEIGHT - BOTTOM;
  for (const value of scale.labels) {
    make(svg, "line", { class: "grid", x1: scale.left, x2: scale.width - RIGHT, y1: scale.y(value), y2: scale.y(value) });
    make(svg, "text", { x: scale.left - 6, y: scale.y(value) + 4, "text-anchor": "end" }, shown(value));
  }
  make(svg, "line", { class: "axis", x1: scale.left, x2: scale.width - RIGHT, y1: bottom, y2: bottom });
  const steps = ticks(scale.xs[0], scale.xs[1], Math.max(2, Math.min(8, (scale.width - scale.left) / 80))).filter(Number.isInteger);
  for (const step of steps) make(svg, "text", { x: scale.x(step), y: HEIGHT - 6, "text-anchor": "middle" }, shown(step));
}

function drawMarks(svg, scale, curves, groups) {
  const bottom = HEIGHT - BOTTOM;
  for (const [from, to] of curves.flatMap((curve) => curve.nonfinite || [])) {
    const start = scale.x(from - 0.5), wide = Math.max(2, scale.x(to + 0.5) - start), left = Math.max(scale.left, start);
    make(svg, "rect", { class: "nonfinite", x: left, y: TOP, width: Math.max(2, Math.min(scale.width - RIGHT, start + wide) - left), height: bottom - TOP });
  }
  for (const mark of data.restarts) {
    const at = mark.step + 0.5;
    if (!groups.has(mark.group) || at < scale.xs[0] || at > scale.xs[1]) continue;
    const line = make(svg, "line", { class: "restart", x1: scale.x(at), x2: scale.x(at), y1: TOP, y2: bottom });
    make(line, "title", {}, `${mark.run} was resumed from step ${mark.step}`);
  }
}

function drawCurve(svg, scale, curve, stacked) {
  const { x, y } = scale, weight = Number(smoothing.value);
  const area = (piece, upper, lower, kind) => make(svg, "path", { class: `${kind} ${curve.paint}`,
    d: `${path(piece, x, curve.steps, upper.map(y))}${path([...piece].reverse(), x, curve.steps, lower.map(y)).replace("M", "L")}Z` });
  const line = (piece, values, kind) => make(svg, "path", { class: `line ${curve.paint} ${kind}${curve.dashed ? " dashed" : ""}`, fill: "none",
    d: path(piece, x, curve.steps, values.map(y)) });
  for (const piece of pieces(curve)) {
    if (stacked) { area(piece, curve.top, curve.base, "area"); continue; }
    if (curve.low) area(piece, curve.high, curve.low, "band");
    if (weight > 0) { line(piece, curve.y, "raw"); line(piece, smoothed(curve.y, weight), ""); } else line(piece, curve.y, "");
  }
  if (!stacked && curve.steps.length <= DOTS)
    for (let place = 0; place < curve.steps.length; place++)
      make(svg, "circle", { class: curve.paint, r: curve.steps.length <= 2 ? 3.5 : 2, cx: x(curve.steps[place]), cy: y(curve.y[place]) });
}

function drawLegend(figure, curves, groups) {
  const names = data.groups.length > 1 ? [] : curves;
  const marked = data.restarts.some((mark) => groups.has(mark.group)), bad = curves.some((curve) => curve.nonfinite);
  const rows = Math.max(...curves.map((curve) => curve.rows || 1)), shaded = curves.some((curve) => curve.low);
  const ranged = shaded && (rows > 1 ? `range of ${rows} rows` : curves.every((curve) => curve.seeds === 1) && "range of the step");
  if (names.length < 2 && !marked && !bad && !ranged) return;
  const legend = make(figure, "div", { class: "legend" });
  const item = (kind, text) => { const span = make(legend, "span"); make(span, "i", { class: `swatch ${kind}` }); span.append(text); };
  if (names.length > 1) for (const curve of names) item(curve.paint + (curve.dashed ? " dashed" : ""), curve.name);
  if (ranged) make(legend, "span", {}, `shaded: ${ranged}`);
  if (marked) item("restart", "resumed");
  if (bad) item("bad", "NaN or infinite");
}

function draw(figure) {
  const chart = data.sections[figure.dataset.section][figure.dataset.chart];
  const stacked = chart.kind === "stack", curves = stacked ? stack(curvesOf(chart)) : curvesOf(chart);
  const groups = new Set(curves.map((curve) => curve.group));
  const scale = scales(figure, chart, curves);
  for (const old of figure.querySelectorAll("svg, .legend")) old.remove();
  drawLegend(figure, curves, groups);
  const svg = make(figure, "svg", { viewBox: `0 0 ${scale.width} ${HEIGHT}`, height: HEIGHT, role: "img" });
  const lasts = curves.filter((curve) => curve.y.length).map((curve) => `${curve.name} ${shown(curve.y.at(-1))} at step ${curve.steps.at(-1)}`);
  svg.setAttribute("aria-label", `${chart.title}: ${lasts.join(", ") || "no finite value"}`);
  if (scale.ys) drawAxes(svg, scale);
  drawMarks(svg, scale, curves, groups);
  for (const curve of curves) if (scale.ys) drawCurve(svg, scale, curve, stacked);
  if (!scale.ys) make(svg, "text", { class: "empty", x: scale.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no finite value");
  const cursor = make(svg, "line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  drawn.set(figure, { curves: curves.filter((curve) => curve.steps.length), scale, svg, cursor, width: figure.clientWidth });
}

// Shows the values of a chart at the step nearest to a wanted one.
function point(figure, wanted) {
  const { curves, scale, svg, cursor } = drawn.get(figure);
  if (!curves.length) return;
  const near = curves.map((curve) => curve.steps[nearest(curve.steps, wanted)]);
  const step = near.reduce((best, other) => (Math.abs(other - wanted) < Math.abs(best - wanted) ? other : best));
  figure.dataset.step = step;
  cursor.setAttribute("x1", scale.x(step)); cursor.setAttribute("x2", scale.x(step)); cursor.setAttribute("visibility", "visible");
  tip.replaceChildren();
  const rows = Math.max(...curves.map((curve) => curve.rows || 1));
  make(tip, "div", {}, rows > 1 ? `near step ${step}: mean of ${rows} rows` : `step ${step}`);
  for (const curve of curves) {
    const place = nearest(curve.steps, step), row = make(tip, "div");
    make(row, "i", { class: `swatch ${curve.paint}${curve.dashed ? " dashed" : ""}` });
    const range = curve.low ? ` (${shown(curve.low[place])} – ${shown(curve.high[place])})` : "";
    const other = curve.steps[place] === step ? "" : ` at step ${curve.steps[place]}`;
    row.append(`${curve.name} ${shown(curve.y[place])}${range}${other}`);
  }
  tip.hidden = false;
  const box = svg.getBoundingClientRect(), at = box.left + (scale.x(step) / scale.width) * box.width, wide = tip.offsetWidth;
  const left = at + wide + 20 < document.documentElement.clientWidth ? at + 12 : Math.max(4, at - wide - 12);
  tip.style.left = `${left + window.scrollX}px`;
  tip.style.top = `${box.top + window.scrollY + TOP}px`;
}

function leave(figure) {
  tip.hidden = true;
  if (drawn.has(figure)) drawn.get(figure).cursor.setAttribute("visibility", "hidden");
}

function follow(figure) {
  figure.addEventListener("pointermove", (event) => {
    if (!drawn.has(figure)) return;
    const { scale, svg } = drawn.get(figure), box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * scale.width;
    point(figure, scale.xs[0] + ((at - scale.left) / (scale.width - scale.left - RIGHT)) * (scale.xs[1] - scale.xs[0]));
  });
  figure.addEventListener("pointerleave", () => leave(figure));
  figure.addEventListener("blur", () => leave(figure));
  figure.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !drawn.has(figure)) return;
    event.preventDefault();
    const { curves, scale } = drawn.get(figure);
    const now = Number(figure.dataset.step ?? scale.xs[0]);
    const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
    if (steps.length) point(figure, steps[Math.min(steps.length - 1, Math.max(0, nearest(steps, now) + way))]);
  });
}

const figures = [...document.querySelectorAll("figure.chart")];
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) if (drawn.has(target) && target.clientWidth && drawn.get(target).width !== target.clientWidth) draw(target);
});
for (const figure of figures) {
  if (!figure.closest("details")) draw(figure);
  resized.observe(figure);
  follow(figure);
}
for (const closed of document.querySelectorAll("details")) closed.addEventListener("toggle", () => {
  // One chart at a time, so that the page can be scrolled meanwhile.
  for (const figure of closed.querySelectorAll("figure.chart")) if (!drawn.has(figure)) setTimeout(() => { if (!drawn.has(figure) && closed.open) draw(figure); });
});
smoothing.addEventListener("input", () => { for (const figure of drawn.keys()) draw(figure); });

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});

const filter = document.getElementById("filter");
if (filter) filter.addEventListener("input", () => {
  const part = filter.value.trim().toLowerCase();
  for (const figure of filter.closest("section").querySelectorAll("figure"))
    figure.hidden = !figure.querySelector("figcaption").textContent.toLowerCase().includes(part);
});
