"""Random programs and random sequences of passes: equal bits, and planted faults are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.loop.random_loops import SIZES, random_module, results

from smelt.errors import LoopPassError, VerifyError
from smelt.loop import ir
from smelt.loop.passes import remainder, vectorize
from smelt.loop.passes import split_tests as cuts
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.passes.distribute import distribute
from smelt.loop.passes.group_loads import group_loads
from smelt.loop.passes.hoist import hoist
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.prefetch import prefetch
from smelt.loop.text import parse, text
from smelt.loop.verify import verify
from smelt.loop.walk import statements

PASSES = (
    "split tests",
    "vectorize, mask",
    "vectorize, scalar",
    "hoist offsets",
    "accumulate",
    "hoist",
    "distribute",
    "prefetch",
    "group loads",
)
LONGEST = 9000
"""Maximum characters of a text that is rewritten once more."""


def _apply(name: str, func: ir.Func, random: np.random.Generator) -> ir.Func:
    """Apply a pass to a random loop; raises LoopPassError if it refuses."""
    loops = [s for s in statements(func.body) if isinstance(s, ir.For)]
    loop = loops[random.integers(len(loops))]
    match name.split(", "):
        case ["vectorize", tail]:
            lanes = int(random.choice([2, 4, 8]))
            if tail != "mask":
                return vectorize.vectorize(func, loop.var, lanes, "scalar")
            group = int(random.choice([0, lanes // 2]))
            return vectorize.vectorize(func, loop.var, lanes, "mask", 0, group)
        case ["hoist offsets"]:
            return hoist_offsets(func)
        case ["accumulate"]:
            return accumulate(func)
        case ["distribute"]:
            at = int(random.integers(1, max(len(loop.body), 2)))
            return distribute(func, loop.var, (at,), 4)
        case ["prefetch"]:
            return prefetch(func, loop.var, "ab"[random.integers(2)], 7)
        case ["group loads"]:
            return group_loads(func)
        case ["hoist"]:
            return hoist(func)
        case _:
            return cuts.split_tests(func, loop.var)[0]


def _check(seed: int, steps: int = 5) -> Counter[str]:
    """Rewrite a random program; every step verifies, prints, parses alike and has equal bits."""
    random = np.random.default_rng(seed)
    module, applied = verify(random_module(random)), Counter[str]()
    expected = [results(module, sizes, seed) for sizes in SIZES]
    for _ in range(steps):
        name = PASSES[random.integers(len(PASSES))]
        try:
            func = _apply(name, module.funcs[0], random)
        except LoopPassError:
            continue
        before, module = module, verify(replace(module, funcs=(func,)), bounds=False)
        applied[name] += before != module
        shown = text(module)
        assert parse(shown) == module
        for sizes, bits in zip(SIZES, expected, strict=True):
            changed = f"{seed}, {name}, {sizes}\n{text(before)}\n->\n{shown}"
            assert results(module, sizes, seed + 1) == bits, changed
        if len(shown) > LONGEST:
            break
    return applied


def test_random_passes_keep_the_bits_of_random_programs():
    applied = sum((_check(seed) for seed in range(40)), Counter())
    assert set(applied) == set(PASSES)
    assert applied.total() > 30


def _with_low_tail(loop: ir.For, count: int) -> object:
    return loop.high


FAULTS = {
    "the remainder is dropped": (remainder, "whole_groups", lambda right: _with_low_tail),
    "a group too many": (
        remainder,
        "whole_groups",
        lambda right: lambda loop, count: right(loop, count) + count,
    ),
    "the sides of a condition are exchanged": (
        cuts,
        "decide_all",
        lambda right: (
            lambda body, answers, env: right(body, {v: not a for v, a in answers.items()}, env)
        ),
    ),
    "carries begin anew": (
        remainder,
        "continued",
        lambda right: lambda loop, before, env: loop.carry,
    ),
    "strides are lost": (
        vectorize,
        "coefficient",
        lambda right: lambda e, name: None if right(e, name) is None else 1,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_pass_is_found(fault, monkeypatch):
    module, name, wrong = FAULTS[fault]
    faulty = wrong(getattr(module, name))
    for user in (module, cuts, vectorize):
        if hasattr(user, name):
            monkeypatch.setattr(user, name, faulty)
    for seed in range(100):
        try:
            _check(seed, 3)
        except (AssertionError, VerifyError):
            return
    pytest.fail("no random program shows the fault")
