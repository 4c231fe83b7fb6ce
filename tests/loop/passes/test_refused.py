"""What passes refuse, and the bits of passes that random programs seldom reach.

Each pass has a picture in its head and a test in this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from smelt.errors import LoopPassError
from smelt.loop import ir, passes
from smelt.loop.interpret import run
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.passes.align_stores import align_stores, cut_tail, store_if_aligned
from smelt.loop.passes.batch_rows import batch_rows
from smelt.loop.passes.branch_stores import branch_stores
from smelt.loop.passes.collapse import collapse
from smelt.loop.passes.distribute import distribute
from smelt.loop.passes.fuse_if import fuse_if
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.interleave_stores import interleave_stores
from smelt.loop.passes.poll_strips import poll_strips
from smelt.loop.passes.prefetch import (
    prefetch,
    prefetch_block,
    prefetch_farthest,
    prefetch_page,
    prefetch_rows,
    prefetch_share,
    prefetch_strips,
    prefetch_written,
)
from smelt.loop.passes.short_rows import masked_rows, short_rows
from smelt.loop.passes.split_tests import split_tests
from smelt.loop.passes.store_whole import store_whole
from smelt.loop.passes.transpose_tile import transpose_tile
from smelt.loop.passes.unroll import promote, unroll
from smelt.loop.passes.unroll_and_jam import unroll_and_jam
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.passes.version import version
from smelt.loop.text import parse, text
from smelt.loop.verify import verify

HEAD = "func f(x: f32[n], y: out f32[n]; n)\n  "
ROW = HEAD + "each i in 0 .. n\n    "
ORDERED = HEAD + "for i in 0 .. n with s = 0.0\n    s' = s + x[i]"
TWO_FOLDS = HEAD + "each i in 0 .. n with s = sum 0.0\n    s <- x[i]\n    s <- x[0]"
NEVER = ir.Apply("gt", (ir.position(1), ir.position(2)))
COND = ir.Apply("lt", (ir.position(1), ir.position(2)))


REFUSED: dict[str, tuple[str, Callable[[ir.Func], ir.Func]]] = {
    "f has no loop over q": (ROW + "y[i] = 1.0", lambda f: vectorize(f, "q", 4, "mask")),
    "is not `each` in steps of 1": (
        ROW.replace("each", "for") + "y[i] = 1.0",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "carries s, which is not a scan": (
        ORDERED,
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "reads what it carries more than once": (
        ORDERED.replace("s' = ", "v = s + 1.0\n    y[i] = s\n    s' = v #"),
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "the loop over i folds, or runs tasks": (TWO_FOLDS, lambda f: poll_strips(f, "i", 4)),
    "n is not a number of whole vectors": (
        ROW + "y[i] = 1.0",
        lambda f: vectorize(f, "i", 4, "none"),
    ),
    "has vectors already": (
        ROW + "y[i] = across(sum, x[i : 4])",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "every iteration over i stores to y": (
        ROW + "y[0 | x[i] > 0.0] = 1.0",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "a branch varies along i": (
        ROW + "if x[i] > 0.0\n      y[i] = 1.0",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "the range of j varies along i": (
        ROW + "each j in 0 .. i with s = sum 0.0\n      s <- x[j]\n    y[i] = s",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "s is folded by a loop around the vectors": (
        HEAD + "each i in 0 .. n with s = sum 0.0\n    each j in 0 .. n\n      s <- x[j]",
        lambda f: vectorize(f, "j", 4, "scalar"),
    ),
    "is not `for` in steps of 1": (TWO_FOLDS, lambda f: unroll_and_jam(f, "i", 2)),
    "or one inside, carries something": (
        HEAD + "for i in 0 .. n\n    each j in 0 .. n with s = sum 0.0\n      s <- x[j]",
        lambda f: unroll_and_jam(f, "i", 2),
    ),
    "is folded outside of it too": (
        HEAD + "each i in 0 .. n with s = sum 0.0\n    s <- x[i]\n"
        "    each j in 0 .. n\n      s <- x[j]",
        lambda f: vectorize(f, "j", 4, "mask"),
    ),
    "the loop over i carries something": (ORDERED, lambda f: split_tests(f, "i")[0]),
    "is not `each` around one loop": (ROW + "y[i] = 1.0", lambda f: collapse(f, "i")),
    "loads nothing from y": (ROW + "y[i] = 1.0", lambda f: prefetch(f, "i", "y", 4)),
    "stores nothing at an index": (
        ROW + "y[i] = 1.0",
        lambda f: align_stores(f, "i", {"x"}, (16, 4)),
    ),
    "only nests of one loop inside of another": (
        ROW + "y[i] = 1.0",
        lambda f: fuse_if(f, (*f.body, *f.body), COND),
    ),
    "the loops over i and q differ": (
        ROW + "y[i] = 1.0",
        lambda f: fuse_if(f, (replace(f.body[0], var="q", step=2),), COND),
    ),
    "p would have to wait as a vector or a position": (
        ROW + "p = i64(y[i])\n    y[i] = x[p]",
        lambda f: distribute(f, "i", (1,), 4),
    ),
    "the range of i is not constant": (
        HEAD + "unroll i in 0 .. n\n    y[i] = 1.0",
        unroll,
    ),
    "c is not accessed at a constant place": (
        HEAD + "alloc c: f32[4] in registers\n  for i in 0 .. 4\n    c[i] = 1.0",
        promote,
    ),
    "accesses of c overlap in part": (
        HEAD + "alloc c: f32[4] in registers\n  c[0 : 2] = 1.0\n  c[1 : 2] = 1.0",
        promote,
    ),
    "c[0] is read before it is written": (
        HEAD + "alloc c: f32[4] in registers\n  y[0] = c[0]",
        promote,
    ),
    "4 rows of i have no whole vectors": (ROW + "y[i] = 1.0", lambda f: batch_rows(f, "i", 4)),
    "s is not just stored": (
        ROW + "s = across(sum, splat(x[i], 4))\n    y[i] = s + x[i]",
        lambda f: batch_rows(f, "i", 4),
    ),
    "3 lanes are folded into 4": (
        HEAD + "for i in 0 .. n with s = sum splat(0.0, 4)\n    s <- splat(x[i], 3)",
        accumulate,
    ),
    "the loop over i does not end with that over j": (
        ROW + "y[i] = 1.0",
        lambda f: transpose_tile(f, "i", "j"),
    ),
    "the loops over i and j are not a square": (
        ROW + "each j in 0 .. 2\n      y[i + j] = x[i]",
        lambda f: transpose_tile(f, "i", "j"),
    ),
    "does more than a store": (
        HEAD + "each i in 0 .. 2\n    each j in 0 .. 2\n" + "      y[i*2 + j] = x[j]\n" * 2,
        lambda f: transpose_tile(f, "i", "j"),
    ),
    "what is stored reads what the loop over j binds": (
        HEAD + "each i in 0 .. 2\n    each j in 0 .. 2\n      v = x[j]\n      y[i*2 + j] = v",
        lambda f: transpose_tile(f, "i", "j"),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_pass_refuses_what_it_may_not_do(reason):
    source, change = REFUSED[reason]
    func = verify(parse(source), bounds=False).funcs[0]
    with pytest.raises(LoopPassError) as caught:
        change(func)
    assert reason in caught.value.message


MEETING = {
    "outside of a loop": "y[0] add = x[i]",
    "in a loop in a loop": "each k in 0 .. 2\n      each j in 0 .. m\n        z[k*m + j] add = 1.0",
    "under a branch": "each j in 0 .. m\n      if j < 2\n        z[j] add = x[i]",
    "where a mask moves": "each j in 0 .. m\n      v = z[j | j < i]\n      z[j | j < i] = v + x[i]",
    "in two ways": "each j in 0 .. m\n      z[j] add = x[i]\n      z[j] mul = 2.0",
    "and are read between": "each j in 0 .. m\n      z[j] add = x[i]\n      y[j] = z[j]",
    "after they are stored": "each j in 0 .. m\n      z[j] = z[j] * 0.5\n      z[j] add = x[i]",
    "in one element": "each j in 0 .. m\n      z[0] add = x[i] * x[j]",
    "in pairs of elements": "each j in 0 .. m\n      z[j // 2] add = x[i] * x[j]",
}
"""Where rows in order combine something with elements of arrays, by what keeps it from a merge."""


@pytest.mark.parametrize("name", MEETING)
def test_rows_that_meet_elsewhere_are_not_jammed(name):
    head = "func f(x: f32[n], y: out f32[n], z: out f32[100]; n, m)\n  for i in 0 .. n\n    "
    module = verify(parse(head + MEETING[name]), bounds=False)
    with pytest.raises(LoopPassError, match="meet in several places"):
        unroll_and_jam(module.funcs[0], "i", 2)


EQUAL: dict[str, tuple[str, Callable[[ir.Func], ir.Func]]] = {
    "collapse": (
        (
            "func f(x: f32[n], y: out f32[n*3]; n)\n  each i in 1 .. n + 1\n    each j in 2 .. 5\n"
            "      y[(i - 1) * 3 + j - 2] = x[i - 1] + f32(j)"
        ),
        lambda f: collapse(f, "i"),
    ),
    "align_stores": (
        HEAD + "each i in 0 .. n\n    y[i] = x[i]",
        lambda f: align_stores(f, "i", {"y"}, (4, 2))[0],
    ),
    "fuse_if": (
        HEAD + "alloc e: f32[n] in task\n  each h in 0 .. n\n    e[h] = x[h]\n"
        "  each i in 0 .. n\n    y[i] = x[i] * 2.0",
        lambda f: fuse_if(replace(f, body=(f.body[0], f.body[2])), (f.body[1],), NEVER),
    ),
    "prefetch blocks": (
        ROW + "y[i] = x[i]",
        lambda f: prefetch_block(vectorize(f, "i", 4, "mask"), {"x": 8}),
    ),
    "cut_tail": (ROW + "y[i] = x[i]", lambda f: vectorize(cut_tail(f, "i", 4)[0], "i", 4, "whole")),
    "store_if_aligned": (
        HEAD + "each i in 0 .. n\n    y[i] = x[i]",
        lambda f: store_if_aligned(f, "i", {"y"}, 16)[0],
    ),
    "distribute": (
        HEAD + "each i in 0 .. n with s = sum 0.0\n    p = n - 1 - i\n    a = x[p] * 2.0\n"
        "    q = p * 1\n    s <- a\n    y[q] = a + x[q]\n  y[0] add = s",
        lambda f: distribute(f, "i", (4,), 4),
    ),
    "distribute, positions that no index expression is": (
        HEAD + "each i in 0 .. n\n    p = i64(x[i]) // 2\n    a = x[0] * 2.0\n    q = p + i64(a)\n"
        "    b = a + f32(q)\n    y[i] = select(q < p, b, a)",
        lambda f: distribute(f, "i", (2, 4), 4),
    ),
    "distribute, vectors in three parts": (
        HEAD + "alloc e: f32[n] in task\n  each i in 0 .. n with s = sum:f64 0.0\n"
        "    a = x[i]\n    b = exp(a)\n    e[i] = b\n    c = b * a\n    s <- c * b\n"
        "    y[i] = e[i]\n  y[0] add = f32(s)",
        lambda f: prefetch_strips(
            distribute(vectorize(f, "i", 4, "mask"), "i_1", (3, 4), 8), 8, {"x"}
        ),
    ),
    "vectorize, pairs": (
        HEAD + "each i in 0 .. n with s = sum:pairs 0.0\n    s <- x[i]\n"
        "  each h in 0 .. n\n    y[h] = f32(s)",
        lambda f: accumulate(vectorize(f, "i", 4, "mask")),
    ),
    "vectorize, sums with their errors": (
        HEAD + "each i in 0 .. n with s = sum:two_sum f64(0.0)\n    s <- f64(x[i])\n"
        "  each h in 0 .. n\n    y[h] = f32(s)",
        lambda f: accumulate(vectorize(f, "i", 8, "mask", 2)),
    ),
    "vectorize, few lanes in the end": (
        HEAD + "each i in 0 .. n with s = max 1.0\n    s <- x[i]\n  each h in 0 .. n\n    y[h] = s",
        lambda f: accumulate(vectorize(f, "i", 8, "mask", 2)),
    ),
    "vectorize, pairs of pairs": (
        HEAD + "each i in 0 .. n with s = sum:pairs 0.0\n    s <- x[i]\n"
        "  each h in 0 .. n\n    y[h] = f32(s)",
        lambda f: accumulate(vectorize(f, "i", 8, "mask", 2)),
    ),
    "vectorize, the best position": (
        HEAD + "each i in 0 .. n with b @ p = argmin inf from 0\n    b <- x[i] @ i\n"
        "  each h in 0 .. n\n    y[h] = b + f32(p)",
        lambda f: vectorize(f, "i", 4, "mask"),
    ),
    "vectorize, the best position of rows": (
        HEAD + "each k in 0 .. n with b @ p = argmax -inf from 0\n    each i in 0 .. n\n"
        "      b <- x[i] * x[k] @ k*n + i\n  each h in 0 .. n\n    y[h] = b + f32(p)",
        lambda f: accumulate(vectorize(f, "i", 4, "mask", 2)),
    ),
    "jam vectors of rows": (
        HEAD + "each h in 0 .. n\n    y[h] = 1.0\n"
        "  for i in 0 .. n\n    each j in 0 .. n\n      y[j] add = x[i] * x[j]",
        lambda f: unroll_and_jam(hoist_offsets(vectorize(f, "j", 4, "mask")), "i", 2),
    ),
    "vectorize, scans of rows that are folded": (
        HEAD + "each i in 0 .. n with b = max -9.0\n    for j in 0 .. n with s = 0.0\n"
        "      v = s + x[j]\n      b <- v * x[i]\n      s' = v\n"
        "  each h in 0 .. n\n    y[h] = b",
        lambda f: accumulate(vectorize(f, "j", 4, "mask", 2)),
    ),
    "vectorize, a scan and the best position": (
        HEAD + "for i in 0 .. n with s = 0.0, b @ p = argmax -inf from 0\n    v = s + x[i]\n"
        "    y[i] = v\n    b <- x[i] @ i\n    s' = v\n  y[0] add = b + f32(p)",
        lambda f: accumulate(vectorize(f, "i", 4, "scalar")),
    ),
    "jam vectors of rows that are stored apart": (
        HEAD + "alloc e: f32[7*n] in task\n  each k in 0 .. 7*n\n    e[k] = 1.0\n"
        "  each h in 0 .. min(n, 7)\n    for i in 0 .. n\n      each j in 0 .. n\n"
        "        e[j*min(n, 7) + h] add = x[i] * x[j]\n"
        "  each q in 0 .. n\n    y[q] = e[q*min(n, 7)] + e[n*min(n, 7) - 1 - q]",
        lambda f: unroll_and_jam(hoist_offsets(vectorize(f, "j", 4, "mask")), "i", 2),
    ),
    "vectorize, masked": (
        ROW + "y[i] = x[i]",
        lambda f: vectorize(f, "i", 4, "masked"),
    ),
    "prefetch pages and rows": (
        ROW + "y[i] = x[i] + x[n - 1 - i]",
        lambda f: prefetch_written(
            prefetch_share(
                prefetch_page(vectorize(f, "i", 2, "mask"), {"x"}, {"x"}),
                "i_1",
                "x",
                3,
                Fraction(1, 4),
            ),
            {"y"},
        ),
    ),
    "prefetch later rows": (
        HEAD + "alloc e: f32[n*2] in task\n  each j in 0 .. 2\n    each i in 0 .. n//2\n"
        "      e[j*n + i] = x[j*(n//2) + i]\n  each k in 0 .. n//2\n    y[k] = e[n + k]\n"
        "  each h in n//2 .. n\n    y[h] = x[h]",
        lambda f: prefetch_rows(vectorize(f, "i", 4, "mask"), "j", 2),
    ),
    "prefetch_farthest": (
        ROW + "y[i] = x[i] + x[n - 1 - i]",
        lambda f: prefetch_farthest(vectorize(f, "i", 4, "mask"), {"x": 8}),
    ),
    "branch_stores": (
        ROW + "y[i] = 1.0\n  each h in 0 .. n\n    v = exp(x[h])\n    y[h | h < 2] = v",
        lambda f: branch_stores(vectorize(f, "h", 4, "mask")),
    ),
    "interleave_stores": (
        HEAD + "each i in 0 .. n//2\n    y[i*2] = x[i]\n    y[i*2 + 1] = x[i] + 1.0\n"
        "  each h in n//2*2 .. n\n    y[h] = x[h]",
        lambda f: interleave_stores(vectorize(f, "i", 4, "mask")),
    ),
    "store_whole": (
        HEAD + "alloc e: f32[n + 4] in task\n  each i in 0 .. n\n    e[i] = x[i]\n"
        "  each h in 0 .. n\n    y[h] = e[h]",
        lambda f: store_whole(vectorize(f, "i", 4, "mask"), "e"),
    ),
    "short_rows": (
        HEAD + "alloc e: f32[3*n] in task\n  each i in 0 .. 3\n    each j in 0 .. n\n"
        "      e[i*n + j] = x[j - 1 | 1 <= j] * f32(i)\n  each h in 0 .. n\n    y[h] = e[h + n]",
        lambda f: short_rows(masked_rows(f, "i", 4), 4, 3),
    ),
    "version": (
        ROW + "y[i] = select(n < 3, exp(x[i]), x[i])",
        lambda f: version(f, f.body[0].body[0].value.args[0], lambda g: g, {}),
    ),
    "poll_strips": (
        HEAD + "for i in 0 .. n with s = 0.0\n    s' = s + x[i]\n  each h in 0 .. n\n    y[h] = s",
        lambda f: poll_strips(f, "i", 4),
    ),
    "unroll": (
        ROW + "alloc e: f32[2] in registers\n    unroll j in 0 .. 2\n      e[j] = x[i] * f32(j)\n"
        "    y[i] = e[0] + e[1]",
        lambda f: promote(unroll(f)),
    ),
    "batches of rows": (
        ROW + "each j in 0 .. n with s = sum:f64 0.0\n"
        "      s <- x[j] * x[i]\n    y[i] = f32(s) * 2.0",
        lambda f: batch_rows(vectorize(f, "j", 4, "mask"), "i", 4),
    ),
    "vectorize, none": (
        HEAD + "each i in 0 .. n // 4 * 4\n    y[i] = x[i] + f32(i // 3)\n"
        "  each h in n // 4 * 4 .. n\n    y[h] = x[h]",
        lambda f: vectorize(f, "i", 4, "none"),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_pass_keeps_the_bits(name):
    source, change = EQUAL[name]
    module = verify(parse(source))
    changed = verify(replace(module, funcs=(change(module.funcs[0]),)), bounds=False)
    assert changed != module
    assert parse(text(changed)) == changed
    for n in (1, 4, 11):
        x = np.random.default_rng(n).integers(-4, 5, n).astype(np.float32)
        numbers = {"n": n, **dict.fromkeys(changed.funcs[0].numbers, 20 * n)}
        results = [run(m, {"x": x}, numbers, seed=n)["y"] for m in (module, changed)]
        np.testing.assert_array_equal(*results)


PARTS = {"decide", "remainder", "scans", "thread_state"}
"""Modules of what several passes do; they are tested with these."""


def test_a_pass_has_a_picture_and_a_test_in_this_folder():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = {path.stem for path in Path(passes.__file__).parent.glob("[a-z]*.py")} - PARTS
    for name in names:
        module = import_module(f"smelt.loop.passes.{name}")
        assert ">>> print(text(" in (module.__doc__ or ""), name
        assert f"passes.{name} import" in tests, name
