"""Programs of which each release leaves a file in `golden`, for later versions to load.

python -m tests.saved.golden_programs       # writes the file of this version
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import smelt as sm
from smelt.packages.version import __version__

FOLDER = Path(__file__).parent / "golden"
RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.standard_normal((24, 8)).astype(np.float32)
ROWS = RANDOM.standard_normal((5, 24)).astype(np.float32)
BIAS = RANDOM.standard_normal(8).astype(np.float32)
IDS = np.array([3, 0, 3, 1])


class Pair(NamedTuple):
    """Results by name."""

    left: Any
    right: Any


def layer(x: Any, bias: Any, *, scale: float = 2.0) -> Any:
    """Compute a layer, whose weights are a constant, and its sums."""
    y = sm.nn.softmax(x @ sm.asarray(WEIGHTS) + bias, axis=-1) * scale
    return {"y": y, "sums": (sm.sum(y, axis=0), x.shape[0])}


def running(x: Any) -> Any:
    """Compute a recurrence, which is a loop."""
    _, states = sm.scan(lambda c, row: (c * 0.5 + row,) * 2, sm.zeros(24, dtype=sm.float32), x)
    return states


def look_up(table: Any, ids: Any) -> Any:
    """Gather rows, and sort a part of them, which NumPy does."""
    return Pair(table[ids], sm.sort(table[0]))


def _layer(x: Any, bias: Any) -> Any:
    scores = np.exp(x @ WEIGHTS + bias)
    y = scores / scores.sum(-1, keepdims=True) * np.float32(2)
    return {"y": y, "sums": (y.sum(0), x.shape[0])}


def _running(x: Any) -> Any:
    states, carry = [], np.zeros(24, np.float32)
    for row in x:
        carry = carry * np.float32(0.5) + row
        states.append(carry)
    return np.stack(states)


class Case(NamedTuple):
    """A program, its arguments and specs, and what NumPy makes of the arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[str, ...]
    reference: Callable[..., Any]


CASES = {
    "layer": Case(layer, (ROWS, BIAS), ("f32[5,24]", "f32[8]"), _layer),
    "running": Case(running, (ROWS,), ("f32[n,24]",), _running),
    "look_up": Case(
        look_up, (ROWS, IDS), ("f32[n,24]", "i64[k]"), lambda t, i: (t[i], np.sort(t[0]))
    ),
}


def write() -> Path:
    """Write the file of this version."""
    programs = {name: (c.function, [sm.spec(s) for s in c.specs]) for name, c in CASES.items()}
    path = FOLDER / f"{__version__}.smelt"
    sm.save(programs, path, isa="portable")
    return path


if __name__ == "__main__":
    print(write())
