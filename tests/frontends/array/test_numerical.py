"""NumPy's functions beyond the standard, against NumPy's own, lazily and under jit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.frontends.array.numpy_comparison import MODES, check

import smelt as sm
from smelt.errors import ArgumentError, AxisError, ShapeError

RNG = np.random.default_rng(11)
pytestmark = [
    pytest.mark.parametrize("mode", MODES),
    pytest.mark.filterwarnings("ignore:.*(empty slice|All-NaN).*:RuntimeWarning"),
]


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def holed(*shape: int) -> Any:
    x = normal(*shape)
    x.flat[::3] = np.nan
    return x


EDGES = np.array([0.0, -1.5, np.nan, np.inf, -np.inf, 1e-9, 2.0, 1.0 + 1e-6])
HOLED = holed(5, 7)
HOLED[2] = np.nan
SORTED = np.sort(normal(12))
WHOLE = RNG.integers(-9, 10, (4, 6))

PROGRAMS = {
    "isclose": (lambda xp, x, y: (xp.isclose(x, y), xp.isclose(x, y, equal_nan=True),
                                  xp.isclose(x, y, rtol=0.1, atol=0.1)),
                EDGES[:, None], EDGES[None, :] * (1 + 1e-6)),
    "isclose of integers": (lambda xp, x: xp.isclose(x, x + 1, rtol=0.5), WHOLE),
    "isin": (lambda xp, x, y: (xp.isin(x, y), xp.isin(x, y[:0]), xp.isin(x, y, invert=True),
                               xp.isin(y[0, 0], x), xp.isin(x * 0.5, y), xp.isin(x, 3)),
             WHOLE, np.array([[3, -2], [0, 3]])),
    "isin of NaN": (lambda xp, x: (xp.isin(x, x), xp.isin(x, [-0.0, xp.inf])), EDGES),
    "nan_to_num": (lambda xp, x: (xp.nan_to_num(x), xp.nan_to_num(
        x, nan=1.0, posinf=2.0, neginf=-3.0)), EDGES),
    "nan_to_num single": (lambda xp, x: xp.nan_to_num(x), EDGES.astype(np.float32)),
    "nan sums": (lambda xp, x: (xp.nansum(x), xp.nansum(x, axis=1), xp.nanprod(
        x, axis=0, keepdims=True), xp.nansum(x, axis=0, dtype=xp.float32)), HOLED),
    "nan sums of integers": (lambda xp, x: (xp.nansum(x), xp.nanprod(x, axis=0)), WHOLE),
    "nan running": (lambda xp, x: (xp.nancumsum(x), xp.nancumsum(x, axis=1), xp.nancumprod(
        x, axis=-1), xp.nancumprod(x)), HOLED),
    "nan means": (lambda xp, x: (xp.nanmean(x), xp.nanmean(x, axis=1), xp.nanmean(
        x, axis=(0, 1), keepdims=True), xp.nanmean(x, axis=0, dtype=xp.float32)), HOLED),
    "nan spreads": (lambda xp, x: (xp.nanvar(x), xp.nanvar(x, axis=1), xp.nanstd(
        x, axis=0, ddof=1), xp.nanstd(x + 1e4, axis=(0, 1), keepdims=True)), HOLED),
    "nan spreads of infinities": (lambda xp, x: (xp.nanvar(x), xp.nanstd(x[:2])),
                                  np.array([np.nan, 1.0, np.inf, 2.0])),
    "nan spreads of integers": (lambda xp, x: (xp.nanvar(x, ddof=1), xp.nanstd(x, axis=1)), WHOLE),
    "nan extremes": (lambda xp, x: (xp.nanmax(x, axis=1), xp.nanmin(x), xp.nanmin(
        x, axis=0, keepdims=True)), HOLED),
    "nan extremes of integers": (lambda xp, x: (xp.nanmax(x), xp.nanmin(x, axis=0)), WHOLE),
    "nan places": (lambda xp, x: (xp.nanargmax(x), xp.nanargmin(x, axis=0), xp.nanargmax(
        x, axis=1, keepdims=True)), normal(3, 4) * np.where(np.eye(3, 4) > 0, np.nan, 1)),
    "nan medians": (lambda xp, x: (xp.nanmedian(x), xp.nanmedian(x, axis=1), xp.nanmedian(
        x, axis=0, keepdims=True)), HOLED),
    "nan quantiles": (lambda xp, x, q: (xp.nanquantile(x, 0.3), xp.nanquantile(x, q, axis=1),
                      xp.nanquantile(x, q, axis=0, keepdims=True), xp.nanpercentile(
        x, [0, 33], axis=-1)), HOLED, np.array([0.0, 0.1, 0.5, 0.95, 1.0])),
    "nan quantiles of infinities": (lambda xp, x: (xp.nanquantile(x, 0.5), xp.nanmedian(x)),
                                    np.array([np.inf, np.nan, np.inf, -np.inf, 1.0])),
    "average": (lambda xp, x, w, v: (xp.average(x), xp.average(x, weights=w), xp.average(
        x, axis=1, weights=v), xp.average(x, axis=0, weights=w)),
                normal(3, 5), np.abs(normal(3, 5)), np.abs(normal(5))),
    "median": (lambda xp, x: (xp.median(x), xp.median(x, axis=0), xp.median(
        x, axis=(0, 2), keepdims=True)), normal(4, 5, 3)),
    "median of NaN": (lambda xp, x: xp.median(x, axis=1), HOLED[:, :4]),
    "median of one": (lambda xp, x: (xp.median(x), xp.median(x, axis=1)), normal(3, 1)),
    "median of integers": (lambda xp, x: (xp.median(x), xp.median(x, axis=1)), WHOLE),
    "median of infinities": (lambda xp, x: xp.median(x), np.full(4, np.inf)),
    "quantile": (lambda xp, x, q: (xp.quantile(x, 0.3), xp.quantile(x, q, axis=1), xp.quantile(
        x, q, axis=0, keepdims=True), xp.quantile(x, 1.0), xp.quantile(x, 0)),
                 normal(4, 7), np.array([0.0, 0.1, 0.5, 0.95, 1.0])),
    "quantile of NaN": (lambda xp, x: xp.quantile(x, 0.5, axis=1), HOLED),
    "percentile": (lambda xp, x: (xp.percentile(x, 33), xp.percentile(x, [5, 50, 99.5], axis=-1)),
                   normal(4, 7)),
    "cov": (lambda xp, x: (xp.cov(x), xp.cov(x, rowvar=False), xp.cov(x, ddof=0),
                           xp.cov(x[0]), xp.corrcoef(x), xp.corrcoef(x[0])), normal(4, 9)),
    "cov beside infinity": (lambda xp, x: (xp.corrcoef(x), xp.cov(x)),
                            np.vstack([normal(3, 9), np.full((1, 9), np.inf), HOLED[:1, [0] * 9]])),
    "histogram": (lambda xp, x: (xp.histogram(x), xp.histogram(x, 7, range=(-1.0, 0.5)),
                                 xp.histogram(x, bins=5, density=True)), normal(1013)),
    "histogram of steps": (lambda xp, x: xp.histogram(x, 10, (0.0, 1.0)),
                           np.arange(0.0, 1.05, 0.05)),
    "histogram of thirds": (lambda xp, x: xp.histogram(x, 30, (0.0, 3.0)),
                            np.arange(3001) / 1000),
    "histogram of integers": (lambda xp, x: xp.histogram(x, 5), WHOLE),
    "histogram of one value": (lambda xp, x: xp.histogram(x, 4), np.full(5, 2.5)),
    "histogram of nothing": (lambda xp, x: xp.histogram(x, 4), np.zeros(0)),
    "histogram by edges": (lambda xp, x, e: (xp.histogram(x, e), xp.histogram(
        x, e, density=True)), normal(101), np.array([-1.0, -0.5, 0.1, 2.0])),
    "histogram at edges": (lambda xp, x: xp.histogram(x, x), np.array([-1.0, -0.5, 0.1, 2.0])),
    "weighted histogram": (lambda xp, x, w: xp.histogram(x, 6, weights=w),
                           normal(57), normal(57)),
    "interp": (lambda xp, x, a, b: (xp.interp(x, a, b), xp.interp(a, a, b), xp.interp(
        x, a, b, left=-7.0, right=7.0)), np.append(normal(3, 40) * 2, [np.nan, 9.0]),
               SORTED, normal(12)),
    "interp of one point": (lambda xp, x, a, b: xp.interp(x, a, b),
                            normal(9), normal(1), normal(1)),
    "interp of integers": (lambda xp, x: xp.interp(x, [1, 3, 8], [4, 0, 5]), WHOLE),
    "trapezoid": (lambda xp, y, x: (xp.trapezoid(y), xp.trapezoid(y, dx=0.5, axis=0),
                                    xp.trapezoid(y, x), xp.trapezoid(y, x=y, axis=0)),
                  normal(4, 6), SORTED[:6]),
    "gradient": (lambda xp, f: (xp.gradient(f[0]), xp.gradient(f, 0.5, axis=1),
                                xp.gradient(f), xp.gradient(f[:, :2], axis=1)), normal(5, 6)),
    "convolve": (lambda xp, a, v: [xp.convolve(x, y, mode) for mode in ("full", "same", "valid")
                                   for x, y in ((a, v), (v, a), (a, a), (a, v[:1]), (a, v[:4]))],
                 normal(23), normal(5)),
    "pad": (lambda xp, x: [xp.pad(x, w, mode) for w in (2, (1, 3), ((0, 2), (3, 1)), (2,),
                                                        ((1, 2),), ((1,), (2,)))
                           for mode in ("constant", "edge", "reflect", "wrap", "symmetric")],
            normal(4, 5)),
    "pad a long row": (lambda xp, x: [xp.pad(x, (70, 33), mode) * 2
                                      for mode in ("edge", "reflect", "wrap", "symmetric")],
                       normal(333)),
    "pad by sizes": (lambda xp, x: [xp.pad(x, x.shape[0] - 1, mode) for mode in (
        "constant", "edge", "reflect", "wrap", "symmetric")], normal(4, 5)),
    "histogram in as many bins as rows": (lambda xp, x: xp.histogram(x, x.shape[0]), normal(9, 7)),
    "pad with a number": (lambda xp, x: xp.pad(x, ((1, 0), (0, 2)), constant_values=-3), WHOLE),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_numpy(mode: str, name: str) -> None:
    f, *arrays = PROGRAMS[name]
    check(mode, f, *arrays, rtol=1e-12, atol=1e-12)  # some hundred roundings of numbers near 1


def test_nothing_has_no_covariance(mode: str) -> None:
    f = sm.cov if mode == "lazy" else sm.jit(sm.cov)
    assert np.isnan(np.asarray(f(np.zeros((3, 0))))).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("n", [0, 1, 2, 13, 128, 129])
def test_searches_of_short_and_long_vectors(mode: str, side: str, n: int) -> None:
    for dtype in ("float32", "float64", "int32", "uint8"):
        line = np.sort(RNG.integers(0, 20, n)).astype(dtype)
        wanted = RNG.integers(0, 22, (3, 5)).astype(dtype)
        if line.dtype.kind == "f" and n > 2:
            line[-2:], line[0] = np.nan, -np.inf
            wanted[0, :2] = np.nan, np.inf
        check(mode, lambda xp, a, b: xp.searchsorted(a, b, side=side), line, wanted)


def test_a_short_search_is_part_of_its_kernel(mode: str) -> None:
    report = sm.explain(sm.interp, normal(1000), SORTED, normal(12))
    assert len(report.kernels) == 1 and mode


@pytest.mark.parametrize("n", [3, 200])
def test_derivatives_of_interpolation(mode: str, n: int) -> None:
    line, height, at = np.arange(n) * 1.0, normal(n), np.array([0.25, 1.5, 1.75])
    slopes = sm.grad(lambda x, f: sm.sum(sm.interp(x, line, f)), argnums=(0, 1))
    by_x, by_f = (sm.jit(slopes) if mode == "jit" else slopes)(at, height)
    rise = np.diff(height)
    np.testing.assert_allclose(by_x, rise[[0, 1, 1]], rtol=1e-13)
    np.testing.assert_allclose(by_f[:3], [0.75, 0.25 + 0.5 + 0.25, 0.5 + 0.75], rtol=1e-13)


def test_parts_that_are_not_known_before_give_nan(mode: str) -> None:
    def f(x: Any, q: Any) -> Any:
        return sm.quantile(x, q)

    actual = np.asarray(
        (sm.jit(f) if mode == "jit" else f)(sm.asarray(normal(9)), sm.asarray([0.5, 1.5, math.nan]))
    )
    assert np.isnan(actual).tolist() == [False, True, True]
    assert math.isnan(sm.quantile(sm.asarray(normal(9)), math.nan))


def test_half_types(mode: str) -> None:
    x = sm.astype(sm.asarray(normal(40)), sm.bfloat16)
    for f in (
        sm.median,
        sm.nanmean,
        sm.nanstd,
        sm.nanmedian,
        lambda x: sm.quantile(x, 0.5),
        lambda x: sm.nanquantile(x, 0.5),
        lambda x: sm.interp(x, x[:1], x[:1]),
    ):
        assert (sm.jit(f) if mode == "jit" else f)(x).dtype == sm.bfloat16


@pytest.mark.parametrize(
    ("f", "error"),
    [
        (lambda x: sm.quantile(x[:0], 0.5), ShapeError),
        (lambda x: sm.percentile(x[:0], 50), ShapeError),
        (lambda x: sm.nanargmax(x[:0], axis=0), ShapeError),
        (lambda x: sm.nanquantile(x, 1.5), ArgumentError),
        (lambda x: sm.quantile(x, 0.5, axis=3), AxisError),
        (lambda x: sm.quantile(x, 1.5), ArgumentError),
        (lambda x: sm.quantile(x, np.float32(1.5)), ArgumentError),
        (lambda x: sm.quantile(x, [0.5, -0.1], axis=0), ArgumentError),
        (lambda x: sm.percentile(x, np.array([50, 101])), ArgumentError),
        (lambda x: sm.histogram(x, 0), ArgumentError),
        (lambda x: sm.histogram(x, x), ShapeError),
        (lambda x: sm.interp(x, x, x), ShapeError),
        (lambda x: sm.interp(x, x[0], x[0, :3]), ShapeError),
        (lambda x: sm.convolve(x, x), ShapeError),
        (lambda x: sm.convolve(x[0], x[0, :0]), ShapeError),
        (lambda x: sm.convolve(x[0], x[0], "all"), ArgumentError),
        (lambda x: sm.pad(x, -1), ArgumentError),
        (lambda x: sm.pad(x, 1.5), ArgumentError),
        (lambda x: sm.pad(x, ((1,), (1, 2, 3))), ArgumentError),
        (lambda x: sm.pad(x, 1, "mean"), ArgumentError),
        (lambda x: sm.pad(x, ((1, 1), (1, 1), (1, 1))), ArgumentError),
        (lambda x: sm.pad(x, 9, "reflect"), ShapeError),
        (lambda _: sm.pad(sm.zeros((0,)), 1, "edge"), ShapeError),
        (lambda x: sm.gradient(x[:1], axis=0), ShapeError),
        (lambda x: sm.average(x, weights=x[0]), ArgumentError),
    ],
)
def test_wrong_arguments(mode: str, f: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        (sm.jit(f) if mode == "jit" else f)(sm.asarray(normal(4, 5)))


@pytest.mark.parametrize("kind", ["constant", "edge", "reflect", "wrap", "symmetric"])
def test_neighbours_under_any_padding_mode_are_one_kernel(mode: str, kind: str) -> None:
    """Margins are views: nothing is stored for them, though nine places are read of a picture."""

    def edges(x: sm.Array) -> sm.Array:
        p, (m, n) = sm.pad(x, 1, kind), x.shape
        box = [p[i : m + i, j : n + j] for i in range(3) for j in range(3)]
        return sum(box[1:], box[0]) / 9

    x = np.random.default_rng(1).standard_normal((40, 200)).astype("f4")
    p = np.pad(x, 1, kind).astype("f8")  # type: ignore[call-overload]
    wanted = sum(p[i : 40 + i, j : 200 + j] for i in range(3) for j in range(3)) / 9
    got = sm.jit(edges)(sm.asarray(x)) if mode == "jit" else edges(sm.asarray(x))
    np.testing.assert_allclose(np.asarray(got), wanted, atol=9 * 2**-23 * float(np.abs(x).max()))
    assert len(sm.explain(edges, sm.asarray(x)).kernels) == 1
