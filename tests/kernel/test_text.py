"""Printing and reading: details of the form, and errors that point at the word."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from tests.kernel.goldens import GOLDENS

from smelt.errors import KernelTextError
from smelt.kernel import ir, text_print
from smelt.kernel.text import parse, statement_text, text, value_text
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bf16, f16, f32, f64, i8, i32, i64
from smelt.types.expr import axis, size

n = size("n")
BAD = {
    "kernel k(x: f32[n) -> y: f32[n]": ("',' expected, found '\\)'", 1, 18),
    "kernel k(x: f33[n]) -> y: f32[n]": ("'f33' is not an element type", 1, 13),
    "kernel k(x: f32[n], x: f32[n]) -> y: f32[n]": ("two parameters are called x", 1, 21),
    "kernel k(x: f32[n]) y: f32[n]": ("'->' expected, found 'y'", 1, 21),
    "kernel k(x: f32[n]) -> z\n  z[n] = 1": ("':' expected", 1, 25),
    "kern k(x: f32[n]) -> y: f32[n]": ("'kernel' expected", 1, 1),
    "kernel k(x: f32[n]) -> y: f32[n] strides(1,1)": ("1 strides expected, found 2", 1, 34),
    "": ("a kernel expected, found nothing", 1, 1),
}
BODIES = {
    "y[n] = exp(z[n])": ("'z' is not a parameter", 2, 14),
    "y[n] = exp z[n]": ("'exp' has no value here", 2, 10),
    "y[n] = exq(x[n])": ("'exq' is not a function", 2, 10),
    "y[n] = x[n] +": ("a value expected, found the end of the line", 2, 16),
    "y[n] = x[n,n]": ("x has 1 dimensions, not 2", 2, 11),
    "y[n] = x[q]": ("'q' is neither an axis nor a position", 2, 12),
    "y[n] = h": ("'h' has no value here", 2, 10),
    "y[n] = x[n] $ 2": (r"'\$' is not a word of this language", 2, 15),
    "y[n] = x[n] + i64(1)": ("operands of one type", 2, 15),
    "y[n] = add(x[n])": ("add takes 2 operands, not 1", 2, 10),
    "y[n] = 1 < x[n] < 2": ("comparisons do not chain", 2, 19),
    "y[n] = sum(x[n] over q)": ("'q' is not an axis", 2, 24),
    "y[n] = sum(x[n])": ("'over' and the axes", 2, 18),
    "y[n] = dot(x[n] over n)": ("dot takes 2 values, not 1", 2, 10),
    "y[n] = exp(x[n] over n)": ("exp does not reduce 1 values", 2, 10),
    "y[n] = any(x[n] along n, n)": ("along one axis", 2, 10),
    "y[n] = x[n] if n > 0": ("'else' expected|'else' is missing", 2, 23),
    "h = x[n] if n > 0": ("'else' is missing", 2, 15),
    "y[n] = x[n] else": ("the end of the line expected, found 'else'", 2, 15),
    "y[n] = i8(300)": ("300 does not fit i8", 2, 13),
    "y[n] = i8(0.5)": ("0.5 is not i8", 2, 13),
    "y[n//0] = 1": ("division by zero", 2, 6),
    "s' = 1": ("s is not a state", 2, 3),
    "y[n] = s'": ("s' has no value yet", 2, 10),
    "stream n with s = 0": ("a stream needs statements", 2, 3),
    "stream q\n    y[n] = 1": ("'q' is not an axis", 2, 10),
    "stream n/0\n    y[n] = 1": ("at least one element", 2, 13),
    "grid each": ("for each of", 2, 8),
    "grid n, q/4": ("'q' is not an axis", 2, 11),
    "axis i in n, i\n  y[n] = 1": ("i is listed twice", 2, 16),
    "stream i in 3, n\n    stream i in 4\n      y[n] = 1": ("i has the extent 3 elsewhere", 3, 12),
    "inf = x[n]": ("'inf' cannot name a value", 2, 3),
    "merge n (s)": ("':' expected", 2, 11),
    "require n": ("a comparison expected", 2, 12),
    "y[n] = last(3)": ("'3' is not an axis", 2, 15),
    "y[n] = 1\n     y[n] = 2": ("stands neither where its block began", 3, 6),
    "y[n] = 1\ny[n] = 2": ("further right than `kernel`", 3, 1),
    "3 = x[n]": ("a statement expected", 2, 3),
}


@pytest.mark.parametrize("source", BAD)
def test_a_broken_header_is_pointed_at(source):
    check(source, *BAD[source])


@pytest.mark.parametrize("body", BODIES)
def test_a_broken_statement_is_pointed_at(body):
    check(f"kernel k(x: f32[n]) -> y: f32[n]\n  {body}", *BODIES[body])


def check(source: str, message: str, line: int, column: int) -> None:
    with pytest.raises(KernelTextError, match=message) as caught:
        parse(source)
    assert (caught.value.line, caught.value.column) == (line, column), str(caught.value)
    assert caught.value.code == "E402"
    if source:
        lines = str(caught.value).splitlines()
        assert lines[2].strip().strip("^") == ""


HEADER = "kernel k(x: f32[n], h: f16[n], c: bool[n], i: i64[n], z: f64[n]) -> y: f32[n]"


@pytest.mark.parametrize(
    "value",
    [
        "x[n] - (x[n] - x[n])", "x[n] - x[n] - x[n]", "(x[n] + 1) * 2", "x[n] + 1 * x[n]",
        "-x[n]", "-(-x[n])", "-x[n] * 2", "-(x[n] * 2)", "x[n] * -2", "-1 * x[n]", "neg(1)",
        "(x[n] else 0) + 1", "exp(x[n] else -inf)", "select(c[n] & ~(x[n] < 1), 1, x[n])",
        "select((x[n] < 1) == c[n], 1, x[n])", "x[n] if c[n] & (n > 3) else 0",
        "(x[n] if c[n] else 0) + 1", "x[n] if c[n] else 1 if n < 3 else 2",
        "1 if ((x[n] else 0) < 2) == c[n] else 2", "(x[n] else 0) if c[n] else x[n] else 1",
        "(x[n] if c[n] | c[n] else 2) if n < 3 else 0", "0 if n < 3 else x[n]",
        "f32(z[n] * 0.1)", "f32(f64(0.1) * f64(0.5))", "f32(i32(n) % i32(3))", "index(n*2 + 1)",
        "f32(i32(size(n)))", "x[n] * size(n)", "f32(n // 2 + 1)", "f32(i[n] >> 1 << 2 ^ i[n])",
        "h[n] + h[n]", "f32(f16(h[n] * 0.1))", "f32(f16(0.1))", "ldexp(x[n], none)",
        "ldexp(x[n], 3)", "max(x[n], max(x[n] over n))", "f32(sum(z[n] over n))",
        "f32(sum(i8(i[n]) over n as i32))", "f32(dot(i[n], 2 over n))",
        "f32(sum(c[n] along n))", "f32(argmin(x[n] over n))", "x[min(n + 1, size(n) - 1)]",
        "x[(n + 3)%size(n)]", "f32(last(n) + 1)", "x[n] * 1e20 + 1e-7 - 0.1", "x[n] * nan",
        "select(c[n], x[n], -nan)", "x[n] else -nan", "copysign(x[n], -nan)",
        "f32(f64(-nan) * f64(nan))",
        "select(true, x[n], -0.0)", "x[n] * 123456789", "f32(i[n] + 9007199254740993)",
    ],
)  # fmt: skip
def test_values_print_as_they_are_read(value):
    source = f"{HEADER}\n  y[n] = {value}"
    kernel = parse(source)
    assert text(kernel) == source
    assert parse(text(kernel)) == kernel


@pytest.mark.parametrize(
    ("loose", "tight"),
    [
        ("(x[n])", "x[n]"),
        ("x[n]+ ( 1 )", "x[n] + 1"),
        ("(1 + 2)*x[n]", "(1 + 2) * x[n]"),
        ("add(x[n], 1.0)", "x[n] + 1"),
        ("x[n] * 1E-05", "x[n] * 1e-5"),
        ("f32(2)", "2"),
        ("x[ n*1 + 0 ]", "x[n]"),
        ("- 3", "-3"),
        ("x[n] + f32(1)", "x[n] + 1"),
        (".5", "0.5"),
    ],
)
def test_one_spelling_is_printed(loose, tight):
    head = "kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = "
    assert text(parse(head + loose)) == head + tight


def test_comments_below_the_header_stay_and_others_go():
    source = """kernel k(x: f32[n]) -> y: f32[n]
  # what it is for
  # and why
  y[n] = x[n]"""
    kernel = parse(source.replace("= x[n]", "= x[n]  # copied\n  # done"))
    assert kernel.comments == ("what it is for", "and why")
    assert text(kernel) == source
    assert kernel == parse("kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = x[n]")


def test_a_long_header_is_broken_and_read_back():
    params = ", ".join(f"input{k}: f32[rows,columns]" for k in range(9))
    source = f"kernel k({params}) -> y: f32[rows,columns]\n  y[rows,columns] = 1"
    shown = text(parse(source))
    assert max(map(len, shown.splitlines())) <= 100
    assert shown.splitlines()[0] == "kernel k("
    assert parse(shown) == parse(source)


def test_computed_positions_may_stand_in_place():
    source = "kernel k(t: f32[v,d], ids: i64[n]) -> y: f32[n,d]\n  grid n\n  y[n,d] = t[ids[n], d]"
    kernel = parse(source)
    assert "= position(ids[n], size(v))" in text(kernel)
    assert parse(text(kernel)) == kernel


def test_constants_keep_what_distinguishes_them():
    assert ir.Const(0.0, f32) != ir.Const(-0.0, f32)
    assert ir.Const(1, f32) != ir.Const(1, f64)
    assert ir.Const(math.nan, f32) == ir.Const(float("nan"), f32)
    assert ir.Const(-math.nan, f32) == ir.Const(float("-nan"), f32) != ir.Const(math.nan, f32)
    assert len({ir.Const(math.nan, f32), ir.Const(-math.nan, f32)}) == 2
    assert ir.Const(1, f32) == ir.Const(1.0, f32)
    assert len({ir.Const(0.0, f32), ir.Const(-0.0, f32), ir.Const(0, f32)}) == 2
    assert isinstance(ir.Const(3.0, i32).value, int)
    assert pickle.loads(pickle.dumps(ir.Const(-0.0, bf16))) == ir.Const(-0.0, bf16)


def test_axes_keep_their_order_and_extents():
    y, x = ir.Param("y", f32, (n,)), ir.Param("x", f32, (n,))
    store = ir.Store("y", (axis("i", n),), ir.Load("x", (axis("i", n),)))
    for axes in (
        (ir.Axis("i", n),),
        (ir.Axis("unused", n), ir.Axis("i", n)),
        (ir.Axis("i", n), ir.Axis("n", n)),
        (ir.Axis("i", n), ir.Axis("other", size("other"))),
    ):
        for grid in ((), (ir.Block("i", 4),), (ir.Block("i"),)):
            kernel = ir.Kernel("k", (x,), (y,), axes, grid, (store,))
            assert parse(text(kernel)) == kernel


def test_a_statement_and_a_value_alone():
    kernel = parse(GOLDENS["softmax_long"])
    stream = kernel.body[0]
    assert isinstance(stream, ir.Stream)
    assert statement_text(stream, kernel) == "stream c/8192 with m = -inf, l = 0"
    assert statement_text(stream.body[1], kernel) == "m' = max(m, max(t over c))"
    assert value_text(ir.Const(2, i64), kernel) == "i64(2)"
    assert value_text(ir.Apply("add", (ir.Ref("lost"), ir.Const(2, i8))), kernel) == "lost + i8(2)"


def test_what_is_not_well_formed_prints_all_the_same():
    x = ir.Load("gone", (axis("q", 3),), ir.Const(0, f16))
    bad = ir.Apply("mul", (ir.Ref("a"), ir.Apply("nothing", (x, ir.Const(1, f32)))))
    body = (ir.Let("v", bad), ir.Update("s", bad), ir.Merge("p", ("s",)))
    shown = text(ir.Kernel("k", (), (), (), (), body))
    assert "v = a * nothing(gone[q] else f16(0), f32(1))" in shown


def test_every_symbol_of_the_rows_has_a_precedence():
    from smelt.kernel.text_print import BINARY

    assert {row.infix for row in SCALARS.values() if row.infix and row.arity == 2} == set(BINARY)


def test_statements_are_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where axes have to be listed, which the body tells, it is not written a second time."""
    names = [f"v{k}" for k in range(50)]
    lines = ["kernel f(x: f32[n + 2]) -> y: f32[n]", "  axis i in n", "  grid i"]
    lines += [f"  {v} = x[i] * {k}.5" for k, v in enumerate(names)]
    lines += [f"  y[i] = {' + '.join(names)}"]
    kernel = parse("\n".join(lines))
    wanted, heads = text(kernel), list[ir.Statement]()
    original = text_print._Printer.head  # pyright: ignore[reportPrivateUsage]

    def head(printer: Any, s: ir.Statement) -> str:
        heads.append(s)
        return original(printer, s)

    monkeypatch.setattr(text_print._Printer, "head", head)  # pyright: ignore[reportPrivateUsage]
    assert text(kernel) == wanted
    assert len(heads) == len(kernel.body)
