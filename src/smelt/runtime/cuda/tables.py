"""Build the launches of a plan at given sizes: a native table and the frame of its arguments."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from smelt import knobs
from smelt.errors import DeviceSizeError
from smelt.kernel.artifact import size_or_number
from smelt.kernel.device_code import DESCRIPTOR_ALIGNMENT, Argument, DeviceCode, Launch
from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.array_tables import (
    DIVISOR,
    FILL_THREADS,
    FILL_WORDS,
    IN_ARENA,
    ArrayTables,
    Word,
    families,
    fill_function,
    padded,
)
from smelt.runtime.cuda.driver import Device, Module
from smelt.runtime.cuda.kept_workspaces import KeptWorkspace, constant_launches
from smelt.runtime.cuda.native_call import ROW_WORDS
from smelt.runtime.host import cpu_budget
from smelt.runtime.plan_tables import (
    KernelStep,
    Layout,
    PlanTables,
    Sizes,
    TableBuilder,
    Value,
    place_values,
    step_values,
)
from smelt.runtime.sliced_plan import HostPart
from smelt.types.expr import Index, evaluate

MAX_DEVICE_ELEMENTS: Final = (1 << 31) - 1
"""Maximum elements of an array: offsets in programs have 32 bits."""
MAX_SEARCHES: Final = 8
"""Maximum threads that look for code, or wait for its compiler, at once."""
MAX_PROGRAMS: Final = ((1 << 31) - 1, 65_535, 65_535)
"""Maximum programs along each dimension of a grid."""


ONLY_LOADED: Final = ContextVar("smelt_only_loaded_code", default=False)
"""Whether code that is not loaded yet raises CodeNotLoaded: nothing is read nor compiled."""


class CodeNotLoaded(Exception):
    """The code of a step is not loaded."""


class LoadedCode:
    """Code of a kernel, loaded on a device."""

    __slots__ = ("__weakref__", "code", "modules")

    def __init__(self, code: DeviceCode, modules: tuple[Module, ...]) -> None:
        self.code = code
        self.modules = modules


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """Kernel of a plan.

    `code_at` returns the code for sizes under the code's own names; `names` maps these to the
    plan's sizes or numbers, `values` the code's buffers to the plan's values. Steps with the same
    name `flat` do the same to flat arrays, which are among `arrays`; `table_at` returns its code
    for a number of arrays whose elements are, or are not, multiples of 16, and `columns` are what
    the table of each of its launches lists (see `smelt.kernel.flat_kernels`).
    """

    name: str
    code_at: Callable[[Sizes], LoadedCode]
    names: Mapping[str, str]
    values: Mapping[str, int]
    flat: str = ""
    arrays: tuple[int, ...] = ()
    columns: tuple[tuple[int, ...], ...] = ()
    table_at: Callable[[int, int], LoadedCode] | None = None

    def sizes(self, named: Sizes) -> dict[str, int]:
        """Return the plan's sizes under the code's names."""
        return renamed_sizes(self.names, named)


def renamed_sizes(names: Mapping[str, str], named: Sizes) -> dict[str, int]:
    """Return a plan's sizes with those under a code's names."""
    renamed = {
        k: int(evaluate(size_or_number(n), named))
        for k, n in names.items()
        if n.isdigit() or n in named
    }
    return {**named, **renamed}


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """Step that the host drives, such as a loop; `inputs` and `outputs` are values."""

    name: str
    prepare: Callable[[Sizes], HostPart]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Segment(NamedTuple):
    """Launches that follow one another, or a part that the host drives.

    `first` and `length` say which rows of the table, or words of the frame: the part's addresses.
    """

    first: int
    length: int
    part: HostPart | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class PreparedLaunches(PlanTables):
    """Everything of a call that depends on sizes only; strides are row-major until the call."""

    rows: np.ndarray[Any, Any]
    strided: frozenset[int]
    """Inputs whose strides are passed to their programs."""
    codes: list[LoadedCode]
    """Owners of the functions in the table."""
    segments: list[Segment]
    """What runs, in order."""
    names: list[str]
    """Name of the kernel of each launch, for messages."""
    kept: list[KeptWorkspace]
    """Workspaces that outlive a call."""
    kept_rows: np.ndarray[Any, Any]
    """The launch of each of them, which first calls make."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the workspaces that outlive a call."""
        return sum(k.nbytes for k in self.kept)

    @property
    def has_parts(self) -> bool:
        """Whether the host drives a part of it."""
        return any(s.part is not None for s in self.segments)

    @property
    def operations(self) -> int | None:
        """Launches and copies that a call queues; None if values on the device decide."""
        total = 0
        for s in self.segments:
            queued = s.length if s.part is None else s.part.operations
            if queued is None:
                return None
            total += queued
        return total


