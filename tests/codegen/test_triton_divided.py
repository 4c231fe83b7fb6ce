"""Random kernels, divided in every way and with any of their schedules, compute the same.

Kernels are prepared and scheduled for larger sizes than they run at, for devices with few
processors and registers, with the limits of what is long lowered: small arrays then take the ways
of large ones. Each form of kernels must reach what it is drawn for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from tests.codegen.checked_triton import launch
from tests.codegen.device_programs import rates
from tests.codegen.drawn_schedules import (
    choices,
    drawn,
    every_source,
    low_limits,
    mechanisms,
    pick,
    small_device,
)
from tests.codegen.test_triton_catalogue import extra_sizes
from tests.kernel.nan_signs import other_nan_signs
from tests.kernel.random_launches import divided_kernels
from tests.strategies.effort import NIGHT, NIGHTLY, start

from smelt.codegen.triton.candidates import Candidate
from smelt.errors import SmeltError
from smelt.kernel.interp import run
from smelt.kernel.ir import Block, Kernel, Stream
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify
from smelt.types.expr import evaluate

pytestmark = [*NIGHT, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
CASES = 3000 if NIGHTLY else 12
"""Programs of each form that are run."""
DRAWN = 15_000 if NIGHTLY else 200
"""Programs of each form whose launches are looked at."""
SIZES = (
    {"n": 3, "m": 2, "k": 7, "j": 2},
    {"n": 16, "m": 24, "k": 32, "j": 2},
    {"n": 24, "m": 16, "k": 40, "j": 3},
    {"n": 8, "m": 40, "k": 16, "j": 1},
    {"n": 32, "m": 8, "k": 24, "j": 2},
    {"n": 1, "m": 9, "k": 33, "j": 4},
    {"n": 5, "m": 1, "k": 1, "j": 5},
    {"n": 2, "m": 3, "k": 0, "j": 2},
)
LARGER = (1, 30, 1000, 1000)
"""How often larger the sizes are that a kernel is prepared for."""
REACHED: Mapping[str, Sequence[str]] = {
    "parts": ("parts", "merge", "second merge", "rows of a merge", "loop"),
    "carried": ("loop", "columns of their own", "merged grid"),
    "scans": ("scan in parts", "looped scan"),
    "product": ("matrices", "persistent", "tensor copies", "tensor stores", "grouped blocks"),
    "split_product": ("parts", "merge", "matrices"),
    "map": ("merged grid", "lanes along several axes"),
    "scatter": ("first values",),
    "whole": ("loop",),
}
"""What the kernels of a form are drawn for: each must be reached, or the form does not test it."""


def arrays_of(
    kernel: Kernel, sizes: Mapping[str, int], random: np.random.Generator
) -> dict[str, Any]:
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
    """Where a result differs by more than roundings explain; empty if nowhere.

    `other` has other roundings and signs of NaN: what differs by them is not decided.
    """
    with np.errstate(all="ignore"):
        x, a, b = (np.asarray(v).astype(np.float64) for v in (actual, wanted, other))
        largest = np.abs(a[np.isfinite(a)]).max(initial=0)
        rtol = 1e-2 if bits == 16 else 1e-4
        allowed = rtol * np.abs(a) + 1e-5 * largest + 30 * np.abs(a - b)
        same = (x == a) | (np.isnan(x) & np.isnan(a)) | (np.abs(x - a) <= allowed)
    is_decided = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isfinite(a) & np.isfinite(b))
    wrong = ~same & is_decided
    if not wrong.any():
        return ""
    place = tuple(np.argwhere(wrong)[0].tolist())
    return f"{np.count_nonzero(wrong)} elements, at {place}: {x[place]} instead of {a[place]}"


def interpreted(
    kernel: Kernel, arrays: Mapping[str, Any], sizes: Mapping[str, int], random: np.random.Generator
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The interpreter's results, and those with other roundings and signs of NaN."""
    if not any(isinstance(s, Stream) for s in kernel.body):  # no result depends on the blocks
        grid = tuple(replace(b, size=None) if isinstance(b, Block) else b for b in kernel.grid)
        kernel = replace(kernel, grid=grid)
    with np.errstate(all="ignore"):
        wanted = run(kernel, arrays, sizes)
        with other_nan_signs(noise=2e-6):
            return wanted, run(kernel, moved(arrays, random), sizes, order="backward")


class Case(NamedTuple):
    """A kernel with sizes, and launches that are printed for larger ones."""

    kernel: Kernel
    sizes: Mapping[str, int]
    large: Mapping[str, int]
    launches: Sequence[Candidate]
    source: str


