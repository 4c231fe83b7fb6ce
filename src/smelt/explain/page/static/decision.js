// The card of a decision: verdict, reason, the inequality with its numbers, the other way.
import { report, nodes, kernels, h, button, select, bars, table, go, state, number, note, showBytes, showCount, showTime,
  shortPlace } from "./core.js";
import { why } from "./why.js";

const flipped = new Set();

export function card(answer) {
  const label = (n) => nodes[n].label + (nodes[n].place ? ` (${shortPlace(nodes[n].place)})` : "");
  const homes = (n) => (nodes[n].kind === "input" ? "memory (an input)"
    : nodes[n].kernels.map((k) => kernels[k].name).join(", ") || "no kernel");
  const verdict = answer.together.length
    ? `${label(answer.a)} and ${label(answer.b)} are in one kernel: ${answer.together.map((k) => kernels[k].name).join(", ")}.`
    : `${label(answer.a)} is in ${homes(answer.a)}, ${label(answer.b)} in ${homes(answer.b)}: not in one kernel.`;
  return h("section", { class: "answer" }, h("p", { class: `verdict ${answer.together.length ? "fused" : "split"}` }, verdict),
    answer.implied ? note(answer.implied) : null, answer.decisions.map((d) => one(report.decisions[d])));
}

function one(d) {
  const fused = d.verdict === "fused";
  const would = fused ? "" : "would ";
  const rows = [[`${would}save${fused ? "s" : ""}`, amount(d.saves_bytes, d.saves_ns)], [`${would}cost${fused ? "s" : ""}`, amount(d.costs_bytes, d.costs_ns)]]
    .filter(([, text]) => text);
  return h("article", { class: `card ${d.verdict}` },
    h("header", {}, h("span", { class: `badge ${d.verdict}` }, fused ? "fused" : "not fused"),
      h("strong", { class: "code" }, ` ${d.a_label} → ${d.b_label} `), h("span", { class: "reason" }, `${d.code} ${d.reason}`)),
    h("p", {}, `Because ${d.sentence}.`),
    rows.length ? h("dl", {}, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])) : null,
    inequality(d), terms(d), h("p", { class: "override" }, override(d)),
    d.fused_ns !== null && d.split_ns !== null && d.fused_ns !== d.split_ns ? toggle(d) : null);
}

function amount(nbytes, ns) {
  if (!nbytes && !ns) return "";
  return [nbytes ? showBytes(nbytes) : "", ns ? showTime(ns) : ""].filter(Boolean).join(" = ");
}

function inequality(d) {
  if (d.fused_ns === null || d.split_ns === null) return null;
  const sign = d.fused_ns < d.split_ns ? "<" : d.fused_ns > d.split_ns ? ">" : "=";
  const gap = Math.abs(d.split_ns - d.fused_ns);
  return h("div", { class: "inequality" },
    bars([["in one kernel", d.fused_ns, showTime(d.fused_ns), d.verdict === "fused" ? "after" : "model"],
      ["separate: kernels, traffic, launches", d.split_ns, showTime(d.split_ns), d.verdict === "split" ? "after" : "model"]]),
    h("p", { class: "formula" }, h("var", {}, "T fused"), ` = ${showTime(d.fused_ns)}  ${sign}  `, h("var", {}, "T separate"),
      ` = ${showTime(d.split_ns)}`, gap ? `: ${d.split_ns >= d.fused_ns ? "fused" : "separate"} is ${showTime(gap)} faster` : ""));
}

function terms(d) {
  const parts = Object.entries(d.terms).filter(([, ns]) => ns > 0).sort((x, y) => y[1] - x[1]);
  if (!parts.length) return null;
  return h("details", {}, h("summary", {}, "What the one kernel spends its time on"),
    bars(parts.map(([name, ns]) => [name, ns, showTime(ns), "model"])), note("Some parts overlap, so they do not add up."));
}

