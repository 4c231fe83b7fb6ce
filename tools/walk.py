"""Compile one function and generate the texts of ARCHITECTURE.md from its representations.

The target is the generic AVX-512 machine with default figures, so that the texts are the same
everywhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache

from examples.norm import norm

import smelt as sm
from smelt.codegen.build import CompiledKernel, build
from smelt.compiler import driver
from smelt.errors import REASONS
from smelt.fusion.text import text as plan_text
from smelt.graph.ir import Graph
from smelt.graph.text import text as graph_text
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text as kernel_text
from smelt.machine.target import Target
from smelt.types.expr import text as index_text

TARGET = Target.for_isa("avx512")
SIZES = {"n": 4096, "d": 768}
WIDEST = 100


@cache
def recorded() -> Graph:
    """Record `norm` with the front end."""
    x, g = sm.spec("f32[n,d]"), sm.spec("f32[d]")
    return sm.jit(norm).lower(x, x, g).trace.graph


@cache
def compiled() -> driver.Compiled:
    """Compile the recorded graph, without the cache on disk."""
    with sm.config(cache=False):
        return driver.compile(recorded(), hints=SIZES, target=TARGET, journal=Journal())


def kernel() -> Kernel:
    """Return the only kernel; raise ValueError if there are several."""
    (only_kernel,) = compiled().kernels
    assert only_kernel is not None
    return only_kernel


@cache
def _built() -> CompiledKernel:
    return build(kernel(), TARGET)


def fenced(text: str, language: str = "text") -> str:
    """Return a Markdown code block."""
    return f"```{language}\n{text.strip()}\n```\n"


def _source() -> str:
    return fenced(re.sub(r" *# noqa.*", "", inspect.getsource(norm)), "python")


def _plan() -> str:
    return fenced(plan_text(compiled().plan))


def _decisions() -> str:
    """List the planner's decisions, one line each."""
    lines = []
    for d in compiled().plan.decisions:
        row = REASONS[d.reason]
        pair = f"{d.details['a_op']} -> {d.details['b_op']}"
        lines.append(
            f"{d.verdict}  {pair:<22} {row.code} {row.name:<20} saves {d.saves_bytes:,} bytes"
        )
    return fenced("\n".join(lines))


def _calls() -> str:
    """List what the runtime needs to call the code."""
    built = _built()
    lines = [
        f"arguments   {', '.join(built.buffers)} (addresses), {', '.join(built.sizes)} (sizes)"
    ]
    for f in built.functions:
        lines.append(f"entry {f.symbol}    {index_text(f.tasks)} tasks")
        lines.append(f"scratch     {index_text(f.scratch)} bytes for each thread")
        lines.append(f"work        about {index_text(f.cycles)} cycles of one core")
    return fenced("\n".join(lines))


PARTS: Mapping[str, Callable[[], str]] = {
    "source": _source,
    "graph": lambda: fenced(graph_text(compiled().graph)),
    "decisions": _decisions,
    "plan": _plan,
    "kernel": lambda: fenced(kernel_text(kernel())),
    "calls": _calls,
}
"""Part of ARCHITECTURE.md -> the function that generates it."""
