// Before and after, kernels by wasted time, and what was refused.
import { report, nodes, kernels, h, button, bars, table, go, note, colour, showBytes, plainName, showTime,
  showCount, showFactor, shortPlace, kernelTime, marked } from "./core.js";

const tile = (title, before, after, gain) => h("div", { class: "stat" }, h("h3", {}, title),
  h("p", { class: "change" }, before === null ? null : [h("span", { class: "was" }, before), " → "],
    h("strong", {}, after)), h("p", { class: "gain" }, gain));

export function operatorNames(k) {
  return k.operators.map((o) => nodes[o.node]).filter((n) => ["operator", "call", "check"].includes(n.kind))
    .map((n) => plainName(n)).join(" ");
}

export function unfusedKernels() { // launches of the program without fusion
  return report.page.launches_unfused;
}

export function refusals() {
  const last = new Map();
  for (const d of report.decisions) {
    if (d.verdict !== "split" || shareKernel(d)) continue;
    last.set(`${d.a} ${d.b}`, d);
  }
  return [...last.values()].filter((d) => d.saves_bytes || d.saves_ns)
    .sort((a, b) => b.saves_ns - a.saves_ns || b.saves_bytes - a.saves_bytes || a.id - b.id);
}

function shareKernel(d) {
  if (d.a_node === null || d.b_node === null) return false;
  return nodes[d.a_node].kernels.some((k) => nodes[d.b_node].kernels.includes(k));
}

export function overview() {
  const t = report.total;
  const before = unfusedKernels();
  const times = [];
  if (t.measured) times.push(["measured", t.measured.median_ns, showTime(t.measured.median_ns), "after"]);
  if (t.predicted_ns !== null) times.push(["predicted", t.predicted_ns, showTime(t.predicted_ns), "model"]);
  times.push(["for memory alone", t.floor_ns, showTime(t.floor_ns), "floor"]);
  const launches = t.kernels + t.calls;
  return [
    h("div", { class: "stats" },
      tile("Kernels", before > launches ? before : null, String(launches),
        `${showCount(t.operators, "operator")} of the program`),
      tile("Bytes through memory", showBytes(t.bytes_unfused), showBytes(t.bytes),
        t.bytes ? `${showFactor(t.bytes_unfused / t.bytes)} less${t.exact ? "" : ", at most"}` : ""),
      tile("Arrays read and written", String(t.transfers_unfused), String(t.transfers),
        report.memory.temp ? `${showBytes(report.memory.temp)} of intermediates` : "no intermediates in memory"),
      tile("Time of a call", null, showTime(t.measured ? t.measured.median_ns : t.predicted_ns ?? t.floor_ns),
        t.measured ? `median of ${t.measured.runs} runs` : "predicted, not measured")),
    h("div", { class: "two" },
      h("section", {}, h("h3", {}, "Memory traffic"), bars([
        ["without fusion", t.bytes_unfused, showBytes(t.bytes_unfused), "before"],
        ["with fusion", t.bytes, showBytes(t.bytes), "after"],
        ["least possible", report.page.transfers.reduce((sum, x) => sum + x.least_bytes, 0),
          showBytes(report.page.transfers.reduce((sum, x) => sum + x.least_bytes, 0)), "floor"]]),
      button("See every tensor", () => go({ view: "transfers" }), { class: "link" })),
      h("section", {}, h("h3", {}, "Time"), bars(times), report.target.measured ? null
        : note(marked("The speeds of this machine are assumed; `smelt doctor --probe` measures them.")))),
    h("h3", {}, "Kernels, most wasted time first"), kernelTable(),
    refusals().length ? [h("h3", {}, "Not fused, dearest first"), refusalTable()] : null,
  ];
}

function kernelTable() {
  const wasted = (k) => (kernelTime(k) - k.floor_ns) * k.rounds;
  const rows = [...kernels].sort((a, b) => wasted(b) - wasted(a)).map((k) =>
    h("tr", {}, h("td", {}, h("span", { class: `dot ${colour(k.id)}` }),
      button(k.name, () => go({ view: "kernel", k: k.id }), { class: "link" })),
      h("td", { class: "code" }, k.kind === "call" ? "library call " : "", operatorNames(k)),
      h("td", { class: "n" }, showTime(kernelTime(k))), h("td", { class: "n" }, showTime(k.floor_ns)),
      h("td", { class: "n" }, showTime(Math.max(wasted(k), 0))),
      h("td", { class: "n" }, k.bytes_unfused > k.bytes ? showBytes(k.bytes_unfused - k.bytes) : "–"),
      h("td", { class: "code" }, shortPlace(k.places[k.places.length - 1]))));
  return table(["kernel", "operators", "#time", "#floor", "#wasted", "#bytes saved", "last line"], rows);
}

function refusalTable() {
  return table(["pair", "reason", "#would save", "#would cost", ""], refusals().slice(0, 8).map((d) =>
    h("tr", {}, h("td", { class: "code" }, `${d.a_label} → ${d.b_label}`),
      h("td", {}, h("span", { class: "badge split" }, d.code), ` ${d.reason}`),
      h("td", { class: "n" }, d.saves_bytes ? showBytes(d.saves_bytes) : showTime(d.saves_ns)),
      h("td", { class: "n" }, d.costs_ns ? showTime(d.costs_ns) : "–"),
      h("td", {}, button("Why?", () => go({ view: "decision", d: d.id, a: null, b: null }), { class: "link" })))));
}
