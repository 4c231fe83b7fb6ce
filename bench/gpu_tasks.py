"""What the sections of `bench.gpu` share: settings, tasks, arrays, and a device's clock."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from smelt.python.dataclass import dataclass
from smelt.runtime.cuda.driver import Device
from smelt.runtime.cuda.memory import driver_memory

__all__ = [
    "DTYPES",
    "HEADS",
    "PRODUCTS",
    "REPEATS",
    "ROWS",
    "Array",
    "Row",
    "Settings",
    "Task",
    "Timer",
    "Work",
    "random_arrays",
    "rated",
]

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
Work = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run: device, the results file, seconds in all, sizes for a test.

    Empty `only` means all sections.
    """

    path: Path
    device: str = "cuda:0"
    budget_s: float = 480.0
    only: tuple[str, ...] = ()
    is_small: bool = False
    is_dry: bool = False
    """Whether programs are compiled alone, for a device that is not there."""

    @property
    def runs(self) -> int:
        """Timed runs of each row."""
        return 1 if self.is_dry else 2 if self.is_small else 11


class Task(NamedTuple):
    """A part of a section, which is run again by itself."""

    name: str
    rows: Callable[[], list[Row]]


REPEATS: Final = 5
"""Calls of each: repeated ones are native, and later ones replay graphs."""
DTYPES: Final[Mapping[str, Any]] = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
"""Types of the operands of products and attention, the one with tensor cores first."""
ROWS: Final = ((65536, 1024), (16384, 4096), (4096, 16384), (2048, 32768), (512, 131072))
PRODUCTS: Final = ((4096, 4096, 4096), (4096, 1024, 4096))
HEADS: Final = ((4, 16, 4096, 64), (4, 16, 4096, 128))
FILLED_BYTES: Final = 1 << 30
"""Bytes written before a timed run: some 0.25 ms, longer than the host takes to queue a call."""
DISTINCT: Final = 1 << 22
"""Random elements of an array, which longer ones repeat."""


def random_arrays(
    shapes: Sequence[tuple[int, ...]], scale: float = 1.0, dtype: Any = np.float32
) -> list[Array]:
    """Return normal numbers of a scale, of which long arrays have few and repeat them."""
    random = np.random.default_rng(11)
    every = [random.standard_normal(min(math.prod(x), DISTINCT), np.float32) for x in shapes]
    pairs = zip(every, shapes, strict=True)
    return [np.resize((x * scale).astype(dtype), shape) for x, shape in pairs]


class Timer:
    """Times work of the device's default stream between two events.

    A block that fills the caches is written before each run: arrays are in no cache then, and the
    host queues the work while the device is busy, so that its time is not in the result.
    """

    def __init__(self, device: Device, s: Settings) -> None:
        self.device, self.runs = device, s.runs
        self._filled = (1 << 16) if s.is_small or s.is_dry else FILLED_BYTES
        self._block = driver_memory(device).allocate(self._filled, 0)
        with device.current():
            self._first, self._last = (device.driver.word("cuEventCreate", 0) for _ in range(2))

    def ms(self, work: Work) -> float:
        """Return the median time of `work` in ms, after one warm-up run."""
        work()
        self.device.synchronize(0)
        return statistics.median(self._once(work) for _ in range(self.runs))

    def _once(self, work: Work) -> float:
        device, driver, place = self.device, self.device.driver, ctypes.c_float()
        with device.current():
            driver.call("cuMemsetD32Async", self._block.address, 0, self._filled // 4, 0)
            driver.call("cuEventRecord", self._first, 0)
        work()
        with device.current():
            driver.call("cuEventRecord", self._last, 0)
            driver.call("cuEventSynchronize", self._last)
            driver.call("cuEventElapsedTime", ctypes.byref(place), self._first, self._last)
        return place.value


def rated(row: Row, ms: float) -> Row:
    """Return a row with its time, and its rates in place of bytes and operations."""
    moved, flops = row.pop("moved", 0), row.pop("flops", 0)
    rates = {"gb_s": moved / ms / 1e6} if moved else {}
    return row | {"ms": ms} | rates | ({"tflop_s": flops / ms / 1e9} if flops else {})
