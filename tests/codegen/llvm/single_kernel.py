"""Compile a graph's text into one kernel, on any instruction set.

>>> double = fuse("graph f(x: f32[n]) {\\n y = add(x, x)\\n return y\\n}")
>>> double(np.ones(3, "f4"))[0]
array([2., 2., 2.], dtype=float32)
>>> len(double.built.functions)
1
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from tests.codegen.llvm import emulate

from smelt import lower
from smelt.codegen.build import (
    CompiledKernel,
    Variant,
    Variants,
    build,
    code_variants,
    select_variant,
)
from smelt.compiler import driver
from smelt.fusion.plan import Cluster, Plan
from smelt.graph.interp import run as interpret
from smelt.graph.interp import solve_sizes
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.journal.facts import Journal
from smelt.kernel.canonical import CanonicalKernel
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text as kernel_text
from smelt.kernel.verify import verify
from smelt.machine.target import Isa, Target
from smelt.ops.create import Input
from smelt.runtime.code import Loaded, LoadedKernel
from smelt.runtime.executable import Executable

Array = np.ndarray[Any, Any]
ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable")


def runnable() -> tuple[Isa, ...]:
    """The instruction sets that this processor can run, widest first.

    `EMULATED_ISA=neon` has an emulator run that set instead.
    """
    if emulated := os.environ.get("EMULATED_ISA"):
        return (cast("Isa", emulated),)
    host = Target.host()
    levels = {"avx512": 3, "avx2": 2, "portable": 1}
    level = levels.get(host.isa, 0)
    return tuple(isa for isa in ISAS if levels[isa] <= level)


RUNNABLE = runnable()


def one_cluster(graph: Graph) -> Cluster:
    """All operators of a graph together."""
    nodes = [n for n in graph.nodes() if not isinstance(n.op, Input)]
    used = {x for n in nodes for x in n.inputs}
    inputs = tuple(x for x in graph.inputs if x in used)
    outputs = tuple(n for n in dict.fromkeys(graph.outputs) if not isinstance(n.op, Input))
    return Cluster("k0", tuple(nodes), inputs, outputs)


@dataclass(frozen=True, eq=False)
class SingleKernel:
    """One kernel and everything that is needed to run it."""

    graph: Graph
    kernel: Kernel
    built: CompiledKernel
    loaded: Loaded
    executable: Executable
    target: Target
    variants: Variants
    named: driver.KernelIdentity

    @property
    def size_names(self) -> tuple[str, ...]:
        return driver.input_size_names(self.graph)

    def sizes(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Values of the size symbols for these inputs."""
        return solve_sizes(self.graph, arrays)

    def __call__(self, *arrays: Array, out: Sequence[Array | None] | None = None) -> list[Array]:
        """The native code's results."""
        named = self.sizes(arrays)
        order = tuple(named[n] for n in self.size_names)
        with self._loading():
            return self.executable.run(arrays, order, out)

    def code(self, sizes: Mapping[str, int]) -> tuple[CompiledKernel, Loaded]:
        """What runs for these sizes: the kernel's usual code, or a form of it."""
        variant = select_variant(self.variants, sizes)
        return self.variant_code(variant) if variant else (self.built, self.loaded)

    def variant_code(self, variant: Variant) -> tuple[CompiledKernel, Loaded]:
        """The code of a form, made once: `executable` has it from the same place."""
        with self._loading():
            code = driver.code_of(self.named, self.target, Journal(), variant)
        return code.compiled, code.loaded

    def run(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Return the native code's results for known sizes."""
        with self._loading():
            return self.executable.run(list(arrays), tuple(sizes[n] for n in self.size_names))

    def _loading(self) -> AbstractContextManager[None]:
        """Emulates what this processor does not run."""
        return emulate.programs() if emulate.is_foreign(self.target) else nullcontext()

    def expected(self, *arrays: Array) -> list[Array]:
        """The graph interpreter's results."""
        return interpret(self.graph, list(arrays))


def fuse_graph(
    graph: Graph,
    isa: str,
    rounding: str = "eager",
    *,
    hint: int = 64,
    streaming: bool = False,
    hints: Mapping[str, int] | None = None,
    usual: bool = False,
    features: tuple[str, ...] = (),
) -> SingleKernel:
    """The graph as one kernel; `hint` is the likely size of whatever `hints` do not name.  With
    `usual`, one code serves all sizes: none of the forms for few rows is taken.  `features` are
    instructions that the processor has beside those of the set."""
    target = Target.for_isa(isa)  # type: ignore[arg-type]
    target = replace(target, features=(*target.features, *features))
    cluster = one_cluster(graph)
    likely = dict.fromkeys(driver.input_size_names(graph), hint) | dict(hints or {})
    kernel = verify(lower.run(cluster, rounding, likely))
    built = build(kernel, target, streaming=streaming)
    loaded = emulate.load(built.code, [f.symbol for f in built.functions])
    plan = Plan(graph, (cluster,), ((0,),))
    variants = () if usual else code_variants(kernel, target, likely)
    plain = CanonicalKernel(kernel, kernel_text(kernel))  # its own names
    stem = driver.identify(kernel, target).stem + plain.text.encode()
    named = driver.KernelIdentity(kernel, plain, {}, stem)
    code = LoadedKernel(built, loaded)
    _, executable = driver.assemble(
        plan,
        {cluster: driver.BuiltKernel(named, variants, code)},
        target,
        Journal(),
        None,
        lambda part, sizes: driver.compile(part, hints=sizes),
    )
    return SingleKernel(graph, kernel, built, loaded, executable, target, variants, named)


# Of the last hundred or so: what a test module no longer asks for, the collector need not look at.
@lru_cache(maxsize=128)
def _cached_kernel(
    source: str,
    isa: str,
    rounding: str,
    hints: Any,
    streaming: bool,
    usual: bool,
    features: tuple[str, ...],
) -> SingleKernel:
    return fuse_graph(
        parse(source),
        isa,
        rounding,
        streaming=streaming,
        hints=dict(hints),
        usual=usual,
        features=features,
    )


def fuse(
    source: str,
    isa: str | None = None,
    *,
    rounding: str = "eager",
    streaming: bool = False,
    usual: bool = False,
    features: tuple[str, ...] = (),
    **hints: int,
) -> SingleKernel:
    """The graph as one kernel; made once for the same arguments.  `hints` are likely sizes."""
    key = tuple(sorted(hints.items()))
    return _cached_kernel(source, isa or RUNNABLE[0], rounding, key, streaming, usual, features)
