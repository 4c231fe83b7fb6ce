"""The standard's functions against NumPy's, lazily and under jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.array.numpy_comparison import MODES, check

import smelt as sm

rng = np.random.default_rng(7)
A = rng.standard_normal((3, 5))
ROW = rng.standard_normal(5)
CUBE = rng.standard_normal((2, 3, 4))
WHOLE = rng.integers(-5, 6, (3, 5))
SINGLE = A.astype(np.float32)
POSITIVE = np.abs(A) + 0.1
EMPTY = np.zeros((0, 5))
ONE = np.full((1, 1), 2.0)
SCALAR = np.asarray(1.5)

pytestmark = pytest.mark.parametrize("mode", MODES)

UNARY = """abs negative sign square floor ceil round trunc isnan isinf isfinite exp expm1 exp2 sin
cos tan tanh sinh cosh atan asinh signbit reciprocal"""
POSITIVE_ONLY = "sqrt log log1p log2 log10"
BINARY = """add subtract multiply divide maximum minimum less less_equal greater greater_equal equal
not_equal hypot atan2 copysign logaddexp nextafter floor_divide remainder"""


def each(names: str) -> Callable[..., Any]:
    """A function that applies every named one."""
    return lambda xp, *arrays: [getattr(xp, name)(*arrays) for name in names.split()]


@pytest.mark.parametrize(
    "x", [A, SINGLE, EMPTY, ONE, SCALAR], ids=["A", "single", "empty", "one", "scalar"]
)
def test_unary(mode: str, x: np.ndarray) -> None:
    check(mode, each(UNARY), x, rtol=2e-6 if x.dtype == np.float32 else 1e-12)


def test_unary_on_part_of_the_line(mode: str) -> None:
    check(mode, each(POSITIVE_ONLY), POSITIVE)
    check(mode, each("acos asin atanh"), np.tanh(A))
    check(mode, each("exp sqrt sin"), np.abs(WHOLE))


@pytest.mark.parametrize(
    "pair",
    [(A, ROW), (SINGLE, SINGLE[:1]), (A, SCALAR), (EMPTY, ROW), (ONE, A), (A[:, :1], ROW)],
    ids=["row", "single", "scalar", "empty", "one", "outer"],
)
def test_binary(mode: str, pair: tuple[np.ndarray, np.ndarray]) -> None:
    tolerance = 2e-6 if pair[0].dtype == np.float32 else 1e-12
    check(mode, each(BINARY), *pair, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_binary_integers(mode: str, dtype: type) -> None:
    x, y = np.arange(6, dtype=dtype), np.asarray([1, 2, 3, 4, 5, 100], dtype)
    check(mode, each("add subtract multiply floor_divide remainder less"), x, y)


def test_operators(mode: str) -> None:
    check(mode, lambda xp, x, y: (2 * x - y / 3 + (1 - x) ** 2, -x, abs(x), x > 0.5), A, ROW)
    check(mode, lambda xp, x: ((x + 1) * 2 // 3 % 4, 7 - x, 7 // (x * x + 1), 2**x), np.abs(WHOLE))
    check(mode, lambda xp, x: ((x & 3) | (x << 1) ^ ~x, x >> 1, 1 << (x & 7)), WHOLE)
    check(mode, lambda xp, x: (x > 0) & (x < 3) | ~(x == 1), WHOLE)


def test_pow_and_clip(mode: str) -> None:
    check(mode, lambda xp, x, y: xp.pow(x, y), POSITIVE, ROW, rtol=1e-11)
    check(mode, lambda xp, x: xp.clip(x, -0.5, 0.5), A)
    check(mode, lambda xp, x, y: xp.clip(x, None, y), A, ROW)
    check(mode, lambda xp, x: xp.clip(x, 1, 3), WHOLE)


def test_where(mode: str) -> None:
    check(mode, lambda xp, x, y: xp.where(x > 0, x, y), A, ROW)
    check(mode, lambda xp, x: xp.where(x > 0, x, 0.0), SINGLE)
    check(mode, lambda xp, x: xp.where(x > 0, 1.0, -1.0), A)


REDUCTIONS = ["sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "count_nonzero"]


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_positions_of_extremes(mode: str, axis: int | None) -> None:
    for keepdims in (False, True):
        how = {"axis": axis, "keepdims": keepdims}
        check(mode, lambda xp, x, how=how: (xp.argmax(x, **how), xp.argmin(x, **how)), CUBE)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(mode: str, name: str, axis: object, keepdims: bool) -> None:
    for x in (CUBE, CUBE.astype(np.float32), rng.integers(-3, 4, (2, 3, 4))):
        tolerance = 5e-6 if x.dtype == np.float32 else 1e-12
        check(
            mode,
            lambda xp, x: getattr(xp, name)(x, axis=axis, keepdims=keepdims),
            x,
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "count_nonzero"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_reductions_of_nothing(mode: str, name: str, axis: int | None) -> None:
    check(mode, lambda xp, x: getattr(xp, name)(x, axis=axis), EMPTY)


def test_integers_grow(mode: str) -> None:
    for dtype in (np.int8, np.uint8, np.int32, np.bool_):
        x = np.ones((2, 200), dtype)
        check(mode, lambda xp, x: (xp.sum(x), xp.prod(x, axis=1)), x)


def test_correction(mode: str) -> None:
    def f(xp: object, x: object) -> object:
        name = "ddof" if xp is np else "correction"
        return xp.var(x, axis=1, **{name: 1}), xp.std(x, axis=0, **{name: 1})

    check(mode, f, A)


def test_variance_of_large_mean(mode: str) -> None:
    x = (rng.standard_normal((4, 1000)) + 1e6).astype(np.float64)
    check(mode, lambda xp, x: xp.var(x, axis=1), x, rtol=1e-10)


def test_cumulative(mode: str) -> None:
    check(mode, lambda xp, x: xp.cumulative_sum(x, axis=1), A)
    check(mode, lambda xp, x: xp.cumulative_sum(x, axis=0, include_initial=True), A)
    check(mode, lambda xp, x: xp.cumulative_prod(x, axis=-1), CUBE)
    check(mode, lambda xp, x: xp.cumulative_sum(x, axis=0), WHOLE.astype(np.int8))
    check(mode, lambda xp, x: xp.diff(x, axis=0, n=2), A)


MANIPULATION = {
    "reshape -1": lambda xp, x: xp.reshape(x, (-1,)),
    "reshape merge": lambda xp, x: xp.reshape(x, (6, -1)),
    "reshape across": lambda xp, x: xp.reshape(x, (3, 2, 4)),
    "reshape split": lambda xp, x: xp.reshape(x, (2, 3, 2, 2)),
    "permute": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "mT": lambda xp, x: x.mT,
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=-2),
    "squeeze": lambda xp, x: xp.squeeze(x[:, None], axis=1),
    "concat": lambda xp, x: xp.concat([x, x[:, :1], x], axis=1),
    "concat none": lambda xp, x: xp.concat([x, x[0]], axis=None),
    "stack": lambda xp, x: xp.stack([x, x + 1], axis=-1),
    "unstack": lambda xp, x: xp.unstack(x, axis=1),
    "flip": lambda xp, x: (xp.flip(x, axis=1), xp.flip(x)),
    "roll": lambda xp, x: (xp.roll(x, 2, axis=1), xp.roll(x, -7), xp.roll(x, (1, 9), axis=(0, 2))),
    "repeat": lambda xp, x: (xp.repeat(x, 3, axis=1), xp.repeat(x, 2)),
    "tile": lambda xp, x: (xp.tile(x, (2, 3)), xp.tile(x, (2, 1, 1, 2))),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4)),
    "broadcast_arrays": lambda xp, x: list(xp.broadcast_arrays(x, x[0, :1])),
    "tril": lambda xp, x: (xp.tril(x, k=-1), xp.triu(x, k=1)),
    "meshgrid": lambda xp, x: list(xp.meshgrid(x[0, 0], x[0, :, 0])),
    "meshgrid ij": lambda xp, x: list(xp.meshgrid(x[0, 0], x[0, :, 0], x[:, 0, 0], indexing="ij")),
    "like": lambda xp, x: xp.ones_like(x) * x + xp.full_like(x, 2) + xp.zeros_like(x),
}


@pytest.mark.parametrize("name", MANIPULATION)
def test_manipulation(mode: str, name: str) -> None:
    check(mode, MANIPULATION[name], CUBE)


CREATION = {
    "arange": lambda xp: (xp.arange(2, 9, 3), xp.arange(5), xp.arange(5, -3, -2), xp.arange(3, 1)),
    "arange float": lambda xp: (xp.arange(0.0, 1.0, 0.1), xp.arange(3, dtype=xp.float32)),
    "linspace": lambda xp: (xp.linspace(0, 1, 11), xp.linspace(2, -1, 5, endpoint=False)),
    "linspace short": lambda xp: (xp.linspace(0, 1, 1), xp.linspace(0, 1, 0)),
    "eye": lambda xp: (xp.eye(3), xp.eye(3, 4, k=1), xp.eye(4, 2, k=-1, dtype=xp.int32)),
    "full": lambda xp: (xp.zeros((2, 3)), xp.ones(4, dtype=xp.int8), xp.full((2,), 7)),
    "zero sizes": lambda xp: (xp.zeros((0, 3)), xp.ones((2, 0)), xp.arange(0)),
}


@pytest.mark.parametrize("name", CREATION)
def test_creation(mode: str, name: str) -> None:
    check(mode, CREATION[name])


def test_products(mode: str) -> None:
    cases = [
        (A, A.T.copy()),
        (A, ROW),
        (ROW, A.T),
        (ROW, ROW),
        (CUBE, rng.standard_normal((4, 6))),
        (CUBE[:, None], rng.standard_normal((5, 4, 6))),
        (EMPTY, ROW),
        (A[:, :0], A[:, :0].T),
        (WHOLE, WHOLE.T),
    ]
    for x, y in cases:
        check(mode, lambda xp, x, y: (xp.matmul(x, y), x @ y), x, y)
    check(mode, lambda xp, x, y: xp.tensordot(x, y, axes=1), CUBE, rng.standard_normal((4, 5)))
    y = rng.standard_normal((4, 2, 3))
    check(mode, lambda xp, x, y: xp.tensordot(x, y, axes=((2, 0), (0, 1))), CUBE, y)
    check(mode, lambda xp, x, y: xp.tensordot(x, y, axes=0), ROW, ROW)
    check(mode, lambda xp, x, y: (xp.vecdot(x, y), xp.vecdot(y, x, axis=-1)), A, ROW)


def test_library_calls(mode: str) -> None:
    check(mode, lambda xp, x: (xp.sort(x, axis=0), xp.argsort(x, axis=1)), A)
    check(mode, lambda xp, x, y: xp.searchsorted(x, y), np.sort(ROW), A)
    check(mode, lambda xp, x: (xp.linalg.inv(x @ x.mT), xp.linalg.det(x @ x.mT)), A, rtol=1e-9)
    check(mode, lambda xp, x, y: xp.linalg.solve(x @ x.mT, y), A, ROW[:3], rtol=1e-9)


def test_sort_descending_is_stable(mode: str) -> None:
    x = sm.asarray([2, 1, 2, 3])
    f = (
        (lambda x: sm.argsort(x, descending=True))
        if mode == "lazy"
        else sm.jit(lambda x: sm.argsort(x, descending=True))
    )
    assert f(x).tolist() == [3, 0, 2, 1]


def test_take(mode: str) -> None:
    at = np.asarray([0, 3, -1])
    check(mode, lambda xp, x, i: xp.take(x, i, axis=1), A, at)
    check(mode, lambda xp, x, i: xp.take(x, i, axis=1), np.zeros((0, 0)), at)  # nothing is read
    at = rng.integers(-5, 5, (3, 2))
    check(mode, lambda xp, x, i: xp.take_along_axis(x, i, axis=1), A, at)
    check(mode, lambda xp, x, i: xp.take_along_axis(x, i, axis=0), A, rng.integers(-3, 3, (4, 5)))


def test_linalg_extension(mode: str) -> None:
    check(mode, lambda xp, x: (xp.linalg.trace(x), xp.linalg.diagonal(x, offset=1)), CUBE)
    check(mode, lambda xp, x, y: xp.linalg.cross(x, y), A[:, :3], ROW[:3])
    check(mode, lambda xp, x, y: xp.linalg.outer(x, y), ROW, ROW[:2])
    for order in (0, 1, 2, 3, np.inf, -np.inf):
        check(mode, lambda xp, x, o=order: xp.linalg.vector_norm(x, axis=1, ord=o), A)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        check(mode, lambda xp, x, o=order: xp.linalg.matrix_norm(x, ord=o), CUBE)
    check(mode, lambda xp, x: xp.linalg.matrix_power(x @ x.mT, 5), A, rtol=1e-10)
    check(mode, lambda xp, x: xp.linalg.cholesky(x @ x.mT), A, rtol=1e-9)


TALL = np.random.default_rng(8).standard_normal((2, 5, 3))


@pytest.mark.parametrize(
    "x", [TALL, TALL.mT.copy(), TALL[0, :3], TALL[:0], TALL[:, :1], TALL[:, :0, :0]]
)
def test_decompositions(mode: str, x: np.ndarray) -> None:
    check(mode, lambda xp, x: xp.linalg.svdvals(x), x, rtol=1e-9)
    check(mode, lambda xp, x: xp.linalg.matrix_rank(x), x)
    check(mode, lambda xp, x: xp.linalg.pinv(x), x, rtol=1e-9)
    check(
        mode, lambda xp, x: tuple(xp.linalg.slogdet(x @ x.mT + xp.eye(x.shape[-2]))), x, rtol=1e-9
    )
    check(mode, lambda xp, x: xp.linalg.eigvalsh(x.mT @ x), x, rtol=1e-9)
    check(mode, lambda xp, x: xp.linalg.eigh(x.mT @ x).eigenvalues, x, rtol=1e-9)
    for whole in (True, False):
        check(mode, lambda xp, x, w=whole: tuple(xp.linalg.svd(x, full_matrices=w)), x, rtol=1e-9)
    for form in ("reduced", "complete"):
        check(mode, lambda xp, x, m=form: tuple(xp.linalg.qr(x, mode=m)), x, rtol=1e-9)


def test_rank_of_what_has_no_full_one(mode: str) -> None:
    x = TALL[0] @ np.diag([1.0, 0.0, 2.0])
    check(mode, lambda xp, x: (xp.linalg.matrix_rank(x), xp.linalg.pinv(x)), x, rtol=1e-9)
    check(mode, lambda xp, x: xp.linalg.matrix_rank(x, rtol=0.9), x)
    check(mode, lambda xp, x: tuple(xp.linalg.slogdet(x @ x.mT * 0)), x)
