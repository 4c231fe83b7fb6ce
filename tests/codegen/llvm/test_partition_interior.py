"""Interior rows have loops without bounds tests."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm


def shifted(x: str, low: int, high: int) -> str:
    """x with margins, as `p`."""
    return f"p = pad({x}) {{low=(0,{low}), high=(0,{high}), value=0.0}}"


def window(name: str, x: str, at: int) -> str:
    return f"{name} = slice({x}) {{starts=(0,{at}), sizes=(m,n), steps=(1,1)}}"


POSITIONS = """j = iota() {shape=(n,), axis=0, dtype=i64}
 e = size() {expr=n, dtype=i64}
 """
ROWS = {
    "neighbours": [shifted("x", 1, 1), window("a", "p", 0), window("b", "p", 2), "y = add(a, b)"],
    "far": [shifted("x", 70, 5), window("a", "p", 0), window("b", "p", 75), "y = sub(a, b)"],
    "minus zero": [shifted("x", 1, 1).replace("0.0}", "-0.0}"), window("a", "p", 2),
                   window("b", "p", 0), "y = sub(a, b)"],
    "all around": [
        "l = slice(x) {starts=(0,n - 1), sizes=(m,1), steps=(1,1)}",
        "r = slice(x) {starts=(0,0), sizes=(m,1), steps=(1,1)}",
        "p = concat(l, x, r) {axis=1}", window("a", "p", 0), window("b", "p", 2),
        "y = sub(a, b)"],
    "mirrored": [
        "f = flip(x) {axes=(1,)}", "p = concat(f, x, f) {axis=1}",
        *(f"{c} = slice(p) {{starts=(0,n + {k}), sizes=(m,n), steps=(1,1)}}"
          for c, k in (("a", -1), ("b", 1))),
        "y = sub(a, b)"],
    "ends differ": [POSITIONS + "a = lt(j, 3:i64)", "d = sub(e, 4:i64)", "b = gt(j, d)",
                    "c = or(a, b)", "g = abs(x)", "y = select(c, g, x)"],
    "beyond a size": [POSITIONS + "a = lt(j, e)", "c = ge(j, 1:i64)", "b = and(a, c)",
                      "g = abs(x)", "y = select(b, g, x)"],
    "sum": [shifted("x", 2, 1), window("a", "p", 0), window("b", "p", 3), "s = sub(a, b)",
            "y = reduce.max(s) {axes=(1,)}"],
    "place": [shifted("x", 2, 1), window("a", "p", 0), window("b", "p", 3), "s = add(a, b)",
              "y = reduce.argmax(s) {axes=(1,)}"],
}  # fmt: skip


def text_of(name: str, dtype: str) -> str:
    lines = "\n ".join(ROWS[name])
    return f"graph f(x: f32[m,n]) {{\n {lines}\n return y\n}}".replace("f32", dtype)


SHAPES = [(1, 1), (2, 3), (3, 31), (4, 64), (3, 65), (2, 127), (7, 129), (2, 700), (1, 9001)]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ROWS)
def test_every_position_is_right_and_nothing_else_is_read(name: str, isa: str) -> None:
    rng = np.random.default_rng(3)
    for dtype in ("f32", "f64"):
        kernel = fuse(text_of(name, dtype), isa)
        for shape in SHAPES:
            x = rng.standard_normal(shape).astype(kernel.graph.inputs[0].type.dtype.numpy)
            (wanted,), (actual,) = kernel.expected(x), kernel(x)
            assert actual.tobytes() == wanted.tobytes(), shape
            for at_end in (True, False):
                assert run_guarded(kernel, [x], at_end=at_end)[0].tobytes() == actual.tobytes()


def test_sums_along_an_interior_are_as_near_as_others() -> None:
    f = sm.jit(lambda x: sm.sum((sm.roll(x, 1) - x) ** 2))
    for n in (1, 2, 63, 64, 65, 1000, 70_001):
        x = np.random.default_rng(n).standard_normal(n).astype("f4")
        wanted = np.sum((np.roll(x, 1) - x).astype("f8") ** 2)
        np.testing.assert_allclose(np.asarray(f(x)), wanted, rtol=4 * float(np.finfo("f4").eps))


def test_sums_of_tested_rows_add_up_in_the_order_of_others() -> None:
    def ends(x: sm.Array) -> sm.Array:
        return sm.where(sm.arange(x.shape[1]) < x.shape[1] - 7, x, 0.5)

    def neighbours(x: sm.Array) -> sm.Array:
        return sm.roll(x, 1, axis=1) - 2 * x

    def row_sums(x: sm.Array) -> sm.Array:
        return sm.sum(x, axis=1)

    for f in (ends, neighbours):
        fused, rows, sums = sm.jit(lambda x, f=f: row_sums(f(x))), sm.jit(f), sm.jit(row_sums)
        for n in (15, 65, 257, 1000):
            x = sm.asarray(np.random.default_rng(n).standard_normal((20, n)).astype("f4"))
            apart = np.asarray(sums(sm.asarray(np.asarray(rows(x)))))
            assert np.asarray(fused(x)).tobytes() == apart.tobytes(), n


def window_sum(x: sm.Array) -> object:
    p = sm.pad(x, 2)
    return sum(p[k : k + x.shape[0]] * (k + 0.5) for k in range(5))


def ends(x: sm.Array) -> object:
    i = sm.arange(x.shape[0])
    return sm.where((i > 0) & (i < x.shape[0] - 1), sm.tanh(x), 0)


UNTESTED, TESTED = (re.compile(s) for s in (r"= load <\d+ x float>", r"@llvm\.masked\.load\.\w+\("))


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="other sets load masked vectors by elements")
@pytest.mark.parametrize(
    "f",
    [
        window_sum,
        ends,
        lambda x: sm.roll(x, 1) + sm.roll(x, -1) - 2 * x,
        lambda x: sm.concat([x[:1], x[:-1]]) + sm.concat([x[1:], x[-1:]]) - 2 * x,
        lambda x: sm.concat([x[1:2] - x[:1], (x[2:] - x[:-2]) * 0.5, x[-1:] - x[-2:-1]]),
    ],
)
def test_a_loop_without_tests(f: Callable[[sm.Array], object]) -> None:
    """One loop, the widest, loads vectors and tests nothing."""
    loops = loops_of(f)
    assert loops and not any(map(has_tests, loops))


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="other sets load masked vectors by elements")
def test_sums_test_nothing_but_at_their_ends() -> None:
    loops = loops_of(lambda x: sm.sum((sm.roll(x, 1) - x) ** 2))
    assert sum(map(has_tests, loops)) == 2 and not all(map(has_tests, loops))


def loops_of(f: Callable[[sm.Array], object]) -> list[str]:
    """The blocks that load whole vectors."""
    text = sm.jit(f).lower(sm.spec(("n",), "f32")).compile().as_text("llvm")
    blocks = re.split(r"^[\w.\"]+:", text, flags=re.MULTILINE)
    return [b for b in blocks if UNTESTED.search(b)]


def has_tests(block: str) -> bool:
    return bool(TESTED.search(block)) or "icmp ult <" in block or "icmp slt <" in block


def test_what_is_the_same_half_the_way_stays_in_pieces() -> None:
    """Two arrays side by side have no usual side: each has a loop, and none is tested for long."""
    joined = sm.jit(lambda x: sm.concat([x * 2, x - 1]))
    text = joined.lower(sm.spec(("n",), "f32")).compile().as_text("llvm")
    assert len(UNTESTED.findall(text)) >= 2


def stacked_columns(x: sm.Array, y: sm.Array) -> sm.Array:
    return sm.concat([x, y], axis=1).T


def stacked_rows(x: sm.Array, y: sm.Array) -> sm.Array:
    return sm.concat([x, y], axis=0).T


@pytest.mark.parametrize("f", [stacked_columns, stacked_rows])
def test_lanes_that_are_apart_are_gathered_from_one_side(f: Callable[..., sm.Array]) -> None:
    text = sm.jit(f).lower(*[sm.spec(("m", "n"), "f32")] * 2).compile().as_text("llvm")
    blocks = re.split(r"^[\w.\"]+:", text, flags=re.MULTILINE)
    gathers = [len(re.findall(r"= call .*masked\.gather", b)) for b in blocks]
    assert sum(gathers) > max(gathers) == 1
    for m, n in ((1, 1), (17, 100), (65, 3)):
        x = np.arange(m * n, dtype="f4").reshape(m, n)
        axis = int(f is stacked_columns)
        assert np.array_equal(np.asarray(sm.jit(f)(x, -x)), np.concatenate([x, -x], axis).T)


def spins(x: sm.Array) -> object:
    near = sm.roll(x, 1, axis=0) + sm.roll(x, -1, axis=0) + sm.roll(x, 1, axis=1)
    return sm.where(near + sm.roll(x, -1, axis=1) < 0, -x, x)


def smooth(x: sm.Array) -> object:
    p = sm.pad(x, 1)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]


@pytest.mark.parametrize("f", [spins, smooth])
def test_bodies_do_not_multiply(f: Callable[[sm.Array], object]) -> None:
    """Usual rows: their ends, wide and single vectors, and those past the caches; others: one."""
    text = sm.jit(f).lower(sm.spec(("m", "n"), "f32")).compile().as_text("llvm")
    stores = [x for x in text.splitlines() if re.search(r"store <\d+ x float>|masked\.store", x)]
    assert len([x for x in stores if "declare" not in x]) <= 6


def test_rows_and_columns_at_the_edges() -> None:
    for m, n in ((1, 1), (2, 2), (1, 300), (3, 70), (70, 3), (5, 129)):
        x = np.random.default_rng(m * n).standard_normal((m, n)).astype("f4")
        near = sum(np.roll(x, s, axis=a) for a, s in ((0, 1), (0, -1), (1, 1)))
        wanted = np.where(near + np.roll(x, -1, axis=1) < 0, -x, x)
        assert np.array_equal(np.asarray(sm.jit(spins)(sm.asarray(x))), wanted), (m, n)
        p = np.pad(x, 1)
        wanted = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
        assert np.array_equal(np.asarray(sm.jit(smooth)(sm.asarray(x))), wanted), (m, n)
