// The graph with its clusters, and a slider that replays the planner's decisions.
import { report, page, nodes, kernels, h, s, button, go, state, number, colour, note, showBytes, showCount,
  shortPlace, limits } from "./core.js";
import { why } from "./why.js";
import { card } from "./decision.js";

const HEIGHT = 40;
const routes = new Map(page.layout.edges.map((e) => [`${e.producer} ${e.reader}`, e.points]));
let view = null; // the visible part of the drawing, kept while the slider moves
let playing = null;
let wanted = ""; // what was looked for last

// Clusters after the first `step` decisions: a map from node to a representative.
export function clustersAt(step) {
  const parent = nodes.map((n) => n.id);
  const root = (n) => {
    while (parent[n] !== n) n = parent[n] = parent[parent[n]];
    return n;
  };
  if (step >= report.decisions.length) return nodes.map((n) => (n.kernels.length ? -1 - n.kernels[0] : n.id));
  for (const d of report.decisions.slice(0, step)) {
    if (d.verdict === "fused" && d.a_node !== null && d.b_node !== null) {
      parent[root(d.a_node)] = root(d.b_node);
    }
  }
  return nodes.map((n) => root(n.id));
}

export function totalsAt(step) {
  const t = report.total;
  const clusters = clustersAt(step);
  const computing = nodes.filter((n) => n.kind === "operator" || n.kind === "call");
  const count = step >= report.decisions.length ? t.kernels + t.calls
    : new Set(computing.map((n) => clusters[n.id])).size + Math.max(page.launches_unfused - computing.length, 0);
  if (step >= report.decisions.length) return { count, bytes: t.bytes };
  const saved = report.decisions.slice(0, step).reduce((sum, d) => sum + (d.verdict === "fused" ? d.saves_bytes : 0), 0);
  return { count, bytes: Math.max(t.bytes_unfused - saved, t.bytes) };
}

export function graph() {
  const last = report.decisions.length;
  const step = Math.min(number("step", last), last);
  limits.step = last;
  const totals = totalsAt(step);
  const decision = step > 0 && step < last ? report.decisions[step - 1] : null;
  const slider = h("input", { type: "range", min: 0, max: last, value: step, id: "replay",
    "aria-label": "decisions replayed", oninput: (e) => go({ step: e.target.value }) });
  const controls = h("div", { class: "controls" },
    button("«", () => go({ step: 0 }), { "aria-label": "no fusion" }),
    button("‹", () => go({ step: Math.max(step - 1, 0) }), { "aria-label": "one decision back" }),
    button(playing ? "pause" : "play", play, { "aria-label": playing ? "pause" : "play" }),
    button("›", () => go({ step: Math.min(step + 1, last) }), { "aria-label": "next decision" }),
    button("»", () => go({ step: last }), { "aria-label": "all decisions" }), slider);
  const said = h("p", { class: "said", "aria-live": "polite" },
    h("strong", {}, step === 0 ? "No fusion" : step === last ? "The plan" : `Decision ${step} of ${last}`), ": ",
    `${showCount(totals.count, "kernel")}, ${showBytes(totals.bytes)} through memory. `,
    decision ? h("span", { class: decision.verdict }, decision.verdict === "fused" ? "✓ " : "✗ ",
      `${decision.a_label} → ${decision.b_label}: ${decision.sentence}.`) : null);
  return [controls, said, h("div", { class: "graph" }, drawing(step), side()),
    h("ul", { class: "legend" }, h("li", {}, h("span", { class: "key dashed" }), "stays in registers"),
      h("li", {}, h("span", { class: "key solid" }), "through memory, wider with more bytes"),
      h("li", {}, h("span", { class: "key blob" }), "one colour: one kernel"))];
}

function play() {
  if (playing) {
    clearInterval(playing);
    playing = null;
    return go({});
  }
  if (number("step", report.decisions.length) >= report.decisions.length) state.step = 0;
  playing = setInterval(() => {
    const next = number("step", 0) + 1;
    if (next >= report.decisions.length || state.view !== "graph") {
      clearInterval(playing);
      playing = null;
    }
    if (state.view === "graph") go({ step: next });
  }, 900);
  return go({ step: number("step", 0) });
}

const LARGE = 400; // nodes above which only what is visible is drawn
const COARSE = 0.4; // pixels per unit below which a large graph is drawn without names

