"""Section F: losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import MACHINE, EveryRow
from tests.catalogue.rows import Row

import smelt as sm
from smelt import fusion, passes
from smelt.fusion.bitsets import Hints
from smelt.fusion.compose import total_kept_bytes
from smelt.journal.facts import Journal

MATRIX = {"r": 8192, "c": 4096}
INPUTS = ("T[r,c]", "i64[r] < c")


def each(xp, x, labels):
    top = xp.max(x, axis=1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(x - top), axis=1)) + top[:, 0]
    return total - xp.take_along_axis(x, labels[:, None], axis=1)[:, 0]


def mean(xp, x, labels):
    return xp.mean(each(xp, x, labels))


def shifted(xp, x, labels):
    """-log softmax at the labels, taken after shifting."""
    low = x - xp.max(x, axis=1, keepdims=True)
    hit = xp.take_along_axis(low, xp.expand_dims(labels, axis=1), axis=1)
    return xp.log(xp.sum(xp.exp(low), axis=1)) - hit[:, 0]


def gathered(xp, x, labels):
    """The label's logit by comparing places instead of by an index."""
    places = xp.arange(x.shape[1], dtype=xp.int64)
    low = x - xp.max(x, axis=1, keepdims=True)
    hit = xp.sum(xp.where(places == labels[:, None], low, 0), axis=1)
    return xp.log(xp.sum(xp.exp(low), axis=1)) - hit


def head(xp, h, w, labels):
    return each(xp, h @ w.T, labels)


def head_softcapped(xp, h, w, labels):
    return each(xp, 30 * xp.tanh((h @ w.T) / 30), labels)


def head_smoothed(xp, h, w, labels):
    z = h @ w.T
    top = xp.max(z, axis=1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(z - top), axis=1)) + top[:, 0]
    hit = xp.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return total - 0.9 * hit - 0.1 * xp.mean(z, axis=1) + 1e-4 * total * total


def head_and_hits(xp, h, w, labels):
    """The mean loss, and how many of the largest logits are those of the labels."""
    z = h @ w.T
    return mean(xp, z, labels), xp.sum(xp.astype(xp.argmax(z, axis=1) == labels, xp.int64))


def head_less_entropy(xp, h, w, labels):
    """Cross-entropy less a tenth of the entropy, each averaged by itself."""
    z = h @ w.T
    p = log_softmax(xp, z)
    return mean(xp, z, labels) - 0.1 * xp.mean(-xp.sum(xp.exp(p) * p, axis=1))


def log_softmax(xp, z):
    top = xp.max(z, axis=1, keepdims=True)
    return z - (xp.log(xp.sum(xp.exp(z - top), axis=1, keepdims=True)) + top)


def distill(xp, x, w, y, u):
    """Kullback-Leibler divergence of two heads, one sum over all tokens and words."""
    low, high = log_softmax(xp, x @ w.T), log_softmax(xp, y @ u.T)
    return xp.sum(xp.exp(high) * (high - low)) / x.shape[0]


def distill_in_parts(xp, x, w, y, u):
    """The same, probabilities by division, the share of either head for itself."""
    z, t = x @ w.T, y @ u.T
    low = z - xp.max(z, axis=-1, keepdims=True)
    low = low - xp.log(xp.sum(xp.exp(low), axis=-1, keepdims=True))
    high = t - xp.max(t, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(high), axis=-1, keepdims=True)
    p = xp.exp(high) / total
    return xp.sum(p * (high - xp.log(total)) - p * low) / x.shape[0]


def distill_by_rows(xp, x, w, y, u):
    """Distillation loss from the probabilities of either head, token by token."""
    z, t = x @ w.T, y @ u.T
    z, t = (a - xp.max(a, axis=1, keepdims=True) for a in (z, t))
    e = xp.exp(t)
    total = xp.sum(e, axis=1)
    mean = xp.sum(e * (t - z), axis=1) / total
    return xp.mean(mean - xp.log(total) + xp.log(xp.sum(xp.exp(z), axis=1)))


HEAD_INPUTS = ("T[r,k]", "T[c,k]", "i64[r] < c")
HEAD = {"r": 512, "k": 512, "c": 32000}

