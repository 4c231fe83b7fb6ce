"""Run a recording and build the results: arrays, aliases of arguments, `out=`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.errors import AliasError, DTypeError, OutArgumentError, StructureError
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall
from smelt.frontends.array.convert import as_buffer, is_foreign_array
from smelt.frontends.array.engine import spans_of
from smelt.frontends.array.evaluate_pending import evaluate, flush_readers
from smelt.frontends.array.promote import cast, number
from smelt.frontends.array.trace import Argument, Result, Trace
from smelt.frontends.array.tree import leaves_like, unflatten
from smelt.frontends.array.value import Buffer, foreign, leaf
from smelt.graph.walk import input_size_names
from smelt.ops.spec import dims_at
from smelt.python.origin import here
from smelt.types.dtype import from_numpy

_WORK: Any = 10_000
"""Effort limit of NumPy's exact overlap test; beyond it strided arrays count as overlapping."""


def pack(trace: Trace, leaves: Sequence[Any]) -> Any:
    """Return the leaves in the nest that the function returned."""
    return unflatten(trace.tree, iter(leaves))


def run_call(
    trace: Trace,
    sizes: tuple[int, ...],
    arguments: Sequence[Argument],
    bound: BoundCall,
    out: Any = None,
) -> Any:
    """Run a recording and return its results; with `out`, write them there.

    Raises OutArgumentError, StructureError and AliasError about `out` before anything runs.
    """
    buffers = buffers_of(trace, arguments)
    out_leaves = [] if out is None else leaves_like("out=", out, trace.tree)
    targets = None if out is None else [_target(x) for x in out_leaves]
    if targets is not None:
        check_targets(trace, sizes, targets, buffers, arguments)
    if targets is not None or bound.donated:
        donated = [_memory(arguments[k]) for k in bound.donated]
        flush_readers(*(targets or ()), *donated)  # pending operators read the old values
    saved: list[Array | None] = []
    if targets is not None:
        saved = _copy_overwritten(trace, targets, arguments)
        trace = overwriting_trace(trace, targets, buffers)
    results = _run(trace, sizes, buffers, targets)
    computed = [Array.of(leaf(data)) for data in results]

    def argument(k: int) -> Array:
        x, data = bound.leaves[k], _memory(arguments[k])
        if k in bound.donated or arguments[k].data is None:
            return Array.of(leaf(data))
        return x if isinstance(x, Array) else Array.of(foreign(data))

    results_out = result_leaves(trace, computed, arguments, argument)
    _invalidate([bound.leaves[index] for index in bound.donated])
    if out is None or targets is None:
        return pack(trace, results_out)
    _finish_out(
        trace, out_leaves, targets, [y if x is None else x for x, y in zip(saved, results_out)]
    )
    return out


def buffers_of(trace: Trace, arguments: Sequence[Argument]) -> list[Buffer]:
    """Return the buffers that the graph reads in a call with these arguments."""
    buffers = [_memory(arguments[k]) for k in trace.arguments]
    return buffers + [evaluate(x) for x in trace.captured]


def _run(
    trace: Trace, sizes: tuple[int, ...], buffers: list[Buffer], targets: list[Buffer] | None
) -> list[Buffer]:
    if not trace.graph.outputs:
        return []
    if targets is None:
        return trace.run(buffers, sizes)
    out_buffers: list[Buffer | None] = [None] * len(trace.graph.outputs)
    replacing = {d[1] for d in trace.donate if isinstance(d, tuple)}
    has_flag = trace.bounds.flag is not None  # the run may fail after it has written results
    inputs = spans_of(buffers if has_flag else [])
    for result, target in zip(trace.results, targets, strict=True):
        if result.kind != "graph" or result.position in replacing:
            continue
        if not inputs.overlapping(target):
            out_buffers[result.position] = target
    return trace.run(buffers, sizes, out_buffers)


def _copy_overwritten(
    trace: Trace, targets: Sequence[Buffer], arguments: Sequence[Argument]
) -> list[Array | None]:
    """Copy results that are the caller's arrays where another result's memory overlaps them."""
    saved: list[Array | None] = []
    written = spans_of(targets)
    for k, r in enumerate(trace.results):
        data = None
        if r.kind in ("argument", "captured"):
            data = _memory(arguments[r.position]) if r.kind == "argument" else evaluate(r.value)
            if all(other == k for other in written.overlapping(data)):
                data = None
        saved.append(None if data is None else Array.of(leaf(data.copy())))
    return saved


