"""Long loop bodies split into several loops give the same bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm.loops import distribute
from smelt.codegen.llvm.nests.nest import Nest
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text import parse
from smelt.loop.ir import CACHE_LINE
from smelt.machine.target import Target
from smelt.runtime import code

Array = np.ndarray[Any, Any]

PROGRAMS: dict[str, Callable[..., Any]] = {
    "one chain": lambda x: sm.tanh(sm.exp(sm.sin(x))),
    "a value that all stages read": lambda x: x * sm.tanh(sm.log1p(sm.exp(x))) + sm.erf(x) * x,
    "two results": lambda x: (sm.erf(sm.exp(sm.sin(x))), sm.tanh(sm.cos(x)) * sm.exp(x)),
    "a condition that crosses a cut": lambda x: sm.where(
        sm.sin(x) > 0, sm.tanh(sm.exp(x)), sm.erf(sm.cos(x))
    ),
    "an integer that crosses a cut": lambda x: (
        sm.astype(sm.exp(sm.sin(x)) * 100, sm.int32) * sm.astype(sm.erf(sm.tanh(x)) > 0, sm.int32)
    ),
    "a fold of rows": lambda x: sm.sum(sm.tanh(sm.exp(sm.sin(x))), axis=-1),
    "a fold of columns": lambda x: sm.sum(sm.tanh(sm.exp(sm.sin(x))), axis=0),
    "a row twice": lambda x: sm.nn.softmax(sm.tanh(sm.exp(sm.sin(x))), axis=-1),
    "a sum of exponentials": lambda x: sm.sum(sm.exp(x), axis=-1),
    "softmax": lambda x: sm.nn.softmax(x, axis=-1),
    "entropy": lambda x: sm.sum(sm.nn.softmax(x) * sm.nn.log_softmax(x), axis=-1),
    "a sum and its terms": lambda x: (sm.exp(x), sm.sum(sm.exp(x), axis=-1), sm.max(x, axis=-1)),
    "a product of exponentials": lambda x: sm.prod(sm.exp(x * 0.01), axis=-1),
    "what only rows decide": lambda x: sm.tanh(sm.exp(sm.sin(x)) + sm.sum(x, axis=1)[:, None]),
    "a quotient that no element changes": lambda x: _with_quotient(
        sm.tanh(sm.exp(sm.sin(x))), sm.argmax(x[:, :, None], axis=2)
    ),
}


def _with_quotient(x: sm.Array, zero: sm.Array) -> sm.Array:
    return sm.where(zero // (zero | 1) <= zero, sm.tanh(x) * sm.cos(x), sm.erf(x))


def nests_of(text: str) -> tuple[Nest, ...]:
    return schedule(program(parse(text)).phases[0], Target.host()).nests


def computed(f: Callable[..., Any], x: Array) -> list[Array]:
    """The results in one process of a new function, nothing from a cache."""
    with knobs.config(cache=False, threads=1):
        result = sm.jit(f)(x)
    return [np.asarray(a) for a in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_stages_give_the_bits_of_one_loop(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    for shape in ((3, 1), (2, 37), (2, 512), (3, 1600), (0, 40)):
        x = np.random.default_rng(7).standard_normal(shape).astype(dtype)
        staged = computed(PROGRAMS[name], x)
        with monkeypatch.context() as patch:
            patch.setattr(distribute, "LONG_BODY_CYCLES", 1e9)
            patch.setattr(distribute, "MIN_SUM_CYCLES", 1e9)
            code.forget()
            whole = computed(PROGRAMS[name], x)
            code.forget()
        for a, b in zip(staged, whole, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_long_body_is_cut_and_a_short_one_is_not() -> None:
    x = np.ones((64, 1024), "f4")
    long = sm.explain(sm.jit(PROGRAMS["one chain"]), x).kernels
    short = sm.explain(sm.jit(lambda x: sm.exp(x) + 1), x).kernels
    assert len(long) == len(short) == 1
    loops = [len(re.findall(r"= phi\s+i64", k.llvm)) for k in (long[0], short[0])]
    assert loops[0] >= loops[1] + 2


def test_a_sum_behind_a_function_has_a_loop_of_its_own() -> None:
    x = np.ones((64, 1024), "f4")
    loops = {
        name: len(re.findall(r"= phi\s+i64", sm.explain(sm.jit(f), x).kernels[0].llvm))
        for name, f in {
            "plain": lambda x: sm.sum(x * x, axis=-1),
            "behind": lambda x: sm.sum(sm.exp(x), axis=-1),
            "no conversion": lambda x: sm.max(sm.exp(x), axis=-1),
        }.items()
    }
    assert loops["behind"] == loops["plain"] + 2  # strips, and the sum's
    assert loops["no conversion"] == loops["plain"]


def test_stages_share_their_loads() -> None:
    """A body of many stages asks for each line of its operands once, not in every stage."""

    def run(*xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = sm.tanh(sm.exp(sm.sin(y))) * x
        return y

    actual: dict[int, tuple[int, int]] = {}
    for count in (6, 12):
        (kernel,) = sm.explain(sm.jit(run), *(np.ones((64, 1024), "f4"),) * count).kernels
        (nest,) = (n for n in nests_of(kernel.text) if n.order)
        lines = Target.host().lanes(4) * nest.unroll * 4 // CACHE_LINE
        prefetches = len(re.findall(r"call void @\"llvm.prefetch", kernel.llvm))
        assert len(nest.stages) > 2 * lines
        assert prefetches == count * lines
        actual[count] = prefetches, kernel.llvm.count("\n")
    assert actual[12][1] <= 2.3 * actual[6][1]


def test_selections_by_position_run_in_pieces_rather_than_stages() -> None:
    """Whole sides are left out there, which no stage can."""
    joined = sm.explain(
        sm.jit(lambda x, y: sm.concat([sm.exp(x), sm.exp(y)], axis=-1)),
        np.ones((8, 3000), "f4"),
        np.ones((8, 3000), "f4"),
    )
    assert all(s.order and not s.stages for k in joined.kernels for s in nests_of(k.text))


def test_a_result_may_overwrite_the_input() -> None:
    x = np.random.default_rng(3).standard_normal((9, 1500)).astype("f4")
    f = sm.jit(PROGRAMS["a value that all stages read"])
    expected = np.array(f(x))
    out = x.copy()
    f(out, out=out)
    assert np.array_equal(out, expected)
    inputs = sm.jit(PROGRAMS["a value that all stages read"], donate=0)
    assert np.array_equal(np.asarray(inputs(x.copy())), expected)


STREAMED: dict[str, Callable[..., Any]] = {
    "a power of shares": lambda x: sm.sum(sm.nn.softmax(x, axis=-1) ** 2.5, axis=-1),
    "shares of something dear": lambda x: sm.sum(
        sm.nn.softmax(x, axis=-1) * sm.tanh(sm.erf(sm.sin(x) + 1)), axis=-1
    ),
}


@pytest.mark.parametrize("name", STREAMED)
def test_what_a_stream_carries_is_read_in_every_stage(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The blocks of a long row: what they know of the blocks before is one number for all lanes."""
    f, rng = STREAMED[name], np.random.default_rng(5)

    def loops(x: Array) -> int:
        (kernel,) = sm.explain(sm.jit(f), x).kernels
        assert "stream" in kernel.text
        return len(re.findall(r"= phi\s+i64", kernel.llvm))

    for n in ((1 << 20) + 77, 1 << 20):
        x = rng.standard_normal((2, n)).astype("f4")
        actual = loops(x)
        (staged,) = computed(f, x)
        with monkeypatch.context() as patch:
            patch.setattr(distribute, "LONG_BODY_CYCLES", 1e9)
            code.forget()
            (whole,) = computed(f, x)
            assert loops(x) < actual
            code.forget()
        assert staged.tobytes() == whole.tobytes()
        if name == "a power of shares":
            e = np.exp(x.astype("f8") - x.max(axis=-1, keepdims=True))
            wanted = ((e / e.sum(axis=-1, keepdims=True)) ** 2.5).sum(axis=-1)
            assert np.allclose(staged, wanted, rtol=1e-5)
