// Small arrays drawn as grids of cells: values, colours, and marks.
import { h, showNumber } from "./core.js";

// At most three dimensions are visible as planes of rows and columns.
export function cells(array, options = {}) {
  const { classOf = () => "", onpick = null, label = "" } = options;
  const shape = array.shape.length ? array.shape : [1];
  const columns = shape[shape.length - 1] || 1;
  const rows = shape.length > 1 ? shape[shape.length - 2] : 1;
  const planes = shape.slice(0, -2).reduce((a, b) => a * b, 1);
  const parts = [];
  for (let plane = 0; plane < planes; plane++) {
    const body = [];
    for (let row = 0; row < rows; row++) {
      const line = [];
      for (let column = 0; column < columns; column++) {
        const at = (plane * rows + row) * columns + column;
        const value = array.values ? array.values[at] : undefined;
        const shown = value === undefined ? "" : showNumber(value);
        line.push(h("td", { class: classOf(at), "data-cell": at, tabindex: onpick ? 0 : null, role: onpick ? "button" : null,
          "aria-label": onpick ? `${label}[${position(at, shape)}] = ${shown}` : null, onclick: onpick && (() => onpick(at)),
          onkeydown: onpick && ((e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); onpick(at); } }) }, shown));
      }
      body.push(h("tr", {}, line));
    }
    parts.push(h("table", { class: "cells" }, h("tbody", {}, body)));
  }
  return h("div", { class: "planes" }, parts);
}

export function position(at, shape) {
  const place = [];
  for (const n of [...shape].reverse()) {
    place.unshift(at % n);
    at = Math.floor(at / n);
  }
  return place.join(",");
}

export const sizesText = (sizes) => Object.entries(sizes).map(([k, v]) => `${k}=${v}`).join(", ") || "the program's own sizes";
