// The graph with its clusters, and a slider that replays the planner's decisions.
import { report, page, nodes, kernels, h, s, button, go, state, number, colour, note, showBytes, showCount,
  shortPlace } from "./core.js";
import { why } from "./why.js";
import { card } from "./decision.js";

const HEIGHT = 40;
const routes = new Map(page.layout.edges.map((e) => [`${e.producer} ${e.reader}`, e.points]));
let view = null; // the visible part of the drawing, kept while the slider moves
let playing = null;

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
  const computing = nodes.filter((n) => n.kind === "operator" || n.kind === "call" );
  const count = step >= report.decisions.length ? t.kernels + t.calls
    : new Set(computing.map((n) => clusters[n.id])).size;
  if (step >= report.decisions.length) return { count, bytes: t.bytes };
  const saved = report.decisions.slice(0, step).reduce((sum, d) => sum + (d.verdict === "fused" ? d.saves_bytes : 0), 0);
  return { count, bytes: Math.max(t.bytes_unfused - saved, t.bytes) };
}

export function graph() {
  const last = report.decisions.length;
  const step = Math.min(number("step", last), last);
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

function drawing(step) {
  const clusters = clustersAt(step);
  const seen = [...new Set(clusters)];
  const shade = (n) => (clusters[n] < 0 ? colour(-1 - clusters[n]) : colour(seen.indexOf(clusters[n])));
  const size = new Map();
  for (const p of page.layout.nodes) size.set(clusters[p.node], (size.get(clusters[p.node]) || 0) + 1);
  const computed = (n) => !["input", "constant"].includes(nodes[n].kind);
  const blobs = new Map();
  const lines = [];
  for (const e of report.edges) {
    const points = routes.get(`${e.producer} ${e.reader}`);
    if (!points) continue;
    const inside = computed(e.producer) && clusters[e.producer] === clusters[e.reader] &&
      (step < report.decisions.length || e.kind === "virtual");
    const path = curve(points);
    if (inside) blobs.set(clusters[e.reader], [...(blobs.get(clusters[e.reader]) || []), s("path", { d: path })]);
    const width = Math.max(1.5, Math.min(9, Math.log10(e.nbytes + 1)));
    lines.push(s("path", { d: path, class: inside ? "edge virtual" : "edge stored",
      "stroke-width": inside ? 1.6 : width }, s("title", {}, `${nodes[e.producer].label} → ${nodes[e.reader].label}: ` +
      (inside ? "stays in registers" : `${showBytes(e.nbytes)} through memory`))));
  }
  for (const p of page.layout.nodes) {
    if (!computed(p.node)) continue;
    const rect = s("rect", { x: p.x - p.width / 2 - 10, y: p.y - HEIGHT / 2 - 10, width: p.width + 20,
      height: HEIGHT + 20, rx: 16 });
    blobs.set(clusters[p.node], [...(blobs.get(clusters[p.node]) || []), rect]);
  }
  const areas = [...blobs].map(([c, shapes]) => s("g", { class: `blob ${c < 0 ? colour(-1 - c) : colour(seen.indexOf(c))}` }, shapes));
  const boxes = page.layout.nodes.map((p) => node(p, computed(p.node) ? shade(p.node) : "outside"));
  const width = Math.max(page.layout.width, 420);
  if (!view) view = { x: (page.layout.width - width) / 2, y: 0, w: width, h: page.layout.height };
  const svg = s("svg", { viewBox: `${view.x} ${view.y} ${view.w} ${view.h}`, class: "drawing", role: "group",
    style: { aspectRatio: `${width} / ${page.layout.height}` }, "aria-label": "graph of operators" }, areas, lines, boxes);
  pan(svg);
  return h("div", { class: "canvas" }, h("div", { class: "zoom" },
    button("+", () => zoom(svg, 0.8), { "aria-label": "zoom in" }), button("−", () => zoom(svg, 1.25), { "aria-label": "zoom out" }),
    button("fit", () => { view = null; go({}); })), svg);
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

function pan(svg) {
  let from = null;
  svg.addEventListener("pointerdown", (e) => { from = { x: e.clientX, y: e.clientY, vx: view.x, vy: view.y, moved: false }; });
  svg.addEventListener("pointermove", (e) => {
    if (!from) return;
    const scale = view.w / svg.clientWidth;
    if (!from.moved && Math.hypot(e.clientX - from.x, e.clientY - from.y) < 4) return;
    from.moved = true;
    view.x = from.vx - (e.clientX - from.x) * scale;
    view.y = from.vy - (e.clientY - from.y) * scale;
    svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  });
  for (const end of ["pointerup", "pointerleave"]) svg.addEventListener(end, () => { from = null; });
  svg.addEventListener("wheel", (e) => {
    if (!e.ctrlKey) return; // plain scrolling moves the page
    e.preventDefault();
    zoom(svg, e.deltaY > 0 ? 1.1 : 0.9);
  }, { passive: false });
}

function zoom(svg, factor) {
  view = { x: view.x + (view.w * (1 - factor)) / 2, y: view.y + (view.h * (1 - factor)) / 2, w: view.w * factor, h: view.h * factor };
  svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
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
      h("span", { class: "where" }, shortPlace(line.place)), homes.map((k) => h("span", { class: `dot ${colour(k)}`, title: kernels[k].name })),
      h("code", {}, line.place.text));
  });
  return h("section", {}, h("h3", {}, "Lines of the program"), h("ol", { class: "sources" }, lines));
}
