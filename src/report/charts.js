"use strict";

// Elements: attributes, then children. Text is only ever set as text.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  return dress(element, attributes, children);
}
function draw(tag, attributes, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const colour = (i) => `var(--c${i % 8})`;

function fixed(x, digits) {
  return isNumber(x) ? x.toFixed(digits) : "-";
}
// Three significant digits; numbers are written as by units.rs.
function digits(x) {
  const size = Math.abs(x);
  return x.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}
// 0.0004, 1.46, 3e-5.
function number(x) {
  if (!isNumber(x)) return "-";
  const size = Math.abs(x);
  if (size === 0 || (size >= 1e-4 && size < 1e6)) return String(size < 1000 ? Number(x.toPrecision(3)) : Math.round(x));
  return x.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
}
function scaled(x, base, units) {
  let unit = 0;
  for (; Math.abs(x) >= base - (base === 1000 ? 0.5 : 0) && unit + 1 < units.length; unit++) x /= base;
  if (unit === 0 && !Number.isInteger(x)) return `${number(x)}${units[unit]}`;
  return `${unit === 0 ? x : digits(x)}${units[unit]}`;
}
// 1234567 as 1.23M.
function short(x) {
  return isNumber(x) ? scaled(x, 1000, ["", "k", "M", "G", "T", "P"]) : "-";
}
function duration(seconds) {
  if (!isNumber(seconds)) return "-";
  if (seconds < 1 && seconds > 0) return `${Number((1e3 * seconds).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds % 60)];
  return h > 0 ? `${h} h ${m} min` : `${m} min ${s} s`;
}
function size(bytes) {
  return isNumber(bytes) ? scaled(bytes, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]) : "-";
}

// Round numbers between two, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    found.push(Number((i * step).toPrecision(12)));
  return found;
}
function logTicks(low, high, count) {
  const found = [];
  const decades = Math.log10(high / low);
  const digits = decades > count ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of digits) {
      const tick = Number((digit * 10 ** power).toPrecision(12));
      if (tick >= low && tick <= high) found.push(tick);
    }
  }
  const every = Math.ceil(found.length / Math.max(count, 1));
  return found.length < 2 ? ticks(low, high, count) : found.filter((_, i) => i % every === 0);
}

// From numbers to pixels.
function scale(values, [from, to], log, pad) {
  let numbers = values.filter((v) => isNumber(v) && (!log || v > 0));
  if (numbers.length === 0) numbers = [log ? 1 : 0];
  let low = Infinity,
    high = -Infinity;
  for (const v of numbers) {
    low = Math.min(low, v);
    high = Math.max(high, v);
  }
  if (!(high > low))
    [low, high] = log ? [low / 2, low * 2] : [low - Math.abs(low || 1) / 2, low + Math.abs(low || 1) / 2];
  const f = log ? Math.log : (v) => v;
  const space = pad * (f(high) - f(low));
  const [a, b] = [f(low) - space, f(high) + space];
  const at = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  const back = log ? Math.exp : (v) => v;
  at.ticks = (count) => (log ? logTicks : ticks)(back(a), back(b), count);
  at.holds = (v) => isNumber(v) && (!log || v > 0);
  return at;
}

// A chart that is drawn again when its width changes or when it is told to.
//   spec(): { title, series: [{ name, x, y, colour, raw, dots }], xName, xLog, yLog, xFormat, yFormat, height, marks }
// where `raw` draws a thin line without an entry in the caption, and `marks` are { x, y, text } or { x, text, back }.
const firstPaints = [];
function chart(spec) {
  const caption = make("figcaption");
  const canvas = draw("svg", { class: "chart", tabindex: "0", role: "img" });
  const figure = make("figure", {}, caption, canvas);
  let now = null,
    at = null;

  function paint() {
    const width = Math.max(canvas.clientWidth || figure.clientWidth, 240);
    now = layout(spec(), width);
    canvas.setAttribute("viewBox", `0 0 ${width} ${now.height}`);
    canvas.setAttribute("aria-label", describe(now));
    canvas.replaceChildren(...frame(now), ...now.series.flatMap((s) => curve(now, s)), ...marks(now), now.cursor);
    point(null);
  }
  // Shows the values at the point nearest to x; without one, the last.
  function point(x) {
    now.cursor.replaceChildren();
    const entries = [];
    at = x;
    for (const s of now.series.filter((s) => !s.raw)) {
      const i = x === null ? lastOf(s) : nearest(s, x, now);
      if (i < 0) {
        entries.push(entry(s, "-"));
        continue;
      }
      entries.push(entry(s, (now.yFormat || number)(s.y[i])));
      if (x !== null)
        now.cursor.append(draw("circle", { cx: now.atX(s.x[i]), cy: now.atY(s.y[i]), r: 3.5, fill: s.colour }));
    }
    if (x !== null) {
      const px = now.atX(x);
      now.cursor.prepend(draw("line", { class: "cursor", x1: px, x2: px, y1: now.top, y2: now.bottom }));
    }
    const where = x === null ? null : make("span", { class: "muted" }, `${now.xName} ${now.xFormat(x)}`);
    const title = now.title ? make("span", { class: "name" }, now.title) : null;
    caption.replaceChildren(...[title, ...entries, where].filter(Boolean));
  }
  function follow(event) {
    const box = canvas.getBoundingClientRect();
    const px = ((event.clientX - box.left) * now.width) / box.width;
    const all = now.xs;
    if (all.length === 0) return;
    point(all.reduce((best, x) => (Math.abs(now.atX(x) - px) < Math.abs(now.atX(best) - px) ? x : best)));
  }
  canvas.addEventListener("pointermove", follow);
  canvas.addEventListener("pointerdown", follow);
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("blur", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || now.xs.length === 0) return;
    event.preventDefault();
    const i = at === null ? (step > 0 ? -1 : now.xs.length) : now.xs.indexOf(at);
    point(now.xs[Math.min(Math.max(i + step, 0), now.xs.length - 1)]);
  });
  // What is painted changes the height, so not at once.
  new ResizeObserver(() => requestAnimationFrame(paint)).observe(figure);
  firstPaints.push(paint);
  return { figure, paint };
}

function layout(given, width) {
  const height = given.height || 300;
  const series = given.series.filter((s) => s.x.length > 0);
  const ys = series.flatMap((s) => s.y),
    xs = series.flatMap((s) => s.x);
  const [top, bottom] = [14, height - 34];
  const atY = scale(ys, [bottom, top], given.yLog, 0.05);
  const format = given.yTick || given.yFormat || short;
  const labels = atY.ticks(Math.max(2, Math.round((bottom - top) / 45)));
  const left = 14 + 7 * Math.max(2, ...labels.map((tick) => format(tick).length));
  const atX = scale(xs, [left, width - 14], given.xLog, 0);
  const main = series.filter((s) => !s.raw);
  const longest = main.reduce((best, s) => (s.x.length > (best ? best.x.length : 0) ? s : best), null);
  const cursorXs = longest ? longest.x.filter((x, i) => atX.holds(x) && atY.holds(longest.y[i])) : [];
  return {
    marks: [],
    xFormat: String,
    ...given,
    series,
    width,
    height,
    top,
    bottom,
    left,
    right: width - 14,
    atX,
    atY,
    labels,
    format,
    xs: cursorXs,
    cursor: draw("g"),
  };
}

// Axes: lines only where a value can be read off.
function frame(c) {
  const parts = c.labels.flatMap((tick) => [
    draw("line", { class: "grid", x1: c.left, x2: c.right, y1: c.atY(tick), y2: c.atY(tick) }),
    draw("text", { x: c.left - 6, y: c.atY(tick) + 4, "text-anchor": "end" }, c.format(tick)),
  ]);
  parts.push(draw("line", { class: "axis", x1: c.left, x2: c.right, y1: c.bottom, y2: c.bottom }));
  let end = -Infinity;
  for (const tick of c.atX.ticks(Math.max(2, Math.round((c.right - c.left) / 90)))) {
    const [x, text] = [c.atX(tick), (c.xTick || short)(tick)];
    const half = 3.5 * text.length;
    if (x - half < end + 8 || x + half > c.width) continue;
    end = x + half;
    parts.push(draw("line", { class: "axis", x1: x, x2: x, y1: c.bottom, y2: c.bottom + 4 }));
    parts.push(draw("text", { x, y: c.bottom + 17, "text-anchor": "middle" }, text));
  }
  parts.push(draw("text", { x: c.right, y: c.bottom + 31, "text-anchor": "end" }, c.xName));
  return parts;
}

// A line with gaps where there is no number; a point alone is a dot.
function curve(c, s) {
  let path = "",
    before = false;
  const dots = [];
  s.x.forEach((x, i) => {
    const known = c.atX.holds(x) && c.atY.holds(s.y[i]);
    if (!known) {
      before = false;
      return;
    }
    const [px, py] = [c.atX(x).toFixed(1), c.atY(s.y[i]).toFixed(1)];
    const after = i + 1 < s.x.length && c.atY.holds(s.y[i + 1]);
    path += `${before ? "L" : "M"}${px} ${py}`;
    if ((s.dots && s.x.length <= 60) || (!before && !after))
      dots.push(draw("circle", { cx: px, cy: py, r: 2.4, fill: s.colour }));
    before = true;
  });
  const dash = s.dash ? { "stroke-dasharray": s.dash } : {};
  return [draw("path", { class: s.raw ? "line raw" : "line", d: path, stroke: s.colour, ...dash }), ...dots];
}

function marks(c) {
  const parts = [];
  for (const mark of c.marks) {
    if (!c.atX.holds(mark.x)) continue;
    const x = Math.min(Math.max(c.atX(mark.x), c.left), c.right);
    const right = x > (c.left + c.right) / 2;
    const side = { "text-anchor": right ? "end" : "start", x: x + (right ? -8 : 8) };
    if (mark.back) {
      parts.push(draw("line", { class: "back", x1: x, x2: x, y1: c.top, y2: c.bottom }, draw("title", {}, mark.title)));
      parts.push(draw("text", { ...side, y: c.top + 10 }, mark.text));
    } else if (c.atY.holds(mark.y)) {
      parts.push(draw("circle", { class: "mark", cx: x, cy: c.atY(mark.y), r: 5.5 }));
      parts.push(draw("text", { ...side, class: "strong", y: c.atY(mark.y) - 10 }, mark.text));
    }
  }
  return parts;
}

function entry(s, text) {
  const swatch = s.name ? make("span", { class: "swatch", style: `background:${s.colour}` }) : "";
  return make("span", {}, swatch, `${s.name} ${text}`);
}
function lastOf(s) {
  for (let i = s.y.length - 1; i >= 0; i--) if (isNumber(s.y[i])) return i;
  return -1;
}
// The point of a series that lies nearest to x; none where x is before its first or after its last.
function nearest(s, x, c) {
  let best = -1;
  if (x < s.x[0] || x > s.x[s.x.length - 1]) return best;
  s.x.forEach((other, i) => {
    if (!c.atX.holds(other) || !c.atY.holds(s.y[i])) return;
    if (best < 0 || Math.abs(other - x) < Math.abs(s.x[best] - x)) best = i;
  });
  return best;
}
function describe(c) {
  const each = c.series
    .filter((s) => !s.raw && lastOf(s) >= 0)
    .map((s) => `${s.name} ends at ${(c.yFormat || number)(s.y[lastOf(s)])}`);
  return `${c.title || "Chart"} over ${c.xName}: ${each.join(", ")}`;
}

// What a chart's horizontal axis can be; of what a run does not know there is no choice.
const AXES = {
  step: { name: "step", of: (series) => series.steps, format: String, tick: short },
  tokens: {
    name: "tokens",
    of: (series, perStep) => series.steps.map((step) => step * perStep),
    format: short,
    tick: short,
  },
  time: { name: "training time", of: (series) => series.seconds, format: duration, tick: duration },
};

// Checkboxes and lists over charts; `changed` gets their values by name.
function controls(items, changed) {
  const values = {};
  const bar = make("div", { class: "controls" });
  for (const item of items) {
    let input;
    if (item.choices) {
      input = make("select", {}, ...item.choices.map((choice) => make("option", { value: choice }, AXES[choice].name)));
      input.value = item.value;
    } else {
      input = make("input", { type: "checkbox" });
      input.checked = item.value;
    }
    const read = () => {
      values[item.name] = item.choices ? input.value : input.checked;
    };
    input.addEventListener("change", () => {
      read();
      changed();
    });
    read();
    bar.append(make("label", {}, ...(item.choices ? [item.label, input] : [input, item.label])));
  }
  return { bar, values };
}

// A table: cells are texts or elements; columns of numbers stand to the right.
function table(head, rows, numeric) {
  const kind = (i) => (numeric(i) ? { class: "number" } : {});
  const cell = (tag) => (content, i) =>
    content instanceof HTMLTableCellElement ? content : make(tag, kind(i), content);
  return make(
    "div",
    { class: "scroll" },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...head.map(cell("th")))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td"))))),
    ),
  );
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make(
    "dl",
    { class: "facts" },
    ...known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]),
  );
}

// Why lines have fewer points than there were steps.
function thinned(all) {
  const some = all.filter((series) => series.of > series.steps.length);
  if (some.length === 0) return null;
  const most = some.reduce((a, b) => (a.of > b.of ? a : b));
  return make(
    "p",
    { class: "note" },
    `Drawn from ${most.steps.length} of ${most.of} logged points: of every column the ` +
      "first, the last, the lowest and the highest. metrics.jsonl has them all.",
  );
}

// The parts of the page, each of which returns its elements. One that a file of another version trips up says so, and
// the others stand.
function show(parts) {
  const drawn = parts.flatMap((part) => {
    try {
      return part();
    } catch (error) {
      return [make("p", { class: "alert" }, `A part of this page could not be drawn (${part.name}): ${error.message}`)];
    }
  });
  document.getElementById("page").replaceChildren(...drawn.filter(Boolean));
  // Not left to the observer: whoever prints the page at once must see them.
  for (const paint of firstPaints) paint();
}
