"""The array API standard (2024.12): names, signatures, promotion, inspection."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import smelt as sm
from smelt.types.dtype import COMPUTABLE

_NAMES = """
e inf nan newaxis pi arange asarray empty empty_like eye from_dlpack full full_like linspace
meshgrid ones ones_like tril triu zeros zeros_like astype broadcast_arrays broadcast_to can_cast
finfo iinfo isdtype result_type bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32
float64 complex64 complex128 abs acos acosh add asin asinh atan atan2 atanh bitwise_and
bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj
copysign cos cosh divide equal exp expm1 floor floor_divide greater greater_equal hypot imag
isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real
reciprocal remainder round sign signbit sin sinh square sqrt subtract tan tanh trunc take
take_along_axis matmul matrix_transpose tensordot vecdot concat expand_dims flip moveaxis
permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero nonzero
searchsorted where unique_all unique_counts unique_inverse unique_values argsort sort
cumulative_prod cumulative_sum max mean min prod std sum var all any diff __array_api_version__
__array_namespace_info__
"""
NAMES = _NAMES.split()
STEMS = "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor"

_METHODS = """
__abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ __dlpack_device__
__eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ __invert__ __le__
__lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ __pow__ __rshift__
__setitem__ __sub__ __truediv__ __xor__ to_device dtype device mT ndim shape size T
"""
METHODS = _METHODS.split()


def test_every_name_is_there() -> None:
    assert [name for name in NAMES if not hasattr(sm, name)] == []
    assert [name for name in METHODS if not hasattr(sm.Array, name)] == []
    for stem in STEMS.split():
        assert hasattr(sm.Array, f"__r{stem}__")
        assert hasattr(sm.Array, f"__i{stem}__")
    assert sm.__array_api_version__ == "2024.12"


def test_completion_shows_what_users_call_alone() -> None:
    assert sorted(sm.__all__) == dir(sm)


def test_everything_public_is_documented() -> None:
    for name in sm.__all__:
        thing = getattr(sm, name)
        if callable(thing) and not isinstance(thing, type):
            assert inspect.getdoc(thing), name


SIGNATURES = {
    "arange": "start, /, stop=None, step=1, *, dtype=None, device=None",
    "asarray": "obj, /, *, dtype=None, device=None, copy=None",
    "eye": "n_rows, n_cols=None, /, *, k=0, dtype=None, device=None",
    "linspace": "start, stop, /, num, *, dtype=None, device=None, endpoint=True",
    "full_like": "x, /, fill_value, *, dtype=None, device=None",
    "clip": "x, /, min=None, max=None",
    "astype": "x, dtype, /, *, copy=True, device=None",
    "concat": "arrays, /, *, axis=0",
    "stack": "arrays, /, *, axis=0",
    "reshape": "x, /, shape, *, copy=None",
    "roll": "x, /, shift, *, axis=None",
    "repeat": "x, repeats, /, *, axis=None",
    "squeeze": "x, /, axis",
    "argsort": "x, /, *, axis=-1, descending=False, stable=True",
    "searchsorted": "x1, x2, /, *, side='left', sorter=None",
    "take": "x, indices, /, *, axis=None",
    "take_along_axis": "x, indices, /, *, axis=-1",
    "sum": "x, /, *, axis=None, dtype=None, keepdims=False",
    "var": "x, /, *, axis=None, correction=0.0, keepdims=False",
    "cumulative_sum": "x, /, *, axis=None, dtype=None, include_initial=False",
    "diff": "x, /, n=1, axis=-1, *, prepend=None, append=None",  # by position too, as NumPy
    "tensordot": "x1, x2, /, *, axes=2",
    "vecdot": "x1, x2, /, *, axis=-1",
    "where": "condition, x1, x2, /",
    "moveaxis": "x, source, destination, /",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    """Every call of the standard works; NumPy's may, by position or with more names."""
    standard = inspect.signature(eval(f"lambda {SIGNATURES[name]}: 0"))
    ours = inspect.signature(getattr(sm, name)).parameters
    for parameter in standard.parameters.values():
        kinds = {parameter.kind}
        if parameter.kind is parameter.KEYWORD_ONLY:
            kinds.add(parameter.POSITIONAL_OR_KEYWORD)
        actual = ours[parameter.name]
        assert actual.kind in kinds
        assert actual.default == parameter.default or parameter.default is parameter.empty
    positional = [p.name for p in standard.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    assert list(ours)[: len(positional)] == positional
    others = [p for p in ours.values() if p.name not in standard.parameters]
    assert all(p.default is not p.empty for p in others)


# Promotion


FLOATS = [d for d in COMPUTABLE if d.is_float]


@pytest.mark.parametrize("a", COMPUTABLE, ids=str)
def test_promotion_is_numpys_where_the_standard_defines_it(a: Any) -> None:
    for b in COMPUTABLE:
        if a.kind == b.kind or {a.kind, b.kind} == {"int", "uint"}:
            if sm.uint64 in (a, b) and "int" in (a.kind, b.kind):
                with pytest.raises(sm.errors.DTypeError, match="no common"):
                    sm.ones(2, dtype=a) + sm.ones(2, dtype=b)
            elif sm.bfloat16 not in (a, b):
                wanted = np.result_type(a.numpy, b.numpy)
                assert sm.result_type(a, b) == wanted
                if a.kind != "bool":
                    assert (sm.ones(2, dtype=a) + sm.ones(2, dtype=b)).dtype == wanted


@pytest.mark.parametrize("dtype", COMPUTABLE, ids=str)
def test_python_numbers_take_the_arrays_type(dtype: Any) -> None:
    x = sm.ones(2, dtype=dtype)
    if dtype.kind != "bool":
        assert (x + 1).dtype == (1 * x).dtype == dtype
        assert (x * 1.5).dtype == (dtype if dtype.is_float else sm.float64)
    assert sm.where(x == x, x, True).dtype == dtype
    assert sm.result_type(x, True) == dtype


def test_numbers_out_of_range() -> None:
    for wrong in (
        lambda: sm.ones(2, dtype=sm.int8) + 300,
        lambda: sm.ones(2, dtype=sm.uint8) - (-1),
        lambda: sm.full(2, -1, dtype=sm.uint64),
    ):
        with pytest.raises(sm.errors.ArgumentError):
            wrong()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bitwise_and", sm.float64),
        ("bitwise_invert", sm.float32),
        ("add", sm.bool),
        ("negative", sm.bool),
        ("positive", sm.bool),
        ("bitwise_left_shift", sm.bool),
        ("matmul", sm.bool),
        ("remainder", sm.bool),
    ],
    ids=str,
)
def test_kinds_that_a_function_does_not_take(name: str, dtype: Any) -> None:
    x = sm.ones((2, 2), dtype=dtype)
    with pytest.raises(sm.errors.DTypeError) as caught:
        getattr(sm, name)(*[x] * (1 if name in ("bitwise_invert", "negative", "positive") else 2))
    assert name in str(caught.value)
    assert "getattr" in caught.value.origin.text