// What is drawn after some decisions: boxes, edges and the area of each cluster, with their places.
function sceneAt(step) {
  const clusters = clustersAt(step);
  const order = new Map([...new Set(clusters)].map((c, k) => [c, k]));
  const shade = (c) => colour(c < 0 ? -1 - c : order.get(c));
  const computed = (n) => !["input", "constant"].includes(nodes[n].kind);
  const areas = new Map(); // cluster: boxes and edges
  const area = (c) => areas.get(c) || areas.set(c, { shade: shade(c), boxes: [], lines: [] }).get(c);
  const edges = [];
  for (const e of report.edges) {
    const points = routes.get(`${e.producer} ${e.reader}`);
    if (!points) continue;
    const inside = computed(e.producer) && clusters[e.producer] === clusters[e.reader] &&
      (step < report.decisions.length || e.kind === "virtual");
    const xs = points.map(([x]) => x);
    const edge = { e, inside, path: curve(points), left: Math.min(...xs), right: Math.max(...xs), top: points[0][1], bottom: points[points.length - 1][1] };
    edges.push(edge);
    if (inside) area(clusters[e.reader]).lines.push(edge);
  }
  const boxes = page.layout.nodes.map((p) => ({ p, kind: computed(p.node) ? shade(clusters[p.node]) : "outside",
    left: p.x - p.width / 2, right: p.x + p.width / 2, top: p.y - HEIGHT / 2, bottom: p.y + HEIGHT / 2 }));
  for (const box of boxes) if (computed(box.p.node)) area(clusters[box.p.node]).boxes.push(box);
  return { boxes, edges, areas: [...areas.values()] };
}

const isLarge = page.layout.nodes.length > LARGE;
const width = Math.max(page.layout.width, 420);
const shape = isLarge ? Math.max(width, 900) * 0.75 : page.layout.height;
const whole = () => {
  const w = isLarge ? Math.max(width, 900) : width;
  return { x: (page.layout.width - w) / 2, y: 0, w, h: shape };
};

// Draw the part of a scene that a window shows; a small scene is drawn as a whole.
function shapes(scene, around, coarse) {
  const seen = (x) => !around || (x.right > around.x && x.left < around.x + around.w && x.bottom > around.y && x.top < around.y + around.h);
  const boxes = scene.boxes.filter(seen);
  const edges = scene.edges.filter(seen);
  if (coarse) {
    const rects = new Map();
    for (const x of boxes) rects.set(x.kind, `${rects.get(x.kind) || ""}M${x.left},${x.top}H${x.right}V${x.bottom}H${x.left}Z`);
    const lines = (inside) => edges.filter((x) => x.inside === inside).map((x) => x.path).join("");
    return [s("path", { class: "edge stored", "stroke-width": 3, d: lines(false) }), s("path", { class: "edge coarse", "stroke-width": 1.6, d: lines(true) }),
      [...rects].map(([kind, d]) => s("path", { class: `coarse-node ${kind}`, d }))];
  }
  const areas = scene.areas.map((c) => s("g", { class: `blob ${c.shade}` }, c.lines.filter(seen).map((x) => s("path", { d: x.path })),
    c.boxes.filter(seen).map((x) => s("rect", { x: x.left - 10, y: x.top - 10, width: x.p.width + 20, height: HEIGHT + 20, rx: 16 }))));
  const lines = edges.map(({ e, inside, path }) => s("path", { d: path, class: inside ? "edge virtual" : "edge stored",
    "stroke-width": inside ? 1.6 : Math.max(1.5, Math.min(9, Math.log10(e.nbytes + 1))) },
  s("title", {}, `${nodes[e.producer].label} → ${nodes[e.reader].label}: ${inside ? "stays in registers" : `${showBytes(e.nbytes)} through memory`}`)));
  return [areas.filter((g) => g.childNodes.length), lines, boxes.map((x) => node(x.p, x.kind))];
}

