"""Write results of a call on a device into the caller's arrays (`out=`, `donate=`).

The rules are the CPU's (`results`): an array of `out=` may be an argument, but not a part of one.
A result is computed where it belongs if that is contiguous, and no argument or one that the plan
lets it replace: each element is read before it is written. Else it is computed in other memory and
copied at the end, in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.errors import DeviceError, OutArgumentError
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import DeviceArray, Place, buffer_of
from smelt.frontends.array.device_layout import (
    as_host_array,
    contiguous,
    is_readable,
    order_after,
    write,
)
from smelt.frontends.array.results import check_targets, overwriting_trace
from smelt.frontends.array.trace import Argument, Trace
from smelt.frontends.array.tree import leaves_like
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.cuda.dlpack import is_shared
from smelt.runtime.memory import Spans


def targets_of(
    out: Any,
    trace: Trace,
    sizes: tuple[int, ...],
    inputs: Sequence[DeviceBuffer],
    arguments: Sequence[Argument],
    place: Place,
) -> list[DeviceBuffer]:
    """Return the memory for each leaf of the result, checked before anything runs.

    Raises DeviceError for arrays elsewhere, and what `check_targets` raises.
    """
    targets = [_target(x, place) for x in leaves_like("out=", out, trace.tree)]
    described = [as_host_array(b) for b in targets]
    check_targets(trace, sizes, described, [as_host_array(b) for b in inputs], arguments)
    return targets


def overwriting_trace_of(
    trace: Trace, targets: Sequence[DeviceBuffer], inputs: Sequence[DeviceBuffer]
) -> Trace:
    """Return the recording for a call in which arrays of `out=` are also inputs."""
    return overwriting_trace(
        trace,
        [as_host_array(b) for b in targets],
        [as_host_array(b) for b in inputs],
        checks_first=False,
    )


def replaced_inputs(
    targets: Sequence[DeviceBuffer], inputs: Sequence[DeviceBuffer]
) -> tuple[int, ...] | None:
    """Return the input that is the same memory as each array of `out=`.

    -1 stands for none. None if arrays of `out=` share memory in any other way.
    """
    replaced = [-1] * len(targets)
    buffers = [*targets, *inputs]
    for group in _sharing(buffers):
        if group[0] < len(targets):
            if len(group) > 2 or group[1] < len(targets):
                return None
            one, other = (buffers[k] for k in group)
            if (one.address, one.shape, one.strides) != (other.address, other.shape, other.strides):
                return None
            replaced[group[0]] = group[1] - len(targets)
    return tuple(replaced)


def overwritable_arguments(
    leaves: Sequence[Any], buffers: Sequence[DeviceBuffer | None], donated: Sequence[int]
) -> tuple[int, ...]:
    """Return the donated leaves whose memory results may take: nothing else refers to it."""
    if not donated:
        return ()
    present = [k for k, b in enumerate(buffers) if b is not None]
    groups = _sharing([b for b in buffers if b is not None])
    shared = {present[k] for group in groups for k in group}
    return tuple(
        k
        for k in donated
        if (b := buffers[k]) is not None
        and k not in shared
        and is_readable(b)
        and not (isinstance(leaves[k], DeviceArray) and is_shared(b))
    )


def _sharing(buffers: Sequence[DeviceBuffer]) -> list[list[int]]:
    """Return groups of buffers whose memory may overlap, by number, each group in order."""
    spans: list[tuple[int, int, int]] = []
    for k, b in enumerate(buffers):
        if b.nbytes:
            (low, high), size = b.reach, b.dtype.itemsize
            spans.append((b.address + low * size, b.address + (high + 1) * size, k))
    groups: list[list[int]] = []
    last_end = 0
    for first, end, k in sorted(spans):
        if groups and first < last_end:
            groups[-1].append(k)
        else:
            groups.append([k])
        last_end = max(last_end, end)
    return [sorted(group) for group in groups if len(group) > 1]


def _target(x: Any, place: Place) -> DeviceBuffer:
    if is_on_gpu(x):
        buffer = buffer_of(x)
        where = buffer.device.name
        if buffer.device is place.device:
            return buffer
    elif is_foreign_array(x):
        where = "the CPU"
    else:
        raise OutArgumentError(expected="an array", found=type(x).__name__)
    raise DeviceError(
        f"out= is on {where}, the arguments are on {place.device.name}",
        hint=f'Give an array there: sm.asarray(x, device="{place.device.name}").',
    )


def run_into(
    run: Callable[[Sequence[DeviceBuffer | None]], list[DeviceBuffer]],
    trace: Trace,
    targets: Sequence[DeviceBuffer],
    inputs: Sequence[DeviceBuffer],
    others: Mapping[int, DeviceBuffer],
    place: Place,
) -> None:
    """Run a recording and write its results into `targets`.

    `run` takes memory for outputs of the graph, None for those that it allocates, and returns
    them. `others` are the results that the graph does not compute, by leaf.
    """
    read = Spans([as_host_array(b) for b in (*inputs, *others.values())])
    direct: list[DeviceBuffer | None] = [None] * len(trace.graph.outputs)
    for r, target in zip(trace.results, targets, strict=True):
        is_apart = is_readable(target) and not read.overlapping(as_host_array(target))
        if r.kind == "graph" and direct[r.position] is None and is_apart:
            direct[r.position] = target
    results = run(direct)
    sources = [
        others[k] if k in others else results[r.position] for k, r in enumerate(trace.results)
    ]
    pairs = [
        (target, source)
        for target, source in zip(targets, sources, strict=True)
        if (target.address, target.strides) != (source.address, source.strides)
    ]
    written = Spans([as_host_array(target) for target, _ in pairs])
    copies = [  # of what another copy would overwrite
        contiguous(source, place) if written.overlapping(as_host_array(source)) else source
        for _, source in pairs
    ]
    for (target, _), source in zip(pairs, copies, strict=True):
        order_after(target, place)
        order_after(source, place)
        write(target, source, place)
    for target in targets:
        if target.stream != place.stream:
            place.device.order(place.stream, target.stream)
