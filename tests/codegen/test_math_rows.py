"""Every row, every type: native code, the NumPy machine and the reference column agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.compile_scalar import LEVELS, compile_body, compile_row
from tests.codegen.scalar_values import Array, error_limit, grid, operands, special, ulps
from tests.ops.numpy_machine import NumpyMachine

from smelt.ops.approximate import max_over_argument
from smelt.ops.coefficients import FITS
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.types.dtype import DType, f32, f64, i8, i32, i64, u8, u64

LANES = {"avx512": 16, "avx2": 8, "portable": 4}
SUMS = ("logaddexp",)
"""Rows whose result may cancel: their error is that of the larger operand."""


def same(op: ScalarOp, got: Array, want: Array, dtype: DType, arrays: list[Array]) -> None:
    """`got` is `want` up to the row's error limit, NaN and signs of zeros included."""
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want)
        return
    far = ulps(got, want)
    if op.name in SUMS:
        with np.errstate(invalid="ignore"):
            size = np.maximum(*[abs(a.astype(float)) for a in arrays])
            gap = abs(got.astype(float) - want.astype(float))
        if dtype in (f32, f64):
            far = np.where(gap <= size * np.finfo(dtype.numpy).eps, 0, far)
    if op.name.endswith("_over"):  # what is that small may count as 0, or not yet
        least = 2.0 ** (1 + FITS["f64" if dtype == f64 else "f32"].min_weight_exponent)
        far = np.where((abs(got) < least) & (abs(want) < least), 0, far)
    worst = int(np.argmax(far))
    case = [a[worst] for a in arrays]
    assert far[worst] <= error_limit(op, dtype), f"{op}{case}: {got[worst]}, not {want[worst]}"
    signs = (np.signbit(got) == np.signbit(want)) | (want != want)
    worst = int(np.argmin(signs))
    assert signs.all(), f"{op}{[a[worst] for a in arrays]}: {got[worst]}, not {want[worst]}"


def bits(values: Any, dtype: DType) -> Array:
    """Patterns to compare, with one pattern for all NaNs."""
    values = np.asarray(values)
    if dtype.is_float:
        values = np.where(values != values, np.array(np.nan, dtype.numpy), values)
    return np.asarray(values).view(f"u{dtype.itemsize}")


@pytest.mark.parametrize("name", SCALARS)
def test_special_values(name: str) -> None:
    """The cross product of special values of all operands, for all types and instruction sets."""
    op = SCALARS[name]
    for dtypes in operands(op):
        arrays = _requested(op, grid(dtypes), dtypes[0])
        result = op.result(*dtypes)
        want = op.numpy(*arrays)
        assert want.dtype == result.numpy, dtypes
        registers = [a.astype(d.compute.numpy) for a, d in zip(arrays, dtypes, strict=True)]
        with np.errstate(over="ignore", invalid="ignore" if op.name.endswith("_over") else None):
            references = [
                np.asarray(op.apply(NumpyMachine(picks=picks), dtypes, registers))
                for picks in (False, True)
            ]
            references = [reference.astype(result.numpy) for reference in references]
        for reference in references:
            same(op, reference, want, result, arrays)
        usual = _without_libm(op, arrays)
        for isa in LEVELS:
            got = compile_row(op, dtypes, LANES[isa], isa)(*arrays)
            same(op, got, want, result, arrays)
            reference = references[isa == "avx512"]
            different = (bits(got, result) != bits(reference, result)) & usual
            assert not different.any(), (isa, dtypes, [a[different][0] for a in arrays])


def _requested(op: ScalarOp, arrays: list[Array], dtype: DType) -> list[Array]:
    """Of operands, those that kernels ask for."""
    if not op.name.endswith("_over"):
        return arrays
    overflows = ~(arrays[0].astype(np.float64) > max_over_argument(dtype.compute))
    return [a[overflows] for a in arrays]


