// Play a fused kernel beside its unfused form, with the values of every step.
import { page, kernels, h, button, select, go, number, note, state, showNumber, showCount, nodes, limits } from "./core.js";
import { cells, sizesText } from "./cells.js";
import { pieces } from "./kernel.js";

let playing = null;
let lastStep = 0; // of what is shown now

// The steps of several launches, one after another, with memory operations so far.
export function tape(runs) {
  const steps = [];
  let [loads, stores] = [0, 0];
  runs.forEach((run, launch) => {
    let block = -1;
    run.steps.forEach((step, index) => {
      loads += step.loads.reduce((sum, c) => sum + c.cells.length, 0);
      stores += step.stores.reduce((sum, c) => sum + c.cells.length, 0);
      steps.push({ step, run, launch, index, loads, stores, begins: step.block !== block });
      block = step.block;
    });
  });
  return steps;
}

export const carried = (run) => [...new Set(run.steps.filter((x) => x.kind === "state").map((x) => x.name))];

export function steps() {
  if (!page.run.fused.length) return [note(page.run.note)];
  const which = Math.min(number("run", 0), page.run.fused.length - 1);
  const run = page.run.fused[which] || page.run.fused[0];
  const inside = new Set(run.nodes);
  const separate = page.run.unfused.filter((r) => r.nodes.some((n) => inside.has(n)));
  const [left, right] = [tape([run]), tape(separate)];
  const last = Math.max(left.length, right.length) - 1;
  const at = Math.min(Math.max(number("at", 0), 0), last);
  const jump = (fits) => () => {
    const k = left.findIndex((x, i) => i > at && fits(x));
    if (k >= 0) go({ at: k });
  };
  lastStep = limits.at = last;
  const names = carried(run);
  const controls = h("div", { class: "controls" },
    page.run.fused.length > 1 ? select("Kernel", page.run.fused.map((r, k) => [k, r.name]), which, (v) => go({ run: v, at: 0 })) : null,
    button("«", () => go({ at: 0 }), { "aria-label": "first step" }), button("‹", () => go({ at: Math.max(at - 1, 0) }), { "aria-label": "step back" }),
    button(playing ? "pause" : "play", play, { "aria-label": playing ? "pause" : "play" }),
    button("›", () => go({ at: Math.min(at + 1, last) }), { "aria-label": "step forward" }), button("»", () => go({ at: last }), { "aria-label": "last step" }),
    h("input", { type: "range", min: 0, max: last, value: at, "aria-label": "step", oninput: (e) => go({ at: e.target.value }) }),
    button("next memory access", jump((x) => x.step.loads.length || x.step.stores.length)),
    names.length ? button("next carried value", jump((x) => x.step.kind === "state")) : null,
    button("next block", jump((x) => x.begins)),
    button("next difference", jump((x) => x.step.difference), { id: "next-difference", disabled: !left.some((x, i) => i > at && x.step.difference) }));
  return [controls, h("p", { class: "said" }, `Step ${at + 1} of ${last + 1}. `,
    `In all, the fused kernel makes ${showCount(run.loaded + run.stored, "memory operation")}; without fusion it takes ${separate.reduce((sum, r) => sum + r.loaded + r.stored, 0)}.`),
  h("p", { class: "note", id: "difference-said", "aria-live": "polite" }, differences(left, at)),
  names.length ? carriedTable(run, left[Math.min(at, left.length - 1)]) : null,
  h("div", { class: "two" }, column("Fused", left, at), column("Without fusion", right, at)),
  note(`Real values of the kernel interpreter at ${sizesText(page.run.sizes)}; blocks are shrunk too. Memory operations count elements loaded and stored.`,
    run.complete && separate.every((r) => r.complete) ? "" : " Only the first steps of each launch are recorded, so counters stop before the totals.",
    Object.keys(page.run.original).length ? ` This program's sizes are fixed (${sizesText(page.run.original)}); to play it, the same kernels are built for sizes with names.` : "",
    page.run.note ? ` ${page.run.note}` : "")];
}

// Where the values of the fused kernel have other bits than those of the program without fusion.
function differences(left, at) {
  const compared = left.filter((x) => x.step.compared).length;
  const differing = left.map((x, i) => [x.step.difference, i]).filter(([d]) => d);
  const all = left.every((x) => x.run.complete) ? "" : "recorded ";
  if (!differing.length) return `No ${all}step differs: the values of ${showCount(compared, "step")} were compared with those without fusion, bit by bit.`;
  const d = left[Math.min(at, left.length - 1)].step.difference;
  const [rounded, interim] = ["rounding", "interim"].map((kind) => differing.filter(([x]) => x.kind === kind).length);
  const later = differing.find(([, i]) => i > at);
  const counts = [rounded ? `${rounded} by rounding` : "", interim ? `${interim} because the stream has not seen everything yet` : ""].filter(Boolean).join(", ");
  return [d && at < left.length ? h("strong", {}, d.kind === "rounding" ? `Fusion rounds differently here: ${full(d.fused)} instead of ${full(d.unfused)}. ` : `The stream has not seen everything here: ${full(d.fused)} so far, ${full(d.unfused)} in the end. `) : null,
    `${differing.length} of ${compared} compared ${all}steps differ: ${counts}. `, later ? `The next is step ${later[1] + 1}.` : "No later step differs."];
}

const full = (x) => String(x);

