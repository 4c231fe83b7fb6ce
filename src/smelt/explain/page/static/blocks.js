// Which block of the grid writes a cell, and which cells of every operand that block reads.
import { page, kernels, nodes, report, h, select, table, go, number, note, colour, button, state, showBytes, showCount, showRate, scheduleNote, limits } from "./core.js";
import { cells, position, sizesText } from "./cells.js";

const MOST_THREADS = 8; // threads whose blocks are listed
const MOST_TAKEN = 16; // blocks that are listed of a thread

const ranges = (b) => Object.entries(b.ranges).map(([a, [from, to]]) => `${a} ${from}${to - from > 1 ? `..${to - 1}` : ""}`).join(", ") || "all";

export function runs() {
  return [...page.run.fused, ...page.run.unfused];
}

export function chooseRun() {
  const all = runs();
  const at = Math.min(number("run", 0), all.length - 1);
  const list = select("Launch", all.map((r, k) => [k, `${r.kernel === null ? "unfused" : "fused"}: ${r.name}`]), at,
    (v) => go({ run: v, block: null }));
  return [all[at], list];
}

export function blocks() {
  if (!page.run.fused.length) return [note(page.run.note), machine()];
  const [run, list] = chooseRun();
  if (!run.blocks.length) return [h("div", { class: "controls" }, list), note("This launch has no block: its arrays are empty."), machine()];
  limits.block = run.blocks.length - 1;
  const chosen = run.blocks[number("block", 0)] ? number("block", 0) : 0;
  const block = run.blocks[chosen];
  const writer = (name) => {
    const owner = new Map();
    run.blocks.forEach((b, k) => b.stores.filter((c) => c.array === name).forEach((c) => c.cells.forEach((x) => owner.set(x, k))));
    return owner;
  };
  const arrays = run.arrays.map((a) => {
    const owner = a.role === "out" ? writer(a.name) : null;
    const side = a.role === "out" ? block.stores : block.loads;
    const lit = new Set(side.filter((c) => c.array === a.name).flatMap((c) => c.cells));
    const readers = (at) => {
      const k = run.blocks.findIndex((b) => b.loads.some((c) => c.array === a.name && c.cells.includes(at)));
      return k < 0 ? undefined : k;
    };
    return h("section", { class: "operand" }, h("h3", {}, h("span", { class: `array ${a.role}` }, a.name), ` ${a.dtype}[${a.shape.join(",")}]`,
      h("small", {}, `${a.node !== null && nodes[a.node].label !== a.name ? ` ${nodes[a.node].label}` : ""}, ${a.role === "out" ? "written" : "read"}`)),
    cells(a, { label: a.name, classOf: (at) => `${owner && owner.has(at) ? colour(owner.get(at)) : ""} ${lit.has(at) ? "lit" : "dim"}`,
      onpick: (at) => go({ block: (owner ? owner.get(at) : readers(at)) ?? "none", cell: `${a.name}[${position(at, a.shape)}]` }) }));
  });
  const fusedLaunches = page.run.fused.length;
  return [h("div", { class: "controls" }, list,
    button("‹ block", () => go({ block: Math.max(chosen - 1, 0), cell: null })),
    button("block ›", () => go({ block: Math.min(chosen + 1, run.blocks.length - 1), cell: null }))),
  h("p", { class: "said", "aria-live": "polite", id: "block-said" }, ...said(run, chosen)),
  threads(run, chosen),
  h("div", { class: "operands" }, arrays),
  note(`Sizes are shrunk to ${sizesText(page.run.sizes)}, and blocks with them. `,
    `With fusion ${showCount(fusedLaunches, "launch")}, without it ${page.run.unfused.length}: there every operator is a launch of its own, and every value between them goes through memory.`),
  machine()];
}

