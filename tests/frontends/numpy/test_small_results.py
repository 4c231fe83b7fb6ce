"""Small results of large arrays are NumPy's own arrays and scalars, hot programs or not."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.view_programs import run

import smelt as sm
import smelt.numpy as np
from smelt.errors import TracerError
from smelt.frontends.array import evaluate_pending
from smelt.frontends.array.array import Array
from smelt.frontends.array.at_once import PREDICTED
from smelt.frontends.array.complex_array import ComplexArray
from smelt.knobs import SMALL_ELEMENTS
from smelt.numpy import small
from smelt.numpy.table import ROWS

LIMIT = 20


@pytest.fixture(autouse=True)
def _small_results() -> Iterator[None]:
    former = small.set_limit(LIMIT)
    yield
    small.set_limit(former)


TO_NUMBERS = """
    all allclose amax amin any argmax argmin array_equal array_equiv average count_nonzero dot
    inner max mean median min nanargmax nanargmin nanmax nanmean nanmedian nanmin nanprod nanstd
    nansum nanvar prod ptp std sum trapezoid var vdot vecdot percentile nanpercentile quantile
    nanquantile
"""
BINARY = ["allclose", "array_equal", "array_equiv", "dot", "inner", "vdot", "vecdot"]
DTYPES = ["bool", "int8", "uint16", "int64", "float32", "float64", "complex128"]


def reduced(np: Any, name: str, x: Any) -> Any:
    second = (
        (x,) if name in BINARY else (0.25,) if name.endswith(("quantile", "percentile")) else ()
    )
    return getattr(np, name)(x, *second)


@pytest.mark.parametrize("tier", ["auto", "fused"])
@pytest.mark.parametrize("name", TO_NUMBERS.split())
def test_reductions_have_numpys_types(name: str, tier: str) -> None:
    assert ROWS[name].way != "refused"
    for dtype in DTYPES if tier == "auto" else ["int64", "float32"]:
        theirs = numpy.asarray([k % 5 + 1 for k in range(50)]).astype(dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = reduced(numpy, name, theirs)
        except TypeError:
            continue
        with sm.config(tiers=tier):
            try:
                actual = reduced(np, name, np.asarray(theirs) * np.asarray(1).astype(dtype))
            except TypeError:  # complex numbers have no order
                assert dtype in ("bool", "complex128")
                continue
        assert type(actual) is type(expected), dtype
        numpy.testing.assert_allclose(actual, expected, rtol=1e-6)


METHODS = ["all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "std", "sum", "trace"]


@pytest.mark.parametrize("tier", ["auto", "fused", "numpy"])
def test_methods_operators_and_elements_have_numpys_types(tier: str) -> None:
    def program(np: Any) -> list[Any]:
        x = np.arange(60.0).reshape(6, 10) / 7
        k = np.arange(60).reshape(6, 10)
        v = x[2] * 1.5
        results = [getattr(x, name)() for name in (*METHODS, "var")]
        results += [x.sum(0), x.mean(axis=1, keepdims=True), k.max(axis=0), k[3, 4], x[-1, 2], v[3]]
        results += [x @ x[0], x[0] @ x[1], x.T[:3] @ x[:, 0], x[[0, 2]][0, 1], x[k > 50], x[5] + 1]
        results += [
            -x[1],
            abs(x[1]),
            2 - x[0],
            x[0] > 1,
            +x[1],
            x[1].copy(),
            x.reshape(-1)[7],
            x.flat[9],
        ]
        results += [
            np.add.reduce(x),
            np.maximum.reduce(x, axis=None),
            np.linalg.norm(x),
            np.cov(x[:4]),
        ]
        results += [
            np.sum(x * 2),
            (x * 2 + k).sum(),
            k[0].sum(dtype=np.float32),
            round(x.mean(), 2),
        ]
        results += [
            *np.nonzero(x.ravel() > 8),
            *divmod(x[0], 2),
            np.float64(2) * x[0],
            x.cumsum(0)[-1, -1],
        ]
        results += [*np.linalg.eigh(x @ x.T)[:1], *np.histogram(x, 4), np.take(x, 3), x.std(ddof=1)]
        return results

    with sm.config(tiers=tier):
        pairs = [*zip(program(np), program(numpy), strict=True)]
    for k, (mine, theirs) in enumerate(pairs):
        assert type(mine) is type(theirs), k
        assert mine.dtype == theirs.dtype, k
        numpy.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-9, err_msg=str(k))
        assert not mine.ndim or (mine.flags.writeable and mine.strides == theirs.strides), k


def test_numbers_are_pythons() -> None:
    x = np.arange(100.0) + 0.5
    record = {"mean": x.mean(), "first": x[0], "norm": np.linalg.norm(x[:3])}
    assert json.loads(json.dumps(record, indent=1)) == pytest.approx(record)
    assert isinstance(x.mean(), float) and isinstance(x.argmax(), numpy.integer)
    assert math.sqrt(x[12]) == math.sqrt(12.5) and f"{x.mean():.3f}" == "50.000"
    assert pickle.loads(pickle.dumps(x.max())) == 99.5 and (7 if x.max() > 3 else 0) == 7
    k = np.arange(100) % 3
    assert Counter(k) == {0: 34, 1: 33, 2: 33} and k.sum().bit_count() == 4
    assert dict(zip(*np.unique(k, return_counts=True), strict=True)) == Counter(k)
    assert {x[1]: "a"}[1.5] == "a" and sorted({k[4], k[1], 1}) == [1]
    assert [10, 20, 30][k.argmax()] == 30 and list(range(k.max())) == [0, 1]
    total = x.sum()
    total += 1
    assert type(total) is numpy.float64 and x.mean().is_integer()


def test_series_take_numbers() -> None:
    try:
        pd: Any = importlib.import_module("pandas")
    except ImportError:
        pytest.skip("pandas is not installed")
    x = np.arange(100.0)
    series = pd.Series({"mean": x.mean(), "max": x.max()})
    assert series.dtype == numpy.float64 and (series - x.min()).tolist() == [49.5, 99.0]
    assert np.sum(pd.Series(numpy.arange(100.0))) == x.sum()


def test_results_are_memory_of_their_own() -> None:
    x = np.ones((4, 30))
    for result in (x.sum(0)[:5].copy(), x.sum(1), +x[0, :9], x[[0]][0, :5].copy(), x[0, :9] * 1):
        result[0] = 77
        assert type(result) is numpy.ndarray and x.max() == 1
    total = x.sum(axis=1)
    assert total.base is None and x.T.sum(axis=0).flags.owndata
    row = x[1]
    row[0] = 5
    assert type(row) is Array and x[1, 0] == 5 and np.add(row, 1, out=row) is row and x[1, 0] == 6


VIEWS: list[Callable[[Any, Any], Any]] = [
    lambda np, x: np.ravel(x),
    lambda np, x: np.transpose(x),
    lambda np, x: np.reshape(x, (6, -1)),
    lambda np, x: np.split(x, 2)[1],
    lambda np, x: np.moveaxis(x, 0, 1)[1:],
    lambda np, x: np.expand_dims(x, 0)[0],
    lambda np, x: np.asarray(x)[1:],
    lambda np, x: np.real(x),
]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_views_of_numpys_large_arrays_write_to_their_memory(dtype: str) -> None:
    for view in VIEWS:
        grown, expected = (numpy.ones((4, 9)).astype(dtype) for _ in range(2))
        for module, array in ((np, grown), (numpy, expected)):
            part = view(module, array)
            part[0] = 7
            part[1:] *= 2
        assert grown.tolist() == expected.tolist()


def test_modules_with_the_rules_of_arrays_keep_them() -> None:
    names: dict[str, Any] = {"__name__": "user"}
    text = "import {} as xp\nx = xp.ones(100)\na = x.mean(), x[3], x[:5] * 2, x @ x, xp.sum(x)"
    exec(text.format("smelt"), names)
    assert {type(x) for x in names["a"]} == {Array}
    names = {"__name__": "user"}
    exec(text.format("smelt.numpy"), names)
    assert {type(x) for x in names["a"]} == {numpy.float64, numpy.ndarray}


def test_recordings_keep_arrays() -> None:
    seen: list[type] = []

    def centred(x: Any) -> Any:
        seen.append(type(x.mean()))
        return (x - x.mean()) / x.std() + x[0] * np.sum(x)

    x = numpy.arange(100.0)
    expected = (x - x.mean()) / x.std() + x[0] * x.sum()
    numpy.testing.assert_allclose(numpy.asarray(sm.jit(centred)(x)), expected)
    numpy.testing.assert_allclose(numpy.asarray(centred(np.asarray(x))), expected)
    assert seen == [Array, numpy.float64]
    gradient = sm.grad(lambda x: (x * x).sum() + x.max())(np.asarray(x))
    assert numpy.asarray(gradient)[[1, 99]].tolist() == [2, 199]


def test_without_a_limit_everything_is_recorded() -> None:
    small.set_limit(0)
    x = np.ones(100)
    assert {type(y) for y in (x.mean(), x[0], x[:5] * 2, np.sum(x), x @ x)} == {Array}


Programs = list[tuple[int, int]]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Numbers of outputs, and of operators, of programs that are computed."""
    counted: Programs = []
    compute = evaluate_pending._run  # pyright: ignore[reportPrivateUsage]

    def count(outputs: Any, *rest: Any) -> None:
        operators = {x for y in outputs for x in evaluate_pending._upstream(y) if x.inputs}  # pyright: ignore[reportPrivateUsage]
        counted.append((len(outputs), len(operators)))
        compute(outputs, *rest)

    monkeypatch.setattr(evaluate_pending, "_run", count)
    return counted


