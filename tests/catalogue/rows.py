"""The catalogue's rows as data, and arrays for them: every dtype, many sizes, several layouts.

A row is plain array code with its inputs, the sizes it is planned for, and the plan it must become:
kernels, launches, the values written between kernels, bytes that cross memory with and without
fusion.  Bytes are formulas over the sizes and `s`, the bytes of one element of the dtype at hand.

    Row("A1", lambda xp, x, b: xp.log(xp.maximum(x + b, 0)), ("T[r,c]", "T[c]"),
        {"r": 8192, "c": 4096}, fused="s*(2*r*c + c)", unfused="s*(6*r*c + c)")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Sizes = dict[str, int]
Code = Callable[..., Any]
DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
}
FIXED = {
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
} | DTYPES
SMALL = (2, 7, 17, 31, 33, 65, 3, 2049, 13, 128, 5)
"""Odd, prime, powers of two and one past tiles of 16, 32, 64 and 2048."""
MOST = 1 << 17
"""Elements of an array in a test, about."""


@dataclass(frozen=True)
class Row:
    """One row of the catalogue, or one of its variants."""

    id: str
    code: Code
    """Called with a namespace (`smelt` or `REFERENCE`) and the arrays."""
    inputs: tuple[str, ...]
    """`T[r,c]`: dtype (T for the one at hand) and shape; `> 0` asks for positive numbers, `< n`
    for integers below a size."""
    sizes: Mapping[str, int]
    fused: str
    unfused: str
    kernels: int = 1
    launches: int = 0
    """As many as kernels and calls together if 0."""
    calls: int = 0
    sweeps: int = 1
    """Most times that a kernel reads an input from main memory."""
    stored: tuple[str, ...] = ()
    """Operators whose results are written between kernels; everything else stays virtual."""
    also: tuple[Code, ...] = ()
    """The same mathematics with other operators, in other order, under other names."""
    multiples: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes that are only ever multiples of a number."""
    reference: Code | None = None
    """The same in NumPy alone, where the code itself cannot run there."""
    fixed: tuple[str, ...] = ()
    """Sizes that no other test changes."""
    bounded: bool = False
    """Positions depend on data, so that bytes are a bound."""
    dtypes: tuple[str, ...] = ("f64", "bf16", "f16")
    layouts: tuple[str, ...] = ("stepped", "turned")
    other: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """dtype -> fields that are others for it, where a documented decision has its price."""
    eager: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that are others for half types with rounding="eager", where every operator of the
    plain code rounds; "fast" has what the row says."""
    short: Mapping[str, str] = field(default_factory=dict[str, str])
    """Checks that fail today, with the reason."""

    def __str__(self) -> str:
        return self.id


# ---- inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """An input's description, taken apart."""

    dtype: np.dtype[Any]
    shape: tuple[str, ...]
    positive: bool
    below: str

    def dims(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(value_of(d, sizes) for d in self.shape)


def value_of(formula: str, sizes: Mapping[str, int]) -> int:
    """A dimension or a number of bytes at given sizes."""
    return int(eval(formula, {"__builtins__": {}}, dict(sizes)))


def wanted(description: str, dtype: str) -> Wanted:
    """Reads `T[r,c] > 0`."""
    head, _, rest = description.partition("[")
    dims, _, tail = rest.partition("]")
    shape = tuple(d.strip() for d in dims.split(",") if d.strip())
    below = tail.partition("<")[2].strip()
    return Wanted(FIXED[dtype if head == "T" else head], shape, ">" in tail, below)


def draw(row: Row, sizes: Mapping[str, int], dtype: str = "f32", seed: int = 0) -> list[Array]:
    """Arrays for a row: normal numbers, or what an input asks for."""
    rng = np.random.default_rng(seed)
    results: list[Array] = []
    for w in (wanted(x, dtype) for x in row.inputs):
        shape = w.dims(sizes)
        if w.dtype == np.bool_:
            built = rng.random(shape) < 0.7
        elif w.dtype.kind in "iu":
            top = value_of(w.below, sizes) if w.below else 100
            built = rng.integers(0, max(top, 1), shape)
        else:
            built = rng.standard_normal(shape)
            built = np.abs(built) + 0.25 if w.positive else built
        results.append(np.asarray(built).astype(w.dtype))
    return results


# ---- sizes -------------------------------------------------------------------------------------


def varied(row: Row) -> list[str]:
    """The sizes that tests change."""
    return [n for n in row.sizes if n not in row.fixed]


def small(row: Row, shift: int = 0) -> Sizes:
    """Small sizes for a row: each from `SMALL`, none too large together."""
    result = dict(row.sizes)
    for j, name in enumerate(varied(row)):
        result[name] = SMALL[(shift + 4 * j) % len(SMALL)] * row.multiples.get(name, 1)
    while largest(row, result) > MOST:  # the size that is furthest above its least
        times = {n: result[n] // row.multiples.get(n, 1) for n in varied(row)}
        top = max(times, key=times.__getitem__)
        result[top] = max(times[top] // 16, 2) * row.multiples.get(top, 1)
    return result


def largest(row: Row, sizes: Mapping[str, int]) -> int:
    """Elements of the largest input."""
    return max(math.prod(wanted(x, "f32").dims(sizes)) for x in row.inputs)


def many_sizes(row: Row) -> Iterator[Sizes]:
    """Sizes that between them take every value of `SMALL`."""
    yield from (small(row, shift) for shift in range(len(SMALL)))


def with_one(row: Row, n: int) -> Iterator[Sizes]:
    """Small sizes with one of them 0 or 1, and with all of them 1."""
    names = [v for v in varied(row) if row.multiples.get(v, 1) == 1 or n == 0]
    for name in names:
        yield small(row, 1) | {name: n}
    if n == 1 and len(names) > 1:
        yield small(row, 1) | dict.fromkeys(names, 1)


# ---- layouts -----------------------------------------------------------------------------------


def stepped(a: Array) -> Array:
    """Store the elements as every second one of a larger array."""
    if not a.ndim:
        return a
    big = np.zeros([2 * n + 1 for n in a.shape], a.dtype)
    view = big[tuple(slice(1, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def reversed_columns(a: Array) -> Array:
    """Store the elements column by column, from the last to the first."""
    flip = (slice(None, None, -1),) * a.ndim
    return np.array(a[flip], order="F")[flip] if a.ndim else a


LAYOUTS: dict[str, Callable[[Array], Array]] = {"stepped": stepped, "turned": reversed_columns}
