"""Plan a graph for a GPU: kernels, the recipe of an executable, and code for sizes.

Programs are compiled when a call first needs them: their constants depend on sizes, and kernels
that differ in names alone share code. The default compiler is Triton where it is installed; else
LLVM, which needs nothing else and prints maps and simple reductions. `device` keeps what is made
here in the cache, and imports this module when something is missing there.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from smelt import fusion, knobs, lower, passes
from smelt.backend.driver_gpu import gpu_of_driver
from smelt.backend.gpus import Gpu
from smelt.codegen.nvptx.source import ThreadCompiler
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.select import SelectingCompiler
from smelt.compiler.driver import donated_inputs, make_recipe
from smelt.errors import DeviceKernelError, UnsupportedError
from smelt.fusion.plan import Cluster, Donate, Plan
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import input_size_names
from smelt.journal.facts import Journal
from smelt.kernel.canonical import CanonicalKernel, canonical_kernel
from smelt.kernel.device_code import DeviceCode, DeviceCompiler, SchedulingCompiler, joined_code
from smelt.kernel.flat_kernels import FlatKernel, flat_kernels, over_arrays
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text as kernel_text
from smelt.kernel.verify import verify as verify_kernel
from smelt.machine.tiling import Tiling
from smelt.packages.installed import has_triton
from smelt.python.dataclass import dataclass
from smelt.runtime.cache import Cache
from smelt.runtime.cuda.code import store_code, stored_code
from smelt.runtime.cuda.driver import Device
from smelt.runtime.executable_format import KernelUse, Recipe
from smelt.runtime.host import host
from smelt.runtime.plan_tables import Sizes
from smelt.tune.device_plans import SHARE
from smelt.tune.scheduled_gpu import policy_in_force, rates_of, scheduled
from smelt.tune.schedules import race
from smelt.types.expr import mul, product, sizes_of

_RACES: Final = threading.Lock()
"""Held by the thread that times programs: kernels get ready side by side."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledForDevice:
    """A graph planned for a device, with its kernels."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel, ...]
    recipe: Recipe
    """The executable as serialisable data; a kernel's stem is the digest of its text."""
    compiler: DeviceCompiler
    gpu: Gpu
    """The device with its rates."""
    clusters: tuple[Cluster, ...]
    """Those of the kernels, which parts that the host drives may be around."""
    plain: tuple[Kernel, ...]
    """The kernels with canonical names, which programs are printed from."""

    tune: Literal["off", "remembered", "race"]
    """The setting `tune` when it was planned."""
    race_seconds: float
    """Time in which the schedules of one kernel race."""

    def code(
        self, number: int, sizes: Sizes, device: Device, journal: Journal
    ) -> tuple[bytes, Callable[[], DeviceCode]]:
        """Return the key of a kernel's code at these sizes, and what compiles it.
        The schedules of a kernel race once per model of a device. The winner is stored under a key
        of its own, and replaces what was compiled without a race.

        Raises DeviceKernelError for a kernel without a program.
        """
        kernel = self.plain[number]
        try:
            text, compile_for = self.compiler.prepare(kernel, sizes)
        except DeviceKernelError as error:
            error.origin = self.clusters[number].nodes[-1].origin or error.origin
            raise
        key = self._key(text)
        compiler = self.compiler
        if not isinstance(compiler, SchedulingCompiler):
            return key, lambda: compile_for(self.gpu.arch)
        if self.tune == "off":
            return _derived("not raced", key), lambda: compile_for(self.gpu.arch)
        raced = _derived(f"raced on {device.model}", key)
        if self.tune == "remembered":
            return key, lambda: stored_code(raced) or compile_for(self.gpu.arch)

        def run_race() -> DeviceCode:
            with _RACES:
                code = race(kernel, sizes, compiler, device, self.race_seconds, journal)
            store_code(key, code)
            return code

        return raced, run_race

    def table_code(
        self, number: int, arrays: int, divisor: int
    ) -> tuple[bytes, Callable[[], DeviceCode]]:
        """Return the key of code for so many arrays at once, and its compiler.

        `divisor` divides the number of elements of each. Raises DeviceKernelError.
        """
        every = flat_kernels(self.plain[number])
        names = {n for k in every for a in k.kernel.axes for n in sizes_of(a.extent)}
        sizes = dict.fromkeys(names, divisor)
        prepared = [self.compiler.prepare(over_arrays(k.kernel, arrays), sizes) for k in every]
        params = (*every[0].kernel.inputs, *every[0].kernel.outputs)
        workspaces = tuple(
            (p.name, mul(product(p.shape), p.dtype.itemsize))
            for p, column in zip(params, every[0].columns, strict=True)
            if column < 0
        )
        texts = "\0".join(text for text, _ in prepared)

        def compiled() -> DeviceCode:
            return joined_code(
                [compile_for(self.gpu.arch) for _, compile_for in prepared], workspaces
            )

        return self._key(texts), compiled

    def _key(self, text: str) -> bytes:
        parts = f"smelt gpu 1\0{self.compiler.identity}\0{self.gpu.arch}\0{text}"
        return hashlib.sha256(parts.encode()).digest()


