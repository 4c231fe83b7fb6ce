"""`report.why` says how dependent reductions are carried, or why they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.explain.test_refusals import Case, report
from tests.fusion.cascades import central, mid, norm, of_softmax, top, total

import smelt as sm

LONG = ((64, 1 << 20),)
LOGITS = ((512, 768), (768, 32000))
HEADS = ((2, 4096, 64),) * 3
AGAIN = ("needs the last", "is visited again", "cannot be corrected through")


def attention(weights: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda q, k, v: weights(sm.matmul(q, sm.matrix_transpose(k))) @ v


CASES = [
    Case("softmax", sm.nn.softmax, LONG, ("reduce.max", "reduce.sum"), "F113",
         ("sum#4 is carried block by block along", "1,048,576 positions",
          "while max#0 still changes", "what was summed is rescaled at every change",
          "in one kernel of")),
    Case("log-sum-exp", lambda x: sm.nn.logsumexp(x, axis=-1), LONG, ("reduce.max", "reduce.sum"),
         "F113", ("rescaled",)),
    Case("Gini of logits", lambda x, w: of_softmax(lambda q: q * q)(x @ w), LOGITS,
         ("reduce.sum#5", "reduce.sum#9"), "F113", ("applied once, at the end",)),
    Case("logits", lambda x, w: sm.nn.logsumexp(x @ w, axis=-1), LOGITS,
         ("contract", "reduce.max"), "F111", ("used up block by block", "32,000 positions")),
    Case("powers of a softmax", of_softmax(lambda q: q**2.5), LONG, ("reduce.max", "reduce.sum#8"),
         "F113", ("rescaled",)),
    Case("about the mean", lambda x: total(sm.exp(x - mid(x))), LONG,
         ("reduce.sum#0", "reduce.sum#6"), "F113", ("sum#0 still changes",)),
    Case("attention", attention(sm.nn.softmax), HEADS, ("reduce.sum", "contract#8"), "F113",
         ("matmul#8 is carried", "4,096 positions")),
    Case("attention, its scores", attention(sm.nn.softmax), HEADS, ("contract#0", "reduce.max"),
         "F111", ("matmul#0 is used up", "as its rows are made")),
    Case("rounded attention", attention(lambda s: sm.round(sm.nn.softmax(s) * 255)), HEADS,
         ("reduce.sum", "contract#10"), "F114", (*AGAIN, "round")),
    Case("attention by sigmoids", attention(lambda s: sm.sigmoid(s - top(s))), HEADS,
         ("reduce.max", "contract#5"), "F114", (*AGAIN, "sigmoid")),
    Case("sparse attention", attention(lambda s: sm.maximum(s - top(s) + 1, 0.0) ** 2), HEADS,
         ("reduce.max", "contract#7"), "F114", (*AGAIN, "max")),
    Case("entropy by logarithms", of_softmax(lambda q: q * sm.log(q)), LONG,
         ("reduce.sum#4", "reduce.sum#9"), "F114", (*AGAIN, "log")),
    Case("tanh about the mean", lambda x: total(sm.tanh(x - mid(x))), LONG, ("div", "sub"), "F108",
         ("a row of 4,194,304 bytes stays in L3 and is swept 2 times",)),
    Case("a long variance", central(2), LONG, ("div", "sub"), "F111",
         ("div#3 is used up block by block", "as its rows are made")),
    Case("a norm of order 2.5", norm(2.5), LONG, ("reduce.max", "div"), "F108", ("faster",)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_cascade_is_explained(case: Case) -> None:
    answer = report(case).why(*case.ask)
    text = str(answer)
    print(text)
    assert answer.together
    assert case.reason in answer.reasons, text
    assert "?" not in text and " 0 ns" not in text
    for word in case.words:
        assert word in text, text
