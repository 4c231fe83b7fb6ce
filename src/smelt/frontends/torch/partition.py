"""What the forward graph of a training step keeps for the backward graph.

PyTorch's partitioner cuts the joint graph by rules of thumb about its own code generator: it keeps
what a norm or an activation gives beside what it was computed from.  Here its answer is the start,
so that nothing gets worse, and a second cut over the forward graph finds what the backward graph
had better compute again:

    capacity of keeping a value    = its bytes, at the price of writing and reading them in memory
    capacity of computing it again = its arithmetic on this machine; contractions, random numbers
                                     and calls of torch cannot be paid for

The values that lie on the cut are kept; what lies behind it is copied into the backward graph,
where it fuses into whoever reads it.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import torch
from torch.fx.node import map_arg

from smelt.frontends.torch.eager_memory import nbytes
from smelt.frontends.torch.lower import AGAIN, GIVEN
from smelt.frontends.torch.origins import module_of
from smelt.frontends.torch.prices import Prices
from smelt.frontends.torch.record import Kept

__all__ = ["apart", "refine"]

NEW = 1.02
"""A value that PyTorch's cut does not keep is kept only where that brings something."""


def refine(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    count: int,
    moved: Sequence[Any],
    told: Mapping[str, Any],
) -> list[Kept]:
    """Changes forward and backward graph, as PyTorch's cut gives them; what became of each value.

    The first `count` results are the program's own; values that
    `smelt.frontends.torch.hoist_backward` has `moved` into the forward graph are kept.  `told` is
    what AOTAutograd says beside.
    """
    if any("recompute" in n.meta for n in forward.graph.nodes if n not in moved):
        return []  # the user has said what to keep
    found = _Cut(forward, backward, count, moved, told)
    found.solve()
    decided = found.decisions()
    found.apply()
    return decided


def apart(forward: torch.fx.GraphModule, count: int) -> None:
    """Keeps copies of arguments that are written after the call (statistics that a step follows):
    the way back reads what they held, and autograd refuses what was written meanwhile."""
    output = next(n for n in forward.graph.nodes if n.op == "output")
    written = {_memory(n) for n in _mutated(forward.graph, output.meta.get("desc") or ())}
    results = list(output.args[0])
    read = [
        k
        for k in range(count, len(results))
        if _is_plain(results[k]) and _memory(results[k]) in written
    ]
    if not read:
        return
    for k in read:
        n = results[k]
        with forward.graph.inserting_before(output):
            results[k] = forward.graph.call_function(torch.ops.aten.clone.default, (n,))
        results[k].meta["val"] = n.meta["val"].clone()
    output.args = (type(output.args[0])(results),)
    forward.recompile()


