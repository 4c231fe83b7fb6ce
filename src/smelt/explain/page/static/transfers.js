// Reads and writes of every value, with fusion and without, and the speedup formula.
import { page, report, nodes, kernels, h, bars, table, note, showBytes, showTime, showFactor, showRate, marked } from "./core.js";

export function transfers() {
  const rows = [...page.transfers].sort((a, b) => all(b, "_unfused") - all(a, "_unfused") || a.node - b.node);
  const sum = (f) => rows.reduce((total, r) => total + f(r), 0);
  const times = (n) => (n ? `${n}×` : "–");
  const body = rows.map((r) => h("tr", {}, h("td", { class: "code" }, nodes[r.node].label), h("td", {}, role(nodes[r.node])),
    h("td", { class: "n" }, times(r.writes_unfused)), h("td", { class: "n" }, times(r.reads_unfused)), h("td", { class: "n" }, showBytes(all(r, "_unfused"))),
    h("td", { class: "n" }, times(r.writes)), h("td", { class: "n" }, times(r.reads)), h("td", { class: "n strong" }, all(r, "") ? showBytes(all(r, "")) : "stays in registers"),
    h("td", { class: "n" }, r.least_bytes ? showBytes(r.least_bytes) : "–")));
  const [before, after, least] = [sum((r) => all(r, "_unfused")), sum((r) => all(r, "")), sum((r) => r.least_bytes)];
  body.push(h("tr", { class: "total", id: "transfer-total" }, h("th", { scope: "row" }, "total"), h("td", {}), h("td", { class: "n" }, `${sum((r) => r.writes_unfused)}×`),
    h("td", { class: "n" }, `${sum((r) => r.reads_unfused)}×`), h("td", { class: "n" }, showBytes(before)), h("td", { class: "n" }, `${sum((r) => r.writes)}×`),
    h("td", { class: "n" }, `${sum((r) => r.reads)}×`), h("td", { class: "n strong" }, showBytes(after)), h("td", { class: "n" }, showBytes(least))));
  return [h("p", { class: "said", id: "transfer-said" }, "Fusion saves ", h("strong", {}, showBytes(before - after)), ` of ${showBytes(before)}: ${showBytes(after)} still cross memory; `,
    least >= after ? "no plan could move less." : `${showBytes(least)} must in any plan.`),
  bars([["without fusion", before, showBytes(before), "before"], ["with fusion", after, showBytes(after), "after"], ["least possible", least, showBytes(least), "floor"]]),
  h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { colspan: 2 }, ""), h("th", { colspan: 3, class: "group" }, "without fusion"), h("th", { colspan: 3, class: "group" }, "with fusion"), h("th", {}, "")),
    h("tr", {}, ["value", "", "#writes", "#reads", "#bytes", "#writes", "#reads", "#bytes", "#least"].map((c) => h("th", { scope: "col", class: c.startsWith("#") ? "n" : null }, c.replace("#", ""))))), h("tbody", {}, body))),
  formula(before, after)];
}

const all = (r, suffix) => r[`read_bytes${suffix}`] + r[`written_bytes${suffix}`];
const role = (n) => (n.kind === "input" ? "input" : n.output ? "result" : "between operators");

function formula(before, after) {
  const t = report.target;
  const level = (bytes) => t.rates.find((r) => r.nbytes !== null && r.nbytes >= bytes) || t.rates[t.rates.length - 1];
  const working = Math.max(...kernels.map((k) => k.bytes), 0);
  const rate = level(working);
  const launches = page.launches_unfused;
  const fusedLaunches = report.total.kernels + report.total.calls;
  const [separate, fused] = [before / rate.copy + launches * t.launch_ns, after / rate.copy + fusedLaunches * t.launch_ns];
  const measured = report.total.measured?.median_ns;
  if (!fused) return null; // nothing is computed
  return h("section", {}, h("h3", {}, "The speedup by the formula"), h("p", { class: "formula" }, "T = bytes / bandwidth + launches × launch time"),
    table(["", "#bytes", "#at", "#launches", "#T"], [["separate", before, launches, separate], ["fused", after, fusedLaunches, fused]].map(([name, bytes, n, ns]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "n" }, showBytes(bytes)), h("td", { class: "n" }, `${showRate(rate.copy)} (${rate.level.toUpperCase()})`), h("td", { class: "n" }, `${n} × ${showTime(t.launch_ns)}`), h("td", { class: "n strong" }, showTime(ns))))),
    h("p", {}, "Predicted speedup: ", h("strong", {}, showFactor(separate / fused)), measured ? `. The fused program was measured at ${showTime(measured)}, ${showFactor(measured / fused)} of the formula's time` : "", "."),
    note(marked(t.measured ? "Bandwidths were measured on this machine. " : "Bandwidths of this machine are assumed; `smelt doctor --probe` measures them. "),
      "The formula knows bytes and launches alone: it misses arithmetic (exponentials, products), data that stays in a cache between launches, and memory that is touched for the first time."));
}
