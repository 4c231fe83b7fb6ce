"""Rows of the benchmark: functions with their arrays, tolerances and purpose.

A row's compulsory traffic is each input read once and each output written once: no program can move
less through main memory, and the floor of the row is the time of this traffic alone. Tolerances are
for float32 against float64: `u` is half a unit in the last place, 2**-24.

>>> row = WORKLOADS["a2"]
>>> row.arrays(small=True)[0].shape, row.group
((37, 53), 'large')
>>> row.traffic(row.arrays(small=True), row.reference(row.arrays(small=True)))
(7844, 7844)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench import formulas
from bench.namespaces import numpy_namespace
from smelt.python.dataclass import dataclass

Arrays = tuple[NDArray[Any], ...]
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], NDArray[Any]]
Group = Literal["large", "cache", "small", "call"]

U = 2.0**-24
MIB = 1 << 20
LARGE_BYTES = 16 * MIB


def normal(rng: np.random.Generator, shape: Shape) -> NDArray[Any]:
    """Draw standard normal float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def between(low: float, high: float) -> Draw:
    """Return a function that draws uniform float32 in [low, high)."""

    def draw(rng: np.random.Generator, shape: Shape) -> NDArray[Any]:
        unit = rng.random(shape, dtype=np.float32)
        unit *= np.float32(high - low)
        unit += np.float32(low)
        return unit

    return draw