class _Cut:
    """PyTorch's partition, and what may be kept in place of what it keeps."""

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        count: int,
        moved: Sequence[Any],
        told: Mapping[str, Any],
    ) -> None:
        self.forward, self.backward, self.count = forward, backward, count
        self.output = next(n for n in forward.graph.nodes if n.op == "output")
        self.results = list(self.output.args[0])
        self.there = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
        self.wanted = [n for n in self.results[count:] if _is_plain(n) and n.name in self.there]
        self.prices = Prices()
        told_of = self.output.meta.get("desc") or ()
        self.mutated = _mutated(forward.graph, told_of)
        changed = _changed(forward.graph, told_of)
        self.changed = {_memory(n) for n in changed}
        self.stays = changed.union(moved, (n for n in self.wanted if _is_unchecked(n)))
        """Values that are not computed again."""
        given = [n for n in forward.graph.nodes if n.op == "placeholder"]
        places = told.get("static_lifetime_input_indices") or ()
        self.static = {given[k] for k in places if k < len(given)}
        """Parameters and buffers, which live anyway."""
        self.kept: list[Any] = []
        self.again: list[Any] = []
        self._sources: dict[Any, tuple[Any, ...]] = {}

    def solve(self) -> None:
        """Finds `kept`, the values of the cut, and `again`, what is computed from them."""
        if not self.wanted:
            return
        net = self._net()
        _, (near, _) = nx.minimum_cut(net, "source", "sink")
        again: dict[Any, None] = {}
        kept: dict[Any, None] = {}

        def visit(n: Any) -> None:
            if n in again or n in kept:
                return
            if (n, 0) in near:
                kept[n] = None
                return
            for x in self.sources(n):
                visit(x)
            again[n] = None

        for n in self.wanted:
            visit(n)
        if any(n in again for n in self.wanted) and self._held(kept) <= self._held(self.wanted):
            self.again, self.kept = list(again), list(kept)

    def _held(self, values: Iterable[Any]) -> int:
        """Bytes that values hold together, what shares memory counted once."""
        held: dict[Any, int] = {}
        for n in values:
            lives = n.op == "placeholder" and (n.name in self.there or n in self.static)
            if _is_plain(n) and not lives:
                place = _memory(n), str(n.meta["val"].storage_offset())
                held[place] = max(held.get(place, 0), _bytes(n))
        return sum(held.values())

    def _net(self) -> Any:
        """Flow: (value, 0) says whether it is computed, (value, 1) whether it is there."""
        net: Any = nx.DiGraph()
        seen: set[Any] = set()
        todo = list(self.wanted)
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            work = self.work(n)
            net.add_edge((n, 0), (n, 1), capacity=_whole(self.keep(n)))
            net.add_edge("source", (n, 0), capacity=_whole(work))
            if math.isfinite(work):
                for x in self.sources(n):
                    net.add_edge((x, 1), (n, 0), capacity=math.inf)
                    todo.append(x)
        for n in self.wanted:
            net.add_edge((n, 1), "sink", capacity=math.inf)
        return net

    def sources(self, n: Any) -> tuple[Any, ...]:
        """The tensors that a value is computed from: operands, and what its operator gives beside
        it."""
        found = self._sources.get(n)
        if found is None:
            found = tuple(x for x in _operands(_computes(n)) if not _is_number(x))
            self._sources[n] = found = (*found, *self.given(n).values())
        return found

    def given(self, n: Any) -> dict[int, Any]:
        """Other results of a value's operator that it is computed through, by place."""
        if n.target is not operator.getitem:
            return {}
        parent, place = n.args
        beside = {u.args[1]: u for u in parent.users if u.target is operator.getitem}
        through = self.prices.through(parent, place)
        return {k: beside[k] for k in through if k in beside}

    def work(self, n: Any) -> float:
        """Nanoseconds of computing a value again; infinite where that must not be."""
        if n.op != "call_function" or n in self.stays or _computes(n) in self.stays:
            return math.inf
        operands = _operands(_computes(n))
        if not all(_is_plain(x) or (_is_number(x) and x.name in self.there) for x in operands):
            return math.inf
        return self.prices.again(n, self.given(n))

    def keep(self, n: Any) -> float:
        """What keeping a value is charged with; infinite where it may change meanwhile."""
        here = n.name in self.there
        if not _is_plain(n) or n.op not in ("placeholder", "call_function"):
            return 0.0 if here and n.op == "placeholder" else math.inf
        if not here and (_memory(n) in self.changed or _is_unchecked(n)):
            return math.inf
        there = n.op == "placeholder" and n not in self.mutated
        if there and (here or n in self.static):
            return 0.0
        return self.prices.keep(n, there=there) * (1.0 if here else NEW)

    def decisions(self) -> list[Kept]:
        """What becomes of each value that PyTorch's partition keeps, and what is kept instead."""
        again = set(self.again)
        found = [
            Kept(n.name, _operator(n), _bytes(n), n in again, module_of(n))
            for n in self.wanted
            if n.op == "call_function"
        ]
        return found + [
            Kept(n.name, _operator(n), _bytes(n), False, module_of(n))
            for n in self.kept
            if n.op == "call_function" and n.name not in self.there
        ]

    # ---- rewriting -------------------------------------------------------------------------------

    def apply(self) -> None:
        """Changes both graphs."""
        if not self.again:
            return
        gone = set(self.again) & set(self.wanted)
        new = [n for n in self.kept if n.name not in self.there]
        self._backward(new, gone)
        self._forward([*new, *(n for n in self.results[self.count :] if n not in gone)])

    def _forward(self, kept: list[Any]) -> None:
        results = [*self.results[: self.count], *kept]
        told = self.output.meta.get("desc")
        if told is not None:
            kind = type(told[self.count])
            self.output.meta["desc"] = [*told[: self.count], *(kind(k) for k in range(len(kept)))]
        self.output.args = (type(self.output.args[0])(results),)
        self.forward.graph.eliminate_dead_code()
        self.forward.recompile()

    def _backward(self, new: list[Any], gone: set[Any]) -> None:
        graph = self.backward.graph
        made = {n: self.there[n.name] for n in self.kept if n.name in self.there}
        first = next(n for n in self.results[self.count :] if n.name in self.there)
        with graph.inserting_before(self.there[first.name]):
            for n in new:
                made[n] = graph.placeholder(n.name)
                made[n].meta.update(n.meta)
        copies: list[Any] = []
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            for n in self.again:
                copies += self._copy(graph, n, made)
        for n in gone:
            old = self.there[n.name]
            old.replace_all_uses_with(made[n])
            graph.erase_node(old)
        _late(graph, copies)
        graph.lint()
        self.backward.recompile()

    def _copy(self, graph: Any, n: Any, made: dict[Any, Any]) -> list[Any]:
        """Computes a value in the backward graph."""

        copies: list[Any] = []
        inner = _computes(n)

        def there(x: Any) -> Any:
            if x is inner:
                return copies[0]
            return made[x] if x in made else self.there[x.name]

        if inner is not n:
            copies.append(graph.node_copy(inner, there))
            copies[0].meta[GIVEN] = {k: made[x].name for k, x in self.given(n).items()}
        copies.append(graph.node_copy(n, there))
        made[n] = copies[-1]
        for copy in copies:
            copy.meta[AGAIN] = True
        return copies