function override(d) {
  const code = /`([^`]+)`/.exec(d.override);
  if (code && code[1].includes("(a, b)")) {
    const named = (name, label) => /^v\d+$/.test(name) ? label : name;  // v3: a number, no name
    const [a, b] = [named(d.a, d.a_label), named(d.b, d.b_label)];
    return ["To get the opposite: ", h("code", {}, code[1].replace("(a, b)", `("${a}", "${b}")`))];
  }
  return d.override;
}

function toggle(d) {
  const change = () => { if (flipped.has(d.id)) flipped.delete(d.id); else flipped.add(d.id); go({}); };
  return h("div", { class: "toggle" },
    h("label", {}, h("input", { type: "checkbox", checked: flipped.has(d.id), onchange: change }),
      d.verdict === "fused" ? " Suppose they were separate" : " Suppose they were fused"), supposition());
}

// Totals if the flipped decisions went the other way, from each decision's own numbers.
export function supposed() {
  const t = report.total;
  let [ns, bytes] = [t.predicted_ns, t.bytes];
  for (const id of flipped) {
    const d = report.decisions[id];
    const sign = d.verdict === "fused" ? 1 : -1;
    ns += sign * (d.split_ns - d.fused_ns);
    bytes += sign * d.saves_bytes;
  }
  return { ns, bytes };
}

function supposition() {
  if (!flipped.size || report.total.predicted_ns === null) return null;
  const now = supposed();
  return h("p", { class: "supposed", "aria-live": "polite" }, `Then the program would take about ${showTime(now.ns)} instead of `,
    `${showTime(report.total.predicted_ns)} and move ${showBytes(now.bytes)} instead of ${showBytes(report.total.bytes)} `,
    "(an estimate from this pair alone; decisions depend on one another).");
}

// What hangs on a decision: the time between its two verdicts, or else what one of them saves.
const stake = (d) => (d.fused_ns !== null && d.split_ns !== null && d.fused_ns !== d.split_ns ? Math.abs(d.fused_ns - d.split_ns) : Math.max(d.saves_ns, d.costs_ns));
const byValue = (list) => [...list].sort((x, y) => stake(y) - stake(x) || y.saves_bytes - x.saves_bytes || x.id - y.id);

export function decision() {
  const listed = nodes.filter((n) => n.kind !== "constant");
  const options = listed.map((n) => [n.id, `${n.label}${n.place ? "  " + shortPlace(n.place) : ""}`]);
  let a = number("a", null);
  let b = number("b", null);
  const chosen = report.decisions[number("d", -1)];
  if (chosen && a === null && b === null) [a, b] = [chosen.a_node, chosen.b_node];
  const ranked = byValue(report.decisions);
  if (a === null && b === null) {
    const first = ranked.find((d) => d.a_node !== null && d.b_node !== null);
    if (first) [a, b] = [first.a_node, first.b_node];
  }
  const pairs = h("div", { class: "controls" }, select("Why is", options, a, (v) => go({ a: v, b: b ?? v, d: null })),
    select("(not) in one kernel with", options, b, (v) => go({ a: a ?? v, b: v, d: null })));
  const answer = chosen && (a === null || b === null || state.d !== undefined) ? h("section", { class: "answer" }, one(chosen))
    : a !== null && b !== null && nodes[a] && nodes[b] ? card(why(a, b)) : null;
  const only = state.only || "all";
  const order = state.order || "value";
  const rows = (order === "value" ? ranked : report.decisions).filter((d) => only === "all" || d.verdict === only).map((d) => h("tr",
    { class: chosen === d ? "chosen" : null }, h("td", { class: "n" }, d.id + 1),
    h("td", {}, h("span", { class: `badge ${d.verdict}` }, d.verdict === "fused" ? "fused" : "not fused")),
    h("td", {}, button(`${d.a_label} → ${d.b_label}`, () => { go({ d: d.id, a: null, b: null }); scrollTo(0, 0); }, { class: "link code" })),
    h("td", {}, `${d.code} ${d.reason}`), h("td", { class: "n" }, d.saves_bytes ? showBytes(d.saves_bytes) : "–"),
    h("td", { class: "n" }, d.fused_ns !== null && d.split_ns !== null ? showTime(Math.abs(d.split_ns - d.fused_ns)) : "–")));
  const choices = (key, chosenValue, list) => list.map(([value, text]) =>
    button(text, () => go({ [key]: value }), { "aria-pressed": String(chosenValue === value) }));
  return [pairs, answer, h("h3", {}, `All ${showCount(report.decisions.length, "decision")}, ${order === "value" ? "the most valuable first" : "in the planner's order"}`),
    h("div", { class: "controls" }, choices("only", only, [["all", "all"], ["fused", "fused"], ["split", "not fused"]]),
      choices("order", order, [["value", "by value"], ["planner", "in the planner's order"]])),
    table(["#no.", "verdict", "pair", "reason", "#saves", "#faster by"], rows)];
}
