"""Build the launches of a plan at given sizes: a native table and the frame of its arguments."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import DeviceSizeError
from smelt.kernel.artifact import size_or_number
from smelt.kernel.device_code import DESCRIPTOR_ALIGNMENT, Argument, DeviceCode, Launch
from smelt.runtime.cuda.driver import Module
from smelt.runtime.cuda.launch_loop import ROW_WORDS
from smelt.runtime.layout import Layout, place_values, step_values
from smelt.runtime.steps import KernelStep, Sizes, Value
from smelt.types.expr import Index, evaluate

__all__ = ["DeviceStep", "LoadedCode", "PreparedLaunches", "prepare_launches"]

MOST_DEVICE_ELEMENTS: Final = (1 << 31) - 1
"""Most elements of an array: offsets in programs have 32 bits."""
MOST_PROGRAMS: Final = ((1 << 31) - 1, 65_535, 65_535)
"""Most programs along each dimension of a grid."""


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
    plan's sizes or numbers, `values` the code's buffers to the plan's values.
    """

    name: str
    code_at: Callable[[Sizes], LoadedCode]
    names: Mapping[str, str]
    values: Mapping[str, int]

    def sizes(self, named: Sizes) -> dict[str, int]:
        """Return the plan's sizes under the code's names."""
        renamed = {
            k: int(evaluate(size_or_number(n), named))
            for k, n in self.names.items()
            if n.isdigit() or n in named
        }
        return {**named, **renamed}


@dataclass(slots=True, eq=False)
class PreparedLaunches:
    """Everything of a call that depends on sizes only.

    `addresses` are frame words to fill: (slot, source, offset in bytes), where sources are inputs
    and then results; `arena` those inside the arena; `strides` (slot, input, dimension).
    """

    sizes: dict[str, int]
    frame: array[int]
    addresses: list[tuple[int, int, int]]
    arena: list[tuple[int, int]]
    strides: list[tuple[int, int, int]]
    rows: np.ndarray[Any, Any]
    most_arguments: int
    """Words at the end of the frame: pointers to the arguments of one launch."""
    arena_bytes: int
    aligned: frozenset[int]
    """Inputs whose addresses must be multiples of 16."""
    strided: frozenset[int]
    """Inputs whose strides are passed to their programs."""
    codes: list[LoadedCode]
    """Owners of the functions in the table."""
    results: list[tuple[int, tuple[int, ...], Any, int, int]] = field(default_factory=list)
    """By result: value, shape, dtype, bytes, and the input it overwrites (-1: none)."""
    names: list[str] = field(default_factory=list)
    """Name of the kernel of each launch, for messages."""

    @property
    def count(self) -> int:
        """Number of launches."""
        return len(self.rows)


def prepare_launches(
    values: Sequence[Value],
    groups: Sequence[Sequence[DeviceStep]],
    arena: Sequence[Index],
    sizes: dict[str, int],
) -> PreparedLaunches:
    """Build the table for these sizes.

    Raises DeviceSizeError for an array or a grid beyond 32 bits; empty grids are left out.
    """
    return _Builder(values, sizes).build(groups, arena)


