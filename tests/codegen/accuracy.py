"""Measures the errors of every approximated function and writes the table of them.

`python tests/codegen/accuracy.py --write docs/accuracy.md` sweeps 2^24 float32 values a function
(a few minutes), `--whole` all 2^32 of them (hours), `--only exp,log` some functions.  Float32 is
held against NumPy's float64, float64 against mpmath at 120 bits.

>>> measure_single("sqrt", 1 << 20).ulps <= 0.5
True
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "src")]

from tests.codegen.compile_scalar import LEVELS, compile_row
from tests.codegen.scalar_values import ULP_F32, ULP_F64, Array

from smelt.ops.scalar import SCALARS
from smelt.types.dtype import f32, f64

PRIME = 4099
"""Chunks start this far apart modulo the stride, so that strides visit all low bits."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Worst:
    """The greatest error of a function, in units of the last place, and where it was."""

    ulps: float
    at: tuple[float, ...]
    count: int


def _errors(got: Array, want: Array) -> Array:
    """Distance of float32 results from float64 truth in units of the last place of the truth."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        unit = np.abs(np.spacing(np.abs(rounded))).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / unit
    error = np.where(np.isinf(rounded) & (got == rounded), 0, error)
    error = np.where(np.isnan(want) & np.isnan(got), 0, error)
    return np.where(np.isnan(error), np.inf, error)


def _single_inputs(arity: int, stride: int) -> Iterator[tuple[Array, ...]]:
    """float32 patterns `stride` apart; for two operands as many random pairs."""
    step = CHUNK * stride
    for turn, start in enumerate(range(0, 1 << 32, step)):
        first = start + turn * PRIME % stride
        if arity == 1:
            patterns = np.arange(first, min(start + step, 1 << 32), stride, dtype=np.int64)
            yield (patterns.astype(np.uint32).view(np.float32),)
            continue
        rng = np.random.default_rng(turn)
        count = min(CHUNK, ((1 << 32) - start) // stride)
        wild = rng.integers(0, 1 << 32, (2, count // 4), dtype=np.uint32).view(np.float32)
        tame = rng.standard_normal((2, count - count // 4)) * rng.choice([0.1, 1, 10, 100])
        yield tuple(np.concatenate([wild, tame.astype(np.float32)], axis=1))


def measure_single(name: str, stride: int, isa: str = LEVELS[0]) -> Worst:
    """The worst float32 error over patterns `stride` apart."""
    op = SCALARS[name]
    function = compile_row(op, (f32,) * op.arity, 16, isa)
    worst = Worst(0.0, (), 0)
    count = 0
    for arrays in _single_inputs(op.arity, stride):
        with np.errstate(all="ignore"):
            want = op.numpy(*[a.astype(np.float64) for a in arrays])
        error = _errors(function(*arrays), want)
        if name == "logaddexp":  # small results carry the rounding of the larger operand
            with np.errstate(invalid="ignore"):
                size = np.maximum(*[abs(a) for a in arrays])
                error = np.where(abs(want) > 0.5 * size, error, 0)
        count += error.size
        peak = int(np.argmax(error))
        if error[peak] > worst.ulps:
            worst = Worst(float(error[peak]), tuple(float(a[peak]) for a in arrays), 0)
    return Worst(worst.ulps, worst.at, count)


def _spread(rng: np.random.Generator, low: float, high: float, n: int) -> Array:
    """Magnitudes evenly spread by logarithm, of both signs."""
    return np.exp(rng.uniform(np.log(low), np.log(high), n)) * rng.choice([-1.0, 1.0], n)


Sampler = Callable[[np.random.Generator, int], tuple[Array, ...]]


def _both(flat: tuple[float, float], low: float, high: float) -> Sampler:
    """Half of the points evenly in an interval, half by logarithm."""
    return lambda rng, n: (
        np.concatenate([rng.uniform(*flat, n // 2), _spread(rng, low, high, n - n // 2)]),
    )


def _positive(sampler: Sampler) -> Sampler:
    return lambda rng, n: tuple(np.abs(a) for a in sampler(rng, n))


def _circle(rng: np.random.Generator, n: int) -> tuple[Array, ...]:
    near = np.round(rng.uniform(0, 1e6, n // 3)) * (np.pi / 2)  # where reduction cancels most
    return (np.concatenate([near, _spread(rng, 1e-5, 9e8, n - n // 3)]),)


def _powers(rng: np.random.Generator, n: int) -> tuple[Array, ...]:
    """Bases and exponents of powers.

    Ordinary ones; bases near 1 and where tables change position; all magnitudes with subnormals,
    with exponents that fill the range of results.
    """
    part = n // 5
    at = 1 + (rng.integers(-5, 11, part) + rng.choice([-0.5, 0.5], part)) / 20
    near = 1 + rng.choice([-1, 1], part) * 2.0 ** rng.uniform(-50, -2, part)
    wide = 2.0 ** rng.uniform(-1070, 1020, part)
    far = np.concatenate([near, at * (1 + rng.uniform(-1e-9, 1e-9, part)), wide])
    log = np.log(far)
    bases = np.concatenate([np.abs(_spread(rng, 1e-3, 1e3, n - 3 * part)), far])
    return bases, np.concatenate(
        [rng.uniform(-95, 95, n - 3 * part), rng.uniform(-707, 709, 3 * part) / log]
    )


_UNIT = _both((-1.0, 1.0), 1e-9, 1.0)
_LOGS = _positive(_both((0.4, 2.5), 5e-324, 1.7e308))
SAMPLES: dict[str, tuple[Sampler, Callable[..., Any]]] = {
    "exp": (_both((-745.0, 709.7), 1e-18, 5.0), mpmath.exp),
    "exp2": (_both((-1074.0, 1023.9), 1e-18, 5.0), lambda x: mpmath.mpf(2) ** x),
    "expm1": (_both((-40.0, 709.7), 1e-18, 5.0), mpmath.expm1),
    "log": (_LOGS, mpmath.log),
    "log2": (_LOGS, lambda x: mpmath.log(x, 2)),
    "log10": (_LOGS, mpmath.log10),
    "log1p": (
        lambda rng, n: (np.maximum(_both((-0.99, 3.0), 1e-18, 0.9)(rng, n)[0], -0.99),),
        mpmath.log1p,
    ),
    "sin": (_circle, mpmath.sin),
    "cos": (_circle, mpmath.cos),
    "tan": (_circle, mpmath.tan),
    "asin": (_UNIT, mpmath.asin),
    "acos": (_UNIT, mpmath.acos),
    "atan": (_both((-4.0, 4.0), 1e-9, 1e9), mpmath.atan),
    "sinh": (_both((-710.0, 710.0), 1e-9, 5.0), mpmath.sinh),
    "cosh": (_both((-710.0, 710.0), 1e-9, 5.0), mpmath.cosh),
    "tanh": (_both((-2.0, 2.0), 1e-9, 20.0), mpmath.tanh),
    "asinh": (_both((-4.0, 4.0), 1e-9, 1e20), mpmath.asinh),
    "acosh": (lambda rng, n: (1 + np.abs(_spread(rng, 1e-12, 1e20, n)),), mpmath.acosh),
    "atanh": (_UNIT, mpmath.atanh),
    "erf": (_both((-6.0, 6.0), 1e-9, 2.0), mpmath.erf),
    "erfc": (_both((-6.0, 26.0), 1e-9, 26.0), mpmath.erfc),
    "sigmoid": (_both((-740.0, 40.0), 1e-9, 30.0), lambda x: 1 / (1 + mpmath.exp(-x))),
    "rsqrt": (_LOGS, lambda x: 1 / mpmath.sqrt(x)),
    "pow": (_powers, mpmath.power),
    "hypot": (
        lambda rng, n: (_spread(rng, 1e-5, 1e5, n), _spread(rng, 1e-5, 1e5, n)),
        mpmath.hypot,
    ),
    "atan2": (
        lambda rng, n: (_spread(rng, 1e-5, 1e5, n), _spread(rng, 1e-5, 1e5, n)),
        mpmath.atan2,
    ),
    "logaddexp": (
        lambda rng, n: (rng.uniform(0, 30, n), rng.uniform(0, 30, n)),
        lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    ),
}


def measure_double(name: str, count: int, isa: str = LEVELS[0]) -> Worst:
    """The worst float64 error over `count` points drawn for the function."""
    op = SCALARS[name]
    sampler, truth = SAMPLES[name]
    arrays = sampler(np.random.default_rng(len(name)), count)
    got = compile_row(op, (f64,) * op.arity, 8, isa)(*arrays)
    worst = Worst(0.0, (), count)
    with mpmath.workprec(120):
        for result, *args in zip(got.tolist(), *[a.tolist() for a in arrays], strict=True):
            want = truth(*[mpmath.mpf(a) for a in args])
            unit = float(np.spacing(abs(float(want))))
            if not np.isfinite(unit):
                continue
            error = float(abs(mpmath.mpf(result) - want) / unit)
            if not error <= worst.ulps:
                worst = Worst(error, tuple(args), count)
    return worst


def table(names: list[str], stride: int, count: int) -> Iterator[str]:
    """The page, line by line."""
    yield "# Accuracy of the scalar functions"
    yield ""
    yield "The table lists the largest error found, in units of the last place of the exact"
    yield "result, and the largest that the tests allow. A function that is not listed is"
    yield "correctly rounded. Half types compute in float32 and round once more. Subnormals are"
    yield "kept. NaN, infinities and signed zeros follow C99."
    yield "`python tests/codegen/accuracy.py --write docs/accuracy.md` writes this page (float32:"
    yield f"one bit pattern in {stride}; float64: {count} points against mpmath)."
    yield ""
    yield from SUMS
    yield ""
    yield "| function | float32 | allowed | worst at | float64 | allowed | worst at |"
    yield "|---|---:|---:|---|---:|---:|---|"
    for name in names:
        single, double = measure_single(name, stride), measure_double(name, count)
        yield (
            f"| {name} | {single.ulps:.2f} | {ULP_F32[name]} | {_position(single)}"
            f" | {double.ulps:.2f} | {ULP_F64[name]} | {_position(double)} |"
        )


SUMS = (
    "**Sums of float32** add four elements at a time, as two pairs in float32, and continue in",
    "float64. Apart from the rounding of the result, their error is within 2^-23 of the sum of the",
    'magnitudes, at any length. With `rounding="exact"` all of it is in float64. If four elements',
    "add up to more than float32 holds, the sum is infinite, as in NumPy and PyTorch.",
    "",
    "**Matrix products of float32** add at most 512 terms one after the other, usually 256, and",
    "then add these partial sums. The error of k terms is within (512 + k/96) 2^-24 of the sum of",
    "the magnitudes. If all terms are equal, it comes near a fifth of that, within 8e-6 for 6000,",
    "as in NumPy and PyTorch. The matrix instructions of Intel (AMX) add pairs of bfloat16",
    "products one after the other, in float32; the result is rounded to bfloat16 at the end.",
)
"""The page's text on sums.

`tests/codegen/llvm/test_reductions.py` and `test_summation_error.py` check it."""


def _position(worst: Worst) -> str:
    return ", ".join(f"{x:.9g}" for x in worst.at)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", type=Path, help="file to write the table to")
    parser.add_argument("--whole", action="store_true", help="all 2^32 float32 values")
    parser.add_argument("--only", default="", help="comma-separated names of functions")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(ULP_F32)
    lines = []
    for line in table(names, 1 if arguments.whole else 257, 4000):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
