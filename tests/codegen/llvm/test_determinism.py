"""Sums of a stream have the same bits however they are computed.

So they have for every mask that leaves the same elements, for every split of the axis, and in every
order of the tasks.

What that rests on: sums are carried under whole powers of 2 (rescaling rounds nothing), blocks are
cut at fixed positions, and lanes add up the same positions wherever visits start and stop.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.compile_scalar import compile_row
from tests.codegen.llvm.native import Native, native_kernel
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.lower.test_stream import CASES, streamed

from smelt.kernel import ir
from smelt.kernel.interp import run
from smelt.lower.split_stream import split_over_grid
from smelt.machine.tiling import CPU_TILING
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.types.dtype import f32, f64, i32

Array = np.ndarray[Any, Any]
FINITE = st.floats(-2e5, 2e5, width=32)
MASKS = ("causal", "window", "near", "sinks", "chunked", "documents")
MANY = 16 * 512


def rows(base: str, isa: str | None, double: bool) -> tuple[Any, Any, Any]:
    """How a power, a whole exponent and what brings one to another are computed."""
    dtype = f64 if double else f32
    _, whole, over, moved = (SCALARS[name] for name in SCALARS[base].over)

    def compiled(op: ScalarOp, *dtypes: Any) -> Any:
        return op.numpy if isa is None else compile_row(op, dtypes, 16, isa)

    return (compiled(over, dtype, i32), compiled(whole, dtype), compiled(moved, dtype, dtype))


@pytest.mark.parametrize("isa", [None, *RUNNABLE], ids=str)
@pytest.mark.parametrize("double", [False, True], ids=["f32", "f64"])
@pytest.mark.parametrize("base", ["exp", "exp2"])
def test_rescaling_rounds_nothing(base: str, double: bool, isa: str | None) -> None:
    """Digits do not depend on the power, and every move is a power of 2 that composes."""
    over, whole, moved = rows(base, isa, double)
    rng = np.random.default_rng(3)
    dtype = np.float64 if double else np.float32
    x = (rng.standard_normal(4000) * rng.choice([1, 40, 1e3, 3e4], 4000)).astype(dtype)
    n = whole(x)
    near = over(x, n)
    assert ((near > 0.7) & (near < 1.42)).all()
    for far in (-60, -1, 1, 60):
        np.testing.assert_array_equal(over(x, n + np.int32(far)), np.ldexp(near, -far))
    y, z = x + dtype(7.3), x + dtype(21.9)
    step = moved(x, y)
    assert (np.frexp(step)[0] == 0.5).all()
    np.testing.assert_array_equal(step * moved(y, z), moved(x, z))
    np.testing.assert_array_equal(over(x, whole(y)), near * step)
    none = np.full(3, -np.inf, dtype)
    assert (moved(none, x[:3]) == 0).all() and (over(none, n[:3]) == 0).all()


@cache
def attention(name: str, split: bool = False) -> Native:
    """A kernel of the cases of lowering, for this machine."""
    case = next(c for c in CASES if c.name == name)
    kernel = streamed(case)[1]
    if split:
        (stream,) = (s for s in kernel.body if isinstance(s, ir.Stream))
        sizes = dict.fromkeys((a.name for a in kernel.axes), 2)
        actual = split_over_grid(kernel, {**sizes, stream.blocks[0].axis: MANY}, CPU_TILING)
        assert any(isinstance(g, ir.Split) for g in actual.grid)
        return native_kernel(actual, RUNNABLE[-1])
    return native_kernel(kernel, RUNNABLE[-1])


def kept(name: str, n: int, ids: Array) -> Array:
    """Which keys a mask leaves to which queries."""
    i, j = np.arange(n)[:, None], np.arange(n)
    match name:
        case "causal":
            return j <= i
        case "window":
            return (j <= i) & (i - j < 4)
        case "near":
            return abs(i - j) <= 3
        case "sinks":
            return (j <= i) & ((i - j < 4) | (j < 2))
        case "chunked":
            return i // 7 == j // 7
        case _:
            return (ids[:, None] == ids) & (j <= i)


def outcome(kernel: Native, *arrays: Array, one_by_one: bool = False) -> bytes:
    inputs = dict(zip((p.name for p in kernel.kernel.inputs), arrays, strict=True))
    (result,) = kernel(inputs, one_by_one=one_by_one).values()
    return result.tobytes()


@settings(max_examples=6, deadline=None)
@given(n=st.integers(1, 1200), scale=st.sampled_from([0.3, 3.0, 30.0]), seed=st.integers(0, 99))
@pytest.mark.parametrize("name", MASKS)
def test_masks_that_leave_the_same_give_the_same(
    name: str, n: int, scale: float, seed: int
) -> None:
    """What is not visited, visited in part, and computed and then ruled out: the same sums."""
    rng = np.random.default_rng(seed)
    q, k, v = ((rng.standard_normal((1, n, d)) * scale).astype(np.float32) for d in (8, 8, 6))
    ids = np.sort(rng.integers(0, 9, n)).astype(np.float32)
    more = (ids,) if name == "documents" else ()
    bias = np.where(kept(name, n, ids), 0, -np.inf).astype(np.float32)
    wanted = outcome(attention("added"), q, k, v, bias)
    assert outcome(attention(name), q, k, v, *more) == wanted
    assert outcome(attention(name), q, k, v, *more, one_by_one=True) == wanted


@settings(max_examples=8, deadline=None)
@given(
    n=st.integers(1, 4000),
    m=st.integers(1, 3),
    seed=st.integers(0, 99),
    peak=FINITE,
    where=st.floats(0, 1),
)
@pytest.mark.parametrize("name", ["attention", "causal"])
def test_an_axis_in_parts_gives_the_same(
    name: str, n: int, m: int, seed: int, peak: float, where: float
) -> None:
    """Each block in a task of its own, or all in one; wherever the largest element stands."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, m, 8), (2, n, 8), (2, n, 6)))
    if name == "causal":
        q = np.resize(q, (2, n, 8))[:, :n]
    k[:, int(where * (n - 1))] *= np.float32(np.cbrt(peak))
    assert outcome(attention(name), q, k, v) == outcome(attention(name, True), q, k, v)


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
def test_the_interpreter_merges_parts_alike(order: Any) -> None:
    """Parts of a split axis in any order, and the axis in one: the other judge."""
    whole, parts = attention("attention").kernel, attention("attention", True).kernel
    rng = np.random.default_rng(8)
    arrays = [
        rng.standard_normal(s).astype(np.float32) * 3 for s in ((1, 2, 8), (1, 61, 8), (1, 61, 6))
    ]
    stream = next(s for s in parts.body if isinstance(s, ir.Stream))
    axis, size = stream.blocks[0].axis, 8
    split = next(g for g in parts.grid if isinstance(g, ir.Split))
    small = replace(parts, grid=tuple(replace(g, parts=8) if g is split else g for g in parts.grid))
    (one,) = run(whole, arrays, grid_sizes={axis: size}).values()
    (other,) = run(small, arrays, grid_sizes={axis: size}, order=order, seed=1).values()
    assert one.tobytes() == other.tobytes()
