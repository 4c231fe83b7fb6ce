"""What the verifier and the interpreter refuse: one text for each rule."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.errors import LoopTextError, VerifyError
from smelt.loop.interpret import run
from smelt.loop.text import parse
from smelt.loop.verify import verify

HEAD = "func f(x: f32[n], y: out f32[n]; n)\n"
TASK = HEAD + "  chunk t in 0 .. n\n    "
TILE = "tile g(a: f32[], b: out f32[]; k)\n  "

UNREADABLE = {
    "q is not bound here": TASK + "y[t] = q",
    "'what' is not a scalar operator": TASK + "y[t] = what(x[t])",
    "exp takes 1 operands, not 2": TASK + "y[t] = exp(x[t], x[t])",
    "operands of add have 4 and 8 lanes": TASK + "v = x[t : 4] + x[t : 8]",
    "add wants operands of one type": TASK + "v = x[t] + f64(x[t])",
    "a mask of 4 lanes expected, found 8 lanes of bool": TASK + "v = x[t : 4 | prefix(n - t, 8)]",
    "a group within a stride expected": TASK + "v = x[t : 4 * 3 with 0, 3]",
    "with the load itself": TASK + "v = x[t : 4 * 3 with 1, 2]",
    "z is not an array here": TASK + "v = z[t]",
    "an index expression of integers": TASK + "v = x[x[t] : 4 * x[t]]",
    "comparisons do not chain": TASK + "v = t < n < 4",
    "is not a word of this language": TASK + "v = t ? n",
    "`func` or `tile` expected": "kernel f(x: f32[n])",
    "neither where its block began": TASK + "y[t] = 1.0\n   v = 1.0",
    "division by zero": TASK + "v = t // 0",
    "across needs vectors": TASK + "v = across(sum, x[t])",
}

REFUSED = {
    "a is bound twice": TASK + "a = 1.0\n    a = 2.0",
    "two parameters have one name": "func f(x: f32[n], x: out f32[n]; n)\n  y = 1.0",
    "a is not bound here": TASK + "each i in 0 .. 2\n      a = 1.0\n    y[t] = a",
    "x is read only": TASK + "x[t] = 1.0",
    "y holds f32, not f64": TASK + "y[t] = f64(x[t])",
    "1 lanes are stored, not 4": TASK + "y[t] = x[t : 4 | prefix(n - t, 4)]",
    "a loop over chunks is outermost": TASK + "chunk u in 0 .. n\n      y[u] = 1.0",
    "a loop over chunks carries nothing": HEAD
    + "  chunk t in 0 .. n with s = sum 0.0\n    s <- x[t]",
    "a func has one loop over chunks": TASK + "y[t] = 1.0\n  chunk u in 0 .. n\n    y[u] = 1.0",
    "independent iterations only fold": TASK + "each i in 0 .. n with a = 0.0\n      a' = a + x[i]",
    "each of a has one next value in the loop": TASK + "for i in 0 .. n with a = 0.0\n      b = a",
    "only at the top of its loop or branch": TASK
    + "for i in 0 .. n with a = 0.0\n      if i < 2\n        a' = a",
    "a carries f32, not i64": TASK + "for i in 0 .. n with a = 0.0\n      a' = i",
    "can be read after its loop only": TASK
    + "each i in 0 .. n with a = sum 0.0\n      a <- x[i]\n      b = a",
    "is not folded by a loop around this": TASK
    + "for i in 0 .. n with a = 0.0\n      a <- x[i]\n      a' = a",
    "a folds f32, not i64": TASK + "each i in 0 .. n with a = sum 0.0\n      a <- i",
    "a folds at most 4 lanes, not 8": TASK
    + "each i in 0 .. n with a = sum splat(0.0, 4)\n      a <- splat(1.0, 8)",
    "only sums and products round by a mode": TASK
    + "each i in 0 .. n with a = max:f64 0.0\n      a <- x[i]",
    "go with argmax and argmin": TASK + "each i in 0 .. n with a = argmax 0.0\n      a <- x[i]",
    "a step of 0": TASK + "each i in 0 .. n by 0\n      y[i] = 1.0",
    "every iteration over t stores to y[0]": TASK + "y[0] = x[t]",
    "every iteration over i stores to y[t]": TASK + "each i in 0 .. n\n      y[t] = x[i]",
    "x[t + 1] can leave the n elements of x": TASK + "y[t] = x[t + 1]",
    "x[t : 4] can leave": TASK + "v = x[t : 4]",
    "x[t : 4 | prefix(n - t + 1, 4)] can leave": TASK + "v = x[t : 4 | prefix(n - t + 1, 4)]",
    "y[t : 4 * 2 | prefix(n - t, 4)] can leave": TASK + "y[t : 4 * 2 | prefix(n - t, 4)] = 1.0",
    "a branch depends on one bool": TASK + "if x[t]\n      y[t] = 1.0",
    "each side sets r once": TASK + "if t < 2 with r\n      r' = 1.0\n    else\n      y[t] = 1.0",
    "the sides set results of different types": TASK
    + "if t < 2 with r\n      r' = 1.0\n    else\n      r' = f64(1.0)",
    "a tile has scratch in registers only": TILE + "alloc s: f32[4] in task",
    "are not a constant number of registers": TILE + "alloc s: f32[k] in registers",
    "a tile calls nothing": TILE
    + "b[0] = 1.0\ntile h(a: f32[], b: out f32[])\n  call g(a @ 0, b @ 0; 1)",
    "a loop over chunks is outermost, in a func": TILE + "chunk t in 0 .. k\n    b[t] = 1.0",
    "takes 2 windows and 1 numbers": TILE + "b[0] = a[k]\n" + TASK + "call g(x @ 0; 1)",
    "x does not fit b of g": TILE + "b[0] = a[k]\n" + TASK + "call g(x @ 0, x @ 0; 1)",
    "h is not a tile before this function": TASK + "call h(x @ 0)",
    "x has no length": "func f(x: f32[])\n  v = x[0]",
    "aligned to 3": "func f(x: f32[4] align 3)\n  v = x[0]",
    "two functions are called f": HEAD + "  y[0] = 1.0\n" + HEAD + "  y[0] = 1.0",
    "does not combine what is stored": TASK + "y[t] exp = 1.0",
    "'sub' does not combine what is stored": TASK + "y[t] sub = 1.0",
}

FAILING = {
    "belongs to another iteration": TASK + "y[t // 2] = x[t]",
    "y[1] belongs to another iteration": HEAD
    + "  each i in 0 .. 3\n    y[i] = 1.0\n    v = y[i * 0 + 1]",
    "e[2] is read before it is written": TASK
    + "alloc e: f32[n] in task\n    e[0] = 1.0\n    y[t] = e[2]",
    "e[0] is read before it is written": HEAD
    + "  alloc e: f32[1] in task\n  chunk t in 0 .. n\n    if t == 0\n      e[0] = 1.0\n"
    + "    y[t] = e[0]",
    "x[3] leaves its 3 elements": TASK + "y[t] = x[t + 1]",
    "is not a range of a loop": TASK + "each i in 0 .. n by t\n      y[i] = 1.0",
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_a_text_is_not_read(reason):
    with pytest.raises(LoopTextError) as caught:
        parse(UNREADABLE[reason])
    assert reason in str(caught.value)
    assert caught.value.line


@pytest.mark.parametrize("reason", REFUSED)
def test_a_rule_names_the_statement(reason):
    with pytest.raises(VerifyError) as caught:
        verify(parse(REFUSED[reason]))
    assert reason in caught.value.message


@pytest.mark.parametrize("reason", FAILING)
def test_the_interpreter_finds_what_the_verifier_cannot(reason):
    module = verify(parse(FAILING[reason]), bounds=False)
    with pytest.raises(VerifyError) as caught:
        run(module, {"x": np.ones(3), "y": np.ones(3)}, {"n": 3})
    assert reason in caught.value.message
    assert "func f, `" in caught.value.message