// Which thread takes which block: the next one whenever a thread is free.
function threads(run, chosen) {
  const count = run.blocks.length;
  const busy = Math.min(report.target.cores, run.block_count);
  const shares = Array.from({ length: Math.min(busy, MOST_THREADS) }, (_, t) => run.blocks.map((_, k) => k).filter((k) => k % busy === t));
  const some = (list) => list.slice(0, MOST_TAKEN).join(", ") + (list.length > MOST_TAKEN || count < run.block_count ? ", …" : "");
  const takes = shares.slice(0, 2).map((list, t) => `thread ${t} takes ${list.length > 1 ? "blocks" : "block"} ${some(list)}`).join(", ");
  const rest = busy > 2 ? ", and so on" : "";
  const idle = report.target.cores - busy;
  return h("section", { id: "threads" }, h("p", {}, `${showCount(run.block_count, "block")}, ${showCount(report.target.cores, "thread")}: ${takes}${rest}`,
    run.block_count > busy ? ", if all blocks take equally long. A thread that is free takes the next block." : ".", idle ? ` ${showCount(idle, "thread")} ${idle === 1 ? "has" : "have"} nothing to do.` : ""),
  h("div", { class: "shares" }, shares.map((list, t) => h("div", { class: "share" }, h("span", {}, `thread ${t}`),
    list.slice(0, MOST_TAKEN).map((k) => button(String(k), () => go({ block: k, cell: null }), { class: `chip ${colour(k)}`, "aria-label": `block ${k}`, "aria-pressed": String(k === chosen) })), list.length > MOST_TAKEN ? " …" : null))));
}

function said(run, chosen) {
  if (state.block === "none") return [h("strong", {}, `${state.cell}: `), `none of the first ${run.blocks.length} blocks accesses it, and of ${run.block_count} only these are recorded.`];
  const b = run.blocks[chosen];
  const count = (list) => list.reduce((sum, c) => sum + c.cells.length, 0);
  return [state.cell ? h("strong", {}, `${state.cell}: `) : null, "block ", h("strong", {}, String(chosen)), ` of ${run.block_count} (${ranges(b)}) reads `,
    `${showCount(count(b.loads), "cell")} and writes ${showCount(count(b.stores), "cell")}`,
    ` (${b.stores.map((c) => c.array).join(", ") || "nothing: its carried values are merged later"}).`];
}

function machine() {
  const t = report.target;
  const rows = kernels.filter((k) => k.kind === "kernel").map((k) => {
    const code = page.codes.find((c) => c.kernel === k.id);
    const grid = k.axes.filter((a) => a.role === "grid");
    const count = grid.reduce((n, a) => n * Math.ceil(a.size / (a.block || a.size || 1)), 1);
    const item = Math.max(...k.params.map((p) => (p.touched ? Math.round(p.touched_bytes / p.touched) : 4)), 1);
    return h("tr", {}, h("td", {}, h("span", { class: `dot ${colour(k.id)}` }), k.name), h("td", { class: "n" }, count.toLocaleString("en")),
      h("td", { class: "n" }, code && code.tasks.length ? code.tasks.map((n) => n.toLocaleString("en")).join(" + ") : "–"),
      h("td", { class: "n" }, code && code.tasks.length ? code.tasks.map((n) => Math.ceil(n / t.cores).toLocaleString("en")).join(" + ") : "–"),
      h("td", { class: "n" }, Math.floor(t.vector_bytes / item)), h("td", { class: "n" }, showBytes(k.bytes / Math.max(count, 1))),
      h("td", {}, k.level.toUpperCase()));
  });
  const caches = t.rates.map((r) => h("tr", {}, h("td", {}, r.level.toUpperCase()), h("td", { class: "n" }, r.nbytes === null ? "–" : showBytes(r.nbytes)),
    h("td", { class: "n" }, showRate(r.read)), h("td", { class: "n" }, showRate(r.write))));
  return h("section", {}, h("h3", {}, "At the real size, on this machine"), h("p", {}, `${t.name}: ${showCount(t.cores, "core")}, vectors of ${t.vector_bytes} bytes (${t.isa}). `,
    `${showCount(t.cores, "thread")} take the next tasks whenever they are free; a task runs one or more blocks; the lanes of a vector take neighbouring elements.`),
  h("div", { class: "two" }, table(["kernel", "#blocks", "#tasks", "#a thread", "#lanes", "#bytes a block", "data fits"], rows),
    table(["memory", "#size", "#reads", "#writes"], caches)),
  scheduleNote());
}
