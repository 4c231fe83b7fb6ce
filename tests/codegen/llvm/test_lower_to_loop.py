"""Schedules as loops: the loop interpreter agrees with the kernel interpreter.

`tests/golden/loops` has the loops of golden kernels as they are lowered, and in `printed` those of
some programs as they are printed, after all passes: first packers, then epilogues and rows that
products put in loops of their own. `python -m tests.codegen.llvm.test_lower_to_loop --update`
writes both anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed
from tests.codegen.llvm.single_kernel import one_cluster
from tests.kernel.goldens import GOLDENS
from tests.strategies.effort import effort
from tests.strategies.graphs import Program, graphs

from smelt import lower, passes
from smelt.codegen.llvm.loopir.lower import stride_name
from smelt.codegen.llvm.lower_to_loop import LoweredPhase, lower_phase, refusal
from smelt.codegen.llvm.module import emit
from smelt.codegen.llvm.print_loops import LoopPrinter
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.compiler import driver
from smelt.errors import UnsupportedError, VerifyError
from smelt.graph.interp import solve_sizes
from smelt.graph.text import parse as parse_graph
from smelt.kernel.interp import run as interpret
from smelt.kernel.ir import Block, Kernel, Split
from smelt.kernel.sizes import sizes_of_call
from smelt.kernel.text import parse
from smelt.loop.interpret import run
from smelt.loop.ir import Func, Module
from smelt.loop.text import parse as parse_loops
from smelt.loop.text import text
from smelt.loop.verify import verify
from smelt.machine.target import Target
from smelt.types.expr import evaluate, sizes_of

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parents[2] / "golden" / "loops"
MOST = 300
"""Elements of an input that are interpreted one by one in time."""
AVX2 = Target.for_isa("avx2")


AVX512 = Target.for_isa("avx512")
PAIRED = replace(AVX512, features=(*AVX512.features, "avx512bf16"))


def _product(operands: str, spec: str, rest: str = "  return s") -> str:
    """A graph of a product `s`, and what follows."""
    sources = "x = cast(a) {dtype=i32}\n  w = cast(c) {dtype=i32}\n  " if "i8" in operands else ""
    more = ", b: f32[n], r: f32[m,n]" if "b)" in rest else ""
    product = f'{sources}s = contract(x, w) {{spec="{spec} -> m,n"}}'
    return f"graph f({operands}{more}) {{\n  {product}\n{rest}\n}}"


ADDED = "  t = add(s, b)\n  u = tanh(t)\n  y = mul(u, r)\n  return y"
HALVES = """graph f(x: f32[m,k], w: f32[k,2*n]) {
  s = contract(x, w) {spec="m,k; k,n -> m,n"}
  t = tanh(s)
  p = slice(t) {starts=(0, 0), sizes=(m, n), steps=(1, 1)}
  q = slice(t) {starts=(0, n), sizes=(m, n), steps=(1, 1)}
  return p, q
}"""
FIRST = """graph f(x: f32[1,64,64,64], k: f32[64,64,3,3]) {
  v1 = window(x) {axis=2, extent=3}
  v2 = window(v1) {axis=3, extent=3}
  v3 = contract(v2, k) {spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}
  return v3
}"""
LAST = """graph f(x: bf16[b,h,w,c], k: bf16[o,3,3,c]) {
  v1 = window(x) {axis=1, extent=3}
  v2 = window(v1) {axis=2, extent=3}
  v3 = contract(v2, k) {spec="b,h,w,c,u,v; o,u,v,c -> b,h,w,o"}
  return v3
}"""
SINGLES, HALF = "x: f32[m,k], w: f32[k,n]", "x: bf16[m,k], w: bf16[n,k]"
PRINTED = {
    "epilogue": (_product(SINGLES, "m,k; k,n", ADDED), AVX2, "panels"),
    "staged_rows": (_product(SINGLES, "m,k; k,n", ADDED), AVX2, "tall_skinny"),
    "ranges": (HALVES, AVX2, "panels"),
    "ranges_by_vector": (HALVES, AVX2, "k_blocked"),
    "swapped": (_product(HALF, "m,k; n,k"), AVX2, "small_m"),
    "few_rows": (_product(SINGLES, "m,k; k,n"), AVX2, "rows"),
    "row": (_product("x: f32[1,k], w: f32[k,n]", "m,k; k,n"), AVX2, ""),
    "dots": (_product("x: f32[1,k], w: f32[n,k]", "m,k; n,k"), AVX2, ""),
    "bytes": (_product("a: i8[m,k], c: i8[k,n]", "m,k; k,n"), AVX512, ""),
    "channels_first": (FIRST, AVX2, ""),
    "pairs": (LAST, PAIRED, ""),
}
"""Programs whose loops are printed: a graph, the machine, and the form of the kernel."""


def lowered(kernel: Kernel) -> list[LoweredPhase] | None:
    """The phases of a kernel as loops, None if one has no such form."""
    source = program(kernel)
    schedules = [s for phase in source.phases for s in build_schedules(phase, AVX2, "")]
    if any(map(refusal, schedules)):
        return None
    return [lower_phase(s, source) for s in schedules]


def run_loops(
    kernel: Kernel, arrays: dict[str, Array], sizes_by_name: dict[str, int], order: int
) -> dict[str, Array] | None:
    """The results of a kernel's loops, after they were printed, parsed and verified."""
    phases = lowered(kernel)
    if phases is None:
        return None
    module = Module(kernel.name, tuple(p.func for p in phases))
    parsed = parse_loops(text(module))
    assert text(parsed) == text(module)
    verify(parsed, bounds=False)
    sizes = dict(sizes_of_call(kernel, arrays, sizes_by_name))
    outputs = {p.name: p for p in kernel.outputs}
    inputs: dict[str, Array] = {}
    for p in kernel.inputs:
        inputs[p.name] = np.ascontiguousarray(arrays[p.name])
        for d, stride in enumerate(p.strides or ()):
            if stride is None:
                steps = inputs[p.name].strides
                sizes[stride_name(p.name, d)] = steps[d] // inputs[p.name].itemsize
    names = {loop: name for p in phases for loop, name in p.buffers.items()}
    by_loop_name = {n: inputs[real] for n, real in names.items() if real in inputs}
    results = run(module, by_loop_name, sizes, seed=order)
    return {
        names[n]: v.reshape([int(evaluate(d, sizes)) for d in outputs[names[n]].shape])
        for n, v in results.items()
        if names[n] in outputs
    }


