"""Apply the table row of a traced operator and check the types of its results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

from smelt.errors import UnsupportedError
from smelt.frontends.torch.dtypes import from_torch
from smelt.frontends.torch.origins import origin_of
from smelt.frontends.torch.row import Call, Row
from smelt.frontends.torch.sizes import Sizes, fake_value, is_size
from smelt.frontends.torch.value import V
from smelt.graph.bounds_checks import Read
from smelt.types.tensor import TensorType

CPU = torch.device("cpu")


def apply_row(
    row: Row, node: Any, operand: Callable[[Any], Any], sizes: Sizes, reads: list[Read]
) -> Any:
    """Return the results of a row for a traced operator.

    `operand` converts an argument; the row adds to `reads` positions that it only compares.
    Raises UnsupportedError if the row does not apply.
    """
    out = node.meta["val"]
    inputs = map_arg(node.args, lambda n: n if is_size(n) else None) if row.source else node.args
    args = [operand(a) for a in inputs]
    options = {name: operand(a) for name, a in node.kwargs.items()}
    fakes = [fake_value(a) for a in node.args]
    if row.elementwise and isinstance(out, torch.Tensor):
        shape = sizes.shape(out.shape)
        args = [sizes.respell(a, shape) if isinstance(a, V) else a for a in args]
    return row.lower(Call(out, fakes, sizes, origin_of(node), reads), *args, **options)


def require_types(node: Any, results: Any, sizes: Sizes, device: torch.device = CPU) -> Any:
    """Return the results of a row, with dimensions as the traced operator spells them.

    Raises UnsupportedError if a type differs from the traced one.
    """
    out = node.meta["val"]
    if isinstance(out, torch.Tensor):
        return _require_type(results, type_of(out, sizes, device), 0, sizes)
    used = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
    values = [*results, *[None] * len(out)]
    for position in used:
        expected = type_of(out[position], sizes, device)
        values[position] = _require_type(values[position], expected, position, sizes)
    return tuple(values)


def _require_type(value: V | None, expected: TensorType, position: int, sizes: Sizes) -> V:
    if value is not None and value.type.rank == expected.rank:
        value = sizes.respell(value, expected.shape)
    if value is None or value.type != expected:
        actual = "nothing" if value is None else value.type
        raise UnsupportedError(f"result {position} is {expected}, the rule gives {actual}")
    return value


def _place(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def type_of(fake: Any, sizes: Sizes, device: torch.device = CPU) -> TensorType:
    """Return the type of a traced tensor; raises UnsupportedError if there is none."""
    if _place(fake.device) != _place(device) or fake.layout != torch.strided:
        raise UnsupportedError(f"a tensor on {fake.device} with layout {fake.layout}")
    return TensorType(from_torch(fake.dtype), sizes.shape(fake.shape))
