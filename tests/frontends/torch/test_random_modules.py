"""Random modules agree with eager code in values, strides and shared memory."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.module_generator import Argument, Program, draw  # noqa: E402
from tests.frontends.torch.module_oracle import Refused, differences, shrunk, wrong  # noqa: E402
from tests.frontends.torch.statement_templates import PHRASES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

BATCHES = (1, 2, 5, 3, 1)
"""The first size of all arguments in each call."""


def judged(seed, batches=()):
    """Whether eager code runs the module of a seed; fails if compiled code is wrong."""
    program = draw(seed, PHRASES, batches=batches)
    try:
        result = wrong(program)
    except Refused:
        return False
    if result:
        kind = result[0].partition(": ")[2][:8]
        small = shrunk(program, kind)
        text = "\n".join(result)
        pytest.fail(f"seed {seed}\n{text}\n\n{program}\nin short: {wrong(small)}\n{small}")
    return True


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_drawn_modules(seed):
    assert judged(seed)


@pytest.mark.parametrize("seed", [4, 8])
def test_what_is_compiled_for_a_batch_of_one_is_right_for_others(seed):
    assert judged(seed, BATCHES)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_many_drawn_modules(part):
    start = random.SystemRandom().randrange(1 << 30)
    assert sum(judged(start + k) for k in range(120)) > 80
    assert sum(judged(start + k, BATCHES) for k in range(40)) > 20


def spoilt(monkeypatch, change):
    """What the judge says of a module of which one side's results are changed."""
    program = Program(
        (Argument("x0", ((3, 4), (5, 4)), "plain"),),
        (),
        ("v1 = x0 * 2", "v2 = v1.mT", "v3, v4 = x0.max(1)"),
        ("v1", "v2", "v4"),
        {"v4": ("x0", 1)},
    )
    monkeypatch.setattr(torch, "compile", lambda m, **_: lambda *inputs: change(m(*inputs)))
    return differences(program, "smelt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r, ""),
        (lambda r: [r[0] * 1.0001, r[1], r[2]], "expected"),
        (lambda r: [r[0], r[1].contiguous(), r[2]], "strides"),
        (lambda r: [r[0].clone(), r[1], r[2]], "share memory"),
        (lambda r: [r[0], r[1], (r[2] + 1) % 4], "expected"),
        (lambda r: [r[0], r[1], r[2].int()], "torch.int32"),
    ],
)
def test_the_judge_sees_what_is_wrong(monkeypatch, change, message):
    actual = spoilt(monkeypatch, change)
    assert bool(actual) == bool(message) and message in " ".join(actual)
