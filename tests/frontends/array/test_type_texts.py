"""Spellings of element types: the text of a type counts bits, names of NumPy's count bytes."""

from __future__ import annotations

import click
import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp
from smelt.cli.explain import _value  # pyright: ignore[reportPrivateUsage]
from smelt.errors import DTypeError, ExprTextError
from smelt.graph.text import parse
from smelt.kernel.text import parse as parse_kernel
from smelt.types.dtype import COMPUTABLE, DType

BYTES = ["b1", "i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4", "f8", "<f4", ">f4"]
"""NumPy's codes that are not names of ours: their numbers are bytes."""


@pytest.mark.parametrize("dtype", COMPUTABLE, ids=lambda d: d.name)
def test_a_type_has_one_text_everywhere(dtype: DType) -> None:
    spelled = f"{dtype.name}[n*2 + 1,4,min(m, n)]"
    spec = sm.spec(spelled)
    assert (spec.dtype, str(spec)) == (dtype, spelled)
    assert sm.spec(str(spec)).shape == spec.shape
    assert sm.spec(f"{dtype.long}[n]").dtype is dtype
    assert str(_value("x", spelled, required=True)) == spelled
    kernel = parse_kernel(f"kernel k(x: {dtype.name}[n]) -> y: {dtype.name}[n]\n  y[n] = x[n]")
    graph = parse(f"graph f(x: {dtype.name}[n]) {{ return x }}")
    assert kernel.inputs[0].dtype is dtype
    assert graph.inputs[0].type.dtype is dtype


@pytest.mark.parametrize("code", BYTES)
def test_the_text_of_a_type_refuses_codes_that_count_bytes(code: str) -> None:
    dtype = sm.spec("n", code).dtype
    assert dtype == np.dtype(code).newbyteorder("=")
    with pytest.raises(DTypeError, match="counts bytes") as caught:
        sm.spec(f"{code}[n]")
    assert repr(dtype.long).replace("'", '"') in str(caught.value) and dtype.name in str(
        caught.value
    )
    if code[0].isalpha():
        with pytest.raises(click.BadParameter, match="counts bytes"):
            _value("x", f"{code}[n]", required=True)
        with pytest.raises(sm.errors.GraphTextError, match="count bits"):
            parse(f"graph f(x: {code}[n]) {{ return x }}")
        with pytest.raises(sm.errors.KernelTextError, match="count bits"):
            parse_kernel(f"kernel k(x: {code}[n]) -> y: f32[n]\n  y[n] = x[n]")


@pytest.mark.parametrize(
    ("code", "bits", "bytes_"), [("i8", "int8", "i64"), ("u8", "uint8", "u64")]
)
def test_codes_with_two_meanings_name_both(code: str, bits: str, bytes_: str) -> None:
    assert sm.spec(f"{code}[n]").dtype == bits
    with pytest.raises(DTypeError, match=f'Write "{bits}", or "{bytes_}"'):
        sm.spec("n", code)
    assert snp.zeros(2, code).dtype == snp.zeros(2).astype(code).dtype == np.dtype(code)


@pytest.mark.parametrize("text", ["f32[n/2]", "f31[n]", "f32[n", "f32[n] x", "f32]n[", "[n]"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises((ExprTextError, DTypeError)):
        sm.spec(text)


NOT_TYPES = [
    *(
        "a note: x, y",
        ",",
        "",
        "f4,f4",
        "(",
        "O",
        "V8",
        "M8[zz]",
        "i8,",
        "x" * 1000,
        "float31",
    ),
    *(None, 3, 3.5, b"f4", object(), type, list, Exception, (), {}, {"names": ["a"]}, np.ndarray),
    np.dtype([("a", "f4")]),
]


@pytest.mark.parametrize("dtype", [*COMPUTABLE, sm.complex64], ids=lambda d: d.name)
def test_comparison_of_a_dtype_with_anything_is_false(dtype: DType) -> None:
    bad = type("Bad", (), {"dtype": 3})
    for other in (*NOT_TYPES, bad, bad()):
        assert (dtype == other, other == dtype) == (False, False)
        assert (dtype != other, other != dtype) == (True, True)
        assert other not in {"a": dtype}.values()
    assert dtype == np.dtype(dtype.long) if dtype.name != "bf16" else dtype == "bfloat16"