def overwriting_trace(
    trace: Trace,
    targets: Sequence[Buffer],
    buffers: Sequence[Buffer],
    *,
    checks_first: bool = True,
) -> Trace:
    """Return the recording for a call in which arrays of `out=` are also inputs.

    Their results replace them where no element is read after it is written. Without `checks_first`,
    none is replaced if bounds checks may fail after something is written.
    """
    if trace.bounds.flag is not None and not checks_first:
        return trace
    returned = {r.position for r in trace.results if r.kind == "argument"}  # must keep their values
    pairs: list[tuple[int, int]] = []
    inputs = spans_of(buffers)
    for r, target in zip(trace.results, targets, strict=True):
        if r.kind != "graph" or not target.flags.c_contiguous or not target.size:
            continue
        overlapping = inputs.overlapping(target)
        if len(overlapping) == 1 and overlapping[0] < len(trace.arguments):
            is_returned = trace.arguments[overlapping[0]] in returned
            if not is_returned and is_same_memory(target, buffers[overlapping[0]]):
                pairs.append((overlapping[0], r.position))
    return trace.for_overwriting(tuple(pairs)) if pairs and not trace.donate else trace


def _memory(a: Argument) -> Buffer:
    if a.data is not None:
        return a.data
    return np.asarray(a.number, np.float64 if isinstance(a.number, float) else np.int64)


def result_leaves(
    trace: Trace,
    computed: Sequence[Any],
    arguments: Sequence[Argument],
    argument: Callable[[int], Any],
) -> list[Any]:
    """Return the leaves of a result: outputs of the graph, and what it does not compute.

    `argument` returns an argument that is a result, by its position.
    """
    sizes = iter(
        () if trace.result_sizes is None else trace.result_sizes(*match_parameters(arguments))
    )

    def leaf_of(r: Result) -> Any:
        if r.kind == "graph":
            return computed[r.position]
        if r.kind == "argument":
            return argument(r.position)
        if r.kind == "captured":
            return Array.of(r.value)
        return next(sizes) if r.kind == "size" else r.value

    return [leaf_of(r) for r in trace.results]


def match_parameters(arguments: Sequence[Argument]) -> list[Any]:
    """Return all dimensions of arrays, then all numbers: the parameters of `Trace.match`."""
    parameters: list[Any] = [n for a in arguments if a.data is not None for n in a.data.shape]
    parameters += [a.number for a in arguments if a.data is None and not a.is_static]
    return parameters


# out=


def check_targets(
    trace: Trace,
    sizes: tuple[int, ...],
    targets: Sequence[Buffer],
    buffers: Sequence[Buffer],
    arguments: Sequence[Argument],
) -> None:
    """Check the memory for each leaf of the result; no element is read.

    Raises StructureError, OutArgumentError and AliasError.
    """
    types = _result_types(trace, sizes, arguments)
    for target, expected in zip(targets, types, strict=True):
        if expected is None:
            raise StructureError("out= cannot take a result that is a plain Python number")
        dtype, shape = expected
        if target.shape != shape or target.dtype != dtype:
            raise OutArgumentError(
                expected=_type_text(dtype, shape), found=_type_text(target.dtype, target.shape)
            )
        if not target.flags.writeable:
            raise OutArgumentError(
                f"out= is read-only, the result {_type_text(dtype, shape)} goes nowhere"
            )
        if may_overlap_itself(target):
            raise OutArgumentError(
                f"elements of out= share memory, the result {_type_text(dtype, shape)} has no room",
                hint="Give an array of its own: np.empty(shape, dtype).",
            )
    _check_overlaps(targets, buffers)


