"""Kernels equal up to names have one text, one key and one piece of machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.build import build
from smelt.journal.facts import KernelEmitted
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.runtime import code
from smelt.types.expr import evaluate

TOTAL = """kernel t(x: f32[{n},{m}]) -> y: f32[{n}]
  grid {n}
  {v} = sum(x[{n},{m}] over {m})
  y[{n}] = {v} / f32(size({m}))"""


def renamed_kernel(source: str, **names: str) -> Any:
    return parse(source.format(**names))


def test_names_do_not_matter() -> None:
    one = renamed_kernel(TOTAL, n="n", m="m", v="v0")
    other = renamed_kernel(TOTAL, n="rows", m="a_long_one", v="total")
    swapped = renamed_kernel(TOTAL, n="z", m="b", v="a")
    assert len({canonical_kernel(k)[0].text for k in (one, other, swapped)}) == 1
    plain, names = canonical_kernel(other)
    assert names["a1"] == "rows"
    assert set(names) == {word for word in names if word in plain.text}


def test_other_kernels_stay_other() -> None:
    one = renamed_kernel(TOTAL, n="n", m="m", v="v")
    transposed = parse(
        "kernel t(x: f32[n,m]) -> y: f32[m]\n  grid m\n  v = sum(x[n,m] over n)\n"
        "  y[m] = v / f32(size(n))"
    )
    assert canonical_kernel(one)[0].text != canonical_kernel(transposed)[0].text


@pytest.mark.parametrize("word", ["sum", "exp", "f32", "over", "grid"])
def test_names_that_are_words_of_the_language(word: str) -> None:
    """Whatever becomes of them, it is the same kernel."""
    try:
        kernel = parse(
            f"kernel k(x: f32[n]) -> y: f32[n]\n  grid n\n  {word} = x[n]\n"
            f"  y[n] = exp({word}) + sum(x[n] over n)"
        )
    except sm.errors.SmeltError:
        return
    plain, names = canonical_kernel(kernel)
    assert set(names.values()) >= {"x", "y", "n"}
    assert len(plain.kernel.body) == len(kernel.body)


def test_the_code_is_reported_under_the_kernel_s_names() -> None:
    kernel = renamed_kernel(TOTAL, n="rows", m="cols", v="v")
    plain, names = canonical_kernel(kernel)
    target = Target.for_isa("portable")
    shared, separate = build(plain.kernel, target), build(kernel, target)
    assert tuple(names.get(b, b) for b in shared.buffers) == separate.buffers
    assert {names[s] for s in shared.sizes} == set(separate.sizes)
    named = {"rows": 70, "cols": 9}
    short = {a: named[b] for a, b in names.items() if b in named}
    for f, g in zip(shared.functions, separate.functions, strict=True):
        assert evaluate(f.tasks, short) == evaluate(g.tasks, named)
        assert evaluate(f.cycles, short) == evaluate(g.cycles, named)
    assert shared.code  # and it is called by place, so names in it play no part


def test_many_alike_are_compiled_once() -> None:
    code.forget()
    rng = np.random.default_rng(0)
    shapes = [(3 + k % 4, 5) for k in range(12)]
    ps, gs = ([rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(2))
    update = sm.jit(lambda ps, gs: [p - 0.1 * g * sm.abs(g) for p, g in zip(ps, gs, strict=True)])
    with sm.config(cache=False):
        result = update(ps, gs)
        trace = next(iter(update.traces.values()))[0]
    for p, g, y in zip(ps, gs, result, strict=True):
        np.testing.assert_allclose(np.asarray(y), p - np.float32(0.1) * g * np.abs(g), rtol=1e-6)
    facts = trace.executable.journal.facts
    assert sum(isinstance(f, KernelEmitted) for f in facts) <= 2
