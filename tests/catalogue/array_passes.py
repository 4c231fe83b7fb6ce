"""Count how often a kernel's loops read an array that no cache holds in between.

Bytes count every element once.  A row longer than the cache that is walked by three loops is read
three times all the same, so the loops of the schedule are counted too: those that load a buffer
again although one task's part of it is larger than a core's own cache.  The loops of a stream
share its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.codegen.llvm.loopir.items import Load
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.ir import Kernel
from smelt.machine.target import Target
from smelt.types.expr import evaluate

__all__ = ["reads"]

LEAST = 1 / 64
"""Part of an array that a loop reads at least when it sweeps over it: the elements from which sums
are told apart, say, are so few that they count for nothing."""


def reads(kernel: Kernel, target: Target, sizes: Mapping[str, int]) -> dict[str, int]:
    """How often each input is read from beyond the second-level cache."""
    result = dict.fromkeys((p.name for p in kernel.inputs), 0)
    whole = {p.name: prod(int(evaluate(n, sizes)) for n in p.shape) for p in kernel.inputs}
    for phase in program(kernel).phases:
        s = schedule(phase, target)
        for name, times in _phase(s, target, sizes, whole).items():
            if name in result:
                result[name] += times
    return result


def _phase(
    s: Schedule, target: Target, sizes: Mapping[str, int], whole: Mapping[str, int]
) -> dict[str, int]:
    loads: dict[str, list[int]] = {}
    seen: set[tuple[str, int]] = set()
    for nest in s.nests:
        region = s.phase.segments[nest.time]
        for name, nbytes in _loads(nest, s, sizes).items():
            if name in whole and _walked(nest, s, sizes, name) < whole[name] * LEAST:
                continue
            if region is not None and (name, id(region)) in seen:  # its block was just read
                for v in region.visits:
                    extent = int(evaluate(s.local[v.axis], sizes))
                    nbytes = nbytes * min(v.size or extent, extent) // max(extent, 1)
            seen.add((name, id(region)))
            loads.setdefault(name, []).append(nbytes)
    return {name: max(1, sum(n > target.l2_bytes for n in held)) for name, held in loads.items()}


def _walked(nest: Nest, s: Schedule, sizes: Mapping[str, int], name: str) -> int:
    """Elements of a buffer that all tasks together walk in a nest."""
    items = [i for part in (nest, *nest.packs) for i in part.items]
    return sum(
        prod(int(evaluate(s.phase.axes[a], sizes)) for a in i.axes)
        for i in items
        if isinstance(i, Load) and i.access.buffer == name
    )


def _loads(nest: Nest, s: Schedule, sizes: Mapping[str, int]) -> dict[str, int]:
    """Buffers that a nest loads, and how much of each one task walks."""
    results: dict[str, int] = {}
    items = [i for part in (nest, *nest.packs) for i in part.items]
    for item in items:
        if isinstance(item, Load):
            walked = [s.local[a] for a in item.axes if a in s.local]
            nbytes = item.dtype.itemsize
            for extent in walked:
                nbytes *= int(evaluate(extent, sizes))
            results[item.access.buffer] = results.get(item.access.buffer, 0) + nbytes
    return results
