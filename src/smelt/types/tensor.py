"""Define tensor types: element type and shape (integers or expressions over sizes).

>>> broadcast_shapes((size("n"), 1), (4,))
(n, 4)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from smelt.errors import OverflowSizeError, ShapeError
from smelt.errors.array import BROADCAST_HINT
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, product, size, text

Shape = tuple[Index, ...]
MAX_BYTES = 2**63 - 1
"""Maximum bytes of a tensor."""
_volume = lru_cache(maxsize=1 << 12)(product)

__all__ = [
    "MAX_BYTES",
    "Shape",
    "TensorType",
    "broadcast_shapes",
    "check_bytes",
    "check_contiguous",
    "row_major",
    "shape_text",
    "size",
]


def shape_text(shape: Shape) -> str:
    """Return `n,4` for (n, 4)."""
    return ",".join(text(d) for d in shape)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape.

    A dimension is an int >= 0 or an expression over sizes.
    """

    dtype: DType
    shape: Shape = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Index:
        return _volume(self.shape)

    @property
    def nbytes(self) -> Index:
        return _volume((*self.shape, self.dtype.itemsize))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{shape_text(self.shape)}]"


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the common shape under the array API's broadcasting rule.

    Dimensions match if they are equal as expressions or one of them is the number 1. Raises
    ShapeError otherwise.
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max((len(s) for s in shapes), default=0)
    out: list[Index] = []
    for position in range(-rank, 0):
        common: Index = 1
        for shape in shapes:
            dim = shape[position] if -position <= len(shape) else 1
            if dim == 1 or dim == common:
                continue
            if common != 1:
                both = " and ".join(f"[{shape_text(s)}]" for s in shapes)
                raise ShapeError(
                    f"shapes {both} do not broadcast: dimension {position} is "
                    f"{text(common)} in one and {text(dim)} in another",
                    hint=BROADCAST_HINT,
                )
            common = dim
        out.append(common)
    return tuple(out)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements of row-major order.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def check_bytes(kind: TensorType) -> TensorType:
    """Return `kind` if its size in bytes is valid.

    Raises ShapeError for a negative dimension, OverflowSizeError beyond 2**63-1 bytes.
    """
    total = kind.dtype.itemsize
    for dim in kind.shape:
        if isinstance(dim, Expr):
            continue
        if dim < 0:
            raise ShapeError(f"negative dimension {dim} in shape [{shape_text(kind.shape)}]")
        total *= max(dim, 1)
    if total > MAX_BYTES:
        raise OverflowSizeError(f"{kind} needs {total} bytes, beyond 2**63 - 1")
    return kind


def check_contiguous(name: str, shape: Sequence[int], strides: Sequence[int | None] | None) -> None:
    """Check that declared strides are those of a contiguous array; 0 promises equal elements.

    Raises ShapeError.
    """
    step = 1
    for n, declared in reversed([*zip(shape, strides or ())]):
        if declared not in (None, 0, step) and n > 1:
            raise ShapeError(
                f"{name} is declared with a stride of {declared}, but the array has {step}"
            )
        step *= max(n, 1)