def check(
    kernel: Kernel, arrays: dict[str, Array], sizes_by_name: dict[str, int], order: int = 0
) -> bool:
    """Compare both interpreters; False if the kernel has no loops."""
    with np.errstate(all="ignore"):
        got = run_loops(kernel, arrays, sizes_by_name, order)
        if got is None:
            return False
        want = interpret(kernel, arrays, sizes_by_name)
    for name, expected in want.items():
        actual = got[name]
        if np.asarray(expected).dtype.kind in "fV":
            a, b = actual.astype("f8"), np.asarray(expected).astype("f8")
            scale = np.abs(b)[np.isfinite(b)].max(initial=1.0)
            tight = {2: 1e-2, 4: 1e-5, 8: 1e-12}[actual.dtype.itemsize]
            np.testing.assert_allclose(a, b, rtol=tight, atol=tight * scale)
        else:
            np.testing.assert_array_equal(actual, expected)
    return True


def kernel_of(
    source: Program,
) -> tuple[Kernel, dict[str, Array], dict[str, int]] | None:
    """A random program as one kernel, with its arrays by name."""
    graph, arrays = source
    sizes = solve_sizes(graph, arrays)
    graph = passes.run(graph, None, "eager")
    cluster = one_cluster(graph)
    if cluster.is_extern or not cluster.nodes:
        return None
    try:
        kernel = lower.run(cluster, "eager", dict.fromkeys(driver.input_size_names(graph), 64))
    except VerifyError as error:
        if "shifted" in error.message or "does not end" in error.message:
            return None
        raise
    by_input = dict(zip(graph.inputs, arrays, strict=True))
    pairs = zip(kernel.inputs, cluster.inputs, strict=True)
    return kernel, {p.name: by_input[node] for p, node in pairs}, sizes


