"""Choose what the forward graph of a training step keeps for the backward graph.

PyTorch's partitioner cuts the joint graph by rules of thumb about its own code generator: it keeps
the result of a norm or an activation as well as what it was computed from. Here its answer is the
start, so that nothing gets worse, and a second minimum cut over the forward graph finds what the
backward graph should rematerialise:

    capacity of keeping a value = its bytes, at the price of writing and reading them in memory
    capacity of recomputing it  = its arithmetic on this machine; infinite for contractions,
                                  reductions, scans, random numbers and calls of torch

Values on the cut are kept; what follows it is copied into the backward graph, where it fuses
into its readers.  No operator is known by name: its row expands it to primitives, which have costs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import torch

from smelt.errors import SmeltError
from smelt.frontends.torch.fake_facts import nbytes
from smelt.frontends.torch.in_place import is_mutating, nodes_in
from smelt.frontends.torch.lower import RECOMPUTED, SIBLINGS, compute_from_siblings, sibling_places
from smelt.frontends.torch.origins import module_of
from smelt.frontends.torch.record import Kept
from smelt.frontends.torch.row import apply_row, from_torch
from smelt.frontends.torch.sizes import Sizes
from smelt.frontends.torch.table import row_of
from smelt.frontends.torch.value import V
from smelt.fusion.units import Units
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.machine.target import Target
from smelt.ops.create import Input
from smelt.types.expr import evaluate
from smelt.types.tensor import TensorType


class RecomputeCosts:
    """Recomputation costs of the operators of one traced graph."""

    def __init__(self) -> None:
        self._sizes = Sizes()
        self._target = Target.host()
        read, write = (self._target.bandwidth("dram", kind, 1) for kind in ("read", "write"))
        self._byte_ns = 1 / read + 1 / write
        self._read_ns = 1 / read
        self._cache: dict[Any, tuple[V | None, ...]] = {}

    def keep_ns(self, node: Any, *, exists: bool = False) -> float:
        """Return the ns of keeping a value.

        Its bytes are read in main memory, and written unless the value `exists` anyway.
        """
        value = node.meta["val"]
        count = nbytes(value.numel() * value.element_size())
        return math.inf if count is None else count * (self._read_ns if exists else self._byte_ns)

    def recompute_ns(self, node: Any, siblings: Iterable[int] = ()) -> float:
        """Return the ns of recomputing a value from its operands and existing results.

        `siblings` are positions of results of its operator that exist. Infinite if it must not be
        recomputed.
        """
        position = 0
        if node.target is operator.getitem:
            node, position = node.args
        row = row_of(str(node.target))
        if row is None:
            return 0.0 if _is_view(node.target) else math.inf
        if row.alias:
            return 0.0
        results = self._results(node)
        if position >= len(results) or results[position] is None:
            return math.inf
        inputs = {k: _input(f"given{k}", x.type) for k in siblings if (x := results[k]) is not None}
        return self._arithmetic(compute_from_siblings(results, position, inputs).node)

    def sibling_places(self, node: Any, position: int) -> tuple[int, ...]:
        """Return the other results of an operator that one result is computed through."""
        results = self._results(node)
        return sibling_places(results, position) if position < len(results) else ()

    def _results(self, node: Any) -> tuple[V | None, ...]:
        """Apply an operator's row to fresh inputs; no results if that fails."""
        results = self._cache.get(node)
        if results is None:
            try:
                results = self._apply_row(node)
            except (SmeltError, TypeError, KeyError, AttributeError):
                results = ()
            self._cache[node] = results
        return results

    def _apply_row(self, node: Any) -> tuple[V | None, ...]:
        row = row_of(str(node.target))
        if row is None:
            return ()
        inputs: dict[Any, V] = {}

        def operand(a: Any) -> Any:
            if isinstance(a, torch.fx.Node):
                val = a.meta["val"]
                if isinstance(val, torch.SymInt):
                    return self._sizes.index(val)
                if a not in inputs:
                    kind = TensorType(from_torch(val.dtype), self._sizes.shape(val.shape))
                    inputs[a] = _input(f"x{len(inputs)}", kind)
                return inputs[a]
            if isinstance(a, (list, tuple)):
                return [operand(x) for x in a]
            return a

        result = apply_row(row, node, operand, self._sizes, [])
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def _arithmetic(self, node: Node) -> float:
        inputs = [n for n in Graph("all", (), (node,)).nodes() if isinstance(n.op, Input)]
        units = Units(Graph("again", tuple(inputs), (node,)))
        total = 0.0
        for unit in units.units:
            if unit.is_library or unit.is_scatter or unit.trace.dots or unit.scan_axis >= 0:
                return math.inf
            widths = [unit.node.type.dtype] + [
                units.values[e.producer].type.dtype for e in unit.edges
            ]
            width = min(max(d.compute.itemsize for d in widths), 8)
            iterations = math.prod(evaluate(units.extents[e], self._sizes.hints) for e in unit.axes)
            total += self._target.compute_ns(unit.trace.cost, iterations, width)
        return total


