"""A stream in parts: where there are too few tasks, several share the streamed axis.

One query against a long cache of keys is one task for each head.  Each block of the keys is visited
by a task of its own, with states of its own; these are merged in the order of the blocks, whatever
thread was done first (T. Dao et al., "Flash-Decoding for long-context inference", 2023; the merge
is `smelt.kernel.merge`).  A task that visits all blocks adds them up in the same order, and what a
block adds is brought from gauge to gauge by powers of 2, without rounding: the result is the same
to the last bit whether an axis is split or not.

    grid b, h, p in split(n, n//512 + 1)
    stream n/512 of p with m = -inf, l = 0, acc = 0 [d]
    merge p: (m, l, acc)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from smelt.blocks import has_parts
from smelt.errors import VerifyError
from smelt.kernel.ir import (
    Block,
    Dot,
    Kernel,
    Let,
    Merge,
    Position,
    Split,
    Store,
    Stream,
    Update,
)
from smelt.kernel.merge import merge_rules
from smelt.kernel.walk import statements, states, visit
from smelt.types.expr import add, evaluate, floordiv


def in_parts(kernel: Kernel, hints: Mapping[str, int]) -> Kernel:
    """The kernel with its stream split over the grid, if that serves and its states allow it.

    Contractions alone: other folds are as fast as memory, which few tasks use up."""
    found = [s for s in kernel.body if isinstance(s, Stream)]
    if (
        len(found) != 1
        or len(found[0].blocks) != 1
        or any(isinstance(s, Store) for s in found[0].body)
    ):
        return kernel
    if not any(
        isinstance(v, Dot) for u in found[0].body if isinstance(u, Update) for v in visit(u.value)
    ):
        return kernel
    (block,), grid = found[0].blocks, [b for b in kernel.grid if isinstance(b, Block)]
    if not has_parts((_visits(kernel, b, hints) for b in grid), _visits(kernel, block, hints)):
        return kernel
    names = {a.name for a in kernel.axes} | set(_bound(kernel))
    part = next(p for p in ("p", "part", *(f"p{k}" for k in range(len(names)))) if p not in names)
    parted = replace(found[0], blocks=(replace(block, part=part),))
    merge = Merge(part, tuple(s.name for s in parted.states))
    body = tuple(x for s in kernel.body for x in ((parted, merge) if s is found[0] else (s,)))
    assert block.size is not None  # one visit is no reason to split
    parts = add(floordiv(kernel.axis(block.axis).extent, block.size), 1)
    split = replace(kernel, grid=(*grid, Split(part, block.axis, parts)), body=body)
    try:
        merge_rules(split)
    except VerifyError:
        return kernel
    return split


def _visits(kernel: Kernel, block: Block, hints: Mapping[str, int]) -> int:
    """Blocks of an axis at the hints' sizes; too few to be split where those say nothing."""
    try:
        extent = int(evaluate(kernel.axis(block.axis).extent, hints))
    except KeyError:
        return 1
    return -(-extent // (block.size or max(extent, 1)))


def _bound(kernel: Kernel) -> Iterator[str]:
    """Every name in a kernel's body, and those of its parameters."""
    yield from (p.name for p in (*kernel.inputs, *kernel.outputs))
    for s in statements(kernel):
        if isinstance(s, Let | Position):
            yield s.name
    yield from states(kernel)
