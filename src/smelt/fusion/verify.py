"""Verify that a plan is well formed.

Each result of the graph is written once. A cluster reads inputs of the graph and what earlier
launches wrote. Clusters of one launch do not read one another. Inside a cluster operands come
first. Library calls have a cluster of their own. Buffers that live at the same time do not overlap,
at any of several sizes. A chunked cluster has a well-formed plan itself, whose inputs and results
are blocks of the cluster's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from smelt.errors import VerifyError
from smelt.fusion.plan import Body, Cluster, Plan, Slot
from smelt.fusion.units import is_free, is_library
from smelt.graph.ir import Node
from smelt.graph.loop import loop_key
from smelt.graph.text import name_values
from smelt.graph.walk import all_size_names
from smelt.kernel.chunks import FIRST_ROW, WHOLE, ChunkSlice
from smelt.ops.create import Input
from smelt.types.dtype import i64
from smelt.types.expr import evaluate, size
from smelt.types.tensor import TensorType

_TRIED = (1, 2, 3, 7, 16, 61, 100, 1000, 4096)
"""Sizes at which buffers are compared, rotated over the sizes of the graph."""


def verify(plan: Plan) -> Plan:
    """Return `plan`. Raises VerifyError if it is not well formed."""
    _launches(plan)
    written: dict[Node, int] = {}
    for step, group in enumerate(plan.launches):
        written_now: dict[Node, int] = {}
        for k in group:
            cluster = plan.clusters[k]
            _reads(plan, cluster, written)
            _inside(plan, cluster)
            for node in cluster.outputs:
                if node in written or node in written_now:
                    _fail(plan, cluster, f"{_name(plan, node)} is written twice")
                written_now[node] = step
        written |= written_now
    for node in plan.graph.outputs:
        if node not in written and not isinstance(node.op, Input):
            _fail(plan, None, f"result {_name(plan, node)} is never written")
    _recomputed(plan)
    _slots(plan, written)
    for sizes_ in _samples(plan):
        check_disjoint(plan, sizes_)
    return plan


def _launches(plan: Plan) -> None:
    listed = [k for group in plan.launches for k in group]
    if listed != list(range(len(plan.clusters))):
        _fail(plan, None, f"launches {plan.launches} do not list the clusters in order")
    for group in plan.launches:
        calls = [
            k
            for k in group
            if plan.clusters[k].inner_plan is not None
            or any(is_library(n) for n in plan.clusters[k].nodes)
        ]
        if calls and len(group) > 1:
            _fail(plan, plan.clusters[calls[0]], "a library call starts together with others")


def _reads(plan: Plan, cluster: Cluster, written: Mapping[Node, int]) -> None:
    for node in cluster.inputs:
        if not isinstance(node.op, Input) and node not in written:
            _fail(plan, cluster, f"{_name(plan, node)} is read before it is written")


def _inside(plan: Plan, cluster: Cluster) -> None:
    """Check that operands come first, nothing is unused, and calls are alone."""
    available = set(cluster.inputs)
    for node in cluster.nodes:
        for operand in node.inputs:
            if operand not in available:
                _fail(plan, cluster, f"{_name(plan, operand)} is not there for its reader")
        available.add(node)
    needed = set(cluster.outputs)
    for node in reversed(cluster.nodes):
        if node not in needed:
            _fail(plan, cluster, f"{_name(plan, node)} is computed for nobody")
        needed.update(node.inputs)
    if not cluster.outputs or not set(cluster.outputs) <= set(cluster.nodes):
        _fail(plan, cluster, "it does not compute what it writes")
    unread = [x for x in cluster.inputs if x not in needed]
    if unread:
        _fail(plan, cluster, f"{_name(plan, unread[0])} is read for nothing")
    computing = [n for n in cluster.nodes if not is_free(n)]
    one_loop = len({loop_key(n) for n in computing}) == 1 and loop_key(computing[0]) is not None
    if any(is_library(n) for n in computing) and len(computing) > 1 and not one_loop:
        _fail(plan, cluster, "a library call shares a cluster with other operators")
    if cluster.shapes and len(cluster.shapes) != len(cluster.outputs):
        _fail(plan, cluster, "there is not one shape for each result")
    if cluster.loop is not None and cluster.loop.plan is not None:
        verify(cluster.loop.plan)
    if cluster.body is not None:
        verify(cluster.body.plan)
        _chunks(plan, cluster, cluster.body)


def _chunks(plan: Plan, cluster: Cluster, body: Body) -> None:
    """Check that a chunk's inputs and results are blocks of the cluster's, each result once."""
    chunks, graph = body.chunks, body.plan.graph
    accumulated = [c for c in chunks.makes if c.axis == WHOLE]
    types = [x.type for x in (*graph.inputs, *graph.outputs)]
    expected = [_block(plan, cluster, c, cluster.inputs, chunks.rows) for c in chunks.reads]
    expected += [
        _block(plan, cluster, c, cluster.outputs, chunks.rows)
        for c in (*accumulated, *chunks.makes)
    ]
    if types != expected:
        _fail(plan, cluster, "its rounds do not read and make blocks of its values")
    if sorted(c.place for c in chunks.makes) != list(range(len(cluster.outputs))):
        _fail(plan, cluster, "its rounds do not make each result once")
    if any(not c.combine for c in accumulated) or chunks.block < 1:
        _fail(plan, cluster, "its rounds do not say how to go on")


def _block(
    plan: Plan, cluster: Cluster, cut: ChunkSlice, values: tuple[Node, ...], rows: str
) -> TensorType:
    """Return the type of the block of a value that a cut describes."""
    if cut.axis == FIRST_ROW:
        return TensorType(i64)
    if not 0 <= cut.place < len(values):
        _fail(plan, cluster, "its rounds read or make what is not the cluster's")
    full_type = values[cut.place].type
    if cut.axis == WHOLE:
        return full_type
    shape = [size(rows) if d == cut.axis else n for d, n in enumerate(full_type.shape)]
    return TensorType(full_type.dtype, tuple(shape))


def _recomputed(plan: Plan) -> None:
    counts: dict[Node, int] = {}
    for cluster in plan.clusters:
        for node in cluster.nodes:
            counts[node] = counts.get(node, 0) + 1
    for cluster in plan.clusters:
        mismarked = [n for n in cluster.recomputed if n not in cluster.nodes or counts[n] < 2]
        mismarked += [
            n
            for n in cluster.nodes
            if counts[n] > 1 and not is_free(n) and n not in cluster.recomputed
        ]
        if mismarked:
            _fail(plan, cluster, f"{_name(plan, mismarked[0])} is marked wrongly as computed again")


def _slots(plan: Plan, written: Mapping[Node, int]) -> None:
    slots = {slot.node: slot for slot in plan.slots}
    if set(slots) != set(written) or len(slots) != len(plan.slots):
        _fail(plan, None, "there is not one buffer for each written value")
    results = set(plan.graph.outputs)
    for k, cluster in enumerate(plan.clusters):
        for node in cluster.outputs:
            if slots[node].first != k or (slots[node].offset is None) != (node in results):
                _fail(plan, cluster, f"the buffer of {_name(plan, node)} is not its own")
            _donated(plan, slots[node], k)
            _check_within_result(plan, slots[node], slots)
        for node in cluster.inputs:
            if node in slots and slots[node].last < k:
                _fail(plan, cluster, f"the buffer of {_name(plan, node)} ends too early")


def _donated(plan: Plan, slot: Slot, k: int) -> None:
    """Check that a result overwrites only an input that is not read later or concurrently."""
    overwritten = slot.reuses
    if slot.offset is not None or overwritten is None:
        return
    step = {j: s for s, group in enumerate(plan.launches) for j in group}
    late_readers = [
        j for j, c in enumerate(plan.clusters) if overwritten in c.inputs and step[j] >= step[k]
    ]
    if (
        overwritten not in plan.graph.inputs
        or overwritten in plan.graph.outputs
        or late_readers != [k]
    ):
        _fail(plan, plan.clusters[k], f"{_name(plan, slot.node)} overwrites what is still read")


def _check_within_result(plan: Plan, slot: Slot, slots: Mapping[Node, Slot]) -> None:
    """Check that a hosting result is written after the value's last reader."""
    if slot.within is None:
        return
    step = {j: s for s, group in enumerate(plan.launches) for j in group}
    host = slots.get(slot.within)
    is_plain_result = host is not None and host.offset is None and host.reuses is None
    if not is_plain_result or host is None or step[slot.last] >= step[host.first]:
        _fail(plan, None, f"{_name(plan, slot.node)} stands where a result is written")