def _is_view(target: Any) -> bool:
    returns = getattr(getattr(target, "_schema", None), "returns", ())
    alias = [r.alias_info for r in returns]
    return bool(alias) and all(a is not None and not a.is_write for a in alias)


def _input(name: str, kind: TensorType) -> V:
    return V(build.input(name, kind))


NEW_VALUE_FACTOR = 1.02
"""Factor on the cost of values that PyTorch's cut does not keep: keeping them must bring a gain."""


def refine(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    count: int,
    moved: Sequence[Any],
    options: Mapping[str, Any],
) -> list[Kept]:
    """Improve PyTorch's cut into forward and backward graph; return what became of each value.

    Changes both graphs. The first `count` results are the program's own; values that
    `smelt.frontends.torch.hoist_backward` has `moved` into the forward graph are kept. `options`
    are the other arguments of AOTAutograd.
    """
    if any("recompute" in n.meta for n in forward.graph.nodes if n not in moved):
        return []  # the user has said what to keep
    cut = _Cut(forward, backward, count, moved, options)
    cut.solve()
    decisions = cut.decisions()
    cut.apply()
    return decisions


def clone_written_arguments(forward: torch.fx.GraphModule, count: int) -> None:
    """Keep clones of arguments that are written after the call, such as running statistics.

    The backward pass reads their old contents, and autograd rejects tensors that were written
    meanwhile.
    """
    output = next(n for n in forward.graph.nodes if n.op == "output")
    written = {_memory(n) for n in _mutated(forward.graph, output.meta.get("desc") or ())}
    results = list(output.args[0])
    read = [
        k
        for k in range(count, len(results))
        if _is_strided(results[k]) and _memory(results[k]) in written
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
    """PyTorch's partition, and a minimum cut that may replace what it keeps."""

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        count: int,
        moved: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        self.forward, self.backward, self.count = forward, backward, count
        self.output = next(n for n in forward.graph.nodes if n.op == "output")
        self.results = list(self.output.args[0])
        self.backward_inputs = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
        self.saved_values = [
            n for n in self.results[count:] if _is_strided(n) and n.name in self.backward_inputs
        ]
        self.prices = RecomputeCosts()
        descriptions = self.output.meta.get("desc") or ()
        self.mutated = _mutated(forward.graph, descriptions)
        changed = _changed(forward.graph, descriptions)
        self.changed = {_memory(n) for n in changed}
        self.never_recomputed = changed.union(
            moved, (n for n in self.saved_values if _is_unchecked(n))
        )
        """Values that are never recomputed."""
        arguments = [n for n in forward.graph.nodes if n.op == "placeholder"]
        positions = options.get("static_lifetime_input_indices") or ()
        self.static = {arguments[k] for k in positions if k < len(arguments)}
        """Parameters and buffers, which stay in memory anyway."""
        self.kept: list[Any] = []
        self.recomputed: list[Any] = []
        self._sources: dict[Any, tuple[Any, ...]] = {}

    def solve(self) -> None:
        """Find `kept`, the values on the cut, and `recomputed`, what is recomputed from them."""
        if not self.saved_values:
            return
        net = self._flow_network()
        _, (source_side, _) = nx.minimum_cut(net, "source", "sink")
        recomputed: dict[Any, None] = {}
        retained: dict[Any, None] = {}

        def visit(n: Any) -> None:
            if n in recomputed or n in retained:
                return
            if (n, 0) in source_side:
                retained[n] = None
                return
            for x in self.sources(n):
                visit(x)
            recomputed[n] = None

        for n in self.saved_values:
            visit(n)
        if any(n in recomputed for n in self.saved_values) and self._held_bytes(
            retained
        ) <= self._held_bytes(self.saved_values):
            self.recomputed, self.kept = list(recomputed), list(retained)

    def _held_bytes(self, values: Iterable[Any]) -> int:
        """Return the bytes of values together, counting shared memory once."""
        held: dict[Any, int] = {}
        for n in values:
            is_alive_anyway = n.op == "placeholder" and (
                n.name in self.backward_inputs or n in self.static
            )
            if _is_strided(n) and not is_alive_anyway:
                address = _memory(n), str(n.meta["val"].storage_offset())
                held[address] = max(held.get(address, 0), _value_bytes(n))
        return sum(held.values())

    def _flow_network(self) -> Any:
        """Build the flow network of the cut.

        Node (n, 0) says that `n` is computed, (n, 1) that it exists.
        """
        net: Any = nx.DiGraph()
        seen: set[Any] = set()
        pending = list(self.saved_values)
        while pending:
            n = pending.pop()
            if n in seen:
                continue
            seen.add(n)
            work = self.work(n)
            net.add_edge((n, 0), (n, 1), capacity=_picoseconds(self.keep(n)))
            net.add_edge("source", (n, 0), capacity=_picoseconds(work))
            if math.isfinite(work):
                for x in self.sources(n):
                    net.add_edge((x, 1), (n, 0), capacity=math.inf)
                    pending.append(x)
        for n in self.saved_values:
            net.add_edge((n, 1), "sink", capacity=math.inf)
        return net

    def sources(self, n: Any) -> tuple[Any, ...]:
        """Return what a value is computed from: operands, and other results of its operator."""
        sources = self._sources.get(n)
        if sources is None:
            sources = tuple(x for x in _operands(_computing_node(n)) if not _is_size(x))
            self._sources[n] = sources = (*sources, *self.siblings(n).values())
        return sources

    def siblings(self, n: Any) -> dict[int, Any]:
        """Return other results of its operator that a value is computed through.

        By position.
        """
        if n.target is not operator.getitem:
            return {}
        parent, position = n.args
        siblings = {u.args[1]: u for u in parent.users if u.target is operator.getitem}
        through = self.prices.sibling_places(parent, position)
        return {k: siblings[k] for k in through if k in siblings}

    def work(self, n: Any) -> float:
        """Return the nanoseconds of recomputing a value; infinite if that is not allowed."""
        if (
            n.op != "call_function"
            or n in self.never_recomputed
            or _computing_node(n) in self.never_recomputed
        ):
            return math.inf
        operands = _operands(_computing_node(n))
        if not all(
            _is_strided(x) or (_is_size(x) and x.name in self.backward_inputs) for x in operands
        ):
            return math.inf
        return self.prices.recompute_ns(n, self.siblings(n))

    def keep(self, n: Any) -> float:
        """Return the ns charged for keeping a value; infinite if it may change meanwhile."""
        is_kept_now = n.name in self.backward_inputs
        if not _is_strided(n) or n.op not in ("placeholder", "call_function"):
            return 0.0 if is_kept_now and n.op == "placeholder" else math.inf
        if not is_kept_now and (_memory(n) in self.changed or _is_unchecked(n)):
            return math.inf
        exists = n.op == "placeholder" and n not in self.mutated
        if exists and (is_kept_now or n in self.static):
            return 0.0
        return self.prices.keep_ns(n, exists=exists) * (1.0 if is_kept_now else NEW_VALUE_FACTOR)

    def decisions(self) -> list[Kept]:
        """Return what becomes of each value that PyTorch's cut keeps, and what replaces them."""
        recomputed = set(self.recomputed)
        decisions = [
            Kept(n.name, _operator_name(n), _value_bytes(n), n in recomputed, module_of(n))
            for n in self.saved_values
            if n.op == "call_function"
        ]
        return decisions + [
            Kept(n.name, _operator_name(n), _value_bytes(n), False, module_of(n))
            for n in self.kept
            if n.op == "call_function" and n.name not in self.backward_inputs
        ]

    # ---- rewriting -------------------------------------------------------------------------------

    def apply(self) -> None:
        """Change both graphs."""
        if not self.recomputed:
            return
        dropped = set(self.recomputed) & set(self.saved_values)
        new = [n for n in self.kept if n.name not in self.backward_inputs]
        self._backward(new, dropped)
        self._forward([*new, *(n for n in self.results[self.count :] if n not in dropped)])

    def _forward(self, retained: list[Any]) -> None:
        results = [*self.results[: self.count], *retained]
        descriptions = self.output.meta.get("desc")
        if descriptions is not None:
            kind = type(descriptions[self.count])
            self.output.meta["desc"] = [
                *descriptions[: self.count],
                *(kind(k) for k in range(len(retained))),
            ]
        self.output.args = (type(self.output.args[0])(results),)
        self.forward.graph.eliminate_dead_code()
        self.forward.recompile()

    def _backward(self, new: list[Any], dropped: set[Any]) -> None:
        graph = self.backward.graph
        copied = {
            n: self.backward_inputs[n.name] for n in self.kept if n.name in self.backward_inputs
        }
        first = next(n for n in self.results[self.count :] if n.name in self.backward_inputs)
        with graph.inserting_before(self.backward_inputs[first.name]):
            for n in new:
                copied[n] = graph.placeholder(n.name)
                copied[n].meta.update(n.meta)
        copies: list[Any] = []
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            for n in self.recomputed:
                copies += self._copy(graph, n, copied)
        for n in dropped:
            old = self.backward_inputs[n.name]
            old.replace_all_uses_with(copied[n])
            graph.erase_node(old)
        _sink_copies(graph, copies)
        graph.lint()
        self.backward.recompile()

    def _copy(self, graph: Any, n: Any, copied: dict[Any, Any]) -> list[Any]:
        """Compute a value in the backward graph; return the new nodes."""

        copies: list[Any] = []
        inner = _computing_node(n)

        def operand(x: Any) -> Any:
            if x is inner:
                return copies[0]
            return copied[x] if x in copied else self.backward_inputs[x.name]

        if inner is not n:
            copies.append(graph.node_copy(inner, operand))
            copies[0].meta[SIBLINGS] = {k: copied[x].name for k, x in self.siblings(n).items()}
        copies.append(graph.node_copy(n, operand))
        copied[n] = copies[-1]
        for copy in copies:
            copy.meta[RECOMPUTED] = True
        return copies


def _picoseconds(ns: float) -> float:
    """Return a capacity in integral picoseconds.

    With fractions the residual of a saturated edge is not exactly zero, and the cut then crosses
    edges of infinite capacity.
    """
    return round(1000 * ns) if math.isfinite(ns) else ns


def _sink_copies(graph: Any, copies: Sequence[Any]) -> None:
    """Move each copy to just before its first reader."""
    order: dict[Any, int] = {n: k for k, n in enumerate(graph.nodes)}
    nodes = list(order)
    reads: dict[str, list[Any]] = {}
    for n in copies:
        for name in n.meta.get(SIBLINGS, {}).values():
            reads.setdefault(name, []).append(n)
    for n in reversed(copies):
        order[n] = min(order[u] for u in (*n.users, *reads.get(n.name, ())))
    for n in copies:
        nodes[order[n]].prepend(n)


def _operands(n: Any) -> list[Any]:
    return nodes_in((n.args, n.kwargs))


def _is_strided(n: Any) -> bool:
    if not isinstance(n, torch.fx.Node):
        return False
    val = n.meta.get("val")
    return isinstance(val, torch.Tensor) and val.layout is torch.strided


def _computing_node(n: Any) -> Any:
    """Return the operator that gives a value, alone or among others."""
    return n.args[0] if n.target is operator.getitem else n


def _memory(n: Any) -> Any:
    """Return the identity of the storage of a value."""
    return n.meta["val"].untyped_storage()._cdata if _is_strided(n) else n


def _is_unchecked(n: Any) -> bool:
    """Whether an autograd.Function keeps the value without a version check.

    Such values must stand last among those that are kept.
    """
    return bool(n.meta.get("saved_tensor_with_no_vc_check"))


def _is_size(n: Any) -> bool:
    return isinstance(n.meta.get("val"), torch.SymInt)


def _operator_name(n: Any) -> str:
    return str(_computing_node(n).target)


def _value_bytes(n: Any) -> int:
    value = n.meta["val"]
    return nbytes(value.numel() * value.element_size()) or 0


def _mutated(graph: Any, descriptions: Sequence[Any]) -> set[Any]:
    """Return the arguments that are written after the call, which torch reports since 2.9."""
    mutated = [getattr(d, "mutated_input", None) for d in descriptions]
    return {
        n
        for n in graph.find_nodes(op="placeholder")
        if (description := n.meta.get("desc")) is not None and description in mutated
    }


def _changed(graph: Any, descriptions: Sequence[Any]) -> set[Any]:
    """Return values that may change meanwhile: what the program writes and mutated arguments.

    Before torch 2.9, which does not report mutated arguments, all arguments may be.
    """
    is_reported = any(d is not None for d in descriptions)
    arguments = graph.find_nodes(op="placeholder")
    changed = _mutated(graph, descriptions) if is_reported else set(arguments)
    changed.update(n for n in arguments if n.meta.get("desc") is None)
    for n in graph.nodes:
        if is_mutating(n):
            changed.update((n, *_operands(n)))
    return changed
