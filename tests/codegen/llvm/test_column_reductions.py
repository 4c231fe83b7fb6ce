"""Column reductions of tall arrays: one pass, split over tasks, with stable bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm
from smelt import knobs
from smelt.codegen.llvm import nest_loops, vector_loops
from smelt.codegen.llvm.loopir.items import Access, Item, Load, apply
from smelt.codegen.llvm.loops import unroll_factor
from smelt.machine.blocks import BLOCK, rows_per_task
from smelt.machine.target import Isa
from smelt.runtime import code
from smelt.types.dtype import f32
from smelt.types.expr import add, evaluate, floordiv, mul, size


def _statistics(x: Any) -> Any:
    return sm.mean(x, axis=0), sm.var(x, axis=0)


def _columns(rows: int, columns: int, offset: float = 0.0) -> Any:
    rng = np.random.default_rng(rows)
    return (rng.standard_normal((rows, columns)) + offset).astype(np.float32)


def test_a_variance_of_columns_is_one_pass_split_over_rows() -> None:
    report = sm.explain(_statistics, np.ones((16384, 1024), np.float32))
    (kernel,) = report.kernels
    assert "split(" in kernel.text
    assert kernel.text.count("stream") == 1


@pytest.mark.parametrize("shape", [(4096, 96), (4099, 33), (65, 1500), (40000, 1)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_parts_add_up(shape: tuple[int, int], offset: float) -> None:
    x = _columns(*shape, offset)
    mean, variance = sm.jit(_statistics)(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(np.asarray(mean), wide.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.asarray(variance), wide.var(0), rtol=1e-5, atol=1e-9)


def test_threads_do_not_change_a_bit() -> None:
    x = _columns(4096, 200, 3.0)
    jitted = sm.jit(_statistics)
    with knobs.config(threads=1):
        alone = [np.asarray(a).tobytes() for a in jitted(x)]
    with knobs.config(threads=2):
        assert alone == [np.asarray(a).tobytes() for a in jitted(x)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_column(value: float) -> None:
    x = _columns(4096, 70)
    x[17, 3] = value
    mean, variance = (np.asarray(a) for a in sm.jit(_statistics)(x))
    assert not np.isfinite(mean[3])
    assert np.isnan(variance[3])
    assert np.isfinite(np.delete(mean, 3)).all()
    assert np.isfinite(np.delete(variance, 3)).all()


def _chain(length: int) -> list[Item]:
    items: list[Item] = [Load((), frozenset("i"), f32, Access("x", 0))]
    for _ in range(length):
        items.append(apply("exp", (items[-1],), f32))
    return items


def test_only_long_chains_interleave_more_vectors() -> None:
    short, long = _chain(1), _chain(4)
    beside = [*long, *(apply("exp", (long[0],), f32) for _ in range(4))]
    only = unroll_factor.critical_path
    assert only(short) <= unroll_factor.LONG_CHAIN_CYCLES < only(long)
    assert only(beside) == 0.0


FOLDS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: sm.sum(x, axis=0),
    "extremes": lambda x: (sm.max(x, axis=0), sm.min(x, axis=0)),
    "place": lambda x: sm.argmax(x, axis=0),
    "sum of squares beside the sum": lambda x: (sm.sum(x * x, axis=0), sm.sum(x, axis=0)),
    "sum over what each row has": lambda x: sm.sum(x * x[:, :1] + x[:1, :], axis=0),
    "middle axis": lambda x: sm.sum(sm.reshape(x, (2, -1, x.shape[1])), axis=1),
}


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4"])
def test_jammed_rows_give_the_bits_of_single_rows(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    def bits(x: Any) -> list[bytes]:
        code.forget()
        with knobs.config(cache=False, threads=1):
            result = sm.jit(FOLDS[name])(x)
        return [
            np.asarray(a).tobytes() for a in (result if isinstance(result, tuple) else (result,))
        ]

    monkeypatch.setattr(
        nest_loops, "adds_pairs_first", lambda _: False
    )  # which row rows are added to first
    for shape in ((2, 16), (14, 5), (16, 70), (18, 33), (4100, 21)):
        x = (_columns(*shape) * 9).astype(dtype)
        if dtype != "i4":
            x[shape[0] // 2, 1] = np.nan
        together = bits(x)
        with monkeypatch.context() as patch:
            patch.setattr(vector_loops, "jammed_rows", lambda _: 0)
            assert bits(x) == together
    code.forget()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "bool"])
def test_states_in_arrays_are_exact_on_every_instruction_set(isa: Isa, dtype: str) -> None:
    """Nothing behind the arrays is touched: no rows, few rows, and those that are left."""
    names = ["any", "argmin"] if dtype == "bool" else ["sum", "max", "argmax"]
    rows = "".join(f" {n} = reduce.{n}(x) {{axes=(1,)}}\n" for n in names)
    rows += f" both = reduce.{names[0]}(x) {{axes=(0, 2)}}\n"
    text = f"graph f(x: {dtype}[k,m,n]) {{\n{rows} return {', '.join(names)}, both\n}}"
    kernel = fuse(text, isa, k=2, m=40, n=20)
    kind = {"f32": "f4", "f64": "f8", "f16": "f2", "i8": "i1", "bool": "?"}[dtype]
    for shape in ((2, 1, 1), (1, 13, 5), (2, 37, 19)):
        rng = np.random.default_rng(shape[2])
        x = rng.integers(-3, 4, shape).astype(kind)
        if dtype.startswith("f"):
            for special in (np.nan, np.inf, -np.inf):
                x[rng.random(shape) < 0.01] = special
        for got, want in zip(
            run_guarded(kernel, [x], at_end=True), kernel.expected(x), strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_only_plain_column_reductions_are_unrolled_and_jammed() -> None:
    """Dear elements hide how long a state takes, and rows are folded in registers."""
    x = np.ones((300, 64), np.float32)

    def loops(f: Callable[[Any], Any]) -> int:
        (kernel,) = sm.explain(sm.jit(f), x).kernels
        return len(re.findall(r"= phi\s+i64", kernel.llvm))

    plain = loops(FOLDS["sum"])
    assert plain > loops(lambda x: sm.sum(sm.erf(sm.exp(x)), axis=0))
    assert plain > loops(lambda x: sm.sum(x, axis=1))


def test_jammed_rows_whose_sizes_are_quotients() -> None:
    """The least length of rows needs no quotient.

    None is computed, and no length of 0 divides.
    """
    n, m = size("n"), size("m")
    quotient = floordiv(m, 4)
    for columns in (mul(n, 16), mul(quotient, floordiv(n, quotient)), add(mul(quotient, 48), 16)):
        rows = rows_per_task(columns)
        for sizes in ({"n": 0, "m": 4}, {"n": 9, "m": 16}):
            assert 1 <= evaluate(rows, sizes) <= BLOCK // 16