def prepare_launches(
    values: Sequence[Value],
    groups: Sequence[Sequence[DeviceStep | HostStep]],
    arena: Sequence[Index],
    sizes: dict[str, int],
    constants: Collection[int] = (),
) -> PreparedLaunches:
    """Build the table for these sizes; elements of the inputs `constants` never change.

    Raises DeviceSizeError for an array or a grid beyond 32 bits; empty grids are left out.
    """
    return _Builder(values, sizes, constants).build(groups, arena)


class _Builder(TableBuilder):
    """Builder of one table."""

    def __init__(
        self, values: Sequence[Value], sizes: dict[str, int], constants: Collection[int]
    ) -> None:
        super().__init__(values, sizes)
        self.constants = {
            n for n, v in enumerate(values) if v.place == "input" and v.number in constants
        }
        self.room = knobs.CONSTANTS.get()
        """Bytes that may be kept between calls."""
        self.kept: list[KeptWorkspace] = []
        self.kept_rows: list[list[int]] = []
        self.rows: list[list[int]] = []
        self.names: list[str] = []
        self.codes: list[LoadedCode] = []
        self.segments: list[Segment] = []
        self.aligned: set[int] = set()
        self.strided: set[int] = set()

    def build(
        self, groups: Sequence[Sequence[DeviceStep | HostStep]], arena: Sequence[Index]
    ) -> PreparedLaunches:
        results = self.results()
        if results and not any(nbytes for *_, nbytes, _ in results):
            groups = ()  # index expressions assume sizes of at least 1
        ready = self._all_ready([self._families(group) for group in groups])
        ready = [[*map(self._keeping, group)] for group in ready]
        self.codes = [r.code for group in ready for r in group if r.code is not None]
        plain = [[r.layout for r in group] for group in ready]
        self.places = places = place_values(self.values, plain, arena, self.sizes)
        for time, group in enumerate(ready):
            for k, r in enumerate(group):
                if r.tables is not None:
                    self._add_tables(r, r.tables, places, (time, k))
                elif r.part is None:
                    self._add_launches(time, k, r, places)
                else:
                    self._add_part(r, places.partials[time, k, 0])
        most = max((row[7] for row in (*self.rows, *self.kept_rows)), default=0)
        rows, kept_rows = (
            np.array(x, np.int64).reshape(-1, ROW_WORDS) for x in (self.rows, self.kept_rows)
        )
        return PreparedLaunches(
            sizes=self.sizes,
            frame=array("q", [*self.frame, *([0] * most)]),  # room for pointers to the arguments
            addresses=self.addresses,
            arena=self.arena,
            strides=self.strides,
            rows=rows,
            most_arguments=most,
            arena_bytes=places.nbytes,
            aligned=frozenset(self.aligned),
            strided=frozenset(self.strided),
            codes=self.codes,
            segments=self.segments,
            shapes=self.shapes,
            results=results,
            names=self.names,
            kept=self.kept,
            kept_rows=kept_rows,
        )

    def _check_elements(self, used: set[int]) -> None:
        for n in used:
            elements = math.prod(self.shapes[n])
            if elements > MAX_DEVICE_ELEMENTS:
                what = f"{self.values[n].place} {self.values[n].number} of the program"
                raise DeviceSizeError(
                    what=what, size=f"{elements:,} elements", limit=MAX_DEVICE_ELEMENTS
                )

    def _families(
        self, group: Sequence[DeviceStep | HostStep]
    ) -> list[list[DeviceStep | HostStep]]:
        """Return steps that start together; those in one list share a launch."""
        return families(
            [
                (step, step.flat, self._elements(step), [*map(len, step.columns)])
                if isinstance(step, DeviceStep) and step.flat
                else (step, "", 0, [])
                for step in group
            ]
        )

    def _elements(self, step: DeviceStep) -> int:
        """Return the elements of each array of a step, whose other values are numbers."""
        return math.prod(next(self.shapes[n] for n in step.arrays if self.shapes[n]))

    def _all_ready(
        self, groups: Sequence[Sequence[Sequence[DeviceStep | HostStep]]]
    ) -> list[list[_Ready]]:
        """Return all steps ready for these sizes; missing code is compiled side by side.

        Threads start at the first step whose code is not loaded: most new sizes need none.
        """
        every = [steps for group in groups for steps in group]
        ready = [*self._loaded(every)] if len(every) > 1 else []
        if len(every) - len(ready) > 1 and not ONLY_LOADED.get():
            ready += self._ready_in_threads(every[len(ready) :])
        else:
            ready += [self._ready(steps) for steps in every[len(ready) :]]
        in_order = iter(ready)
        return [list(islice(in_order, len(group))) for group in groups]

    def _loaded(self, every: Sequence[Sequence[DeviceStep | HostStep]]) -> Iterator[_Ready]:
        """Yield ready steps up to the first whose code is not loaded."""
        token = ONLY_LOADED.set(True)
        try:
            for steps in every:
                yield self._ready(steps)
        except CodeNotLoaded:
            return
        finally:
            ONLY_LOADED.reset(token)

    def _ready_in_threads(self, every: Sequence[Sequence[DeviceStep | HostStep]]) -> list[_Ready]:
        pool = ThreadPoolExecutor(min(cpu_budget().threads, MAX_SEARCHES), "smelt code")
        try:
            # each in a copy of the context, which has the settings
            queued = [pool.submit(copy_context().run, self._ready, steps) for steps in every]
            return [future.result() for future in queued]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ready_table(self, steps: Sequence[DeviceStep]) -> _Ready:
        """Return steps that do the same to flat arrays, with their code and its tables."""
        first, elements = steps[0], [self._elements(s) for s in steps]
        assert first.table_at is not None
        is_divided = all(n % DIVISOR == 0 for n in elements)
        loaded = first.table_at(padded(len(steps)), DIVISOR if is_divided else 1)
        code, arrays = loaded.code, [s.arrays for s in steps]
        grids = [launch.grid[0] for launch in code.launches]
        workspaces = [nbytes for _, nbytes in code.workspaces]
        tables = ArrayTables.make(elements, arrays, first.columns, grids, workspaces)
        words = tuple(("value", n) for n in dict.fromkeys(n for s in steps for n in s.arrays))
        layout = KernelStep(first.name, (), words, (tables.table_bytes, tables.workspace_bytes))
        return _Ready(first, loaded, None, layout, tables)

    def _ready(self, steps: Sequence[DeviceStep | HostStep]) -> _Ready:
        """Return a step, or steps that share a launch, ready for these sizes."""
        if len(steps) > 1:
            return self._ready_table([s for s in steps if isinstance(s, DeviceStep)])
        (step,) = steps
        if isinstance(step, HostStep):
            part = step.prepare(self.sizes)
            words = tuple(("value", n) for n in (*step.inputs, *step.outputs))
            return _Ready(step, None, part, KernelStep(step.name, (), words, (part.nbytes,)))
        loaded = step.code_at(step.sizes(self.sizes))
        layout = _layout_step(step, loaded)
        if not loaded.code.is_wide:
            self._check_elements({*step_values(layout)})
        return _Ready(step, loaded, None, layout)

    def _add_part(self, ready: _Ready, workspace: int) -> None:
        """Add a part that the host drives; `workspace` is the offset of its memory."""
        step = ready.step
        assert isinstance(step, HostStep)
        first = len(self.frame)
        for slot, n in enumerate((*step.inputs, *step.outputs), first):
            self.frame.append(0)
            self._fill_address(slot, n)
            self._align(n)
        self.arena.append((len(self.frame), workspace))
        self.frame.append(0)
        self.segments.append(Segment(first, len(self.frame) - first, ready.part))

    def _align(self, n: int) -> None:
        """Note that the address of an input or result must be a multiple of 16."""
        v = self.values[n]
        if v.place in ("input", "output") and v.shape:
            self.aligned.add(v.number + (self.inputs if v.place == "output" else 0))

    def _add_launches(self, time: int, k: int, ready: _Ready, places: Layout) -> None:
        step, loaded = ready.step, ready.code
        assert isinstance(step, DeviceStep) and loaded is not None
        sizes = step.sizes(self.sizes)
        workspaces = {name: j for j, (name, _) in enumerate(loaded.code.workspaces)}
        for name in loaded.code.aligned:
            self._align(step.values[name])
        first_row = len(self.rows)
        held: dict[str, int] = {}
        for number, launch in enumerate(loaded.code.launches):
            grid = self._grid(step.name, launch, sizes)
            if 0 in grid:
                continue
            function = loaded.modules[launch.image].function(launch.symbol, launch.shared_bytes)
            count = len(launch.arguments)
            self._add_row(step.name, function, grid, launch.threads, launch.shared_bytes, count)
            if number in ready.once:
                (name,) = launch.writes
                held[name] = self._first_held + len(self.kept)
                self._keep(ready, number, grid, sizes)
            for argument in launch.arguments:
                slot = len(self.frame)
                self.frame.append(0)
                if argument.name in held:
                    self.addresses.append((slot, held[argument.name], 0))
                elif argument.name in workspaces:
                    offset = places.partials[time, k, workspaces[argument.name]]
                    if argument.kind == "scratch":
                        offset += -offset % DESCRIPTOR_ALIGNMENT
                    self.arena.append((slot, offset))
                else:
                    self._fill(slot, argument, step, sizes)
        self._add_segment(first_row)

    def _keeping(self, ready: _Ready) -> _Ready:
        """Return a step that keeps the workspaces that only depend on constants."""
        step, loaded = ready.step, ready.code
        if loaded is None or ready.tables is not None or not isinstance(step, DeviceStep):
            return ready
        constants = {p for p, n in step.values.items() if n in self.constants}
        if not constants:
            return ready
        sizes = step.sizes(self.sizes)
        nbytes = {name: int(evaluate(n, sizes)) for name, n in loaded.code.workspaces}
        once = frozenset(constant_launches(loaded.code, constants, nbytes, self.room))
        for (name,) in (loaded.code.launches[k].writes for k in once):
            self.room -= nbytes[name]
            nbytes[name] = 0
        layout = replace(ready.layout, partials=tuple(nbytes.values()))
        return ready._replace(layout=layout, once=once)

    def _keep(
        self, ready: _Ready, number: int, grid: tuple[int, ...], sizes: Mapping[str, int]
    ) -> None:
        """Move the last row, which computes a workspace from constants, to those of first calls."""
        step, loaded = ready.step, ready.code
        assert isinstance(step, DeviceStep) and loaded is not None
        launch = loaded.code.launches[number]
        (name,) = launch.writes
        self.kept_rows.append(self.rows.pop())
        self.names.pop()
        read = [a.name for a in launch.arguments if a.kind == "buffer" and a.name != name]
        passed = tuple(sizes[a.name] for a in launch.arguments if a.kind == "size")
        key = loaded.code.images[launch.image], launch.symbol, grid, passed
        nbytes = int(evaluate(dict(loaded.code.workspaces)[name], sizes))
        inputs = tuple(self.values[step.values[n]].number for n in read)
        self.kept.append(KeptWorkspace(step.name, key, nbytes, inputs))

    def _add_tables(
        self, ready: _Ready, tables: ArrayTables, places: Layout, at: tuple[int, int]
    ) -> None:
        """Add launches that fill tables in the arena, and those that read them."""
        code, name = ready.code, ready.step.name
        assert code is not None
        if not any(t.programs for t in tables.tables):
            return
        start, workspace = (places.partials[*at, k] for k in range(2))
        first_row = len(self.rows)
        words = [w for t in tables.tables for w in t.words()]
        self._add_fills(name, code.modules[0].device, words, (start, workspace))
        for launch, table in zip(code.code.launches, tables.tables, strict=True):
            if table.programs:
                function = code.modules[launch.image].function(launch.symbol, launch.shared_bytes)
                count = len(launch.arguments)
                grid = table.programs, 1, 1
                self._add_row(name, function, grid, launch.threads, launch.shared_bytes, count)
                for argument in launch.arguments:
                    if argument.kind == "table":
                        self._add_arena_word(start)
                    else:
                        self.frame.append(0)
            start += 8 * len(table.words())
        self._add_segment(first_row)

    def _add_fills(self, name: str, device: Device, words: list[Word], at: tuple[int, int]) -> None:
        """Add launches that write words to the first of two offsets in the arena.

        Addresses of chunks' results count from the second one.
        """
        start, workspace = at
        for n in {w.value for w in words if w.value >= 0}:
            self._align(n)
        words += [Word(0)] * (-len(words) % FILL_WORDS)
        fill = fill_function(device)
        for first in range(0, len(words), FILL_WORDS):
            self._add_row(name, fill, (1, 1, 1), FILL_THREADS, 0, 2)
            self._add_arena_word(start + 8 * first)
            for number, n in words[first : first + FILL_WORDS]:
                if n == IN_ARENA:
                    self._add_arena_word(workspace + number)
                    continue
                slot = len(self.frame)
                self.frame.append(number)
                if n >= 0:
                    self._fill_address(slot, n)

    def _add_arena_word(self, offset: int) -> None:
        """Add a word to the frame: the address of an offset in the arena."""
        self.arena.append((len(self.frame), offset))
        self.frame.append(0)

    def _add_row(
        self,
        name: str,
        function: int,
        grid: tuple[int, ...],
        threads: int,
        shared_bytes: int,
        arguments: int,
    ) -> None:
        """Add a launch whose arguments begin at the end of the frame."""
        first = len(self.frame)
        self.rows.append([function, *grid, threads, shared_bytes, first, arguments])
        self.names.append(name)

    def _add_segment(self, first_row: int) -> None:
        """Add the rows from `first_row` on to what runs."""
        if added := len(self.rows) - first_row:
            before = self.segments[-1] if self.segments else Segment(0, 0)
            if before.part is None:
                self.segments[-1:] = [Segment(before.first, before.length + added)]
            else:
                self.segments.append(Segment(first_row, added))

    def _grid(self, name: str, launch: Launch, sizes: Sizes) -> tuple[int, ...]:
        grid = (*(int(evaluate(n, sizes)) for n in launch.grid), 1, 1)[:3]
        for n, most in zip(grid, MAX_PROGRAMS, strict=True):
            if n > most:
                raise DeviceSizeError(
                    what=f"the grid of {name}", size=f"{n:,} programs", limit=most
                )
        return grid

    def _fill(self, slot: int, argument: Argument, step: DeviceStep, sizes: Sizes) -> None:
        """Fill a word of the frame, or note that a call does."""
        if argument.kind == "size":
            self.frame[slot] = sizes[argument.name]
        elif argument.kind == "stride":
            n = step.values[argument.name]
            number = self.values[n].number
            self.frame[slot] = math.prod(self.shapes[n][argument.dimension + 1 :])
            self.strides.append((slot, number, argument.dimension))
            self.strided.add(number)
        elif argument.kind == "buffer":
            self._fill_address(slot, step.values[argument.name])

    def _fill_address(self, slot: int, n: int) -> None:
        """Note that a word of the frame is the address of a value."""
        source = self.add_address(slot, n)
        if source >= 0 and self.values[n].place not in ("input", "output"):
            self.aligned.add(source)  # what lies there may be read in vectors


class _Ready(NamedTuple):
    """A step with its code, or its part, and what the placement of values reads.

    With tables it stands for all steps that share its launches.
    """

    step: DeviceStep | HostStep
    code: LoadedCode | None
    part: HostPart | None
    layout: KernelStep
    tables: ArrayTables | None = None
    once: frozenset[int] = frozenset()
    """Launches that compute a workspace from constants, by number: first calls make them."""


def _layout_step(step: DeviceStep, loaded: LoadedCode) -> KernelStep:
    """Return a step with what the placement of values reads: values and workspaces."""
    return KernelStep(
        step.name,
        (),
        tuple(("value", n) for n in dict.fromkeys(step.values.values())),
        tuple(n for _, n in loaded.code.workspaces),
        names=step.names,
    )
