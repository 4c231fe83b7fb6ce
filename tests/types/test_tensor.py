"""Tensor types: broadcasting as the array API says, sizes in bytes that are numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.effort import effort

from smelt.errors import OverflowSizeError, ShapeError
from smelt.types.dtype import DTYPES, f32, i8
from smelt.types.expr import size
from smelt.types.tensor import TensorType, broadcast_shapes, check_bytes, shape_text

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@effort(300)
@given(st.lists(SHAPES, max_size=3))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        wanted = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast_shapes(*shapes)
    else:
        assert broadcast_shapes(*shapes) == wanted


def test_symbols_broadcast_with_themselves_and_one() -> None:
    n, m = size("n"), size("m")
    assert broadcast_shapes((n, 1), (m,), ()) == (n, m)
    assert broadcast_shapes((n * 2,), (n + n,)) == (n * 2,)
    for other in (m, 4):
        with pytest.raises(ShapeError, match=r"dimension -1 is n in one and"):
            broadcast_shapes((n,), (other,))


def test_text_and_sizes() -> None:
    n = size("n")
    t = TensorType(f32, (n, 4))
    assert str(t) == "f32[n,4]"
    assert (t.rank, t.elements, t.nbytes) == (2, n * 4, n * 16)
    assert str(TensorType(i8)) == "i8[]"
    assert shape_text((n * 2 + 1,)) == "n*2 + 1"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: t.name)
def test_bytes_stay_below_the_limit(dtype: object) -> None:
    assert check_bytes(TensorType(dtype, (2**31, size("n"), 0, 2**20)))  # type: ignore[arg-type]
    with pytest.raises(OverflowSizeError, match="2\\*\\*63"):
        check_bytes(TensorType(dtype, (2**40, 2**23)))  # type: ignore[arg-type]
    with pytest.raises(OverflowSizeError):
        check_bytes(TensorType(dtype, (2**62, 0, 2)))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="negative dimension -1"):
        check_bytes(TensorType(dtype, (3, -1)))  # type: ignore[arg-type]
