"""Compute a contraction once per position for the windows that read it (Halide's `compute_at`).

    max over i, j of relu(dot(x, w)[o, 2*p + i, 2*q + j])

A pooling reads a convolution at positions that neighbouring windows share.  The contraction gets
axes of its own positions instead of the pairs (p, i) and (q, j), and is tiled along them like any
other.  A task keeps the positions that its windows reach in scratch memory, from which the windows
read ("window"):

    window(dot(x, w)[o, y, x], y = 2*p + i, x = 2*q + j)

Rows that windows of two tasks reach are computed by both; tasks take enough rows for these to be
few.  `smelt.codegen.llvm.loopir.input_tile` says when a pair of axes forms a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.input_tile import find_steps
from smelt.codegen.llvm.loopir.items import Item, Phase, Reach
from smelt.codegen.llvm.loopir.rewrite import Cloner, Draft, dependencies
from smelt.graph.walk import reachable
from smelt.machine.blocks import WINDOW_ROWS, window_blocks, window_columns, window_reach
from smelt.ops.windows import window_steps
from smelt.types.expr import Index, add, axis, mul

Pair: TypeAlias = tuple[str, str, int, int]
"""Axis of results, axis of the window, step between windows, dilation."""


def compute_at_windows(phase: Phase) -> Phase:
    """Give contractions that reductions read through windows axes of their own positions."""
    if phase.regions() or phase.cut:
        return phase
    draft = Draft(phase)
    for reduction in [i for i in phase.items if isinstance(i, ssa.Reduce)]:
        for original in _contractions_of(draft.latest(reduction).args[0]):
            dot = draft.latest(original)
            pairs = _window_pairs(draft.phase, dot, reduction.over)
            if pairs and dot not in draft.phase.roots():  # a stored result keeps its positions
                _read_through_windows(draft, dot, pairs)
    return draft.phase


def _contractions_of(root: Item) -> list[Item]:
    """Return the contractions that a value is computed from through scalar operators alone."""
    ends = (ssa.Dot, ssa.Reduce, ssa.Scan, ssa.WindowRead)
    every = reachable([root], lambda item: () if isinstance(item, ends) else item.args)
    return [item for item in every if isinstance(item, ssa.Dot)]


def _window_pairs(phase: Phase, dot: Item, over: tuple[str, ...]) -> list[Pair]:
    """Pair the tap axes of a window reduction with the axes they slide along.

    `over` are the axes of a reduction of results of the contraction `dot`.
    """
    pairs: list[Pair] = []
    for tap in (a for a in over if a in dot.axes):
        used = {name for name, *_ in pairs}
        for name in (a for a in phase.axes if a in dot.axes and a not in (*over, *used)):
            steps = _window_steps(phase, dot, name, tap)
            if steps is not None:
                pairs.append((name, tap, *steps))
                break
    return pairs


def _window_steps(phase: Phase, dot: Item, name: str, tap: str) -> tuple[int, int] | None:
    """Return the step and dilation of windows, or None if the axes form none."""
    taps = phase.axes[tap]
    if not isinstance(taps, int):
        return None
    dependent = list(dependencies(dot, {name, tap}))
    if any(
        isinstance(i, (ssa.Scan, ssa.StateRead, ssa.BlockEdge, ssa.WindowRead))
        or _is_reduced(i, name, tap)
        for i in dependent
    ):
        return None
    return find_steps(dependent, (name, tap), window_steps(taps), phase)


def _is_reduced(item: Item, name: str, tap: str) -> bool:
    return isinstance(item, ssa.Reduction) and not {name, tap}.isdisjoint(item.over)


def _read_through_windows(draft: Draft, dot: Item, pairs: list[Pair]) -> None:
    """Replace the contraction by reads at window positions."""
    at: dict[str, Index] = {}
    peeks: list[tuple[str, Index]] = []
    for name, tap, step, dilation in pairs:
        taps, extent = draft.axes[tap], draft.axes[name]
        assert isinstance(taps, int)
        reach = Reach(name, step, (taps - 1) * dilation + 1)
        extent_of_positions = window_reach(extent, step, reach.length)
        name_of_axis = draft.add_axis(f"{name}.near", extent_of_positions)
        draft.add_window(name_of_axis, reach)
        position = axis(name_of_axis, extent_of_positions)
        at |= {name: 0, tap: position} if dilation == 1 else {name: position, tap: 0}
        read_position = add(mul(axis(name, extent), step), mul(axis(tap, taps), dilation))
        peeks.append((name_of_axis, read_position))
    moved = Cloner(draft, dot, at).of(dot)
    draft.replace(dot, ssa.WindowRead((moved,), dot.axes, dot.dtype, tuple(peeks), time=dot.time))


def finish_sums(draft: Draft) -> None:
    """Convert accumulators that windows read to the type of their result.

    Contractions which became plain reductions are accumulated in several parts.
    """
    windows = [i for i in draft.phase.items if isinstance(i, ssa.WindowRead)]
    for original in (i for i in windows if isinstance(i.args[0], ssa.Reduce)):
        window = draft.latest(original)
        (sums,) = window.args
        result = ssa.Cast((sums,), sums.axes, sums.dtype, sums.dtype, time=sums.time)
        draft.replace(window, replace(window, args=(draft.insert(window, result),)))


# ---- task blocks ---------------------------------------------------------------------------------


def window_task_blocks(phase: Phase, itemsize: int) -> dict[str, Index]:
    """Return the task blocks of the axes whose windows read contractions: axis -> positions."""
    reaches = [r for r in phase.window_positions.values() if r.axis in phase.grid][::-1]
    axes = [(phase.axes[r.axis], r.step, r.length) for r in reaches]
    counts = window_blocks(axes, window_columns(itemsize))
    return {r.axis: n for r, n in zip(reaches, counts, strict=True)}


def window_task_rows(phase: Phase) -> int:
    """Return how many rows (output channels) of a convolution a task takes.

    It takes them for all of its window positions; fewer where windows overlap, because the task
    then keeps more image rows.
    """
    overlap = any(r.length > r.step for r in phase.window_positions.values())
    return WINDOW_ROWS // 2 if overlap else WINDOW_ROWS
