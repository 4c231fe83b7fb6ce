"""Build one kernel's data in a report: operators, traffic, work and predicted time.

data = kernel_data(entry, target, labels, unfused, compile_data, None)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from smelt.backend import Machine
from smelt.explain.data import (
    AxisData,
    CompileData,
    KernelData,
    OperatorData,
    ParamData,
    Place,
    Role,
    TimeData,
)
from smelt.explain.entries import Entry
from smelt.explain.entries import entry_traffic as moved_whole
from smelt.explain.names import Labels, place_of
from smelt.explain.traffic import Touched, Traffic, traffic
from smelt.explain.unfused import UnfusedTraffic
from smelt.explain.work import Work, work
from smelt.fusion.plan import Cluster
from smelt.graph.ir import Node
from smelt.kernel.ir import Block, Kernel, Split, Stream
from smelt.kernel.text_print import text
from smelt.kernel.walk import statements
from smelt.types.expr import evaluate
from smelt.types.expr import text as expr_text
from smelt.types.tensor import shape_text

Sizes = Mapping[str, int]


def kernel_data(
    entry: Entry,
    target: Machine,
    labels: Labels,
    unfused: UnfusedTraffic,
    compile_data: CompileData,
    measured: TimeData | None,
    *,
    check: bool,
) -> KernelData:
    """Return the data of an entry.

    Without a kernel it is a library call, whose work is not counted, or a chunked part.
    """
    cluster, kernel, sizes = entry.cluster, entry.kernel, entry.sizes
    moved = moved_whole(cluster, sizes, target) if kernel is None else traffic(kernel, sizes)
    total_work = entry.work or (Work() if kernel is None else work(kernel, sizes))
    params = _params(entry, moved, labels)
    level = target.level(moved.nbytes, target.threads)
    recomputed = set(cluster.recomputed)
    return KernelData(
        id=entry.number,
        name=cluster.name,
        kind=_kind(entry, check=check),
        text=None if kernel is None else text(kernel),
        operators=tuple(
            OperatorData(node=labels.number[n], recomputed=n in recomputed) for n in cluster.nodes
        ),
        places=_places(cluster),
        axes=_chunked_axis(cluster, sizes) if kernel is None else _axes(kernel, sizes),
        params=params,
        read_bytes=moved.read,
        written_bytes=moved.written,
        bytes=moved.nbytes,
        bytes_unfused=unfused.nbytes,
        exact=moved.exact,
        transfers=len(params),
        transfers_unfused=unfused.transfers,
        flops=total_work.flops,
        transcendentals=total_work.transcendentals,
        level=level,
        floor_ns=target.transfer_ns(moved.read, moved.written, level),
        predicted_ns=entry.predicted_ns,
        measured=measured,
        compile=compile_data,
        within=entry.within,
        rounds=entry.rounds,
    )


def _kind(entry: Entry, *, check: bool) -> Literal["kernel", "call", "rounds", "loop", "check"]:
    if entry.cluster.body is not None:
        return "rounds"
    if entry.cluster.inner_plan is not None:
        return "loop"
    return "call" if entry.kernel is None else "check" if check else "kernel"


def _places(cluster: Cluster) -> tuple[Place, ...]:
    places = (place_of(n.origin) for n in cluster.nodes)
    return tuple(dict.fromkeys(p for p in places if p is not None))


# ---- axes --------------------------------------------------------------------------------------


def _axes(kernel: Kernel, sizes: Sizes) -> tuple[AxisData, ...]:
    """Return every axis with its role; axes neither blocked nor streamed are tiles."""
    roles: dict[str, Role] = {}
    blocks: dict[str, int | None] = {}
    for role, cut in _blocks(kernel):
        roles[cut.axis] = role
        blocks[cut.axis] = cut.size
    parts = {s.axis: int(evaluate(s.parts, sizes)) for s in kernel.grid if isinstance(s, Split)}
    return tuple(
        AxisData(
            name=a.name,
            extent=expr_text(a.extent),
            size=int(evaluate(a.extent, sizes)),
            role=roles.get(a.name, "tile"),
            block=blocks.get(a.name),
            parts=parts.get(a.name, 0),
        )
        for a in kernel.axes
    )


def _chunked_axis(cluster: Cluster, sizes: Sizes) -> tuple[AxisData, ...]:
    """Return the chunked row axis; nothing for a call."""
    if cluster.body is None:
        return ()
    rounds = cluster.body.chunks
    extent = int(evaluate(rounds.extent, sizes))
    return (
        AxisData(
            name=rounds.rows,
            extent=expr_text(rounds.extent),
            size=extent,
            role="stream",
            block=rounds.block,
            parts=0,
        ),
    )


def _blocks(kernel: Kernel) -> list[tuple[Role, Block]]:
    streamed: list[tuple[Role, Block]] = [
        ("stream", b) for s in statements(kernel) if isinstance(s, Stream) for b in s.blocks
    ]
    return streamed + [("grid", b) for b in kernel.grid if isinstance(b, Block)]


# ---- arrays ------------------------------------------------------------------------------------


def _params(entry: Entry, moved: Traffic, labels: Labels) -> tuple[ParamData, ...]:
    kernel, sizes = entry.kernel, entry.sizes
    params: list[ParamData] = []
    sides: tuple[
        tuple[Literal["in", "out"], tuple[Node, ...], tuple[Node, ...], Mapping[str, Touched]], ...
    ] = (
        ("in", entry.cluster.inputs, entry.arrays.inputs, moved.loads),
        ("out", entry.cluster.outputs, entry.arrays.outputs, moved.stores),
    )
    for role, nodes, arrays, touched in sides:
        kernel_params = (
            (None,) * len(nodes)
            if kernel is None
            else (kernel.inputs if role == "in" else kernel.outputs)
        )
        for node, array, param, counts in zip(
            nodes, arrays, kernel_params, touched.values(), strict=True
        ):
            params.append(
                ParamData(
                    name=labels.name.get(node, "step") if param is None else param.name,
                    role=role,
                    node=labels.number.get(node),
                    dtype=array.type.dtype.name,
                    shape=shape_text(array.type.shape),
                    nbytes=int(evaluate(array.type.nbytes, sizes)),
                    touched=counts.elements,
                    touched_bytes=counts.nbytes,
                    exact=counts.exact,
                )
            )
    return tuple(params)
