"""Lower a function inside a traced program: the step of a loop, or a branch.

PyTorch passes such a function to its operator as a module with a graph of its own. All operators in
it must have rows: a call of torch cannot run in the middle of a loop.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.errors import UnsupportedError
from smelt.frontends.torch.origins import origin_of
from smelt.frontends.torch.refusals import is_refused
from smelt.frontends.torch.row import Row, apply_row, from_torch, require_types
from smelt.frontends.torch.sizes import Sizes, fake_value, is_size
from smelt.frontends.torch.table import row_of
from smelt.frontends.torch.value import ComputedNumber, V, number
from smelt.graph.bounds_checks import Read
from smelt.graph.ir import Node
from smelt.python.origin import Origin
from smelt.types.expr import Index


class Subgraph:
    """A function of a traced program; `apply` may be called several times.

    `in_bounds` and `reads` collect from all calls: reads whose row keeps positions in bounds, and
    positions that rows only compare.
    """

    def __init__(self, module: torch.fx.GraphModule, sizes: Sizes) -> None:
        self.module, self.sizes = module, sizes
        self.in_bounds: set[Node] = set()
        self.reads: list[Read] = []

    def apply(self, operands: Sequence[V | Index]) -> list[V | None]:
        """Return the results for operands.

        Raises UnsupportedError, with the operator and its line, for what has no rule.
        """
        nodes = list(self.module.graph.nodes)
        arguments = [n for n in nodes if n.op == "placeholder"]
        if len(arguments) != len(operands):
            raise UnsupportedError(f"{len(operands)} values for {len(arguments)} arguments")
        values: dict[Any, Any] = {}
        for node, value in zip(arguments, operands, strict=True):
            values[node] = self._argument(node, value)
        for node in nodes:
            if node.op == "output":
                results = node.args[0]
                each = results if isinstance(results, (list, tuple)) else [results]
                return [self._result(x, values) for x in each]
            if node.op != "placeholder":
                values[node] = self._value(node, values)
        raise UnsupportedError("a function without results")

    def _argument(self, node: Any, value: V | Index) -> V | Index:
        fake = node.meta.get("val")
        if not isinstance(value, V):
            same = isinstance(fake, (int, torch.SymInt)) and self.sizes.index(fake) == value
            if not same:
                raise UnsupportedError("a number that differs from the traced one")
            return value
        if not isinstance(fake, torch.Tensor) or from_torch(fake.dtype) != value.dtype:
            raise UnsupportedError(f"an argument of type {type(fake).__name__}")
        return self.sizes.respell(value, self.sizes.shape(fake.shape))

    def _value(self, node: Any, values: dict[Any, Any]) -> Any:
        """Return the value of an operator, or of a constant or function at the module."""
        fake = node.meta.get("val")
        if node.op == "get_attr":
            return self._attribute(node)
        if node.target is operator.getitem and isinstance(values[node.args[0]], tuple):
            return values[node.args[0]][node.args[1]]
        if is_size(node):
            return None  # read by its traced value
        row = _row(str(node.target))
        if row is None:
            raise UnsupportedError(f"{_place(node)}: no rule for {node.target}")
        traced = fake_value(node.args), {k: fake_value(a) for k, a in node.kwargs.items()}
        if not row.alias and is_refused(node.target, *traced):
            raise UnsupportedError(f"{_place(node)}: torch refuses the operands of {node.target}")
        origin = origin_of(node)

        def operand(a: Any) -> Any:
            return self._operand(a, values, origin)

        try:
            result = apply_row(row, node, operand, self.sizes, self.reads)
            if row.in_bounds:
                self.in_bounds.add(result.node)
            return require_types(node, result, self.sizes) if fake is not None else result
        except UnsupportedError as error:
            raise UnsupportedError(f"{_place(node)}: {error.message}") from error

    def _attribute(self, node: Any) -> Any:
        value = submodule(self.module, node.target)
        if isinstance(value, torch.fx.GraphModule):
            return Subgraph(value, self.sizes)
        if isinstance(value, torch.Tensor) and value.dim() == 0 and not _is_fake(value):
            with _disable_current_modes():
                scalar = value.item()
            return number(scalar, from_torch(value.dtype), origin_of(node))
        raise UnsupportedError(f"{_place(node)}: a stored tensor")

    def _operand(self, a: Any, values: dict[Any, Any], origin: Origin | None) -> Any:
        if isinstance(a, torch.fx.Node):
            fake = a.meta.get("val")
            if isinstance(fake, torch.SymInt):
                return self.sizes.index(fake)
            if isinstance(fake, torch.SymFloat):
                result = self.sizes.real_number(fake, origin)
                return ComputedNumber(result) if isinstance(result, V) else result
            value = values[a]
            return V(value.node, origin) if isinstance(value, V) else value
        if isinstance(a, (list, tuple)):
            return [self._operand(x, values, origin) for x in a]
        return a

    def _result(self, a: Any, values: dict[Any, Any]) -> V | None:
        if a is None:
            return None
        value = values.get(a) if isinstance(a, torch.fx.Node) else None
        if not isinstance(value, V):
            raise UnsupportedError("a result that is not a tensor")
        return value


def submodule(module: Any, path: str) -> Any:
    """Return what a path of attributes of a module leads to."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _row(name: str) -> Row | None:
    """Return the row of an operator; inside of functions, views are traced as copies."""
    return row_of(name) or row_of(name.replace("_copy.", "."))


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _place(node: Any) -> str:
    origin = origin_of(node)
    return str(origin) if origin.known else "inside"