function play() {
  if (playing) {
    clearInterval(playing);
    playing = null;
    return go({});
  }
  playing = setInterval(() => {
    const next = number("at", 0) + 1;
    if (next >= lastStep || state.view !== "step") {
      clearInterval(playing);
      playing = null;
    }
    if (state.view === "step") go({ at: Math.min(next, lastStep) });
  }, 650);
  return go({ at: number("at", 0) >= lastStep ? 0 : number("at", 0) });
}

function column(title, steps, at) {
  const done = at >= steps.length;
  const now = steps[Math.min(at, steps.length - 1)];
  if (!now) return h("section", { class: "column" }, h("h3", {}, title), note("Nothing was recorded."));
  const { step, run } = now;
  const before = steps.slice(0, Math.min(at, steps.length - 1) + 1);
  const registers = new Map();
  for (const x of before) {
    if (x.launch !== now.launch || x.step.block !== step.block) continue;
    if (x.step.value) registers.set(x.step.name, x.step);
  }
  const launches = steps[steps.length - 1].launch + 1;
  const k = run.kernel === null ? null : kernels[run.kernel];
  const touched = new Map([...step.loads, ...step.stores].map((c) => [c.array, new Set(c.cells)]));
  const stored = step.stores.flatMap((c) => c.cells);
  const written = new Map();
  for (const x of before) if (x.launch === now.launch) x.step.stores.forEach((c) => written.set(c.array, new Set([...(written.get(c.array) || []), ...c.cells])));
  const current = step.text.trim();
  return h("section", { class: `column ${done ? "done" : ""}` },
    h("h3", {}, title, h("small", {}, ` ${run.name}, launch ${now.launch + 1} of ${launches}, block ${step.block}${step.visit ? `, visits ${step.visit}` : ""}${done ? ", finished" : ""}`)),
    h("div", { class: "counters" }, counter("loads", now.loads), counter("stores", now.stores)),
    h("pre", { class: "text small" }, run.text.split("\n").map((line) => {
      const here = line.trim() === current;
      return h("span", { class: `line ${here ? "here" : ""}`, "aria-current": here ? "step" : null }, pieces(line, k), "\n");
    })),
    step.kind === "state" && step.text.includes("initial") ? note(`${step.name} starts as its initial value`) : null,
    h("h4", {}, "Registers"), h("div", { class: "registers" }, [...registers.values()].map((r) =>
      h("div", { class: `register ${r === step ? "new" : ""} ${r.kind}` }, h("span", { class: "code" }, r.name), cells(r.value, { classOf: (i) => (off(r, i) ? "off" : "") })))),
    h("h4", {}, "Memory"), h("div", { class: "registers" }, run.arrays.map((a) => h("div", { class: "register" },
      h("span", { class: `code array ${a.role}` }, a.name), a.node !== null && nodes[a.node].label !== a.name ? h("small", {}, ` ${nodes[a.node].label}`) : null,
      cells(a.role === "in" ? a : { ...a, values: a.values.map((v, i) => (written.get(a.name)?.has(i) ? v : "·")) }, { classOf: (i) => `${touched.get(a.name)?.has(i) ? "lit" : ""} ${step.kind === "store" && step.name === a.name && off(step, stored.indexOf(i)) ? "off" : ""}` })))));
}

const off = (step, i) => step.difference?.cells.includes(i);

const counter = (name, count) => h("span", { class: "counter" }, h("strong", {}, String(count)), ` ${name}`);

// Carried values after each block of the stream, in the block of the grid that runs.
function carriedTable(run, now) {
  const names = carried(run);
  const block = now.step.block;
  const steps = run.steps.filter((x) => x.block === block);
  const visits = [...new Set(steps.filter((x) => x.kind === "state").map((x) => x.visit_number))].sort((a, b) => a - b);
  const latest = run.steps.indexOf(now.step);
  const rows = visits.map((v) => {
    const after = names.map((n) => [...steps].reverse().find((x) => x.kind === "state" && x.name === n && x.visit_number === v));
    const reached = after.some((x) => x && run.steps.indexOf(x) <= latest);
    const shown = after.find(Boolean);
    return h("tr", { class: reached ? null : "later", "data-visit": v }, h("td", {}, v === 0 ? "at the start" : `after block ${v}`), h("td", { class: "code" }, shown?.visit || ""),
      after.map((x) => h("td", { class: "n code", "data-state": x?.name }, x && x.value ? short(x.value.values) : "–")));
  });
  return h("section", {}, h("h3", {}, `What block ${block} of the grid carries along the stream`),
    h("div", { class: "scroll" }, h("table", { id: "carried" }, h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "positions"), names.map((n) => h("th", { class: "n", title: meaning(run, n) }, n, h("small", {}, ` ${meaning(run, n)}`))))), h("tbody", {}, rows))));
}

const short = (values) => values.slice(0, 4).map(showNumber).join("  ") + (values.length > 4 ? "  …" : "");

// What a state accumulates, from its update: `v7' = max(v7, ...)`.
function meaning(run, name) {
  const update = run.steps.find((x) => x.kind === "state" && x.name === name && x.text.includes("'"));
  if (!update) return "";
  const text = update.text.split("=").slice(1).join("=");
  const word = /\b(max|min|sum|dot|any|all|prod)\(/.exec(text);
  if (!word) return "";
  return { max: "running maximum", min: "running minimum", sum: "running sum", dot: "accumulator", prod: "running product" }[word[1]] || word[1];
}
