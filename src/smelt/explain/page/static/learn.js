// The way of each value through memory: a row for each kernel, without fusion and with it.
import { page, report, nodes, lessons, lesson, isCourse, h, button, go, note, showBytes, plainName, showCount, showNumber, marked } from "./core.js";

const MOST = 14; // rows of one side

export function learn() {
  return [isCourse ? lessonList() : null, page.run.fused.length ? trips() : note(page.run.note),
    h("div", { class: "controls" }, button("Play it, step by step", () => go({ view: "step" })), button("See who computes what", () => go({ view: "blocks" })),
      button("Why is it one kernel, or not?", () => go({ view: "graph" })))];
}

function lessonList() {
  const shown = lessons[lesson];
  return [h("ol", { class: "lessons" }, lessons.map((x, k) => h("li", {}, button([h("strong", { class: "code" }, x.name), h("span", {}, x.sentence)],
    () => { location.hash = `#learn/program=${k}`; }, { class: "lesson", "aria-pressed": String(k === lesson) })))),
  h("div", { class: "two" }, h("section", {}, h("h3", {}, marked(shown.title)), h("p", {}, marked(shown.text))), h("section", {}, h("h3", {}, "The program"), h("pre", { class: "text", tabindex: 0 }, shown.code)))];
}

// The first number of an array, or of what a step has in registers.
const first = (values) => (values.length ? showNumber(values[0]) : "");
const labelOf = (a) => (a.node === null ? a.name : nodes[a.node].label);

function chip(a, role) {
  return h("span", { class: `trip ${role}`, title: `${a.dtype}[${a.shape.join(",")}] at the small size` }, h("span", { class: "code" }, labelOf(a)), h("strong", {}, first(a.values)));
}

function row(run) {
  const reads = run.arrays.filter((a) => a.role === "in");
  const writes = run.arrays.filter((a) => a.role === "out");
  return h("li", { class: "launch" }, h("div", { class: "side-memory" }, reads.map((a) => chip(a, "in"))), h("div", { class: "arrow", "aria-label": "load" }, "→"),
    h("div", { class: "processor" }, h("span", { class: "code" }, operators(run)), inRegisters(run)),
    h("div", { class: "arrow", "aria-label": "store" }, "→"), h("div", { class: "side-memory" }, writes.map((a) => chip(a, "out"))));
}

const operators = (run) => run.nodes.map((n) => nodes[n]).filter((n) => ["operator", "call", "source"].includes(n.kind))
  .map((n) => plainName(n)).join(" → ") || run.name;

// What the first element becomes: values of the first block, up to the first store.
function inRegisters(run) {
  const steps = run.steps.filter((x) => x.block === 0);
  if (steps.some((x) => x.kind === "state")) {
    const names = [...new Set(steps.filter((x) => x.kind === "state").map((x) => x.name))];
    return h("small", {}, `block by block, carrying ${names.join(", ")}`);
  }
  const values = steps.filter((x) => x.kind === "value" && x.value && (x.loads.length || x.node !== null));
  const text = values.map((x, k) => (k === 0 ? "" : x.loads.length && values[k - 1].loads.length ? ", " : " → ") + first(x.value.values)).join("");
  return values.length > 1 && values.length <= 12 ? h("span", { class: "values" }, text) : null;
}

function side(title, runs, kind) {
  const count = runs.reduce((sum, r) => sum + r.arrays.length, 0);
  return h("section", { class: "trips" }, h("h3", {}, title, h("small", {}, ` ${showCount(runs.length, "kernel")}, `, h("strong", { class: kind }, `${count}`), " memory operations")),
    h("div", { class: "trip-head" }, h("span", {}, "memory"), h("span", {}, "processor"), h("span", {}, "memory")),
    h("ol", { class: "launches" }, runs.slice(0, MOST).map(row)), runs.length > MOST ? note(`… and ${runs.length - MOST} more`) : null);
}

function trips() {
  const { fused, unfused } = page.run;
  const [before, after] = [unfused, fused].map((runs) => runs.reduce((sum, r) => sum + r.arrays.length, 0));
  const t = report.total;
  return [h("p", { class: "said", id: "learn-said" }, "Without fusion ", h("strong", {}, String(before)), " memory operations, with fusion ", h("strong", {}, String(after)),
    `: an array is loaded or stored that often. At the real size that is ${showBytes(t.bytes_unfused)} against ${showBytes(t.bytes)}.`),
  h("div", { class: "both" }, side("Without fusion", unfused, "split"), side("With fusion", fused, "fused")),
  note("Numbers are the first elements of each array, computed at a small size. Constants and views are left out: they move nothing.", page.run.note ? ` ${page.run.note}` : "")];
}
