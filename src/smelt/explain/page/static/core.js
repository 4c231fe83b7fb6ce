// Data, formatting, elements and the page's state. Everything shown is a function of the report.

// A page has one report, several programs to learn from, or the parts of one program; the address
// names the one that is shown.
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "null");
export const lessons = embedded("lessons") || [];
export const isCourse = lessons.some((x) => x.code);
export const chosenLesson = () => {
  const named = Number(/\/program=(\d+)/.exec(location.hash)?.[1] ?? 0);
  return named < lessons.length ? named : 0;
};
export const lesson = chosenLesson();
export const report = embedded(lessons.length ? `report-${lesson}` : "report");
export const page = report.page;
export const nodes = report.nodes;
export const kernels = report.kernels;
export const isKernel = (k) => k.kind !== "check" && k.within === null;

// ---- numbers, as the text report writes them ------------------------------------------------

function threeDigits(x) {
  if (x === 0) return "0";
  return x < 9.995 ? x.toFixed(2) : x < 99.95 ? x.toFixed(1) : x.toFixed(0);
}

function scaled(x, steps) {
  for (const [scale, unit] of steps) {
    if (Math.abs(x) >= scale * 0.9995) return `${threeDigits(Math.abs(x) / scale)} ${unit}`;
  }
  return `${threeDigits(Math.abs(x))} ${steps[steps.length - 1][1]}`;
}

export function showBytes(x) {
  if (Math.abs(x) < 1000) return `${x.toFixed(0)} B`;
  return scaled(x, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]);
}

export const showTime = (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]);
export const showCount = (n, one) => `${n} ${n === 1 ? one : one + (/(s|ch)$/.test(one) ? "es" : "s")}`;
export const showRate = (x) => `${Number(x.toPrecision(3)).toLocaleString("en")} GB/s`;
export const showFactor = (x) => `${x.toFixed(1)}x`;

export function showNumber(x) {
  if (typeof x === "boolean") return x ? "true" : "false";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x) || x === 0) return String(x);
  const size = Math.abs(x);
  return size >= 1e5 || size < 1e-3 ? x.toExponential(1) : String(Number(x.toPrecision(4)));
}

export const shortPlace = (p) => (p ? `${p.file.split(/[\\/]/).pop()}:${p.line}` : "");
// An operator's name without its number.
export const plainName = (n) => n.label.split("#")[0].split(".").pop() || n.label;
export const kernelTime = (k) =>
  k.measured ? k.measured.median_ns : k.predicted_ns === null ? k.floor_ns : k.predicted_ns;

// ---- elements -------------------------------------------------------------------------------

function make(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  make(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

export const button = (label, onclick, attributes) =>
  h("button", { type: "button", onclick, ...attributes }, label);

export function select(label, options, chosen, onchange) {
  const list = h("select", { onchange: (e) => onchange(e.target.value), "aria-label": label },
    options.map(([value, text]) => h("option", { value, selected: String(value) === String(chosen) }, text)));
  return h("label", { class: "field" }, h("span", {}, label), list);
}

export function table(head, rows, attributes) {
  return h("div", { class: "scroll" }, h("table", attributes,
    h("thead", {}, h("tr", {}, head.map((c) => h("th", { scope: "col", class: c.startsWith("#") ? "n" : null },
      c.replace(/^#/, ""))))),
    h("tbody", {}, rows)));
}

// A row of bars with the same scale: [label, value, text, class].
export function bars(rows) {
  const most = Math.max(...rows.map((r) => r[1] || 0), 1e-12);
  return h("div", { class: "bars", role: "list" }, rows.map(([label, value, text, kind]) =>
    h("div", { class: "bar", role: "listitem" }, h("span", { class: "bar-label" }, label),
      h("span", { class: "bar-track" }, h("span", { class: `bar-fill ${kind || ""}`,
        style: { width: `${Math.max((100 * (value || 0)) / most, 0.4)}%` } })),
      h("span", { class: "bar-text" }, text))));
}

export const note = (...text) => h("p", { class: "note" }, text);
// The target of a report is a processor as long as no other one is named.
export const scheduleNote = () => h("p", { class: "note", id: "schedule" }, "There is no schedule for a GPU in this report: what you see is the processor's schedule.");
// Text with `code` between backticks.
export const marked = (text) => text.split("`").map((part, k) => (k % 2 ? h("code", {}, part) : part));
export const COLOURS = 8;
export const colour = (k) => `c${((k % COLOURS) + COLOURS) % COLOURS}`;

// ---- state: a view and its arguments, also in the address ------------------------------------

export const limits = {}; // the last value of a state that keys and buttons move, set by its view
export const state = { view: isCourse ? "learn" : "overview" };
const listeners = [];
export const onChange = (f) => listeners.push(f);

export function go(change) {
  Object.assign(state, change);
  for (const key of Object.keys(state)) if (state[key] === null) delete state[key];
  const rest = Object.entries(state).filter(([k]) => k !== "view").map(([k, v]) => `/${k}=${encodeURIComponent(v)}`);
  try {
    history.replaceState(null, "", `#${state.view}${rest.join("")}`);
  } catch {
    // a notebook's frame has no address
  }
  for (const f of listeners) f();
}

export function readAddress() {
  const [view, ...rest] = location.hash.slice(1).split("/");
  if (!view) return;
  for (const key of Object.keys(state)) delete state[key];
  state.view = decodeURIComponent(view);
  for (const part of rest) {
    const [key, value] = part.split("=");
    if (value !== undefined) state[decodeURIComponent(key)] = decodeURIComponent(value);
  }
}

export const number = (key, otherwise) => {
  const value = Number(state[key]);
  return state[key] === undefined || Number.isNaN(value) ? otherwise : value;
};
