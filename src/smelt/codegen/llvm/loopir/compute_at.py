"""Peeks: what windows read of a product is computed once for each place, and held by the task.

    max over i, j of relu(dot(x, w)[o, 2*p + i, 2*q + j])

A pooling reads a convolution at places which neighbouring windows share.  The product gets axes of
its places instead of the pairs of p and i, and is blocked along them like any other; a task holds
the places that its own windows reach in scratch memory, where the windows *peek* at them:

    peek(dot(x, w)[o, y, x], y = 2*p + i, x = 2*q + j)

Lines that the windows of two tasks reach are computed by both: tasks take lines enough for these
to be few.  The test for a pair of axes is that of `smelt.codegen.llvm.loopir.input_tile`: nothing
changes when p moves by d while i moves back by s.
"""

from __future__ import annotations

from typing import TypeAlias

from smelt.blocks import WINDOW_ROWS, band_of_windows, window_columns
from smelt.codegen.llvm.loopir.clone import Cloner, indices, reached, renumber
from smelt.codegen.llvm.loopir.input_tile import fresh
from smelt.codegen.llvm.loopir.items import Converting, Folding, Item, Peek, Phase, Reach
from smelt.types.expr import Index, add, axis, mul, sub, substitute
from smelt.windows import window_steps

Pair: TypeAlias = tuple[str, str, int, int]
"""An axis of results, the one of its windows, how far apart windows and their elements are."""


def peeking(phase: Phase) -> Phase:
    """Products that folds read through windows get axes of places."""
    if phase.regions() or phase.cut:
        return phase
    for fold in [i for i in phase.items if i.kind == "fold"]:
        assert isinstance(fold.payload, Folding)
        for dot in _products(fold.args[0]):
            pairs = _pairs(phase, dot, fold.payload.over)
            if pairs and dot not in phase.roots():  # what is stored itself is at its own places
                _peek(phase, dot, pairs)
    return phase


def _products(root: Item) -> list[Item]:
    """The products that a value is computed from, with scalar operators between alone."""
    pending, seen, found = [root], {root}, list[Item]()
    while pending:
        item = pending.pop()
        if item.kind == "dot":
            found.append(item)
        elif item.kind not in ("fold", "scan", "peek"):
            more = [a for a in dict.fromkeys(item.args) if a not in seen]
            seen.update(more)
            pending += more
    return found


def _pairs(phase: Phase, dot: Item, over: tuple[str, ...]) -> list[Pair]:
    """The axes of a product along which windows of a fold slide over it."""
    found: list[Pair] = []
    for tap in (a for a in over if a in dot.axes):
        taken = {name for name, *_ in found}
        for name in (a for a in phase.axes if a in dot.axes and a not in (*over, *taken)):
            steps = _steps(phase, dot, name, tap)
            if steps is not None:
                found.append((name, tap, *steps))
                break
    return found


def _steps(phase: Phase, dot: Item, name: str, tap: str) -> tuple[int, int] | None:
    """How far apart the windows of one axis and their elements along another lie, if nothing else
    tells the two apart."""
    taps = phase.axes[tap]
    if not isinstance(taps, int):
        return None
    touched = list(reached(dot, {name, tap}))
    if any(i.kind in ("scan", "state", "edge", "peek") or _ends(i, name, tap) for i in touched):
        return None
    for step, dilation in window_steps(taps):
        moves = {name: dilation, tap: -step}
        by = {a: add(axis(a, phase.axes[a]), n) for a, n in moves.items()}
        if all(substitute(e, by) == e for i in touched for e in indices(i.payload)):
            return step, dilation
    return None


def _ends(item: Item, name: str, tap: str) -> bool:
    """Whether an item folds one of two axes: it moves with the other alone."""
    return isinstance(item.payload, Folding) and not {name, tap}.isdisjoint(item.payload.over)


def _peek(phase: Phase, dot: Item, pairs: list[Pair]) -> None:
    """Puts a peek at the product's places in the place of the product."""
    at: dict[str, Index] = {}
    peeks: list[tuple[str, Index]] = []
    for name, tap, step, dilation in pairs:
        taps, extent = phase.axes[tap], phase.axes[name]
        assert isinstance(taps, int)
        reach = Reach(name, step, (taps - 1) * dilation + 1)
        whole = add(mul(sub(extent, 1), step), reach.length)
        place = fresh(phase, f"{name}.near", whole)
        phase.places[place] = reach
        here = axis(place, whole)
        at |= {name: 0, tap: here} if dilation == 1 else {name: here, tap: 0}
        there = add(mul(axis(name, extent), step), mul(axis(tap, taps), dilation))
        peeks.append((place, there))
    moved = Cloner(phase, dot, at).of(dot)
    found = Item(0, "peek", Peek(tuple(peeks)), (moved,), dot.axes, dot.dtype, dot.time)
    phase.items.insert(phase.items.index(dot), found)
    for item in phase.items:
        item.args = tuple(found if a is dot else a for a in item.args)
    phase.items.remove(dot)
    renumber(phase)


def finish_sums(phase: Phase) -> None:
    """Products that are looped over after all are carried in several parts: what windows peek at is
    their finished value."""
    for peek in [i for i in phase.items if i.kind == "peek" and i.args[0].kind == "fold"]:
        (held,) = peek.args
        whole = Converting(held.dtype)
        found = Item(0, "cast", whole, (held,), held.axes, held.dtype, held.time)
        phase.items.insert(phase.items.index(peek), found)
        peek.args = (found,)
    renumber(phase)


# ---- how work is cut -----------------------------------------------------------------------------


def place_blocks(phase: Phase, itemsize: int) -> dict[str, Index]:
    """How the axes whose windows peek are cut into tasks."""
    most = window_columns(itemsize)
    found: dict[str, Index] = {}
    width: Index = 0
    for reach in reversed(phase.places.values()):
        if reach.axis not in phase.grid:
            continue
        whole = phase.axes[reach.axis]
        found[reach.axis] = band_of_windows(whole, reach.step, reach.length, width, most)
        width = mul(width or 1, covered(found[reach.axis], reach))
    return found


def place_rows(phase: Phase) -> int:
    """Rows of a product over windows that a task takes beside its places: fewer where windows
    overlap, because then it holds more lines."""
    overlap = any(r.length > r.step for r in phase.places.values())
    return WINDOW_ROWS // 2 if overlap else WINDOW_ROWS


def covered(positions: Index, reach: Reach) -> Index:
    """Places that so many neighbouring windows reach."""
    return add(mul(sub(positions, 1), reach.step), reach.length)
