"""Section E in bfloat16: one kernel, two products of bfloat16 numbers, float32 in between.

With `rounding="fast"` neither scores nor their exponentials are rounded on the way, except where a
product takes them by pairs.  The bound on the error follows from that: the result within 2^-8 of
its size, and where products take pairs weights within 2^-8 of theirs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.catalogue.harness import REFERENCE, RUNS
from tests.catalogue.test_e_attention import (
    HEADS,
    LONG,
    Variant,
    arguments,
    causal,
    grouped,
    padded,
    plain,
    window,
)
from tests.codegen.llvm.test_contractions import inner_loops

import smelt as sm
from smelt import knobs
from smelt.codegen.build import asm_text
from smelt.codegen.llvm import program as code
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.mask_ranges import find_row_groups
from smelt.compiler import driver
from smelt.kernel.ir import Dot, Stream
from smelt.kernel.walk import statements, values_of, visit
from smelt.machine.target import Target
from smelt.types.dtype import bf16

Array = np.ndarray[Any, Any]
VARIANTS = (
    Variant("plain", plain),
    Variant("causal", causal, mask_facts="to"),
    Variant("window", window, mask_facts="from to"),
    Variant("padded", padded, ("lengths",), mask_facts="to"),
    Variant("grouped", grouped, group=3),
)
AMX = ("avx512bf16", "amx-bf16", "amx-tile")
EVERY = pytest.mark.parametrize("variant", VARIANTS, ids=str)
_MADE: dict[tuple[str, Target], tuple[Any, driver.Compiled]] = {}


def halves(v: Variant, heads: int, n: int, seed: int = 0) -> list[Array]:
    inputs = arguments(v, heads, n, seed)
    return [a if a.dtype.kind in "ib" else a.astype(ml_dtypes.bfloat16) for a in inputs]


def compiled_variant(v: Variant, machine: Target = RUNS) -> tuple[Any, driver.Compiled]:
    if (v.name, machine) not in _MADE:
        with knobs.config(rounding="fast"):
            trace = sm.jit(lambda *xs: v.code(sm, *xs)).lower(*halves(v, 2, 5)).trace
            values = trace.match(*(n for a in halves(v, HEADS, LONG) for n in a.shape))
            assert values is not None
            hints = dict(zip(driver.input_size_names(trace.graph), values, strict=True))
            _MADE[v.name, machine] = trace, driver.compile(trace.graph, hints=hints, target=machine)
    return _MADE[v.name, machine]


@EVERY
def test_one_stream_and_two_products_by_pairs(variant: Variant) -> None:
    _, program = compiled_variant(variant)
    (kernel,) = program.kernels
    assert kernel is not None
    stream = next(s for s in kernel.body if isinstance(s, Stream))
    (block,) = stream.blocks
    ends = {"from": block.start, "to": block.stop}
    assert {word for word, end in ends.items() if end is not None} == set(
        variant.mask_facts.split()
    )
    values = [v for s in statements(kernel) for r in values_of(s) for v in visit(r)]
    assert [v.dtype for v in values if isinstance(v, Dot)] == [bf16, bf16]


@EVERY
def test_numbers(variant: Variant) -> None:
    are_right(variant, *compiled_variant(variant), ((1, 1), (2, 7), (3, 129)), 0.0)


@pytest.mark.skipif(
    not all(map(Target.host().has, AMX)), reason="the processor multiplies no matrices"
)
@EVERY
def test_numbers_by_matrices(variant: Variant) -> None:
    machine = replace(RUNS, features=(*RUNS.features, *AMX))
    are_right(
        variant, *compiled_variant(variant, machine), ((1, 1), (2, 31), (2, 129), (1, 590)), 2.0**-8
    )


@pytest.mark.parametrize("variant", VARIANTS[1:3], ids=str)
def test_row_bands_are_as_high_as_tiles(variant: Variant) -> None:
    (kernel,) = compiled_variant(variant)[1].kernels
    assert kernel is not None
    plain = Target.for_isa("avx512")
    for features, rows in ((AMX[:1], (24, 12)), (AMX, (32, 16))):
        target = replace(plain, features=(*plain.features, *features))
        actual = [
            b for p in code.program(kernel).phases for b in find_row_groups(schedule(p, target))
        ]
        assert {(b.size, b.fine) for b in actual} == {rows}


def are_right(
    variant: Variant,
    trace: Any,
    program: driver.Compiled,
    counts: tuple[tuple[int, int], ...],
    weights: float,
) -> None:
    """At heads and positions; `weights` are within so much of their size."""
    for heads, n in counts:
        inputs = halves(variant, heads, n, seed=n)
        values = trace.match(*(d for a in inputs for d in a.shape))
        (actual,) = program.run([inputs[k] for k in trace.arguments], tuple(values))
        wide = [a if a.dtype.kind in "ib" else a.astype(np.float64) for a in inputs]
        with np.errstate(all="ignore"):
            want = variant.code(REFERENCE, *wide)
            sizes = variant.code(REFERENCE, *wide[:2], abs(wide[2]), *wide[3:])
        allowed = 2.0**-8 * abs(want) + weights * sizes + 1e-5
        assert np.all(abs(actual.astype(np.float64) - want) <= allowed)


def test_weights_are_computed_once_and_multiplied_by_pairs() -> None:
    """Their sum and the second product both want them: they lie in scratch, and are rounded from
    there by the processor's own conversion."""
    _, program = compiled_variant(VARIANTS[0])
    (kernel,) = program.kernels
    assert kernel is not None
    target = Target.for_isa("avx512")
    target = replace(target, features=(*target.features, "avx512bf16"))
    loops = inner_loops(asm_text(kernel, target))
    steps = [len(re.findall("vdpbf16ps", x)) for x in loops]
    assert {16, 24} <= set(steps), "whole tiles of both products"
    assert not any(len(re.findall("vfmadd231ps", x)) >= 16 for x in loops), "none in float32"
    rounding = [x for x in loops if "vcvtneps2bf16" in x or "vcvtne2ps2bf16" in x]
    assert rounding
    assert not any("vscalefps" in x for x in rounding), "no exponential again"


