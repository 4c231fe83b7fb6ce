"""Three ways to run a program: graph interpreter, kernel interpreter, native code.

`Program` is a graph or a single kernel read from text. Each way is a "judge" (a reference) of the
others, so `smelt run` can compare their results. It maps the inputs in order and the sizes to the
outputs in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import click
import numpy as np

from smelt import knobs
from smelt.cli.inputs import Array
from smelt.codegen.build import CompiledKernel, build
from smelt.compiler import driver
from smelt.errors import SmeltError
from smelt.graph import interp as graph_interp
from smelt.graph import text as graph_text
from smelt.graph.ir import Graph
from smelt.graph.verify import verify
from smelt.graph.verify import verify_sizes as verify_graph_sizes
from smelt.graph.walk import all_size_names as sizes_of_graph
from smelt.kernel import interp as kernel_interp
from smelt.kernel import text as kernel_text
from smelt.kernel.ir import Kernel
from smelt.kernel.verify_sizes import size_names
from smelt.kernel.verify_sizes import verify_sizes as verify_kernel_sizes
from smelt.lower import interp as plan_interp
from smelt.ops.create import Input
from smelt.python.dataclass import dataclass
from smelt.runtime.code import Loaded, load
from smelt.runtime.executable import Executable, KernelStep, NativeFunction, Value
from smelt.runtime.memory import check_room
from smelt.types.dtype import DType
from smelt.types.expr import size
from smelt.types.intervals import number
from smelt.types.tensor import TensorType

Sizes = Mapping[str, int]
JUDGES = ("graph", "kernel", "native")
WIDEST = 16
"""Bytes of an element of the interpreter's sums, the largest that it allocates."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program read from text: name, typed inputs and outputs, and the sizes it mentions."""

    name: str
    inputs: dict[str, TensorType]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    source: Graph | Kernel

    @property
    def judges(self) -> tuple[str, ...]:
        """The judges that can run it: a kernel has no graph."""
        return JUDGES if isinstance(self.source, Graph) else JUDGES[1:]

    def verify(self, sizes: Sizes) -> None:
        """Check that a call with these sizes is safe; raise VerifyError and errors of sizes."""
        if isinstance(self.source, Graph):
            verify_graph_sizes(self.source, sizes)
        else:
            verify_kernel_sizes(self.source, sizes)

    def fill(self, arrays: Sequence[Array]) -> None:
        """Make elements equal along dimensions that are declared with a stride of 0."""
        for strides, array in zip(self._strides(), arrays, strict=True):
            for d, stride in enumerate(strides or ()):
                if stride == 0 and array.size:
                    array[...] = array.take([0], axis=d)

    def _strides(self) -> list[tuple[int | None, ...] | None]:
        if isinstance(self.source, Kernel):
            return [p.strides for p in self.source.inputs]
        return [n.op.strides for n in self.source.inputs if isinstance(n.op, Input)]

    def run(self, judge: str, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
        """Return the outputs that one judge computes; raises what that judge raises."""
        if isinstance(self.source, Graph):
            return _GRAPH_JUDGES[judge](self.source, arrays, sizes)
        return _KERNEL_JUDGES[judge](self.source, arrays, sizes)


def read(source: str) -> Program:
    """Parse a program; raise GraphTextError, KernelTextError or VerifyError."""
    words = source.split(None, 1)
    while words and words[0].startswith("#"):
        source = source.split("\n", 1)[1] if "\n" in source else ""
        words = source.split(None, 1)
    if words and words[0] == "kernel":
        return _kernel_program(kernel_text.parse(source))
    graph = verify(graph_text.parse(source))
    inputs = {n.op.label: n.type for n in graph.inputs if isinstance(n.op, Input)}
    names = graph_text.name_values(graph)
    outputs = tuple(names[n] for n in graph.outputs)
    return Program(graph.name, inputs, outputs, sizes_of_graph(graph), graph)


def _kernel_program(kernel: Kernel) -> Program:
    if any(p.each for p in (*kernel.inputs, *kernel.outputs)):
        raise click.ClickException(f"kernel {kernel.name} works on families of arrays: not here")
    inputs = {p.name: TensorType(p.dtype, p.shape) for p in kernel.inputs}
    outputs = tuple(p.name for p in kernel.outputs)
    return Program(kernel.name, inputs, outputs, size_names(kernel), kernel)


# ---- a graph's judges --------------------------------------------------------------------------


def _interpret(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    numbers = ([number(d, sizes) for d in n.type.shape] for n in graph.nodes())
    check_room(max((prod(shape) * WIDEST for shape in numbers), default=0))
    return graph_interp.run(graph, arrays, sizes)


def _compile(graph: Graph, sizes: Sizes) -> driver.Compiled:
    return driver.compile(graph, hints=sizes)


def _interpret_kernels(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    """Interpret the plan's kernels one after another; library calls run their reference."""
    compiled = _compile(graph, sizes)
    return plan_interp.run(compiled.plan, compiled.kernels, arrays, sizes)


def _run_native(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    compiled = _compile(graph, sizes)
    return compiled.run(arrays, tuple(sizes[n] for n in compiled.size_names))


_GRAPH_JUDGES: Mapping[str, Callable[[Graph, Sequence[Array], Sizes], list[Array]]] = {
    "graph": _interpret,
    "kernel": _interpret_kernels,
    "native": _run_native,
}

# ---- a kernel's judges -------------------------------------------------------------------------


def _interpret_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    arrays_by_name = kernel_interp.run(kernel, list(arrays), sizes)
    return [arrays_by_name[p.name] for p in kernel.outputs]


def _run_native_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    target = driver.host()
    built = build(replace(kernel, name="k"), target, knobs.OPT_LEVEL.get())
    loaded = load(built.code, [f.symbol for f in built.functions])
    params = [*kernel.inputs, *kernel.outputs]
    count = len(kernel.inputs)
    names = [p.name for p in kernel.inputs]
    values = [
        Value(p.dtype, p.shape, "input", k)
        if k < count
        else Value(p.dtype, p.shape, "output", k - count, overwrites=_input_of(p.name, names))
        for k, p in enumerate(params)
    ]
    written = {p.name for p in kernel.outputs}
    arrays = [a.copy() if n in written else a for n, a in zip(names, arrays, strict=True)]
    step = _step(built, loaded, {p.name: k for k, p in enumerate(params)})
    outputs = range(count, len(params))
    return Executable(tuple(sizes), values, [[step]], (), outputs, made_for=target).run(
        arrays, tuple(sizes.values())
    )


def _input_of(name: str, inputs: Sequence[str]) -> int:
    """Return which input an output is written over, -1 for none."""
    return inputs.index(name) if name in inputs else -1


def _step(built: CompiledKernel, loaded: Loaded, numbers: Mapping[str, int]) -> KernelStep:
    """Return the step that calls a kernel on values numbered by parameter name."""
    partials = {name: k for k, (name, _) in enumerate(built.partials)}
    strides = {name: (numbers[p], d) for name, p, d in built.strides}
    words: list[tuple[str, Any]] = [
        ("partial", partials[b]) if b in partials else ("value", numbers[b]) for b in built.buffers
    ]
    words += [("stride", strides[s]) if s in strides else ("size", size(s)) for s in built.sizes]
    entries = tuple(
        NativeFunction(loaded.address(f.symbol), f.tasks, f.scratch, f.cycles)
        for f in built.functions
    )
    return KernelStep("k", entries, tuple(words), tuple(n for _, n in built.partials), loaded)


_KERNEL_JUDGES: Mapping[str, Callable[[Kernel, Sequence[Array], Sizes], list[Array]]] = {
    "kernel": _interpret_kernel,
    "native": _run_native_kernel,
}

# ---- comparison --------------------------------------------------------------------------------

TOLERANCE: Mapping[str, float] = {"f16": 1e-2, "bf16": 4e-2, "f32": 1e-4, "f64": 1e-11}
"""Maximum difference of two results relative to the largest number in them: for another order of
sums, functions within a few ulp, and a half type's intermediate roundings."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two results, absolute and relative to the largest number."""

    largest: float
    relative: float
    limit: float
    special: bool
    """Whether NaN and infinities are at the same positions, with the same signs."""

    @property
    def within_limit(self) -> bool:
        return self.special and self.relative <= self.limit


def compare(a: Array, b: Array, dtype: DType, limit: float | None = None) -> Difference:
    """Compare two results; integers and booleans must be equal."""
    allowed = TOLERANCE.get(dtype.name, 0.0) if limit is None else limit
    if a.shape != b.shape or a.dtype != b.dtype:
        raise SmeltError(f"results differ in kind: {a.dtype}{a.shape} and {b.dtype}{b.shape}")
    if not dtype.is_float:
        gap = float(np.count_nonzero(a != b))
        return Difference(gap, gap, 0.0, special=True)
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    special = np.array_equal(x[~finite], y[~finite], equal_nan=True)
    x, y = x[finite], y[finite]
    gap = float(np.max(np.abs(x - y), initial=0.0))
    most = float(np.max(np.abs(x), initial=0.0))
    return Difference(gap, gap / most if most else gap, allowed, special)
