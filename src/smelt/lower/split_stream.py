"""Split a stream over the grid where there are too few tasks (flash decoding).

One query against a long key cache is one task per head. Each block of keys then gets its own task
with its own states, which are merged in block order, whichever thread finished first (T. Dao et
al., "Flash-Decoding for long-context inference", 2023; merging: `smelt.kernel.merge`). An unsplit
task adds its blocks in the same order, and rescaling between running shifts multiplies by powers
of 2 without rounding, so the result is bitwise the same whether an axis is split or not.

    grid b, h, p in split(n, n//512 + 1)
    stream n/512 of p with m = -inf, l = 0, acc = 0 [d]
    merge p: (m, l, acc)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.canonical import names_of
from smelt.kernel.merge import merge_rules
from smelt.kernel.walk import refs, visit
from smelt.machine.tiling import Tiling
from smelt.types.expr import add, evaluate, floordiv


def split_over_grid(kernel: ir.Kernel, hints: Mapping[str, int], tiling: Tiling) -> ir.Kernel:
    """Split the kernel's stream over the grid if that helps and its states can merge.

    Only streams with contractions are split: other reductions are memory-bound, and few tasks
    saturate memory.
    """
    streams = [s for s in kernel.body if isinstance(s, ir.Stream)]
    if len(streams) != 1 or len(streams[0].blocks) != 1 or not _stores_alone(streams[0], tiling):
        return kernel
    if not any(
        isinstance(v, ir.Dot)
        for u in streams[0].body
        if isinstance(u, ir.Update)
        for v in visit(u.value)
    ):
        return kernel
    (block,), grid = streams[0].blocks, [b for b in kernel.grid if isinstance(b, ir.Block)]
    tasks = prod(_block_count(kernel, b, hints) for b in grid)
    if not tiling.splits_stream([tasks], _block_count(kernel, block, hints)):
        return kernel
    names = {*names_of(kernel)}
    part = next(p for p in ("p", "part", *(f"p{k}" for k in range(len(names)))) if p not in names)
    parted = replace(streams[0], blocks=(replace(block, part=part),))
    merge = ir.Merge(part, tuple(s.name for s in parted.states))
    body = tuple(x for s in kernel.body for x in ((parted, merge) if s is streams[0] else (s,)))
    assert block.size is not None  # one visit is not a reason to split
    blocks = add(floordiv(kernel.axis(block.axis).extent, block.size), 1)
    parts = tiling.stream_parts(blocks, tasks)
    split = replace(kernel, grid=(*grid, ir.Split(part, block.axis, parts)), body=body)
    try:
        merge_rules(split)
    except VerifyError:
        return kernel
    return split


def _stores_alone(stream: ir.Stream, tiling: Tiling) -> bool:
    """Return whether what a stream stores reads no state, which a part would lack."""
    if not any(isinstance(s, ir.Store) for s in stream.body):
        return True
    late = {t.name for t in stream.states}
    for s in stream.body:
        if isinstance(s, ir.Let | ir.Position) and not late.isdisjoint(refs(s)):
            late.add(s.name)
    stored = (s for s in stream.body if isinstance(s, ir.Store))
    return tiling.splits_stored_streams and all(late.isdisjoint(refs(s)) for s in stored)


def _block_count(kernel: ir.Kernel, block: ir.Block, hints: Mapping[str, int]) -> int:
    """Return the number of blocks of an axis at the hints' sizes; 1 if unknown."""
    try:
        extent = int(evaluate(kernel.axis(block.axis).extent, hints))
    except KeyError:
        return 1
    return -(-extent // (block.size or max(extent, 1)))
