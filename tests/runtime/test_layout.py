"""Memory layout for known sizes: no live values overlap, and memory is minimal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from smelt import knobs
from smelt.compiler import driver
from smelt.graph.interp import run as interpret
from smelt.graph.text import parse
from smelt.runtime.plan_tables import (
    CACHE_LINE_BYTES,
    MIN_SAVED_BYTES,
    CallStep,
    KernelStep,
    LaunchTableBuilder,
    Layout,
    Step,
    Value,
    place_values,
)
from smelt.types.dtype import f32, u8
from smelt.types.expr import Index, add, size

MIB = 1 << 20


def kernel(*values: int, partials: Sequence[Index] = ()) -> KernelStep:
    return KernelStep("k", (), tuple(("value", n) for n in values), tuple(partials))


def test_kernels_share_what_they_want_for_a_launch():
    """Eight layers that pack four MiB each: one of them at a time lies beside what is alive."""
    values = [Value(f32, (1000,), "input", 0), Value(f32, (1000,), "output", 0)]
    values += [Value(f32, (1000,), "arena", -1, k % 2 * 4032) for k in range(7)]
    order = [0, *range(2, 9), 1]
    steps = [[kernel(a, b, partials=[4 * MIB])] for a, b in pairwise(order)]
    actual = place_values(values, steps, [8064], {})
    assert actual.nbytes == 4 * MIB + 2 * 4032
    assert len(actual.partials) == 8


def test_kernels_of_one_launch_share_nothing():
    values = [Value(f32, (1000,), "input", 0), *(Value(f32, (9,), "output", k) for k in range(2))]
    steps = [[kernel(0, 1, partials=[MIB, MIB]), kernel(0, 2, partials=[MIB])]]
    assert place_values(values, steps, [], {}).nbytes == 3 * MIB


def test_small_memory_stays_as_it_is_planned():
    values = [Value(u8, (size("n"),), "arena", -1, 64)]
    n = MIN_SAVED_BYTES // 2
    actual = place_values(
        values, [[kernel(0)], [kernel(partials=[n])]], [add(size("n"), 64)], {"n": n}
    )
    assert actual.values == {0: (-1, 64)} and actual.nbytes == 2 * n + 64


def test_what_a_kernel_reads_is_none_of_its_results():
    """Results may be stored non-temporally only if they exceed the caches together.

    They must not be computed from an earlier result.
    """
    values = [Value(f32, (1000,), "input", 0)]
    values += [Value(f32, (1000,), "output", k) for k in range(4)]
    queries: list[bool] = []
    steps = [
        [replace(kernel(*n), specialize=lambda _, past: queries.append(past), stream_above=6000)]
        for n in ((0, 1), (1, 2), (2, 3, 4, 3))
    ]
    LaunchTableBuilder(values, {}).build(steps, [])
    assert queries == [False, False, True]


@pytest.mark.parametrize("seed", range(40))
def test_offsets_of_random_programs(seed: int):
    r = random.Random(seed)
    n, launches = 1 << 16, r.randint(2, 14)
    sizes = {"n": n, "m": r.randint(1, 3 * n)}
    groups: list[list[Step]] = [[] for _ in range(launches)]
    values: list[Value] = []
    lives: dict[int, tuple[int, int]] = {}
    top: Index = 0
    for _ in range(r.randint(1, 30)):
        number, first = len(values), r.randrange(launches)
        last = min(first + r.randint(0, 4), launches - 1)
        shape: tuple[Index, ...] = (r.randint(1, 9), r.choice([size("n"), size("m"), 100]))
        if r.random() < 0.2:
            values.append(Value(u8, shape, "output", sum(v.place == "output" for v in values)))
            last = launches - 1
        else:
            values.append(Value(u8, shape, "arena", -1, top))
            top = add(top, CACHE_LINE_BYTES * 4 * n)
        lives[number] = first, last
        for time in {first, last}:
            if r.random() < 0.8:
                groups[time].append(kernel(number, partials=[r.choice([0, 5000, 9 * n])]))
            else:
                groups[time].append(CallStep("c", lambda *_: None, (number,), ()))
    check(place_values(values, groups, [top], sizes), values, lives, groups, sizes)


def check(
    actual: Layout,
    values: Sequence[Value],
    lives: dict[int, tuple[int, int]],
    groups: Sequence[Sequence[Step]],
    sizes: dict[str, int],
) -> None:
    def nbytes(number: int) -> int:
        a, b = values[number].shape
        return int(a if isinstance(a, int) else 0) * (b if isinstance(b, int) else sizes[str(b)])

    results = {v.number: n for n, v in enumerate(values) if v.place == "output"}
    spans = [(host, at, at + nbytes(n), *lives[n]) for n, (host, at) in actual.values.items()]
    assert len(spans) == sum(v.place == "arena" for v in values)
    for host, _, end, _, last in spans:
        if host >= 0:
            assert end <= nbytes(results[host]) and last < lives[results[host]][0]
    for (time, k, j), at in actual.partials.items():
        step = groups[time][k]
        assert isinstance(step, KernelStep)
        spans.append((-1, at, at + int(str(step.partials[j])), time, time))
    for k, (host, begin, end, first, last) in enumerate(spans):
        assert begin % CACHE_LINE_BYTES == 0 and (host >= 0 or end <= actual.nbytes)
        for other, b, e, since, until in spans[:k]:
            met = host == other and first <= until and since <= last
            assert not met or end <= b or e <= begin


def test_a_value_over_another_stays_over_it():
    """What the plan writes in place has one place here, too."""
    n = 4 * MIB
    values = [
        Value(u8, (n,), "arena", -1, 3 * n),
        Value(u8, (n,), "arena", -1, 3 * n),
        Value(u8, (n,), "arena", -1, 0),
    ]
    steps = [[kernel(0)], [kernel(0, 1)], [kernel(1, 2)]]
    actual = place_values(values, steps, [4 * n], {})
    assert actual.values[0] == actual.values[1] != actual.values[2]
    assert actual.nbytes == 2 * n


SQUARES = """graph f(x: f32[n,16], w: f32[16,2000]) {
  b = contract(x, x) {spec="i,k; j,k -> i,j"}
  c = scan.sum(b) {axis=1}
  d = contract(c, x) {spec="i,j; j,k -> i,k"}
  y = contract(d, w) {spec="i,k; k,j -> i,j"}
  return y
}"""


@pytest.mark.parametrize("n", [300, 2100])
def test_a_square_is_stored_in_the_result_where_it_fits(n: int):
    """For 300 rows it is smaller than the result, for 2100 larger; one plan serves both."""
    graph = parse(SQUARES)
    with knobs.config(fuse=False):
        program = driver.compile(graph, hints={"n": 300})
    r = np.random.default_rng(0)
    x, w = (r.standard_normal(s).astype("f4") for s in ((n, 16), (16, 2000)))
    (actual,) = program.run([x, w], (n,))
    (wanted,), (terms,) = (interpret(graph, inputs) for inputs in ([x, w], [abs(x), abs(w)]))
    roundings = 2 * (16 + n + n + 16)  # of either side
    assert (abs(actual - wanted) <= roundings * 2.0**-24 * terms).all()
    arena = program.executable.prepared((n,)).arena_bytes
    assert arena < MIN_SAVED_BYTES if n == 300 else arena >= 4 * n * n
