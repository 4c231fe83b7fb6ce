"""Random programs agree in three oracles, fused and not, on every number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, seed, settings
from tests.property.oracles import agree, compiled, interpret, kernels_agree, sizes_at, spread
from tests.strategies.effort import NIGHT, NIGHTLY, start
from tests.strategies.graphs import Program, graphs
from tests.trust import measured

from smelt import knobs
from smelt.graph.text import parse, text
from smelt.types.dtype import bf16

pytestmark = NIGHT
CASES = 3500 if NIGHTLY else 150
"""Programs of each of the parts below: 1500 and more in an ordinary run, 20,000 a night."""


@pytest.mark.parametrize("part", range(6))
def test_graph_interpreter_and_native_code_agree(part: int) -> None:
    @seed(start(part))
    @settings(max_examples=CASES, deadline=None, database=None)
    @given(graphs(max_nodes=10))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        wanted, allowed = interpret(graph, arrays, sizes), spread(graph, arrays, sizes)
        _, result = compiled(graph, arrays, sizes)
        for k, (a, b) in enumerate(zip(wanted, result, strict=True)):
            problem = agree(a, b, allowed[k])
            assert not problem, f"output {k}: {problem}\n{text(graph)}"

    judge()
    measured("programs in each part", CASES)


@pytest.mark.parametrize("part", range(2))
def test_kernel_interpreter_and_native_code_agree(part: int) -> None:
    @seed(start(100 + part))
    @settings(max_examples=CASES // 2, deadline=None, database=None)
    @given(graphs(max_nodes=8))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        compiled_program, _ = compiled(graph, arrays, sizes)
        problem = kernels_agree(compiled_program, arrays, sizes, spread(graph, arrays, sizes))
        assert not problem, f"{problem}\n{text(graph)}"

    judge()


def test_results_have_the_same_bits_for_every_number_of_threads() -> None:
    @seed(start(7))
    @settings(max_examples=CASES // 5, deadline=None, database=None)
    @given(graphs(max_nodes=8))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        compiled_program, first = compiled(graph, arrays, sizes, threads=1)
        for threads in (2, 3):
            with knobs.config(threads=threads):
                again = compiled_program.run(
                    list(arrays), tuple(sizes[n] for n in compiled_program.size_names)
                )
            for a, b in zip(first, again, strict=True):
                assert a.tobytes() == b.tobytes(), text(graph)

    judge()


@pytest.mark.parametrize("part", range(2))
def test_exact_rounding_has_the_bits_of_one_kernel_per_operator(part: int) -> None:
    @seed(start(400 + part))
    @settings(max_examples=CASES // 2, deadline=None, database=None)
    @given(graphs(max_nodes=10))
    def judge(program: Program) -> None:
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        _, fused = compiled(graph, arrays, sizes, rounding="exact")
        _, single = compiled(graph, arrays, sizes, rounding="exact", fuse=False)
        for k, (a, b) in enumerate(zip(fused, single, strict=True)):
            assert bits_of(a) == bits_of(b), f"output {k}\n{text(graph)}"

    judge()
    measured("programs in each part", CASES // 2)


def bits_of(a: np.ndarray) -> bytes:
    """The bytes of an array, with one NaN for all."""
    return np.where(a == a, a, np.asarray(np.nan, a.dtype) if a.dtype.kind in "fV" else a).tobytes()


def test_partial_sums_that_cancel_leave_their_rounding() -> None:
    graph = parse("graph f(x: bf16[5]) {\n v0 = scan.sum(x) {axis=0}\n return v0\n}")
    x = np.asarray([0.5, 0.25, 3e38, -3e38, 0.125]).astype(bf16.numpy)
    (wanted,), (allowed,) = interpret(graph, [x], {}), spread(graph, [x], {})
    (exact,) = interpret(graph, [x[[2, 3, 0, 1, 4]]], {})
    assert not agree(wanted[4:], exact[4:], allowed[4:])
    assert agree(wanted[:2], wanted[:2] * 2, allowed[:2])


def test_a_disturbed_program_is_noticed() -> None:
    """The tolerance is not so wide that a wrong operator would pass."""
    noticed = 0

    @seed(3)
    @settings(max_examples=60, deadline=None, database=None)
    @given(graphs(max_nodes=8, steps=["unary", "binary", "reduce"]))
    def judge(program: Program) -> None:
        nonlocal noticed
        graph, arrays = program
        sizes = sizes_at(graph, arrays)
        wanted, allowed = interpret(graph, arrays, sizes), spread(graph, arrays, sizes)
        for k, a in enumerate(wanted):
            if a.size and a.dtype == np.float32 and np.isfinite(a).all():
                wrong = (a + np.float32(1e-2) * (1 + np.abs(a))).astype(np.float32)
                noticed += bool(agree(a, wrong, allowed[k]))
                return

    judge()
    assert noticed >= 10
