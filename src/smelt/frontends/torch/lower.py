"""A traced program, cut into graphs of ours and calls of torch.

Operators with a row become nodes of a graph; the others stay calls of torch, with the reason.  A
call is a barrier: what depends on it goes into a later graph.  So a program is a row of *stages*,
each a graph and then the calls that need no later one.

    graph 0: everything that no call of torch comes before
    calls 0: those whose operands are there now
    graph 1: ...

Views belong to both worlds.  Inside a graph they are index maps; where a call, or the caller, wants
a tensor, torch makes its own view of the memory, with the strides that eager code would have.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.errors import SmeltError, UnsupportedError, reason_of
from smelt.frontends.torch.aliasing import VIEWS, is_view
from smelt.frontends.torch.dtypes import ours
from smelt.frontends.torch.in_place import draws, is_write, late, new_values, nodes, writes, written
from smelt.frontends.torch.layout import (
    PARTS,
    alone,
    declared,
    is_constant,
    is_guarded,
    memory_order,
    seen,
    whole,
)
from smelt.frontends.torch.origins import Traced, module_of, origin_of
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.saved_stats import replaced
from smelt.frontends.torch.sizes import Sizes, count, is_size, told
from smelt.frontends.torch.table import row_of
from smelt.frontends.torch.updates import updates
from smelt.frontends.torch.value import Real, V
from smelt.graph import build
from smelt.graph.bounds_checks import Read
from smelt.graph.ir import Node
from smelt.types.tensor import Shape, TensorType

__all__ = ["AGAIN", "GIVEN", "Left", "Lowering", "Stage"]

AGAIN, GIVEN = "smelt_again", "smelt_given"
"""Notes at nodes of a backward graph: that a value is a copy of the forward graph's, and the
names of other results of its operator that there are, by place."""


_FEW = 16
"""Operators that a later graph computes again at most, in place of a value that is stored."""


@dataclass(frozen=True, slots=True)
class Left:
    """An operator that was left to torch."""

    operator: str
    reason: str
    where: str
    """The module's path and the line."""


@dataclass(slots=True)
class Stage:
    """A graph in the making, and the calls of torch after it."""

    inputs: dict[Any, V] = field(default_factory=dict)
    """Traced values that the graph reads."""
    outputs: dict[Any, V] = field(default_factory=dict)
    """Traced values that calls, later graphs or the caller want."""
    calls: list[Any] = field(default_factory=list)
    written: dict[Any, Any] = field(default_factory=dict)
    """Outputs that the graph itself writes into arguments, as those's new values."""
    inside: set[Node] = field(default_factory=set)
    """Reads at computed positions of which the program promises that they are inside."""
    reads: list[Read] = field(default_factory=list)
    """Positions that rules compare with others, and do not read at."""


@dataclass(slots=True)
class _Entry:
    row: Row | None
    """None for a value that torch has: an argument, a call's result."""
    graph: int
    """The first graph that may read it."""
    call: int
    """The first stage whose calls may read it."""