def _whole(ns: float) -> float:
    """A capacity in whole picoseconds: what is left of a flow of fractions is not exactly nothing,
    and the cut then crosses edges of infinite capacity."""
    return round(1000 * ns) if math.isfinite(ns) else ns


def _late(graph: Any, copies: Sequence[Any]) -> None:
    """Moves each copy to just before the first operator that it serves."""
    order: dict[Any, int] = {n: k for k, n in enumerate(graph.nodes)}
    nodes = list(order)
    reads: dict[str, list[Any]] = {}
    for n in copies:
        for name in n.meta.get(GIVEN, {}).values():
            reads.setdefault(name, []).append(n)
    for n in reversed(copies):
        order[n] = min(order[u] for u in (*n.users, *reads.get(n.name, ())))
    for n in copies:
        nodes[order[n]].prepend(n)


def _operands(n: Any) -> list[Any]:
    found: list[Any] = []
    map_arg((n.args, n.kwargs), found.append)
    return found


def _is_plain(n: Any) -> bool:
    """Whether it is one tensor of plain memory."""
    if not isinstance(n, torch.fx.Node):
        return False
    val = n.meta.get("val")
    return isinstance(val, torch.Tensor) and val.layout is torch.strided


def _computes(n: Any) -> Any:
    """The operator that gives a value, alone or among others."""
    return n.args[0] if n.target is operator.getitem else n


def _memory(n: Any) -> Any:
    """What views of the same memory share."""
    return n.meta["val"].untyped_storage()._cdata if _is_plain(n) else n


def _is_unchecked(n: Any) -> bool:
    """Whether a user's function keeps it without autograd's check that nobody writes to it; such
    values stand last among those that are kept."""
    return bool(n.meta.get("saved_tensor_with_no_vc_check"))


def _is_number(n: Any) -> bool:
    return isinstance(n.meta.get("val"), torch.SymInt)


def _operator(n: Any) -> str:
    return str(_computes(n).target)


def _bytes(n: Any) -> int:
    found = n.meta["val"]
    return nbytes(found.numel() * found.element_size()) or 0


def _mutated(graph: Any, descriptions: Sequence[Any]) -> set[Any]:
    """Arguments that are written for the program after the call, which torch tells since 2.9."""
    mutated = [getattr(d, "mutated_input", None) for d in descriptions]
    return {
        n
        for n in graph.find_nodes(op="placeholder")
        if (known := n.meta.get("desc")) is not None and known in mutated
    }


def _changed(graph: Any, descriptions: Sequence[Any]) -> set[Any]:
    """Values that change under the program: what it writes, and arguments that are written for it
    after the call; before torch 2.9, which does not tell, all arguments may be."""
    told = any(d is not None for d in descriptions)
    given = graph.find_nodes(op="placeholder")
    found = _mutated(graph, descriptions) if told else set(given)
    found.update(n for n in given if n.meta.get("desc") is None)
    for n in graph.nodes:
        schema = getattr(n.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            found.update((n, *_operands(n)))
    return found
