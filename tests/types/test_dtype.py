"""Element types and their promotion, against the tables of the array API standard."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from smelt.errors import DTypeError
from smelt.types import dtype as d
from smelt.types.dtype import DTYPES, DType, from_numpy, parse, promote

# The standard's tables, row by row: https://data-apis.org/array-api/2024.12, "Type promotion".
SIGNED = """i8 i16 i32 i64 ; i16 i16 i32 i64 ; i32 i32 i32 i64 ; i64 i64 i64 i64"""
MIXED = """i16 i32 i64 ; i16 i32 i64 ; i32 i32 i64 ; i64 i64 i64"""


def table(source: str) -> list[list[DType]]:
    return [[parse(name) for name in row.split()] for row in source.split(";")]


def test_integers() -> None:
    signed = (d.i8, d.i16, d.i32, d.i64)
    unsigned = (d.u8, d.u16, d.u32)
    for a, row in zip(signed, table(SIGNED), strict=True):
        for b, wanted in zip(signed, row, strict=True):
            assert promote(a, b) == wanted
    for a, row in zip(signed, table(MIXED), strict=True):
        for b, wanted in zip(unsigned, row, strict=True):
            assert promote(a, b) == promote(b, a) == wanted
    for k, a in enumerate((*unsigned, d.u64)):
        for j, b in enumerate((*unsigned, d.u64)):
            assert promote(a, b) == (*unsigned, d.u64)[max(j, k)]


def test_floats_and_complex() -> None:
    assert promote(d.f32, d.f64) == d.f64
    assert promote(d.c64, d.f32) == d.c64
    assert promote(d.c64, d.f64) == d.c128
    assert promote(d.c64, d.c128) == d.c128
    assert promote(d.c64, d.f16) == d.c64


def test_beyond_the_standard() -> None:
    assert promote(d.f16, d.bf16) == d.f32
    assert promote(d.f16, d.f32) == d.f32
    for dtype in DTYPES:
        assert promote(d.bool_, dtype) == dtype
    for whole in (d.i8, d.u16, d.i64, d.u64):
        for real in (d.f16, d.bf16, d.f32, d.f64):
            assert promote(whole, real) == real


@pytest.mark.parametrize("signed", [d.i8, d.i16, d.i32, d.i64])
def test_no_integer_holds_both(signed: DType) -> None:
    with pytest.raises(DTypeError, match="no common integer type"):
        promote(d.u64, signed)


def test_promotion_is_a_join() -> None:
    for a in DTYPES:
        assert promote(a, a) == a
        for b in DTYPES:
            if {a.kind, b.kind} == {"int", "uint"} and 64 in (a.bits, b.bits):
                continue
            assert promote(a, b) == promote(b, a)
            assert promote(promote(a, b), a) == promote(a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.name)
def test_rows_agree_with_numpy(dtype: DType) -> None:
    assert dtype.numpy.itemsize * 8 == dtype.bits == dtype.itemsize * 8
    assert from_numpy(dtype.numpy) is dtype
    assert from_numpy(dtype.numpy.newbyteorder(">")) is dtype
    assert from_numpy(dtype) is dtype
    assert parse(dtype.name) is parse(dtype.long) is dtype
    assert dtype == dtype.numpy
    assert dtype != "other"
    assert repr(dtype) == dtype.name
    assert str(dtype) == dtype.long
    assert hash(dtype) == hash(dtype.numpy)
    assert pickle.loads(pickle.dumps(dtype)) == dtype
    assert copy.deepcopy(dtype) == dtype


def test_halves_compute_in_single() -> None:
    assert [t.name for t in DTYPES if t.compute != t] == ["f16", "bf16"]
    assert d.bf16.compute is d.f32
    assert from_numpy(ml_dtypes.bfloat16) is d.bf16


@pytest.mark.parametrize("other", ["U4", object, "M8[s]", np.longdouble, "nonsense"])
def test_what_has_no_row(other: object) -> None:
    with pytest.raises(DTypeError):
        from_numpy(other)
    with pytest.raises(DTypeError, match="unknown element type"):
        parse("float128")
