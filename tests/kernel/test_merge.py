"""Split streams: derived merges equal the stream in one piece, and nothing else is derived."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import VerifyError
from smelt.kernel.interp import run
from smelt.kernel.ir import Ref
from smelt.kernel.merge import merge_rules
from smelt.kernel.text import parse, value_text

SPLIT = """kernel k(x: f32[n]) -> y: f32[]
  grid p in split(n, {parts})
  stream n/{block} of p with {states}
    {body}
  merge p: ({names})
  y[] = {result}"""


def source(parts: int = 4, block: object = 2, **parts_of: str) -> str:
    return SPLIT.format(parts=parts, block=block, **parts_of)


TOTAL = "sum(x[n] over n)"
SOFTMAX = {
    "states": "m = -inf, l = 0, e = 0",
    "names": "m, l, e",
    "result": "m + log(l) - e / l",
    "body": """t = x[n]
    m' = max(m, max(t over n))
    c = exp(m - m')
    w = exp(t - m')
    l' = l * c + sum(w over n)
    e' = c * e + sum(w * t over n)""",
}
POLYNOMIAL = {
    "states": "s = 0, q = 0, top = -inf, low = inf",
    "names": "s, q, top, low",
    "result": "(q - s * s / size(n)) / (top - low)",
    "body": """s' = s + sum(x[n] over n)
    q' = sum(x[n] * x[n] over n) + q
    top' = max(top, max(x[n] over n))
    low' = min(min(x[n] over n), low)""",
}


@pytest.mark.parametrize("states", [SOFTMAX, POLYNOMIAL], ids=["softmax", "polynomial"])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_merge_to_the_whole(states, length, parts):
    data = np.random.default_rng(length).standard_normal(length).astype(np.float32) * 3
    if length == 1 and states is POLYNOMIAL:
        data = np.array([1.0], np.float32)
    kernel = parse(source(parts, **states))
    whole = source(1, "all", **states)
    wanted = run(parse(whole), [data])["y"]
    for order in ("forward", "backward"):
        actual = run(kernel, [data], order=order)["y"]
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, equal_nan=True)


def test_a_part_without_elements_changes_nothing():
    """Gauges of empty parts are -inf: their terms are 0 · exp(-inf - m), never NaN."""
    kernel = parse(source(8, 4, **SOFTMAX))
    actual = run(kernel, [np.array([1, 2, 3], np.float32)])["y"]
    assert np.isfinite(actual)


def test_rules_say_what_is_carried_over():
    kernel = parse(source(**SOFTMAX))
    rules = merge_rules(kernel)
    assert list(rules) == ["m", "l", "e"]
    assert rules["m"].rescaled == Ref("m")
    assert rules["l"].op == "add"
    assert value_text(rules["l"].rescaled, kernel) == "l * exp(m - m')"
    assert value_text(rules["e"].rescaled, kernel) == "exp(m - m') * e"


@pytest.mark.parametrize(
    ("states", "body", "reason"),
    [
        ("s = 0", "s' = s * 2 + sum(x[n] over n)", "more than the difference"),
        ("s = 0", "s' = s + s * sum(x[n] over n)", "depends on an old state"),
        ("s = 0", "s' = s - sum(x[n] over n)", "sub is not associative"),
        ("s = 0", "s' = exp(s)", "not an operator on two values"),
        ("s = 0", "s' = exp(s) + sum(x[n] over n)", "more than a rescaling"),
        ("s = 1", "s' = s + sum(x[n] over n)", "first value is not the identity"),
        ("s = 0", "s' = max(s, max(x[n] over n))", "first value is not the identity"),
        ("s = 0", "s' = s * x[0] + sum(x[n] over n)", "more than merged states"),
        (
            "s = 0, m = -inf",
            "m' = max(m, max(x[n] over n))\n    s' = s * m' + sum(x[n] over n)",
            "more than the difference",
        ),
        (
            "s = 0, m = -inf",
            "m' = max(m, max(x[n] over n))\n    s' = s + sum(x[n] * m over n)",
            "depends on an old state",
        ),
        ("s = 0, q = 0", "s' = s + sum(x[n] over n)", "never updated"),
        ("s = -inf", "s' = max(s * 2, max(x[n] over n))", "more than a rescaling"),
        (
            "s = 0, m = 0",
            f"m' = m + {TOTAL}\n    s' = select(m == m', s, 0) + {TOTAL}",
            "which comes back",
        ),
        (
            "s = 0, m = -inf",
            f"m' = max(m, {TOTAL})\n    s' = select(m == m', s, 1) + {TOTAL}",
            "chosen by more",
        ),
        ("s = 0", "s' = select(x[0] > 0, s, 0) + sum(x[n] over n)", "chosen by more"),
    ],
)
def test_what_is_no_monoid_is_refused(states, body, reason):
    names = ", ".join(s.split(" =")[0] for s in states.split(", "))
    with pytest.raises(VerifyError, match=reason):
        merge_rules(parse(source(states=states, body=body, names=names, result="s")))


PLACE = {
    "states": "m = -inf, i = i64(9223372036854775807)",
    "names": "m, i",
    "result": "f32(i)",
    "body": """b = max(x[n] over n)
    m' = max(m, b)
    i' = min(select((m == m') | (m != m), i, 9223372036854775807), """
    """select((b == m') | (b != b), argmax(x[n] over n) + first(n), 9223372036854775807))""",
}


@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize(
    "data",
    [[2, 5, 1, 5, 5, 0, 3], [1, np.nan, 9, np.nan], [-np.inf] * 9, [0, 0, 0, 1], [7]],
    ids=["ties", "NaN", "nothing above the start", "last", "one"],
)
def test_argmax_of_parts_merges_to_the_first_of_the_best(data: list[float], parts: int) -> None:
    x = np.array(data, np.float32)
    for order in ("forward", "backward"):
        actual = run(parse(source(parts, "all", **PLACE)), [x], order=order)["y"]
        assert actual == np.argmax(x)
