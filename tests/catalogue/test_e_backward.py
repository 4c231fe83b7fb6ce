"""Section E7: the gradients of attention in its variants, from plain code through `sm.vjp`.

Nothing with queries times keys is stored, and what a mask rules out is not computed: one kernel
visits blocks of queries, with the gradients of keys and values carried, and each block sees the
keys that its mask leaves.  Derivatives are compared with differences in double precision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.catalogue.harness import REFERENCE, RUNS
from tests.catalogue.test_e_attention import (
    DIM,
    LONG,
    VARIANTS,
    Array,
    Code,
    Variant,
    arguments,
    causal,
    elements,
    positions,
    scores,
    weights,
)

import smelt as sm
from smelt import fusion, knobs, lower, passes
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.scratch.workspace import lay_out
from smelt.compiler import driver
from smelt.explain.entries import predict
from smelt.frontends.array.trace import Trace
from smelt.fusion.plan import Plan
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel, Stream
from smelt.machine.blocks import STREAM_ROWS
from smelt.types.expr import evaluate, sizes_of

KEY = 20_11


def dropped(xp: Any, q: Any, k: Any, v: Any, key: Any) -> Any:
    """A tenth of the weights is left out, told by a counter: the way back asks it again."""
    s = scores(xp, q, k)
    i, j = positions(xp, s)
    w = weights(xp, xp.where(j <= i, s, -np.inf))
    return xp.matmul(xp.where(xp.random.uniform(key, s.shape) < 0.9, w / 0.9, 0.0), v)


SEEN = {
    "E1 causal": "to",
    "E1 causal of itself": "to",
    "E1 window": "from to",
    "E1 near": "from to",
    "E1 dilated": "from to",
    "E1 prefix": "to",
    "E1 sinks": "to",
    "E1 padded": "to",
    "E1 causal documents": "to",
    "E2 alibi": "to",
    "E2 sink": "to",
    "E2 joined to a sink": "to",
    "E7 dropout": "to",
}
"""What blocks see of the other axis: from where, up to where."""
BACKWARD = [
    replace(v, queries=1031 if v.queries else 0) for v in VARIANTS if not v.name.startswith("E4")
]
BACKWARD.append(Variant("E7 dropout", dropped, ("key",)))
MEASURED = ("E1 causal of itself", "E1 window", "E3 grouped", "E7 dropout")
"""Variants that are compiled and whose numbers are looked at."""


def operands_of(v: Variant, heads: int, n: int, seed: int = 0) -> list[Array]:
    """The operands of a variant, and at the end what arrives at its result."""
    more = tuple(name for name in v.more if name != "key")
    result = arguments(replace(v, more=more), heads, n, seed)
    if "key" in v.more:
        result.append(np.asarray(KEY, np.uint64))
    lead = (heads, v.group) if v.group > 1 else (heads,)
    rng = np.random.default_rng(seed + 1)
    result.append(rng.standard_normal((*lead, v.queries or n, DIM)).astype(np.float32))
    return result


def gradients(code: Code) -> Code:
    """The gradients of the first three operands, as a program of all of them."""

    def run(q: Any, k: Any, v: Any, *more: Any) -> Any:
        return sm.vjp(lambda *xs: code(sm, *xs, *more[:-1]), q, k, v)[1](more[-1])

    return run


_PLANNED: dict[str, tuple[Trace, Plan, list[Kernel | None], dict[str, int]]] = {}


def planned(v: Variant) -> tuple[Trace, Plan, list[Kernel | None], dict[str, int]]:
    """The recording of a variant's gradients, with its plan and kernels for long sequences."""
    if v.name not in _PLANNED:
        trace = sm.jit(gradients(v.code)).lower(*operands_of(v, 2, 5)).trace
        values = trace.match(*(n for a in operands_of(v, v.heads, LONG) for n in a.shape))
        assert values is not None
        sizes = dict(zip(driver.input_size_names(trace.graph), values, strict=True))
        with knobs.config(rounding="fast"):
            plan = fusion.plan(passes.run(trace.graph, Journal(), "fast"), RUNS, None, sizes)
            kernels = [None if c.is_extern else lower.run(c, "fast", sizes) for c in plan.clusters]
        _PLANNED[v.name] = trace, plan, kernels, sizes
    return _PLANNED[v.name]


@pytest.mark.parametrize("variant", BACKWARD, ids=str)
def test_scores_are_never_stored(variant: Variant) -> None:
    """One kernel; where heads are mixed, several in rounds over queries."""
    _, plan, kernels, sizes = planned(variant)
    queries = variant.queries or LONG
    assert elements(plan, sizes) <= variant.group * variant.heads * max(queries, LONG) * DIM
    assert len(kernels) == 1


