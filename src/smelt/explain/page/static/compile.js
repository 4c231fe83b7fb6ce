// Passes, planning and code generation: their times, what they changed, and the cache.
import { report, kernels, h, bars, button, table, note, showTime, showCount, showBytes } from "./core.js";

const CACHE = { "hit-memory": "in memory already", "hit-disk": "from the disk", miss: "generated", none: "–" };
const ms = (x) => (x === null || x === undefined ? "–" : showTime(x * 1e9));

export function compile() {
  const passes = new Map();
  for (const p of report.passes) {
    const old = passes.get(p.name) || { name: p.name, runs: 0, seconds: 0, before: p.before, changed: 0 };
    passes.set(p.name, { ...old, runs: old.runs + 1, seconds: old.seconds + (p.seconds || 0), after: p.after, changed: old.changed + (p.before - p.after) });
  }
  const list = [...passes.values()];
  const slow = [...list].sort((a, b) => b.seconds - a.seconds).slice(0, 8);
  const code = kernels.filter((k) => !["rounds", "loop"].includes(k.kind) && k.kind !== "call");
  const sum = (f) => code.reduce((total, k) => total + (f(k.compile) || 0), 0);
  const phases = [["passes", list.reduce((t, p) => t + p.seconds, 0)], ["lowering", sum((c) => c.lower_seconds)], ["code generation", sum((c) => c.emit_seconds)], ["loading", sum((c) => c.load_seconds)]];
  const rest = (report.total.compile_seconds || 0) - phases.reduce((t, [, x]) => t + x, 0);
  if (rest > 0) phases.splice(1, 0, ["planning", rest]);
  return [h("p", { class: "said" }, report.total.compile_seconds === null ? "Nothing was compiled." : `Compiled in ${ms(report.total.compile_seconds)}: ${showCount(report.passes.length, "pass")}, ${showCount(code.length, "kernel")}.`),
    h("div", { class: "two" }, h("section", {}, h("h3", {}, "Where the time went"), bars(phases.map(([n, t]) => [n, t, ms(t), "model"]))),
      h("section", {}, h("h3", {}, "Slowest passes"), bars(slow.map((p) => [p.name, p.seconds, ms(p.seconds), "model"])))),
    h("h3", {}, "Kernels"), table(["kernel", "code", "why it was not in the cache", "#lowered in", "#generated in", "#loaded in", "#lines of LLVM", "#machine code"],
      code.map((k) => h("tr", {}, h("td", {}, k.name), h("td", {}, CACHE[k.compile.cache]), h("td", {}, k.compile.reason), h("td", { class: "n" }, ms(k.compile.lower_seconds)), h("td", { class: "n" }, ms(k.compile.emit_seconds)),
        h("td", { class: "n" }, ms(k.compile.load_seconds)), h("td", { class: "n" }, k.compile.ir_size ?? "–"), h("td", { class: "n" }, showBytes(k.compile.code_bytes))))),
    h("h3", {}, "Passes, in order"), table(["pass", "#runs", "#operators removed", "#time"], list.map((p) => h("tr", { class: p.changed ? "changed" : null }, h("td", { class: "code" }, p.name), h("td", { class: "n" }, p.runs), h("td", { class: "n" }, p.changed || "–"), h("td", { class: "n" }, ms(p.seconds))))),
    h("details", {}, h("summary", {}, "The graph after the passes"), h("pre", { class: "text", tabindex: 0 }, report.text)),
    h("details", {}, h("summary", {}, "The plan"), h("pre", { class: "text", tabindex: 0 }, report.plan)),
    h("div", { class: "controls" }, button("Download a trace for Perfetto", trace), button("Download the report as JSON", () => download("report.json", JSON.stringify(report)))),
    note("A cache entry's key is a digest of the kernel's text, the code generator and the processor."), ];
}

function trace() {
  let at = 0;
  const events = [];
  const add = (name, seconds, category) => {
    if (!seconds) return;
    events.push({ name, cat: category, ph: "X", pid: 1, tid: 1, ts: at, dur: seconds * 1e6 });
    at += seconds * 1e6;
  };
  report.passes.forEach((p) => add(p.name, p.seconds, "passes"));
  kernels.forEach((k) => ["lower", "emit", "load"].forEach((phase) => add(`${phase} ${k.name}`, k.compile[`${phase}_seconds`], "kernels")));
  download("compile-trace.json", JSON.stringify({ traceEvents: events }));
}

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
