// Why two operators are, or are not, in one kernel: the rules of `report.why`.
import { report, nodes } from "./core.js";

const key = (a, b) => (a < b ? `${a} ${b}` : `${b} ${a}`);
const share = (x, y) => nodes[x].kernels.some((k) => nodes[y].kernels.includes(k));
const lastOf = (list, fits) => [...list].reverse().find(fits);

export function why(a, b) {
  const together = nodes[a].kernels.filter((k) => nodes[b].kernels.includes(k));
  const chain = together.length ? fusedChain(a, b, together[0]) : refusalsBetween(a, b);
  return { a, b, together, decisions: chain, implied: chain.length ? "" : implied(a, b, together) };
}

function neighbours() {
  const near = new Map(nodes.map((n) => [n.id, []]));
  for (const n of nodes) {
    for (const x of n.inputs) {
      if (nodes[x].kind !== "constant") {
        near.get(n.id).push(x);
        near.get(x).push(n.id);
      }
    }
  }
  return near;
}

function shortestPath(start, goal, near) {
  const from = new Map([[start, start]]);
  const queue = [start];
  for (let at = 0; at < queue.length; at++) {
    const node = queue[at];
    if (node === goal) {
      const path = [node];
      while (path[path.length - 1] !== start) path.push(from.get(path[path.length - 1]));
      return path.reverse();
    }
    for (const next of near.get(node) || []) {
      if (!from.has(next)) {
        from.set(next, node);
        queue.push(next);
      }
    }
  }
  return [];
}

function fusedChain(a, b, kernel) {
  const inside = (n) => n !== null && nodes[n].kernels.includes(kernel);
  const near = new Map();
  const byPair = new Map();
  for (const d of report.decisions) {
    if (d.verdict === "fused" && inside(d.a_node) && inside(d.b_node)) {
      for (const [x, y] of [[d.a_node, d.b_node], [d.b_node, d.a_node]]) {
        near.set(x, [...(near.get(x) || []), y]);
      }
      byPair.set(key(d.a_node, d.b_node), d.id);
    }
  }
  const deciding = (n) => {
    while (!near.has(n) && nodes[n].kind === "view" && nodes[n].inputs.length) n = nodes[n].inputs[0];
    return n;
  };
  const path = shortestPath(deciding(a), deciding(b), near);
  return path.slice(1).map((n, k) => byPair.get(key(path[k], n)));
}

function refusalsBetween(a, b) {
  const split = report.decisions.filter((d) => d.verdict === "split");
  const pairs = (x, y) => (d) => d.a_node !== null && d.b_node !== null && key(d.a_node, d.b_node) === key(x, y);
  const direct = lastOf(split, pairs(a, b));
  if (direct) return [direct.id];
  const between = (x, y) => {
    const exact = lastOf(split, pairs(x, y));
    if (exact) return exact.id;
    const found = lastOf(split, (d) => d.a_node !== null && d.b_node !== null &&
      ((share(d.a_node, x) && share(d.b_node, y)) || (share(d.a_node, y) && share(d.b_node, x))));
    return found ? found.id : null;
  };
  const numbers = [];
  const path = shortestPath(a, b, neighbours()).filter((n) => nodes[n].kernels.length);
  for (let k = 1; k < path.length; k++) {
    if (!share(path[k - 1], path[k])) {
      const d = between(path[k - 1], path[k]);
      if (d !== null && !numbers.includes(d)) numbers.push(d);
    }
  }
  if (!numbers.length && path.length > 2) {
    const d = between(a, b);
    if (d !== null) numbers.push(d);
  }
  return numbers;
}

function implied(a, b, together) {
  const free = (n) => ["view", "source", "constant"].includes(nodes[n].kind);
  const either = (fits) => fits(a) || fits(b);
  if (a === b) return "This is one operator.";
  if (!together.length && either((n) => nodes[n].kind === "input")) {
    return "An input is in memory before the first kernel starts; kernels read it from there.";
  }
  if (together.length) {
    return either(free)
      ? "A view, a constant or a position costs nothing: it only renames indices."
      : "Nothing had to be decided: neither could be anywhere else.";
  }
  if (either((n) => nodes[n].kind === "call")) {
    return "A library call runs by itself: nothing can be fused into it.";
  }
  return "They share no data: neither reads the other, nor do both read one array.";
}