class _Builder:
    """Builder of one table."""

    def __init__(self, values: Sequence[Value], sizes: dict[str, int]) -> None:
        self.values, self.sizes = values, sizes
        self.shapes = [tuple(int(evaluate(d, sizes)) for d in v.shape) for v in values]
        self.inputs = sum(v.place == "input" for v in values)
        self.frame: list[int] = []
        self.addresses: list[tuple[int, int, int]] = []
        self.arena: list[tuple[int, int]] = []
        self.strides: list[tuple[int, int, int]] = []
        self.rows: list[list[int]] = []
        self.names: list[str] = []
        self.aligned: set[int] = set()
        self.strided: set[int] = set()

    def build(
        self, groups: Sequence[Sequence[DeviceStep]], arena: Sequence[Index]
    ) -> PreparedLaunches:
        results = self._results()
        if results and not any(nbytes for *_, nbytes, _ in results):
            groups = ()  # index expressions assume sizes of at least 1
        loaded = [[step.code_at(step.sizes(self.sizes)) for step in group] for group in groups]
        plain = [
            [_layout_step(*pair) for pair in zip(group, codes, strict=True)]
            for group, codes in zip(groups, loaded, strict=True)
        ]
        for codes, steps in zip(loaded, plain, strict=True):
            for code, layout_step in zip(codes, steps, strict=True):
                if not code.code.is_wide:
                    self._check_elements({*step_values(layout_step)})
        places = place_values(self.values, plain, arena, self.sizes)
        for time, (group, codes) in enumerate(zip(groups, loaded, strict=True)):
            for k, (step, code) in enumerate(zip(group, codes, strict=True)):
                self._add_step(time, k, step, code, places)
        most = max((row[7] for row in self.rows), default=0)
        rows = np.array(self.rows, np.int64).reshape(-1, ROW_WORDS)
        return PreparedLaunches(
            self.sizes,
            array("q", [*self.frame, *([0] * most)]),  # room for pointers to the arguments
            self.addresses,
            self.arena,
            self.strides,
            rows,
            most,
            places.nbytes,
            frozenset(self.aligned),
            frozenset(self.strided),
            [code for codes in loaded for code in codes],
            results,
            self.names,
        )

    def _results(self) -> list[tuple[int, tuple[int, ...], Any, int, int]]:
        return [
            (n, self.shapes[n], v.dtype, math.prod(self.shapes[n]) * v.dtype.itemsize, v.overwrites)
            for n, v in enumerate(self.values)
            if v.place == "output"
        ]

    def _check_elements(self, used: set[int]) -> None:
        for n in used:
            elements = math.prod(self.shapes[n])
            if elements > MOST_DEVICE_ELEMENTS:
                what = f"{self.values[n].place} {self.values[n].number} of the program"
                raise DeviceSizeError(
                    what=what, size=f"{elements:,} elements", limit=MOST_DEVICE_ELEMENTS
                )

    def _add_step(
        self, time: int, k: int, step: DeviceStep, loaded: LoadedCode, places: Layout
    ) -> None:
        sizes = step.sizes(self.sizes)
        workspaces = {name: j for j, (name, _) in enumerate(loaded.code.workspaces)}
        for name in loaded.code.aligned:
            if self.values[n := step.values[name]].place == "input":
                self.aligned.add(self.values[n].number)
        for launch in loaded.code.launches:
            grid = self._grid(step.name, launch, sizes)
            if 0 in grid:
                continue
            first = len(self.frame)
            for argument in launch.arguments:
                slot = len(self.frame)
                self.frame.append(0)
                if argument.name in workspaces:
                    offset = places.partials[time, k, workspaces[argument.name]]
                    if argument.kind == "scratch":
                        offset += -offset % DESCRIPTOR_ALIGNMENT
                    self.arena.append((slot, offset))
                else:
                    self._fill(slot, argument, step, sizes, places)
            function = loaded.modules[launch.image].function(launch.symbol, launch.shared_bytes)
            self.rows.append(
                [
                    function,
                    *grid,
                    launch.threads,
                    launch.shared_bytes,
                    first,
                    len(launch.arguments),
                ]
            )
            self.names.append(step.name)

    def _grid(self, name: str, launch: Launch, sizes: Sizes) -> tuple[int, ...]:
        grid = (*(int(evaluate(n, sizes)) for n in launch.grid), 1, 1)[:3]
        for n, most in zip(grid, MOST_PROGRAMS, strict=True):
            if n > most:
                raise DeviceSizeError(
                    what=f"the grid of {name}", size=f"{n:,} programs", limit=most
                )
        return grid

    def _fill(
        self, slot: int, argument: Argument, step: DeviceStep, sizes: Sizes, places: Layout
    ) -> None:
        """Fill a word of the frame, or note that a call does."""
        if argument.kind == "size":
            self.frame[slot] = sizes[argument.name]
        elif argument.kind == "stride":
            number = self.values[step.values[argument.name]].number
            self.strides.append((slot, number, argument.dimension))
            self.strided.add(number)
        elif argument.kind == "buffer":
            n = step.values[argument.name]
            v = self.values[n]
            if v.place in ("input", "output"):
                source = v.number + (self.inputs if v.place == "output" else 0)
                self.addresses.append((slot, source, 0))
                return
            host, offset = places.values[n]
            if host >= 0:
                self.addresses.append((slot, self.inputs + host, offset))
            else:
                self.arena.append((slot, offset))


def _layout_step(step: DeviceStep, loaded: LoadedCode) -> KernelStep:
    """Return a step with what the placement of values reads: values and workspaces."""
    return KernelStep(
        step.name,
        (),
        tuple(("value", n) for n in dict.fromkeys(step.values.values())),
        tuple(n for _, n in loaded.code.workspaces),
        names=step.names,
    )