@pytest.mark.parametrize("variant", BACKWARD, ids=str)
def test_blocks_see_what_masks_leave(variant: Variant) -> None:
    streams = [s for k in planned(variant)[2] if k for s in k.body if isinstance(s, Stream)]
    reported = [
        {word for word, end in (("from", b.start), ("to", b.stop)) if end is not None}
        for s in streams
        for b in s.bounds
    ]
    wanted = set(SEEN.get(variant.name, "").split())
    assert reported == ([wanted] if wanted else [])


def test_what_masks_leave_is_what_is_charged() -> None:
    """The planner's arithmetic follows what blocks see: half of the pairs, or a narrow band."""

    def arithmetic(name: str) -> float:
        _, plan, _, sizes = planned(next(v for v in BACKWARD if v.name == name))
        with knobs.config(rounding="fast"):
            return sum(cost.arithmetic for cost in predict(plan, RUNS, sizes)[0])

    whole = arithmetic("E1 plain")
    assert 0.4 * whole < arithmetic("E1 causal") < 0.75 * whole
    assert arithmetic("E1 window") < 0.3 * whole


@pytest.mark.parametrize("name", MEASURED)
def test_numbers(name: str) -> None:
    variant = next(v for v in BACKWARD if v.name == name)
    trace, _, _, sizes = planned(variant)
    with knobs.config(rounding="fast"):
        compiled = driver.compile(trace.graph, hints=sizes, target=RUNS)
    for heads, n in ((2, 7), (1, 261)):
        operands = operands_of(variant, heads, n, seed=n)
        values = trace.match(*(d for a in operands for d in a.shape))
        assert values is not None
        result = compiled.run([operands[k] for k in trace.arguments], tuple(values))
        _compare(variant, operands, [result[r.position] for r in trace.results])


def _compare(variant: Variant, operands: list[Array], actual: list[Array]) -> None:
    """Gradients along some directions, against differences in double precision."""
    rng = np.random.default_rng(3)
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in operands]

    def total(k: int, moved: Array) -> float:
        xs = [*wide[:k], moved, *wide[k + 1 : -1]]
        return float((variant.code(REFERENCE, *xs) * wide[-1]).sum())

    for k, gradient in enumerate(actual):
        for _ in range(3):
            to = rng.standard_normal(wide[k].shape) * 1e-5
            want = (total(k, wide[k] + to) - total(k, wide[k] - to)) / 2e-5
            got = float((gradient * to).sum()) / 1e-5
            allowed = 1e-5 * float(np.abs(gradient * to).sum()) / 1e-5 + 1e-4
            assert abs(got - want) <= allowed


def test_what_a_task_holds_grows_with_the_keys_alone() -> None:
    """Scores of a block of queries, and the gradients that it carries: no queries times keys."""
    (kernel,) = planned(next(v for v in BACKWARD if v.code is causal))[2]
    assert kernel is not None
    (phase,) = program(kernel).phases
    scratch = lay_out(schedule(phase, RUNS)).nbytes
    names = sizes_of(scratch)
    for n in (LONG, 4 * LONG):
        held = int(evaluate(scratch, {x: n if x in ("n1", "n4") else DIM for x in names}))
        assert held < n * (2 * 4 * DIM + 6 * 4 * STREAM_ROWS) + (1 << 21)


@pytest.mark.parametrize("length", [0, 5, 23])
def test_queries_beyond_a_length_look_at_all_keys_where_their_scores_are_finite(
    length: int,
) -> None:
    """Their weights are all the same, not 0: a mask by -1e9 leaves no query out of a gradient."""

    def code(xp: Any, q: Any, k: Any, v: Any, n: Any) -> Any:
        s = scores(xp, q, k)
        i, j = positions(xp, s)
        return xp.matmul(weights(xp, xp.where((i < n) & (j < n) & (j <= i), s, -1e9)), v)

    rng = np.random.default_rng(3)
    q, k, v, g = (rng.normal(size=(23, 8)).astype(np.float32) for _ in range(4))
    back = sm.jit(lambda *a: sm.vjp(lambda v: code(sm, *a[:2], v, a[3]), a[2])[1](a[4]))
    (actual,) = back(q, k, v, np.asarray(length), g)
    wide = [x.astype(np.float64) for x in (q, k, np.eye(23))]
    wanted = np.matrix_transpose(code(REFERENCE, *wide, length)) @ g
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=0, atol=1e-5)
