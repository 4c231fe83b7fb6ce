"""Lower a traced program to stages of graphs and calls of torch.

Operators with a row become nodes of a graph; the others stay calls of torch, with the reason. A
call is a barrier: what depends on it goes into a later graph. So a program is a sequence of
*stages*, each a graph and then the calls that need no later one.

    graph 0: everything that depends on no call of torch
    calls 0: those whose operands exist by now
    graph 1: ...

Views belong to both sides. Inside a graph they are index maps; where a call, or the caller, needs a
tensor, torch makes its own view of the memory, with the strides that eager code would have.

A result of an operator may be recomputed from its other results that exist anyway. A norm returns
the mean and scale of its rows besides the normed values. If these two are kept, the normed values
follow from them element by element, and no row is reduced again.

>>> from smelt.graph import build
>>> from smelt.types.dtype import f32
>>> from smelt.types.tensor import TensorType
>>> x = V(build.input("x", TensorType(f32, (4, 8))))
>>> total = x.sum((1,), keep=True)
>>> results = x / total, total.reshape(4)
>>> sibling_places(results, 0)
(1,)
>>> t = V(build.input("t", TensorType(f32, (4,))))
>>> [
...     n.op.name
...     for n in Graph(
...         "g", (x.node, t.node), (compute_from_siblings(results, 0, {1: t}).node,)
...     ).nodes()
... ]
['input', 'input', 'reshape', 'div']
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt import knobs
from smelt.errors import SmeltError, UnsupportedError, raised_by_signal_handler, reason_of
from smelt.frontends.torch.fake_facts import ARGUMENT_VIEWS, is_view
from smelt.frontends.torch.in_place import (
    find_updates,
    is_mutating,
    is_random,
    is_write,
    mutated_values,
    new_values,
    nodes_in,
    values_to_copy,
)
from smelt.frontends.torch.layout import (
    PARTIAL_VIEWS,
    declared_strides,
    full_view_results,
    is_constant,
    is_guarded,
    memory_order,
    user_results,
    viewed_bases,
)
from smelt.frontends.torch.origins import TracedOrigin, module_of, origin_of
from smelt.frontends.torch.refusals import is_refused
from smelt.frontends.torch.row import CPU, Row, apply_row, require_types, type_of
from smelt.frontends.torch.sizes import Sizes, element_count, is_size
from smelt.frontends.torch.subgraph import Subgraph, submodule
from smelt.frontends.torch.table import row_of
from smelt.frontends.torch.value import ComputedNumber, V
from smelt.graph import build
from smelt.graph.bounds_checks import Read
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import substitute_nodes
from smelt.ops.create import Input
from smelt.ops.view import Reshape
from smelt.python.dataclass import dataclass
from smelt.types.tensor import TensorType

RECOMPUTED, SIBLINGS = "smelt_again", "smelt_given"
"""Metadata keys at nodes of a backward graph: that a value is a copy of the forward graph's, and
the names of other results of its operator that exist, by position."""


_MAX_RECOMPUTED = 16
"""Maximum operators that a later graph recomputes in place of reading a stored value."""


@dataclass(frozen=True, slots=True)
class Left:
    """An operator that was left to torch."""

    operator: str
    reason: str
    where: str
    """The module's path and the line."""


@dataclass(slots=True)
class Stage:
    """A graph under construction, and the calls of torch after it."""

    inputs: dict[Any, V] = field(default_factory=dict)
    """Traced values that the graph reads."""
    outputs: dict[Any, V] = field(default_factory=dict)
    """Traced values that calls, later graphs or the caller need."""
    calls: list[Any] = field(default_factory=list)
    written: dict[Any, Any] = field(default_factory=dict)
    """Outputs that the graph itself writes into arguments, as their new values."""
    in_bounds: set[Node] = field(default_factory=set)
    """Reads at computed positions that the program promises to be in bounds."""
    reads: list[Read] = field(default_factory=list)
    """Positions that rules only compare with others; they still need bounds checks."""


@dataclass(slots=True)
class _Entry:
    """Earliest stage at which a traced value may be read."""

    row: Row | None
    """None for a value that torch has: an argument or a call's result."""
    graph: int
    """The first stage whose graph may read it."""
    call: int
    """The first stage whose calls may read it."""


