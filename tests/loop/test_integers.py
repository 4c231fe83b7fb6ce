"""The program's integers at their limits: from the kernel's loops, their text, and vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.llvm.single_kernel import RUNNABLE
from tests.codegen.llvm.test_lower_to_loop import lowered
from tests.codegen.llvm.test_print_loops import compiled
from tests.strategies.effort import effort

from smelt.errors import LoopTextError
from smelt.kernel.text import parse as parse_kernel
from smelt.kernel.verify import verify as verify_kernel
from smelt.loop import ir
from smelt.loop.interpret import run
from smelt.loop.passes.unroll import unroll
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse, text
from smelt.ops.scalar import SCALARS

Array = np.ndarray[Any, Any]
OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "neg", "abs")
EXPRESSIONS = st.recursive(
    st.sampled_from(("x[n]", "z[n]")),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner),
    max_leaves=6,
)


def _kernel_text(e: Any) -> str:
    if isinstance(e, str):
        return e
    op, *args = e
    shown = ", ".join(map(_kernel_text, args[: SCALARS[op].arity]))
    return f"{op}({shown})"


def _values(e: Any, arrays: dict[str, Array]) -> Array:
    if isinstance(e, str):
        return arrays[e[0]]
    op, *args = e
    return SCALARS[op].numpy(*(_values(a, arrays) for a in args[: SCALARS[op].arity]))


def _at_limits(dtype: str) -> dict[str, Array]:
    """Each pair of a few numbers, the least and the largest among them."""
    limits = np.iinfo(dtype)
    numbers = np.array([limits.min, limits.min + 1, -1, 0, 1, 2, 3, limits.max], dtype)
    x, z = np.meshgrid(numbers, numbers)
    return {"x": x.ravel(), "z": z.ravel()}


def _copied(module: ir.Module, change: Callable[[ir.Func], ir.Func]) -> ir.Module:
    """The module after its only function was changed, printed and parsed."""
    shown = text(ir.Module(module.name, (change(module.funcs[0]),)))
    assert text(parse(shown)) == shown
    return parse(shown)


@effort(30)
@given(EXPRESSIONS, st.sampled_from(("int8", "int16", "int32", "int64")))
def test_loops_compute_what_numpy_does(e: Any, dtype: str) -> None:
    name = f"i{np.dtype(dtype).itemsize * 8}"
    source = f"kernel k(x: {name}[n], z: {name}[n]) -> y: {name}[n]\n  grid n\n"
    kernel = verify_kernel(parse_kernel(f"{source}  y[n] = {_kernel_text(e)}\n"))
    arrays = _at_limits(dtype)
    sizes = {"n": arrays["x"].size}
    with np.errstate(all="ignore"):
        want = np.asarray(_values(e, arrays), dtype)
        (phase,) = lowered(kernel) or []
        func = phase.func
        module = ir.Module("k", (func,))
        ((var, _),) = phase.lanes.items()
        for change in (lambda f: f, lambda f: vectorize(f, var, 4, "scalar")):
            parsed = _copied(module, change)
            names = {p.name: arrays[p.name] for p in func.params if p.name in arrays}
            np.testing.assert_array_equal(run(parsed, names, sizes)["y"], want)
    native = compiled(kernel, RUNNABLE[-1], streaming=False)
    np.testing.assert_array_equal(native(arrays)["y"], want)


MARKS = """func f(x: i64[n], z: i64[n], y: out i64[n*5]; n)
  each i in 0 .. n
    v = x[i]
    w = z[i]
    y[i*5] = v //! w
    y[i*5 + 1] = -!v
    y[i*5 + 2] = (v +! w) % 3 + v%3
    y[i*5 + 3] = min!(v, w) - max(v *! w, v -! 1)
    y[i*5 + 4] = v * -!w"""


def test_marks_of_integers_are_read_back() -> None:
    module = parse(MARKS)
    assert text(module) == MARKS
    quotient = module.funcs[0].body[0].body[2].value  # type: ignore[union-attr]
    assert quotient == ir.Apply("floordiv", tuple(ir.position(ir.number(n)) for n in "vw"))
    assert parse(MARKS.replace("//!", "//")) != module
    arrays = {"x": np.array([0, -(2**63), 2**63 - 1]), "z": np.array([0, -1, 2])}
    rows = run(module, arrays, {"n": 3})["y"].reshape(3, 5)
    assert rows[:, 0].tolist() == [0, -(2**63), 2**62 - 1]
    assert rows[:, 1].tolist() == [0, -(2**63), -(2**63) + 1]


def test_copies_of_loops_keep_the_program_s_operators() -> None:
    """A position that replaces a load, or a loop's variable, makes no index arithmetic."""
    module = parse(
        "func f(y: out i64[3])\n  unroll i in 0 .. 3\n    y[i] = (i - 1) //! i + abs(i *! i)"
    )
    parsed = _copied(module, unroll)
    assert "//! 0" in text(parsed)
    assert run(parsed, {}, {})["y"].tolist() == [0, 1, 4]
    assert run(module, {}, {})["y"].tolist() == [0, 1, 4]


@pytest.mark.parametrize("value", ["i !/ 2", "exp2!", "i ~! 2"])
def test_other_marks_are_refused(value: str) -> None:
    with pytest.raises(LoopTextError):
        parse(f"func f(y: out i64[3])\n  each i in 0 .. 3\n    y[i] = {value}")
