"""The scalar table: names, type rules, and every algebra column against the reference column."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.scalar_values import Array, grid, operands, special
from tests.codegen.test_math_rows import bits

from smelt.errors import DTypeError
from smelt.ops.scalar import SCALARS, scalar
from smelt.types.dtype import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32, u64

NAMES = {
    "add", "sub", "mul", "div", "floordiv", "mod", "neg", "abs", "sign", "pow", "max", "min",
    "sqrt", "rsqrt", "reciprocal", "square", "exp", "exp2", "expm1", "log", "log2", "log10",
    "log1p", "logaddexp", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "floor", "ceil", "round", "trunc",
    "copysign", "signbit", "nextafter", "hypot", "isnan", "isinf", "isfinite", "eq", "ne", "lt",
    "le", "gt", "ge", "and", "or", "xor", "not", "shl", "shr", "select", "ldexp", "philox", "fma",
    "exp_far", "exp_whole", "exp2_whole", "exp_over", "exp2_over", "exp_moved", "exp2_moved",
    "exp2_byte",
}  # fmt: skip
INFIX = {"+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "<<", ">>"}


def test_all_rows_are_there() -> None:
    assert set(SCALARS) == NAMES
    for name, row in SCALARS.items():
        assert row.name == name
        assert len(row.rule.accepts) == row.arity
        assert row.doc
        assert row.cost > 0
        assert row.derivative is None or len(row.derivative) == row.arity
        assert len(row.monotone) in (0, row.arity)


def test_lookup_of_an_unknown_row_names_the_known_ones() -> None:
    assert scalar("add") is SCALARS["add"]
    with pytest.raises(KeyError, match="known: add"):
        scalar("add3")


def test_result_types() -> None:
    assert SCALARS["add"].result(bf16, bf16) == bf16
    assert SCALARS["lt"].result(i8, i8) == bool_
    assert SCALARS["select"].result(bool_, f64, f64) == f64
    assert SCALARS["ldexp"].result(f16, i32) == f16
    assert SCALARS["philox"].result(u64, u64) == u32
    assert SCALARS["signbit"].result(f32) == bool_


@pytest.mark.parametrize(
    ("name", "dtypes", "match"),
    [
        ("add", (f32,), "takes 2 operands, not 1"),
        ("add", (f32, f64), "one type, not float32 and float64"),
        ("exp", (i32,), "exp is not defined for int32"),
        ("and", (f32, f32), "and is not defined for float32"),
        ("select", (i32, f32, f32), "select is not defined for int32"),
        ("select", (bool_, f32, f64), "one type"),
        ("ldexp", (f32, u8), "ldexp is not defined for uint8"),
        ("ldexp", (f32, i64), "ldexp takes int32 as operand 2, not int64"),
        ("add", (bool_, bool_), "add is not defined for bool"),
    ],
)
def test_wrong_operands_are_refused(name: str, dtypes: tuple[DType, ...], match: str) -> None:
    with pytest.raises(DTypeError, match=match):
        SCALARS[name].result(*dtypes)


def _wide(x: Array) -> Array:
    """bfloat16 as float32, where NumPy's comparisons know NaN."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def _pairs(name: str) -> list[tuple[DType, ...]]:
    return [d for d in operands(SCALARS[name]) if len(set(d)) == 1]


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if r.commutative])
def test_commutative(name: str) -> None:
    for dtypes in _pairs(name):
        x, y = grid(dtypes)
        op = SCALARS[name]
        result = op.result(*dtypes)
        one, other = op.numpy(x, y), op.numpy(y, x)
        if name in ("max", "min"):  # of two zeros, the second
            one, other = one + np.zeros((), one.dtype), other + np.zeros((), one.dtype)
        np.testing.assert_array_equal(bits(one, result), bits(other, result))


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if r.associative])
def test_associative_on_integers(name: str) -> None:
    op = SCALARS[name]
    for dtype in (bool_, i8, u8, i64):
        if dtype.kind not in op.rule.accepts[0]:
            continue
        x, y, z = grid((dtype,) * 3)
        np.testing.assert_array_equal(op.numpy(op.numpy(x, y), z), op.numpy(x, op.numpy(y, z)))


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if r.idempotent])
def test_idempotent(name: str) -> None:
    """op(x, x) = x, or op(op(x)) = op(x)."""
    op = SCALARS[name]
    for dtypes in operands(op):
        x = special(dtypes[0])
        once = op.numpy(x) if op.arity == 1 else x
        twice = op.numpy(once) if op.arity == 1 else op.numpy(x, x)
        np.testing.assert_array_equal(bits(twice, dtypes[0]), bits(once, dtypes[0]))


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if r.identity])
def test_identity(name: str) -> None:
    op = SCALARS[name]
    assert op.identity is not None
    for dtype, *_ in operands(op):
        unit = op.identity(dtype)
        x = special(dtype)
        if unit is None:
            continue
        e = np.full(x.shape, unit, dtype.numpy)
        for result in (op.numpy(x, e), op.numpy(e, x)):
            np.testing.assert_array_equal(_wide(result), _wide(x))  # zeros of either sign are equal


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if r.annihilator])
def test_annihilator(name: str) -> None:
    op = SCALARS[name]
    assert op.annihilator is not None
    for dtype, *_ in operands(op):
        zero = op.annihilator(dtype)
        x = special(dtype)
        if zero is None:
            continue
        z = np.full(x.shape, zero, dtype.numpy)
        for result in (op.numpy(x, z), op.numpy(z, x)):
            np.testing.assert_array_equal(_wide(result), _wide(z))