def text_of(kernel: Kernel) -> str:
    """The loops of a kernel as text, empty if it has none."""
    phases = lowered(kernel)
    return text(Module(kernel.name, tuple(p.func for p in phases))) + "\n" if phases else ""


def printed(source: str, target: Target, variant: str) -> str:
    """The loops that are printed for a graph, each text once."""
    kernel = lower.run(one_cluster(passes.run(parse_graph(source), None, "eager")), "eager", {})
    funcs: dict[Func, None] = {}
    begin: Callable[[LoopPrinter, Func], None] = LoopPrinter.begin

    def record(printer: LoopPrinter, func: Func) -> None:
        begin(printer, func)
        if func.body:
            funcs[replace(func, kind="func")] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopPrinter, "begin", record)
        emit(kernel, target, variant=variant)
    return "\n\n".join(text(Module(f.name, (f,))) for f in funcs) + "\n"


def random_arrays(kernel: Kernel, number: int) -> tuple[dict[str, Array], dict[str, int]]:
    """Arrays for the inputs of a kernel, at random small sizes."""
    rng = np.random.default_rng(number)
    shapes = [e for p in (*kernel.inputs, *kernel.outputs) for e in p.shape]
    shapes += [a.extent for a in kernel.axes]
    sizes = {n: int(rng.integers(2, 9)) for e in shapes for n in sizes_of(e)}
    arrays: dict[str, Array] = {}
    for p in kernel.inputs:
        shape = [int(evaluate(d, sizes)) for d in p.shape]
        values = rng.integers(0, 2, shape) if p.dtype.is_integer else rng.normal(size=shape)
        same = p.strides is not None and set(p.strides) == {0}
        arrays[p.name] = np.full(shape, values.flat[0] if same else values).astype(p.dtype.numpy)
    return arrays, sizes


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_the_loops_of_a_golden_kernel(name: str) -> None:
    kernel = parse(GOLDENS[name])
    if any(not isinstance(entry, Block | Split) for entry in kernel.grid):
        pytest.skip("families of arrays are not for a processor")
    stored = FOLDER / f"{name}.loop"
    loops = text_of(kernel)
    assert stored.exists() == bool(loops)
    if loops:
        assert stored.read_text() == loops
        for number in range(3):
            assert check(kernel, *random_arrays(kernel, number), number)


@pytest.mark.parametrize("name", PRINTED)
def test_the_loops_that_are_printed(name: str) -> None:
    assert (FOLDER / "printed" / f"{name}.loop").read_text() == printed(*PRINTED[name])


@pytest.mark.parametrize("part", range(2))
def test_random_kernels(part: int) -> None:
    ran: list[bool] = []

    @seed(part)
    @effort(25)
    @given(graphs(max_nodes=8, flavours=("counting", "uniform")))
    def agree(source: Program) -> None:
        try:
            drawn = kernel_of(source)
        except UnsupportedError:
            return
        if drawn is not None and max((a.size for a in source.arrays), default=0) <= MOST:
            ran.append(check(*drawn, order=part))

    agree()
    assert sum(ran) >= 10


def main(arguments: list[str]) -> None:
    """The command."""
    FOLDER.mkdir(exist_ok=True)
    for name, source in GOLDENS.items():
        try:
            loops = text_of(parse(source))
        except UnsupportedError:
            continue
        if loops and arguments == ["--update"]:
            (FOLDER / f"{name}.loop").write_text(loops)
    (FOLDER / "printed").mkdir(exist_ok=True)
    for name, program_of in PRINTED.items():
        if arguments == ["--update"]:
            (FOLDER / "printed" / f"{name}.loop").write_text(printed(*program_of))


if __name__ == "__main__":
    main(sys.argv[1:])
