"""Prefetching of the next task's rows: which kernels do, with unchanged results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.codegen.llvm.access.prefetch import assign_row_shares
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text_parse import parse
from smelt.runtime.host import host

SPEC = sm.spec("f32[r,c]")


def _code(f: Any, *specs: Any) -> str:
    return sm.jit(f).lower(*(specs or (SPEC,))).compile().as_text("llvm")


def _norm(x: Any) -> Any:
    d = x - sm.mean(x, axis=-1, keepdims=True)
    return d / sm.sqrt(sm.mean(d * d, axis=-1, keepdims=True) + 1e-5)


def test_rows_of_several_nests_are_prefetched() -> None:
    """Into the first cache, behind whose lines the processor foresees more."""
    for code in (_code(_norm), _code(lambda x, y: _norm(x + y), SPEC, SPEC)):
        prefetches = re.findall(r"llvm.prefetch.*i32 (\d), i32 1", code)
        assert prefetches
        assert {*prefetches} == {"3"}


def _logsumexp(x: Any) -> Any:
    top = sm.max(x, axis=-1, keepdims=True)
    return sm.log(sm.sum(sm.exp(x - top), axis=-1)) + top[:, 0]


@pytest.mark.parametrize("f", [_logsumexp, lambda x: sm.std(x, axis=-1)])
def test_rows_that_are_reduced_to_a_number_are_prefetched(f: Any) -> None:
    """The last nest that walks a row prefetches the next one.

    Nests that compute with the numbers alone, a vector of rows at a time, prefetch nothing.
    """
    text = sm.jit(f).lower(SPEC).compile().as_text("kernel")
    (phase,) = program(parse(text)).phases
    actual = assign_row_shares(schedule(phase, host()))
    assert [sum(ask.share for ask in asks) for asks in actual.values()] == [0, 1]


def test_nests_before_all_rows_prefetch_nothing() -> None:
    """Beside a product a task has several rows, and factors along them are computed once."""

    def f(r: Any) -> Any:
        k = sm.arange(r.shape[1], dtype=r.dtype)
        near = 0.9 ** sm.abs(k[:, None] - k[None, :])
        return sm.sum(r * 0.9**k, axis=1), sm.matmul(r, near)

    r = np.random.default_rng(0).random((5, 9)).astype(np.float32)
    k = np.arange(9)
    sums, product = (np.asarray(y) for y in sm.jit(f)(r))
    np.testing.assert_allclose(sums, np.sum(r * 0.9**k, axis=1), rtol=1e-5)
    np.testing.assert_allclose(product, r @ 0.9 ** np.abs(k[:, None] - k), rtol=1e-5)


def test_one_pass_leaves_prefetching_to_the_processor() -> None:
    assert "llvm.prefetch" not in _code(lambda x: x * 2 + 1)
    assert "llvm.prefetch" not in _code(
        lambda x: sm.sum(x[:, :100], axis=-1), sm.spec("f32[r,512]")
    )


def test_a_reduction_of_neighbouring_rows_prefetches_the_next_page() -> None:
    """4096 bytes and more behind what is read, into the first cache: a line for each 16 numbers."""
    one_by_one = (lambda x: sm.sum(_logsumexp(x)),)  # of the rows of a task, their maxima at first
    for f in (sm.sum, lambda x: sm.max(x, axis=-1), lambda x: sm.argmin(x, axis=-1), *one_by_one):
        code = _code(f)
        near = r".*llvm.prefetch.*i32 3"
        prefetches = re.findall(rf"getelementptr i8, ptr %\S+ i64 (\d+)\n{near}", code)
        numbers = re.findall(rf"add i64 %\S+ (\d+)\n.*getelementptr float.*\n{near}", code)
        distances = {*map(int, prefetches), *(4 * int(n) for n in numbers)}
        assert {4096, 4160} <= distances, code
        # Lines of a share of the next row, of at most a vector, follow a position of their own.
        assert min(n for n in distances if n >= 256) == 4096


@pytest.mark.parametrize("shape", [(1, 1), (1, 4097), (7, 64), (33, 1000)])
def test_nothing_behind_the_last_row_is_used(shape: tuple[int, int]) -> None:
    """The row after the last one does not exist: asking for it must do nothing."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    d = x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64)
    expected = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(np.asarray(sm.jit(_norm)(x)), expected, rtol=2e-5, atol=2e-5)


def _chain(x: Any, a: Any, b: Any) -> Any:
    return sm.maximum(sm.maximum(x @ a, 0) @ b, 0)


def _kernel_of_chain() -> Any:
    arrays = [np.ones(s, np.float32) for s in ((4096, 64), (64, 64), (64, 64))]
    with sm.fuse(must=True):
        (kernel,) = sm.explain(sm.jit(_chain), *arrays).kernels
    return kernel


def test_tiles_of_a_chain_prefetch_for_writing() -> None:
    prefetches = "i32 1, i32 3, i32 1)"
    assert prefetches in _kernel_of_chain().llvm
    assert prefetches not in _code(lambda x, a: x @ a, SPEC, sm.spec("f32[c,n]"))


def test_loops_of_whole_tiles_find_no_size_of_a_block_again() -> None:
    """LLVM takes what an address is made of into a loop, quotients too, unless it is hidden."""
    loops: list[list[str]] = []
    label, body = "", list[str]()
    for line in map(str.strip, _kernel_of_chain().asm.splitlines()):
        if line.endswith(":"):
            label, body = line[:-1], []
        elif label and line.startswith("j") and line.endswith(label):
            loops.append(body)
        body.append(line)
    sums = [sum("fmadd" in line for line in b) for b in loops]
    whole = [b for b, n in zip(loops, sums, strict=True) if n >= 0.5 * max(sums)]
    actual = [line for b in whole for line in b if line.startswith(("imul", "mulx", "div"))]
    assert max(sums) >= 4
    assert not actual
