"""Lower a loop whose step keeps its carries in place: one kernel with a stream over the steps.

kernel ema(c: f32[n], x: f32[t,n]) -> y: f32[t,n]
  grid n/64
  v0 = c[n]
  stream t with s = v0 [n]
    v1 = s * 0.9
    v2 = v1 + x[t,n]
    y[t,n] = v2
    s' = v2

A step may sum over axes of its carries, which every task then has as a whole:

kernel state(c: f32[b,k,n], q: f32[t,b,k], x: f32[t,b,n]) -> y: f32[t,b,n]
  grid b, n/64
  v0 = c[b,k,n]
  stream t with s = v0 [k,n]
    v1 = q[t,b,k]
    v2 = s + v1 * x[t,b,n]
    y[t,b,n] = sum(v1 * v2 over k)
    s' = v2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.errors import DeviceKernelError
from smelt.fusion.plan import Cluster, LoopBody
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.loop import instantiate
from smelt.kernel import ir
from smelt.kernel.canonical import numbered_name
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_index,
    joined_axes,
    live,
    transform,
    visit,
    visit_body,
)
from smelt.lower.define import Definition, define
from smelt.machine.tiling import Tiling
from smelt.ops.contract import bare_axis
from smelt.ops.create import Input
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, axes_of, sub


def recurrence(cluster: Cluster, loop: LoopBody, rounding: str, tiling: Tiling) -> ir.Kernel:
    """Return the kernel of a loop whose step is in one kernel (`smelt.fusion.loops`).

    Raises DeviceKernelError for a step that reads its carries at other elements than it writes.
    """
    return _Recurrence(cluster, loop, rounding, tiling).kernel()


@dataclass(frozen=True, slots=True)
class _Step:
    """The step as straight-line statements, and what its parameters are."""

    definition: Definition
    number: Mapping[str, int]
    """The operand of the loop that each parameter stands for."""
    stores: tuple[ir.Store, ...]
    """What is computed: next carries, then stacked results, then carries before the step."""


class _Recurrence:
    def __init__(self, cluster: Cluster, loop: LoopBody, rounding: str, tiling: Tiling) -> None:
        self.cluster, self.loop, self.op, self.tiling = cluster, loop, loop.op, tiling
        self.graph = instantiate(loop.op)
        self.step = self._define(rounding)
        self.renamed = self._renamed()
        d = self.step.definition
        self.taken = {*d.axes, *(s.name for s in d.body if isinstance(s, ir.Let))}
        self.params = [self._param(node) for node in cluster.inputs]
        self.outputs = [
            ir.Param(self._fresh(f"y{k}"), node.type.dtype, node.type.shape)
            for k, node in enumerate(cluster.outputs)
        ]
        self.states = [self._fresh(f"s{k}") for k in range(self.op.carries)]
        self.time = ir.Axis(self._fresh("t"), self.op.length[0])
        self.grid = self._grid()

    def _define(self, rounding: str) -> _Step:
        graph, op = self.graph, self.op
        wanted = [k for k in self.loop.wanted if k >= op.carries]
        results = [*graph.outputs[: op.carries]]
        results += [
            graph.outputs[k] if k < op.results else graph.inputs[k - op.results] for k in wanted
        ]
        # a store for each: copies of what is an input, a constant, or computed twice
        outputs = tuple(map(build.identity, results))
        nodes = Graph(graph.name, graph.inputs, outputs).nodes()
        inside = tuple(x for x in nodes if not isinstance(x.op, Input))
        read = {x for node in inside for x in node.inputs}
        inputs = tuple(x for x in graph.inputs if x in read)
        d = define(Cluster(graph.name, inside, inputs, outputs), rounding)
        number = {p.name: graph.inputs.index(x) for p, x in zip(d.inputs, inputs, strict=True)}
        d.body = live(d.body)
        stores = tuple(s for s in d.body if isinstance(s, ir.Store))
        return _Step(d, number, stores)

    def _renamed(self) -> Mapping[ir.Load, Mapping[str, str]]:
        """Return the axes of reads of carries in place of those written along.

        Raises DeviceKernelError for reads at other elements.
        """
        d, result = self.step.definition, dict[ir.Load, Mapping[str, str]]()
        for v in visit_body(tuple(d.body)):
            k = self.step.number.get(v.param, self.op.carries) if isinstance(v, ir.Load) else -1
            if not isinstance(v, ir.Load) or k >= self.op.carries:
                continue
            pairs = zip(self.step.stores[k].index, v.index, strict=True)
            other = {bare_axis(e): bare_axis(f) for e, f in pairs if e != f}
            names = {old: new for old, new in other.items() if old and new}
            if len(names) < len(other) or {*names.values()} & {*_axes(self.step.stores[k])}:
                missing = f"carry {k} at other elements than a step writes"
                raise DeviceKernelError(kernel=self.cluster.name, missing=missing)
            result[v] = names
        return result

    def _fresh(self, base: str) -> str:
        return numbered_name(base, self.taken, "_")

    def _param(self, node: Node) -> ir.Param:
        label = node.op.label if isinstance(node.op, Input) else "x"
        strides = node.op.strides if isinstance(node.op, Input) else None
        return ir.Param(self._fresh(label), node.type.dtype, node.type.shape, strides)

    def kernel(self) -> ir.Kernel:
        d, op = self.step.definition, self.op
        before: list[ir.Statement] = []
        inside: list[ir.Statement] = []
        varying: set[str] = set()
        for s in d.body:
            if isinstance(s, ir.Store):
                continue
            assert isinstance(s, ir.Let)
            value = transform(s.value, self._operand)
            names = {v.name for v in visit(value) if isinstance(v, ir.Ref)}
            moves = any(isinstance(v, ir.Load) and self._is_slice(v) for v in visit(value))
            if moves or names & (varying | {*self.states}):
                varying.add(s.name)
                inside.append(ir.Let(s.name, value, 0))
            else:
                before.append(ir.Let(s.name, value, 0))
        states = tuple(self._state(k, before) for k in range(op.carries))
        after: list[ir.Statement] = []
        stacked = iter(self.step.stores[op.carries :])
        results = zip(self.outputs, self.loop.wanted, strict=True)
        for param, which in results:
            if which < op.carries:
                index = self.step.stores[which].index
                after.append(ir.Store(param.name, index, ir.Ref(self.states[which])))
            else:
                store = next(stacked)
                value = transform(store.value, self._operand)
                inside.append(ir.Store(param.name, (self._moment(), *store.index), value))
        for name, carried, store in zip(self.states, self.graph.inputs, self.step.stores):
            value = transform(store.value, self._operand)
            inside.append(ir.Update(name, ir.Cast(value, carried.type.dtype)))
        stream = ir.Stream((ir.Block(self.time.name, 1),), states, tuple(inside))
        return ir.Kernel(
            self.cluster.name,
            tuple(self.params),
            tuple(self.outputs),
            (*d.axes.values(), self.time),
            self.grid,
            (*before, stream, *after),
        )

    def _grid(self) -> tuple[ir.Block, ...]:
        """Return the blocks of the axes that all stored results have and nothing sums over."""
        d, carries = self.step.definition, self.op.carries
        stores = [self.step.stores[k] for k in self.loop.wanted if k < carries]
        stores += self.step.stores[carries:]
        names = axes_of_body(tuple(d.body))
        independent = Axes(d.axes).intersection(*(axes_of_index(s.index, names) for s in stores))
        joined = {a for v in visit_body(tuple(d.body)) for a in joined_axes(v)}
        joined |= {a for pairs in self.renamed.values() for pair in pairs.items() for a in pair}
        axes = [a for a in d.axes if a in independent - joined]
        columns = self.tiling.recurrence_columns
        return tuple(ir.Block(a, columns if a == axes[-1] else 1) for a in axes)

    def _state(self, k: int, before: list[ir.Statement]) -> ir.State:
        """Return a carry as a state, whose initial value is bound in `before`."""
        carried, store = self.graph.inputs[k], self.step.stores[k]
        node = self.cluster.outputs[0].inputs[k]
        param = self.params[self.cluster.inputs.index(node)]
        name = self._fresh(f"{self.states[k]}_0")
        before.append(ir.Let(name, ir.Load(param.name, store.index)))
        fixed = {b.axis for b in self.grid if b.size == 1}
        axes = tuple(a for a in _axes(store) if a not in fixed)
        return ir.State(self.states[k], ir.Ref(name), axes, carried.type.dtype.compute)

    def _moment(self) -> Index:
        """Return the step that a slice is of."""
        t = self.time.index
        return sub(sub(self.time.extent, 1), t) if self.op.reverse else t

    def _is_slice(self, load: ir.Load) -> bool:
        return load.index[:1] == (self._moment(),) and load.param in {
            self.params[self.cluster.inputs.index(x)].name
            for x in self.cluster.outputs[0].inputs[
                self.op.carries : self.op.carries + self.op.slices
            ]
        }

    def _operand(self, value: ir.Value) -> ir.Value:
        """Replace a load of the step's operand by a state or by the loop's operand."""
        if not isinstance(value, ir.Load):
            return value
        k = self.step.number[value.param]
        if k < self.op.carries:
            state: ir.Value = ir.Ref(self.states[k])
            for old, new in self.renamed[value].items():
                state = ir.Rename(state, old, new)
            return state
        node = self.cluster.outputs[0].inputs[k]
        param = self.params[self.cluster.inputs.index(node)].name
        sliced = k < self.op.carries + self.op.slices
        return replace(
            value, param=param, index=(self._moment(), *value.index) if sliced else value.index
        )


def _axes(store: ir.Store) -> list[str]:
    return [a for e in store.index if not isinstance(e, int) for a in axes_of(e)]