def _without_libm(op: ScalarOp, arrays: list[Array]) -> Array:
    """Where no call of the C library is involved, so that bits must agree with NumPy's machine."""
    if op.name in ("sin", "cos", "tan"):
        return abs(arrays[0].astype(float)) < 1e5
    return np.ones(arrays[0].shape, bool)


@pytest.mark.parametrize("name", SCALARS)
def test_special_values_in_every_lane_and_tail(name: str) -> None:
    """Where an element stands, and how long the array is, must not change its result."""
    op = SCALARS[name]
    dtypes = next((d for d in operands(op) if d[op.rule.lead] == f32), operands(op)[0])
    function = compile_row(op, dtypes, 16)
    every = grid(dtypes)
    step = max(1, len(every[0]) // 331)
    arrays = [a[::step] for a in every]
    whole = function(*arrays)
    result = op.result(*dtypes)
    for start in range(17):
        for length in (0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 47):
            part = function(*[a[start : start + length] for a in arrays])
            expected = whole[start : start + length]
            np.testing.assert_array_equal(bits(part, result), bits(expected, result))
    for shift in range(16):  # every value visits every lane
        moved = function(*[np.roll(a, shift) for a in arrays])
        np.testing.assert_array_equal(bits(moved, result), bits(np.roll(whole, shift), result))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 32, 48])
def test_other_widths_give_the_same_bits(lanes: int) -> None:
    """Instructions that tile the vector, or do not, agree with plain scalars."""
    for name in ("exp", "log", "sin", "pow", "sigmoid", "mod", "erf"):
        op = SCALARS[name]
        dtypes = (f32,) * op.arity
        arrays = [a[:997] for a in grid(dtypes)]
        want = compile_row(op, dtypes, None)(*arrays)
        got = compile_row(op, dtypes, lanes)(*arrays)
        np.testing.assert_array_equal(bits(got, f32), bits(want, f32))
    for name in ("exp", "exp2", "log"):  # whose tables fill two registers
        (x,) = grid((f64,))
        want, got = (compile_row(SCALARS[name], (f64,), n)(x) for n in (None, lanes))
        np.testing.assert_array_equal(bits(got, f64), bits(want, f64))


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64, u64], ids=str)
@pytest.mark.parametrize("divisor", [7, 8, -3, 0, -1, 1, 256])
def test_division_by_a_constant(divisor: int, dtype: DType) -> None:
    """Constant divisors take another way through LLVM (and may wrap to 0)."""
    x = special(dtype)
    wrapped = np.full(x.shape, divisor).astype(dtype.numpy)
    for name in ("floordiv", "mod"):
        op = SCALARS[name]

        def body(m: Any, args: Any, op: ScalarOp = op) -> Any:
            return op.apply(m, (dtype, dtype), (args[0], m.const(dtype, divisor)))

        got = compile_body(body, (dtype,), dtype)(x)
        np.testing.assert_array_equal(got, op.numpy(x, wrapped))


def test_tanh_is_monotone() -> None:
    """Polynomials around neighbouring places meet: no number falls, none is beyond 1, and the
    errors are less than one in the last place."""
    at = [np.float32(2.0**e * q) for e in range(-4, 4) for q in (1, 1.25, 1.5, 1.75)]
    near = np.array(at).view(np.int32)[:, None] + np.arange(-600, 600, dtype=np.int32)
    sweep = np.arange(0x39000000, 0x41400000, 4099, dtype=np.int32)
    x = np.unique(np.concatenate([near.ravel(), sweep])).view(np.float32)
    row, fast = SCALARS["tanh"], NumpyMachine(picks=True)
    y = np.asarray(row.apply(fast, (f32,), [x]))
    assert (np.diff(y) >= 0).all()
    assert y.max() == 1.0
    true = np.tanh(x.astype(np.float64))
    assert (np.abs(y - true) < np.spacing(true.astype(np.float32))).all()
    np.testing.assert_array_equal(np.asarray(row.apply(fast, (f32,), [-x])), -y)