function drawing(step) {
  const scene = sceneAt(step);
  if (!view) view = whole();
  const svg = s("svg", { class: "drawing", role: "group", style: { aspectRatio: `${view.w} / ${view.h}` }, "aria-label": "graph of operators" });
  let drawn = null; // the window for which shapes exist
  const show = () => {
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
    const coarse = isLarge && (svg.clientWidth || 720) / view.w < COARSE;
    const covers = drawn && drawn.coarse === coarse && drawn.x <= view.x && drawn.y <= view.y &&
      drawn.x + drawn.w >= view.x + view.w && drawn.y + drawn.h >= view.y + view.h;
    if (covers || (drawn && !isLarge)) return;
    drawn = { x: view.x - view.w / 2, y: view.y - view.h / 2, w: 2 * view.w, h: 2 * view.h, coarse };
    const focused = svg.contains(document.activeElement) ? document.activeElement.dataset.node : null;
    svg.replaceChildren(...shapes(scene, isLarge ? drawn : null, coarse).flat(Infinity));
    if (focused) svg.querySelector(`[data-node="${focused}"]`)?.focus({ preventScroll: true });
  };
  show();
  pan(svg, show);
  const scale = (factor) => () => zoom(svg, factor, show);
  return h("div", { class: "canvas" }, h("div", { class: "zoom" }, finder(),
    button("+", scale(0.8), { "aria-label": "zoom in" }), button("−", scale(1.25), { "aria-label": "zoom out" }),
    button("fit", () => { view = fitted(); go({}); }, { title: "show the whole graph" })), svg);
}

function fitted() {
  const start = whole();
  const factor = Math.max(1, page.layout.height / start.h);
  return { x: (page.layout.width - start.w * factor) / 2, y: 0, w: start.w * factor, h: start.h * factor };
}

// A field that finds operators by label or source line, one after another.
function finder() {
  const find = (text) => {
    const lower = text.trim().toLowerCase();
    const at = page.layout.nodes.findIndex((p) => p.node === Number(state.a));
    const after = [...page.layout.nodes.slice(at + 1), ...page.layout.nodes.slice(0, at + 1)];
    const p = lower && after.find((x) => nodes[x.node].label.toLowerCase().includes(lower) || shortPlace(nodes[x.node].place).toLowerCase().includes(lower));
    if (!p) return;
    wanted = text;
    centre(p);
    go({ a: p.node, b: null });
  };
  return h("input", { type: "search", id: "find", placeholder: "find an operator", "aria-label": "find an operator by name", value: wanted,
    onkeydown: (e) => { if (e.key === "Enter") { e.preventDefault(); find(e.target.value); } } });
}

function centre(p) {
  if (!view || !isLarge) return;
  const start = whole();
  view = { x: page.layout.width <= start.w ? start.x : p.x - start.w / 2, y: p.y - start.h / 2, w: start.w, h: start.h };
}