def test_explicit_roundings_stay_by_default() -> None:
    """Only `rounding="fast"` looks through conversions; what is stored is rounded even then."""
    x = np.linspace(1, 2, 1001, dtype=np.float32)

    def code(x: Any) -> Any:
        return sm.astype(sm.astype(x, sm.bfloat16), sm.float32) * 3

    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32) * 3
    assert np.array_equal(np.asarray(sm.jit(code)(x)), rounded)
    with sm.config(rounding="fast"):
        stored = np.asarray(sm.jit(lambda x: sm.astype(x * 3, sm.bfloat16))(x))
    assert np.array_equal(stored, (x * 3).astype(ml_dtypes.bfloat16))


def test_gradients_of_plain_attention_in_one_kernel():
    """A fold of keys beside the stream of queries reads scores whose widening has no name."""
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal((2048, 16)).astype(np.float32) for _ in range(3)]
    q, k, v = (sm.astype(sm.asarray(x), sm.bfloat16) for x in whole)

    def loss(q, k, v):
        return sm.sum(sm.nn.softmax(q @ sm.matrix_transpose(k) / 4, axis=-1) @ v)

    step = sm.jit(sm.grad(loss, argnums=(0, 1, 2)))
    assert len(sm.explain(step, q, k, v).kernels) == 1
    a, b, c = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    scores = a @ b.T / 4
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    ones = np.repeat(c.sum(1)[None], len(a), 0)
    ds = p * (ones - (p * ones).sum(1, keepdims=True)) / 4
    wanted = ds @ b, ds.T @ a, np.repeat(p.sum(0)[:, None], 16, 1)
    for result, w in zip(step(q, k, v), wanted, strict=True):
        off = np.abs(np.asarray(result).astype(np.float64) - w)
        assert off.max() <= 0.05 * np.abs(w).max()
