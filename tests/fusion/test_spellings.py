"""Equivalent spellings give the same plan: as many kernels, as many bytes stored between them.

Two kinds. Random programs, in which rewrite rules have run backwards (`x` became `neg(neg(x))`),
return to what they were; and ways in which people write the same mathematics are planned alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from tests.fusion.formulas import MACHINE
from tests.property.oracles import compiled, sizes_at
from tests.property.test_oracles import bits_of
from tests.strategies.effort import NIGHT, NIGHTLY, start
from tests.strategies.graphs import Program, graphs
from tests.trust import measured

import smelt as sm
from smelt import fusion, passes
from smelt.errors import DTypeError
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.text import text
from smelt.graph.walk import rebuild
from smelt.journal.facts import Journal
from smelt.machine.target import Target
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.rewrite.engine import Call, Num, Rule, Term, Var, variables
from smelt.rewrite.rules import EXACT
from smelt.types.expr import evaluate

pytestmark = NIGHT
CASES = 5000 if NIGHTLY else 100
Plan = tuple[int, int]
F = Callable[..., Any]


def planned(graph: Graph, sizes: dict[str, int], machine: Target = MACHINE) -> Plan:
    """Kernels and calls, but for checks of positions, and bytes stored between them."""
    graph = passes.run(graph, Journal(), "eager", sizes)
    result = fusion.plan(graph, machine, Journal(), sizes)
    all_sizes = {**sizes, **result.sizes}
    stored = sum(
        int(evaluate(s.nbytes, all_sizes))
        for s in result.slots
        if s.offset is not None and s.within is None
    )
    return len(result.all_clusters) - len(result.checks), stored


# ---- rules backwards ----------------------------------------------------------------------------


def is_reversible(rule: Rule) -> bool:
    """Whether the left side follows from the right one: no constants to guess, equal types."""
    names = {v.name for v in variables(rule.left)}
    right = rule.right
    is_plain = isinstance(right, Var) or (
        isinstance(right, Call)
        and all(isinstance(a, Var) for a in right.args)
        and len({a.name for a in right.args if isinstance(a, Var)}) == len(right.args)
    )
    has_constants = any(v.constant for v in variables(rule.left))
    return (
        is_plain
        and not has_constants
        and rule.when is None
        and not rule.compute
        and names == {v.name for v in variables(right)}
    )


REVERSIBLE = [r for r in EXACT if is_reversible(r)]


def reversed_at(node: Node, rule: Rule) -> Node | None:
    """The left side of a rule where a node is its right one, or None."""
    right = rule.right
    if isinstance(right, Var):
        bound = {right.name: node}
    elif isinstance(node.op, Map) and isinstance(right, Call) and node.op.scalar == right.op:
        bound = {a.name: x for a, x in zip(right.args, node.inputs, strict=True)}  # type: ignore[union-attr]
    else:
        return None
    dtype = bound[rule.subject].type.dtype
    if not rule.accepts(dtype):
        return None

    def made(t: Term) -> Node | None:
        if isinstance(t, Var):
            return bound[t.name]
        if isinstance(t, Num):
            number = t.value_for(dtype)
            return None if number is None else build.constant(number, dtype)
        operands = [made(a) for a in t.args]
        if any(x is None for x in operands):
            return None
        return build.apply(Map(t.op), *operands)  # type: ignore[arg-type]

    try:
        left = made(rule.left)
    except (DTypeError, TypeError):  # not for this type
        return None
    return left if left is not None and left.type == node.type else None


def backwards(graph: Graph, dice: random.Random) -> tuple[Graph, int]:
    """The graph with rules run backwards at some nodes, and how many were."""
    count = 0

    def rewritten(node: Node) -> Node:
        nonlocal count
        if isinstance(node.op, Constant) or not isinstance(node.op, Map) or dice.random() < 0.5:
            return node
        for rule in dice.sample(REVERSIBLE, len(REVERSIBLE)):
            left = reversed_at(node, rule)
            if left is not None:
                count += 1
                return left
        return node

    return rebuild(graph, rewritten), count


def test_rules_are_known_to_run_backwards() -> None:
    assert len(REVERSIBLE) >= 40
    assert {"double negation", "sum with a negative"} <= {r.name for r in REVERSIBLE}


@pytest.mark.parametrize("part", range(2))
def test_rules_run_backwards_change_neither_plan_nor_bits(part: int) -> None:
    total = 0

    @seed(start(500 + part))
    @settings(max_examples=CASES, deadline=None, database=None)
    @given(graphs(max_nodes=8, steps=["unary", "binary", "reduce"]))
    def judge(program: Program) -> None:
        nonlocal total
        graph, arrays = program
        other, count = backwards(graph, random.Random(text(graph)))
        total += count
        sizes = sizes_at(graph, arrays)
        assert planned(other, dict(sizes)) == planned(graph, dict(sizes)), text(other)
        for a, b in zip(
            compiled(graph, arrays, sizes)[1], compiled(other, arrays, sizes)[1], strict=True
        ):
            assert bits_of(a) == bits_of(b), text(other)

    judge()
    measured("rules run backwards in each part", total)
    assert total > CASES


# ---- the same mathematics -----------------------------------------------------------------------


def T(x: Any) -> Any:
    return sm.matrix_transpose(x)


def exponents(s: Any) -> Any:
    return sm.exp(s - sm.max(s, axis=-1, keepdims=True))


def total(e: Any) -> Any:
    return sm.sum(e, axis=-1, keepdims=True)


def softmax(s: Any) -> Any:
    e = exponents(s)
    return e / total(e)


def dropped(x: Any, m: Any) -> Any:
    return sm.where(m, x / 0.9, 0.0)


def mean(x: Any) -> Any:
    return sm.mean(x, axis=-1, keepdims=True)


def attention(weights: F) -> F:
    return lambda q, k, v, m: weights(q @ T(k) / 8, m) @ v


def exponents_of_two(s: Any) -> Any:
    t = s * 1.4426950408889634
    return sm.exp2(t - sm.max(t, axis=-1, keepdims=True))


def row_below(s: Any) -> Any:
    n = sm.arange(s.shape[-1])
    return n[:, None] >= n[None, :]


def addend(m: Any, number: float) -> Any:
    """Zero where a mask holds, in the type of the scores: two Python numbers would be float64."""
    return sm.astype(sm.where(m, 0.0, number), sm.float32)


def picked(x: Any, y: Any) -> Any:
    return sm.take_along_axis(x, y[:, None], axis=-1)[:, 0]


def by_hand(h: Any, w: Any, y: Any) -> Any:
    z = h @ w
    top = sm.max(z, axis=-1, keepdims=True)
    log_total = top + sm.log(total(sm.exp(z - top)))
    return -sm.mean((z - log_total)[sm.arange(z.shape[0]), y])


NEVER, LARGE = -float("inf"), -1e9
SPELLINGS: dict[str, dict[str, F]] = {
    "attention": {
        "exp": attention(lambda s, m: softmax(s)),
        "exp2": attention(lambda s, m: exponents_of_two(s) / total(exponents_of_two(s))),
        "nn.softmax": attention(lambda s, m: sm.nn.softmax(s, axis=-1)),
        "reciprocal": attention(lambda s, m: exponents(s) * (1 / total(exponents(s)))),
        "divided last": lambda q, k, v, m: (
            exponents(q @ T(k) / 8) @ v / total(exponents(q @ T(k) / 8))
        ),
        "scaled queries": lambda q, k, v, m: softmax((q / 8) @ T(k)) @ v,
    },
    "dropout": {
        "zero from the mask": attention(lambda s, m: softmax(s) * sm.astype(m, sm.float32) / 0.9),
        "before the division": attention(
            lambda s, m: dropped(exponents(s), m) / total(exponents(s))
        ),
        "of weights": attention(lambda s, m: dropped(softmax(s), m)),
        "zero first": attention(lambda s, m: sm.where(~m, 0.0, softmax(s) / 0.9)),
        "after the product": lambda q, k, v, m: sm.where(m, softmax(q @ T(k) / 8), 0.0) @ v / 0.9,
    },
    "long dropout": {
        "before the division": attention(
            lambda s, m: dropped(exponents(s), m) / total(exponents(s))
        ),
        "of weights": attention(lambda s, m: dropped(softmax(s), m)),
    },
    "mask": {
        "where": attention(lambda s, m: softmax(sm.where(m, s, NEVER))),
        "opposite": attention(lambda s, m: softmax(sm.where(~m, NEVER, s))),
        "large number": attention(lambda s, m: softmax(sm.where(m, s, LARGE))),
        "product added": attention(
            lambda s, m: softmax(s + (1 - sm.astype(m, sm.float32)) * LARGE)
        ),
        "added": attention(lambda s, m: softmax(s + addend(m, NEVER))),
        "large number added": attention(lambda s, m: softmax(s + addend(m, LARGE))),
    },
    "causal mask": {
        "positions": attention(lambda s, m: softmax(sm.where(row_below(s), s, NEVER))),
        "opposite": attention(lambda s, m: softmax(sm.where(~row_below(s), NEVER, s))),
        "triangle": attention(
            lambda s, m: softmax(sm.where(sm.tril(sm.ones(s.shape[-2:], dtype=sm.bool)), s, NEVER))
        ),
        "added": attention(lambda s, m: softmax(s + addend(row_below(s), NEVER))),
    },
    "layer norm": {
        "variance": lambda x: (x - mean(x)) / sm.sqrt(sm.var(x, axis=-1, keepdims=True) + 1e-5),
        "by hand": lambda x: (x - mean(x)) / sm.sqrt(mean((x - mean(x)) ** 2) + 1e-5),
        "reciprocal": lambda x: (x - mean(x)) * (1 / sm.sqrt(mean(sm.square(x - mean(x))) + 1e-5)),
        "power": lambda x: (x - mean(x)) * (mean((x - mean(x)) * (x - mean(x))) + 1e-5) ** -0.5,
        "nn.layer_norm": sm.nn.layer_norm,
    },
    "cross entropy": {
        "logsumexp": lambda h, w, y: sm.mean(sm.nn.logsumexp(h @ w, axis=-1) - picked(h @ w, y)),
        "log softmax": lambda h, w, y: -sm.mean(picked(sm.nn.log_softmax(h @ w, axis=-1), y)),
        "log of softmax": lambda h, w, y: (
            -sm.mean(sm.log(picked(sm.nn.softmax(h @ w, axis=-1), y)))
        ),
        "one hot": lambda h, w, y: (
            -sm.mean(
                total(
                    sm.where(
                        y[:, None] == sm.arange(w.shape[1])[None, :],
                        sm.nn.log_softmax(h @ w, axis=-1),
                        0.0,
                    )
                )
            )
        ),
        "by hand, indexed": by_hand,
    },
    "gate": {
        "nn.silu": lambda x, w: sm.nn.silu(x @ w),
        "by hand": lambda x, w: (x @ w) / (1 + sm.exp(-(x @ w))),
        "product": lambda x, w: (x @ w) * (1 / (1 + sm.exp(-(x @ w)))),
        "einsum": lambda x, w: sm.nn.silu(sm.einsum("ij,jk->ik", x, w)),
        "transposed": lambda x, w: T(sm.nn.silu(T(w) @ T(x))),
    },
    "squares": {
        "square": lambda x: sm.sum(sm.square(x), axis=1),
        "product": lambda x: sm.sum(x * x, axis=1),
        "power": lambda x: sm.sum(x**2, axis=1),
        "magnitude": lambda x: sm.sum(sm.abs(x) ** 2, axis=1),
        "einsum": lambda x: sm.einsum("ij,ij->i", x, x),
        "vecdot": lambda x: sm.vecdot(x, x),
    },
}
"""Program -> spellings; the others are compared with the first."""


def empty(*shape: int, dtype: str = "float32") -> Any:
    """An array whose memory is never touched."""
    return np.empty(shape, dtype)


HEADS = (*(empty(2, 8, 512, 64),) * 3, empty(512, 512, dtype="bool"))
LONG = (*(empty(12, 2048, 64),) * 3, empty(2048, 2048, dtype="bool"))
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attention", "dropout", "mask", "causal mask"), HEADS),
    "long dropout": LONG,
    **dict.fromkeys(("layer norm", "squares"), (empty(2048, 1536),)),
    "cross entropy": (empty(2048, 512), empty(512, 8000), empty(2048, dtype="int64")),
    "gate": (empty(2048, 1536), empty(1536, 768)),
}


def plan_of(name: str, spelling: str, machine: Target) -> Plan:
    trace = sm.jit(SPELLINGS[name][spelling]).lower(*ARGUMENTS[name]).trace
    assert trace.graph.outputs[0].type.dtype == sm.float32
    return planned(trace.graph, trace.hints, machine)


PAIRS = [
    (isa, name, spelling)
    for isa in ("avx512", "avx2")
    for name, spellings in SPELLINGS.items()
    for spelling in list(spellings)[1:]
]


@pytest.fixture(scope="module")
def first_plans() -> dict[tuple[str, str], Plan]:
    return {}


@pytest.mark.parametrize(("isa", "name", "spelling"), PAIRS)
def test_a_spelling_is_planned_as_the_first_one(
    isa: str, name: str, spelling: str, first_plans: dict[tuple[str, str], Plan]
) -> None:
    machine = Target.for_isa(isa, cores=2)
    if (isa, name) not in first_plans:
        first_plans[isa, name] = plan_of(name, next(iter(SPELLINGS[name])), machine)
    assert plan_of(name, spelling, machine) == first_plans[isa, name]


def test_a_spelling_that_is_no_equivalent_has_another_plan() -> None:
    """The numbers that are compared are sensitive to what is stored."""
    trace = sm.jit(attention(lambda s, m: sm.sort(softmax(s)))).lower(*HEADS).trace
    sorted_weights = planned(trace.graph, trace.hints, MACHINE)
    first = plan_of("attention", "exp", MACHINE)
    assert sorted_weights[0] > first[0] and sorted_weights[1] > first[1]


def test_a_limit_of_memory_chooses_the_plan_that_recomputes() -> None:
    """On a machine where storing the scores is faster, a program with less memory still runs."""
    machine = Target.for_isa("avx2", cores=2)
    program = SPELLINGS["mask"]["product added"]
    heads = (*(empty(2, 8, 512, 256),) * 3, empty(512, 512, dtype="bool"))
    trace = sm.jit(program).lower(*heads).trace
    results = 2 * 8 * 512 * 256 * 4
    scores = 2 * 8 * 512 * 512 * 4
    assert planned(trace.graph, trace.hints, machine)[1] >= scores
    for limit in (results + scores // 2, results + 256 * 1024):
        with sm.config(max_extra_memory=limit):
            assert planned(trace.graph, trace.hints, machine)[1] == 0
