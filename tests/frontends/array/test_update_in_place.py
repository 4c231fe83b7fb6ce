"""Updates of donated arrays and of `out=` write the part that changes, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.written_pages import Array, untouched, written_bytes

import smelt as sm
from smelt.errors import SmeltError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts pages by /proc")

SHAPE = (2, 4, 512, 64)
PAGE = 4096
ALL = slice(None)
HOW: dict[str, Callable[..., Any]] = {
    "set": lambda a, key, v: a.__setitem__(key, v),
    "add": np.add.at,
    "multiply": np.multiply.at,
    "max": np.maximum.at,
}


def drawn_key(random: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> tuple[Any, ...]:
    """Draw an index that mixes integers, slices, index arrays and new axes."""
    count = int(random.integers(0, 3))
    key: list[Any] = []
    for axis, n in enumerate(shape):
        kind = random.choice(["all", "all", "int", "range", "step", "array", "array"])
        at = int(random.integers(-n, n))
        if kind == "all":
            key.append(ALL)
        elif kind == "int":
            key.append(at)
        elif kind == "range":
            key.append(slice(max(at, 0), max(at, 0) + int(random.integers(0, 4))))
        elif kind == "step":
            key.append(slice(None, None, int(random.choice([-1, 2, -3]))))
        else:
            key.append(random.integers(-n, n, count))
        if random.random() < 0.1:
            key.append(None)
        if axis and random.random() < 0.1:
            return tuple(key)
    return tuple(key)


def update(key: Any, how: str) -> Callable[..., Any]:
    return lambda c, v: getattr(c.at[key], how)(v)


def check(key: Any, how: str, dtype: str, values: Array, *, spans: bool = False) -> None:
    """Compare elements and written pages with what NumPy's own update does."""
    want = untouched(SHAPE, dtype)
    HOW[how](want, key, values.astype(dtype))
    budget = written_bytes(want)
    if spans:  # between the steps of a slice, elements may be written again
        touched = np.flatnonzero(index_of(key))
        budget = max(budget, (np.ptp(touched) + 1) * want.itemsize + PAGE) if touched.size else 0
    for mode in ("donate", "out"):
        got = untouched(SHAPE, dtype)
        if mode == "out":
            y: Any = sm.jit(update(key, how))(got, values, out=got)
        else:
            y = np.asarray(sm.jit(update(key, how), donate=0)(got, values))
        assert np.shares_memory(y, got), (mode, key, how)
        assert np.array_equal(got, want), (mode, key, how)
        assert written_bytes(got) <= budget, (mode, key, how, written_bytes(got), budget)


def index_of(key: Any) -> Array:
    mask = np.zeros(SHAPE, bool)
    mask[key] = True
    return mask.reshape(-1)


def has_steps(key: tuple[Any, ...]) -> bool:
    return any(isinstance(k, slice) and abs(k.step or 1) > 1 for k in key)


def sweep(seed: int) -> None:
    random = np.random.default_rng(seed)
    key = drawn_key(random)
    how = str(random.choice([*HOW]))
    dtype = str(random.choice(["f4", "f4", "f2", "i1", "i8", "f8"]))
    part = np.empty(SHAPE, "b1")[key]
    shape = part.shape if random.random() < 0.7 else ()
    values = np.asarray(random.integers(0, 9, shape), "i1" if dtype[0] == "i" else "f2")
    check(key, how, dtype, values, spans=has_steps(key))


@pytest.mark.parametrize("seed", range(24))
def test_drawn_updates_write_what_numpy_writes(seed: int) -> None:
    sweep(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(24, 600))
def test_more_drawn_updates_write_what_numpy_writes(seed: int) -> None:
    sweep(seed)


def assigned(c: Any, k: Any, p: Any) -> Any:
    c[0, :, p] = k[0]
    return c


CACHE: dict[str, Callable[..., Any]] = {
    "b, :, p": lambda c, k, p: c.at[1, :, p].set(k[0]),
    "b, h, p": lambda c, k, p: c.at[1, 2, p].set(k[0, 0]),
    ":, :, p": lambda c, k, p: c.at[:, :, p].set(k),
    "negative": lambda c, k, p: c.at[1, :, p - 500].add(k[0]),
    "positions": lambda c, k, p: c.at[:, :, sm.asarray([3, 5, 3]) + p].set(k[:, :, None]),
    "rows apart": lambda c, k, p: c.at[sm.asarray([0, 1]), :, sm.stack([p, p + 7])].set(k),
    "two writes": lambda c, k, p: c.at[:, :, 5].set(k).at[:, 1:3, 9].set(0),
    "item assignment": assigned,
}


@pytest.mark.parametrize("name", CACHE)
def test_a_cache_is_appended_to_in_place(name: str) -> None:
    k = np.random.default_rng(0).random((2, 4, 64)).astype("f4")
    f = sm.jit(CACHE[name], donate=0)
    fresh = np.asarray(sm.jit(CACHE[name])(np.zeros(SHAPE, "f4"), k, np.int64(7)))
    for _ in range(2):  # the second call is a recorded one
        cache = untouched(SHAPE, "f4")
        y = np.asarray(f(cache, k, np.int64(7)))
        assert np.shares_memory(y, cache) and np.array_equal(y, fresh)
        assert written_bytes(cache) <= 32 * PAGE, written_bytes(cache)


def test_bad_positions_leave_out_as_it_is() -> None:
    cache, k = np.zeros(SHAPE, "f4"), np.ones((2, 4, 64), "f4")
    f = sm.jit(lambda c, k, p: c.at[:, :, p].set(k))
    f(cache, k, np.int64(3), out=cache)
    assert cache.sum() == k.size
    before = cache.copy()
    for _ in range(2):
        with pytest.raises(SmeltError, match="512"):
            f(cache, k, np.int64(512), out=cache)
        assert np.array_equal(cache, before)
