"""Show the kernels of a device's plan as programs of the device.

Decisions and bytes are those of the planner for the device (`smelt.explain.device_plan`); the time
of a kernel is that of its launches, once they have schedules. Nothing runs on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt import knobs
from smelt.backend import Gpu
from smelt.backend.gpu import busy_ns
from smelt.errors import DeviceKernelError
from smelt.explain.data import DeviceData, DeviceKernelData, KernelData, ReportData
from smelt.explain.device_code import launch_lines, missing_compiler, programs
from smelt.explain.entries import Entry
from smelt.explain.shared_launches import SharedLaunch, shared_launches
from smelt.explain.units import show_bytes, show_count, show_time
from smelt.ops.create import Input

_NO_KERNEL = {
    "call": "a library call",
    "rounds": "the host queues its kernels for one chunk of rows after another",
    "loop": "the host queues the kernels of its steps",
}
_READS = "the host reads its condition, waits for that, and queues the kernels of a step"
NOTE = "Times are predicted from published rates, not measured."
LEVELS = 4
"""The highest level of a page, which has the assembly."""
SAME = 0.005
"""Share of a time by which another one may differ to read alike."""


def _device_data(machine: Gpu) -> DeviceData:
    rates = dict(machine.matrix_gflops)
    return DeviceData(
        key=machine.key,
        name=machine.name,
        arch=machine.arch,
        processors=machine.processors,
        gbytes_per_second=machine.memory_gbs,
        cache_gbytes_per_second=machine.cache_gbs,
        tensor_tflops=rates.get("f16", 0.0) / 1e3,
        float32_tflops=machine.vector_gflops / 1e3,
        memory_bytes=machine.memory_bytes,
    )


def with_device(
    data: ReportData, entries: Sequence[Entry], machine: Gpu, *, frozen: bool
) -> ReportData:
    """Return a report with the program of each kernel, or why there is none.

    Elements of constants never change if they are `frozen`.
    """
    pairs = zip(data.kernels, entries, strict=True)
    kernels = [_with_program(k, e, machine, frozen=frozen) for k, e in pairs]
    for number, k in reversed(list(enumerate(kernels))):
        kernels[number] = replace(k, predicted_ns=_predicted(k, kernels))
    for shared in shared_launches(entries, data.launches, machine):
        _share(kernels, shared, machine)
    outer = [k for k in kernels if k.within is None]
    times = [k.predicted_ns for k in outer]
    total = None if None in times else sum(t for t in times if t is not None)
    floor = sum(k.floor_ns for k in outer)
    return replace(
        data,
        kernels=tuple(kernels),
        device=_device_data(machine),
        total=replace(data.total, predicted_ns=total, floor_ns=floor),
    )


def _share(kernels: list[KernelData], shared: SharedLaunch, machine: Gpu) -> None:
    """Give kernels that share launches their part of these, and the time of their bytes.

    Together they fill the device.
    """
    share = shared.launches / len(shared.numbers)
    for number in shared.numbers:
        k, is_first = kernels[number], number == shared.numbers[0]
        assert k.device is not None
        program = replace(
            k.device,
            shared_with=shared.numbers,
            table_sources=shared.sources if is_first else (),
            table_launches=shared.launches,
        )
        time = machine.launch_ns * share + k.device.floor_ns
        kernels[number] = replace(k, device=program, predicted_ns=time)


def _predicted(kernel: KernelData, kernels: Sequence[KernelData]) -> float | None:
    """Return the time of a kernel: that of its launches, or of a loop's kernels in all steps.

    What has no launch with a predicted time has the planner's.
    """
    if kernel.kind == "loop" and kernel.rounds:
        steps = [k.predicted_ns or 0.0 for k in kernels if k.within == kernel.id]
        return kernel.rounds * sum(steps)
    launches = () if kernel.device is None else kernel.device.launches
    return sum(x.schedule.predicted_ns for x in launches if not x.once) or kernel.predicted_ns


def _with_program(data: KernelData, entry: Entry, machine: Gpu, *, frozen: bool) -> KernelData:
    """Return a kernel with its program, and the least time for its bytes."""
    resting = zip(data.params, entry.resting, strict=True)
    cached = sum(p.touched_bytes for p, level in resting if level != "dram")
    floor = busy_ns((data.bytes - cached) / machine.memory_gbs, data.bytes / machine.cache_gbs, 0.0)
    program = replace(
        _program(data, entry, machine, frozen=frozen),
        floor_ns=floor,
        cached_bytes=cached,
        planned_ns=entry.predicted_ns,
    )
    level = machine.levels[0] if 0 < cached == data.bytes else "dram"
    return replace(data, device=program, floor_ns=floor, level=level)


def _program(data: KernelData, entry: Entry, machine: Gpu, *, frozen: bool) -> DeviceKernelData:
    if entry.kernel is None:
        loop = entry.cluster.loop
        waits = loop is not None and not loop.op.length
        reason = _READS if waits else _NO_KERNEL.get(data.kind, "no kernel")
        return DeviceKernelData(source=None, refused=reason, floor_ns=0.0)
    params = (*entry.kernel.inputs, *entry.kernel.outputs)
    resting = zip(params, entry.resting, strict=True)
    cached = [p.name for p, level in resting if level != "dram"]
    inputs = zip(entry.kernel.inputs, entry.arrays.inputs, strict=False)
    constants = [p.name for p, n in inputs if isinstance(n.op, Input) and n.op.constant]
    kept = constants if frozen and entry.within is None and knobs.CONSTANTS.get() else ()
    try:
        source, launches = programs(entry.kernel, entry.sizes, machine, cached, kept)
    except DeviceKernelError as error:
        reason = f"{error.code} {error.message}"
        return DeviceKernelData(source=None, refused=reason, floor_ns=0.0)
    return DeviceKernelData(source=source, refused=None, floor_ns=0.0, launches=launches)


def device_page(data: ReportData, target: DeviceData, level: int) -> str:
    """Return the page for a device.

    Level 1 has a line per kernel and per launch, 2 the programs, 3 all candidates of launches, and
    4 the assembly.
    """
    shown = [(k, k.device) for k in data.kernels if k.device is not None]
    printed = sum(p.source is not None for _, p in shown)
    title = f"{data.name} on {target.name} ({target.arch}): "
    title += f"{printed} of {show_count(len(shown), 'kernel')} printed as Triton"
    stored = show_bytes(data.memory.temp) if data.memory.temp else "nothing"
    between = f"stores {stored} between kernels"
    lines = [title, NOTE, between, *_too_large(data, target), ""]
    for kernel, program in shown:
        if program.table_sources:
            lines.append(_shared_line([data.kernels[k] for k in program.shared_with]))
        if program.shared_with:
            continue
        state = "" if program.refused is None else f"; no program: {program.refused}"
        lines.append(f"{kernel.name}: moves {_moved(kernel, program, target)}{state}")
        lines += [f"  {line}" for x in program.launches for line in launch_lines(x, level)]
    lines += _times_in_all(data, [p for k, p in shown if k.within is None])
    missing = missing_compiler([p for _, p in shown])
    lines += [missing] if missing else []
    lines += _kept_apart(data)
    if level > 1:
        sources = [p.table_sources or (() if p.shared_with else (p.source,)) for _, p in shown]
        lines += [f"\n{x.rstrip()}" for of_kernel in sources for x in of_kernel if x is not None]
    if level == LEVELS:
        texts = [(x.name, x.code) for _, p in shown for x in p.launches if x.code is not None]
        lines += [f"\n// {name}\n{code.assembly.rstrip()}" for name, code in texts]
    return "\n".join(lines)


def _moved(kernel: KernelData, program: DeviceKernelData, target: DeviceData) -> str:
    """Return the bytes of a kernel, where they rest, and its times."""
    moved = show_bytes(kernel.bytes)
    if cached := program.cached_bytes:
        moved += f", {'all' if cached == kernel.bytes else show_bytes(cached)} in the shared cache"
    moved += f", at least {show_time(program.floor_ns)}"
    if not cached:
        moved += f" at {target.gbytes_per_second:.0f} GB/s"
    if kernel.predicted_ns is not None:
        moved += f", predicted {show_time(kernel.predicted_ns)}"
    return moved


def _shared_line(kernels: Sequence[KernelData]) -> str:
    """Return the line of kernels that share a launch."""
    first, program = kernels[0], kernels[0].device
    assert program is not None
    tables = len(program.table_sources)
    line = f"{first.name} and {len(kernels) - 1} more: "
    line += "one launch" if tables == 1 else f"{tables} launches"
    line += f" over many arrays, and {program.table_launches - tables} to fill "
    line += "its table; " if tables == 1 else "their tables; "
    line += f"moves {show_bytes(sum(k.bytes for k in kernels))}"
    times = [k.predicted_ns for k in kernels if k.predicted_ns is not None]
    return f"{line}, predicted {show_time(sum(times))}" if len(times) == len(kernels) else line


def _times_in_all(data: ReportData, programs: Sequence[DeviceKernelData]) -> list[str]:
    """Return the line with the sum of the kernels' times.

    And the planner's, where the fastest schedules failed a gate once they were compiled.
    """
    planned = [p.planned_ns for p in programs if p.planned_ns is not None]
    if data.total.predicted_ns is None or len(planned) < len(programs):
        return []
    line = f"in all: predicted {show_time(data.total.predicted_ns)}"
    is_same = abs(sum(planned) - data.total.predicted_ns) < SAME * data.total.predicted_ns
    return [line if is_same else f"{line}; the plan was decided by {show_time(sum(planned))}"]


def _too_large(data: ReportData, target: DeviceData) -> list[str]:
    """Return a line where a call needs more memory than the card has."""
    memory = data.memory
    needed = memory.argument + memory.output + memory.temp - memory.alias
    if not target.memory_bytes or needed <= target.memory_bytes:
        return []
    sizes = show_bytes(needed), show_bytes(target.memory_bytes)
    return ["A call needs {} of memory, the card has {}: use smaller arrays.".format(*sizes)]


def _kept_apart(data: ReportData) -> list[str]:
    """Return the reasons why operators are in separate kernels, one line each."""
    split = [d for d in data.decisions if d.verdict == "split"]
    sentences = dict.fromkeys(f"{d.a_label} | {d.b_label}: {d.sentence}" for d in split)
    return ["", "Kept in separate kernels:", *(f"  {s}" for s in sentences)] if sentences else []
