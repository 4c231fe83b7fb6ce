"""Random programs in poisoned memory give the same, right bits.

Scratch and results of an ordinary call hold what the last one left, which are numbers of the right
size at the right places: mistakes do not show.  Here they hold NaN, or the largest numbers, at
every task anew, and end at forbidden pages, as inputs do (which shifts them to addresses that are
multiples of an element).
"""

from __future__ import annotations

import ctypes
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from tests.codegen.llvm.guard_pages import KERNEL
from tests.property.oracles import agree, compiled, interpret, sizes_at, spread
from tests.runtime import poisoned_memory as poisons
from tests.runtime.poisoned_memory import LARGE, LEAST, NAN, ZERO, poisoned, run_poisoned, same_bits
from tests.strategies.effort import NIGHT, NIGHTLY, start
from tests.strategies.graphs import Program, graphs
from tests.strategies.products import STEPS, Products, products

import smelt as sm
from smelt import knobs
from smelt.graph.text import parse, text
from smelt.kernel.abi import PARALLEL
from smelt.runtime.threads import pool

pytestmark = NIGHT
GRAPHS, PROGRAMS = (2000, 400) if NIGHTLY else (40, 8)
"""Programs of each part."""
WAYS = ((NAN, True, False), (LARGE, False, True), (LEAST, True, True))
"""What memory holds, whether inputs end at forbidden pages, and whether tasks are calls."""


@pytest.mark.parametrize("part", range(2))
def test_earlier_contents_of_memory_decide_nothing(part: int) -> None:
    @seed(start(200 + part))
    @settings(
        max_examples=GRAPHS, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(graphs(max_nodes=10))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        compiled_program, wanted = compiled(graph, arrays, sizes)
        order = tuple(sizes[n] for n in compiled_program.size_names)
        for fill, at_end, apart in WAYS[:2]:
            actual = run_poisoned(
                compiled_program.executable, arrays, order, fill, at_end=at_end, one_by_one=apart
            )
            problem = same_bits(wanted, actual)
            assert not problem, f"memory of {fill:#x}, {problem}\n{text(graph)}"

    judge()


@pytest.mark.parametrize("part", range(4))
def test_products_of_computed_operands_in_poisoned_memory(part: int) -> None:
    first = start(300 + part) * PROGRAMS
    for number in range(first, first + PROGRAMS):
        program = products(number)
        problem = wrong(program)
        assert not problem, f"products({number}): {problem}\n{program.text}"


def wrong(program: Products) -> str:
    """Empty, or what is: calls that repeat, threads, memory, the graph's interpreter."""
    arrays = program.arrays
    with knobs.config(check_positions=False):
        jitted = sm.jit(program)
        trace = jitted.lower(*arrays).trace
        wanted = copies(jitted(*arrays))
        for threads in (1, 2):
            with knobs.config(threads=threads):
                problem = same_bits(wanted, copies(jitted(*arrays)))
            if problem:
                return f"{threads} threads, {problem}"
        for fill, at_end, apart in WAYS:
            with knobs.config(native_calls=False), poisoned(fill, one_by_one=apart) as memory:
                actual = copies(jitted(*(memory.copy(a, at_end=at_end) for a in arrays)))
            problem = same_bits(wanted, actual)
            if problem:
                return f"memory of {fill:#x}, {problem}"
    read = [arrays[k] for k in trace.arguments]
    sizes = sizes_at(trace.graph, read)
    allowed = spread(trace.graph, read, sizes)
    for k, exact in enumerate(interpret(trace.graph, read, sizes)):
        problem = agree(exact, wanted[k], allowed[k])
        if problem:
            return f"output {k}, graph interpreter and native code: {problem}"
    return ""


def copies(actual: tuple[Any, ...]) -> list[Any]:
    return [np.array(a) for a in actual]


# ---- the net itself --------------------------------------------------------------------------


def test_an_element_that_is_not_written_shows() -> None:
    graph = parse("graph f(x: f32[70]) {\n v0 = add(x, x)\n return v0\n}")
    x = np.arange(70, dtype=np.float32)
    program, wanted = compiled(graph, [x], {})
    same = [run_poisoned(program.executable, [x], (), fill) for fill in (ZERO, NAN)]
    assert not same_bits(wanted, same[0]) and not same_bits(wanted, same[1])
    with patch.object(poisons, "KERNEL", lambda _: lambda *_: None):  # kernels that write nothing
        actual = [run_poisoned(program.executable, [x], (), fill) for fill in (ZERO, NAN)]
    assert same_bits(*actual) == "output 0 at (0,): 0.0 and nan, 70 of 70 differ"


def test_scratch_is_new_for_every_task() -> None:
    seen: list[tuple[int, int]] = []

    @KERNEL
    def kernel(frame: int, begin: int, end: int, scratch: int) -> None:
        word = ctypes.c_uint64.from_address(scratch)
        seen.append((begin, word.value))
        word.value = frame + end

    address = ctypes.cast(kernel, ctypes.c_void_p).value
    chunks = np.array([(address, 0, 0, 3), (address, 0, 3, 4)], np.int64)
    launches = np.array([(0, 2, PARALLEL, 0)], np.int64)
    with poisoned(LARGE, one_by_one=True):
        pool().run(chunks, launches, np.zeros(1, np.int64), 8)
    assert seen == [(task, 0x7F7F7F7F7F7F7F7F) for task in (3, 2, 1, 0)]


def test_products_are_drawn_again_as_they_were() -> None:
    first, second = products(5), products(5)
    assert first.text == second.text and not same_bits(first.arrays, second.arrays)
    kinds = {step[1] for number in range(60) for step in products(number).steps}
    assert kinds == set(STEPS)
