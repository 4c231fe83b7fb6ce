"""Short functions give what NumPy's functions give, in values, dtypes, order and memory."""

from __future__ import annotations

import warnings
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest

from smelt.numpy.direct import SHORT

ARRAYS = [
    numpy.arange(1, 7),
    numpy.linspace(-1, 2, 6, dtype=numpy.float32),
    numpy.arange(12.0).reshape(3, 4)[::-1],
    numpy.arange(24, dtype=numpy.uint8).reshape(2, 3, 4).transpose(2, 0, 1),
    numpy.array([True, False, True]),
    numpy.array([1 + 2j, -1j]),
    numpy.array(2.5),
    numpy.zeros((0, 3)),
]


def same(name: str, *args: Any) -> None:
    """Compare a call of a short function with NumPy's, errors included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = getattr(numpy, name)(*args)
        except Exception as error:  # noqa: BLE001 - whatever NumPy raises
            with pytest.raises(type(error)):
                SHORT[name](*args)
            return
        mine = SHORT[name](*args)
    assert type(mine) is type(theirs)
    for x, y in zip(mine, theirs, strict=True) if isinstance(mine, tuple) else [(mine, theirs)]:
        assert x.dtype == y.dtype and x.strides == y.strides
        numpy.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", sorted(SHORT))
@pytest.mark.parametrize("x", ARRAYS, ids=lambda x: f"{x.dtype}{x.shape}")
def test_short_functions_are_numpys(name: str, x: numpy.ndarray[Any, Any]) -> None:
    if name == "clip":
        same(name, x, 0, 1)
    elif name == "outer":
        same(name, x, x)
    elif name == "stack":
        same(name, [x, x])
        same(name, [x, x[None]])
    elif name == "roll":
        for shift in (0, 1, -2, 9, True, 1.5):
            for axis in ((), (0,), (-1,), (3,)):
                same(name, x, shift, *axis)
    else:
        same(name, x)