def _type_text(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """Return a dtype and shape in this package's notation."""
    try:
        name = from_numpy(dtype).name
    except DTypeError:
        name = dtype.name
    order = "" if dtype.isnative else " in another order of bytes"
    return f"{name}[{','.join(map(str, shape))}]{order}"


def may_overlap_itself(a: Buffer) -> bool:
    """Return whether elements of an array may share memory, as in sliding windows."""
    reach = a.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if step < reach:
            return a.size > 0
        reach += (n - 1) * step
    return False


def _target(x: Any) -> Buffer:
    if isinstance(x, Array):
        x.node.move_snapshot()
        return evaluate(x.node)
    if not is_foreign_array(x) or isinstance(x, np.generic):
        raise OutArgumentError(expected="an array", found=type(x).__name__)
    return as_buffer(x)


def _result_types(
    trace: Trace, sizes: tuple[int, ...], arguments: Sequence[Argument]
) -> list[tuple[np.dtype[Any], tuple[int, ...]] | None]:
    """Return dtype and shape of every result, None for Python numbers."""
    types: list[tuple[np.dtype[Any], tuple[int, ...]] | None] = []
    named = dict(zip(input_size_names(trace.graph), sizes, strict=True))
    for r in trace.results:
        if r.kind == "graph":
            out = trace.graph.outputs[r.position].type
            shape = dims_at(out.shape, named)
            perm = trace.permutations and trace.permutations.outputs[r.position]
            types.append((out.dtype.numpy, tuple(shape[p] for p in perm) if perm else shape))
        elif r.kind == "argument":
            data = _memory(arguments[r.position])
            types.append((data.dtype, data.shape))
        elif r.kind == "captured":
            types.append((r.value.type.dtype.numpy, r.value.type.shape))
        else:
            types.append(None)
    return types


def _check_overlaps(targets: Sequence[Buffer], buffers: Sequence[Buffer]) -> None:
    """Raise AliasError for overlaps, except an array that is exactly an input.

    The run time handles that case, by a copy if necessary.
    """
    written, read = spans_of(targets), spans_of(buffers)
    for k, target in enumerate(targets):
        for j in written.overlapping(target):
            other = targets[j]
            if j < k and _overlap(target, other):
                raise AliasError(
                    first="one array of out=", second="another", bytes=_shared(target, other)
                )
        for j in read.overlapping(target):
            data = buffers[j]
            if not is_same_memory(data, target) and _overlap(target, data):
                raise AliasError(first="out=", second="an input", bytes=_shared(target, data))


def is_same_memory(a: Buffer, b: Buffer) -> bool:
    """Return whether two arrays are the same memory with the same shape and strides."""
    return a is b or (
        a.shape == b.shape
        and a.strides == b.strides
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def _overlap(a: Buffer, b: Buffer) -> bool:
    try:
        return np.may_share_memory(a, b) and np.shares_memory(a, b, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def _shared(a: Buffer, b: Buffer) -> int:
    (low, high), (first, last) = (np.lib.array_utils.byte_bounds(x) for x in (a, b))
    return min(high, last) - max(low, first)


def _finish_out(
    trace: Trace, out_leaves: Sequence[Any], targets: Sequence[Buffer], results: Sequence[Any]
) -> None:
    """Write results that the graph did not write, and update the arrays passed as `out`."""
    values: list[Buffer] = []
    written = spans_of(targets)
    for target_array, target, r, value in zip(
        out_leaves, targets, trace.results, results, strict=True
    ):
        if r.kind != "graph":
            node = (
                value.node
                if isinstance(value, Array)
                else number(value, target_array.dtype, "out=")
            )
            data = evaluate(cast(node, from_numpy(target.dtype)))
        else:
            data = evaluate(value.node)
        if not is_same_memory(target, data) and written.overlapping(data):
            data = data.copy()  # an input that another result overwrites
        values.append(data)
    place = str(here()) if any(isinstance(x, Array) for x in out_leaves) else ""
    for target_array, target, data in zip(out_leaves, targets, values, strict=True):
        if not is_same_memory(target, data):
            target[...] = data
        if isinstance(target_array, Array):
            target_array.node.invalidate(place)  # invalidates other names of the array
            target_array.replace_value(leaf(target))


# donate=


def _invalidate(leaves: Sequence[Any]) -> None:
    """Make reading the old values of arrays an error, whatever names they have."""
    arrays = [x for x in leaves if isinstance(x, Array)]
    place = str(here()) if arrays else ""
    for x in arrays:
        x.node.invalidate(place)
