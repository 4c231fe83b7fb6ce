"""Functions of NumPy's namespace and `sm.*` with empty operands, compared with NumPy.

The operands are those of the samples with one axis, or several, cut to no element.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.samples import SAMPLES
from tests.frontends.numpy.test_table import same
from tests.strategies.effort import NIGHT, NIGHTLY

import smelt as sm
import smelt.numpy as snp
from smelt.errors import SmeltError
from smelt.numpy.table import ROWS

pytestmark = NIGHT
Cut = Callable[[int, Any], Any]

DIFFERENT = {
    # NumPy drops the axis of the quantiles where nothing is left.
    ("nanpercentile", "snp"),
    ("nanpercentile", "sm"),
    # NumPy ignores weights, their number and their type, where there is nothing to count.
    ("bincount", "snp"),
    ("bincount", "sm"),
    # NumPy takes a condition of another length than the array.
    ("piecewise", "snp"),
}
"""Functions that differ from NumPy on purpose."""
OTHER_SIGNATURES = {
    *("argsort", "diff", "gradient", "meshgrid", "nanquantile", "permute_dims", "quantile"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "reshape", "sort", "where"),
}
"""Functions of `sm` that follow the array standard, whose samples are for NumPy."""


def arrays(x: Any) -> list[Any]:
    if isinstance(x, numpy.ndarray) and x.ndim:
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [a for item in items for a in arrays(item)]


def rebuilt(x: Any, rest: Iterator[Any]) -> Any:
    """`x` with its arrays replaced in order."""
    if isinstance(x, numpy.ndarray) and x.ndim:
        return next(rest)
    if isinstance(x, dict):
        return {name: rebuilt(item, rest) for name, item in x.items()}
    return type(x)(rebuilt(item, rest) for item in x) if type(x) in (list, tuple) else x


def cuts(count: int) -> Iterator[Cut]:
    """What is cut from array k."""
    yield lambda k, a: a[:0]
    yield lambda k, a: a[..., :0]
    yield lambda k, a: a[:0][..., :0]
    for one in range(count) if count > 1 else ():
        yield lambda k, a, one=one: a[:0] if k == one else a
        yield lambda k, a, one=one: a[..., :0] if k == one else a


def as_array(x: Any) -> Any:
    is_list = isinstance(x, list) and x and all(isinstance(n, (int, float)) for n in x)
    return numpy.asarray(x) if is_list else x


def cases(name: str) -> Iterator[tuple[Any, list[Any]]]:
    """Nests of arguments and options, and the empty arrays for them."""
    for sample in SAMPLES[name]:
        args, options = sample(numpy)
        nest = tuple(map(as_array, args)), options
        whole = arrays(nest)
        for cut in cuts(len(whole)) if whole else ():
            yield nest, [numpy.ascontiguousarray(cut(k, a)) for k, a in enumerate(whole)]


def result(function: Any, nest: Any, operands: list[Any]) -> Any:
    """The result, or the error."""
    args, options = rebuilt(nest, iter(operands))
    try:
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            actual = function(*args, **options)
            for leaf in actual if isinstance(actual, (tuple, list)) else (actual,):
                if isinstance(leaf, sm.Array):
                    numpy.asarray(leaf)
            return actual
    except (SmeltError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        return error


NAMES = [n for n in SAMPLES if n in ROWS and ROWS[n].way != "refused"]


@pytest.mark.parametrize("name", NAMES if NIGHTLY else NAMES[::3])
def test_nothing_is_computed_as_numpy_computes_it(name: str) -> None:
    namespaces = {"snp": snp} if name in OTHER_SIGNATURES else {"snp": snp, "sm": sm}
    for nest, operands in cases(name):
        expected = result(getattr(numpy, name), nest, operands)
        for label, namespace in namespaces.items():
            function = getattr(namespace, name, None)
            if function is None or (name, label) in DIFFERENT:
                continue
            actual = result(function, nest, [sm.asarray(a) for a in operands])
            where = f"{label}.{name} of {[a.shape for a in operands]}: {actual!r}"
            if isinstance(expected, Exception):  # a value where NumPy has none is not a fault
                is_typed = not isinstance(actual, Exception) or isinstance(
                    actual, (SmeltError, type(expected))
                )
                assert is_typed, where
            else:
                assert not isinstance(actual, Exception), where
                same(actual, expected, where)


def test_what_differs_on_purpose() -> None:
    empty, ids = numpy.zeros((0, 3)), numpy.zeros(0, int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert numpy.nanpercentile(empty, [5, 95], axis=0).shape == (3,)
    assert numpy.bincount(ids, numpy.zeros(0), 4).dtype == numpy.int64
    with sm.config(tiers="fused"):
        assert snp.nanpercentile(empty, [5, 95], axis=0).shape == (2, 3)
        assert snp.bincount(ids, numpy.zeros(0), 4).dtype == numpy.float64


@pytest.mark.parametrize("k", [-2, 0, 1])
def test_diag_of_nothing_has_its_offset(k: int) -> None:
    for dtype in (float, int):
        actual, expected = (
            snp.diag(snp.zeros(0, dtype=dtype), k),
            numpy.diag(numpy.zeros(0, dtype), k),
        )
        same(actual, expected, str(k))


def test_bins_and_conditions_without_elements() -> None:
    x = numpy.asarray([3.0, 1.0, 2.0])
    assert snp.digitize(x, []).tolist() == numpy.digitize(x, []).tolist()
    assert snp.extract(numpy.zeros(0, bool), x).tolist() == []
    assert snp.extract([False, True], x).tolist() == numpy.extract([False, True], x).tolist()