def test_what_only_a_call_holds_is_not_stored(programs: Programs) -> None:
    a, b = np.arange(5000.0), np.ones(5000)
    with sm.config(tiers="fused"):
        first = (a * b).sum()
        second = np.sum(a * b)
        other = a + 3
        third = (np.abs(a - b) > 4000).any()
    assert first == second == numpy.arange(5000).sum() and third and other.node.is_pending
    assert programs == [(1, 2), (1, 2), (1, 4)]


def test_what_is_cheap_to_compute_again_is_stored_at_the_second_time(programs: Programs) -> None:
    a = np.arange(5000.0)
    with sm.config(tiers="fused"):
        x = a * 3
        far, y = a + 1, np.exp(np.sin(np.exp(x) ** 0.3) ** 0.7)
        x.sum()
        assert x.node.is_pending and y.node.is_pending
        x.max()
        assert x.node.data is not None and y.node.is_pending
        y.min()
        assert y.node.data is not None and far.node.is_pending
    assert [outputs for outputs, _ in programs] == [1, 2, 2]


def test_numpy_stores_what_it_computes_on_the_way(programs: Programs) -> None:
    a = np.arange(5000.0)
    with sm.config(tiers="fused"):
        x = a * 3
        y = x + 1
    with sm.config(tiers="numpy"):
        assert y.sum() == (numpy.arange(5000.0) * 3 + 1).sum()
        assert x.node.data is not None and y.node.data is not None
    assert len(programs) == 1


