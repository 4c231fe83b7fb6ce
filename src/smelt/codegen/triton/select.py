"""Choose the schedule of every launch: the fastest predicted one that passes the gates.

One that spills a few registers around its loops stands before those that take a tenth more time.

selection = select(kernel, sizes, device, compiler)
selection.source, [launch.program.resources for launch in selection.launches]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from smelt.codegen.triton.ahead import AheadProgram, TritonCompiler
from smelt.codegen.triton.block_axes import power_of_two
from smelt.codegen.triton.candidates import Candidate, candidates
from smelt.codegen.triton.device_limits import DeviceRates
from smelt.codegen.triton.device_source import (
    CompiledEntry,
    Entry,
    compile_source,
    source_of_stages,
)
from smelt.codegen.triton.launcher import Stage
from smelt.codegen.triton.resources import can_run, gate, spills_around_loops
from smelt.codegen.triton.schedule import EXACT, Policy
from smelt.codegen.triton.source import print_file, print_stage
from smelt.codegen.triton.writer import refuse
from smelt.errors import DeviceCompileError
from smelt.kernel.device_code import DeviceCode
from smelt.kernel.ir import Kernel
from smelt.python.dataclass import dataclass

SPILL_TIME = 1.1
"""Maximum time of a program without spills, in that of one with few around its loops."""


class Dropped(NamedTuple):
    """A candidate that is not used, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True, slots=True)
class SelectedLaunch:
    """A launch with its schedule and its compiled program.

    `program` is None without a compiler, and for a table of arrays. `dropped` failed a gate,
    `others` are predicted slower and not compiled. `warning` says that every candidate spills
    registers that its loops need, or many; this one spills the least.
    """

    stage: Stage
    chosen: Candidate
    entry: Entry | None
    program: AheadProgram | None
    dropped: tuple[Dropped, ...]
    others: tuple[Candidate, ...]
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The launches of a kernel, and its printed file."""

    kernel: Kernel
    launches: tuple[SelectedLaunch, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The printed launches."""
        return tuple(launch.stage for launch in self.launches)

    @property
    def source(self) -> str:
        """The file of the kernel's programs with their launcher."""
        return print_file(self.kernel, self.stages)


def select(
    kernel: Kernel,
    sizes: Mapping[str, int],
    device: DeviceRates,
    compiler: TritonCompiler | None,
    policy: Policy = EXACT,
) -> Selection:
    """Return the launches of a kernel on a device.

    Without a compiler no gate is checked. Raises DeviceKernelError for a kernel that is not
    printed, and where no candidate can run.
    """
    every = candidates(kernel, sizes, device, policy)
    return Selection(kernel, tuple(_best(kernel, c, sizes, device, compiler) for c in every))


class SelectingCompiler:
    """Compiler of kernels for one device: the best candidate of each launch that passes the gates.

    Calls whose sizes have the same powers of two above them compare the same candidates, and share
    code where its constants are the same.
    """

    has_streams = has_tables = True

    def __init__(
        self, device: DeviceRates, compiler: TritonCompiler, policy: Policy = EXACT
    ) -> None:
        self.device, self.policy, self._compiler = device, policy, compiler

    @property
    def identity(self) -> str:
        """The compiler with its version, for cache keys."""
        return f"selected 3 {self._compiler.identity}"

    def prepare(
        self, kernel: Kernel, sizes: Mapping[str, int]
    ) -> tuple[str, Callable[[str], DeviceCode]]:
        """Print the candidates of a kernel at these sizes; see `DeviceCompiler`.

        Raises DeviceKernelError for kernels that are not printed.
        """
        every = self.schedules(kernel, sizes)
        sources = [
            source_of_stages(kernel, [print_stage(c.launch, c.schedule)], sizes)
            for of_launch in every
            for c in of_launch
        ]
        return repr(sources), lambda arch: self.compile_schedules(kernel, sizes, every, arch)

    def schedules(
        self, kernel: Kernel, sizes: Mapping[str, int]
    ) -> tuple[tuple[Candidate, ...], ...]:
        """Return the candidates of each launch; see `SchedulingCompiler`."""
        rounded = {s: power_of_two(n) for s, n in sizes.items()}
        return candidates(kernel, rounded, self.device, self.policy, sizes)

    def compile_schedules(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        every: Iterable[Sequence[Candidate]],
        arch: str,
    ) -> DeviceCode:
        """Compile the first candidate of each launch that passes; see `SchedulingCompiler`."""
        device = replace(self.device, arch=arch)
        launches = [_best(kernel, c, sizes, device, self._compiler) for c in every]
        programs = {x.stage.program.name: x.program for x in launches}

        def entry_of(text: str, entry: Entry, arch: str) -> CompiledEntry:
            program = programs[entry.symbol]
            if program is None:
                return self._compiler(text, entry, arch)
            return self._compiler.entry_of(program, entry, arch)

        source = source_of_stages(kernel, [x.stage for x in launches], sizes)
        return compile_source(source, arch, entry_of)


def _best(
    kernel: Kernel,
    every: Sequence[Candidate],
    sizes: Mapping[str, int],
    device: DeviceRates,
    compiler: TritonCompiler | None,
) -> SelectedLaunch:
    dropped: list[Dropped] = []
    failed: list[Dropped] = []
    spilling: list[SelectedLaunch] = []
    for k, c in enumerate(every):
        stage = print_stage(c.launch, c.schedule)
        others = tuple(every[k + 1 :])
        if compiler is None or stage.program.members is not None:
            return SelectedLaunch(stage, c, None, None, (), others)
        source = source_of_stages(kernel, [stage], sizes)
        (entry,) = source.entries
        try:
            program = compiler.program(source.text, entry, device.arch)
        except DeviceCompileError as error:
            failed.append(Dropped(c, error.message))
            dropped.append(failed[-1])
            continue
        reason = gate(program.resources, device.limits)
        if reason is None:
            launch = SelectedLaunch(stage, c, entry, program, tuple(dropped), others)
            return _unless_much_slower(launch, spilling)
        dropped.append(Dropped(c, reason))
        if can_run(program.resources, device.limits):
            spilling.append(SelectedLaunch(stage, c, entry, program, (), (), reason))
    if not spilling:
        limits = [d for d in dropped if d not in failed]
        what = "a schedule within the device's limits" if limits else "a program that compiles"
        refuse(kernel.name, f"{what} ({(limits or failed)[-1].reason})")
    least = min(spilling, key=_spills)
    rest = tuple(d for d in dropped if d.candidate is not least.chosen)
    return replace(least, dropped=rest, warning=least.warning if _spills(least)[0] else None)


def _unless_much_slower(
    launch: SelectedLaunch, spilling: Iterable[SelectedLaunch]
) -> SelectedLaunch:
    """Return a launch without spills, or a faster one that spills around its loops."""
    around = next((x for x in spilling if not _spills(x)[0]), None)
    if around is None or launch.chosen.predicted_ns <= SPILL_TIME * around.chosen.predicted_ns:
        return launch
    rest = (d for d in launch.dropped if d.candidate is not around.chosen)
    slower = Dropped(launch.chosen, "slower than one that spills around its loops")
    return replace(around, dropped=(*rest, slower), others=launch.others, warning=None)


def _spills(launch: SelectedLaunch) -> tuple[bool, int]:
    """Return whether the spilled registers cost time, and their bytes."""
    assert launch.program is not None
    needs = launch.program.resources
    return not spills_around_loops(needs), needs.spills
