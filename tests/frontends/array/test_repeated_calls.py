"""Calls with types and shapes that were seen before, which skip everything but running."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.frontends.array.test_native_calls import outcome, rng, warm
from tests.frontends.array.test_native_calls import pytestmark as native

import smelt as sm
from smelt import knobs


def test_the_order_in_memory_belongs_to_the_key() -> None:
    f = sm.jit(lambda x: x + 1)
    big = np.arange(100.0).reshape(10, 10)
    layouts = (
        big[:5, :5],
        np.asfortranarray(big[:5, :5]),
        big[::2, ::2],
        big[:5, 4::-1],
        np.broadcast_to(big[0, :5], (5, 5)),
    )
    for x in (*layouts, *layouts, *layouts[::-1]):
        np.testing.assert_array_equal(f(x), x + 1)
        np.testing.assert_array_equal(sm.jit(lambda t: t[0] + t[1])((x, 1.0)), x + 1)


class Pair(NamedTuple):
    a: Any
    b: Any


@native
@pytest.mark.parametrize("part", range(6))
def test_containers_and_keywords(part: int) -> None:
    def f(p: Any, x: Any = 1.0, *, scale: Any = 2.0) -> Any:
        parts = p.values() if isinstance(p, dict) else p
        return (
            sum(
                (k + 2) * (y[0] if isinstance(y, (list, tuple)) else y)
                for k, y in enumerate(parts)
                if y is not None
            )
            * scale
            + x
        )

    x, y, tail = rng.standard_normal(5), rng.standard_normal(5), "ale"
    z, one = sm.asarray(y) * 2, np.array(1.0)
    containers = [
        (x, y), [x, y], {"a": x, "b": y}, {"b": y, "a": x}, {"a": y, "c": x}, (x, y, x), [x],
        (x, [y, None]), (x, (z,)), {"a": [x], "b": None}, Pair(x, y), OrderedDict(a=x, b=y),
        (x, 3.0), (x, 3), (2, y), [x, True], (z, z), {"a": z, 3: x}, ((x,), (y,)), (x, y[:1]), (),
        (x, [one, x, y]), {}, [None, x], (x, y.astype("f4")), {"-".join("ab"): x},
    ]  # fmt: skip
    named: list[dict[str, Any]] = [
        {},
        {"scale": x},
        {"scale": 2.5},
        {"x": x, "scale": y},
        {"scale": y, "x": x},
        {"x": 4},
        {"x": z},
        {"scale": None},
        {"wrong": x},
        {"scale"[:2] + tail: x},
    ]
    quick, python = sm.jit(f), sm.jit(f)
    for p in containers[part::6]:
        for names in (named[0], *(named[k] for k in rng.integers(1, len(named), 2))):
            with knobs.config(native_calls=False):
                expected = outcome(functools.partial(python, **names), (p,))
            for _ in range(4):
                assert outcome(functools.partial(quick, **names), (p,)) == expected, (p, names)
    assert quick.line is not None


@native
def test_containers_are_looked_at_in_every_call() -> None:
    f = sm.jit(lambda p: p["w"] * p["more"][0] + p["more"][1])
    x, other = np.arange(4.0), np.ones(4)
    p = {"w": x, "more": [x, 2.0]}
    warm(f, p)
    references = sys.getrefcount(p), sys.getrefcount(p["more"]), sys.getrefcount(x)
    for _ in range(100):
        assert f(p).tolist() == (x * x + 2).tolist()
    assert (sys.getrefcount(p), sys.getrefcount(p["more"]), sys.getrefcount(x)) == references
    p["more"][1] = 5.0
    assert f(p).tolist() == (x * x + 5).tolist()
    p["w"] = other
    assert f(p).tolist() == (x + 5).tolist()
    p["more"].append(1.0)
    assert f(p).tolist() == (x + 5).tolist()
    p["more"] = (x, other)
    assert f(p).tolist() == (x + 1).tolist()
    del p["w"]
    with pytest.raises(KeyError):
        f(p)
    long = {str(k): x for k in range(300)}
    g = sm.jit(lambda p: p["0"] + p["299"])
    for _ in range(4):
        assert g(long).tolist() == (x + x).tolist()


@native
def test_arguments_are_not_kept() -> None:
    f = sm.jit(lambda p, x, *, y: p["w"][0] + x + y)
    arrays = [np.arange(1000.0) for _ in range(3)]
    dead = [weakref.ref(a) for a in arrays]
    for _ in range(5):
        f({"w": (arrays[0],)}, arrays[1], y=arrays[2])
    assert f.line is not None
    del arrays
    gc.collect()
    assert [r() for r in dead] == [None] * 3


def test_a_number_beyond_the_type_of_the_array_beside_it_is_refused() -> None:
    multiply = sm.jit(lambda x, n: x * n)
    x = np.arange(4, dtype=np.int32)
    for n in (3, 4, 2**31 - 1):
        np.testing.assert_array_equal(np.asarray(multiply(x, n)), x * np.int32(n))
    for n in (2**31, 2**40, -(2**31) - 1, 2**70):
        with pytest.raises(sm.errors.ArgumentError, match="int32"):
            multiply(x, n)
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(np.asarray(multiply(wide, 2**40)), wide * 2**40)
