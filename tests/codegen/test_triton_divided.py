"""Random kernels, divided in every way and with any of their schedules, compute the same.

Kernels are prepared and scheduled for larger sizes than they run at, for devices with few processors
and registers, with the limits of what is long lowered: small arrays then take the ways of large ones.
`seen` counts what a run has reached.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, seed, settings
from hypothesis import strategies as st
from tests.codegen.checked_triton import launch
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_catalogue import extra_sizes
from tests.codegen.test_triton_goldens import with_lanes
from tests.kernel.nan_signs import other_nan_signs
from tests.kernel.random_launches import DividedGenerator, divided_kernels
from tests.strategies.effort import NIGHT, NIGHTLY, start

from smelt.codegen.triton.candidates import Candidate, candidates
from smelt.codegen.triton.device_limits import DeviceRates, device_limits
from smelt.codegen.triton.schedule import EXACT, LEAST_INTEGER_DOT
from smelt.codegen.triton.source import print_file, print_stage
from smelt.errors import DeviceKernelError, SmeltError
from smelt.kernel.flat_map import over_arrays
from smelt.kernel.flat_reduction import flat_kernels
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel, Scan, Stream
from smelt.kernel.text import text
from smelt.kernel.verify import verify
from smelt.kernel.walk import statements, values_of, visit
from smelt.types.expr import evaluate

pytestmark = [*NIGHT, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
CASES = 3000 if NIGHTLY else 60
"""Programs of each form."""
SIZES = (
    {"n": 3, "m": 2, "k": 7, "j": 2},
    {"n": 24, "m": 16, "k": 40, "j": 3},
    {"n": 1, "m": 9, "k": 33, "j": 4},
    {"n": 8, "m": 40, "k": 16, "j": 1},
    {"n": 5, "m": 1, "k": 1, "j": 5},
    {"n": 2, "m": 3, "k": 0, "j": 2},
)
LARGER = (1, 30, 1000)
"""How often larger the sizes are that a kernel is prepared for."""
LIMITS = {
    "backend.gpu": {"LEAST_SCAN": 1, "SCAN_PARTS": 8, "SCAN_STEP": 4},
    "codegen.triton.split_scans": {"SCAN_STEP": 4},
    "codegen.triton.merge_launches": {"LEAST_ROW": 1},
    "codegen.triton.split_states": {"COLUMN_LANES": 2},
    "codegen.triton.split_products": {"MOST_COLUMNS": 1},
    "codegen.triton.combining_stores": {"FIRST_ELEMENTS": 1, "JOINED_LANES": 2},
    "codegen.triton.matrix_batches": {"FEW_MATRICES": 1},
    "codegen.triton.candidates": {
        "MOST_CANDIDATES": 999,
        "LOOPED_ROW": 2,
        "LEAST_SPLIT": 1,
        "LEAST_GROUPED_ROWS": 1,
        "SEVERAL_ROWS": 8,
        "_varied": lambda every: every,
    },
    "kernel.flat_reduction": {"CHUNK": 8, "LOADED": 4, "MERGED": 2},
}
"""What is long for a launch, and how many schedules are compared: limits of speed alone."""


@contextmanager
def low_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, values in LIMITS.items():
            module = importlib.import_module(f"smelt.{name}")
            for limit, value in values.items():
                assert hasattr(module, limit), limit
                patch.setattr(module, limit, value)
        yield


@st.composite
def devices(draw: Any) -> DeviceRates:
    """A device with few processors and registers."""
    arch = draw(st.sampled_from(("sm_90", "sm_100", "sm_80", "gfx942")))
    limits = replace(device_limits(arch), registers=draw(st.sampled_from((1 << 16, 256, 0))))
    processors = draw(st.sampled_from((1, 3, 132)))
    return replace(rates("sm_90"), arch=arch, limits=limits, processors=processors)


def mechanisms(c: Candidate) -> set[str]:
    """What a launch with its schedule is an example of."""
    schedule, name = c.schedule, c.launch.name
    values = [v for s in statements(c.launch) for root in values_of(s) for v in visit(root)]
    carried = {t.name for s in statements(c.launch) if isinstance(s, Stream) for t in s.states}
    is_scan = any(isinstance(v, Scan) for v in values)
    found = {
        "parts of a reduction": name.endswith("_parts") and "v" not in name and not is_scan,
        "merge": "_merge" in name,
        "second merge": "_merge" in name and name[-1].isdigit(),
        "rows of a merge": name.endswith("_rows"),
        "scan in parts": is_scan and any(s.endswith("_carry") for s in carried),
        "looped scan": is_scan and bool(carried),
        "first values": name.endswith("_first"),
        "columns of their own": re.search(r"_(n|m|j|k)$", name) is not None,
        "merged grid": any(a.name.startswith("flat") for a in c.launch.axes),
        "lanes along several axes": sum(n > 1 for n in schedule.grid.values()) > 1,
        "looped row": bool(schedule.streams),
        "matrices": schedule.has_matrices,
        "small matrices": schedule.has_matrices
        and sum(n > 1 for n in (*schedule.grid.values(), *schedule.streams.values())) > 3,
        "grouped blocks": schedule.group > 1,
        "tensor copies": bool(schedule.copied),
        "tensor stores": bool(schedule.stored),
        "persistent": schedule.programs is not None,
        "specialised warps": bool(schedule.specialised),
        "loops without masks": schedule.splits_loops,
        "table of arrays": any(p.each for p in c.launch.outputs),
    }
    return {what for what, is_so in found.items() if is_so}


def arrays_of(kernel: Kernel, sizes: Mapping[str, int], random: np.random.Generator) -> dict[str, Any]:
    """Inputs with round numbers, and rarely with NaN and infinities."""
    arrays: dict[str, Any] = {}
    for p in kernel.inputs:
        shape = tuple(int(evaluate(d, sizes)) for d in p.shape)
        x = np.asarray(random.standard_normal(shape) * 3)
        x = np.where(random.random(shape) < 0.3, np.round(x), x)
        if p.dtype.is_float and random.random() < 0.2:
            special = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
            x = np.where(random.random(shape) < 0.1, special, x)
        elif p.dtype.kind == "bool":
            x = x > 0
        elif not p.dtype.is_float:
            x = random.integers(0 if p.dtype.kind == "uint" else -2, 6, shape)
        arrays[p.name] = np.asarray(x).astype(p.dtype.numpy)
    return arrays


def moved(arrays: Mapping[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """Inputs with other roundings: what a result moves by is not its kernel's doing."""
    return {
        name: (x * (1 + 1e-6 * random.standard_normal(x.shape))).astype(x.dtype)
        if x.dtype in (np.float32, np.float64)
        else x
        for name, x in arrays.items()
    }


