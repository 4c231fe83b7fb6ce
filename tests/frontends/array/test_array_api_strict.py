"""Compare signatures and drawn calls with array_api_strict.

Whatever the reference accepts is accepted, and gives the same dtype, shape and values.  Calls that
it refuses are ours to define, or to refuse with an error of our own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import smelt as sm
from smelt.types.dtype import COMPUTABLE

LATER = {"isin", "broadcast_shapes"}
"""Of the standard of 2025."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def functions() -> list[tuple[str, Any, Any]]:
    results: list[tuple[str, Any, Any]] = []
    for prefix, theirs, ours in (("", strict, sm), ("linalg.", strict.linalg, sm.linalg)):
        for name in theirs.__all__:
            f = getattr(theirs, name)
            if inspect.isfunction(f) and "strict_flags" not in name and name not in LATER:
                results.append((prefix + name, f, getattr(ours, name)))
    return results


@pytest.mark.parametrize(("name", "theirs", "ours"), functions(), ids=lambda x: x)
def test_positional_and_keyword_arguments_match_the_reference(
    name: str, theirs: Any, ours: Any
) -> None:
    mine = inspect.signature(ours).parameters
    places = [p.name for p in mine.values() if p.kind in POSITIONAL]
    for place, p in enumerate(inspect.signature(theirs).parameters.values()):
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            assert any(q.kind is p.kind for q in mine.values()), name
            continue
        if p.kind in POSITIONAL:
            assert place < len(places), f"{name}: {p.name} by place"
        if p.kind is not p.POSITIONAL_ONLY:
            assert p.name in mine, f"{name}: {p.name}"
            assert mine[p.name].kind is not p.POSITIONAL_ONLY, f"{name}: {p.name} by name"
            if mine[p.name].kind in POSITIONAL and p.kind in POSITIONAL:
                assert places[place] == p.name, f"{name}: {p.name} is argument {place}"


# Drawn calls

DTYPES = [d.long for d in COMPUTABLE if hasattr(strict, d.long)]
SHAPES = [(), (0,), (1,), (7,), (2, 3), (3, 0), (5, 1), (2, 3, 4), (1, 3, 1), (2, 0, 3)]
Draw = Callable[[np.random.Generator, tuple[int, ...]], dict[str, Any]]


