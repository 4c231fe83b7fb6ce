"""Schedules as loops: the loop interpreter agrees with the kernel interpreter.

`python -m tests.codegen.llvm.test_lower_to_loop --update` writes the loops of the golden kernels
anew.
"""

from __future__ import annotations

import sys
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
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.compiler import driver
from smelt.errors import UnsupportedError, VerifyError
from smelt.graph.interp import solve_sizes
from smelt.kernel.interp import run as interpret
from smelt.kernel.ir import Block, Kernel, Split
from smelt.kernel.sizes import sizes_of_call
from smelt.kernel.text import parse
from smelt.loop.interpret import run
from smelt.loop.ir import Module
from smelt.loop.text import parse as parse_loops
from smelt.loop.text import text
from smelt.loop.verify import verify
from smelt.machine.target import Target
from smelt.types.expr import evaluate, sizes_of

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parents[2] / "golden" / "loops"
MOST = 300
"""Elements of an input that are interpreted one by one in time."""
TARGET = Target.for_isa("avx2")


def lowered(kernel: Kernel) -> list[LoweredPhase] | None:
    """The phases of a kernel as loops, None if one has no such form."""
    source = program(kernel)
    schedules = [s for phase in source.phases for s in build_schedules(phase, TARGET, "")]
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


if __name__ == "__main__":
    main(sys.argv[1:])