ROWS = (
    Row("F1", each, INPUTS, MATRIX, fused="s*(r*c + r) + 8*r", unfused="24*r*c + 110*r",
        bounded=True,
        also=(lambda xp, x, labels: xp.nn.cross_entropy(x, labels, reduction="none"),
              shifted, gathered)),
    Row("F1 mean", mean, INPUTS, MATRIX, fused="s*(r*c + 1) + 8*r", unfused="24*r*c + 114*r + 12",
        bounded=True,
        also=(lambda xp, x, labels: xp.nn.cross_entropy(x, labels),),
        # A sum of doubles carries its rounding error through all rows of a part, which is swept
        # whole by every loop: precision is worth more than the second sweep.
        other={"f64": {"sweeps": 2}}),
    Row("F2", head, HEAD_INPUTS, HEAD, fused="s*(r*k + c*k + r) + 8*r",
        unfused="4*r*k + 4*c*k + 42*r*c + 106*r", bounded=True, dtypes=("f64",),
        also=(lambda xp, x, w, labels: gathered(xp, x @ w.T, labels),
              lambda xp, x, w, labels: shifted(xp, x @ w.T, labels))),
    Row("F2 softcap", head_softcapped, HEAD_INPUTS, HEAD, fused="s*(r*k + c*k + r) + 8*r",
        unfused="4*r*k + 4*c*k + 66*r*c + 106*r", bounded=True, dtypes=("f64",), layouts=()),
    Row("F2 smoothed, z-loss", head_smoothed, HEAD_INPUTS, HEAD,
        fused="s*(r*k + c*k + r) + 8*r", unfused="4*r*k + 4*c*k + 46*r*c + 178*r", bounded=True,
        dtypes=("f64",), layouts=()),
    # What is summed up over all rows is a kernel of its own, of a few numbers for each row.
    Row("F2 hits", head_and_hits, HEAD_INPUTS, HEAD, fused="s*(r*k + c*k) + 32*r + 12",
        unfused="4*r*k + 4*c*k + 46*r*c + 152*r + 20", kernels=2, stored=("sub", "cast"),
        bounded=True, dtypes=(), layouts=()),
    Row("F2 less entropy", head_less_entropy, HEAD_INPUTS, HEAD,
        fused="s*(r*k + c*k + 1) + 24*r", unfused="4*r*k + 4*c*k + 74*r*c + 150*r + 44",
        kernels=2, stored=("sub", "neg"), bounded=True, dtypes=(), layouts=()),
    # A sum of doubles over all elements is carried in doubles: apart, it would round otherwise.
    Row("F4 divergence", distill, ("T[r,k]", "T[c,k]", "T[r,k]", "T[c,k]"), HEAD,
        fused="s*(2*r*k + 2*c*k + 1) + 16*r", unfused="8*r*k + 8*c*k + 124*r*c + 88*r + 28",
        kernels=2, bounded=True, dtypes=(), layouts=(), stored=("reduce.sum",),
        also=(distill_in_parts,)),
    Row("F4 divergence by rows", distill_by_rows, ("T[r,k]", "T[c,k]", "T[r,k]", "T[c,k]"), HEAD,
        fused="s*(2*r*k + 2*c*k + 1) + 8*r", unfused="8*r*k + 8*c*k + 84*r*c + 84*r + 12",
        kernels=2, bounded=True, dtypes=(), layouts=(), stored=("add",)),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section F."""


# ---- contrastive losses: each row and each column against all others ----------------------------


def by_sums(x: Any, y: Any, t: Any) -> Any:
    z = x @ sm.matrix_transpose(y) * t
    diagonal = sm.sum(x * y, axis=1) * t
    rows, columns = (sm.mean(sm.nn.logsumexp(z, axis=a) - diagonal) for a in (1, 0))
    return rows + columns


def by_labels(x: Any, y: Any, t: Any) -> Any:
    z, diagonal = t * (x @ y.T), sm.arange(x.shape[0])
    return (sm.nn.cross_entropy(z, diagonal) + sm.nn.cross_entropy(z.T, diagonal)) / 2


def dual(x: Any, y: Any, t: Any) -> Any:
    """Matches that both sides agree on."""
    z = x @ y.T * t
    return -sm.mean(sm.max(sm.nn.softmax(z, axis=0) * sm.nn.softmax(z, axis=1), axis=1))


@pytest.mark.parametrize("code", [by_sums, by_labels, dual])
def test_gradients_of_contrast_never_store_the_scores(code: Any) -> None:
    """F4 backward: sums over columns are made before, then rows in rounds."""
    x, t = np.ones((5, 3), np.float32), np.float32(1)
    graph = sm.jit(sm.value_and_grad(code, (0, 1, 2))).lower(x, x, t).trace.graph
    graph = passes.run(graph, Journal(), "eager")
    sizes = Hints({"n0": 16384, "n1": 512, "n2": 16384, "n3": 512})
    plan = fusion.plan(graph, MACHINE, None, sizes)
    assert plan.chunked_clusters
    assert total_kept_bytes(plan, sizes) < 16384 * 16384 * 4 // 4
