"""`Report`, the object behind `sm.explain`: what was fused, what was not, and why.

    report = sm.explain(f, x, y)
    print(report)                        # a page of text
    print(report.why("exp", "sum"))      # one decision
    report.kernels[0].asm                # generated on demand
    report.to_json()                     # everything, versioned
    report.save("report.html")           # the page, to watch the fusion happen

Everything but the generated texts is plain data (`report.data`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smelt.backend import Gpu, Machine, backend_of, register
from smelt.backend.driver_gpu import gpu_of_driver
from smelt.backend.gpus import gpu
from smelt.codegen.build import CpuBackend
from smelt.codegen.gpu_backend import GpuBackend
from smelt.errors import ArgumentError, UnknownNameError, escape_controls
from smelt.explain.build import build
from smelt.explain.compiled import Array, Compiled, Sizes, named_sizes
from smelt.explain.data import KernelData, ReportData, to_data
from smelt.explain.device import device_page, with_device
from smelt.explain.device_plan import plan_for_device
from smelt.explain.entries import entries
from smelt.explain.measure import Times, measure
from smelt.explain.names import find
from smelt.explain.page import collect, frame, html
from smelt.explain.rename import Renaming, source_renaming
from smelt.explain.repeats import Repeats, find_repeats
from smelt.explain.saved_report import LEVELS, SavedReport
from smelt.graph.ir import Node
from smelt.kernel.ir import Kernel
from smelt.machine.processor import INSTRUCTION_SETS
from smelt.machine.target import Target
from smelt.python.caches import cached_property
from smelt.python.imports import fork_safe_import
from smelt.tune.scheduled_gpu import scheduled

register(CpuBackend())
register(GpuBackend())

__all__ = ["KernelReport", "Report", "report", "write"]


class KernelReport:
    """A kernel of a report: its numbers in `data`, its texts generated on demand.

    A library call has empty texts.
    """

    def __init__(
        self,
        data: KernelData,
        kernel: Kernel | None,
        target: Machine,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Keep data in the source's names, kernel and sizes in their own."""
        self.data = data
        self.kernel = kernel
        self.target = target
        self._sizes = sizes

    @cached_property
    def text(self) -> str:
        """The kernel's text form, with the names of the program's source."""
        return self.data.text or ""

    @cached_property
    def schedule(self) -> str:
        """How products are computed: register tiles, packed operands, blocks and their limits.

        In the form that the report's sizes take; empty for a GPU, whose reports show launches.
        """
        return self._text("schedule")

    @cached_property
    def llvm(self) -> str:
        """The LLVM module, before LLVM's optimisations.

        Takes milliseconds, also with a warm cache, which keeps machine code only.
        """
        return self._text("llvm")

    @cached_property
    def asm(self) -> str:
        """The assembly of the form for all sizes; `schedule` says which form the sizes take.

        For a GPU it is that of the compiled launches, PTX on NVIDIA; empty without a compiler.
        """
        program = self.data.device
        if program is not None:
            codes = (x.code for x in program.launches)
            return "\n".join(c.assembly for c in codes if c is not None)
        return self._text("asm")

    def _text(self, language: str) -> str:
        backend = backend_of(self.target)
        if self.kernel is None or language not in backend.languages:
            return ""
        sizes = self._sizes if language == "schedule" else None
        return backend.text(self.kernel, language, self.target, sizes)

    @property
    def source(self) -> str:
        """The kernel as a Triton file; empty where there is none, or for no `target`."""
        program = self.data.device
        return "" if program is None else program.source or ""

    @property
    def ir_size(self) -> int:
        """Lines of the LLVM module."""
        return self.data.compile.ir_size or self.llvm.count("\n")

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # accessed while an object is created without its constructor
            raise AttributeError(name)
        return getattr(self.data, name)

    def __repr__(self) -> str:
        return escape_controls(f"<kernel {self.data.name}: {first_line(self.text)}>")


def first_line(text: str) -> str:
    """Return the first line of a text."""
    return text.partition("\n")[0]


