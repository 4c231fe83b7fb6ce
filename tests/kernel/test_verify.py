"""Each rule of the verifier refuses the kernel that breaks it, and says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kernel.goldens import GOLDENS

from smelt.errors import KernelTextError, VerifyError
from smelt.kernel import ir
from smelt.kernel.text import parse
from smelt.kernel.verify import verify
from smelt.types.dtype import bool_, c64, f16, f32, i8, i32, i64
from smelt.types.expr import axis, size, value

n = size("n")

CASES = Path(__file__).parent / "cases"


def cases(name: str) -> dict[str, str]:
    """The bodies of a case file by name."""
    parts = re.split(r"^\[case (.*)\]\n", (CASES / name).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (p.strip("\n") for p in parts[2::2]), strict=True))


REFUSED, ACCEPTED = cases("refused.case"), cases("accepted.case")


@pytest.mark.parametrize("case", REFUSED)
def test_the_verifier_refuses(case):
    source, reason = REFUSED[case].split("\n[refused]\n")
    kernel = parse(source)
    with pytest.raises(VerifyError, match=re.escape(reason)):
        verify(kernel)


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_verifier_accepts(case):
    verify(parse(ACCEPTED[case]))


def last(name: str) -> ir.Value:
    return ir.Extreme(ir.IndexValue(axis(name, 4), i64), True)


def kernel_with(value_: ir.Value, dtype=f32, **changes) -> ir.Kernel:
    """y[n] = value, in a kernel with an input x."""
    x, y = ir.Param("x", f32, (n,)), ir.Param("y", dtype, (n,))
    store = ir.Store("y", (axis("n", n),), value_)
    kernel = ir.Kernel("k", (x,), (y,), (ir.Axis("n", n),), (), (store,))
    return replace(kernel, **changes)


X = ir.Load("x", (axis("n", n),))
HAND_MADE = {
    "axis of another extent": (kernel_with(ir.Load("x", (axis("n", 3),))), "axis n runs to n"),
    "unknown axis": (kernel_with(ir.Load("x", (axis("q", n),))), "q is not an axis"),
    "unknown position": (kernel_with(ir.Load("x", (value("q", n),))), "q is read where"),
    "unknown name": (kernel_with(ir.Ref("h")), "h is read where it has no value"),
    "unknown operator": (kernel_with(ir.Apply("frobnicate", (X,))), "not a scalar operator"),
    "unknown reduction": (kernel_with(ir.Reduce("frob", X, ("n",), f32)), "not a reduction"),
    "unknown parameter": (kernel_with(ir.Load("z", (0,))), "z is not a parameter"),
    "rank": (kernel_with(ir.Load("x", ())), "1 dimensions, not 0"),
    "type of a store": (kernel_with(ir.Const(1, i64)), "y takes f32, the value is i64"),
    "operand types": (kernel_with(ir.Apply("add", (X, ir.Const(1, i64)))), "operands of one type"),
    "type of a fold": (kernel_with(ir.Reduce("max", X, ("n",), i32), i32), "gives f32, not i32"),
    "fold of nothing": (kernel_with(ir.Reduce("sum", X, (), f32)), "each of its axes once"),
    "fold twice": (kernel_with(ir.Reduce("sum", X, ("n", "n"), f32)), "each of its axes once"),
    "scan without one": (kernel_with(ir.Scan("any", X, "n", bool_), bool_), "no running form"),
    "dot of two types": (
        kernel_with(ir.Dot(X, ir.Const(1, i32), ("n",), f32)),
        "dot of f32 and i32",
    ),
    "condition": (kernel_with(ir.If(X, X, X)), "a condition is f32"),
    "sides": (kernel_with(ir.If(ir.Const(True, bool_), X, ir.Const(1, i32))), "f32 and i32"),
    "outside value": (
        kernel_with(ir.Load("x", (axis("n", n),), ir.Const(0, i32))),
        "but outside i32",
    ),
    "number too large": (kernel_with(ir.Const(300, i8)), "300 is not i8"),
    "fraction": (kernel_with(ir.Const(0.5, i32), i32), "0.5 is not i32"),
    "complex": (kernel_with(ir.Cast(X, c64)), "c64 is not a type to compute in"),
    "last of nothing": (kernel_with(last("q"), i64), "q is not an axis"),
    "name": (kernel_with(X, name="a b"), "cannot name a kernel"),
    "reserved axis": (kernel_with(X, axes=(ir.Axis("n", n), ir.Axis("if", n))), "name a axis"),
    "axes twice": (kernel_with(X, axes=(ir.Axis("n", n), ir.Axis("n", n))), "two axes"),
    "blocks of nothing": (kernel_with(X, grid=(ir.Block("n", 0),)), "blocks of 0"),
    "grid twice": (kernel_with(X, grid=(ir.Block("n"), ir.Block("n"))), "two grid entries"),
    "grid with a stop": (
        kernel_with(X, grid=(ir.Block("n", 1, ir.Const(2, i64)),)),
        "runs over all of n",
    ),
    "strides": (
        kernel_with(X, inputs=(ir.Param("x", f32, (n,), (1, 1)),)),
        "1 dimensions and 2 strides",
    ),
    "in place of another type": (
        kernel_with(X, inputs=(ir.Param("x", f32, (n,)), ir.Param("y", f16, (n,)))),
        "another type as input",
    ),
    "state of another type": (
        kernel_with(
            X,
            body=(ir.Stream((ir.Block("n", 1),), (ir.State("s", ir.Const(0, f32), (), i32),), ()),),
        ),
        "declared i32 and starts as f32",
    ),
    "update outside": (kernel_with(X, body=(ir.Update("s", X),)), "not a state of the stream"),
    "merge of nothing": (kernel_with(X, body=(ir.Merge("p", ()),)), "a merge stands at the top"),
}


@pytest.mark.parametrize("case", HAND_MADE)
def test_the_verifier_refuses_handwritten_kernels(case):
    kernel, reason = HAND_MADE[case]
    with pytest.raises(VerifyError, match=reason):
        verify(kernel)


def test_the_parser_refuses_what_has_no_meaning():
    with pytest.raises(KernelTextError, match="has no value yet"):
        parse(
            "kernel k(x: f32[n]) -> y: f32[]\n  stream n with s = 0\n    s' = s' + x[n]\n  y[] = s"
        )


def test_the_message_carries_the_kernel():
    broken = GOLDENS["log_relu"].replace("b[c]", "b[c + 1]").replace("b: f32[c + 1]", "b: f32[c]")
    with pytest.raises(VerifyError) as caught:
        verify(parse(broken))
    assert "grid r, c/4096" in str(caught.value)
    assert caught.value.fields["reason"]
    assert caught.value.code == "E405"