def test_small_results_of_hot_loops_are_one_program_each(programs: Programs) -> None:
    x = np.asarray(numpy.random.default_rng(0).normal(size=(3000, 4)))
    y = np.asarray((numpy.arange(3000) % 2).astype(float))
    w = np.zeros(4)
    with sm.config(tiers="fused"):
        for _ in range(5):
            p = 1 / (1 + np.exp(-(x @ w)))
            w -= 0.1 * (x.T @ (p - y)) / len(y)
    assert type(w) is numpy.ndarray and len(programs) == 5


def test_the_limit_is_where_fusion_begins_to_gain() -> None:
    traffic = 2 * 8 * SMALL_ELEMENTS.default * PREDICTED.cached_byte
    assert traffic == pytest.approx(PREDICTED.recorded_operator, rel=0.01)


def test_large_complex_results_take_memory_of_dropped_ones() -> None:
    z = np.asarray(numpy.ones((200, 200), complex))
    kept = [z * k + z for k in range(6)]
    places: set[int] = set()
    x: Any = z
    for _ in range(9):
        x = z**2 + z
        places.add(x.whole.ctypes.data)
    assert len(places) < 6
    for k, y in enumerate(kept):
        numpy.testing.assert_array_equal(numpy.asarray(y), k + 1)
    numpy.testing.assert_array_equal(numpy.asarray(x), 2)


