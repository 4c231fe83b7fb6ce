"""E5: packed sequences of unequal lengths, separated by offsets.

However the offsets become a mask, attention is one kernel that visits only the tiles of a row's own
sequence; what turns offsets into ids works on positions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

Array = np.ndarray[Any, Any]
HEADS, DIM = 2, 16
LENGTHS = {
    "unequal": [100, 300, 17, 407, 200],
    "one": [1024],
    "ones and nothing": [1, 0, 1, 0, 0, 1021, 1],
    "primes": [2, 3, 5, 7, 11, 13, 983],
}


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    s = sm.matmul(q, sm.matrix_transpose(k)) * 0.25
    return sm.nn.softmax(sm.where(mask, s, -np.inf)) @ v


def positions(q: Any) -> Any:
    return sm.arange(q.shape[1])


def by_ids(q: Any, k: Any, v: Any, ids: Any) -> Any:
    return attend(q, k, v, ids[:, None] == ids[None, :])


def causal(q: Any, k: Any, v: Any, ids: Any) -> Any:
    p = positions(q)
    return attend(q, k, v, (ids[:, None] == ids[None, :]) & (p[None, :] <= p[:, None]))


def by_search(q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return by_ids(q, k, v, sm.searchsorted(offsets, positions(q), side="right"))


def by_counting(q: Any, k: Any, v: Any, offsets: Any) -> Any:
    return by_ids(q, k, v, sm.sum(sm.astype(positions(q)[:, None] >= offsets, sm.int32), axis=1))


def by_marks(q: Any, k: Any, v: Any, first: Any) -> Any:
    """A mark at the first position of each sequence, summed up."""
    return by_ids(q, k, v, sm.cumulative_sum(first))


def by_ends(q: Any, k: Any, v: Any, start: Any, stop: Any) -> Any:
    p = positions(q)
    return attend(q, k, v, (p[None, :] >= start[:, None]) & (p[None, :] < stop[:, None]))


def arrays_for(code: Callable[..., Any], lengths: list[int]) -> list[Array]:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    if code in (by_search, by_counting):
        return [offsets]
    if code is by_ends:
        return [offsets[ids], offsets[ids + 1]]
    if code is by_marks:
        return [np.append(1, np.diff(ids)).astype(np.int32)]
    return [ids.astype(np.int32)]


def wanted(code: Callable[..., Any], q: Array, k: Array, v: Array, lengths: list[int]) -> Array:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    mask = ids[:, None] == ids
    if code is causal:
        mask &= np.tri(len(ids), dtype=bool)
    s = np.where(mask, q.astype(np.float64) @ k.transpose(0, 2, 1) * 0.25, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("code", [by_ids, causal, by_search, by_counting, by_marks, by_ends])
def test_only_a_sequence_s_own_tiles_are_visited(code: Callable[..., Any]) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((HEADS, 1024, DIM)).astype(np.float32) for _ in range(3))
    f = sm.jit(code)
    for lengths in LENGTHS.values():
        inputs = arrays_for(code, lengths)
        np.testing.assert_allclose(
            np.asarray(f(q, k, v, *inputs)), wanted(code, q, k, v, lengths), rtol=1e-4, atol=1e-5
        )
    built = sm.explain(code, q, k, v, *arrays_for(code, LENGTHS["unequal"]))
    texts = [kernel.text for kernel in built.kernels]
    (attention,) = [t for t in texts if "stream" in t]
    (line,) = [s.strip() for s in attention.splitlines() if s.strip().startswith("stream")]
    assert " from " in line and " to " in line
    assert "where" in line or code is by_ends
    for other in texts:
        assert other is attention or "[n0,n1," not in other.partition("\n")[0]
