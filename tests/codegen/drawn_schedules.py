"""Draw schedules of a kernel's launches among all candidates, for devices on which little is long.

With few processors and registers, and low limits of what is long, small arrays take the ways of
large ones: parts and their merges, scans in parts, loops over rows, persistent programs.
`mechanisms` says which of them a launch has, so that tests can count what they reach.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_goldens import with_lanes

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.candidates import Candidate, candidates
from smelt.codegen.triton.device_limits import DeviceRates, device_limits
from smelt.codegen.triton.schedule import EXACT, MIN_INTEGER_DOT
from smelt.codegen.triton.source import print_file, print_stage
from smelt.kernel.ir import Kernel, Scan, Stream
from smelt.kernel.walk import statements, values_of, visit

Option = TypeVar("Option")
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "backend.gpu": {"MIN_SCAN": 1, "SCAN_STEP": 4},
    "codegen.triton.split_scans": {"SCAN_STEP": 4},
    "codegen.triton.merge_launches": {"MIN_ROW": 1},
    "codegen.triton.split_states": {"COLUMN_LANES": 2},
    "codegen.triton.split_products": {"MAX_COLUMNS": 1},
    "codegen.triton.combining_stores": {"FIRST_ELEMENTS": 1, "JOINED_LANES": 2},
    "codegen.triton.matrix_batches": {"FEW_MATRICES": 1},
    "codegen.triton.candidates": {
        "MAX_CANDIDATES": 999,
        "LOOPED_ROW": 2,
        "MIN_SPLIT": 1,
        "MIN_GROUPED_ROWS": 1,
        "SEVERAL_ROWS": 8,
        "_varied": lambda every: every,
    },
}
"""What is long for a launch, and how many schedules are compared: limits of speed alone."""
ARCHS = ("sm_90", "sm_100", "sm_90", "sm_100", "sm_80", "gfx942")
LANES = (2, 4, 16, 64)
"""Maximum lanes of a block: small arrays have several."""


@contextmanager
def low_limits() -> Iterator[None]:
    """Lower what is long, in every module that asks."""
    with pytest.MonkeyPatch.context() as patch:
        for name, values in LIMITS.items():
            module = importlib.import_module(f"smelt.{name}")
            for limit, value in values.items():
                patch.setattr(module, limit, value)
        yield


@st.composite
def choices(draw: Any) -> np.random.Generator:
    """A generator that chooses devices and schedules, all equally often."""
    return np.random.default_rng(draw(st.integers(0, 1 << 30)))


def pick(random: np.random.Generator, options: Sequence[Option]) -> Option:
    """Choose one of some options."""
    return options[int(random.integers(len(options)))]


def small_device(random: np.random.Generator) -> DeviceRates:
    """Choose a device with few processors or registers."""
    arch = pick(random, ARCHS)
    limits = replace(device_limits(arch), registers=pick(random, (1 << 16, 256, 0)))
    return replace(rates("sm_90"), arch=arch, limits=limits, processors=pick(random, (1, 3, 132)))


def drawn(
    random: np.random.Generator,
    kernel: Kernel,
    sizes: Mapping[str, int],
    of_call: Mapping[str, int],
    device: DeviceRates,
) -> tuple[list[Candidate], str]:
    """Choose a candidate of each launch at large sizes; return them and their file.

    What it is an example of is chosen first, so that the rare ones are as often.
    """
    if dots_of(kernel.body):  # with few registers, no tile of a product is a candidate
        device = replace(device, limits=device_limits(device.arch))
    chosen: list[Candidate] = []
    for of_launch in candidates(kernel, sizes, device, EXACT, of_call):
        names = [mechanisms(c) for c in of_launch]
        what = pick(random, sorted(set[str]().union(*names)) or [""])
        those = [c for c, x in zip(of_launch, names, strict=True) if not what or what in x]
        chosen.append(pick(random, those))
    source = print_file(kernel, [print_stage(c.launch, c.schedule) for c in chosen])
    lanes = pick(random, LANES)
    least = MIN_INTEGER_DOT if "tl.dot" in source else 1
    return chosen, with_lanes(source, max(lanes, least))


def every_source(
    kernel: Kernel, sizes: Mapping[str, int], device: DeviceRates, of_call: Mapping[str, int]
) -> Iterator[str]:
    """Yield the files of a kernel with every candidate of its launches."""
    every = candidates(kernel, sizes, device, EXACT, of_call)
    for of_launches in itertools.zip_longest(*every):
        chosen = [c or of[0] for c, of in zip(of_launches, every, strict=True)]
        source = print_file(kernel, [print_stage(c.launch, c.schedule) for c in chosen])
        yield with_lanes(source, MIN_INTEGER_DOT if "tl.dot" in source else 4)


def mechanisms(c: Candidate) -> set[str]:
    """Name what a launch with its schedule is an example of."""
    schedule, name = c.schedule, c.launch.name
    body = list(statements(c.launch))
    is_scan = any(isinstance(v, Scan) for s in body for root in values_of(s) for v in visit(root))
    carried = {t.name for s in body if isinstance(s, Stream) for t in s.states}
    is_parts, is_merge = name.endswith("_parts"), "_merge" in name
    lanes = [n for n in (*schedule.grid.values(), *schedule.streams.values()) if n > 1]
    examples = {
        "parts": is_parts,
        "merge": is_merge,
        "second merge": re.search(r"_merge\d", name) is not None,
        "rows of a merge": name.endswith("_rows"),
        "scan in parts": is_scan and any(s.endswith("_carry") for s in carried),
        "first values": name.endswith("_first"),
        "columns of their own": re.search(r"_([nmjk]|\d)$", name) is not None,
        "merged grid": any(a.name.startswith("flat") for a in c.launch.axes),
        "lanes along several axes": sum(n > 1 for n in schedule.grid.values()) > 1,
        "looped scan": is_scan and bool(carried),
        "loop": bool(schedule.streams),
        "matrices": schedule.has_matrices,
        "small matrices": schedule.has_matrices and len(lanes) > 3,
        "grouped blocks": schedule.group > 1,
        "tensor copies": bool(schedule.copied),
        "tensor stores": bool(schedule.stored),
        "persistent": schedule.programs is not None,
        "specialised warps": bool(schedule.specialised),
        "loops without masks": schedule.splits_loops,
    }
    return {what for what, is_so in examples.items() if is_so}