def differences(actual: Any, wanted: Any, other: Any, bits: int) -> str:
    """Where a result differs by more than roundings explain; empty if nowhere."""
    with np.errstate(all="ignore"):
        x, a, b = (np.asarray(v).astype(np.float64) for v in (actual, wanted, other))
        largest = np.abs(a[np.isfinite(a)]).max(initial=1e-30)
        rtol = {16: 1e-2, 64: 1e-4}.get(bits, 1e-4)
        allowed = rtol * np.abs(a) + 1e-5 * largest + 30 * np.abs(a - b)
        same = (x == a) | (np.isnan(x) & np.isnan(a)) | (np.abs(x - a) <= allowed)
        is_sharp = (np.isfinite(a) == np.isfinite(b)) & (np.isfinite(a) | (a == b) | (np.isnan(a) & np.isnan(b)))
    wrong = ~same & is_sharp
    if not wrong.any():
        return ""
    place = tuple(np.argwhere(wrong)[0].tolist())
    return f"{np.count_nonzero(wrong)} elements, at {place}: {x[place]} instead of {a[place]}"


def check(kernel: Kernel, data: st.DataObject, seen: Counter[str]) -> None:
    try:
        kernel = verify(kernel)
    except (SmeltError, ValueError):
        seen["ill-formed"] += 1
        return
    sizes = data.draw(st.sampled_from(SIZES), "sizes")
    larger = data.draw(st.sampled_from(LARGER), "larger")
    device = data.draw(devices(), "device")
    random = np.random.default_rng(data.draw(st.integers(0, 99), "numbers"))
    arrays = arrays_of(kernel, sizes, random)
    try:
        with np.errstate(all="ignore"):
            wanted = run(kernel, arrays, sizes)
            with other_nan_signs():
                other = run(kernel, moved(arrays, random), sizes, order="backward")
    except (SmeltError, ValueError):  # an index out of bounds at these sizes
        seen["no result"] += 1
        return
    with low_limits():
        large = {name: n * larger for name, n in sizes.items()}
        try:
            every = candidates(kernel, large, device, EXACT, sizes)
        except DeviceKernelError:
            seen["refused"] += 1
            return
        chosen = [data.draw(st.sampled_from(of), f"launch {i}") for i, of in enumerate(every)]
        source = print_file(kernel, [print_stage(c.launch, c.schedule) for c in chosen])
    lanes = data.draw(st.sampled_from((2, 4, 16, 64)), "lanes")
    source = with_lanes(source, max(lanes, LEAST_INTEGER_DOT) if "tl.dot" in source else lanes)
    results = launch(source, [arrays[p.name] for p in kernel.inputs], **extra_sizes(source, sizes))
    seen.update(what for c in chosen for what in mechanisms(c))
    seen["judged"] += 1
    for p, actual in zip(kernel.outputs, results, strict=True):
        problem = differences(actual, wanted[p.name], other[p.name], p.dtype.bits)
        assert not problem, f"{p.name}: {problem}\n{text(kernel)}\n{sizes}, {large}\n" + "\n".join(c.blocks for c in chosen)


MANY = settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("form", DividedGenerator.FORMS)
def test_a_divided_random_kernel_computes_what_the_interpreter_does(form):
    seen: Counter[str] = Counter()

    @seed(start(len(form)))
    @MANY
    @given(divided_kernels(form), st.data())
    def one(kernel: Kernel, data: st.DataObject) -> None:
        check(kernel, data, seen)

    one()
    print(form, seen)
