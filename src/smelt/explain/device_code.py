"""Compile the programs of a report for its device, where Triton is installed.

    source, launches = programs(kernel, sizes, machine, ["x"])

Schedules are compared with all arrays in main memory, so that code, which plans share, does not
depend on one. Times are shown with the arrays where the plan leaves them.

The knob `device_code` turns compiling off: reports then show predicted schedules alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from smelt import knobs
from smelt.backend import Gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.candidates import Candidate
from smelt.codegen.triton.device_limits import DeviceRates
from smelt.codegen.triton.resources import key_instructions
from smelt.codegen.triton.select import SelectedLaunch, select
from smelt.explain.data import (
    DeviceCodeData,
    DeviceKernelData,
    DeviceLaunchData,
    DeviceScheduleData,
)
from smelt.explain.units import show_bytes, show_count, show_time
from smelt.kernel.ir import Kernel
from smelt.packages.installed import MIN_VERSION, has_triton, is_too_old, triton_version
from smelt.python.dataclass import dataclass
from smelt.runtime.cache import Cache
from smelt.tune.scheduled_gpu import cached_partials, policy_in_force, rates_of


def programs(
    kernel: Kernel,
    sizes: Mapping[str, int],
    machine: Gpu,
    cached: Collection[str] = (),
    constants: Collection[str] = (),
) -> tuple[str, tuple[DeviceLaunchData, ...]]:
    """Return the Triton file of a kernel and its launches on a device.

    Arrays of the parameters `cached` rest in the shared cache, elements of `constants` never
    change. Raises DeviceKernelError for a kernel that is not printed.
    """
    device = rates_of(machine)
    compiler = None
    if knobs.DEVICE_CODE.get() and _missing_triton() is None:
        compiler = TritonCompiler(Cache.default() if knobs.CACHE.get() else None)
    selection = select(kernel, sizes, device, compiler, policy_in_force())
    launches: list[DeviceLaunchData] = []
    for x in selection.launches:
        at = {*cached, *cached_partials(kernel, x.chosen, sizes, machine)}
        launch, results = x.chosen.launch, {p.name for p in kernel.outputs}
        read, written = ({p.name for p in side} for side in (launch.inputs, launch.outputs))
        is_constant = bool(read) and read <= {*constants} and results.isdisjoint(written)
        launches.append(replace(_launch(x, _Timed(device, at), compiler), once=is_constant))
    return selection.source, tuple(launches)


@dataclass(frozen=True, slots=True)
class _Timed:
    """What the time of a launch depends on: a device, and arrays in the shared cache."""

    device: DeviceRates
    cached: Collection[str]

    def predict_ns(self, candidate: Candidate) -> float:
        """Return the time of a candidate with its arrays where they rest."""
        return candidate.time_of(self.device, self.cached).total


def _launch(
    launch: SelectedLaunch, timed: _Timed, compiler: TritonCompiler | None
) -> DeviceLaunchData:
    code = None
    if launch.program is not None and compiler is not None:
        needs = launch.program.resources
        code = DeviceCodeData(
            compiler=compiler.identity.rpartition(" ")[0],
            registers=needs.registers,
            spills=needs.spills,
            shared_bytes=needs.shared_bytes,
            warps=needs.warps,
            occupancy=timed.device.limits.occupancy(
                warps=needs.warps, registers=needs.registers, shared_bytes=needs.shared_bytes
            ),
            instructions=key_instructions(needs.instructions),
            assembly=launch.program.assembly,
        )
    dropped = [_schedule(d.candidate, timed, d.reason) for d in launch.dropped]
    return DeviceLaunchData(
        name=launch.stage.program.name,
        schedule=_schedule(launch.chosen, timed, launch.warning),
        code=code,
        candidates=(*dropped, *(_schedule(c, timed) for c in launch.others)),
    )


def _schedule(
    candidate: Candidate, timed: _Timed, dropped: str | None = None
) -> DeviceScheduleData:
    return DeviceScheduleData(
        blocks=candidate.blocks,
        reason=candidate.schedule.reason,
        predicted_ns=timed.predict_ns(candidate),
        dropped=dropped,
    )


def launch_lines(launch: DeviceLaunchData, level: int) -> list[str]:
    """Return the lines of a launch: its schedule, what its code needs, and the candidates."""
    once = ", in the first call alone" if launch.once else ""
    lines = [f"{launch.name}: {_schedule_line(launch.schedule)}{once}"]
    code = launch.code
    if code is not None:
        spilled = f", {code.spills} bytes spilled" if code.spills else ", no spills"
        counts = ", ".join(f"{n} {m}" for m, n in sorted(code.instructions.items()))
        lines.append(
            f"  {code.registers} registers{spilled}, {show_bytes(code.shared_bytes)} shared, "
            f"{show_count(code.warps, 'warp')}, occupancy {code.occupancy:.0%}"
            f"{'; ' * bool(counts)}{counts}"
        )
    if level > 2:
        lines += [f"  candidate {_schedule_line(c)}" for c in launch.candidates]
    return lines


def _schedule_line(schedule: DeviceScheduleData) -> str:
    parts = [schedule.blocks, schedule.reason, f"predicted {show_time(schedule.predicted_ns)}"]
    text = ", ".join(p for p in parts if p)
    return text if schedule.dropped is None else f"{text}; {schedule.dropped}"


def missing_compiler(kernels: Iterable[DeviceKernelData]) -> str | None:
    """Return what to install for registers and assembly, where printed launches have no code."""
    missing = _missing_triton()
    if missing is None or not any(k.launches for k in kernels):
        return None
    return f"{missing} would show registers, spills, shared memory, occupancy and PTX."


def _missing_triton() -> str | None:
    """Return what would make Triton compile; None if it does."""
    if not has_triton():
        return "pip install 'smelt-compiler[gpu]'"
    present = triton_version()
    return f"Triton {MIN_VERSION} instead of {present}" if is_too_old(present) else None
