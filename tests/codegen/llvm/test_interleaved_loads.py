"""Interleaved loads of one stride are read once, and touch nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

import smelt as sm
from smelt.codegen.build import asm_text
from smelt.kernel.text import parse
from smelt.machine.target import Target

AVX512 = Target.for_isa("avx512")


def gathered(c: int, *columns: int) -> str:
    """The sum of some columns of rows of `c`, each times its number."""
    lines = [
        f"  s{k} = slice(x) {{starts=(0,{k}), sizes=(n,1), steps=(1,1)}}\n"
        f"  r{k} = reshape(s{k}) {{shape=(n,)}}"
        for k in columns
    ]
    names = [f"r{k}" for k in columns]
    total = names[0]
    for k, name in enumerate(names[1:]):
        lines.append(f"  t{k} = add({total}, {name})")
        total = f"t{k}"
    return "\n".join([f"graph f(x: DTYPE[n,{c}]) {{", *lines, f"  return {total}", "}"])


CASES = {
    "gray": gathered(3, 0, 1, 2),
    "two of three": gathered(3, 0, 2),
    "last": gathered(4, 3),
    "nine": gathered(9, *range(9)),
    "half of nine": gathered(9, 0, 2, 4, 6, 8),
    "few of nine": gathered(9, 0, 8),
    "sixteen": gathered(16, *range(0, 16, 2)),
    "far": gathered(40, 0, 1, 39),
}


TYPES = [(name, dtype) for name in CASES for dtype in ("f32", "i8")]
TYPES += [(name, dtype) for name in ("gray", "nine", "far") for dtype in ("f64", "f16")]


@pytest.mark.parametrize(
    ("name", "dtype", "isa"),
    # Bytes of many columns take LLVM long without AVX-512; nine are enough there.
    [(*case, isa) for case in TYPES for isa in RUNNABLE[: 1 if case == ("sixteen", "i8") else 3]],
)
def test_columns_of_rows(name: str, dtype: str, isa: str) -> None:
    """Whole vectors and their ends, between forbidden pages."""
    rng = np.random.default_rng(3)
    kernel = fuse(CASES[name].replace("DTYPE", dtype), isa, n=500)
    width = kernel.graph.inputs[0].type.shape[1]
    assert isinstance(width, int)
    for n in (1, 15, 64, 131):
        x = rng.integers(-2, 3, (n, width)).astype(kernel.graph.inputs[0].type.dtype.numpy)
        expected = kernel.expected(x)[0]
        for at_end in (True, False):
            actual = run_guarded(kernel, [x], at_end=at_end, one_by_one=at_end)[0]
            np.testing.assert_array_equal(actual, expected)


def test_what_several_loads_read_is_read_once() -> None:
    """Three columns of rows of 3: three vectors in the main loop, none of them masked."""
    kernel = parse("""
    kernel k(x: f32[n,3]) -> y: f32[n]
      grid n/1024
      y[n] = x[n,0] * x[n,1] + x[n,2]
    """)
    code = asm_text(kernel, AVX512)
    loop = max(code.split("LBB")[1:], key=lambda part: part.count("vpermt2") + part.count("vperm"))
    assert "%k" not in loop and "gather" not in loop


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("c", [2, 3])
def test_columns_in_stages(c: int, isa: str) -> None:
    """What is dear is done in loops one after another, each with combs of its own."""
    kernel = fuse(
        f"""graph f(x: f32[n,{c}]) {{
      m = reduce.max(x) {{axes=(1,)}}
      k = reshape(m) {{shape=(n,1)}}
      d = sub(x, k)
      e = exp(d)
      s = reduce.sum(e) {{axes=(1,)}}
      t = reshape(s) {{shape=(n,1)}}
      l = log(t)
      y = sub(d, l)
      z = erf(y)
      return z
    }}""",
        isa,
        n=900,
    )
    x = np.random.default_rng(5).standard_normal((900, c), np.float32)
    for n in (900, 67, 1):
        np.testing.assert_allclose(
            kernel(x[:n])[0], kernel.expected(x[:n])[0], rtol=2e-5, atol=2e-6
        )


@pytest.mark.parametrize("m", [9, 4, 1])
@pytest.mark.parametrize(
    "chosen",
    [
        lambda where, a, b, c: where(a, 0.0),
        lambda where, a, b, c: where(a * c, b * 2),
        lambda where, a, b, c: where(b, a),
        lambda where, a, b, c: where(c, a) * b,
    ],
)
def test_a_stretch_of_rows_has_combs_of_its_own(chosen: Callable[..., Any], m: int) -> None:
    """Rows below do not read the column that the comb of all begins with: it failed to compile."""

    def f(xp: Any, x: Any) -> Any:
        above = xp.arange(x.shape[0])[:, None] < 4
        columns = [x[:, k::3] for k in range(3)]
        return chosen(lambda a, b: xp.where(above, a, b), *columns) + columns[1]

    x = np.random.default_rng(m).standard_normal((m, 300), np.float32)
    actual = sm.jit(lambda x: f(sm, x))(x)
    np.testing.assert_allclose(np.asarray(actual), f(np, x), rtol=1e-6)
