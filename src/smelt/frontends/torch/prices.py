"""Estimate what a traced operator costs to recompute and a value to keep, in nanoseconds.

No operator is known by name: its row expands it to primitives, which have costs. Contractions,
reductions, scans and calls of torch are never recomputed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt.errors import SmeltError
from smelt.frontends.torch.dtypes import from_torch
from smelt.frontends.torch.eager_memory import nbytes
from smelt.frontends.torch.row import Call
from smelt.frontends.torch.saved_stats import compute_from_siblings, sibling_places
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

        out = node.meta["val"]
        args = [operand(a) for a in node.args]
        options = {name: operand(a) for name, a in node.kwargs.items()}
        fakes = map_arg(node.args, lambda x: x.meta["val"])
        if row.elementwise and isinstance(out, torch.Tensor):
            shape = self._sizes.shape(out.shape)
            args = [a.respell(shape) if isinstance(a, V) else a for a in args]
        result = row.lower(Call(out, fakes, self._sizes, None), *args, **options)
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
