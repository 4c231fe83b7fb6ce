// A kernel's text with its axes coloured by role, and the generated code.
import { kernels, page, nodes, report, h, button, select, table, go, state, number, note, colour, showBytes,
  showCount, shortPlace } from "./core.js";
import { operatorNames } from "./overview.js";

export const ROLES = { grid: "independent blocks, for threads", stream: "block by block, carrying state", tile: "all at once, in lanes and registers" };
const WORDS = new Set(["kernel", "axis", "grid", "stream", "with", "over", "as", "in", "of", "for", "merge", "where", "parts", "split"]);

export function pickKernel(list = kernels) {
  return list.find((k) => k.id === number("k", -1)) || list[0];
}

export function chooseKernel(list, chosen, change = (v) => go({ k: v, at: null, block: null, access: null })) {
  return select("Kernel", list.map((k) => [k.id, `${k.name}  ${operatorNames(k).split(" ").slice(0, 5).join(" ")}`]), chosen.id, change);
}

// One line of kernel text as coloured pieces.
export function pieces(text, k) {
  const roles = new Map((k ? k.axes : []).map((a) => [a.name, a.role]));
  const arrays = new Map((k ? k.params : []).map((p) => [p.name, p.role]));
  return text.split(/([A-Za-z_][A-Za-z_0-9]*'?|\d[\d.e+-]*)/).map((word) => {
    if (roles.has(word)) return h("span", { class: `axis ${roles.get(word)}`, "data-axis": word, title: describe(k, word) }, word);
    if (arrays.has(word)) return h("span", { class: `array ${arrays.get(word)}` }, word);
    if (WORDS.has(word)) return h("span", { class: "word" }, word);
    if (/^\d/.test(word)) return h("span", { class: "number" }, word);
    return word;
  });
}

function describe(k, name) {
  const a = k.axes.find((x) => x.name === name);
  return `${a.name}: ${a.size} positions, ${a.role}${a.block ? `, blocks of ${a.block}` : ""}`;
}

function programs(device) {
  return (device?.launches || []).filter((x) => x.code).map(({ name, schedule, code, candidates }) => [
    `// ${name}: ${schedule.blocks}, ${schedule.reason}${schedule.dropped ? `; ${schedule.dropped}` : ""}`,
    `// ${code.registers} registers, ${code.spills} bytes spilled, ${showBytes(code.shared_bytes)} shared, ${showCount(code.warps, "warp")}, occupancy ${Math.round(100 * code.occupancy)}%; compiled by ${code.compiler}, not run`,
    ...candidates.map((c) => `// candidate ${c.blocks}, ${c.reason}${c.dropped ? `; dropped: ${c.dropped}` : ""}`),
    code.assembly.trim(),
  ].join("\n")).join("\n\n");
}

export function kernel() {
  const listed = kernels.filter((k) => !["rounds", "loop"].includes(k.kind));
  if (!listed.length) return [note("The program has no kernel.")];
  const k = pickKernel(listed);
  const code = page.codes.find((c) => c.kernel === k.id);
  const shown = state.code || "text";
  const texts = [["text", "Kernel", k.text], ["llvm", "LLVM", code?.llvm], ["asm", `Assembly (${report.target.isa})`, code?.asm],
    ["triton", `Triton (${report.device?.arch})`, k.device?.source], ["ptx", `Compiled (${report.device?.arch})`, programs(k.device)]].filter(([, , t]) => t);
  const text = (texts.find(([id]) => id === shown) || texts[0] || [])[2];
  const body = !text ? note("A library call: it has no text.")
    : shown === "text" || texts.length === 1 ? h("pre", { class: "text", tabindex: 0 }, text.split("\n").map((line) => h("span", { class: "line" }, pieces(line, k), "\n")))
    : h("pre", { class: "text long", tabindex: 0 }, text);
  const light = (on) => (e) => document.querySelectorAll(`[data-axis="${e.currentTarget.dataset.for}"]`).forEach((x) => x.classList.toggle("lit", on));
  const axes = k.axes.map((a) => h("tr", { "data-for": a.name, tabindex: 0, onmouseenter: light(true), onmouseleave: light(false), onfocus: light(true), onblur: light(false) },
    h("td", {}, h("span", { class: `axis ${a.role}` }, a.name)), h("td", { class: "n" }, a.size), h("td", {}, a.role),
    h("td", { class: "n" }, a.block ?? "–"), h("td", {}, ROLES[a.role])));
  const params = k.params.map((p) => h("tr", {}, h("td", { class: "code" }, h("span", { class: `array ${p.role}` }, p.name)),
    h("td", {}, p.role === "in" ? "read" : "written"), h("td", { class: "code" }, `${p.dtype}[${p.shape}]`),
    h("td", { class: "code" }, p.node === null ? "" : nodes[p.node].label), h("td", { class: "n" }, showBytes(p.touched_bytes))));
  const order = k.operators.map((o) => nodes[o.node]).filter((n) => n.kind !== "constant");
  return [h("div", { class: "controls" }, chooseKernel(listed, k), texts.length > 1 ? texts.map(([id, label]) =>
    button(label, () => go({ code: id }), { "aria-pressed": String(shown === id) })) : null),
  h("div", { class: "wide-narrow" }, h("section", {}, body), h("aside", {}, h("h3", {}, "Axes and their roles"),
    table(["axis", "#size", "role", "#block", ""], axes), h("h3", {}, "Arrays"), table(["name", "", "type", "value", "#bytes"], params),
    h("h3", {}, showCount(order.length, "operator")), h("ol", { class: "chips" }, order.map((n) =>
      h("li", {}, button(n.label, () => go({ view: "graph", a: n.id, b: null }), { class: "chip", title: shortPlace(n.place) })))),
    code && code.tasks.length ? note(`On this machine: ${code.tasks.map((n) => showCount(n, "task")).join(", then ")} for ${showCount(report.target.cores, "thread")}; `,
      `vectors of ${report.target.vector_bytes} bytes.`) : null)),
  h("p", { class: "note" }, h("span", { class: `dot ${colour(k.id)}` }), ` ${k.name} reads ${showBytes(k.read_bytes)} and writes ${showBytes(k.written_bytes)}.`)];
}
