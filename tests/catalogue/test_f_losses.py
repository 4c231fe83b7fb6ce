"""Section F: losses."""

from __future__ import annotations

from tests.catalogue.harness import EveryRow
from tests.catalogue.rows import Row

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


def picked(xp, x, labels):
    """The label's logit by comparing places instead of by an index."""
    places = xp.arange(x.shape[1], dtype=xp.int64)
    low = x - xp.max(x, axis=1, keepdims=True)
    hit = xp.sum(xp.where(places == labels[:, None], low, 0), axis=1)
    return xp.log(xp.sum(xp.exp(low), axis=1)) - hit


TASK = (
    "a part of the split rows is swept whole by every loop, 128 rows of 16 KB twice, instead of"
    " row by row (schedule in codegen/llvm/nests.py)"
)

ROWS = (
    Row("F1", each, INPUTS, MATRIX, fused="s*(r*c + r) + 8*r", unfused="24*r*c + 142*r",
        bounded=True,
        also=(lambda xp, x, labels: xp.nn.cross_entropy(x, labels, reduction="none"),
              shifted, picked)),
    Row("F1 mean", mean, INPUTS, MATRIX, fused="s*(r*c + 1) + 8*r", unfused="24*r*c + 146*r + 12",
        bounded=True,
        also=(lambda xp, x, labels: xp.nn.cross_entropy(x, labels),),
        short={"plan": TASK, "plan_layout": ""}),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section F."""