class Lowering:
    """Stages of one traced program."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        refused: Mapping[Any, str] | None = None,
        parts: Mapping[Any, int] | None = None,
    ) -> None:
        """Lower all nodes of a traced graph.

        `refused` maps operators to the reason why they are left to torch; `parts` gives for
        operators the first stage that may have them.
        """
        self.refused, self._parts = refused or {}, parts or {}
        self.sizes = Sizes(graph.find_nodes(op="placeholder"))
        self.device = device_of(graph)
        self.stages: list[Stage] = []
        self.left: list[Left] = []
        self.final_writes: list[Any] = []
        """Calls that write into their operands: they run after everything that reads the old
        values."""
        self.copied_values: list[Any] = []
        """What those calls read from memory that one of them writes: it is copied before them."""
        self.early_views: list[Any] = []
        """Views of arguments that torch makes before any graph."""
        self._mutated = {
            x
            for n in graph.nodes
            if n.op == "call_function" and is_mutating(n)
            for x in mutated_values(n)
        }
        self._random_stage = 0
        """Stage of the last random number: all are drawn in the order of the program."""
        self._entries: dict[Any, _Entry] = {}
        self._values: dict[tuple[Any, int], Any] = {}
        self._nodes_by_name: dict[str, Any] = {}
        self.required_tensors: dict[Any, None] = {}
        """Traced values that must exist as tensors, in order of demand."""
        self.results: Any = ()
        self.views: dict[int, Any] = {}
        """Result positions that are views of the arguments returned there."""
        self.updates = find_updates(graph, lambda n: row_of(str(n.target)))
        """Operators that write parts of arguments in place -> the argument."""
        for node in graph.nodes:
            self._lower_node(node)
        self._sort_outputs(graph)
        self._write_in_place()
        copied = [n for n in self.final_writes if not (is_write(n) and n.args[1] in self.updates)]
        self.copied_values = values_to_copy(self.final_writes, copied, self.row)

    # ---- one traced operator ---------------------------------------------------------------------

    def _lower_node(self, node: Any) -> None:
        self._nodes_by_name[node.name] = node
        if node.op in ("placeholder", "get_attr"):
            self._entries[node] = _Entry(None, 0, 0)
        elif node.op == "output":
            self.results, self.views = node.args[0], node.meta.get(ARGUMENT_VIEWS, {})
            for x in viewed_bases(node, self.row):
                self.require_tensor(x)
            for x in user_results(node):
                self._replace_by_view(x)
            for x in full_view_results(node, self.row, self.required_tensors):
                self._store(x)
            for x in nodes_in(node.args):
                self.require_tensor(x)
        elif node.target is operator.getitem and self.row(node.args[0]):
            self._entries[node] = self._entries[node.args[0]]
        elif is_size(node):
            self._entries[node] = self._entry_after(None, node)
        elif is_write(node):
            self.require_tensor(node.args[1])
            self.final_writes.append(node)
            self._entries[node] = _Entry(None, len(self.stages), len(self.stages))
        else:
            self._lower_operator(node)

    def _sort_outputs(self, graph: torch.fx.Graph) -> None:
        """Sort the outputs of each graph in the program's order.

        Another trace of the program then gives the same graph, whatever is needed first.
        """
        position = {n: k for k, n in enumerate(graph.nodes)}
        for stage in self.stages:
            stage.outputs = dict(sorted(stage.outputs.items(), key=lambda x: position[x[0]]))

    def _write_in_place(self) -> None:
        """Let the last graph write new values of arguments, if nothing runs after it."""
        stage_number = next((k for k, s in reversed([*enumerate(self.stages)]) if s.outputs), None)
        if stage_number is None or any(s.calls for s in self.stages[stage_number:]):
            return
        stage = self.stages[stage_number]
        views = self.views
        read = [x for k, x in enumerate(self.results) if k not in views] if views else self.results
        stage.written = new_values(self.final_writes, read, stage.inputs, stage.outputs, self.row)
        done = [n for n in self.final_writes if is_write(n) and n.args[1] in stage.written]
        self.final_writes = [n for n in self.final_writes if n not in done]

    def row(self, node: Any) -> Row | None:
        """Return the row of an operator; None if torch has the value."""
        return self._entries[node].row

    def _lower_operator(self, node: Any) -> None:
        row = row_of(str(node.target))
        if node.target is operator.getitem:
            self._entries[node] = self._entry_after(None, node)
            return
        if node in self.updates:
            self._call(node, "a part of an argument, written where it stands")
            return
        reason = self.refused.get(node, f"no rule for {node.target}")
        if row is not None and not row.alias and is_refused(node.target, *_traced_call(node)):
            reason = "torch refuses these operands"
        elif row is not None and node not in self.refused:
            entry = self._entry_after(row, node)
            try:
                self._entries[node] = entry
                self._apply_rule(node, entry.graph)
                return
            except Exception as error:
                is_bug = not isinstance(error, (SmeltError, TypeError))
                if (knobs.STRICT.get() and is_bug) or raised_by_signal_handler(error):
                    raise
                reason = reason_of(error)
                del self._entries[node]
        self._call(node, reason)

    def _entry_after(self, row: Row | None, node: Any) -> _Entry:
        """Return the earliest stage for an operator, from those of its operands."""
        operands = (*node.all_input_nodes, *self._siblings(node).values())
        operand_entries = (
            [] if row is not None and row.source else [self._entries[x] for x in operands]
        )
        first = max((e.graph for e in operand_entries), default=0)
        if _is_recomputed(node):  # no earlier than its readers
            first = max(
                [
                    first,
                    *(
                        self._entries[x].call
                        for u in node.users
                        for x in nodes_in(u.args)
                        if x in self._entries
                    ),
                ]
            )
        if row is not None:
            first = max(first, self._parts.get(node, 0))
        return _Entry(
            row,
            first,
            max((e.call for e in operand_entries), default=0)
            if row is None or row.alias
            else first,
        )

    def _siblings(self, node: Any) -> dict[int, Any]:
        """Return the existing results of an operator for a copy of it, by position."""
        siblings = {
            k: self._nodes_by_name.get(name) for k, name in node.meta.get(SIBLINGS, {}).items()
        }
        return {k: x for k, x in siblings.items() if x is not None}

    def _call(self, node: Any, reason: str) -> None:
        """Leave an operator to torch."""
        operands = list(nodes_in((node.args, node.kwargs)))
        self.left.append(Left(str(node.target), reason, module_of(node)))
        if self._is_early(node, operands):
            self._entries[node] = _Entry(None, 0, 0)
            self.required_tensors[node] = None
            self.early_views.append(node)
            return
        stage_number = max((self._entries[x].call for x in operands), default=0)
        if is_random(node):
            self._random_stage = stage_number = max(stage_number, self._random_stage)
        for x in operands:
            self._require_for_call(x)
        self._entries[node] = _Entry(None, stage_number + 1, stage_number)
        self.required_tensors[node] = None
        if is_mutating(node):
            if node.users or any(x.op != "placeholder" for x in mutated_values(node)):
                raise UnsupportedError(f"{node.target} writes into a value of the graph")
            self.final_writes.append(node)
        else:
            self.stage(stage_number).calls.append(node)

    def _is_early(self, node: Any, operands: list[Any]) -> bool:
        """Whether a call only makes a view of an argument that is never written."""
        return (
            bool(operands)
            and is_view(node)
            and all(
                x in self.early_views
                or is_size(x)
                or (x.op == "placeholder" and x not in self._mutated)
                for x in operands
            )
        )

    # ---- values ----------------------------------------------------------------------------------

    def operators(self, k: int) -> list[Any]:
        """Return the operators that the graph of stage `k` computes, in program order."""
        return [
            n
            for n, e in self._entries.items()
            if e.row is not None and e.graph == k and n.target is not operator.getitem
        ]

    def stage(self, k: int) -> Stage:
        """Return stage `k`, created if it is new."""
        while len(self.stages) <= k:
            self.stages.append(Stage())
        return self.stages[k]

    def value(self, node: Any, k: int) -> Any:
        """Return a traced value as graph `k` reads it.

        A tuple of values for an operator with several results.
        """
        cached = self._values.get((node, k))
        if cached is not None:
            return cached
        if node.target is operator.getitem and self.row(node.args[0]):
            parent = self._entries[node.args[0]]
            if parent.graph == k or _is_free(parent.row) or _is_recomputed(node.args[0]):
                result = self.value(node.args[0], k)[node.args[1]]
                self._values[node, k] = result
                return result
        entry = self._entries[node]
        here = entry.graph == k or _is_free(entry.row) or _is_recomputed(node)
        if entry.row is not None and (here or self._is_recomputable(node)):
            return self._apply_rule(node, k)
        self.require_tensor(node)
        result = self._input(node, k)
        self._values[node, k] = result
        return result

    def _is_recomputable(self, node: Any) -> bool:
        """Whether a later graph should recompute a value rather than read it from memory.

        It does so from tensors that exist anyway, by few operators that are elementwise or made
        anew in every graph, reading no more than the value itself.
        """
        if (
            node in self.required_tensors or self._parts
        ):  # while bisecting, a failing operator must be in one part only
            return False
        leaves: set[Any] = set()
        seen: dict[Any, None] = {node: None}
        pending = [node]
        while pending:
            n = pending.pop()
            row = self._entries[n].row
            is_cheap_item = n.target is operator.getitem and _is_recomputed(n.args[0])
            is_cheap = row is not None and (row.elementwise or row.alias or _is_recomputed(n))
            if not (is_cheap or is_cheap_item) or len(seen) > _MAX_RECOMPUTED:
                return False
            for x in (*nodes_in((n.args, n.kwargs)), *self._siblings(n).values()):
                if self._has_memory(x):
                    leaves.add(x)
                elif x not in seen:
                    seen[x] = None
                    pending.append(x)
        sizes = [element_count(x) for x in leaves]
        result_size = element_count(node)
        return max(sizes, default=0) <= result_size and sizes.count(result_size) <= 1

    def require_tensor(self, node: Any) -> None:
        """Require that a tensor of this value exists."""
        if node in self.required_tensors:
            return
        entry = self._entries[node]
        if entry.row is None or is_size(node):
            self.required_tensors[node] = None
            for x in nodes_in((node.args, node.kwargs)) if self.sizes.needs_call(node) else ():
                self.require_tensor(x)
            return
        if entry.row.alias and self._is_shared_view(node):
            for x in nodes_in((node.args, node.kwargs)):
                self.require_tensor(x)
            self.required_tensors[node] = None
        else:
            self._store(node)

    def _store(self, node: Any) -> None:
        """Make the graph of a value store it."""
        stage_number = self._entries[node].graph
        self.stage(stage_number).outputs[node] = self.value(node, stage_number)
        self.required_tensors[node] = None

    def _replace_by_view(self, node: Any) -> None:
        """Let torch make a result as a view of a completely stored value.

        A call of torch had required the result alone.
        """
        outputs = self.stage(self._entries[node].graph).outputs
        row = self.row(node)
        if row is not None and row.alias and node in outputs:
            del self.required_tensors[node]
            if self._is_shared_view(node):
                del outputs[node]
            self.required_tensors[node] = None

    def _require_for_call(self, node: Any) -> None:
        """Require a value for a call of torch.

        Torch itself makes what is made from nothing, and views of existing memory.
        """
        if node in self.required_tensors:
            return
        row = self._entries[node].row
        if row is not None and row.source and not node.all_input_nodes:
            self.required_tensors[node] = None
        elif (
            row is not None
            and row.alias
            and node.op == "call_function"
            and self._is_shared_view(node)
        ):
            for x in nodes_in((node.args, node.kwargs)):
                self._require_for_call(x)
            self.required_tensors[node] = None
        else:
            self.require_tensor(node)

    def is_torch_view(self, node: Any) -> bool:
        """Whether torch makes this tensor as a view of another."""
        row, stage_number = self.row(node), self._entries[node].graph
        return row is None or (row.alias and node not in self.stage(stage_number).outputs)

    def _is_shared_view(self, node: Any) -> bool:
        """Whether torch makes a view.

        It does for memory that exists, and for all elements of a value.
        """
        while True:
            entry = self._entries[node]
            if entry.row is None or node in self.required_tensors:
                return True
            if node.target is operator.getitem:
                node = node.args[0]
                if not entry.row.alias:
                    return True
                continue
            if not entry.row.alias:
                return True
            if str(node.target) in PARTIAL_VIEWS and not self._has_memory(node.args[0]):
                return False
            node = node.args[0]

    def _has_memory(self, node: Any) -> bool:
        """Whether the memory behind a value exists anyway."""
        while self._entries[node].row is not None and node not in self.required_tensors:
            row = self._entries[node].row
            if row is None or not row.alias:
                return False
            node = node.args[0]
        return True

    def _apply_rule(self, node: Any, k: int) -> Any:
        """Apply an operator's rule in graph `k`.

        Raises UnsupportedError if torch expects another type.
        """
        row = self._entries[node].row
        assert row is not None
        out = node.meta["val"]
        origin = origin_of(node)

        def operand(a: Any) -> Any:
            return self._operand(a, k, origin)

        result: Any = apply_row(row, node, operand, self.sizes, self.stage(k).reads)
        if isinstance(out, (tuple, list)) and (inputs := self._siblings(node)):
            values = {position: self.value(x, k) for position, x in inputs.items()}
            result = [
                None if x is None else compute_from_siblings(result, position, values)
                for position, x in enumerate(result)
            ]
        if row.in_bounds:
            self.stage(k).in_bounds.add(result.node)
        result = require_types(node, result, self.sizes, self.device)
        self._values[node, k] = result
        return result

    def _operand(self, a: Any, k: int, origin: TracedOrigin) -> Any:
        if isinstance(a, torch.fx.Node):
            fake = a.meta.get("val")
            if isinstance(fake, torch.SymInt):
                return self.sizes.index(fake)
            if isinstance(fake, torch.SymFloat) and a.op == "call_function":
                result = self.sizes.real_number(fake, origin)
                return ComputedNumber(result) if isinstance(result, V) else result
            if fake is None and a.op == "get_attr":
                return self._function(a)
            if isinstance(fake, (int, float)) or not isinstance(fake, torch.Tensor):
                raise UnsupportedError(f"an operand of type {type(fake).__name__}")
            return V(self.value(a, k).node, origin)
        if isinstance(a, (list, tuple)):
            return [self._operand(x, k, origin) for x in a]
        return a

    def _function(self, node: Any) -> Subgraph:
        """Return a function that an operator takes; raises UnsupportedError for another object."""
        module = node.graph.owning_module
        function = None if module is None else submodule(module, node.target)
        if not isinstance(function, torch.fx.GraphModule):
            raise UnsupportedError(f"{node.target} of type {type(function).__name__}")
        return Subgraph(function, self.sizes)

    def _input(self, node: Any, k: int) -> V:
        """Create an input of graph `k` in its tensor's memory order."""
        fake = node.meta["val"]
        kind = type_of(fake, self.sizes, self.device)
        stage = self.stage(k)
        label = f"x{len(stage.inputs)}"
        order = memory_order(fake)
        is_argument = node.op == "placeholder"
        if order is not None:
            shape = tuple(kind.shape[a] for a in order)
            dense_input: Node = build.input(
                label,
                TensorType(kind.dtype, shape),
                origin=origin_of(node),
                constant=is_constant(node),
            )
            value = V(dense_input).permute(*(order.index(a) for a in range(len(order))))
        else:
            strides = declared_strides(fake, guarded=is_guarded(node)) if is_argument else None
            value = V(build.input(label, kind, strides, origin_of(node)))
        stage.inputs[node] = value
        return value


