"""Random kernels print as Triton programs, and compute what the interpreter does."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from tests.codegen.checked_triton import launch
from tests.codegen.test_triton_goldens import with_lanes
from tests.kernel.nan_signs import other_nan_signs
from tests.kernel.random_kernels import kernels

from smelt.codegen.triton import merge_launches, split_states
from smelt.codegen.triton.flat_grid import flat_grid
from smelt.codegen.triton.schedule import choose_schedule
from smelt.codegen.triton.source import prepare, print_file, print_stage, triton_source
from smelt.errors import SmeltError
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.verify import verify
from smelt.kernel.walk import blocks
from smelt.types.expr import evaluate

SIZES = {"n": 3, "m": 2}


def arrays_of(kernel):
    random = np.random.default_rng(0)
    for p in kernel.inputs:
        shape = tuple(int(evaluate(d, SIZES)) for d in p.shape)
        x = np.asarray(random.standard_normal(shape) * 3)
        x = np.where(random.random(shape) < 0.3, np.round(x), x)
        if p.dtype.kind == "bool":
            x = x > 0
        elif not p.dtype.is_float:
            x = random.integers(0, 6, shape)
        yield p.name, np.asarray(x).astype(p.dtype.numpy)


def printed_blocks(kernel, source: str) -> dict[str, int]:
    """The lanes of each axis: what a block sees may depend on its size."""
    named = re.findall(
        r"BLOCK_(\w+) = ", source
    )  # a loop in steps of one has no name for its block
    lanes = {b.axis: 1 for b in blocks(kernel) if b.size is not None or b.axis not in named}
    numbers = re.findall(r"BLOCK_(\w+) = min\((\d+), (\d+)\)", source)
    axes = {a.name for a in kernel.axes}
    return lanes | {axis: min(int(a), int(b)) for axis, a, b in numbers if axis in axes}


def divided(kernel: Kernel) -> str:
    """The file of a kernel for a device without registers, which divides what carries rows."""
    sizes = {"n": 3000, "m": 3000}
    prepared = prepare(kernel, sizes, registers=0)
    return print_file(kernel, [print_stage(k, choose_schedule(k, sizes)) for k in prepared])


def check(kernel, print_source: Callable[[Kernel], str]) -> None:
    try:
        kernel = verify(kernel)
        arrays = dict(arrays_of(kernel))
        source = with_lanes(print_source(kernel), 2)
        with np.errstate(all="ignore"):
            lanes = printed_blocks(kernel, source)
            wanted = run(kernel, arrays, SIZES, grid_sizes=lanes)
            with other_nan_signs():
                other = run(kernel, arrays, SIZES, grid_sizes=lanes)
    except (SmeltError, ValueError):  # the verifier, the printer or the interpreter refuses it
        assume(False)
        return
    head = source.partition("def launch(")[2].partition("):")[0]
    extra = {f"size_{s}": SIZES[s] for s in re.findall(r"size_(\w+)", head)}
    outputs = launch(source, [a.copy() for a in arrays.values()], least_dot=1, **extra)
    for p, actual in zip(kernel.outputs, outputs, strict=True):
        rtol = 1e-2 if p.dtype.bits == 16 else 1e-4
        with np.errstate(all="ignore"):
            a, b, c = (np.asarray(x, np.float64) for x in (actual, wanted[p.name], other[p.name]))
        is_said = (b == c) | (
            np.isnan(b) & np.isnan(c)
        )  # the sign of a NaN that is computed is not
        np.testing.assert_allclose(np.where(is_said, a, b), b, rtol, 1e-5)


MANY = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore")
@MANY
@given(kernels())
def test_printed_random_kernel_computes_what_the_interpreter_does(kernel):
    check(kernel, triton_source)


@pytest.mark.filterwarnings("ignore")
@MANY
@given(kernels())
def test_looped_random_kernel_computes_what_the_interpreter_does(kernel):
    """Sizes whose rows are too long for registers: the same program runs on small ones."""
    check(kernel, lambda k: triton_source(k, {"n": 3000, "m": 3000}))


def merged_source(kernel: Kernel) -> str:
    """The file of a kernel, some launch of which has one axis for its grid."""
    launches = prepare(kernel, SIZES)
    flat = [flat_grid(k) for k in launches]
    assume(any(flat))
    chosen = [f or k for f, k in zip(flat, launches, strict=True)]
    return print_file(kernel, [print_stage(k, choose_schedule(k, SIZES)) for k in chosen])


@pytest.mark.filterwarnings("ignore")
@settings(MANY, max_examples=20)
@given(kernels())
def test_random_kernel_over_a_merged_axis_computes_what_the_interpreter_does(kernel):
    check(kernel, merged_source)


@pytest.mark.filterwarnings("ignore")
@MANY
@given(kernels())
def test_divided_random_kernel_computes_what_the_interpreter_does(kernel):
    """Rows of any length are long: their states have launches of their own where they can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_launches, "MIN_ROW", 1)
        patch.setattr(split_states, "COLUMN_LANES", 2)
        check(kernel, divided)
