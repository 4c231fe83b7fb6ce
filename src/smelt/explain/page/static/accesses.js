// Lanes of one access against 32-byte sectors and cache lines.
import { page, kernels, report, h, s, select, table, go, number, note, button, showCount, scheduleNote } from "./core.js";
import { chooseKernel, pickKernel } from "./kernel.js";

const VERDICT = { same: "broadcast: all lanes read one element", contiguous: "coalesced: neighbouring lanes, neighbouring elements",
  strided: "strided: neighbouring lanes are apart", scattered: "scattered: positions follow no stride" };

export function verdict(a, lanes) {
  if (lanes.kind === "scattered" && lanes.offsets.every((o) => o === null)) return "depends on data: positions are read from an array";
  if (lanes.kind === "strided" && lanes.stride === -1) return "coalesced, backwards";
  return VERDICT[lanes.kind] + (lanes.kind === "strided" ? ` by ${lanes.stride * a.itemsize} bytes` : "");
}

const good = (lanes) => lanes.sectors <= lanes.least + 1;

export function accesses() {
  const listed = kernels.filter((k) => page.accesses.some((a) => a.kernel === k.id));
  if (!listed.length) return [note("No kernel accesses memory.")];
  const k = pickKernel(listed);
  const all = page.accesses.filter((a) => a.kernel === k.id);
  const a = all[number("access", 0)] || all[0];
  const axis = Math.min(number("axis", a.chosen), a.lanes.length - 1);
  const lanes = a.lanes[axis];
  const active = lanes.offsets.filter((o) => o !== null).length;
  const rows = all.map((x, i) => {
    const l = x.lanes[x.chosen];
    return h("tr", { class: x === a ? "chosen" : null }, h("td", {}, button(x.text, () => go({ access: i, axis: null }), { class: "link code" })),
      h("td", {}, x.role === "in" ? "load" : "store"), h("td", { class: "code" }, l.axis || "–"),
      h("td", {}, h("span", { class: `badge ${good(l) ? "fused" : "split"}` }, verdict(x, l).split(":")[0].split(" by")[0])),
      h("td", { class: "n" }, l.sectors), h("td", { class: "n" }, l.lines_128), h("td", { class: "n" }, l.lines_64));
  });
  return [h("div", { class: "controls" }, chooseKernel(listed, k, (v) => go({ k: v, access: null, axis: null })),
    select("Access", all.map((x, i) => [i, `${x.role === "in" ? "load" : "store"} ${x.text}`]), all.indexOf(a), (v) => go({ access: v, axis: null })),
    a.lanes.length > 1 ? select("Lanes along", a.lanes.map((l, i) => [i, l.axis]), axis, (v) => go({ axis: v })) : null),
  h("p", { class: "said", id: "access-said", "aria-live": "polite" }, h("strong", { class: good(lanes) ? "fused" : "split" }, verdict(a, lanes)),
    `. ${showCount(lanes.offsets.length, "lane")}${lanes.axis ? ` along ${lanes.axis}` : ""} of ${a.itemsize} bytes touch ${showCount(lanes.sectors, "sector")} of 32 bytes`,
    ` (${showCount(lanes.least, "sector")} would do for their data) in ${showCount(lanes.lines_128, "line")} of 128 bytes`,
    active < lanes.offsets.length && lanes.offsets.some((o) => o !== null) ? `; ${lanes.offsets.length - active} lanes are out of bounds.` : "."),
  picture(a, lanes), h("h3", {}, `All accesses of ${k.name}`),
  table(["access", "", "lanes along", "pattern", "#sectors", "#lines of 128 B", "#lines of 64 B"], rows),
  note(`A GPU's warp has 32 lanes and moves sectors of 32 bytes; this processor's vector is the first ${Math.floor(report.target.vector_bytes / a.itemsize)} lanes, and it moves lines of 64 bytes. `,
    "Lanes run along the axis in which results are stored, where the access has it; otherwise along its own last axis. Counted from the index map at the first block."), scheduleNote()];
}

function picture(a, lanes) {
  const touched = lanes.offsets.map((o, lane) => [lane, o]).filter(([, o]) => o !== null);
  if (!touched.length) return note("The positions come from an array, so each lane may touch a sector of its own.");
  const perSector = Math.max(32 / a.itemsize, 1);
  const sectors = [...new Set(touched.map(([, o]) => Math.floor(o / perSector)))].sort((x, y) => x - y);
  const [width, cell] = [960, 26];
  const gap = 8;
  const lineOf = (sector) => Math.floor(sector / 4);
  const places = new Map();
  let x = 0;
  const scale = Math.min(1, (width - 8) / (sectors.length * 40 + new Set(sectors.map(lineOf)).size * gap));
  const sectorWidth = Math.min((width - new Set(sectors.map(lineOf)).size * gap) / sectors.length, 8 * 28) * Math.max(scale, 0.98);
  const shapes = [];
  let line = null;
  let lineStart = 0;
  const closeLine = () => { if (line !== null) shapes.unshift(s("rect", { x: lineStart - 3, y: 127, width: x - lineStart + 6, height: 46, rx: 6, class: "cacheline" }, s("title", {}, `line ${line} of 128 bytes`))); };
  for (const sector of sectors) {
    if (lineOf(sector) !== line) {
      closeLine();
      if (line !== null) x += gap;
      line = lineOf(sector);
      lineStart = x;
    }
    const used = touched.filter(([, o]) => Math.floor(o / perSector) === sector);
    shapes.push(s("rect", { x: x + 1, y: 131, width: sectorWidth - 2, height: 38, rx: 4, class: "sector" }, s("title", {}, `bytes ${sector * 32} to ${sector * 32 + 31}: ${used.length} lanes`)));
    for (const o of new Set(used.map(([, at]) => at))) {
      const each = (sectorWidth - 6) / perSector;
      shapes.push(s("rect", { x: x + 3 + (o % perSector) * each, y: 135, width: Math.max(each - 1, 0.8), height: 30, class: "used" }));
      places.set(o, x + 3 + (o % perSector + 0.5) * each);
    }
    x += sectorWidth;
  }
  closeLine();
  const step = width / lanes.offsets.length;
  const threads = lanes.offsets.map((o, lane) => s("g", { class: o === null ? "lane off" : "lane" },
    s("rect", { x: lane * step + 1, y: 4, width: Math.min(step - 2, 60), height: cell, rx: 4 }), s("text", { x: lane * step + Math.min(step, 62) / 2, y: 22 }, lane)));
  const arrows = touched.map(([lane, o]) => s("path", { class: "reach", d: `M${lane * step + Math.min(step, 62) / 2},32C${lane * step + Math.min(step, 62) / 2},80 ${places.get(o)},85 ${places.get(o)},131` }));
  return h("div", { class: "scroll" }, s("svg", { viewBox: `-6 0 ${width + 12} 200`, class: "lanes", role: "img", "aria-label": `${lanes.offsets.length} lanes reach ${sectors.length} sectors` },
    arrows, shapes, threads, s("text", { x: 0, y: 192, class: "caption" }, `${sectors.length} sectors of 32 bytes are moved; coloured is what lanes use; frames are lines of 128 bytes`)));
}