def case_of(kernel: Kernel, random: np.random.Generator, seen: Counter[str]) -> Case | None:
    """Choose sizes, a device and a schedule of each launch; None for a kernel that is refused."""
    sizes, larger, device = pick(random, SIZES), pick(random, LARGER), small_device(random)
    large = {name: n * larger for name, n in sizes.items()}
    try:
        with low_limits():
            launches, source = drawn(random, verify(kernel), large, sizes, device)
    except (SmeltError, ValueError):
        seen["refused"] += 1
        return None
    seen.update(what for c in launches for what in mechanisms(c))
    return Case(kernel, sizes, large, launches, source)


def judge(case: Case, random: np.random.Generator, seen: Counter[str]) -> None:
    """Compare a kernel's results with the interpreter's."""
    kernel, sizes, large, launches, source = case
    arrays = arrays_of(kernel, sizes, random)
    try:
        wanted, other = interpreted(kernel, arrays, sizes, random)
    except (SmeltError, ValueError):  # an element is never stored
        return
    results = launch(source, [arrays[p.name] for p in kernel.inputs], **extra_sizes(source, sizes))
    seen["judged"] += 1
    for p, actual in zip(kernel.outputs, results, strict=True):
        problem = differences(actual, wanted[p.name], other[p.name], p.dtype.bits)
        schedules = "\n".join(c.blocks for c in launches)
        assert not problem, f"{p.name}: {problem}\n{text(kernel)}\n{sizes}, {large}\n{schedules}"


def of_many(examples: int, form: str, test: Callable[[Kernel, np.random.Generator], None]) -> None:
    """Run a test of many kernels of a form."""
    every = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    seed(start(len(form)))(every(given(divided_kernels(form), choices())(test)))()


@pytest.mark.parametrize("form", REACHED)
def test_a_divided_random_kernel_computes_what_the_interpreter_does(form):
    seen: Counter[str] = Counter()

    def test(kernel: Kernel, random: np.random.Generator) -> None:
        case = case_of(kernel, random, seen)
        if case is not None:
            judge(case, random, seen)

    of_many(CASES, form, test)
    assert seen["judged"] > 0.6 * CASES, seen


@pytest.mark.parametrize("form", REACHED)
def test_kernels_of_a_form_reach_what_they_are_drawn_for(form):
    """They are not run: what has no test is seen at once."""
    seen: Counter[str] = Counter()
    of_many(DRAWN, form, lambda kernel, random: case_of(kernel, random, seen) and None)
    assert all(seen[what] > 1 for what in REACHED[form]), seen


FOUND = {
    "sums of columns that are stored along a second axis": """
kernel k(a: f32[n,m], b: f32[j]) -> y: f32[m,j]
  axis n, m, j
  stream n/2 with s = 0 [m]
    s' = s + sum(a[n,m] over n)
  y[m,j] = s * b[j]
""",
    "a product of few bytes": """
kernel k(x: i8[m,k], w: i8[k,n]) -> y: i32[m,n]
  grid m, n
  y[m,n] = dot(i32(x[m,k]), i32(w[k,n]) over k as i32)
""",
    "a product of bytes in short steps": """
kernel k(x: i8[m,k], w: i8[k,n]) -> y: i32[m,n]
  grid m/64, n/64, p in split(k, 3)
  stream k/16 of p with s = i32(0) [m,n]
    s' = s + dot(i32(x[m,k]), i32(w[k,n]) over k as i32)
  merge p: (s)
  y[m,n] = s
""",
    "products of bytes and of integers": """
kernel k(x: i8[m,k], w: i8[k,n]) -> y: i32[m,n], z: i32[m,n]
  grid m, n
  y[m,n] = dot(i32(x[m,k]) + 1, i32(w[k,n]) over k as i32)
  z[m,n] = dot(i32(x[m,k]), i32(w[k,n]) over k as i32)
""",
}
"""Kernels some of whose schedules were wrong once."""


@pytest.mark.parametrize("larger", dict.fromkeys(LARGER))
@pytest.mark.parametrize("name", FOUND)
def test_every_schedule_of_a_kernel_that_was_wrong_once_computes_the_same(name, larger):
    kernel, random = parse(FOUND[name].strip()), np.random.default_rng(3)
    arrays = arrays_of(kernel, SIZES[0], random)
    wanted = run(kernel, arrays, SIZES[0])
    large = {size: n * larger for size, n in SIZES[0].items()}
    for source in every_source(kernel, large, rates("sm_90"), SIZES[0]):
        results = launch(source, list(arrays.values()))
        for p, y in zip(kernel.outputs, results, strict=True):
            assert not differences(y, wanted[p.name], wanted[p.name], p.dtype.bits)
