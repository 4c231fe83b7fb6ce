"""Define the table row of an ATen operator: its name and its lowering to primitives.

A rule gets the call (what the tracer knows of the result) and the operator's own arguments, tensors
as values:

    Row("aten.neg.default", lambda c, x: -x)

The result of a rule is compared with the type that torch expects; a rule that does not apply raises
UnsupportedError, and the operator is left to torch with that reason.

>>> from smelt.types.dtype import i64
>>> from_torch(torch.bfloat16), to_torch(i64)
(bf16, torch.int64)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.fx.node import map_arg

from smelt.errors import UnsupportedError
from smelt.frontends.torch.origins import origin_of
from smelt.frontends.torch.sizes import Sizes, fake_value, is_size
from smelt.frontends.torch.value import V, number
from smelt.graph.bounds_checks import Read
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin
from smelt.types.dtype import COMPUTABLE, DType
from smelt.types.expr import Index
from smelt.types.tensor import Shape, TensorType

_FROM_TORCH = {getattr(torch, row.long): row for row in COMPUTABLE}
_TO_TORCH: dict[DType, torch.dtype] = {row: dtype for dtype, row in _FROM_TORCH.items()}


def from_torch(dtype: Any) -> DType:
    """Return our element type for a torch dtype; raises UnsupportedError if there is none."""
    row = _FROM_TORCH.get(dtype)
    if row is None:
        raise UnsupportedError(f"{dtype} has no counterpart in Smelt")
    return row


def to_torch(dtype: DType) -> torch.dtype:
    """Return the torch dtype of our element type."""
    return _TO_TORCH[dtype]


Dim: TypeAlias = tuple[int, int]
"""Dimension of an operand: (position of the operand, axis)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A table row: `lower(call, *arguments)` returns a value or a tuple of values.

    None in a tuple stands for a result that is not computed.
    """

    name: str
    """The overload as torch prints it: `aten.add.Tensor`."""
    lower: Callable[..., Any]
    alias: bool = False
    """Torch returns another view of the same memory, at no cost."""
    elementwise: bool = False
    """Operands broadcast, and their dimensions are those of the result."""
    source: bool = False
    """Needs only the type of a tensor operand, for which it gets None; made anew wherever it is
    read."""
    copies_base: bool = False
    """Writes a part of its first operand, into a copy of all of it."""
    in_bounds: bool = False
    """Reads at positions that the writer of the call promises to be in bounds."""
    equal_dims: tuple[tuple[Dim, Dim], ...] = ()
    """Dimensions that must be equal, though the tracer does not compare them."""


class Call:
    """Facts that the tracer knows of one operator."""

    __slots__ = ("fakes", "origin", "out", "reads", "sizes")

    def __init__(
        self,
        out: Any,
        fakes: Sequence[Any],
        sizes: Sizes,
        origin: Origin | None,
        reads: list[Read] | None = None,
    ) -> None:
        """Store the facts of a call.

        `out` is the tracer's result, a tensor without data or a tuple; `fakes` are the operands.
        """
        self.reads = [] if reads is None else reads
        """Positions that must be in bounds, though no kernel reads there."""
        self.out = out
        self.fakes = fakes
        self.sizes = sizes
        self.origin = origin

    @property
    def dtype(self) -> DType:
        """Element type of the (first) result."""
        return from_torch(self._first().dtype)

    @property
    def shape(self) -> Shape:
        """Dimensions of the (first) result."""
        return self.sizes.shape(self._first().shape)

    def _first(self) -> Any:
        return self.out[0] if isinstance(self.out, (tuple, list)) else self.out

    @property
    def common_dtype(self) -> DType:
        """The type to which torch promotes the operands."""
        operands = [x for x in self.fakes if isinstance(x, (torch.Tensor, bool, int, float))]
        dtype: Any = operands[0].dtype if isinstance(operands[0], torch.Tensor) else None
        if len(operands) > 1:
            dtype = torch.result_type(operands[0], operands[1])
            for other in operands[2:]:
                if isinstance(other, torch.Tensor):
                    dtype = torch.promote_types(dtype, other.dtype)
        return from_torch(dtype)

    def number(self, x: Any, dtype: DType) -> V:
        """Return a Python number or size as a value."""
        return number(x, dtype, self.origin)

    @property
    def on_cpu(self) -> bool:
        """Whether the (first) result is in the processor's memory."""
        return self._first().device.type == "cpu"

    def rounded(self, x: Any) -> V:
        """Return an operand in the type of the result, as eager code converts most operands."""
        return self.value(x, self.dtype)

    def unrounded(self, x: Any) -> V:
        """Return an operand in the type of arithmetic; a number is not rounded first."""
        return self.value(x if self.is_number(x) else self.rounded(x), self.dtype.compute)

    def is_number(self, x: Any) -> bool:
        """Whether eager code may pass an operand to its loops as a number.

        The number is then float32. A tensor with one element is one on a CPU: its own type may have
        values that a half type lacks.
        """
        return not isinstance(x, V) or (self.on_cpu and all(n == 1 for n in x.shape))

    def value(self, x: Any, dtype: DType) -> V:
        """Return an operand, tensor or number, as a value of a type."""
        return x.cast(dtype) if isinstance(x, V) else number(x, dtype, self.origin)

    def index(self, n: Any) -> Index:
        """Return a size argument, which is an expression already.

        Raises UnsupportedError if it is not a size.
        """
        if isinstance(n, (float, V)) or n is None:
            raise UnsupportedError(f"{n!r} is not a size")
        return n


def axis_of(a: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return a % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Return the axes of a reduction: all of them for None or an empty list."""
    if axes is None or axes == []:
        return tuple(range(rank))
    listed = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({axis_of(a, rank) for a in listed}))


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


def overloads(names: str) -> tuple[Any, ...]:
    """Return ATen's overloads by names such as `add.Tensor`."""
    pairs = (name.split(".") for name in names.split())
    return tuple(getattr(getattr(torch.ops.aten, name), overload) for name, overload in pairs)


def rows(template: str, make: Callable[[str], Any], names: str, kinds: str = "default") -> Any:
    """Return a row of `make(name)` for each name and kind of overload, such as `{}.{}`."""
    pairs = ((name, kind) for name in names.split() for kind in kinds.split())
    return tuple(Row(f"aten.{template}".format(*pair), make(pair[0])) for pair in pairs)


def same(names: str, rule: Callable[..., Any], **facts: Any) -> tuple[Row, ...]:
    """Return rows of ATen's overloads, named as `add.Tensor`, with one rule."""
    return tuple(Row(f"aten.{name}", rule, **facts) for name in names.split())
