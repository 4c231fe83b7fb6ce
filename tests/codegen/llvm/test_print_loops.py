"""Maps printed from their loops: the bits of what nests emit, and what the interpreter says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.codegen.llvm.native import Native

import smelt as sm
from smelt.codegen.build import build
from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Program
from smelt.codegen.llvm.lower_to_loop import lower_phase
from smelt.codegen.llvm.nests.nest import Schedule
from smelt.codegen.llvm.print_loops import print_func
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.scratch.workspace import lay_out
from smelt.codegen.llvm.vector_loops import in_vectors
from smelt.kernel.interp import run as interpret
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.kernel.verify import verify
from smelt.loop.interpret import run
from smelt.loop.ir import Func, Module
from smelt.loop.text import parse as parse_loops
from smelt.loop.text import text
from smelt.loop.verify import verify as verify_loops
from smelt.machine.target import Target
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]
MAPS = {
    "vector": ("x: f32[n], z: f32[n]", "f32[n]", "exp(x[n]) + z[n]"),
    "columns": ("x: f32[m,n], z: f32[n]", "f32[m,n]", "max(x[m,n] + z[n], 0.0)"),
    "rows": ("x: f32[m,n], z: f32[m]", "f32[m,n]", "x[m,n] / z[m]"),
    "choice": ("x: bool[m,n], z: f32[m,n]", "f32[m,n]", "select(x[m,n], z[m,n], 0.5)"),
    "halves": ("x: f16[m,n], z: bf16[n]", "f16[m,n]", "x[m,n] * z[n]"),
    "wide": ("x: f64[m,n], z: f64[n]", "f64[m,n]", "x[m,n] * z[n] - f64(1.0)"),
    "integers": ("x: i64[m,n], z: i32[n]", "i64[m,n]", "x[m,n] + i64(z[n])"),
    "shared": ("x: i64[n], z: i64[n]", "i64[n]", "select(x[n] < 0, x[n] + 2, x[n]) + z[n]"),
    "sizes": ("x: f32[m,n], z: f16[n]", "f32[m,n], w: f64[m,n]", "x[m,n] + f32(z[n])"),
    "long": ("x: f32[m,n], z: f32[n]", "f32[m,n], w: f32[m,n]", "tanh(exp(sin(x[m,n] + z[n])))"),
    "positions": ("x: f32[m,n], z: f32[n]", "f32[m,n]", "x[m,n] * f32(n) + z[n] * f32(2 * n + m)"),
    "repeated": ("x: f32[m,n], z: f32[5]", "f32[m,n]", "x[m,n//3] * z[n%5]"),
    "bytes": ("x: i8[m,n], z: i8[m,n]", "i8[m,n]", "x[m,n//2] + z[m,n//4]"),
    "unequal": ("x: f32[m,n], z: f32[n]", "f32[m,n]", "x[m,n] + z[n//(m+1)]"),
    "two": ("x: f32[m,n], z: f32[n]", "f32[m,n], w: f32[m,n]", "x[m,n] + z[n]"),
}
"""Inputs, results and what they are; the last kernels have a second result."""
SECOND = {"two": "x[m,n] - z[n]", "sizes": "f64(x[m,n])", "long": "tanh(exp(cos(x[m,n])))"}


def kernel_of(name: str) -> Kernel:
    inputs, result, value = MAPS[name]
    axes = result.partition("[")[2].partition("]")[0]
    source = f"kernel k({inputs}) -> y: {result}\n  grid {axes.replace(',', ', ')}\n"
    source += f"  y[{axes}] = {value}\n"
    if name in SECOND:
        source += f"  w[m,n] = {SECOND[name]}\n"
    return verify(parse(source))


def arrays_of(kernel: Kernel, m: int, n: int) -> dict[str, Array]:
    rng = np.random.default_rng(m + n)
    arrays: dict[str, Array] = {}
    for p in kernel.inputs:
        shape = [int(evaluate(d, {"m": m, "n": n})) for d in p.shape]
        values = rng.normal(size=shape) if p.dtype.is_float else rng.integers(0, 2, shape)
        arrays[p.name] = values.astype(p.dtype.numpy)
    return arrays


def vector_loops(s: Schedule, source: Program, *, streaming: bool) -> Func:
    """The loops of a whole map, in vectors."""
    phase = lower_phase(s, source)
    ((var, _),) = phase.lanes.items()
    return in_vectors(
        phase.func, s, s.nests[0], var, storage=lay_out(s), vector_bytes=32, streaming=streaming
    )


def compiled(kernel: Kernel, isa: str, *, streaming: bool) -> Native:
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    built = build(kernel, target, streaming=streaming)
    return Native(
        kernel, target, built, emulate.load(built.code, [f.symbol for f in built.functions])
    )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_the_loops_that_are_printed_run(name: str, streaming: bool) -> None:
    """Vectors, masks, prefetches and stores past the caches, for arrays that begin anywhere."""
    kernel = kernel_of(name)
    source = program(kernel)
    s = schedule(source.phases[0], Target.for_isa("avx2"))
    func = vector_loops(s, source, streaming=streaming)
    loops = verify_loops(Module(func.name, (func,)), bounds=False)
    mark = "nt 16 =" if name in ("two", "long") else "nt ="
    assert (mark in text(loops)) == streaming
    for m, n, skew in ((3, 37, 0), (1, 290, 24), (2, 9, 2))[: 3 if streaming else 1]:
        arrays = arrays_of(kernel, m, n)
        numbers = {"m": m, "n": n, **dict.fromkeys(func.numbers, skew)}
        got = run(loops, arrays, numbers, seed=skew)
        for result, want in interpret(kernel, arrays, {"m": m, "n": n}).items():
            np.testing.assert_allclose(
                got[result].reshape(want.shape).astype("f8"), want.astype("f8"), rtol=1e-6
            )


def test_the_text_of_printed_loops() -> None:
    """The whole way of a map, as it is printed."""
    source = program(kernel_of("columns"))
    s = schedule(source.phases[0], Target.for_isa("avx2"))
    func = vector_loops(s, source, streaming=False)
    assert text(Module(func.name, (func,))) + "\n" == TEXT


TEXT = """\
func k(x: f32[m*n], z: f32[n], y: out f32[m*n]; m, n)
  ahead_1 = n*min(1, max(1, 2048//max(16, n)) - 1)*4
  rows = max(1, 2048//max(16, n))
  tasks = (m - 1)//rows + 1
  tasks1 = (n + 2047)//2048
  chunk t in 0 .. tasks*tasks1
    t2 = t//tasks1
    t1 = t%tasks1
    from = rows*t2
    to = min(from + rows, m)
    to1 = min(n, t1*2048 + 2048)
    o_1 = (max(-t1*2048 + to1, 0)//32)*32 + t1*2048
    each i in from .. to
      o_2 = n*i
      o_3 = n*i + ahead_1
      each j_2 in t1*2048 .. o_1 by 32
        v_1 = x[j_2 + o_2 : 32]
        prefetch x[j_2 + o_3] level 2
        prefetch x[j_2 + o_3 + 16] level 2
        y[j_2 + o_2 : 32] = max(v_1 + z[j_2 : 32], 0.0)
      each j_3 in o_1 .. to1 by 8
        on_2 = prefix(-j_3 + to1, 8)
        v_2 = x[j_3 + o_2 : 8 | on_2]
        prefetch x[j_3 + o_2 + 1024]
        y[j_3 + o_2 : 8 | on_2] = max(v_2 + z[j_3 : 8 | on_2], 0.0)
"""


@pytest.mark.parametrize(
    "f",
    [
        lambda np, x, p: x + (np.minimum(p + 10, p + 20) // 3)[:, None],
        lambda np, x, p: x + (p * 4 // 4 % 5)[:, None],
    ],
    ids=["least", "quotient"],
)
def test_integers_of_the_program_wrap_and_positions_do_not(f: Any) -> None:
    p = np.array([2**63 - 1, 2**63 - 11, -(2**63), -7], np.int64)
    x = np.zeros((4, 100), np.int64)
    with np.errstate(over="ignore"):
        want = f(np, x, p)
    np.testing.assert_array_equal(np.asarray(sm.jit(lambda x, p: f(sm, x, p))(x, p)), want)


def test_a_side_of_a_branch_reads_nothing_where_the_other_one_runs() -> None:
    """A load that is all of a side stays behind the branch; registers need not."""
    for value, blocks in (("x[n]", 4), ("0.0", 3)):
        func = parse_loops(f"""tile f(x: f32[], y: out f32[]; n)
  if n < 0 with r
    r' = y[0] + 1.0
  else
    r' = {value}
  y[0] = r""").funcs[0]
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), ir.PointerType(), ir.IntType(64)])
        function = ir.Function(ir.Module("m"), kind, "f")
        b = ir.IRBuilder(function.append_basic_block("entry"))
        print_func(b, Target.for_isa("avx2"), func, function.args[:2], function.args[2:])
        b.ret_void()
        entry, *others = str(function).partition("br ")
        assert "load" not in entry
        assert len(function.blocks) == blocks, others