def test_products_with_small_results_are_those_of_numpy() -> None:
    a = numpy.arange(60.0).reshape(6, 10)
    x, v = np.asarray(a.copy()), numpy.ones(10)
    assert x.__class__ is Array
    for ours, theirs in (
        (x @ v, a @ v),
        (v[:6] @ x, v[:6] @ a),
        (x.T @ v[:6], a.T @ v[:6]),
        (v @ x[2], v @ a[2]),
        (x[:, :4] @ v[:4], a[:, :4] @ v[:4]),
    ):
        assert type(ours) is type(theirs)
        numpy.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="shape mismatch"):
        np.matmul(x, v[:3])


def test_masked_ufuncs_write_into_memory() -> None:
    a = numpy.arange(60.0).reshape(6, 10)
    x, out = np.asarray(a.copy()), np.asarray(a + 5)
    before, memory = out + 0, id(out.node.data)
    assert np.divide(x, 2.0, out=out, where=a > 30) is out
    assert id(out.node.data) == memory
    numpy.testing.assert_array_equal(numpy.asarray(out), numpy.where(a > 30, a / 2, a + 5))
    numpy.testing.assert_array_equal(numpy.asarray(before), a + 5)


def test_complex_arrays_are_whole_until_parts_are_needed() -> None:
    def program(np: Any) -> list[Any]:
        a = np.linspace(-1, 1, 60)
        c = a + 1j * a[::-1]
        z = np.zeros_like(c)
        for _ in range(5):
            z = z**2 + c
            z[abs(z) > 2] = 2
            z[0] = 1j
        kept = z.copy()
        kept *= 2
        return [
            z,
            kept,
            z[z.real > 0],
            z.sum(),
            z[3],
            z * z.conj() == abs(z) ** 2,
            np.exp(z),
            z[:4],
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mine, theirs in zip(program(np), program(numpy), strict=True):
            assert numpy.asarray(mine).dtype == theirs.dtype
            numpy.testing.assert_allclose(numpy.asarray(mine), theirs, rtol=1e-13)
    kept = np.ones(60) * 1j
    with pytest.raises(TracerError):
        sm.jit(lambda x: kept.__setitem__(0, x[0]))(np.ones(60))
    z = np.arange(60.0) * 1j
    assert type(z) is ComplexArray and z.whole is not None and (z * 2).whole is not None
    tail = z[50:]
    assert z.whole is None and type(tail * 1) is numpy.ndarray
    tail[0] = 7
    z.imag[1] = 9
    assert z[50] == 7 and z[1] == 9j and (z + z).whole is not None


@pytest.mark.parametrize("limit", [4, 8, 12, 24])
@pytest.mark.parametrize("tier", ["auto", "fused"])
def test_random_programs_that_cross_the_limit_are_those_of_numpy(limit: int, tier: str) -> None:
    small.set_limit(limit)
    with sm.config(tiers=tier), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(30, 42 if tier == "auto" else 32):
            run(Random(seed))
