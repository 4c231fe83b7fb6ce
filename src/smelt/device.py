"""Compile a graph for a GPU: plan, kernels, programs, and an executable on one device.

    program = compile_for_device(graph, {"n": 1000}, device)
    program.executable.run([buffer], (1000,), stream, memory)

Programs are compiled when a call first
needs them: their constants depend on sizes, and kernels that differ in names alone share code. The
default compiler is Triton where it is installed; else LLVM, which needs nothing else and prints
maps and simple reductions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

from smelt import fusion, knobs, lower, passes
from smelt.backend.gpus import GPUS, Gpu
from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.codegen.triton.ahead import TritonCompiler, has_triton
from smelt.codegen.triton.device_source import KernelCompiler
from smelt.codegen.triton.select import SelectingCompiler
from smelt.dataclass import dataclass
from smelt.driver import number_values
from smelt.errors import DeviceKernelError, UnsupportedError
from smelt.explain.device_code import policy_in_force, rates_of
from smelt.fusion.plan import Cluster, Plan
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import all_size_names, input_size_names
from smelt.journal import Journal
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.device_code import DeviceCompiler
from smelt.kernel.ir import Kernel
from smelt.kernel.verify import verify as verify_kernel
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.code import find_or_compile
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.tables import DeviceStep, LoadedCode
from smelt.runtime.frames import with_frame_room
from smelt.runtime.host import host
from smelt.runtime.steps import Sizes
from smelt.tiling import Tiling
from smelt.types.expr import add

__all__ = ["DeviceProgram", "compile_for_device", "use_compiler"]

_COMPILER: Final[ContextVar[DeviceCompiler | None]] = ContextVar("smelt_gpu", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceProgram:
    """A graph compiled for a device."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel, ...]
    executable: DeviceExecutable
    journal: Journal

    @property
    def size_names(self) -> tuple[str, ...]:
        """Names of the sizes that `DeviceExecutable.run` takes."""
        return self.executable.size_names


@contextmanager
def use_compiler(compiler: DeviceCompiler) -> Generator[None]:
    """Compile programs with this compiler within a block."""
    token = _COMPILER.set(compiler)
    try:
        yield
    finally:
        _COMPILER.reset(token)


def current_compiler(arch: str) -> DeviceCompiler:
    """Return the compiler of programs for an architecture.

    The default is Triton where it is installed, else LLVM. Candidate schedules are compared for
    architectures whose rates are known.
    """
    compiler = _COMPILER.get()
    if compiler is not None:
        return compiler
    if not has_triton():
        return ThreadCompiler()
    triton = TritonCompiler(Cache.default() if knobs.CACHE.get() else None)
    if arch in GPUS:
        return SelectingCompiler(rates_of(GPUS[arch]), triton, policy_in_force())
    return KernelCompiler(cast("Any", triton))  # its cached property is a protocol's property


@with_frame_room
def compile_for_device(
    graph: Graph, hints: Mapping[str, int], device: Device, journal: Journal | None = None
) -> DeviceProgram:
    """Plan a graph and return its executable on a device.

    `hints` are sizes of the first call.

    Raises DeviceKernelError for a kernel without a program and UnsupportedError for a library
    call, which name the user's line.
    """
    journal = Journal() if journal is None else journal
    compiler = current_compiler(device.arch)
    # A GPU's plans stream and split rows; without such programs, those of a CPU have whole ones.
    machine = nearest_gpu(device.arch) if compiler.has_streams else host()
    sizes = {**dict.fromkeys(input_size_names(graph), 64), **hints}
    with knobs.config(constants=0):
        simplified = passes.run(graph, journal, knobs.ROUNDING.get(), sizes)
        plan = fusion.plan(simplified, machine, journal, sizes, fuse=knobs.FUSE.get(), donated={})
    kernels = {c: _lower(c, {**sizes, **plan.sizes}, machine.tiling) for c in plan.clusters}
    graph = plan.graph  # its outputs are the plan's, which may share what the passes left apart
    numbers, values = number_values(plan, graph.inputs)
    steps = [_step(c, kernels[c], numbers, device, compiler, journal) for c in plan.clusters]
    ends = [
        add(s.offset, s.nbytes) for s in plan.slots if s.offset is not None and s.within is None
    ]
    executable = DeviceExecutable(
        device,
        tuple(dict.fromkeys((*input_size_names(graph), *all_size_names(graph)))),
        values,
        [[steps[k] for k in group] for group in plan.launches],
        ends,
        [numbers[n] for n in graph.outputs],
    )
    return DeviceProgram(graph, plan, tuple(kernels.values()), executable, journal)


def nearest_gpu(arch: str) -> Gpu:
    """Return the GPU whose figures plans use: the newest that is not newer than `arch`.

    >>> nearest_gpu("sm_86").arch, nearest_gpu("sm_120").arch, nearest_gpu("sm_75").arch
    ('sm_80', 'sm_100', 'sm_80')
    """
    if arch in GPUS:
        return GPUS[arch]
    listed = sorted((a for a in GPUS if a.startswith("sm_")), key=lambda a: int(a[3:]))
    older = [a for a in listed if int(a[3:]) <= int(arch.removeprefix("sm_"))]
    return GPUS[older[-1] if older else listed[0]]


def _lower(cluster: Cluster, sizes: Mapping[str, int], tiling: Tiling) -> Kernel:
    """Return the kernel of a cluster; raise for what no program of a device does."""
    last = cluster.nodes[-1]
    if cluster.body is not None:
        raise DeviceKernelError(
            kernel=cluster.name, missing="chunks of rows, a loop of the host", origin=last.origin
        )
    if cluster.inner_plan is not None:
        raise DeviceKernelError(
            kernel=cluster.name, missing="steps of a loop, a plan of the host", origin=last.origin
        )
    for node in cluster.nodes:
        if not node.op.fusible:
            raise UnsupportedError(
                f"{node.op.name} calls a library of the CPU, and its operand is on a GPU",
                origin=node.origin,
                hint="Compute it by torch or CuPy outside of the function, or move the array with"
                ' x.to_device("cpu").',
            )
    kernel = lower.run(cluster, knobs.ROUNDING.get(), sizes, tiling)
    if knobs.VERIFY.get():
        verify_kernel(kernel)
    return kernel


def _step(
    cluster: Cluster,
    kernel: Kernel,
    numbers: Mapping[Node, int],
    device: Device,
    compiler: DeviceCompiler,
    journal: Journal,
) -> DeviceStep:
    """Return the step of a kernel, whose programs are compiled for the sizes of calls."""
    plain, names = canonical_kernel(kernel)
    originals = {name: short for short, name in names.items()}
    params = (*kernel.inputs, *kernel.outputs)
    places = [numbers[n] for n in (*cluster.inputs, *cluster.outputs)]
    values = {originals.get(p.name, p.name): n for p, n in zip(params, places, strict=True)}
    origin = cluster.nodes[-1].origin

    def code_at(sizes: Sizes) -> LoadedCode:
        try:
            text, compile_for = compiler.prepare(plain.kernel, sizes)
        except DeviceKernelError as error:
            error.origin = origin or error.origin
            raise
        parts = f"smelt gpu 1\0{compiler.identity}\0{device.arch}\0{text}"
        key = hashlib.sha256(parts.encode()).digest()
        return find_or_compile(device, key, lambda: compile_for(device.arch), journal)

    return DeviceStep(kernel.name, code_at, names, values)
