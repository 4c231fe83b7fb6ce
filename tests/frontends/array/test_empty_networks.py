"""Layers, gathers and linear algebra with an empty axis: compared with NumPy, or without fusion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import IndexRangeError, ShapeError, SmeltError

F = Callable[..., Any]
IMAGES = [(0, 4, 5, 6), (2, 0, 5, 6), (2, 4, 0, 6), (2, 4, 5, 0), (0, 4, 0, 0)]
SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 0)]


def leaves(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def run(f: F, *arrays: Any) -> Any:
    """The results, or the error."""
    try:
        return [np.asarray(x) for x in leaves(f(*arrays))]
    except SmeltError as error:
        return error


def agree(actual: Any, expected: Any) -> bool:
    """Whether both are the same results, or errors of a class."""
    if isinstance(expected, Exception):
        return type(actual) is type(expected)
    if isinstance(actual, Exception) or len(actual) != len(expected):
        return False
    pairs = zip(actual, expected, strict=True)
    return all(a.shape == b.shape and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def layers() -> dict[str, tuple[F, tuple[Any, ...]]]:
    """Calls of layers and their operands, by a text."""
    cases: dict[str, tuple[F, tuple[Any, ...]]] = {}
    for name in ("gelu", "log_softmax", "logsumexp", "mish", "relu", "rms_norm", "silu", "softmax"):
        for shape in SHAPES:
            cases[f"{name} {shape}"] = getattr(sm.nn, name), (np.ones(shape, np.float32),)
    for shape in IMAGES:
        x = np.ones(shape, np.float32)
        cases[f"group_norm {shape}"] = (lambda x: sm.nn.group_norm(x, 2)), (x,)
        channels = np.ones(shape[1], np.float32)
        cases[f"batch_norm {shape}"] = sm.nn.batch_norm, (x, channels, channels)
        for size in (1, 3, 7):
            cases[f"max_pool {shape} {size}"] = (lambda x, n=size: sm.nn.max_pool(x, n)), (x,)
            cases[f"avg_pool {shape} {size}"] = (lambda x, n=size: sm.nn.avg_pool(x, n)), (x,)
        cases[f"adaptive {shape}"] = (lambda x: sm.nn.adaptive_avg_pool(x, (2, 2))), (x,)
        cases[f"adaptive 0 {shape}"] = (lambda x: sm.nn.adaptive_max_pool(x, (0, 2))), (x,)
        cases[f"upsample {shape}"] = (lambda x: sm.nn.upsample(x, scale=2)), (x,)
        for filters, rows in product((0, 3), (0, 1, 3)):
            w = np.ones((filters, shape[1], rows, 3), np.float32)
            cases[f"conv {shape} {w.shape}"] = (lambda x, w: sm.nn.conv(x, w, padding=1)), (x, w)
            cases[f"conv_transpose {shape} {w.shape}"] = (
                (lambda x, w: sm.nn.conv_transpose(x, sm.matrix_transpose(sm.matrix_transpose(w)))),
                (x, w.swapaxes(0, 1)),
            )
    for heads, rows, keys, width in product((0, 1), (0, 3), (0, 5), (0, 4)):
        q, k = (np.ones((2, heads, n, width), np.float32) for n in (rows, keys))
        cases[f"attention {heads} {rows} {keys} {width}"] = (
            (lambda q, k: sm.nn.attention(q, k, k, causal=True)),
            (q, k),
        )
    for rows, classes in ((0, 3), (3, 0), (0, 0)):
        labels = np.zeros(rows, np.int64)
        cases[f"cross_entropy {rows} {classes}"] = (
            sm.nn.cross_entropy,
            (
                np.ones((rows, classes), np.float32),
                labels,
            ),
        )
    for name, (shape, count) in product(
        ("max", "mean", "min", "prod", "sum"), (((0,), 3), ((0, 3), 3), ((4, 0), 3), ((0,), 0))
    ):
        cases[f"segment_{name} {shape} {count}"] = (
            (lambda x, ids, name=name, n=count: getattr(sm, f"segment_{name}")(x, ids, n)),
            (np.ones(shape, np.float32), np.zeros(shape[0], np.int64)),
        )
    return cases


LAYERS = layers()


@pytest.mark.parametrize("part", range(4))
def test_layers_of_nothing_are_those_of_one_kernel_per_operator(part: int) -> None:
    for name in list(LAYERS)[part::4]:
        f, arrays = LAYERS[name]
        with sm.config(fuse=False):
            expected = run(f, *(sm.asarray(a) for a in arrays))
        assert agree(run(sm.jit(f), *arrays), expected), name


def test_attention_without_features_weighs_all_keys_alike() -> None:
    q, k, v = sm.ones((1, 3, 0)), sm.ones((1, 5, 0)), sm.arange(10.0).reshape(1, 5, 2)
    for actual in (sm.nn.attention(q, k, v), sm.jit(sm.nn.attention)(q, k, v)):
        np.testing.assert_allclose(actual, np.full((1, 3, 2), [4.0, 5.0]), rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_empty_image_has_no_pixels_to_resize(mode: Any) -> None:
    def resized(x: Any) -> Any:
        return sm.nn.upsample(x, (2, 2), mode=mode)

    for shape in ((2, 4, 0, 6), (2, 4, 5, 0)):
        for f in (resized, sm.jit(resized)):
            with pytest.raises((ShapeError, IndexRangeError)):
                np.asarray(f(sm.ones(shape)))


POSITIONS: dict[str, Any] = {
    "one": np.zeros(1, np.int64),
    "last": np.full(1, -1),
    "none": np.zeros(0, np.int64),
    "mask": None,
    "two": slice(0, 2),
    "back": slice(None, None, -1),
    "number": 0,
    "matrix of none": np.zeros((0, 2), np.int64),
    "columns": (slice(None), np.zeros(1, np.int64)),
    "no columns": (slice(None), np.zeros(0, np.int64)),
    "pair": (np.zeros(1, np.int64),) * 2,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_in_nothing(name: str) -> None:
    for shape in SHAPES:
        x = np.zeros(shape)
        where = np.ones(shape, bool) if name == "mask" else POSITIONS[name]
        try:
            expected: Any = [x[where]]
        except IndexError as error:
            expected = error
        forms: list[F] = [lambda x, where=where: x[where]]
        if name != "mask":  # the number of its elements is not a matter of shapes
            forms.append(sm.jit(forms[0]))
        for f in forms:
            actual = run(f, sm.asarray(x))
            assert agree(actual, expected) or (
                isinstance(expected, IndexError) and isinstance(actual, IndexError)
            ), (shape, actual)


PRODUCTS = [
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0,), (0,)),
    ((5, 0, 3), (3, 4)),
    ((2, 0), (0,)),
    ((0,), (0, 4)),
    ((4, 2, 0), (4, 0, 3)),
    ((0, 2, 3), (3, 2)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products_of_nothing(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = np.zeros(left), np.zeros(right)
    for f in (lambda m, a, b: a @ b, lambda m, a, b: m.exp((a + 1) @ b) * 2):
        assert agree(run(sm.jit(lambda a, b, f=f: f(sm, a, b)), a, b), [f(np, a, b)])
        assert agree(
            run(lambda a, b, f=f: f(sm, a, b), sm.asarray(a), sm.asarray(b)), [f(np, a, b)]
        )


MATRICES = ["cholesky", "det", "inv", "slogdet", "svdvals", "pinv", "qr", "svd", "matrix_rank"]


@pytest.mark.parametrize("name", [*MATRICES, "eigh", "eigvalsh"])
def test_linear_algebra_of_nothing(name: str) -> None:
    shapes = [(0, 0), (0, 3, 3), (2, 0, 0)]
    if name in ("svdvals", "pinv", "qr", "svd", "matrix_rank"):
        shapes += [(0, 3), (3, 0)]
    for shape in shapes:
        try:
            expected: Any = getattr(np.linalg, name)(np.zeros(shape))
        except (np.linalg.LinAlgError, ValueError):
            continue
        expected = [np.asarray(x) for x in leaves(expected)]
        actual = run(lambda x, name=name: getattr(sm.linalg, name)(x), sm.asarray(np.zeros(shape)))
        assert agree(actual, expected), (shape, actual)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms_of_nothing(order: Any) -> None:
    for shape in ((0, 3), (3, 0), (0, 0), (0, 2, 3), (2, 0, 3)):
        try:
            expected: Any = [np.linalg.matrix_norm(np.zeros(shape), ord=order)]
        except ValueError:
            continue
        actual = run(lambda x: sm.linalg.matrix_norm(x, ord=order), sm.asarray(np.zeros(shape)))
        assert agree(actual, expected), (shape, actual)
