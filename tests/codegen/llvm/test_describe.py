"""The schedule in words: which form sizes take, and how each product is computed."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.llvm.single_kernel import fuse
from tests.codegen.llvm.test_contractions import matrices

import smelt as sm
from smelt.backend import backend_of
from smelt.codegen.build import code_variants, described, select_variant
from smelt.codegen.llvm.nest import DRIVERS
from smelt.codegen.llvm.nests.product_plan import Driver
from smelt.errors import ArgumentError
from smelt.machine.target import Isa, Target

PLAIN = matrices("f32", "m,k; k,n -> m,n")
ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable", "neon")


@pytest.mark.parametrize("isa", ISAS)
def test_every_form_is_described(isa: Isa) -> None:
    target = Target.for_isa(isa)
    kernel = fuse(PLAIN, "portable").kernel
    text = described(kernel, target)
    forms = [line.split()[1].rstrip(":") for line in text.splitlines() if "  form " in line]
    assert forms == [form or "usual" for form, *_ in code_variants(kernel, target)]
    high = {"avx512": "12 x 32", "avx2": "6 x 16", "portable": "6 x 8", "neon": "12 x 8"}[isa]
    assert f"tiles of {high} in " in text


@given(m=st.integers(1, 3000), n=st.integers(1, 3000), k=st.integers(1, 5000))
def test_the_form_is_the_one_that_runs(m: int, n: int, k: int) -> None:
    target = Target.for_isa("avx2")
    kernel, sizes = fuse(PLAIN, "portable").kernel, {"m": m, "n": n, "k": k}
    text = described(kernel, target, sizes)
    chosen = select_variant(code_variants(kernel, target, sizes), sizes).partition("@")[0]
    (form,) = (line for line in text.splitlines() if "  form " in line)
    assert form.split()[1].rstrip(":") == (chosen or "usual")


@pytest.mark.parametrize(
    ("x", "w", "groups", "words"),
    [
        ((1, 16, 14, 14), (24, 16, 3, 3), 1, "table of positions"),
        ((1, 32, 14, 14), (32, 1, 3, 3), 32, "chunk t in"),
        ((1, 3, 30, 30), (8, 3, 5, 5), 1, "pixels packed once"),
    ],
)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], groups: int, words: str) -> None:
    arrays = [sm.asarray(np.zeros(s, "f4")) for s in (x, w)]
    function = sm.jit(lambda a, b: sm.nn.conv(a, b, padding=1, groups=groups))
    texts = [k.schedule for k in sm.explain(function, *arrays).kernels]
    assert any(words in text for text in texts)


def test_a_report_has_the_schedule_of_its_sizes() -> None:
    x, w = (sm.asarray(np.zeros(s, "f4")) for s in ((300, 64), (64, 300)))
    function = sm.jit(lambda x, w: sm.maximum(x @ w, 0))
    (kernel,) = sm.explain(function, x, w).kernels
    assert kernel.schedule.count("  form ") == 1 and "task" in kernel.schedule
    (loops,) = sm.explain(sm.jit(lambda x: x * 2), x).kernels
    assert "each i in" in loops.schedule and "lanes at once" in loops.schedule


def test_a_language_that_is_not_written() -> None:
    target = Target.for_isa("avx2")
    with pytest.raises(ArgumentError, match="schedule"):
        backend_of(target).text(fuse(PLAIN, "portable").kernel, "ptx", target, None)


def test_every_driver_that_a_plan_names_is_in_the_table() -> None:
    assert set(DRIVERS) == set(get_args(Driver))
