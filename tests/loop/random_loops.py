"""Random loop functions: rows of n x m in tasks of four, with folds, selections and gathers.

Elements are small integers, so that sums are exact in any order: passes are checked, not the order
of sums.
"""

from __future__ import annotations

import numpy as np

from smelt.loop import ir
from smelt.loop.interpret import run
from smelt.loop.text import parse

_COMBINES = {"sum": "0.0", "max": "-inf", "min": "inf"}
_CONDITIONS = (
    "j < k",
    "j + 1 <= m - k",
    "k > j",
    "i < 2",
    "k >= 2",
    "m - 1 - j < k",
    "4 - j > 0",
)
_PARAMS = "a: f32[n*m], b: f32[n*m], c: f32[n*m*2], y: out f32[n*m], z: out f32[n], w: out f32[n]"
_HEAD = f"""func f({_PARAMS}; n, m; k)
  chunk t in 0 .. (n + 3) // 4
    each i in t * 4 .. min(t * 4 + 4, n)
      each j in 0 .. m"""
SIZES = ((1, 1, 0), (5, 9, 3), (7, 4, 2))


class _Source:
    def __init__(self, random: np.random.Generator) -> None:
        self.random, self.names = random, ["v0"]

    def pick(self, *choices: str) -> str:
        return choices[self.random.integers(len(choices))]

    def leaf(self) -> str:
        number = f"{self.random.integers(0, 4)}.0"
        loads = ("b[j * n + i]", "b[i * m + j]", "a[i * m + (m - 1 - j)]", "b[(i * m + j) // 2]")
        loads += ("c[(i * m + j) * 2]", "c[(i * m + j) * 2 + 1]")
        return self.pick(*self.names, number, *loads)

    def value(self, depth: int) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.leaf()
        op = self.pick("+", "-", "*", "max", "min", "select", "shift", "gather", "bits", "number")
        x, y = self.value(depth - 1), self.value(depth - 1)
        if op == "select":
            return f"select({self.pick(*_CONDITIONS)}, {x}, {y})"
        if op == "shift":
            return self.pick(
                "a[i * m + j - 1 | j >= 1 : 0.0]",
                "a[i * m + j + 2 | j + 2 < m : -1.0]",
                "b[i * m + j | k < 3 : 5.0]",
                "b[j * 3 + 1 | j * 3 + 1 < n * m : 2.0]",
            )
        if op == "number":  # the same along a row, on both sides
            return f"select({self.pick(*_CONDITIONS)}, a[i], {self.random.integers(1, 5)}.0)"
        if op == "bits":
            return f"f32((i64({x}) {self.pick('&', '|')} i64({self.random.integers(0, 7)})))"
        if op == "gather":
            return f"a[i64(i * m) + min(i64(abs({x})), i64(m - 1))]"
        return f"({x} {op} {y})" if op in "+-*" else f"{op}({x}, {y})"


def random_module(random: np.random.Generator) -> ir.Module:
    """Return a random module with loops over t, i, j, and sometimes h in order."""
    source = _Source(random)
    rows = ["v0 = a[i * m + j]"]
    if random.random() < 0.3:
        rows.insert(0, "p0 = i * m + j")
        source.names.append("b[p0]")
    for k in range(1, random.integers(2, 5)):
        rows.append(f"v{k} = {source.value(2)}")
        source.names.append(f"v{k}")
    folds = [c for c in _COMBINES if random.random() < 0.5]
    mode = ":f64" if random.random() < 0.5 else ""
    rows += [f"c_{c} <- {source.value(1)}" for c in folds]
    rows.append("y[i * m + j] = " + source.value(1))
    starts = {c: zero if random.random() < 0.5 else "2.0" for c, zero in _COMBINES.items()}
    modes = dict.fromkeys(_COMBINES, "") | {"sum": mode}
    held = ", ".join(f"c_{c} = {c}{modes[c]} {starts[c]}" for c in folds)
    total = " + ".join(f"f32(c_{c})" for c in folds) or "0.0"
    lines = [f"{_HEAD} with {held}" if folds else _HEAD, *("        " + r for r in rows)]
    lines.append(f"      z[i] = {total}")
    ordered = [
        "for h in 0 .. m with p = 0.0",
        "  p' = select(h <= i, p + a[i * m + h], p * -1.0)",
        "w[i] = p",
    ]
    lines += ["      " + r for r in ordered] if random.random() < 0.4 else ["      w[i] = 0.0"]
    return parse("\n".join(lines))


def results(module: ir.Module, sizes: tuple[int, int, int], seed: int) -> dict[str, bytes]:
    """Run a random module on arrays that depend on its sizes, and return the bits of results."""
    n, m, k = sizes
    random = np.random.default_rng(n)
    extents = {"a": n * m, "b": n * m, "c": 2 * n * m}
    arrays = {x: random.integers(-4, 5, e).astype(np.float32) for x, e in extents.items()}
    arrays_after = run(module, arrays, {"n": n, "m": m, "k": k}, seed=seed)
    # The sign of a zero that min and max choose depends on the order of iterations.
    return {name: (array + np.float32(0)).tobytes() for name, array in arrays_after.items()}