// A smooth curve through the points of an edge, from below one node to above the other.
function curve(points) {
  const ends = points.map(([x, y], k) => [x, k === 0 ? y + HEIGHT / 2 : k === points.length - 1 ? y - HEIGHT / 2 : y]);
  let path = `M${ends[0]}`;
  for (let k = 1; k < ends.length; k++) {
    const [[x1, y1], [x2, y2]] = [ends[k - 1], ends[k]];
    const bend = (y2 - y1) / 2;
    path += `C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
  }
  return path;
}

function node(p, kind) {
  const n = nodes[p.node];
  const chosen = Number(state.a) === n.id || Number(state.b) === n.id;
  const cut = (text) => (text.length * 7.6 > p.width - 16 ? text.slice(0, Math.floor((p.width - 24) / 7.6)) + "…" : text);
  const constants = n.inputs.map((x) => nodes[x]).filter((x) => x.kind === "constant").map((x) => x.name.split(":")[0]);
  return s("g", { class: `node ${kind} ${n.kind}${chosen ? " chosen" : ""}${n.output ? " output" : ""}`, tabindex: 0, role: "button",
    "data-node": n.id, "aria-label": `${n.label}, ${n.dtype}[${n.shape}]`, onclick: () => pick(n.id),
    onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(n.id); } } },
  s("title", {}, `${n.label} ${n.attributes} ${n.dtype}[${n.shape}] ${showBytes(n.nbytes)} ${shortPlace(n.place)}`),
  s("rect", { x: p.x - p.width / 2, y: p.y - HEIGHT / 2, width: p.width, height: HEIGHT, rx: n.kind === "input" ? 20 : 8 }),
  s("text", { x: p.x, y: p.y - 3, class: "label" }, cut([n.label, ...constants].join(" "))),
  s("text", { x: p.x, y: p.y + 13, class: "type" }, cut(`${n.dtype}[${n.shape}]`)));
}

function pick(id) {
  if (state.a === undefined || (state.b !== undefined && state.b !== null)) go({ a: id, b: null });
  else if (Number(state.a) === id) go({ a: null });
  else go({ b: id });
}

function pan(svg, show) {
  let from = null;
  let dragged = false;
  svg.addEventListener("pointerdown", (e) => {
    from = { x: e.clientX, y: e.clientY, vx: view.x, vy: view.y };
    dragged = false;
  });
  svg.addEventListener("pointermove", (e) => {
    if (!from) return;
    if (!dragged && Math.hypot(e.clientX - from.x, e.clientY - from.y) < 4) return;
    dragged = true;
    const scale = view.w / svg.clientWidth;
    view.x = from.vx - (e.clientX - from.x) * scale;
    view.y = from.vy - (e.clientY - from.y) * scale;
    show();
  });
  for (const end of ["pointerup", "pointerleave", "pointercancel"]) svg.addEventListener(end, () => { from = null; });
  svg.addEventListener("click", (e) => { // the end of a drag chooses nothing
    if (dragged) e.stopPropagation();
    dragged = false;
  }, { capture: true });
  svg.addEventListener("focusin", (e) => { // an operator that gets the focus comes into view
    const p = isLarge && page.layout.nodes.find((x) => x.node === Number(e.target.dataset?.node));
    if (!p || (p.y > view.y && p.y < view.y + view.h && p.x > view.x && p.x < view.x + view.w)) return;
    view.x = p.x - view.w / 2;
    view.y = p.y - view.h / 2;
    show();
  });
  svg.addEventListener("wheel", (e) => {
    if (!e.ctrlKey) return; // plain scrolling moves the page
    e.preventDefault();
    zoom(svg, e.deltaY > 0 ? 1.1 : 0.9, show);
  }, { passive: false });
}

function zoom(svg, factor, show) {
  view = { x: view.x + (view.w * (1 - factor)) / 2, y: view.y + (view.h * (1 - factor)) / 2, w: view.w * factor, h: view.h * factor };
  show();
}

function side() {
  const a = state.a === undefined ? null : Number(state.a);
  const b = state.b === undefined ? null : Number(state.b);
  const parts = [sources(a, b)];
  if (a === null || !nodes[a]) parts.unshift(note("Choose an operator, then a second one: the page says why they are, or are not, in one kernel."));
  else {
    parts.unshift(facts(nodes[a], b === null), b === null || !nodes[b] ? null : card(why(a, b)));
  }
  return h("aside", { class: "side" }, parts);
}

function facts(n, open) {
  const homes = n.kernels.map((k) => kernels[k].name).join(", ") || "no kernel";
  return h("section", { class: "facts" }, h("h3", { class: "code" }, n.label), open ? h("dl", {},
    h("dt", {}, "type"), h("dd", { class: "code" }, `${n.dtype}[${n.shape}]`),
    h("dt", {}, "size"), h("dd", {}, showBytes(n.nbytes)), h("dt", {}, "computed in"), h("dd", {}, homes),
    n.attributes ? [h("dt", {}, "attributes"), h("dd", { class: "code" }, n.attributes)] : null,
    h("dt", {}, "line"), h("dd", { class: "code" }, shortPlace(n.place) || "–")) : null,
  open ? note("Choose a second operator to see why they are, or are not, in one kernel.") : null);
}

function sources(a, b) {
  const byLine = new Map();
  for (const n of nodes) {
    if (!n.place) continue;
    const place = `${n.place.file}:${String(n.place.line).padStart(6, "0")}`;
    byLine.set(place, { place: n.place, nodes: [...(byLine.get(place)?.nodes || []), n] });
  }
  if (!byLine.size) return null;
  const lines = [...byLine.entries()].sort(([x], [y]) => (x < y ? -1 : 1)).map(([, line]) => {
    const hit = line.nodes.some((n) => n.id === a || n.id === b);
    const homes = [...new Set(line.nodes.flatMap((n) => n.kernels))];
    const mark = (on) => () => line.nodes.forEach((n) =>
      document.querySelector(`[data-node="${n.id}"]`)?.classList.toggle("lit", on));
    return h("li", { class: hit ? "hit" : null, onmouseenter: mark(true), onmouseleave: mark(false) },
      h("span", { class: "where" }, shortPlace(line.place)), homes.slice(0, 8).map((k) => h("span", { class: `dot ${colour(k)}`, title: kernels[k].name })), homes.length > 8 ? `+${homes.length - 8} ` : null,
      h("code", {}, line.place.text));
  });
  return h("section", {}, h("h3", {}, "Lines of the program"), h("ol", { class: "sources" }, lines));
}
