"""Random programs: drops, reads, views and writes at any point give what NumPy gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm

Step = Callable[[Any, Any, Any], Any]


def halves(xp: Any, x: Any) -> Any:
    return xp.reshape(x, (x.shape[0], 2, x.shape[1] // 2)) if x.shape[1] % 2 == 0 else x[:, None, :]


STEPS: dict[str, Step] = {
    "add": lambda xp, x, y: x + y,
    "scale": lambda xp, x, y: x * 0.25 - 3,
    "row": lambda xp, x, y: x - y[0],
    "column": lambda xp, x, y: x * y[:, :1],
    "tanh": lambda xp, x, y: xp.tanh(x),
    "max": lambda xp, x, y: xp.maximum(x, y),
    "where": lambda xp, x, y: xp.where(x > y, x, -y),
    "centre": lambda xp, x, y: x - xp.mean(x, axis=1, keepdims=True),
    "softmax": lambda xp, x, y: xp.exp(x - xp.max(x, axis=1, keepdims=True)),
    "total": lambda xp, x, y: xp.sum(x, axis=0) + y,
    "running": lambda xp, x, y: xp.cumulative_sum(x, axis=1) * 0.1,
    "flip": lambda xp, x, y: xp.flip(x, axis=1),
    "roll": lambda xp, x, y: xp.roll(x, 1, axis=0),
    "turn": lambda xp, x, y: xp.permute_dims(xp.permute_dims(x, (1, 0)) + 1, (1, 0)),
    "there and back": lambda xp, x, y: xp.reshape(xp.reshape(x, (-1,)) * 2, x.shape),
    "halves": lambda xp, x, y: xp.reshape(xp.sin(halves(xp, x)), x.shape),
    "shift": lambda xp, x, y: xp.concat([x[1:], y[:1]]),
    "every other": lambda xp, x, y: xp.concat([x[::2], y[1::2]]),
    "gram": lambda xp, x, y: (x @ xp.permute_dims(y, (1, 0))) @ x * 0.01,
    "pick": lambda xp, x, y: xp.take(x, xp.argmax(y, axis=1) * 0, axis=0) + y,
    "count": lambda xp, x, y: x + xp.arange(x.shape[1]) / x.shape[0],
}


def run(xp: Any, steps: list[Any], x: Any, y: Any) -> list[Any]:
    """Every step makes a new array of the same shape from two of the last four."""
    kept = [x, y]
    for name, a, b in steps:
        recent = kept[-4:]
        kept.append(STEPS[name](xp, recent[a % len(recent)], recent[b % len(recent)]))
    return kept[2:]


steps_of = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)
shapes_of = st.tuples(st.integers(1, 5), st.integers(1, 6))


def data(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(shape)
    return rng.standard_normal(shape), rng.standard_normal(shape)


def same(actual: Any, wanted: Any) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(steps_of, shapes_of, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_lazily(steps: Any, shape: Any, read: set[int], dropped: set[int]) -> None:
    x, y = data(shape)
    wanted = run(np, steps, x, y)
    kept: list[Any] = [sm.asarray(x), sm.asarray(y)]
    for k, (name, a, b) in enumerate(steps):
        recent = kept[-4:]
        kept.append(STEPS[name](sm, recent[a % len(recent)], recent[b % len(recent)]))
        if k in read:
            same(kept[-1], wanted[k])
    held = [None if k in dropped else array for k, array in enumerate(kept[2:])]
    del kept
    for k, array in reversed(list(enumerate(held))):
        if array is not None:
            same(array, wanted[k])


@settings(max_examples=30, deadline=None)
@given(steps_of, st.lists(shapes_of, min_size=1, max_size=3))
def test_jitted_for_several_shapes(steps: Any, shapes: Any) -> None:
    f = sm.jit(lambda x, y: run(sm, steps, x, y))
    for shape in shapes:
        x, y = data(shape)
        for actual, wanted in zip(f(x, y), run(np, steps, x, y), strict=True):
            same(actual, wanted)


WRITES: dict[str, Callable[[Any, Any], None]] = {
    "row": lambda x, v: x.__setitem__(0, v[-1]),
    "box": lambda x, v: x.__setitem__((slice(1, None), slice(0, 2)), v[1:, :2]),
    "steps": lambda x, v: x.__setitem__(slice(None, None, 2), 0.5),
    "mask": lambda x, v: x.__setitem__(x > 0.5, -1.0),
    "positions": lambda x, v: x.__setitem__(([0, -1],), v[0]),
    "add": lambda x, v: x.__iadd__(v),
    "scale": lambda x, v: x.__imul__(0.5),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(WRITES)), min_size=1, max_size=4), shapes_of)
def test_writes_make_versions(names: list[str], shape: Any) -> None:
    x, v = data(shape)
    ours, value = sm.asarray(x, copy=True), sm.asarray(v)
    seen: list[tuple[Any, np.ndarray]] = []
    for name in names:
        seen.append((ours * 2, x * 2))
        WRITES[name](x, v)
        WRITES[name](ours, value)
    same(ours, x)
    for actual, wanted in seen:
        same(actual, wanted)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_walk_over_sizes_compiles_few_times(name: str) -> None:
    f = sm.jit(lambda x, y: STEPS[name](sm, x, y))
    for n in (*range(2, 9), 17, 31, 64):
        x, y = data((n, n + 1))
        same(f(x, y), STEPS[name](np, x, y))
    assert sum(len(traces) for traces in f.traces.values()) <= 4
