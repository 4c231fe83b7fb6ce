"""Write the results of a call on a device into arrays of the caller (`out=`).

The rules are the CPU's (`results`): an array of `out=` may be an argument, but not a part of one.
A result is computed where it belongs if that is contiguous and no argument; else it is computed in
other memory and copied at the end, in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.errors import DeviceError, OutArgumentError
from smelt.frontends.array.convert import is_foreign_array, is_on_gpu
from smelt.frontends.array.device_array import Place, buffer_of
from smelt.frontends.array.device_layout import (
    as_host_array,
    contiguous,
    is_readable,
    order_after,
    write,
)
from smelt.frontends.array.results import check_targets
from smelt.frontends.array.trace import Argument, Trace
from smelt.frontends.array.tree import leaves_like
from smelt.runtime.cuda.buffer import DeviceBuffer
from smelt.runtime.overlap import Spans

__all__ = ["run_into", "targets_of"]


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
