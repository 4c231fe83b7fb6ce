"""Arrays for random programs: plain numbers first (hypothesis shrinks towards them), then edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.types.dtype import DType

Array = np.ndarray[Any, Any]

FLAVOURS = ("counting", "uniform", "normal", "wide", "special")
"""From easy to nasty.  All but `special` are finite and free of NaN."""


def array(dtype: DType, shape: tuple[int, ...], flavour: str, seed: int) -> Array:
    """An array of the given type, the same one for the same arguments."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "bool":
        flat = np.arange(count) % 2 == 0 if flavour == "counting" else rng.random(count) < 0.5
    elif dtype.is_integer:
        flat = _integers(dtype, count, flavour, rng)
    else:
        flat = _floats(dtype, count, flavour, rng)
    return flat.astype(dtype.numpy).reshape(shape)


def _integers(dtype: DType, count: int, flavour: str, rng: np.random.Generator) -> Array:
    info = np.iinfo(dtype.numpy)
    if flavour == "counting":
        return np.arange(count) % 7
    if flavour in ("uniform", "normal"):
        return rng.integers(0 if info.min == 0 else -9, 10, count)
    values = rng.integers(info.min, info.max, count, dtype=dtype.numpy, endpoint=True)
    if flavour == "special":
        edges = np.array([info.min, info.max, 0, 1, info.max - 1], dtype.numpy)
        values = np.where(rng.random(count) < 0.3, edges[rng.integers(0, 5, count)], values)
    return values


def special_floats(dtype: DType) -> Array:
    """Both zeros, ones, infinities, NaN, subnormals and the largest number of a type."""
    tiny = {"f16": 6e-8, "bf16": 1e-40, "f32": 1e-45, "f64": 5e-324}[dtype.name]
    huge = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028235e38, "f64": 1.797e308}[dtype.name]
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, 0.5, 2.0]
    with np.errstate(all="ignore"):
        return np.array(values).astype(dtype.numpy)


def _floats(dtype: DType, count: int, flavour: str, rng: np.random.Generator) -> Array:
    if flavour == "counting":
        return np.arange(count) % 7 / 2 - 1
    if flavour == "uniform":
        return rng.uniform(-2, 2, count)
    normal = rng.standard_normal(count)
    if flavour == "normal":
        return normal
    if flavour == "wide":
        return normal * 2.0 ** rng.integers(-12, 8, count)
    edges = special_floats(dtype).astype(np.float64)
    picked = edges[rng.integers(0, len(edges), count)]
    return np.where(rng.random(count) < 0.25, picked, normal)
