"""The three judges of a program: the graph's interpreter, the kernels' interpreter, native code.

`Program` is a graph or a single kernel read from text.  Each judge takes the inputs in order and
sizes, and gives the outputs in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from smelt import driver, knobs
from smelt.cli.inputs import Array
from smelt.codegen.build import Built, build
from smelt.dataclass import dataclass
from smelt.errors import SmeltError
from smelt.graph import interp as graph_interp
from smelt.graph import text as graph_text
from smelt.graph.ir import Graph
from smelt.graph.verify import verify
from smelt.graph.walk import sizes as sizes_of_graph
from smelt.kernel import interp as kernel_interp
from smelt.kernel import text as kernel_text
from smelt.kernel.ir import Kernel
from smelt.lower import interp as plan_interp
from smelt.ops.create import Input
from smelt.runtime.executable import Executable, KernelStep, Native, Value
from smelt.runtime.loader import Loaded, load
from smelt.types.dtype import DType
from smelt.types.expr import size, sizes_of
from smelt.types.tensor import TensorType

__all__ = ["JUDGES", "Difference", "Program", "compare", "read"]

Sizes = Mapping[str, int]
JUDGES = ("graph", "kernel", "native")


@dataclass(frozen=True, slots=True)
class Program:
    """A text that runs: its name, inputs and outputs with types, and the sizes it mentions."""

    name: str
    inputs: dict[str, TensorType]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]
    source: Graph | Kernel

    @property
    def judges(self) -> tuple[str, ...]:
        """Those that can run it: a kernel has no graph."""
        return JUDGES if isinstance(self.source, Graph) else JUDGES[1:]

    def run(self, judge: str, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The outputs as one judge computes them.  Raises what that judge raises."""
        if isinstance(self.source, Graph):
            return _GRAPH_JUDGES[judge](self.source, arrays, sizes)
        return _KERNEL_JUDGES[judge](self.source, arrays, sizes)


def read(source: str) -> Program:
    """The program that a text spells.  Raises GraphTextError or KernelTextError, VerifyError."""
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
    dims = [d for p in (*kernel.inputs, *kernel.outputs) for d in p.shape]
    names = [s for d in (*dims, *(a.extent for a in kernel.axes)) for s in sizes_of(d)]
    inputs = {p.name: TensorType(p.dtype, p.shape) for p in kernel.inputs}
    outputs = tuple(p.name for p in kernel.outputs)
    return Program(kernel.name, inputs, outputs, tuple(dict.fromkeys(names)), kernel)


# ---- a graph's judges --------------------------------------------------------------------------


def _interpreted(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    return graph_interp.run(graph, arrays, sizes)


def _compiled(graph: Graph, sizes: Sizes) -> driver.Compiled:
    return driver.compile(graph, hints=sizes)


def _by_kernels(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    """The plan's kernels through their interpreter, one after another; calls by reference."""
    compiled = _compiled(graph, sizes)
    return plan_interp.run(compiled.plan, compiled.kernels, arrays, sizes)


def _natively(graph: Graph, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    compiled = _compiled(graph, sizes)
    return compiled.run(arrays, tuple(sizes[n] for n in compiled.size_names))


_GRAPH_JUDGES: Mapping[str, Callable[[Graph, Sequence[Array], Sizes], list[Array]]] = {
    "graph": _interpreted,
    "kernel": _by_kernels,
    "native": _natively,
}

# ---- a kernel's judges -------------------------------------------------------------------------


def _interpreted_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    found = kernel_interp.run(kernel, list(arrays), sizes)
    return [found[p.name] for p in kernel.outputs]


def _native_kernel(kernel: Kernel, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
    target = driver.host()
    made = build(replace(kernel, name="k"), target, knobs.OPT_LEVEL.get())
    loaded = load(made.code, [f.symbol for f in made.functions])
    params = [*kernel.inputs, *kernel.outputs]
    count = len(kernel.inputs)
    values = [
        Value(p.dtype, p.shape, "input", k)
        if k < count
        else Value(p.dtype, p.shape, "output", k - count)
        for k, p in enumerate(params)
    ]
    step = _step(made, loaded, {p.name: k for k, p in enumerate(params)})
    outputs = range(count, len(params))
    return Executable(tuple(sizes), values, [[step]], (), outputs, made_for=target).run(
        arrays, tuple(sizes.values())
    )


def _step(made: Built, loaded: Loaded, numbers: Mapping[str, int]) -> KernelStep:
    """The step that calls a kernel on values numbered by the parameters' names."""
    partials = {name: k for k, (name, _) in enumerate(made.partials)}
    strides = {name: (numbers[p], d) for name, p, d in made.strides}
    words: list[tuple[str, Any]] = [
        ("partial", partials[b]) if b in partials else ("value", numbers[b]) for b in made.buffers
    ]
    words += [("stride", strides[s]) if s in strides else ("size", size(s)) for s in made.sizes]
    entries = tuple(
        Native(loaded.address(f.symbol), f.tasks, f.scratch, f.cycles) for f in made.functions
    )
    return KernelStep("k", entries, tuple(words), tuple(n for _, n in made.partials), loaded)


_KERNEL_JUDGES: Mapping[str, Callable[[Kernel, Sequence[Array], Sizes], list[Array]]] = {
    "kernel": _interpreted_kernel,
    "native": _native_kernel,
}

# ---- comparison --------------------------------------------------------------------------------

TOLERANCE: Mapping[str, float] = {"f16": 1e-2, "bf16": 4e-2, "f32": 1e-4, "f64": 1e-11}
"""Largest allowed difference of two results relative to the largest number in them: sums in another
order, functions within a few units in the last place, a half type's intermediate roundings."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two results: their largest difference, also relative to the largest number; the limit."""

    largest: float
    relative: float
    limit: float
    special: bool
    """NaN and infinities stand at the same places, with the same signs."""

    @property
    def fine(self) -> bool:
        return self.special and self.relative <= self.limit


def compare(a: Array, b: Array, dtype: DType, limit: float | None = None) -> Difference:
    """How far apart two results are; integers and truth values must be equal."""
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