def axis(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """None, an axis, or several, counted from either end; now and then one that is not there."""
    rank = len(shape)
    if rng.random() < 0.3 or not rank:
        return None
    if rng.random() < 0.5:
        return int(rng.integers(-rank, rank + (rng.random() < 0.1)))
    some = rng.permutation(rank)[: rng.integers(0, rank + 1)]
    return tuple(int(a) - rank * bool(rng.random() < 0.5) for a in some)


def one(rng: np.random.Generator, shape: tuple[int, ...]) -> int:
    return int(rng.integers(-len(shape), len(shape) + 1))


def reduction(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"axis": axis(rng, shape), "keepdims": bool(rng.random() < 0.5)}


def spread(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    return {**reduction(rng, shape), "correction": float(rng.choice([0, 0.5, 1, 3]))}


def scan(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"axis": one(rng, shape), "include_initial": bool(rng.random() < 0.5)}


def along(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"axis": one(rng, shape)}


def order(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, Any]:
    return {**along(rng, shape), "descending": bool(rng.random() < 0.5)}


CALLS: dict[str, Draw] = {
    **dict.fromkeys(
        ("sum", "prod", "max", "min", "mean", "all", "any", "count_nonzero"), reduction
    ),
    "std": spread,
    "var": spread,
    "cumulative_sum": scan,
    "cumulative_prod": scan,
    "argmax": along,
    "argmin": along,
    "sort": order,
    "argsort": order,
    "expand_dims": along,
    "squeeze": along,
    "unstack": along,
    "flip": lambda rng, s: {"axis": axis(rng, s)},
    "diff": lambda rng, s: {"axis": one(rng, s), "n": int(rng.integers(0, 4))},
    "roll": lambda rng, s: {"shift": int(rng.integers(-9, 9)), "axis": axis(rng, s)},
    "permute_dims": lambda rng, s: {"axes": tuple(int(a) for a in rng.permutation(len(s)))},
    "clip": lambda rng, s: {"min": int(rng.integers(-4, 2)), "max": int(rng.integers(1, 5))},
    "reshape": lambda rng, s: {"shape": (-1,) if rng.random() < 0.5 else s[::-1]},
    "tril": lambda rng, s: {"k": int(rng.integers(-3, 4))},
    "triu": lambda rng, s: {"k": int(rng.integers(-3, 4))},
}


def drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    values = rng.integers(0, 9, shape) - (0 if dtype.startswith("u") else 4)
    return np.asarray(values % 2 if dtype == "bool" else values, dtype)


def leaves(x: Any) -> list[Any]:
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def compare(call: Callable[[Any, Any], Any], x: np.ndarray[Any, Any], lazy: bool) -> None:
    """Same results as the reference's, unless it refuses; then ours is a result, or our error.

    Values are whole numbers up to 5: sums are exact; means and powers differ by few roundings."""
    with np.errstate(all="ignore"):
        try:
            wanted = leaves(call(strict, strict.asarray(x)))
        except (TypeError, ValueError, IndexError):
            wanted = []
    ours = sm.asarray(x)
    try:
        result = leaves(call(sm, ours) if lazy else sm.jit(lambda a: call(sm, a))(ours))
        got = [np.asarray(f) for f in result]
    except sm.errors.SmeltError:
        assert not wanted or not x.ndim  # NumPy takes axes 0 and -1 of rank 0
        return
    for w, f in zip(wanted, got, strict=True) if wanted else ():
        w = np.from_dlpack(w) if w.size else np.zeros(w.shape, str(w.dtype).split(".")[-1])
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        tolerance = 64 * np.finfo(f.dtype).eps if f.dtype.kind == "f" else 0
        np.testing.assert_allclose(f, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_drawn_calls_agree_with_the_reference(name: str) -> None:
    rng = np.random.default_rng(sum(name.encode()))
    for k in range(12):
        dtype, shape = str(rng.choice(DTYPES)), SHAPES[rng.integers(len(SHAPES))]
        options = CALLS[name](rng, shape)
        x = drawn(rng, dtype, shape)
        compare(lambda xp, a, o=options: getattr(xp, name)(a, **o), x, lazy=k % 4 > 0)


def key(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """An index of the standard: integers, slices with any bounds and steps, None and Ellipsis."""
    items: list[Any] = []
    for n in shape:
        if n and rng.random() < 0.35:
            items.append(int(rng.integers(-n, n)))
            continue
        ends, steps = [None, *range(-n - 1, n + 2)], [None, 1, 2, -1, -3]
        low, high = (ends[rng.integers(len(ends))] for _ in range(2))
        items.append(slice(low, high, steps[rng.integers(len(steps))]))
    if rng.random() < 0.3:
        items.insert(int(rng.integers(0, len(items) + 1)), None)
    elif rng.random() < 0.4:
        at = int(rng.integers(0, len(items) + 1))
        items[at : int(rng.integers(at, len(items) + 1))] = [...]
    return tuple(items)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_drawn_indices_agree_with_the_reference(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape) + sum(shape))
    for k in range(8):
        x, at = drawn(rng, str(rng.choice(DTYPES)), shape), key(rng, shape)
        mask = drawn(rng, "bool", shape)

        def written(xp: Any, a: Any, at: Any = at) -> Any:
            a = xp.asarray(a, copy=True)
            a[at] = xp.astype(a[at] + 1, a.dtype) if a.dtype != xp.bool else True
            return a

        def chosen(xp: Any, a: Any, mask: Any = mask) -> Any:
            a = xp.asarray(a, copy=True)
            a[xp.asarray(mask)] = False if a.dtype == xp.bool else 0
            return a

        compare(lambda xp, a, at=at: a[at], x, lazy=k % 3 > 0)
        compare(written, x, lazy=k % 3 > 0)
        compare(chosen, x, lazy=k % 3 > 0)
        compare(lambda xp, a, mask=mask: a[xp.asarray(mask)], x, lazy=True)