def one_peak(rng: np.random.Generator, shape: Shape) -> NDArray[Any]:
    """Draw normal numbers with one largest element, at two thirds: an argmax without ties."""
    values = normal(rng, shape)
    values.reshape(-1)[2 * values.size // 3] = 100.0
    return values


def labels(rng: np.random.Generator, shape: Shape) -> NDArray[Any]:
    """Draw class numbers below 31, valid at every size of the row."""
    return rng.integers(0, 31, shape, dtype=np.int64)


@dataclass(frozen=True)
class Input:
    """An array of a row: shape, small shape for tests, distribution of its values."""

    shape: Shape
    small: Shape
    draw: Draw = normal


@dataclass(frozen=True)
class Workload:
    """A row of the benchmark.

    `updates` lists the inputs that the outputs replace when the call is repeated.
    """

    id: str
    title: str
    call: Callable[..., Any]
    inputs: tuple[Input, ...]
    rtol: float
    atol: float
    why: str
    updates: tuple[int, ...] = ()
    floor: bool = True

    @property
    def group(self) -> Group:
        """The size class of the inputs: main memory, some cache, or just call overhead."""
        if not self.floor:
            return "call"
        size = sum(4 * prod(item.shape) for item in self.inputs)
        if size > LARGE_BYTES:
            return "large"
        return "cache" if size >= MIB else "small"

    def arrays(self, small: bool = False, seed: int = 7) -> Arrays:
        """Return the inputs, equal in every process for one seed."""
        rng = np.random.default_rng(seed)
        return tuple(item.draw(rng, item.small if small else item.shape) for item in self.inputs)

    def reference(self, arrays: Arrays) -> Arrays:
        """Compute the function in float64 by NumPy."""
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        with np.errstate(all="ignore"):
            return as_tuple(self.call(numpy_namespace(), *wide))

    def traffic(self, arrays: Arrays, outputs: Arrays) -> tuple[int, int]:
        """Return the bytes that must be read and written, with float outputs in float32."""
        written = sum(a.size * (4 if a.dtype.kind == "f" else 8) for a in outputs)
        return sum(a.nbytes for a in arrays), written

    def check(self, got: Sequence[NDArray[Any]], want: Sequence[NDArray[Any]]) -> float:
        """Return the largest error relative to the tolerance; infinite for a wrong result.

        Above 1.0 the result is outside `atol + rtol * |want|` somewhere. Infinities must be equal,
        NaNs must match NaNs, and shapes must agree.
        """
        if len(got) != len(want):
            return inf
        return max(_error(a, b, self.rtol, self.atol) for a, b in zip(got, want, strict=True))


def _error(got: NDArray[Any], want: NDArray[Any], rtol: float, atol: float) -> float:
    if got.shape != want.shape:
        return inf
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else inf
    wide = got.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(wide[~finite], want[~finite], equal_nan=True):
        return inf
    off, allowed = np.abs(wide[finite] - want[finite]), atol + rtol * np.abs(want[finite])
    with np.errstate(all="ignore"):
        worst = float(np.max(np.where(off == 0.0, 0.0, off / allowed), initial=0.0))
    return inf if np.isnan(worst) else worst


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one output or several, as a tuple."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _matrix(rows: int, columns: int) -> Input:
    return Input((rows, columns), (37, 53))


def _chain(label: str, count: int) -> Workload:
    return Workload(
        f"chain_{label.replace(' ', '').lower()}",
        f"elementwise, {label}",
        formulas.chain,
        (Input((count,), (1001,)), Input((count,), (1001,))),
        rtol=4 * U,
        atol=64 * U,
        why=f"two inputs and one output of {label} each",
    )


def _softmax(rows: int, columns: int, why: str) -> Workload:
    return Workload(
        f"softmax_{columns}",
        f"softmax, rows of {columns}",
        formulas.softmax,
        (_matrix(rows, columns),),
        # exp's argument is off by |x - max| u < 12 u, and the sum by its additions' roundings.
        rtol=(32 + columns**0.5) * U,
        atol=1e-12,
        why=why,
    )


def _vector(size: int) -> Input:
    return Input((size,), (53,))


_ROWS: Sequence[Workload] = (
    Workload(
        "a1",
        "log(relu(x + b))",
        formulas.log_relu,
        (Input((4096, 4096), (37, 53), between(-1.0, 3.0)), _vector(4096)),
        rtol=8 * U,
        atol=8 * U,
        why="64 MiB in, 64 MiB out; one transcendental an element",
    ),
    Workload(
        "a2",
        "relu(x * 2) + 1",
        formulas.double_relu_plus_one,
        (_matrix(4096, 4096),),
        rtol=4 * U,
        atol=0.0,
        why="64 MiB in, 64 MiB out; pure traffic",
    ),
    Workload(
        "bias_gelu",
        "bias + GELU (erf)",
        formulas.bias_gelu,
        (_matrix(4096, 4096), _vector(4096)),
        # 1 + erf cancels in the left tail: its error is absolute, times |h| / 2 < 4.
        rtol=16 * U,
        atol=32 * U,
        why="the most expensive elementwise function of a transformer",
    ),
    Workload(
        "residual_layer_norm",
        "residual + LayerNorm",
        formulas.residual_layer_norm,
        (_matrix(8192, 1024), _matrix(8192, 1024), *(_vector(1024) for _ in range(3))),
        rtol=64 * U,
        atol=256 * U,
        why="two 32 MiB inputs, rows of 4 KiB",
    ),
    Workload(
        "rms_norm",
        "RMSNorm",
        formulas.rms_norm,
        (_matrix(8192, 2048), _vector(2048)),
        rtol=128 * U,
        atol=0.0,
        why="64 MiB, rows of 8 KiB",
    ),
    _softmax(131072, 128, "64 MiB; rows shorter than the unrolled loop"),
    _softmax(4096, 4096, "64 MiB; a row fits the first-level cache"),
    _softmax(256, 65536, "64 MiB; a row of 256 KiB, beyond the first-level cache"),
    Workload(
        "cross_entropy",
        "cross-entropy [1024 x 32000]",
        formulas.cross_entropy,
        (Input((1024, 32000), (37, 53)), Input((1024,), (37,), labels)),
        rtol=256 * U,
        atol=0.0,
        why="125 MiB read, one number written; a language model's head",
    ),
    Workload(
        "group_norm_silu",
        "GroupNorm + SiLU [8, 256, 56, 56]",
        formulas.group_norm_silu,
        (
            Input((8, 256, 56, 56), (2, 64, 5, 7)),
            Input((256,), (64,)),
            Input((256,), (64,)),
        ),
        rtol=64 * U,
        atol=256 * U,
        why="24.5 MiB; a diffusion model's block, one group is 98 KiB",
    ),
    Workload(
        "adam",
        "Adam, 4 M parameters",
        formulas.adam,
        (
            *(Input((4 << 20,), (1001,)) for _ in range(2)),
            Input((4 << 20,), (1001,), between(-0.5, 0.5)),
            Input((4 << 20,), (1001,), between(0.0, 1.0)),
        ),
        # 1 - decay rates are rounded to float32 before they multiply.
        rtol=32 * U,
        atol=32 * U,
        why="four arrays of 16 MiB read, three of them written back in place",
        updates=(0, 2, 3),
    ),
    Workload(
        "black_scholes",
        "Black-Scholes, 4 M options",
        formulas.black_scholes,
        (
            Input((4 << 20,), (1001,), between(20.0, 100.0)),
            Input((4 << 20,), (1001,), between(20.0, 100.0)),
            Input((4 << 20,), (1001,), between(0.25, 2.0)),
        ),
        # Differences of prices up to 100 whose factors are off by some tens of u.
        rtol=64 * U,
        atol=64 * 100 * U,
        why="three arrays read, two written, five transcendentals an element",
    ),
    Workload(
        "column_statistics",
        "mean and variance of columns",
        formulas.column_statistics,
        (_matrix(16384, 1024),),
        # A column summed row by row: sqrt(n) u of random roundings, a few times over.
        rtol=8 * 128 * U,
        atol=8 * U,
        why="64 MiB reduced along the slow axis",
    ),
    Workload(
        "transposed_write",
        "contiguous(transpose(x * 2 + 1))",
        formulas.transposed_write,
        (_matrix(4096, 4096),),
        rtol=4 * U,
        atol=0.0,
        why="64 MiB in, 64 MiB out, transposed",
    ),
    Workload(
        "sum",
        "sum of all elements",
        formulas.total,
        (Input((4096, 4096), (37, 53), between(0.0, 1.0)),),
        rtol=128 * U,
        atol=0.0,
        why="64 MiB read, one number written",
    ),
    Workload(
        "argmax",
        "argmax of all elements",
        formulas.index_of_largest,
        (Input((4096, 4096), (37, 53), one_peak),),
        rtol=0.0,
        atol=0.0,
        why="64 MiB read, one index written",
    ),
    _chain("64 MiB", 16 * MIB),
    _chain("1 MiB", MIB // 4),
    _chain("64 KiB", 16 << 10),
    _chain("1 KiB", 256),
    Workload(
        "tiny",
        "x * y + z of 16 elements",
        formulas.tiny,
        tuple(Input((16,), (16,)) for _ in range(3)),
        rtol=4 * U,
        atol=8 * U,
        why="the overhead of a call with three arrays",
        floor=False,
    ),
)

WORKLOADS: dict[str, Workload] = {row.id: row for row in _ROWS}
"""All rows by id, in the order of the tables."""