class Lowering:
    """The stages of one traced program."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        refused: Mapping[Any, str] | None = None,
        parts: Mapping[Any, int] | None = None,
    ) -> None:
        """`refused` operators are left to torch, each for a reason; `parts` says of operators which
        is the first stage that may have them."""
        self.refused, self._parts = refused or {}, parts or {}
        self.sizes = Sizes(graph.find_nodes(op="placeholder"))
        self.stages: list[Stage] = []
        self.left: list[Left] = []
        self.last: list[Any] = []
        """Calls that write into their operands: after everything that reads the old values."""
        self.late: list[Any] = []
        """What those calls read from memory that one of them writes: copied before them."""
        self.early: list[Any] = []
        """Views of arguments that torch makes, before any graph."""
        self._changed = {
            x for n in graph.nodes if n.op == "call_function" and writes(n) for x in written(n)
        }
        self._drawn = 0
        """The stage of the last random number: all are drawn in the order of the program."""
        self._entries: dict[Any, _Entry] = {}
        self._made: dict[tuple[Any, int], Any] = {}
        self._called: dict[str, Any] = {}
        self.wanted: dict[Any, None] = {}
        """Traced values that exist as tensors, in order of demand."""
        self.results: Any = ()
        self.views: dict[int, Any] = {}
        """Results by place that are views of the arguments that stand there."""
        self.updates = updates(graph, lambda n: row_of(str(n.target)))
        """Operators that write parts of arguments where they stand, and the arguments."""
        for node in graph.nodes:
            self._take(node)
        self._in_order(graph)
        self._write_in_place()
        copied = [n for n in self.last if not (is_write(n) and n.args[1] in self.updates)]
        self.late = late(self.last, copied, self.row)

    # ---- one traced operator ---------------------------------------------------------------------

    def _take(self, node: Any) -> None:
        self._called[node.name] = node
        if node.op in ("placeholder", "get_attr"):
            self._entries[node] = _Entry(None, 0, 0)
        elif node.op == "output":
            self.results, self.views = node.args[0], node.meta.get(VIEWS, {})
            for x in whole(node, self.row):
                self.want(x)
            for x in seen(node):
                self._reunite(x)
            for x in alone(node, self.row, self.wanted):
                self._store(x)
            for x in nodes(node.args):
                self.want(x)
        elif node.target is operator.getitem and self.row(node.args[0]):
            self._entries[node] = self._entries[node.args[0]]
        elif is_size(node):
            self._entries[node] = self._after(None, node)
        elif is_write(node):
            self.want(node.args[1])
            self.last.append(node)
            self._entries[node] = _Entry(None, len(self.stages), len(self.stages))
        else:
            self._operator(node)

    def _in_order(self, graph: torch.fx.Graph) -> None:
        """Results of each graph in the program's order, whoever wanted them first: another trace of
        the program gives the same graph."""
        place = {n: k for k, n in enumerate(graph.nodes)}
        for stage in self.stages:
            stage.outputs = dict(sorted(stage.outputs.items(), key=lambda x: place[x[0]]))

    def _write_in_place(self) -> None:
        """Has the last graph write new values of arguments, where nothing comes behind it."""
        at = next((k for k, s in reversed([*enumerate(self.stages)]) if s.outputs), None)
        if at is None or any(s.calls for s in self.stages[at:]):
            return
        stage = self.stages[at]
        views = self.views
        read = [x for k, x in enumerate(self.results) if k not in views] if views else self.results
        stage.written = new_values(self.last, read, stage.inputs, stage.outputs, self.row)
        done = [n for n in self.last if is_write(n) and n.args[1] in stage.written]
        self.last = [n for n in self.last if n not in done]

    def row(self, node: Any) -> Row | None:
        """The row of an operator that is ours; None for what torch is called for."""
        return self._entries[node].row

    def _operator(self, node: Any) -> None:
        row = row_of(str(node.target))
        if node.target is operator.getitem:
            self._entries[node] = self._after(None, node)
            return
        if node in self.updates:
            self._call(node, "a part of an argument, written where it stands")
            return
        reason = self.refused.get(node, f"no rule for {node.target}")
        if row is not None and node not in self.refused:
            entry = self._after(row, node)
            try:
                self._entries[node] = entry
                self._lowered(node, entry.graph)
                return
            except Exception as error:
                if knobs.STRICT.get() and not isinstance(error, (SmeltError, TypeError)):
                    raise
                reason = reason_of(error)
                del self._entries[node]
        self._call(node, reason)

    def _after(self, row: Row | None, node: Any) -> _Entry:
        operands = (*node.all_input_nodes, *self._given(node).values())
        before = [] if row is not None and row.source else [self._entries[x] for x in operands]
        first = max((e.graph for e in before), default=0)
        if _is_again(node):  # not before what reads it
            first = max(
                [
                    first,
                    *(
                        self._entries[x].call
                        for u in node.users
                        for x in nodes(u.args)
                        if x in self._entries
                    ),
                ]
            )
        if row is not None:
            first = max(first, self._parts.get(node, 0))
        return _Entry(
            row,
            first,
            max((e.call for e in before), default=0) if row is None or row.alias else first,
        )

    def _given(self, node: Any) -> dict[int, Any]:
        """Results of an operator that a copy of it finds, by place."""
        found = {k: self._called.get(name) for k, name in node.meta.get(GIVEN, {}).items()}
        return {k: x for k, x in found.items() if x is not None}

    def _call(self, node: Any, reason: str) -> None:
        """Leaves an operator to torch."""
        operands = list(nodes((node.args, node.kwargs)))
        self.left.append(Left(str(node.target), reason, module_of(node)))
        if self._is_early(node, operands):
            self._entries[node] = _Entry(None, 0, 0)
            self.wanted[node] = None
            self.early.append(node)
            return
        at = max((self._entries[x].call for x in operands), default=0)
        if draws(node):
            self._drawn = at = max(at, self._drawn)
        for x in operands:
            self._serve(x)
        self._entries[node] = _Entry(None, at + 1, at)
        self.wanted[node] = None
        if writes(node):
            if node.users or any(x.op != "placeholder" for x in written(node)):
                raise UnsupportedError(f"{node.target} writes into a value of the graph")
            self.last.append(node)
        else:
            self.stage(at).calls.append(node)

    def _is_early(self, node: Any, operands: list[Any]) -> bool:
        """Whether a call only shows memory otherwise that an argument has throughout."""
        return (
            bool(operands)
            and is_view(node)
            and all(
                x in self.early or is_size(x) or (x.op == "placeholder" and x not in self._changed)
                for x in operands
            )
        )

    # ---- values ----------------------------------------------------------------------------------

    def operators(self, k: int) -> list[Any]:
        """The operators of ours that stage number k has, in the program's order."""
        return [
            n
            for n, e in self._entries.items()
            if e.row is not None and e.graph == k and n.target is not operator.getitem
        ]

    def stage(self, k: int) -> Stage:
        """Stage number k, made if it is new."""
        while len(self.stages) <= k:
            self.stages.append(Stage())
        return self.stages[k]

    def value(self, node: Any, k: int) -> Any:
        """A traced value as graph k reads it: a value, or a tuple of them."""
        made = self._made.get((node, k))
        if made is not None:
            return made
        if node.target is operator.getitem and self.row(node.args[0]):
            parent = self._entries[node.args[0]]
            if parent.graph == k or _free(parent.row) or _is_again(node.args[0]):
                found = self.value(node.args[0], k)[node.args[1]]
                self._made[node, k] = found
                return found
        entry = self._entries[node]
        here = entry.graph == k or _free(entry.row) or _is_again(node)
        if entry.row is not None and (here or self._is_spared(node)):
            return self._lowered(node, k)
        self.want(node)
        found = self._input(node, k)
        self._made[node, k] = found
        return found

    def _is_spared(self, node: Any) -> bool:
        """Whether a later graph makes a value from tensors that exist anyway, in few operators
        element by element or made anew in every graph, with no more to read than the value itself:
        it need not be stored."""
        if node in self.wanted or self._parts:  # what fails then fails in one part
            return False
        leaves: set[Any] = set()
        seen: dict[Any, None] = {node: None}
        todo = [node]
        while todo:
            n = todo.pop()
            row = self._entries[n].row
            part = n.target is operator.getitem and _is_again(n.args[0])
            made = row is not None and (row.elementwise or row.alias or _is_again(n))
            if not (made or part) or len(seen) > _FEW:
                return False
            for x in (*nodes((n.args, n.kwargs)), *self._given(n).values()):
                if self._kept(x):
                    leaves.add(x)
                elif x not in seen:
                    seen[x] = None
                    todo.append(x)
        sizes = [count(x) for x in leaves]
        most = count(node)
        return max(sizes, default=0) <= most and sizes.count(most) <= 1

    def want(self, node: Any) -> None:
        """A tensor of this value must exist."""
        if node in self.wanted:
            return
        entry = self._entries[node]
        if entry.row is None or is_size(node):
            self.wanted[node] = None
            for x in nodes((node.args, node.kwargs)) if self.sizes.is_made(node) else ():
                self.want(x)
            return
        if entry.row.alias and self._shares(node):
            for x in nodes((node.args, node.kwargs)):
                self.want(x)
            self.wanted[node] = None
        else:
            self._store(node)

    def _store(self, node: Any) -> None:
        """Has its graph store this value."""
        at = self._entries[node].graph
        self.stage(at).outputs[node] = self.value(node, at)
        self.wanted[node] = None

    def _reunite(self, node: Any) -> None:
        """Has torch make a result as a view of a value that is made as a whole after all: a call of
        torch wanted the result alone."""
        outputs = self.stage(self._entries[node].graph).outputs
        row = self.row(node)
        if row is not None and row.alias and node in outputs:
            del self.wanted[node]
            if self._shares(node):
                del outputs[node]
            self.wanted[node] = None

    def _serve(self, node: Any) -> None:
        """A call of torch takes this value: what is made from nothing, torch makes itself."""
        if node in self.wanted:
            return
        row = self._entries[node].row
        if row is not None and row.source and not node.all_input_nodes:
            self.wanted[node] = None
        elif row is not None and row.alias and node.op == "call_function" and self._shares(node):
            for x in nodes((node.args, node.kwargs)):
                self._serve(x)
            self.wanted[node] = None
        else:
            self.want(node)

    def shares(self, node: Any) -> bool:
        """Whether torch makes this tensor as a view of another."""
        row, at = self.row(node), self._entries[node].graph
        return row is None or (row.alias and node not in self.stage(at).outputs)

    def _shares(self, node: Any) -> bool:
        """Whether a view is torch's business: of memory that exists, or of all its elements."""
        while True:
            entry = self._entries[node]
            if entry.row is None or node in self.wanted:
                return True
            if node.target is operator.getitem:
                node = node.args[0]
                if not entry.row.alias:
                    return True
                continue
            if not entry.row.alias:
                return True
            if str(node.target) in PARTS and not self._kept(node.args[0]):
                return False
            node = node.args[0]

    def _kept(self, node: Any) -> bool:
        """Whether the memory behind a value exists anyway."""
        while self._entries[node].row is not None and node not in self.wanted:
            row = self._entries[node].row
            if row is None or not row.alias:
                return False
            node = node.args[0]
        return True

    def _lowered(self, node: Any, k: int) -> Any:
        """The operator's rule in graph k.  Raises UnsupportedError where torch expects another
        type."""
        row = self._entries[node].row
        assert row is not None
        out = node.meta["val"]
        origin = origin_of(node)
        given = map_arg(node.args, lambda n: n if is_size(n) else None) if row.source else node.args
        args = [self._operand(a, k, origin) for a in given]
        options = {name: self._operand(a, k, origin) for name, a in node.kwargs.items()}
        fakes = [told(a) for a in node.args]
        if row.elementwise and isinstance(out, torch.Tensor):
            shape = self.sizes.shape(out.shape)
            args = [self._settled(a, shape) if isinstance(a, V) else a for a in args]
        reads = self.stage(k).reads
        found: Any = row.lower(Call(out, fakes, self.sizes, origin, reads), *args, **options)
        if isinstance(out, (tuple, list)) and (given := self._given(node)):
            values = {place: self.value(x, k) for place, x in given.items()}
            found = [
                None if x is None else replaced(found, place, values)
                for place, x in enumerate(found)
            ]
        if row.inside:
            self.stage(k).inside.add(found.node)
        found = self._checked(node, found, out)
        self._made[node, k] = found
        return found

    def _operand(self, a: Any, k: int, origin: Traced) -> Any:
        if isinstance(a, torch.fx.Node):
            known = a.meta.get("val")
            if isinstance(known, torch.SymInt):
                return self.sizes.index(known)
            if isinstance(known, torch.SymFloat) and a.op == "call_function":
                found = self.sizes.real(known, origin)
                return Real(found) if isinstance(found, V) else found
            if isinstance(known, (int, float)) or not isinstance(known, torch.Tensor):
                raise UnsupportedError(f"an operand of type {type(known).__name__}")
            return V(self.value(a, k).node, origin)
        if isinstance(a, (list, tuple)):
            return [self._operand(x, k, origin) for x in a]
        return a

    def _checked(self, node: Any, found: Any, out: Any) -> Any:
        """What the rule gives, as the type that torch expects.  Raises UnsupportedError."""
        if isinstance(out, torch.Tensor):
            return self._as_type(found, self.type_of(out), 0)
        used = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
        values = [*found, *[None] * len(out)]
        for place in used:
            values[place] = self._as_type(values[place], self.type_of(out[place]), place)
        return tuple(values)

    def _as_type(self, value: V | None, wanted: TensorType, place: int) -> V:
        if value is not None and value.type.rank == wanted.rank:
            value = self._settled(value, wanted.shape)
        if value is None or value.type != wanted:
            given = "nothing" if value is None else value.type
            raise UnsupportedError(f"result {place} is {wanted}, the rule gives {given}")
        return value

    def _settled(self, a: V, shape: Shape) -> V:
        self.sizes.compare(a.shape, shape)
        return a.settle(shape)

    def type_of(self, fake: Any) -> TensorType:
        """Our type of a traced tensor.  Raises UnsupportedError for one that we cannot hold."""
        if fake.device.type != "cpu" or fake.layout != torch.strided:
            raise UnsupportedError(f"a tensor on {fake.device} with layout {fake.layout}")
        return TensorType(ours(fake.dtype), self.sizes.shape(fake.shape))

    def _input(self, node: Any, k: int) -> V:
        """An input of graph k, laid out as its tensor is."""
        fake = node.meta["val"]
        kind = self.type_of(fake)
        stage = self.stage(k)
        label = f"x{len(stage.inputs)}"
        order = memory_order(fake)
        given = node.op == "placeholder"
        if order is not None:
            shape = tuple(kind.shape[a] for a in order)
            made: Node = build.input(
                label,
                TensorType(kind.dtype, shape),
                origin=origin_of(node),
                constant=is_constant(node),
            )
            value = V(made).permute(*(order.index(a) for a in range(len(order))))
        else:
            strides = declared(fake, guarded=is_guarded(node)) if given else None
            value = V(build.input(label, kind, strides, origin_of(node)))
        stage.inputs[node] = value
        return value


def _is_again(node: Any) -> bool:
    """Whether it is a copy of what the forward graph computes: made anew wherever it is read."""
    return bool(node.meta.get(AGAIN))


def _free(row: Row | None) -> bool:
    """Made anew in every graph that reads it."""
    return row is not None and (row.alias or row.source)
