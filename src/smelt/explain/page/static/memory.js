// The arena as time and offset: which value is where, from its writer to its last reader.
import { report, nodes, kernels, h, s, table, note, colour, showBytes } from "./core.js";

export function memory() {
  const arena = report.buffers.filter((b) => b.place === "arena");
  const names = ["argument", "output", "alias", "temp", "computed", "packed", "code"];
  const labels = { argument: "inputs", output: "results", alias: "results in inputs' memory", temp: "intermediates", computed: "constants computed once", packed: "constants packed once", code: "machine code" };
  const summary = table(["memory of a call", "#bytes"], names.filter((n) => report.memory[n]).map((n) => h("tr", {}, h("td", {}, labels[n]), h("td", { class: "n" }, showBytes(report.memory[n])))));
  const rows = report.buffers.map((b) => h("tr", {}, h("td", { class: "code" }, nodes[b.node].label), h("td", {}, b.place), h("td", { class: "n" }, showBytes(b.nbytes)),
    h("td", { class: "n" }, b.offset === null ? "–" : b.offset.toLocaleString("en")), h("td", {}, life(b)), h("td", { class: "code" }, b.reuses === null ? "" : `takes over ${nodes[b.reuses].label}`)));
  return [arena.length ? picture(arena) : note("No value between kernels is stored: the arena is empty. Everything between operators stays in registers and caches."),
    h("div", { class: "two" }, summary, h("section", {}, h("p", {}, "A value lives in the arena from the kernel that writes it to its last reader; then its place is free for others. Inputs and results have memory of their own."))),
    h("h3", {}, "Buffers"), table(["value", "place", "#bytes", "#offset", "kernels", ""], rows)];
}

const kernelName = (k) => kernels[k]?.name ?? String(k);
const life = (b) => (b.place === "input" ? `until ${kernelName(b.last)}` : `${kernelName(b.first)} to ${kernelName(b.last)}`);

function picture(arena) {
  const last = Math.max(...report.buffers.map((b) => b.last), 0) + 1;
  const top = Math.max(...arena.map((b) => b.offset + b.nbytes));
  const [width, height, left, foot] = [900, 320, 74, 30];
  const x = (k) => left + ((width - left) * k) / last;
  const y = (offset) => height - (height * offset) / top;
  const live = Array.from({ length: last }, (_, k) => arena.filter((b) => b.first <= k && k <= b.last).reduce((sum, b) => sum + b.nbytes, 0));
  const peak = live.indexOf(Math.max(...live));
  const boxes = arena.map((b) => {
    const [x0, y0, w, hh] = [x(b.first) + 2, y(b.offset + b.nbytes) + 1, x(b.last + 1) - x(b.first) - 4, Math.max((height * b.nbytes) / top - 2, 2)];
    return s("g", { class: `buffer ${colour(b.node)}`, tabindex: 0, role: "img", "aria-label": `${nodes[b.node].label}: ${showBytes(b.nbytes)} at ${b.offset}` },
      s("title", {}, `${nodes[b.node].label}: ${showBytes(b.nbytes)} at offset ${b.offset}, ${life(b)}`), s("rect", { x: x0, y: y0, width: w, height: hh, rx: 5 }),
      hh > 16 && w > 60 ? s("text", { x: x0 + w / 2, y: y0 + hh / 2 + 4 }, nodes[b.node].label) : null);
  });
  const ticks = Array.from({ length: last }, (_, k) => s("text", { x: (x(k) + x(k + 1)) / 2, y: height + 20, class: "tick" }, last <= 24 || k % Math.ceil(last / 24) === 0 ? kernelName(k) : ""));
  return h("div", { class: "scroll" }, s("svg", { viewBox: `0 -14 ${width + 10} ${height + foot + 18}`, class: "arena", role: "group", "aria-label": "arena over time" },
    s("rect", { x: x(peak), y: 0, width: x(peak + 1) - x(peak), height, class: "peak" }, s("title", {}, `most at ${kernelName(peak)}: ${showBytes(live[peak])}`)),
    [0, 0.5, 1].map((f) => s("g", { class: "rule" }, s("line", { x1: left, x2: width, y1: y(f * top), y2: y(f * top) }), s("text", { x: left - 6, y: y(f * top) + 4, class: "axis-text" }, showBytes(f * top)))),
    boxes, ticks), note(`Arena of ${showBytes(top)}; the shaded kernel holds most, ${showBytes(live[peak])}. Without reuse it would be ${showBytes(arena.reduce((sum, b) => sum + b.nbytes, 0))}.`));
}
