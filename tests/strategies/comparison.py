"""Decide whether two results are the same: bit for bit, or within rounding.

How far rounding may move a result is measured, not guessed: the program is run again a few times
with every floating-point operator's result moved at random by as much as it may err (Monte Carlo
arithmetic, D. Parker 1997).  What the results then differ by is the tolerance; where a comparison
or a floor flips, it is large by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.graph.interp import evaluate_node, run, solve_sizes
from smelt.graph.ir import Graph, Node
from smelt.ops.contract import Contract
from smelt.ops.create import Input
from smelt.ops.elementwise import Cast, Map
from smelt.ops.reduce import Reduce, Scan
from smelt.types.dtype import DTYPES, DType, f64

Array = np.ndarray[Any, Any]
RUNS = 16
SAFETY = 4.0
_EPS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}


def same_bits(a: Array, b: Array) -> bool:
    """Equal type, shape and bits; one NaN is as good as another."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    with np.errstate(all="ignore"):
        nan = np.isnan(a.astype(np.float64))
        if not np.array_equal(nan, np.isnan(b.astype(np.float64))):
            return False
    width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    left, right = (np.ascontiguousarray(x).view(width) for x in (a, b))
    return bool(np.array_equal(left[~nan], right[~nan]))


class Judge:
    """Decides whether results of `graph` on `arrays` are right."""

    def __init__(self, graph: Graph, arrays: Sequence[Array]) -> None:
        self.graph = graph
        self.expected = run(graph, arrays)
        self.arrays = list(arrays)
        self._moved: list[list[Array]] | None = None

    def complaint(self, actual: Sequence[Array]) -> str:
        """What is wrong with the results, or an empty string."""
        if len(actual) != len(self.expected):
            return f"{len(actual)} outputs instead of {len(self.expected)}"
        for k, (want, got) in enumerate(zip(self.expected, actual, strict=True)):
            if want.dtype != got.dtype or want.shape != got.shape:
                return f"output {k} is {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
            if not same_bits(want, got):
                wrong = self._wrong(k, want, got)
                if wrong:
                    return wrong
        return ""

    def _wrong(self, k: int, want: Array, got: Array) -> str:
        if self._moved is None:
            self._moved = [self._run_wide(), *(self._run_moved(seed) for seed in range(RUNS))]
        moved = [m[k] for m in self._moved]
        if want.dtype.kind in "biu":
            stable = np.all([m == want for m in moved], axis=0)
            bad = stable & (want != got)
        else:
            bad = ~_within(want, got, moved)
        if not bad.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        return (
            f"output {k} at {at}: {got[at]!r} instead of {want[at]!r}"
            f" ({int(bad.sum())} of {bad.size} wrong)"
        )

    def _run_wide(self) -> list[Array]:
        """The results with no half value rounded on the way."""
        sizes = solve_sizes(self.graph, self.arrays)
        values: dict[Node, Array] = dict(zip(self.graph.inputs, self.arrays, strict=True))
        with np.errstate(all="ignore"):
            for node in self.graph.nodes():
                op = node.op
                if isinstance(op, Cast):
                    op = Cast(op.dtype.compute)
                if node not in values:
                    values[node] = np.asarray(
                        op.reference(sizes, *[values[x] for x in node.inputs])
                    )
                values[node] = values[node].astype(node.type.dtype.compute.numpy)
            return [values[n].astype(n.type.dtype.numpy) for n in self.graph.outputs]

    def _run_moved(self, seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        sizes = solve_sizes(self.graph, self.arrays)
        values: dict[Node, Array] = dict(zip(self.graph.inputs, self.arrays, strict=True))
        for node in self.graph.nodes():
            if not isinstance(node.op, Input):
                operands = [values[x] for x in node.inputs]
                exact = evaluate_node(node, operands, sizes)
                values[node] = _moved(node, exact, operands, sizes, rng)
        return [values[node] for node in self.graph.outputs]


def _within(want: Array, got: Array, moved: list[Array]) -> Array:
    """Element by element: as close as the moved results are to one another."""
    with np.errstate(all="ignore"):
        w, g = want.astype(np.float64), got.astype(np.float64)
        others = np.stack([m.astype(np.float64) for m in moved])
        spread = np.max(np.abs(others - w), axis=0)
        eps = _EPS[_NAMES[want.dtype]]
        near = np.abs(g - w) <= SAFETY * spread + 2 * eps * np.abs(w) + _tiny(want.dtype)
        same = (w == g) | (np.isnan(w) & np.isnan(g))
        # At the edge of a domain or of the range, rounding decides whether there is a number.
        unsure = (np.isfinite(others) != np.isfinite(w)).any(axis=0)
        return same | near | unsure


def _tiny(dtype: np.dtype[Any]) -> float:
    """A few subnormal steps of the type."""
    return {"f16": 2e-7, "bf16": 1e-38, "f32": 1e-38, "f64": 1e-307}[_NAMES[dtype]]


_NAMES = {d.numpy: d.name for d in DTYPES}


def _moved(
    node: Node, exact: Array, operands: list[Array], sizes: dict[str, int], rng: Any
) -> Array:
    """The result of one operator with an error of the size it may have."""
    dtype = node.type.dtype
    if not dtype.is_float or not exact.size or not _rounds(node):
        return exact
    with np.errstate(all="ignore"):
        wide = exact.astype(np.float64)
        if rng.random() < 0.5 and isinstance(node.op, (Map, Cast)):  # so that equal may stay equal
            up = rng.integers(-1, 2, wide.shape)
            there = np.where(up == 0, exact, np.nextafter(exact, (up * np.inf).astype(exact.dtype)))
            return np.where(wide == 0, exact, there).astype(exact.dtype)
        amplitude = _amplitude(node, wide, operands, sizes) + _step(dtype)
        if isinstance(node.op, (Reduce, Scan, Contract)):
            wide = np.where(
                may_overflow(node, operands, sizes) & (rng.random(wide.shape) < 0.5),
                np.where(np.isfinite(wide), np.inf, 0.0),
                wide,
            )
        noise = rng.uniform(-1, 1, wide.shape) * amplitude
        noise = np.where(np.isfinite(noise), noise, 0)
        return np.where(_is_exactly_zero(node, wide, operands), 0, wide + noise).astype(exact.dtype)


def may_overflow(node: Node, operands: list[Array], sizes: Mapping[str, int]) -> Any:
    """Where a fold of finite numbers passes the largest number in some order of its terms.

    Which partial results there are is not promised, only that none is passed where no order does:
    there, infinite or not is undecided.  Running sums of single precision are carried in double, of
    other sums some elements are added in their own type first.  Numbers that are not finite pass
    nothing; others beside them, or in other rows, may.
    """
    op = node.op
    if not node.type.dtype.is_float or not isinstance(op, (Reduce, Scan, Contract)):
        return False
    product = isinstance(op, (Reduce, Scan)) and op.combine == "prod"
    wide = [np.where(np.isfinite(x), x, x.dtype.type(product)).astype(np.float64) for x in operands]
    if product:
        large = op.reference(sizes, np.maximum(np.abs(wide[0]), 1.0))
        small = op.reference(sizes, np.minimum(np.abs(wide[0]), 1.0))
        return np.isinf(large) | (small < np.finfo(np.float64).tiny)
    double = isinstance(op, Scan) or node.type.dtype == f64
    limit = np.finfo(np.float64 if double else np.float32).max
    return op.reference(sizes, *map(np.abs, wide)).astype(np.float64) > limit


def _step(dtype: DType) -> float:
    """The smallest subnormal of a half type: what a result near zero is rounded by."""
    return {"f16": 2.0**-24, "bf16": 2.0**-133}.get(dtype.name, 0.0)


def _is_exactly_zero(node: Node, wide: Array, operands: list[Array]) -> Any:
    """A zero that no rounding moves: not a sum that cancelled, not a small number that vanished."""
    if isinstance(node.op, (Reduce, Scan, Contract)):
        return False
    zero = wide == 0
    for operand in operands:
        zero = zero & np.broadcast_to(operand == 0, wide.shape)
    return zero if node.type.dtype.itemsize == 2 else wide == 0


def _rounds(node: Node) -> bool:
    return isinstance(node.op, (Map, Cast, Reduce, Scan, Contract))


def _amplitude(node: Node, wide: Array, operands: list[Array], sizes: dict[str, int]) -> Any:
    op, dtype = node.op, node.type.dtype
    eps = _EPS[dtype.name]
    error = 3 * eps * np.abs(wide)
    compute = _EPS[dtype.compute.name]
    if isinstance(op, (Reduce, Scan)):
        count = (
            operands[0].size / max(wide.size, 1) if isinstance(op, Reduce) else wide.shape[op.axis]
        )
        magnitude = op.reference(sizes, np.abs(operands[0].astype(np.float64)))
        return error + compute * (2 + count**0.5) * magnitude.astype(np.float64)
    if isinstance(op, Contract):
        a, b = (np.abs(x.astype(np.float64)) for x in operands)
        magnitude = op.reference(sizes, a, b).astype(np.float64)
        return error + compute * (2 + operands[0].shape[-1] ** 0.5) * magnitude
    return error
