"""Running a recording and giving back what the function returned: arrays, aliases, `out=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.frontends.array.array import Array
from smelt.frontends.array.bind import Bound
from smelt.frontends.array.flush import realise
from smelt.frontends.array.trace import Argument, Trace
from smelt.frontends.array.tree import unflatten
from smelt.frontends.array.value import Buffer, leaf

__all__ = ["deliver", "pack"]


def pack(trace: Trace, leaves: list[Any]) -> Any:
    """The leaves in the nest that the function returned."""
    return unflatten(trace.tree, iter(leaves))


def deliver(
    trace: Trace, sizes: tuple[int, ...], arguments: Sequence[Argument], bound: Bound, out: Any
) -> Any:  # fmt: skip
    """Run, and build the result."""
    buffers = [_memory(arguments[k]) for k in trace.arguments]
    buffers += [realise(x) for x in trace.captured]
    results = trace.executable.run(buffers, sizes) if trace.graph.outputs else []
    computed = [Array.of(leaf(data)) for data in results]
    return pack(trace, [_result(r, computed, arguments, bound) for r in trace.results])


def _memory(a: Argument) -> Buffer:
    if a.data is not None:
        return a.data
    return np.asarray(a.number, np.float64 if isinstance(a.number, float) else np.int64)


def _result(r: Any, computed: list[Array], arguments: Sequence[Argument], bound: Bound) -> Any:
    if r.kind == "graph":
        return computed[r.place]
    if r.kind == "argument":
        given = bound.leaves[r.place]
        return given if isinstance(given, Array) else Array.of(leaf(_memory(arguments[r.place])))
    if r.kind == "captured":
        return Array.of(r.value)
    return r.value
