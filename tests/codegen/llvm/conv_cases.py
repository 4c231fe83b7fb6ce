"""Shared parts of convolution tests: inputs, guard pages, chosen plans."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import SingleKernel, one_cluster

from smelt import lower
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.conv_plan import ConvPlan
from smelt.codegen.llvm.schedule.depthwise import DepthwisePlan
from smelt.graph.text import parse
from smelt.machine.target import Target


def check(kernel: SingleKernel, *arrays: np.ndarray) -> None:
    """Native code between forbidden pages says what the graph's interpreter says."""
    expected = kernel.expected(*arrays)[0]
    for at_end in (False, True):
        (actual,) = run_guarded(kernel, arrays, at_end=at_end)
        scale = float(np.abs(expected).max(initial=1.0))
        eps = float(ml_dtypes.finfo(expected.dtype).eps)
        assert float(np.abs(actual - expected).max(initial=0.0)) <= 64 * eps * scale


def random(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def products(source: str) -> list[type]:
    """What the products of a graph become, as one kernel."""
    return [type(c) for c in _plans(source)]


def input_in_place(source: str) -> list[bool]:
    """Whether the left operands of a graph's products over windows are multiplied as they lie."""
    return [c.is_left_contiguous for c in _plans(source) if isinstance(c, ConvPlan)]


def in_place(source: str) -> list[bool]:
    """Whether the lines of a graph's stencils are read where they lie."""
    return [c.rows_in_place is not None for c in _plans(source) if isinstance(c, DepthwisePlan)]


def dealing(source: str) -> list[bool]:
    """Whether a table says where the left operands of a graph's products over windows lie."""
    return [c.strided_left is not None for c in _plans(source) if isinstance(c, ConvPlan)]


def _plans(source: str) -> list[object]:
    kernel = lower.run(one_cluster(parse(source)), "eager", {})
    nests = [schedule(p, Target.for_isa("avx512")) for p in program(kernel).phases]
    return [c for s in nests for c in s.products.values()]
