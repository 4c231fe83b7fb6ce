"""Buffers: no two live values overlap, at any sizes, in little memory."""

from __future__ import annotations

import random

import pytest
from tests.fusion.dags import random_graph
from tests.fusion.formulas import MACHINE, Formula, execute

from smelt.fusion import Plan, plan
from smelt.fusion.memory import (
    CACHE_LINE_BYTES,
    Buffer,
    _at_most,
    _pack_buffers,
    _place_in_results,
    round_to_line,
    upper_bounds,
)
from smelt.fusion.plan import Slot
from smelt.fusion.text import parse, text
from smelt.fusion.verify import overlapping
from smelt.graph import build
from smelt.graph.interp import run
from smelt.journal.facts import BufferPlanned, Journal
from smelt.kernel.offsets import lower_bound, peak
from smelt.types.dtype import u8
from smelt.types.expr import Index, add, evaluate, mul, size
from smelt.types.tensor import TensorType


def arena(actual: Plan, sizes: dict[str, int]) -> int:
    ends = [
        evaluate(s.offset, sizes) + evaluate(s.nbytes, sizes)
        for s in actual.slots
        if s.offset is not None and s.within is None
    ]
    return int(max(ends, default=0))


def fullest(actual: Plan, sizes: dict[str, int]) -> int:
    """The most bytes that live at one time, one buffer for values that share one."""
    step = {k: s for s, group in enumerate(actual.launches) for k in group}
    homes: dict[object, list[Slot]] = {}
    for s in actual.slots:
        if s.offset is not None and s.within is None:
            root: Slot = s
            while root.reuses is not None:
                root = next(o for o in actual.slots if o.node is root.reuses)
            homes.setdefault(root.node, []).append(s)
    most = 0
    for now in range(len(actual.launches)):
        live = 0
        for group in homes.values():
            if any(step[s.first] <= now <= step[s.last] for s in group):
                live += int(evaluate(round_to_line(group[0].nbytes), sizes))
        most = max(most, live)
    return most


@pytest.mark.parametrize("seed", range(25))
def test_live_values_never_share_memory(seed: int):
    g, graph = random_graph(seed, 50, sorts=0.15, results=2)
    fused_plan = plan(graph, MACHINE, None, g.sizes)
    r = random.Random(seed)
    for _ in range(20):
        sizes = {name: r.choice((1, 2, 3, 17, 64, 100, 1001, 50000)) for name in g.sizes}
        assert overlapping(fused_plan, sizes) is None, sizes


@pytest.mark.parametrize("seed", range(40))
def test_what_slices_leave_is_as_large_as_it_says(seed: int):
    """Sizes such as m - 2 take away: what is as long as m does not fit there."""
    g, graph = random_graph(seed, 20, sorts=0.1, cuts=0.3, results=2)
    fused_plan = plan(graph, MACHINE, None, g.sizes)
    r = random.Random(seed)
    for _ in range(20):
        sizes = {name: r.choice((5, 6, 17, 64, 100, 1001, 50000)) for name in g.sizes}
        assert overlapping(fused_plan, sizes) is None, sizes


def test_a_value_does_not_live_in_a_shorter_result():
    g = Formula(n=1000, m=100)
    whole = g.sort(g.sort(g.input("x", "n", "m")))
    fused_plan = g.plan(g.sort(g.cut(whole, 1, 0, add(g.dim("m"), -2))))
    for slot in fused_plan.slots:
        assert slot.within is None or slot.node.type == slot.within.type
    assert overlapping(fused_plan, {"n": 1000, "m": 100}) is None


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_the_arena_is_nearly_as_small_as_it_can_be(seed: int, fuse: bool):
    g, graph = random_graph(seed, 60, sorts=0.2, results=1)
    fused_plan = plan(graph, MACHINE, None, g.sizes, fuse=fuse)
    bound = fullest(fused_plan, g.sizes)
    assert (
        bound <= arena(fused_plan, g.sizes) + CACHE_LINE_BYTES
        and arena(fused_plan, g.sizes) <= 1.2 * bound
    )


