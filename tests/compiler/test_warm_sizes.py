"""Cached plans of other sizes: offered only to callers that accept them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.compiler.test_warm import RELU, again, folder, next_process

from smelt.compiler import driver, warm
from smelt.compiler.warm import CachedProgram
from smelt.graph.text import parse
from smelt.runtime.cache import Cache

__all__ = ["folder"]


def near(serves: Callable[[CachedProgram], bool], **hints: int) -> Any:
    next_process()
    return warm.compile(parse(RELU), hints=hints, near=serves)


def test_a_plan_for_other_sizes_is_found_where_it_will_do() -> None:
    """Without planning; it says what it was made for, and is right for the sizes at hand."""
    first = near(lambda _: False, n=1000)
    actual = near(lambda plan: plan.program.hints == {"n": 1000}, n=300)
    assert not isinstance(first, CachedProgram) and isinstance(actual, CachedProgram)
    assert actual.program.hints == {"n": 1000}
    x, b = np.random.default_rng(0).random((2, 300), dtype=np.float32)
    (y,) = actual.run([x, b], (300,))
    np.testing.assert_allclose(y, np.log(np.maximum(x + b, 0)), rtol=1e-6)
    assert "_recompiled" not in vars(actual)


def test_a_plan_for_other_sizes_is_offered_to_its_program_only() -> None:
    queries: list[dict[str, int]] = []

    def refuse(plan: CachedProgram) -> bool:
        queries.append(dict(plan.program.hints))
        return False

    assert not any(isinstance(near(refuse, n=n), CachedProgram) for n in (1000, 2000, 4000))
    assert isinstance(near(refuse, n=2000), CachedProgram)
    assert queries == [
        {"n": 1000},
        {"n": 2000},
        {"n": 1000},
    ]  # the latest first; equal sizes need not
    assert not isinstance(again(n=3000), CachedProgram)  # who does not ask gets a plan of his own


def test_what_is_known_of_other_sizes_may_be_damaged(folder: Path) -> None:
    near(lambda _: True, n=1000)
    store = Cache.default()
    parts = warm._key_parts(warm.Program(parse(RELU), {"n": 1000}), {}, (), driver.host())  # pyright: ignore[reportPrivateUsage]
    assert parts is not None
    kinds: list[Any] = [7, [[]], [[{"n": 5}, [1]]], [["n", None]], [[{"n": "x"}, None]]]
    for k, damaged in enumerate(kinds):
        store.put(warm._family_key(parts), {"made for": damaged}, b"")  # pyright: ignore[reportPrivateUsage]
        assert not isinstance(near(lambda _: True, n=2000 + k), CachedProgram)