# ---- memory ------------------------------------------------------------------------------------


def _samples(plan: Plan) -> Iterator[dict[str, int]]:
    names = all_size_names(plan.graph)
    for shift in range(len(_TRIED)):
        yield {name: _TRIED[(shift + k) % len(_TRIED)] for k, name in enumerate(names)}


def overlapping(plan: Plan, sizes_: Mapping[str, int]) -> tuple[Slot, Slot] | None:
    """Return two buffers that share memory while both are needed, or None.

    The same one twice if it exceeds the result in whose memory it is. Clusters of one launch run
    at the same time. A value may overwrite one that its own cluster was the last to read,
    if the plan says so.
    """
    step = {k: s for s, group in enumerate(plan.launches) for k in group}
    placed: list[tuple[int, int, Slot]] = []
    for slot in plan.slots:
        if slot.offset is None:
            continue
        start = int(evaluate(slot.offset, sizes_))
        end = start + int(evaluate(slot.nbytes, sizes_))
        if slot.within is not None and end > int(evaluate(slot.within.type.nbytes, sizes_)) > 0:
            return slot, slot
        for begin, stop, other in placed:
            if slot.within is not other.within:
                continue
            is_apart = end <= begin or stop <= start or begin == stop or start == end
            is_later = step[slot.first] > step[other.last] or step[other.first] > step[slot.last]
            if not is_apart and not is_later and slot.reuses is not other.node:
                return other, slot
        placed.append((start, end, slot))
    return None


def check_disjoint(plan: Plan, sizes_: Mapping[str, int]) -> None:
    """Raise VerifyError if a buffer would be overwritten while it is needed.

    Cheap enough for every plan, at the sizes of its first call. Sizes at which a slice would have a
    negative length, or a division by zero would occur, are skipped: the front end guards against
    them.
    """
    dims = {d for slot in plan.slots for d in slot.node.type.shape if not isinstance(d, int)}
    try:
        if any(evaluate(d, sizes_) < 0 for d in dims):
            return
    except ZeroDivisionError:
        return
    pair = overlapping(plan, sizes_)
    if pair is not None:
        a, b = (_name(plan, slot.node) for slot in pair)
        _fail(plan, None, f"the buffers of {a} and {b} overlap at {dict(sizes_)}")


def _name(plan: Plan, node: Node) -> str:
    return name_values(plan.graph).get(node, repr(node))


def _fail(plan: Plan, cluster: Cluster | None, reason: str) -> NoReturn:
    where = "" if cluster is None else f", cluster {cluster.name}"
    raise VerifyError(f"plan of {plan.graph.name}{where}: {reason}")
