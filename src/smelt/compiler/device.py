"""Compile a graph for a GPU, or load its stored plan: an executable on one device.

    program = compile_for_device(graph, {"n": 1000}, device)
    program.executable.run([buffer], (1000,), stream, memory)

Plans and code are cached by the CPU's rules (`warm`): a process that finds both imports neither
planner nor printers, and no compiler. Code is found when a call first needs it: by the kernel's
text, the call's sizes, and everything that decides what a compiler makes of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import llvmlite

from smelt import knobs
from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.journal.facts import CacheStored, Journal
from smelt.kernel.abi import ABI_VERSION
from smelt.kernel.device_code import DeviceCompiler
from smelt.ops.create import Input
from smelt.packages.installed import has_triton, triton_version
from smelt.python.caches import cached_property
from smelt.python.imports import fork_safe_import
from smelt.runtime.cache import Cache
from smelt.runtime.code import package_identity
from smelt.runtime.compile_scope import with_frame_room
from smelt.runtime.cuda.code import find_loaded
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.executable import DeviceExecutable
from smelt.runtime.cuda.tables import DeviceStep, HostStep, LoadedCode
from smelt.runtime.executable_format import ChunkedUse, KernelUse, LoopUse, Recipe, Use
from smelt.runtime.plan_tables import Sizes
from smelt.tune.memory import Program, Settings, recall

if TYPE_CHECKING:
    from smelt.compiler.device_compiler import CompiledForDevice
    from smelt.fusion.plan import Cluster, Donate, Plan
    from smelt.kernel.ir import Kernel

_COMPILER: Final[ContextVar[DeviceCompiler | None]] = ContextVar("smelt_gpu", default=None)


@contextmanager
def use_compiler(compiler: DeviceCompiler) -> Generator[None]:
    """Compile programs with this compiler within a block."""
    token = _COMPILER.set(compiler)
    try:
        yield
    finally:
        _COMPILER.reset(token)


@with_frame_room
def compile_for_device(
    graph: Graph,
    hints: Mapping[str, int],
    device: Device,
    journal: Journal | None = None,
    donate: Donate = (),
    *,
    frozen: bool = False,
) -> DeviceProgram:
    """Return a graph's executable on a device, from the cache or planned now.

    `hints` are sizes of the first call, `donate` inputs whose memory results may take over.
    Elements of constants never change if they are `frozen`; a model's parameters may be written to
    in ways that nobody counts.

    Raises DeviceKernelError for a kernel without a program and UnsupportedError for a library
    call, which name the user's line.
    """
    journal = Journal() if journal is None else journal
    identity = _compiler_identity()
    usable = knobs.CACHE.get() and not knobs.VERIFY.get()
    store = Cache.default() if usable else None
    # Lines and names of the user's program decide where a setting of the user names one.
    is_named = knobs.MUST_FUSE.get() or knobs.NEVER_FUSE.get() or knobs.REQUIRE_FUSED.get()
    with knobs.config(dict(_raced_settings(graph, hints, device, identity, journal))):
        key = None if is_named else _plan_key(graph, hints, device, identity, donate)
        recipe = None if store is None or key is None else Recipe.stored(store, key, journal)
        program = DeviceProgram(
            graph, hints, device, identity, journal, recipe, donate, frozen=frozen
        )
    if recipe is None and store is not None and key is not None:
        store.put(key, {"what": "plan", "recipe": program.recipe.to_data()}, b"")
        journal.record(CacheStored(key.hex(), 0))
    return program


def _raced_settings(
    graph: Graph, hints: Mapping[str, int], device: Device, identity: str, journal: Journal
) -> Settings:
    """Return the settings of the plan that has won a race.

    The race is run now if the setting `tune` says so and there has been none.
    """
    program = Program(graph, hints)
    machine = f"{device.model} {device.arch} {identity}"
    settings = recall(program, machine)
    if settings is not None or knobs.TUNE.get() != "race":
        return settings or {}

    def build() -> DeviceProgram:
        return DeviceProgram(graph, hints, device, identity, Journal(), None)

    plans, race = map(fork_safe_import, ("smelt.tune.device_plans", "smelt.tune.race"))
    chosen: Settings = race.choose(plans.DeviceRace(program, build, device, journal), machine)
    return chosen


class DeviceProgram:
    """A graph compiled for a device.

    `graph`, `plan` and `kernels` of a stored plan are computed again when they are accessed.
    """

    def __init__(
        self,
        source: Graph,
        hints: Mapping[str, int],
        device: Device,
        identity: str,
        journal: Journal,
        recipe: Recipe | None,
        donate: Donate = (),
        *,
        frozen: bool = False,
    ) -> None:
        """Link a stored plan, or plan the graph now if `recipe` is None."""
        self._source, self._hints, self._device = source, hints, device
        self._donate = donate
        self._identity = identity
        self._context = copy_context()  # the settings it is compiled under
        self.journal = journal
        self.recipe = self._compiled.recipe if recipe is None else recipe
        self.executable = self._executable(
            self.recipe,
            count(),
            [
                k
                for k, x in enumerate(source.inputs)
                if frozen and isinstance(x.op, Input) and x.op.constant
            ],
        )

    @property
    def size_names(self) -> tuple[str, ...]:
        """Names of the sizes that `DeviceExecutable.run` takes."""
        return self.recipe.size_names

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self._compiled.graph

    @property
    def plan(self) -> Plan:
        """The plan, with every decision."""
        return self._compiled.plan

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel of each cluster, those of loops' steps and chunks included."""
        return self._compiled.kernels

    @property
    def clustered_kernels(self) -> Sequence[tuple[Cluster, Kernel]]:
        """The kernels of the plan's own clusters, with these."""
        compiled = self._compiled
        kernels = dict(zip(compiled.clusters, compiled.kernels, strict=True))
        return [(c, kernels[c]) for c in compiled.plan.clusters if c in kernels]

    @cached_property
    def _compiled(self) -> CompiledForDevice:
        """The plan and its kernels, computed now."""
        compiler = fork_safe_import("smelt.compiler.device_compiler")
        result: CompiledForDevice = self._context.copy().run(
            compiler.plan_for_device,
            self._source,
            self._hints,
            compiler.gpu_of_device(self._device),
            _COMPILER.get(),
            self.journal,
            self._donate,
        )
        return result

    def _executable(
        self, recipe: Recipe, numbers: Iterator[int], constants: Collection[int] = ()
    ) -> DeviceExecutable:
        """Return the executable of a recipe, whose kernels take the next numbers.

        Elements of the inputs `constants` never change.
        """

        def step(use: Use) -> DeviceStep | HostStep:
            if isinstance(use, KernelUse):
                return self._step(use, next(numbers))
            assert isinstance(use, ChunkedUse | LoopUse)
            prepare = partial(use.prepare, self._executable(use.body, numbers))
            return HostStep(use.name, prepare, use.inputs, use.outputs)

        steps = [step(use) for use in recipe.steps]
        return DeviceExecutable(
            self._device,
            recipe.size_names,
            recipe.values,
            [[steps[k] for k in group] for group in recipe.launches],
            recipe.arena,
            recipe.outputs,
            constants,
        )

    def _step(self, use: KernelUse, number: int) -> DeviceStep:
        """Return a step, whose code is found or compiled for the sizes of calls."""
        device, journal = self._device, self.journal

        def code_at(sizes: Sizes) -> LoadedCode:
            # A compiler may choose by the sizes, so code is named by all of them.
            named = "".join(f" {n}={s}" for n, s in sorted(sizes.items()))
            parts = f"{use.stem.hex()}{named} {self._identity} {_machine(device)}"
            source = f"smelt gpu code 2\0{parts} {package_identity()} {self._settings}"
            name = hashlib.sha256(source.encode()).digest()
            return find_loaded(
                device, name, lambda: self._compiled.code(number, sizes, device, journal), journal
            )

        def table_at(arrays: int, divisor: int) -> LoadedCode:
            parts = f"{use.flat} {arrays} {divisor} {self._identity} {_machine(device)}"
            source = f"smelt gpu table 2\0{parts} {package_identity()}\0{self._settings}"
            return find_loaded(
                device,
                hashlib.sha256(source.encode()).digest(),
                lambda: self._compiled.table_code(number, arrays, divisor),
                journal,
            )

        return DeviceStep(
            use.name, code_at, use.names, use.values, use.flat, use.arrays, use.columns, table_at
        )

    @cached_property
    def _settings(self) -> str:
        """What decides code besides the kernel: settings, and the device where schedules race."""
        context = self._context.copy()
        is_raced = context.run(knobs.TUNE.get) == "race"
        return f"{context.run(knobs.fingerprint)} {self._device.model if is_raced else ''}"


def _compiler_identity() -> str:
    """Return the compiler in force with its version; no compiler is imported."""
    compiler = _COMPILER.get()
    if compiler is not None:
        return compiler.identity
    return f"triton {triton_version()}" if has_triton() else f"llvm {llvmlite.__version__}"


def _machine(device: Device) -> str:
    """Return all that plans and schedules depend on of a device."""
    return f"{device.model} {device.arch} {sorted(device.facts.items())}"


def _plan_key(
    graph: Graph, hints: Mapping[str, int], device: Device, identity: str, donate: Donate
) -> bytes | None:
    """Return a digest of all that decides a plan; None for a graph without text."""
    try:
        program = text(replace(graph, name="program"))
    except SmeltError:
        return None
    with knobs.config(tune="off"):  # the plan that has won a race equals one with its settings
        settings = knobs.fingerprint()
    parts = {
        "program": program,
        "sizes": sorted(hints.items()),
        "settings": f"{settings} strict={knobs.STRICT.get()}",
        "version": f"{package_identity()} abi {ABI_VERSION}",
        "compiler": identity,
        "device": _machine(device),
        "donate": donate,
    }
    return hashlib.sha256(json.dumps(["smelt gpu plan 1", parts]).encode()).digest()
