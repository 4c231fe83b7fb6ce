"""One row for each ATen operator that we compute: its name, and how it is written in primitives.

A rule gets the call (what the tracer knows of the result) and the operator's own arguments, tensors
as values:

    Row("aten.neg.default", lambda c, x: -x)

What a rule gives is compared with the type that torch expects; a rule that does not apply raises
UnsupportedError, and the operator is left to torch with that reason.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from smelt.dataclass import dataclass
from smelt.errors import UnsupportedError
from smelt.frontends.torch.dtypes import ours
from smelt.frontends.torch.sizes import Sizes
from smelt.frontends.torch.value import V, number
from smelt.graph.bounds_checks import Read
from smelt.origin import Origin
from smelt.types.dtype import DType
from smelt.types.expr import Index
from smelt.types.tensor import Shape

__all__ = ["Call", "Row", "axes_of", "axis_of"]


Dim: TypeAlias = tuple[int, int]
"""A dimension of an operand: the operand's place, and the axis."""


@dataclass(frozen=True, slots=True)
class Row:
    """`lower(call, *arguments)` gives a value, or a tuple of values; None is not computed."""

    name: str
    """As torch prints the overload: `aten.add.Tensor`."""
    lower: Callable[..., Any]
    alias: bool = False
    """torch answers with another view of the same memory, for nothing."""
    elementwise: bool = False
    """Operands broadcast, and their dimensions are those of the result."""
    source: bool = False
    """Takes nothing of a tensor but its type, for which it gets None; made anew wherever it is
    read."""
    copies: bool = False
    """Writes a part of its first operand, into a copy of the whole."""
    inside: bool = False
    """Reads at positions that are inside, as whoever wrote the call has promised."""
    agree: tuple[tuple[Dim, Dim], ...] = ()
    """Dimensions that have to be equal, though the tracer does not compare them."""


class Call:
    """What is known of one operator in the traced program."""

    __slots__ = ("fakes", "origin", "out", "reads", "sizes")

    def __init__(
        self,
        out: Any,
        fakes: Sequence[Any],
        sizes: Sizes,
        origin: Origin | None,
        reads: list[Read] | None = None,
    ) -> None:
        """`out` is the tracer's result, a tensor without data or a tuple; `fakes` the operands."""
        self.reads = [] if reads is None else reads
        """Positions that have to be inside, though no kernel reads there."""
        self.out = out
        self.fakes = fakes
        self.sizes = sizes
        self.origin = origin

    @property
    def dtype(self) -> DType:
        """Element type of the (first) result."""
        return ours(self._first().dtype)

    @property
    def shape(self) -> Shape:
        """Dimensions of the (first) result."""
        return self.sizes.shape(self._first().shape)

    def _first(self) -> Any:
        return self.out[0] if isinstance(self.out, (tuple, list)) else self.out

    @property
    def common(self) -> DType:
        """The type that torch brings the operands to."""
        given = [x for x in self.fakes if isinstance(x, (torch.Tensor, bool, int, float))]
        found: Any = given[0].dtype if isinstance(given[0], torch.Tensor) else None
        if len(given) > 1:
            found = torch.result_type(given[0], given[1])
            for other in given[2:]:
                if isinstance(other, torch.Tensor):
                    found = torch.promote_types(found, other.dtype)
        return ours(found)

    def number(self, x: Any, dtype: DType) -> V:
        """A Python number or size as a value."""
        return number(x, dtype, self.origin)

    def arithmetic(self, *operands: Any) -> DType:
        """The type that sums and products with these operands are computed in: torch multiplies a
        tensor of halves by a number as float32, which matters where no half is that number."""
        numbers = [x for x in operands if not isinstance(x, (V, bool))]
        exact = all(isinstance(x, (int, float)) and self.dtype.rounded(x) == x for x in numbers)
        return self.dtype if exact else self.dtype.compute

    def value(self, x: Any, dtype: DType) -> V:
        """An operand, tensor or number, as a value of a type."""
        return x.cast(dtype) if isinstance(x, V) else number(x, dtype, self.origin)

    def settled(self, x: V, shape: Shape) -> V:
        """A value whose dimensions guards make those of `shape`, spelt as these are.  Raises
        UnsupportedError where they are others in the call that is traced."""
        self.sizes.compare(x.shape, shape)
        return x.settle(shape)

    def index(self, n: Any) -> Index:
        """A size argument; sizes arrive as expressions already."""
        if isinstance(n, (float, V)) or n is None:
            raise UnsupportedError(f"{n!r} is no size")
        return n


def axis_of(a: int, rank: int) -> int:
    """An axis counted from the front."""
    return a % rank if rank else 0


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """The axes that a fold takes: all of them for None or none."""
    if axes is None or axes == []:
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({axis_of(a, rank) for a in given}))
