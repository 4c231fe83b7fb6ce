"""Collect what the page shows beyond a report's numbers.

data = replace(report.data, page=collect(report.data, compiled, code=True))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from smelt.backend import backend_of
from smelt.explain.build import steps_of
from smelt.explain.compiled import Array, Compiled
from smelt.explain.data import ReportData
from smelt.explain.page.accesses import access_patterns
from smelt.explain.page.layout import layout_of
from smelt.explain.page.small_run import small_run
from smelt.explain.page_data import AccessPattern, Code, PageData, Transfer
from smelt.explain.unfused import UnfusedCluster, unfused_clusters
from smelt.graph.ir import Node
from smelt.kernel.ir import Kernel
from smelt.runtime.code import LoadedKernel
from smelt.runtime.executable import KernelStep
from smelt.types.expr import evaluate

__all__ = ["collect", "transfers"]

MAX_CODE = 40_000
"""Most characters of a generated text."""
MAX_KERNELS = 12
"""Most kernels whose generated texts are included."""


def collect(
    data: ReportData,
    compiled: Compiled,
    *,
    code: bool,
    values: Mapping[str, Array] | None = None,
) -> PageData:
    """Return the page's data; with `code`, also LLVM modules and assembly of the first kernels.

    `values` are small inputs to play the program with, by name.
    """
    unfused = unfused_clusters(compiled.plan, compiled.target, data.sizes)
    return PageData(
        launches_unfused=sum(data.kernels[c.home].kind != "check" for c in unfused),
        layout=layout_of(data.nodes),
        transfers=transfers(data, compiled.plan.graph.nodes(), unfused),
        accesses=_accesses(data, compiled),
        run=small_run(compiled, data, unfused, values),
        codes=_codes(data, compiled, code),
    )


def _accesses(data: ReportData, compiled: Compiled) -> tuple[AccessPattern, ...]:
    return tuple(
        pattern
        for k, kernel in zip(data.kernels, compiled.kernels, strict=True)
        if kernel is not None and k.within is None
        for pattern in access_patterns(k.id, kernel, data.sizes)
    )


def _codes(data: ReportData, compiled: Compiled, code: bool) -> tuple[Code, ...]:
    steps = {} if compiled.executable is None else steps_of(compiled.executable)
    backend, machine = backend_of(compiled.target), compiled.target
    codes: list[Code] = []
    for k, kernel in zip(data.kernels, compiled.kernels, strict=True):
        if kernel is None:
            continue
        texts = code and len(codes) < MAX_KERNELS

        def text(language: str, kernel: Kernel = kernel) -> str:
            if language not in backend.languages:
                return ""
            return _shortened(backend.text(kernel, language, machine, None))

        codes.append(
            Code(
                kernel=k.id,
                llvm=text("llvm") if texts else "",
                asm=text("asm") if texts else "",
                tasks=_tasks(steps.get(k.name), data) if k.within is None else (),
            )
        )
    return tuple(codes)


def _shortened(text: str) -> str:
    """Return the first lines of a generated text, and how many more there are."""
    if len(text) <= MAX_CODE:
        return text
    kept = text[: text.rfind("\n", 0, MAX_CODE)]
    return f"{kept}\n... {text.count(chr(10), len(kept) + 1):,} more lines"


def _tasks(step: KernelStep | None, data: ReportData) -> tuple[int, ...]:
    """Return the tasks of each phase of a kernel, which the threads share."""
    if step is None or not isinstance(step.loaded, LoadedKernel):
        return ()
    sizes = step.sizes(data.sizes)
    return tuple(int(evaluate(f.tasks, sizes)) for f in step.loaded.compiled.functions)


def transfers(
    data: ReportData, nodes: tuple[Node, ...], unfused: list[UnfusedCluster]
) -> tuple[Transfer, ...]:
    """Return a row for each value in memory, in the order of the graph."""
    counts: Counter[tuple[int, str]] = Counter()
    for k in data.kernels:
        if k.within is None and k.kind != "check":
            for p in k.params:
                if p.node is not None:
                    counts[p.node, f"{p.role}"] += 1
                    counts[p.node, f"{p.role} bytes"] += p.touched_bytes
    number = {node: k for k, node in enumerate(nodes)}
    for cluster in unfused:
        if data.kernels[cluster.home].kind == "check":
            continue
        sides = ("in", cluster.inputs, cluster.read), ("out", cluster.outputs, cluster.written)
        for role, values, bytes_of_values in sides:
            for value, nbytes in zip(values, bytes_of_values, strict=True):
                counts[number[value], f"{role} unfused"] += 1
                counts[number[value], f"{role} bytes unfused"] += nbytes
    return tuple(
        Transfer(
            node=n,
            reads=counts[n, "in"],
            read_bytes=counts[n, "in bytes"],
            writes=counts[n, "out"],
            written_bytes=counts[n, "out bytes"],
            reads_unfused=counts[n, "in unfused"],
            read_bytes_unfused=counts[n, "in bytes unfused"],
            writes_unfused=counts[n, "out unfused"],
            written_bytes_unfused=counts[n, "out bytes unfused"],
            least_bytes=_least_bytes(data, n, counts),
        )
        for n in sorted({node for node, _ in counts})
    )


def _least_bytes(data: ReportData, n: int, counts: Counter[tuple[int, str]]) -> int:
    """Return the bytes of an input, read once, or of a result, written once."""
    if data.nodes[n].kind == "input":
        return min(counts[n, "in bytes"], data.nodes[n].nbytes)
    return data.nodes[n].nbytes if data.nodes[n].output else 0