@pytest.mark.parametrize("seed", range(30))
def test_packing_of_random_lives(seed: int):
    """Against the bound, with sizes of several unrelated symbols."""
    r = random.Random(seed)
    n, m = size("n"), size("m")
    most = 5000 if seed % 3 else 90
    hints = {"n": r.randint(1, 5000), "m": r.randint(1, most)}
    kinds: list[Index] = [n * 4, m * 4, n * 64, m * 100, 4 * n * m // 64, add(n * 8, m * 12)]
    if seed % 3 == 0:  # rows less some, of which a part is negative
        kinds = [n * 6400, n * m * 64, n * 6400 - n * m * 36, n * 6400 - n * m * 68]
    buffers: list[Buffer] = []
    for _ in range(40):
        first = r.randint(0, 30)
        nbytes = round_to_line(r.choice(kinds))
        hint = int(evaluate(nbytes, hints))
        buffers.append(Buffer([], nbytes, hint, first, first + r.randint(0, 6)))
    _pack_buffers(buffers, hints)
    assert peak(buffers) <= 1.2 * lower_bound(buffers)
    for _ in range(15):
        sizes = {"n": r.randint(1, 10000), "m": r.randint(1, 2 * most if seed % 3 else most)}
        spans = [
            (at := max(evaluate(s, sizes) for s in b.sums), at + evaluate(b.nbytes, sizes))
            for b in buffers
        ]
        for k, b in enumerate(buffers):
            for j, c in enumerate(buffers[:k]):
                if b.overlaps_in_time(c):
                    assert spans[k][1] <= spans[j][0] or spans[j][1] <= spans[k][0]


def test_a_ceiling_covers_every_sum():
    r = random.Random(1)
    n, m = size("n"), size("m")
    for _ in range(50):
        sums: list[Index] = [
            add(
                add(mul(n, r.randint(-9, 9)), mul(m, r.randint(-3, 9))),
                mul(mul(n, m), r.randint(0, 3)),
            )
            for _ in range(r.randint(1, 30))
        ]
        hints = {"n": r.randint(1, 99), "m": r.randint(1, 99)}
        kept = upper_bounds(sums, hints)
        assert len(kept) <= 8
        assert max(evaluate(k, hints) for k in kept) >= max(evaluate(s, hints) for s in sums)
        for _ in range(10):
            sizes = {"n": r.randint(1, 999), "m": r.randint(1, 999)}
            most = max(evaluate(s, sizes) for s in sums)
            assert max(evaluate(k, sizes) for k in kept) >= most


# ---- in the memory of results ------------------------------------------------------------------


def test_values_before_a_large_result_live_in_it():
    g = Formula(n=1000, m=1000)
    s = g.sort(g.sort(g.sort(g.input("x", "n", "m"))))
    fused_plan = g.plan(g.of("exp", s))
    first, *_, last, result = fused_plan.slots
    assert first.within is result.node
    assert last.within is None  # the result is made from it
    assert text(parse(text(fused_plan), fused_plan.graph)) == text(fused_plan)
    for sizes in ({"n": 3, "m": 5}, {"n": 0, "m": 5}, {"n": 1, "m": 1}):
        assert overlapping(fused_plan, sizes) is None


def test_what_a_result_cannot_hold_at_all_sizes_lives_in_the_arena():
    g = Formula(n=10, m=1000)
    s = g.sort(g.sort(g.input("x", "n", "m")))
    small = g.sort(g.fold("sum", s, 0))
    assert all(slot.within is None for slot in g.plan(small).slots if slot.node.type.rank == 2)


def test_parts_of_lines_keep_nothing_out_of_a_result():
    n = size("n")
    numbers = Buffer([], round_to_line(n * 4), 64, 0, 3, filled=n * 4)
    values = Buffer([], n * 64, 64, 1, 2, filled=n * 64)
    for room, left in ((n * 128, []), (n * 96, [values])):
        result = build.input("y", TensorType(u8, (room,)))
        numbers.within = values.within = None
        assert _place_in_results([numbers, values], {result: 5}, {"n": 1}) == left


@pytest.mark.parametrize("seed", range(3))
def test_lines_rounded_up_term_by_term_are_enough(seed: int):
    r = random.Random(seed)
    for _ in range(50):
        n, m = size("n"), size("m")
        e = add(
            round_to_line(n * r.randint(1, 200) + n * m * r.randint(1, 200)), n * r.randint(0, 9)
        )
        for sizes in ({"n": r.randint(0, 99), "m": r.randint(0, 99)} for _ in range(10)):
            assert evaluate(_at_most(e), sizes) >= evaluate(e, sizes)


# ---- in place ----------------------------------------------------------------------------------


def chain_of_calls(g: Formula, count: int):
    x = g.input("x", "n", "m")
    for _ in range(count):
        x = g.of("exp", g.sort(x))
    return g.sort(x)


def test_results_take_over_dying_inputs():
    g = Formula(n=1000, m=1000)
    fused_plan = g.plan(chain_of_calls(g, 3))
    over = [s for s in fused_plan.slots if s.reuses is not None]
    assert [s.node.op.name for s in over] == ["exp"] * 3
    assert arena(fused_plan, g.sizes) == 2 * 4 * 1000 * 1000


def test_nothing_is_taken_over_that_is_read_again():
    g = Formula(n=1000, m=1000)
    s = g.sort(g.input("x", "n", "m"))
    fused_plan = g.plan(g.of("add", g.sort(g.of("exp", s)), s))
    assert [s.reuses for s in fused_plan.slots] == [None] * len(fused_plan.slots)


def test_nothing_is_taken_over_that_is_read_elsewhere_in_the_array():
    g = Formula(n=1000, m=1000)
    s = g.sort(g.input("x", "n", "m"))
    fused_plan = g.plan(g.sort(g.of("add", s, g.flip(s, 0))))
    assert all(slot.reuses is None for slot in fused_plan.slots)
    fused_plan = g.plan(g.sort(g.flip(g.of("exp", s), 1)))  # a view of the result, made by the call
    assert sum(slot.reuses is s for slot in fused_plan.slots) == 1


def test_no_type_takes_over_another():
    from smelt.graph import build
    from smelt.types.dtype import i32

    g = Formula(n=1000, m=1000)
    s = g.sort(g.input("x", "n", "m"))
    fused_plan = g.plan(g.sort(build.cast(s, i32)))
    assert all(s.reuses is None for s in fused_plan.slots)


def test_buffers_are_facts():
    g = Formula(n=1000, m=1000)
    x = chain_of_calls(g, 2)
    journal = Journal()
    fused_plan = plan(g.graph(x), MACHINE, journal, g.sizes)
    facts = {f.value: f for f in journal.of(BufferPlanned)}
    assert len(facts) == len(fused_plan.slots)
    assert [f.place for f in facts.values()].count("output") == 1
    assert {f.reuses for f in facts.values()} - {""} <= set(facts)
    assert all(f.bytes == 4 * 1000 * 1000 and f.first <= f.last for f in facts.values())


def test_inputs_and_results_are_never_in_the_arena():
    g = Formula(n=100, m=100)
    x = g.input("x", "n", "m")
    a = g.of("exp", x)
    b = g.sort(a)
    fused_plan = g.plan(a, b, x)
    assert {s.node for s in fused_plan.slots} == {a, b}
    assert all(s.offset is None for s in fused_plan.slots)


@pytest.mark.parametrize("seed", range(12))
def test_plans_run_from_the_arena(seed: int):
    """Every cluster reads its inputs from, and writes its outputs to, one block of bytes."""
    import numpy as np

    g, graph = random_graph(seed, 30, sorts=0.2, results=2)
    fused_plan = plan(graph, MACHINE, None, g.sizes)
    sizes = {"n": 7, "m": 5}
    rng = np.random.default_rng(seed)
    arrays = [
        rng.standard_normal([int(evaluate(d, sizes)) for d in x.type.shape]).astype(np.float32)
        for x in graph.inputs
    ]
    block = np.full(arena(fused_plan, sizes), 255, np.uint8)
    got = execute(fused_plan, arrays, sizes, block)
    for one, other in zip(got, run(graph, arrays, sizes), strict=True):
        np.testing.assert_array_equal(one, other)
