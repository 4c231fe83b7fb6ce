"""Variants of attention in plain operators, with their masks and sizes.

>>> Case("causal", 10).pairs
55
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smelt.codegen.llvm.schedule.mask_ranges import FINE_ROW_GROUP, ROW_GROUP
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32

Array = np.ndarray[Any, Any]
Scores = Callable[..., Any]
WINDOW, DOCUMENTS, CAP = 256, 16, 30.0


@dataclass(frozen=True)
class Case:
    """Attention over `keys` positions: variant and sizes."""

    variant: str
    keys: int
    dim: int = 64
    heads: int = 12
    queries: int = 0
    """Number of queries if it differs from the number of keys."""
    group: int = 1
    """Query heads per head of keys (GQA)."""
    dtype: DType = f32

    @property
    def title(self) -> str:
        """The title of its row in the table."""
        queries = f"{self.queries} of " if self.queries else ""
        heads = f"{self.heads}/{self.heads // self.group}" if self.group > 1 else f"{self.heads}"
        dtype = "" if self.dtype == f32 else f", {self.dtype.long}"
        return f"{self.variant}, {heads} heads, {queries}{self.keys}×{self.dim}{dtype}"

    @property
    def rows(self) -> int:
        """Queries per head."""
        return self.queries or self.keys

    def keep_mask(self) -> Array | None:
        """Return the mask [queries, keys], true where visible; None if all keys are visible."""
        i, j = np.arange(self.rows)[:, None], np.arange(self.keys)
        match self.variant:
            case "causal" | "ALiBi, causal":
                return j <= i
            case "window":
                return (j <= i) & (i - j < WINDOW)
            case "documents":
                ids = documents(self.keys)
                return ids[:, None] == ids
            case _:
                return None

    @property
    def pairs(self) -> int:
        """Visible pairs of a query and a key in one head."""
        keep = self.keep_mask()
        return self.rows * self.keys if keep is None else int(keep.sum())


def visited_pairs(case: Case, columns: int) -> float:
    """Return the pairs of a head that are computed, on average over both products.

    A block of rows computes all tiles of `columns` columns of which one of its rows attends to
    any element, and sums over what its rows attend to.
    """
    keep = case.keep_mask()
    if keep is None:
        return case.pairs
    count = 0
    for rows, step in ((ROW_GROUP, columns), (FINE_ROW_GROUP, 1)):
        for first in range(0, case.rows, rows):
            seen = np.flatnonzero(keep[first : first + rows].any(axis=0))
            start, stop = int(seen[0]) // step * step, -(-int(seen[-1] + 1) // step) * step
            count += min(rows, case.rows - first) * (min(stop, case.keys) - start)
    return count / 2


def documents(n: int) -> Array:
    """Return the document number of each position: consecutive documents of different lengths."""
    ends = np.cumsum(np.random.default_rng(1).dirichlet(np.full(DOCUMENTS, 4.0)) * n)
    return np.searchsorted(ends, np.arange(n), side="right").astype(np.int64)


CASES = (
    *(Case(v, n) for v in ("plain", "causal") for n in (128, 512)),
    *(Case(v, n) for v in ("plain", "causal", "window", "documents") for n in (1024, 2048, 4096)),
    *(Case(v, 16384) for v in ("plain", "causal", "window")),
    Case("ALiBi, causal", 2048),
    Case("softcap", 2048),
    Case("plain", 2048, group=3),
    Case("causal", 2048, dim=128),
    Case("plain", 32768, heads=8, queries=1),
    Case("plain", 32768, heads=32, queries=1, group=4),
    *(Case(v, 2048, dim=d, dtype=bf16) for d in (64, 128) for v in ("plain", "causal")),
)


def plain(xp: Any, q: Any, k: Any, v: Any, variant: str, *more: Any) -> Any:
    """Compute attention in a namespace's operators.

    With groups, k and v are [heads, 1, keys, dim].
    """
    s = CHANGES[variant](xp, xp.matmul(q, xp.matrix_transpose(k)) * q.shape[-1] ** -0.5, *more)
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


def _positions(xp: Any, s: Any) -> tuple[Any, Any]:
    return xp.expand_dims(xp.arange(s.shape[-2]), axis=1), xp.arange(s.shape[-1])


def _causal(xp: Any, s: Any) -> Any:
    i, j = _positions(xp, s)
    return xp.where(j <= i, s, -xp.inf)


def _window(xp: Any, s: Any) -> Any:
    i, j = _positions(xp, s)
    return xp.where((j <= i) & (i - j < WINDOW), s, -xp.inf)


def _documents(xp: Any, s: Any, ids: Any) -> Any:
    return xp.where(xp.expand_dims(ids, axis=1) == ids, s, -xp.inf)


def _alibi(xp: Any, s: Any, slopes: Any) -> Any:
    i, j = _positions(xp, s)
    far = xp.astype(j - i, s.dtype) * xp.expand_dims(slopes, axis=(1, 2))
    return xp.where(j <= i, s + far, -xp.inf)


CHANGES: dict[str, Scores] = {
    "plain": lambda xp, s: s,
    "causal": _causal,
    "window": _window,
    "documents": _documents,
    "ALiBi, causal": _alibi,
    "softcap": lambda xp, s: CAP * xp.tanh(s / CAP),
}
"""The change of the scores of each variant."""


def arrays(case: Case) -> list[Array]:
    """Return q, k, v and the variant's further operands."""
    rng = np.random.default_rng(0)
    groups = case.heads // case.group
    lead = (groups, case.group) if case.group > 1 else (groups,)
    k = (groups, 1) if case.group > 1 else (groups,)
    shapes = [(*lead, case.rows, case.dim), *[(*k, case.keys, case.dim)] * 2]
    operands = [rng.standard_normal(s).astype(case.dtype.numpy) for s in shapes]
    if case.variant == "documents":
        operands.append(documents(case.keys))
    if case.variant == "ALiBi, causal":
        operands.append((2.0 ** -np.arange(1.0, case.heads + 1)).astype(np.float32))
    return operands
