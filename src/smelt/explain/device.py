"""Show the kernels of a plan as programs of a GPU, on any machine.

>>> device("h100").arch, device("sm_90").name
('sm_90', 'NVIDIA H100 SXM')

The decisions are those that the planner made for the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.errors import ArgumentError, DeviceKernelError
from smelt.explain.data import DeviceData, DeviceKernelData, KernelData, ReportData
from smelt.explain.device_code import launch_lines, missing_compiler, programs
from smelt.explain.entries import Entry
from smelt.explain.units import show_bytes, show_count, show_time

__all__ = ["DEVICES", "device", "device_page", "with_device"]

NOTE = (
    "Decisions are those of the CPU's planner until there is a cost model for GPUs; "
    "times are predicted, not measured."
)

LEVELS = 4
"""The highest level of a page, which has the assembly."""

_TABLE = (
    DeviceData(
        key="a100",
        name="NVIDIA A100 SXM 80 GB",
        arch="sm_80",
        processors=108,
        gbytes_per_second=2039.0,
        tensor_tflops=312.0,
        float32_tflops=19.5,
    ),
    DeviceData(
        key="4090",
        name="NVIDIA GeForce RTX 4090",
        arch="sm_89",
        processors=128,
        gbytes_per_second=1008.0,
        tensor_tflops=165.2,
        float32_tflops=82.6,
    ),
    DeviceData(
        key="h100",
        name="NVIDIA H100 SXM",
        arch="sm_90",
        processors=132,
        gbytes_per_second=3350.0,
        tensor_tflops=989.0,
        float32_tflops=67.0,
    ),
    DeviceData(
        key="h200",
        name="NVIDIA H200 SXM",
        arch="sm_90",
        processors=132,
        gbytes_per_second=4800.0,
        tensor_tflops=989.0,
        float32_tflops=67.0,
    ),
    DeviceData(
        key="b200",
        name="NVIDIA B200",
        arch="sm_100",
        processors=148,
        gbytes_per_second=8000.0,
        tensor_tflops=2250.0,
        float32_tflops=75.0,
    ),
    DeviceData(
        key="mi300x",
        name="AMD Instinct MI300X",
        arch="gfx942",
        processors=304,
        gbytes_per_second=5300.0,
        tensor_tflops=1307.0,
        float32_tflops=163.4,
    ),
)
DEVICES = {d.key: d for d in _TABLE} | {d.arch: d for d in reversed(_TABLE)}
"""Devices by name and architecture, with rates from their makers' data sheets."""


def device(name: str) -> DeviceData:
    """Return the device of a name or an architecture; raise ArgumentError for an unknown one."""
    try:
        return DEVICES[name.lower()]
    except KeyError:
        raise ArgumentError(
            op="explain", argument="target", value=name, expected=f"one of {', '.join(DEVICES)}"
        ) from None


def with_device(data: ReportData, entries: Sequence[Entry], target: DeviceData) -> ReportData:
    """Return a report with the program of each kernel, or why there is none."""
    pairs = zip(data.kernels, entries, strict=True)
    kernels = tuple(replace(k, device=_program(k, e, target)) for k, e in pairs)
    return replace(data, kernels=kernels, device=target)


def _program(data: KernelData, entry: Entry, target: DeviceData) -> DeviceKernelData:
    floor = data.bytes / target.gbytes_per_second
    if entry.kernel is None:
        reason = "a library call" if data.kind == "call" else "a part that runs in chunks of rows"
        return DeviceKernelData(source=None, refused=reason, floor_ns=floor)
    try:
        source, launches = programs(entry.kernel, entry.sizes, target)
    except DeviceKernelError as error:
        reason = f"{error.code} {error.message}"
        return DeviceKernelData(source=None, refused=reason, floor_ns=floor)
    return DeviceKernelData(source=source, refused=None, floor_ns=floor, launches=launches)


def device_page(data: ReportData, target: DeviceData, level: int) -> str:
    """Return the page for a device.

    Level 1 has a line per kernel and per launch, 2 the programs, 3 all candidates of launches, and
    4 the assembly.
    """
    shown = [(k, k.device) for k in data.kernels if k.device is not None]
    printed = sum(p.source is not None for _, p in shown)
    title = f"{data.name} on {target.name} ({target.arch}): "
    title += f"{printed} of {show_count(len(shown), 'kernel')} printed as Triton"
    lines = [title, NOTE, ""]
    for kernel, program in shown:
        moved = f"{show_bytes(kernel.bytes)}, at least {show_time(program.floor_ns)}"
        rate = f"{target.gbytes_per_second:.0f} GB/s"
        state = "" if program.refused is None else f"; no program: {program.refused}"
        lines.append(f"{kernel.name}: moves {moved} at {rate}{state}")
        lines += [f"  {line}" for x in program.launches for line in launch_lines(x, level)]
    missing = missing_compiler([p for _, p in shown])
    lines += [missing] if missing else []
    if level > 1:
        lines += [f"\n{p.source.rstrip()}" for _, p in shown if p.source is not None]
    if level == LEVELS:
        texts = [(x.name, x.code) for _, p in shown for x in p.launches if x.code is not None]
        lines += [f"\n// {name}\n{code.assembly.rstrip()}" for name, code in texts]
    return "\n".join(lines)
