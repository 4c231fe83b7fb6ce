"""Measure how far correct runs of a kernel may differ, with every rounding disturbed.

>>> kernel = parse("kernel f(x: f32[n]) -> y: f32[n]\\n  grid n/64\\n  y[n] = x[n] * 0.1")
>>> bool(spread(kernel, {"x": np.ones(3, "f4")}, {})["y"].max() < 1e-4)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
from tests.property.oracles import DISTURBANCE_ULP, FACTOR

from smelt.kernel.evaluate import Evaluator, Tile
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse

Array = np.ndarray[Any, Any]
RUNS = 4
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_COMPUTED = ("apply", "_reduce", "_scan", "_dot")


def _moved(a: Array, rng: np.random.Generator) -> Array:
    eps = _EPS.get(str(a.dtype))
    if eps is None:
        return a
    noise = rng.integers(-DISTURBANCE_ULP, DISTURBANCE_ULP + 1, a.shape) * (eps / 2)
    with np.errstate(all="ignore"):
        return np.asarray(a.astype(np.longdouble) * (1 + noise)).astype(a.dtype)


def _wrapped(method: Any, rng: np.random.Generator) -> Any:
    def call(self: Evaluator, *args: Any) -> Tile:
        tile = method(self, *args)
        return Tile(tile.axes, tile.start, _moved(np.asarray(tile.data), rng))

    return call


def spread(
    kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int], **settings: Any
) -> dict[str, Array]:
    """Tolerances, element by element of every output; `settings` are those of the interpreter."""
    exact = run(kernel, arrays, sizes, **settings)
    results = {name: np.zeros(np.shape(a)) for name, a in exact.items()}
    rng = np.random.default_rng(1)
    for _ in range(RUNS):
        changed = {m: _wrapped(getattr(Evaluator, m), rng) for m in _COMPUTED}
        moved = {name: _moved(a, rng) for name, a in arrays.items()}
        with mock.patch.multiple(Evaluator, **changed), np.errstate(all="ignore"):
            for name, a in run(kernel, moved, sizes, **settings).items():
                off = np.abs(a.astype("f8") - exact[name].astype("f8"))
                results[name] = np.maximum(results[name], np.where(np.isnan(off), np.inf, off))
    out: dict[str, Array] = {}
    for name, a in exact.items():
        eps = _EPS.get(str(a.dtype), 0.0)
        with np.errstate(all="ignore"):
            magnitude = np.where(np.isfinite(a.astype("f8")), np.abs(a.astype("f8")), 0.0)
        out[name] = FACTOR * results[name] + magnitude * eps * DISTURBANCE_ULP
        out[name] = out[name] + (float(np.finfo(np.float32).tiny) if eps else 0.0)
    return out


__all__ = ["parse", "spread"]
