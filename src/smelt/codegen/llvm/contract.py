"""Contractions of a phase: which are blocked and packed, along which axes, by which tiles.

A usable contraction sums left[m, k] * right[k, n] for one axis m that only the left operand has and
one axis n that only the right one has; whatever else they share is fixed in a task.  Its result is
a scratch array over (m, n) that later nests read like any kept value, so everything after it fuses;
its operands are packed by ordinary nests, so everything before it fuses.  Other contractions become
plain folds of products.

Tile and block sizes: Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.codegen.llvm.items import Access, Folding, Item, Phase
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.target import Target
from smelt.types.dtype import f32, f64
from smelt.types.expr import coefficient

ROWS = 192
"""Positions of m that one task takes: a multiple of every register tile's height."""
WHOLE_ROWS = 48
"""The same where a task takes all of n: a panel of whole rows stays in L2."""
COLUMNS = 256
"""Positions of n that are packed together (and that one task takes, where n is independent)."""
DEPTH = 384
"""Positions of k that are packed together: a block of each operand stays in L2."""
SKEW = 16
"""Elements between rows of a packed left block beyond DEPTH, against cache sets that repeat."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile: `rows` by `vectors` of `lanes` columns."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True, slots=True)
class Contraction:
    """A usable contraction: item, its operands in order, its axes, and its tile."""

    item: Item
    left: Item
    right: Item
    m: str
    n: str
    outer: tuple[str, ...]
    k: str
    tile: Tile


def tile_of(target: Target, lanes: int) -> Tile:
    """Two vectors wide and as high as the registers allow beside two vectors and a broadcast."""
    return Tile(12 if target.registers >= 32 else 6 if target.registers >= 16 else 2, 2, lanes)


def contractions(phase: Phase, target: Target) -> dict[Item, Contraction]:
    """The usable contractions of a phase; the others are rewritten as folds of products."""
    found: dict[Item, Contraction] = {}
    for item in [i for i in phase.items if i.kind == "dot"]:
        made = _usable(item, phase, target)
        if made is None:
            _as_fold(item, phase)
        else:
            found[item] = made
    while (item := _misfit(found, phase)) is not None:
        del found[item]
        _as_fold(item, phase)
    return found


def _misfit(found: dict[Item, Contraction], phase: Phase) -> Item | None:
    """A contraction over an axis that tasks take in blocks for the sake of another one."""
    blocked = {a for c in found.values() for a in (c.m, c.n) if a in phase.grid}
    return next((c.item for c in found.values() if c.item.axes & blocked - {c.m, c.n}), None)


def _usable(item: Item, phase: Phase, target: Target) -> Contraction | None:
    assert isinstance(item.payload, Folding)
    over = item.payload.over
    left, right = item.args
    if item.dtype not in (f32, f64) or phase.cut or any(a in phase.grid for a in over):
        return None
    stored = _stored_axis(phase)
    if stored in left.axes and stored not in right.axes:
        left, right = right, left
    m = _own_axis(left, right, over, phase)
    n = _own_axis(right, left, over, phase)
    if m is None or n is None or not set(over) <= left.axes & right.axes:
        return None
    local = {a for a in phase.axes if a not in phase.grid}
    if (item.axes - {m, n}) & local:
        return None
    lanes = target.vector_bytes // item.dtype.itemsize
    ranked = [a for a in phase.axes if a in over]
    return Contraction(item, left, right, m, n, tuple(ranked[:-1]), ranked[-1],
                       tile_of(target, lanes))  # fmt: skip


def _own_axis(x: Item, other: Item, over: tuple[str, ...], phase: Phase) -> str | None:
    """The axis of one operand alone that is blocked: an inner one rather than a grid one."""
    own = [a for a in phase.axes if a in x.axes and a not in other.axes and a not in over]
    inner = [a for a in own if a not in phase.grid]
    return (inner or own or [None])[-1]


def _stored_axis(phase: Phase) -> str | None:
    """The axis along which results are stored in unit steps."""
    for s in phase.stores:
        for a in phase.axes:
            if a in s.axes and coefficient(s.access.offset, a) == 1:
                return a
    return None


def _as_fold(item: Item, phase: Phase) -> None:
    """item = fold of a product item that takes a place just before it."""
    at = phase.items.index(item)
    axes = item.args[0].axes | item.args[1].axes
    product = Item(at, "apply", SUM_OF_PRODUCTS[1], item.args, axes, item.dtype)
    phase.items.insert(at, product)
    item.kind, item.args = "fold", (product,)
    for number, other in enumerate(phase.items):
        other.number = number


def packing_axes(c: Contraction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Loop orders of the nests that pack the left and the right operand."""
    return (c.m, c.k), (c.k, c.n)


def runs_across(item: Item, vector: str, other: str) -> bool:
    """Whether a load is contiguous along `other` while it jumps along `vector`."""
    access = item.payload
    if not isinstance(access, Access) or access.limits or item.args:
        return False
    steps = [coefficient(access.offset, a) for a in (vector, other)]
    return vector in item.axes and steps[0] not in (None, 0, 1) and steps[1] == 1