def device_of(graph: torch.fx.Graph) -> torch.device:
    """Return the device that a traced graph computes on: a GPU if any argument is on one.

    Operators on other devices are left to torch.
    """
    nodes = (*graph.find_nodes(op="placeholder"), *graph.find_nodes(op="get_attr"))
    devices = [n.meta["val"].device for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    return next((d for d in devices if d.type == "cuda"), CPU)


def _traced_call(node: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the operands of a traced call as the tracer knows them."""
    return map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))


def _is_recomputed(node: Any) -> bool:
    """Whether it is a copy of a forward value: computed anew wherever it is read."""
    return bool(node.meta.get(RECOMPUTED))


def _is_free(row: Row | None) -> bool:
    """Whether a value is made anew in every graph that reads it."""
    return row is not None and (row.alias or row.source)


def sibling_places(results: Sequence[V | None], position: int) -> tuple[int, ...]:
    """Return the positions of other results that one result is computed through."""
    first = results[position]
    if first is None:
        return ()
    inside = set(Graph("one", (), (first.node,)).nodes())
    positions: list[int] = []
    for k, other in enumerate(results):
        core = None if other is None or k == position else _core(other.node)
        if core is not None and core in inside and core is not _core(first.node):
            positions.append(k)
    return tuple(positions)


def compute_from_siblings(
    results: Sequence[V | None], position: int, siblings: Mapping[int, V]
) -> V:
    """Compute a result from other results that exist.

    `siblings` are values by position; `sibling_places` says which ones count.
    """
    first = results[position]
    assert first is not None
    values: dict[Node, Node] = {}
    for k, value in siblings.items():
        other = results[k]
        if other is not None and (core := _core(other.node)) is not None:
            values[core] = value.reshape(*core.type.shape).node
    graph = substitute_nodes(Graph("one", (), (first.node,)), values)
    return V(graph.outputs[0], first.origin)


def _core(node: Node) -> Node | None:
    """Return the computed value behind reshapes; None for an input."""
    while isinstance(node.op, Reshape):
        (node,) = node.inputs
    return None if isinstance(node.op, Input) else node