def test_functions_of_reals_refuse_complex_numbers() -> None:
    z = sm.asarray([1j, 2.0])
    for wrong in (
        lambda: sm.nn.softmax(z),
        lambda: z.at[0].add(1),
        lambda: sm.segment_sum(z, sm.asarray([0, 1]), 2),
        lambda: sm.spec((3,), "complex64"),
    ):
        with pytest.raises(sm.errors.UnsupportedError, match="complex"):
            wrong()
    for unordered in (lambda: z < 2, lambda: sm.max(z), lambda: sm.sort(z), lambda: z // 2):
        with pytest.raises(sm.errors.DTypeError, match="no order"):
            unordered()
    assert sm.isdtype(sm.complex64, "complex floating")


# Inspection


def test_inspection() -> None:
    assert sm.finfo(sm.float32).eps == np.finfo(np.float32).eps
    assert sm.finfo(sm.ones(2)).max == np.finfo(np.float64).max
    assert sm.finfo("bfloat16").smallest_normal == 2.0**-126
    assert (sm.iinfo(sm.int8).min, sm.iinfo("uint16").max, sm.iinfo(int).bits) == (-128, 65535, 64)
    assert sm.can_cast(sm.int8, sm.int32)
    assert not sm.can_cast(sm.ones(2), sm.float32)
    assert not sm.can_cast(sm.uint64, sm.int64)
    assert sm.isdtype(sm.int8, ("bool", "integral"))
    assert sm.isdtype(np.float32, sm.float32)
    assert not sm.isdtype(sm.uint8, "signed integer")
    info = sm.__array_namespace_info__()
    assert info.devices() == [info.default_device()] == ["cpu"]
    assert info.default_dtypes()["integral"] is sm.int64
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert info.capabilities()["boolean indexing"] is True
    for wrong in (
        lambda: sm.finfo(sm.int8),
        lambda: sm.iinfo(sm.float32),
        lambda: sm.isdtype(sm.int8, "x"),
        sm.result_type,
        lambda: sm.zeros(2, dtype="no"),
        lambda: sm.zeros(2, dtype="U3"),
        lambda: sm.zeros(2, device="gpu"),
        lambda: info.dtypes(kind=3),
    ):
        with pytest.raises(sm.errors.SmeltError):
            wrong()


def test_names_of_dtypes() -> None:
    for name in ("float32", "f32", np.float32, np.dtype("float32"), sm.float32):
        assert sm.zeros(2, dtype=name).dtype is sm.float32
    assert sm.zeros(1, dtype=float).dtype is sm.float64
    assert sm.zeros(1, dtype=int).dtype is sm.int64
    assert sm.zeros(1, dtype=bool).dtype is sm.bool
    assert str(sm.bfloat16) == "bfloat16"


@pytest.mark.parametrize("pair", list(itertools.product(COMPUTABLE, COMPUTABLE)), ids=str)
def test_astype(pair: Any) -> None:
    a, b = pair
    x = np.asarray([0, 1, 2, 100], a.numpy)
    actual = sm.astype(sm.asarray(x), b)
    assert actual.dtype is b
    np.testing.assert_array_equal(np.asarray(actual), x.astype(b.numpy))


def test_astype_copies_or_not() -> None:
    x = sm.ones(2)
    assert sm.astype(x, sm.float64, copy=False) is x
    assert sm.astype(x, sm.float64) is not x


xps = make_strategies_namespace(sm)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_hypothesis_can_draw_our_arrays(data: st.DataObject) -> None:
    dtype = data.draw(xps.real_dtypes() | xps.boolean_dtypes())
    x = data.draw(xps.arrays(dtype, xps.array_shapes(min_side=0, max_side=4)))
    assert x.dtype == dtype
    back = np.asarray(sm.permute_dims(x, tuple(reversed(range(x.ndim)))))
    np.testing.assert_array_equal(back, np.asarray(x).T)


@settings(max_examples=40, deadline=None)
@given(xps.mutually_broadcastable_shapes(3, max_side=4))
def test_broadcasting(shapes: Any) -> None:
    arrays = [np.arange(float(np.prod(s))).reshape(s) for s in shapes.input_shapes]
    x, y, z = map(sm.asarray, arrays)
    actual = sm.where(x > 1, y, z) + x * y
    assert actual.shape == shapes.result_shape
    np.testing.assert_array_equal(
        actual, np.where(arrays[0] > 1, arrays[1], arrays[2]) + arrays[0] * arrays[1]
    )
