"""Corpus entries: a function of a namespace and arrays, with a maker of arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[Any], ...]
Maker = Callable[[np.random.Generator, int, Any], Arrays]


@dataclass(frozen=True)
class Program:
    """One program: `run(xp, *make(generator, n, dtype))` in any array namespace `xp`."""

    name: str
    make: Maker
    run: Callable[..., Any]


PROGRAMS: dict[str, Program] = {}


def program(make: Maker) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter the decorated function into the corpus."""

    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        assert run.__name__ not in PROGRAMS, f"two programs are called {run.__name__}"
        PROGRAMS[run.__name__] = Program(run.__name__, make, run)
        return run

    return enter


def normal(*shapes: tuple[int | str, ...]) -> Maker:
    """Standard normal arrays; a size is a number or a formula of n."""
    return _drawn(lambda rng, shape: rng.standard_normal(shape), shapes)


def positive(*shapes: tuple[int | str, ...]) -> Maker:
    """Arrays of numbers between 0.1 and 1.1."""
    return _drawn(lambda rng, shape: rng.random(shape) + 0.1, shapes)


def bits(*shapes: tuple[int | str, ...], dtype: Any = np.uint32) -> Maker:
    """Integers over the whole range of a type."""
    info = np.iinfo(dtype)

    def make(rng: np.random.Generator, n: int, _: Any) -> Arrays:
        return tuple(
            rng.integers(info.min, info.max, _sizes(s, n), dtype=dtype, endpoint=True)
            for s in shapes
        )

    return make


def _drawn(
    draw: Callable[[np.random.Generator, list[int]], Any], shapes: tuple[tuple[int | str, ...], ...]
) -> Maker:
    def make(rng: np.random.Generator, n: int, dtype: Any) -> Arrays:
        return tuple(np.asarray(draw(rng, _sizes(s, n)), dtype=dtype) for s in shapes)

    return make


def _sizes(shape: tuple[int | str, ...], n: int) -> list[int]:
    return [eval(d, {"n": n}) if isinstance(d, str) else d for d in shape]
