"""Ahead-of-time analysis of a compiled graph, with JAX's names: texts, costs, memory.

cost_analysis(compiled, {"n": 1000})["bytes accessed"]
memory_analysis(compiled, {"n": 1000}).temp_size_in_bytes
as_text(compiled, "kernel")
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from smelt.backend import backend_of
from smelt.errors import ArgumentError
from smelt.explain.build import build
from smelt.explain.compiled import Compiled, Sizes, named_sizes
from smelt.explain.data import ReportData, to_data
from smelt.fusion.text import text as plan_text
from smelt.graph.text import text as graph_text
from smelt.kernel.ir import Kernel
from smelt.kernel.text_print import text as kernel_text
from smelt.python.dataclass import dataclass

TextKind = Literal["graph", "plan", "kernel", "llvm", "asm"]


def as_text(compiled: Compiled, kind: str = "kernel") -> str:
    """Return one representation as text: graph (after the passes), plan, kernel, llvm or asm.

    Texts of several kernels are separated by a blank line. Raises ArgumentError for another kind.
    """
    if kind == "graph":
        return graph_text(compiled.plan.graph, origins=True)
    if kind == "plan":
        return plan_text(compiled.plan)
    if kind not in get_args(TextKind):
        raise ArgumentError.of("as_text", "kind", kind, f"one of {', '.join(get_args(TextKind))}")
    return "\n\n".join(_text(k, compiled, kind) for k in compiled.kernels if k is not None)


def _text(kernel: Kernel, compiled: Compiled, kind: str) -> str:
    if kind == "kernel":
        return kernel_text(kernel)
    return backend_of(compiled.target).text(kernel, kind, compiled.target, None)


def cost_analysis(compiled: Compiled, sizes: Sizes | None = None) -> dict[str, Any]:
    """Return operations and bytes of one call at given sizes.

    Keys are JAX's: `flops`, `transcendentals`, `bytes accessed`, and for each input k `bytes
    accessed{k}{}` and `utilization{k}{}` (how often it is read in full), `bytes accessedout{}` for
    the results. Further keys: `bytes accessed unfused`, `predicted ns`, `kernels`, `operators` and
    `decisions` (dicts). Bytes count distinct elements per kernel: the traffic if every kernel
    touches each of its elements once. For programs without data-dependent indices the number is
    exact.

    Raises ArgumentError for sizes that are missing or unknown.
    """
    data = build(compiled, named_sizes(compiled, sizes))
    t = data.total
    costs: dict[str, Any] = {
        "flops": float(t.flops),
        "transcendentals": float(t.transcendentals),
        "bytes accessed": float(t.bytes),
    }
    for place, node in enumerate(data.inputs):
        read = sum(nbytes for _, nbytes in _uses(data, node, "in"))
        node_bytes = data.nodes[node].nbytes
        costs[f"bytes accessed{place}{{}}"] = float(read)
        costs[f"utilization{place}{{}}"] = read / node_bytes if node_bytes else 0.0
    written = sum(n for node in set(data.outputs) for _, n in _uses(data, node, "out"))
    costs["bytes accessedout{}"] = float(written)
    costs["bytes accessed unfused"] = float(t.bytes_unfused)
    costs["predicted ns"] = t.predicted_ns
    costs["kernels"] = t.kernels + t.calls
    costs["operators"] = t.operators
    costs["decisions"] = to_data(data.decisions)
    return costs


def _uses(data: ReportData, node: int, role: str) -> list[tuple[int, int]]:
    """Return (kernel, bytes touched) for each kernel that reads or writes a node."""
    return [
        (k.id, p.touched_bytes)
        for k in data.kernels
        if k.within is None
        for p in k.params
        if p.node == node and p.role == role
    ]


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Bytes of one call, named as in JAX's compiled memory statistics.

    `temp` are intermediates (the arena and partial results), `alias` results that are inputs
    returned unchanged, `constant` values kept between calls (packed operands, constant
    subexpressions).
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    constant_size_in_bytes: int = 0


def memory_analysis(compiled: Compiled, sizes: Sizes | None = None) -> MemoryAnalysis:
    """Return the memory of a call; raise ArgumentError for sizes that are missing or unknown."""
    m = build(compiled, named_sizes(compiled, sizes)).memory
    return MemoryAnalysis(m.argument, m.output, m.alias, m.temp, m.code, m.computed + m.packed)
