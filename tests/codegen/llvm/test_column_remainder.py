"""Code for columns beside whole panels is emitted only for the sizes that tasks have."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse, one_cluster
from tests.codegen.llvm.test_contractions import inner_loops, whole_numbers

from smelt import lower
from smelt.codegen.build import assembly
from smelt.codegen.llvm.module import emit
from smelt.graph.text import parse
from smelt.machine.target import Target

PLAIN = """graph f(x: f32[{m},{k}], w: f32[{k},{n}]) {{
  s = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  return s
}}"""
SEVERAL = """graph f(x: f32[{m},{k}], w: f32[{k},{n}], b: f32[{n}]) {{
  s = contract(x, w) {{spec="m,k; k,n -> m,n"}}
  t = add(s, b)
  p = slice(t) {{starts=(0, 0), sizes=({m}, {less}), steps=(1, 1)}}
  q = slice(t) {{starts=(0, 1), sizes=({m}, {less}), steps=(1, 1)}}
  return t, p, q
}}"""
"""A result, and two ranges of it that begin and end within vectors."""
Form = Literal["tall_skinny", "small_m", "panels", "k_blocked"]


def _text(source: str, m: int, k: int, n: int) -> str:
    return source.format(m=m, k=k, n=n, less=n - 1)


@pytest.mark.parametrize("n", [2, 15, 16, 17, 31, 32, 33, 49, 64, 95])
@pytest.mark.parametrize("source", [PLAIN, SEVERAL], ids=["plain", "several"])
@pytest.mark.parametrize("variant", ["tall_skinny", "small_m", "panels"])
@pytest.mark.parametrize("isa", RUNNABLE)
def test_known_columns(isa: str, variant: Form, source: str, n: int) -> None:
    m, k = 29, 11
    kernel = fuse(_text(source, m, k, n), isa)
    code, loaded = kernel.variant_code(variant)
    kernel = replace(kernel, built=code, loaded=loaded, variants=())
    arrays = [whole_numbers(s, "f4", n) for s in ((m, k), (k, n), (n,))][: 2 + (source is SEVERAL)]
    arrays[1][:, -1], arrays[1][3, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = kernel.expected(*arrays)
    for at_end in (False, True):
        result = run_guarded(kernel, arrays, at_end=at_end, one_by_one=not at_end)
        for one, other in zip(result, wanted, strict=True):
            assert np.array_equal(one, other, equal_nan=True)


@pytest.mark.parametrize("variant", ["small_m", "panels", "k_blocked"])
@pytest.mark.parametrize("n", [1000, 1264, 3000, 4111])
def test_every_task_has_columns_of_the_last_or_of_all_others(variant: Form, n: int) -> None:
    """What a task has beside whole panels follows from its block: of all but the last task the
    whole of it, wherever that lies."""
    if "avx512" not in RUNNABLE:
        pytest.skip("forms for machines with enough registers")
    m, k = 90, 5
    kernel = fuse(_text(PLAIN, m, k, n), "avx512")
    code, loaded = kernel.variant_code(variant)
    kernel = replace(kernel, built=code, loaded=loaded, variants=())
    x, w = whole_numbers((m, k), "f4", n), whole_numbers((k, n), "f4", m)
    for at_end in (False, True):
        actual = run_guarded(kernel, [x, w], at_end=at_end, one_by_one=True)[0]
        assert np.array_equal(actual, kernel.expected(x, w)[0])


@pytest.mark.parametrize(("n", "tiles"), [(64, 1), (80, 1), (92, 2), (95, 2)])
def test_tiles_are_emitted_that_tasks_need(n: int, tiles: int) -> None:
    kernel = lower.run(one_cluster(parse(_text(PLAIN, 300, 64, n))), "eager", {})
    target = Target.for_isa("avx512")
    text = assembly(emit(kernel, target, variant="panels").llvm, target, 2)
    assert len([x for x in inner_loops(text) if len(re.findall("fmadd", x)) == 24]) == tiles