@pytest.mark.parametrize("name", [n for n, r in SCALARS.items() if any(r.monotone)])
def test_monotone(name: str) -> None:
    """Along each operand that claims a direction, others fixed, results never go the other way."""
    op = SCALARS[name]
    for dtypes in operands(op):
        wraps = dtypes[op.rule.lead].is_integer and op.rule.result == "same"
        if wraps and name in ("add", "sub", "neg"):
            continue  # integers wrap around
        for place, direction in enumerate(op.monotone):
            if not direction:
                continue
            values = special(dtypes[place])
            values = np.sort(values[values == values])
            others = [special(d)[::3] for k, d in enumerate(dtypes) if k != place]
            for rest in zip(*(o.ravel() for o in np.meshgrid(*others)), strict=True):
                full = list(rest)
                full.insert(place, values)
                arrays = np.broadcast_arrays(*full)
                got = op.numpy(*arrays)
                got = got[got == got].astype(np.float64)
                with np.errstate(invalid="ignore"):
                    steps = np.diff(got) * direction
                assert not (steps < 0).any(), (name, dtypes, rest)


def test_integer_power_wraps_and_truncates_reciprocals() -> None:
    power = SCALARS["pow"].numpy
    np.testing.assert_array_equal(
        power(np.array([3, 2, -2], np.int8), np.array([5, 7, 7], np.int8)), [-13, -128, -128]
    )
    base = np.array([1, -1, -1, 2, 0], np.int32)
    np.testing.assert_array_equal(
        power(base, np.array([-3, -3, -4, -1, -1], np.int32)), [1, -1, 1, 0, 0]
    )


def test_division_by_an_integer_zero_is_zero() -> None:
    x, zero = np.array([7, -7, 0], np.int32), np.zeros(3, np.int32)
    np.testing.assert_array_equal(SCALARS["floordiv"].numpy(x, zero), zero)
    np.testing.assert_array_equal(SCALARS["mod"].numpy(x, zero), zero)


def test_rows_print_as_their_names() -> None:
    infix = {row.infix for row in SCALARS.values()} - {None}
    assert infix == INFIX
    assert all(repr(row) == name for name, row in SCALARS.items())