def _derived(what: str, key: bytes) -> bytes:
    return hashlib.sha256(f"smelt gpu {what}\0".encode() + key).digest()


def gpu_of_device(device: Device) -> Gpu:
    """Return a device with the figures that its driver reports."""
    return gpu_of_driver(device.model, device.arch, device.facts)


def default_compiler(machine: Gpu) -> DeviceCompiler:
    """Return Triton with the candidate schedules of a GPU if it is installed, else LLVM."""
    if not has_triton():
        return ThreadCompiler()
    triton = TritonCompiler(Cache.default() if knobs.CACHE.get() else None)
    return SelectingCompiler(rates_of(machine), triton, policy_in_force())


def plan_for_device(
    graph: Graph,
    hints: Mapping[str, int],
    gpu: Gpu,
    compiler: DeviceCompiler | None,
    journal: Journal,
    donate: Donate = (),
) -> CompiledForDevice:
    """Plan a graph and lower its kernels; see `smelt.compiler.device.compile_for_device`.

    Without a compiler the default one is taken.
    """
    compiler = default_compiler(gpu) if compiler is None else compiler
    # A GPU's plans stream and split rows; without such programs, those of a CPU have whole ones.
    machine = scheduled(gpu) if compiler.has_streams else host()
    sizes = {**dict.fromkeys(input_size_names(graph), 64), **hints}
    with knobs.config(constants=0):
        graph = passes.run(graph, journal, knobs.ROUNDING.get(), sizes, machine.tiling)
        if knobs.FUSE.get() and knobs.ROUNDING.get() != "exact":
            graph = fusion.fuse_loop_neighbors(graph, sizes, machine.tiling)
        donated = donated_inputs(graph, graph, donate)
        plan = fusion.plan(graph, machine, journal, sizes, fuse=knobs.FUSE.get(), donated=donated)
    clusters = dict(_flat_clusters(plan, sizes))
    kernels = {c: _lower(c, {**here, **plan.sizes}, machine.tiling) for c, here in clusters.items()}
    named = {c: canonical_kernel(k) for c, k in kernels.items()}

    @cache
    def flattened(plain: CanonicalKernel) -> tuple[str, tuple[tuple[int, ...], ...]]:
        every = flat_kernels(plain.kernel) if compiler.has_tables else ()
        return _flat_digest(every), tuple(flat.columns for flat in every)

    def use(cluster: Cluster, reads: Sequence[int], numbers: Mapping[Node, int]) -> KernelUse:
        plain, names = named[cluster]
        one = _use(cluster, kernels[cluster], plain.text, names, reads, numbers)
        arrays = (*reads, *(numbers[n] for n in cluster.outputs))
        flat, columns = flattened(plain)
        return one._replace(flat=flat, arrays=arrays, columns=columns)

    return CompiledForDevice(
        plan.graph,  # its outputs are the plan's, which may share what the passes left apart
        plan,
        tuple(kernels.values()),
        make_recipe(plan, kernels, use),
        compiler,
        gpu,
        tuple(clusters),
        tuple(plain.kernel for plain, _ in named.values()),
        knobs.TUNE.get(),
        (1 - SHARE) * knobs.TUNE_SECONDS.get() / max(len(named), 1),
    )


def _flat_digest(every: Sequence[FlatKernel]) -> str:
    """Return a digest of kernels on flat arrays; "" for none."""
    texts = "\0".join(kernel_text(flat.kernel) for flat in every)
    return hashlib.sha256(texts.encode()).hexdigest() if every else ""


def _flat_clusters(
    plan: Plan, sizes: Mapping[str, int]
) -> Iterator[tuple[Cluster, Mapping[str, int]]]:
    """Yield the clusters that are kernels with their sizes, in the order of `Recipe.kernels`."""
    for cluster in plan.clusters:
        if cluster.inner_plan is not None:
            yield from _flat_clusters(cluster.inner_plan, cluster.inner_sizes(sizes))
        else:
            yield cluster, sizes


def _lower(cluster: Cluster, sizes: Mapping[str, int], tiling: Tiling) -> Kernel:
    """Return the kernel of a cluster; raise for what no program of a device does."""
    if cluster.is_extern:
        node = next(n for n in cluster.nodes if not n.op.fusible)
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


def _use(
    cluster: Cluster,
    kernel: Kernel,
    plain_text: str,
    names: Mapping[str, str],
    reads: Sequence[int],
    numbers: Mapping[Node, int],
) -> KernelUse:
    """Return the use of a kernel in a plan.

    `names` maps names of the text to the plan's.
    """
    originals = {name: short for short, name in names.items()}
    params = (*kernel.inputs, *kernel.outputs)
    places = [*reads, *(numbers[n] for n in cluster.outputs)]
    values = {originals.get(p.name, p.name): n for p, n in zip(params, places, strict=True)}
    stem = hashlib.sha256(plain_text.encode()).digest()
    return KernelUse(kernel.name, stem, "", (), names, values)
