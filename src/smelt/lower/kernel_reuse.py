"""Reuse lowered kernels for isomorphic clusters, such as repeated layers.

Lowering depends on a cluster's operators, how they read each other, and which are outputs. If all
that is equal, one cluster's kernel is the other's with names replaced.

>>> from smelt.fusion import plan
>>> from smelt.graph.text import parse
>>> from smelt.kernel.text import text
>>> from smelt.lower.define import define
>>> from smelt.machine.target import Target
>>> graph = parse('''graph f(x: f32[n], a: f32[m,n], b: f32[m,n]) {
...   v0 = contract(a, x) {spec="m,k; k -> m"}
...   v1 = contract(b, x) {spec="m,k; k -> m"}
...   return v0, v1
... }''')
>>> one, other = plan(graph, Target.for_isa("avx2"), None, {}, fuse=False).clusters
>>> (
...     cluster_signature(one) == cluster_signature(other),
...     [p.name for p in define(one, "eager").inputs],
... )
(True, ['x', 'a'])
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from smelt.fusion.plan import Cluster
from smelt.graph.ir import Node
from smelt.kernel.canonical import names_of
from smelt.kernel.ir import Kernel, Load, Value
from smelt.kernel.walk import map_values
from smelt.ops.create import Input
from smelt.ops.scalar import SCALARS


def cluster_signature(cluster: Cluster) -> Hashable:
    """Return a key of everything in a cluster that its kernel depends on, except names."""
    numbers: dict[Node, int] = {}
    parts: list[Hashable] = []
    for node in cluster.inputs:
        numbers[node] = len(numbers)
        parts.append((node.type, node.op.strides if isinstance(node.op, Input) else None))
    for node in cluster.nodes:
        parts.append((node.op, node.type, tuple([numbers[x] for x in node.inputs])))
        numbers[node] = len(numbers)
    stream = None if cluster.stream is None else (numbers[cluster.stream[0]], cluster.stream[1])
    outputs = tuple([numbers[n] for n in cluster.outputs])
    return len(cluster.inputs), tuple(parts), outputs, cluster.shapes, stream


def reuse_kernel(
    kernel: Kernel, of: Cluster, cluster: Cluster
) -> tuple[Kernel, Mapping[str, str]] | None:
    """Rename `kernel` (lowered from cluster `of`) for the isomorphic `cluster`.

    Returns the kernel and the renaming, or None on a name collision.
    """
    new = {
        p.name: node.op.label if isinstance(node.op, Input) else p.name
        for p, node in zip(kernel.inputs, cluster.inputs, strict=True)
    }
    same_input_kinds = all(
        isinstance(a.op, Input) == isinstance(b.op, Input)
        for a, b in zip(of.inputs, cluster.inputs, strict=True)
    )
    new = {old: name for old, name in new.items() if old != name}
    if not new and same_input_kinds:
        return replace(kernel, name=cluster.name), new
    unchanged = {*names_of(kernel)} - {*new}
    collisions = {*new.values()} & (unchanged | SCALARS.keys())
    if not same_input_kinds or collisions or len({*new.values()}) < len(new):
        return None

    def change(value: Value) -> Value:
        return (
            replace(value, param=new.get(value.param, value.param))
            if isinstance(value, Load)
            else value
        )

    inputs = tuple(replace(p, name=new.get(p.name, p.name)) for p in kernel.inputs)
    return replace(map_values(kernel, change), name=cluster.name, inputs=inputs), new
