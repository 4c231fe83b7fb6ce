"""Folds over small windows are written out: a pooling becomes an elementwise operator.

A window is walked by two axes that move along one dimension, the results' and the fold's.  Looped
over, its few steps would have lanes and masks of their own; written out, vectors run along the
results and every step is one load.

    max over u, v of x[2*i + u, 2*j + v]    is    max(max(x[2*i, 2*j], x[2*i, 2*j + 1]), ..)

Only folds whose order does not matter to the last bit are written out: sums are carried in double
precision where they are looped over.
"""

from __future__ import annotations

from itertools import product as positions

from smelt.codegen.llvm.clone import Cloner, folds, reached, renumber
from smelt.codegen.llvm.items import Access, Folding, Item, Phase, visited_axes
from smelt.types.affine import coefficient

STEPS = 25
"""Elements of a window that is written out at most: 5 by 5."""
MOST = 200
"""Items that a fold becomes at most."""
NEAREST = 3
"""Steps between neighbouring windows at most, so that loads share lines."""


def written_out(phase: Phase) -> Phase:
    """Folds over small windows become trees of their scalar operator."""
    for fold in [i for i in phase.items if i.kind == "fold"]:
        if isinstance(fold.payload, Folding) and _is_small_window(phase, fold, fold.payload):
            _write_out(phase, fold, fold.payload)
    renumber(phase)
    return phase


def _is_small_window(phase: Phase, fold: Item, folding: Folding) -> bool:
    over, (arg, *edges) = set(folding.over), fold.args
    bound = visited_axes(phase.segments[fold.time]) | phase.cut.keys()
    if folding.row.positional or not folding.row.idempotent or edges or over & bound:
        return False
    count = 1
    for a in over:
        extent = phase.axes[a]
        count *= extent if isinstance(extent, int) else STEPS + 1
    varying = list(reached(arg, over))
    if not 1 <= count <= STEPS or count * len(varying) > MOST or folds(arg, over):
        return False
    loads = [i.payload for i in varying if isinstance(i.payload, Access)]
    return bool(loads) and all(_slides(x, over, set(fold.axes)) for x in loads)


def _slides(access: Access, over: set[str], kept: set[str]) -> bool:
    """Whether neighbouring results read neighbouring elements, with steps of the fold between."""
    steps = [coefficient(access.offset, a) for a in kept]
    near = any(isinstance(s, int) and 1 <= s <= NEAREST for s in steps)
    return near and any(coefficient(access.offset, a) == 1 for a in over)


def _write_out(phase: Phase, fold: Item, folding: Folding) -> None:
    (arg,) = fold.args
    counts = [n for a in folding.over if isinstance(n := phase.axes[a], int)]
    terms = [Cloner(phase, fold, dict(zip(folding.over, at, strict=True))).of(arg)
             for at in positions(*map(range, counts))]  # fmt: skip
    while len(terms) > 2:
        pairs = [_step(phase, fold, folding, *two)
                 for two in zip(terms[::2], terms[1::2], strict=False)]  # fmt: skip
        terms = [*pairs, *terms[2 * len(pairs) :]]
    fold.kind, fold.payload, fold.args = "apply", folding.row.scalar, tuple(terms)
    if len(terms) == 1:
        fold.args *= 2  # what is folded once more stays the same


def _step(phase: Phase, fold: Item, folding: Folding, a: Item, b: Item) -> Item:
    found = Item(0, "apply", folding.row.scalar, (a, b), a.axes | b.axes, fold.dtype, fold.time)
    phase.items.insert(phase.items.index(fold), found)
    return found