class Report(SavedReport):
    """A report on a compiled function at given sizes; `print` it."""

    def __init__(
        self, data: ReportData, compiled: Compiled, renaming: Renaming | None = None
    ) -> None:
        """Show `data`, which has the names of the graph, in the names of the source."""
        self._own_data = data
        self._renaming = renaming
        super().__init__(data if renaming is None else renaming.report(data))
        self.compiled = compiled
        self.entries: tuple[KernelReport, ...] = tuple(
            KernelReport(entry, kernel, compiled.target, self._own_data.sizes)
            for entry, kernel in zip(self.data.kernels, compiled.kernels, strict=True)
        )
        """One per entry of `data.kernels`."""
        self.kernels = tuple(k for k in self.entries if k.data.kind != "check")
        """The entries that compute, without checks."""
        self.checks = tuple(k for k in self.entries if k.data.kind == "check")
        """Kernels that only check that the inputs are valid."""

    def text(self, level: int = 2) -> str:
        """Return the page; raise ArgumentError for an unknown level.

        Level 1 has totals and kernels, 2 is what `print` shows, 3 has all kernels, 4 every
        decision.
        """
        if self.data.device is not None and level in LEVELS:
            return escape_controls(device_page(self.data, self.data.device, level))
        return super().text(level)

    def _repeats(self) -> Repeats | None:
        return find_repeats(self.compiled.plan.graph.nodes())

    def _find(self, name: str | Node) -> tuple[int, ...]:
        if isinstance(name, Node):
            for number, node in enumerate(self.compiled.plan.graph.nodes()):
                if node is name:
                    return (number,)
            return find(self.data.nodes, repr(name))
        try:
            return find(self.data.nodes, name)
        except UnknownNameError:
            nodes = enumerate(self.compiled.plan.graph.nodes())
            matches = tuple(
                k for k, n in nodes if n.origin is not None and n.origin.matches_name(name)
            )
            if not matches:
                raise
            return matches

    def to_data(
        self,
        *,
        page: bool = False,
        code: bool = False,
        values: Mapping[str, Array] | None = None,
    ) -> dict[str, Any]:
        """Return dicts, lists and scalars, as `to_json` writes them.

        `page` adds what only the page shows, `code` the generated texts to that. `values` are
        small arrays to play the program with, by the names of inputs; others are made up.
        """
        entries = tuple(
            replace(k.data, compile=replace(k.data.compile, ir_size=k.ir_size))
            for k in self.entries
        )
        added = self.data.page
        if page:
            added = collect(self._own_data, self.compiled, code=code, values=values)
            if self._renaming is not None:
                added = self._renaming.page(added, self._own_data)
        data: dict[str, Any] = to_data(replace(self.data, kernels=entries, page=added))
        return data

    def save(self, path: str | os.PathLike[str], *, code: bool = True) -> Path:
        """Write the report to a file and return its path.

        A name in `.html` gets the interactive page, one file that requests nothing; a name in
        `.json` the data. Without `code` the page has no LLVM modules and assembly, which take most
        of the time. Raises ArgumentError for another ending, OSError if the file cannot be written.
        """
        return write(
            path, html=lambda: self._page(code=code), as_json=lambda: self.to_json(indent=2)
        )

    def _page(self, *, code: bool) -> str:
        return html(self.to_data(page=True, code=code))

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in a frame without rights on the notebook."""
        return frame(self._page(code=False))


def write(
    path: str | os.PathLike[str], *, html: Callable[[], str], as_json: Callable[[], str]
) -> Path:
    """Write a page or JSON to a file, by its ending; return its path.

    Raises ArgumentError for another ending, OSError if the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in (".html", ".json"):
        raise ArgumentError(
            op="save", argument="path", value=str(target), expected="a name in .html or .json"
        )
    target.write_text(html() if target.suffix == ".html" else as_json(), encoding="utf-8")
    return target


def report(
    compiled: Compiled,
    sizes: Sizes | None = None,
    arrays: Sequence[Array] | None = None,
    times: Times | None = None,
    target: str | None = None,
    size_names: Mapping[str, str] | None = None,
    *,
    frozen: bool = True,
) -> Report:
    """Return the report of a compiled graph.

    Args:
        compiled: the result of `smelt.compiler.driver.compile`.
        sizes: numbers for the graph's sizes, by name or in the order of `size_names`.
        arrays: inputs to measure with; without them all times are predictions.
        times: existing measurements.
        target: a GPU or a CPU's instruction set to plan for instead, such as "sm_90", "cuda:0" or
            "neon"; nothing runs on it.
        size_names: names to show for sizes, by the graph's own.
        frozen: whether elements of constant inputs never change: a GPU's program keeps what follows
            from them.

    Raises:
        ArgumentError for sizes that are missing or unknown, and an unknown target; NoDriverError
        and DeviceError for a GPU that is not here; with arrays, what running raises.
    """
    if target is not None:  # a program of the cache is not compiled for that
        program = None if compiled.executable is None else compiled.executable.graph
        named = named_sizes(compiled, sizes, program)
        return _report_elsewhere(compiled, _machine(target), named, size_names or {}, frozen=frozen)
    named = named_sizes(compiled, sizes)
    if arrays is not None and compiled.executable is not None:
        times = measure(compiled.executable, arrays, named)
    data = build(compiled, named, times)
    listed = entries(compiled, named)
    return Report(data, compiled, source_renaming(compiled, listed, size_names or {}))


def _machine(name: str) -> Machine:
    """Return the generic CPU of an instruction set, or a GPU: a named one, or one that is here."""
    for isa in INSTRUCTION_SETS:
        if isa == name:
            return Target.for_isa(isa)
    kind, _, number = name.partition(":")
    if kind == "cuda" and (number or "0").isdecimal():
        driver = fork_safe_import("smelt.runtime.cuda.driver").system_driver()
        here = driver.device(int(number or 0))
        return scheduled(gpu_of_driver(here.model, here.arch, here.facts))
    return scheduled(gpu(name, also=("cuda:0", *INSTRUCTION_SETS)))


def _report_elsewhere(
    compiled: Compiled,
    machine: Machine,
    sizes: Mapping[str, int],
    size_names: Mapping[str, str],
    *,
    frozen: bool,
) -> Report:
    """Return the report of a compiled graph that is planned for another machine."""
    planned = plan_for_device(compiled, machine, sizes)
    data, listed = build(planned, sizes), entries(planned, sizes)
    if isinstance(machine, Gpu):
        data = with_device(data, listed, machine, frozen=frozen)
    return Report(data, planned, source_renaming(planned, listed, size_names))
