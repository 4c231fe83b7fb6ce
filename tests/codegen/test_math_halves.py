"""Half types: every one of their 65536 patterns, through memory, casts and one-operand rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.compile_scalar import LEVELS, compile_body, compile_cast, compile_row
from tests.codegen.scalar_values import Array, error_limit, ulps
from tests.codegen.test_math_rows import bits
from tests.ops.numpy_machine import NumpyMachine

from smelt.ops import cast
from smelt.ops.scalar import SCALARS, cast_reference
from smelt.types.dtype import DType, bf16, f16, f32, f64

ALL = np.arange(1 << 16, dtype=np.uint16)
HALVES = [f16, bf16]


def patterns(dtype: DType) -> Array:
    """Every value of a half type."""
    return ALL.view(dtype.numpy)


def is_nan(dtype: DType) -> Array:
    """Where `patterns` are NaN, by the bits: ml_dtypes warns about signalling ones."""
    infinity = 0x7C00 if dtype == f16 else 0x7F80
    return infinity < (ALL & 0x7FFF)


def as_float32(dtype: DType) -> Array:
    """`patterns` widened by NumPy."""
    with np.errstate(invalid="ignore"):
        return patterns(dtype).astype(np.float32)


def finite(dtype: DType) -> Array:
    """All finite values in order, as float32."""
    infinity = 0x7C00 if dtype == f16 else 0x7F80
    return np.sort(patterns(dtype)[infinity > (ALL & 0x7FFF)].astype(np.float32))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_load_and_store_keep_every_pattern(dtype: DType, isa: str) -> None:
    """Only the patterns of NaN may change, and not their sign."""
    stored = compile_body(lambda m, a: a[0], (dtype,), dtype, 16, isa)(patterns(dtype))
    nan = is_nan(dtype)
    np.testing.assert_array_equal(stored.view(np.uint16)[~nan], ALL[~nan])
    assert (stored.view(np.uint16)[nan] & 0x7FFF > (0x7C00 if dtype == f16 else 0x7F80)).all()
    np.testing.assert_array_equal(np.signbit(stored[nan]), np.signbit(patterns(dtype)[nan]))
    widened = compile_cast(dtype, f32, 16, isa)(patterns(dtype))
    np.testing.assert_array_equal(widened, as_float32(dtype))


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rounding_from_float32_around_every_pattern(dtype: DType, isa: str) -> None:
    """Each value, the midpoint above it, and the neighbours of the midpoint on both sides."""
    values = finite(dtype)
    middle = (values[:-1].astype(np.float64) + values[1:]) / 2
    middle = middle.astype(np.float32)  # exact: one more bit
    beyond = np.array([65519, 65520, 65521, 3.39e38, np.inf, -np.inf, np.nan], np.float32)
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, -np.float32(np.inf))
    x = np.concatenate([values, middle, up, down, beyond, -beyond])
    got = compile_cast(f32, dtype, 16, isa)(x)
    with np.errstate(over="ignore"):
        want = x.astype(dtype.numpy)
    np.testing.assert_array_equal(bits(got, dtype), bits(want, dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_integer_formulas_agree_with_numpy(dtype: DType) -> None:
    machine = NumpyMachine()
    to, back = {
        f16: (cast.to_float16, cast.from_float16),
        bf16: (cast.to_bfloat16, cast.from_bfloat16),
    }[dtype]
    numbers = np.asarray(back(machine, ALL.astype(np.int32)))
    np.testing.assert_array_equal(numbers, as_float32(dtype))
    keep = ~is_nan(dtype)
    np.testing.assert_array_equal(np.asarray(to(machine, numbers))[keep], ALL[keep])


@pytest.mark.parametrize("isa", LEVELS)
def test_float64_to_float16_rounds_once(isa: str) -> None:
    """A value just above a midpoint, by less than float32 can tell, still rounds up."""
    values = finite(f16).astype(np.float64)
    middle = (values[:-1] + values[1:]) / 2
    x = np.concatenate([values, middle, np.nextafter(middle, 1e9), np.nextafter(middle, -1e9)])
    x = np.concatenate([x, [1e300, -1e300, 65519.999999, 65520.0, 2.0**-25, 2.0**-25 + 2.0**-70]])
    x = np.concatenate([x, [np.inf, -np.inf, np.nan, 5e-324, -5e-324, 0.0, -0.0]])
    got = compile_cast(f64, f16, 8, isa)(x)
    np.testing.assert_array_equal(bits(got, f16), bits(cast_reference(x, f16), f16))


ONE_OPERAND = [n for n, row in SCALARS.items() if row.arity == 1 and "float" in row.rule.accepts[0]]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ONE_OPERAND)
def test_rows_on_every_pattern(name: str, dtype: DType) -> None:
    op = SCALARS[name]
    x = patterns(dtype)
    got, want = compile_row(op, (dtype,))(x), op.numpy(x)
    assert got.dtype == want.dtype
    if not op.result(dtype).is_float:
        np.testing.assert_array_equal(got, want)
        return
    far = ulps(got, want)
    worst = int(np.argmax(far))
    assert far[worst] <= error_limit(op, dtype), f"{name}({x[worst]}): {got[worst]}"


def test_bfloat16_store_is_what_ml_dtypes_does() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        want = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(bits(compile_cast(f32, bf16)(x), bf16), bits(want, bf16))
