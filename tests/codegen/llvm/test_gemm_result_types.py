"""Products of every accumulation type, stored as every result type, in every variant.

The width of a vector depends on all types of a kernel, the width of a packed panel on that of the
sums alone: each pair of them is a case of its own.  Outputs and scratch memory hold a fill pattern
before every run, so that an element that nobody writes shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import (
    ISAS,
    RUNNABLE,
    SingleKernel,
    fuse,
    one_cluster,
)
from tests.strategies.effort import NIGHTLY

from smelt import lower
from smelt.codegen.build import Variant
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.compiler.driver import input_size_names
from smelt.graph.text import parse
from smelt.machine.target import Target
from smelt.types.dtype import parse as dtype_of

Array = np.ndarray[Any, Any]
SUMS = {
    "i32": ("i32", "i8"),
    "i64": ("i64", "i8", "i16"),
    "f32": ("f32", "f16", "i32"),
    "f64": ("f64", "f32", "i64"),
    "u32": ("u32", "u8"),
    "u64": ("u64", "u16"),
}
"""Accumulation types, each with the types of operands that are cast to it."""
RESULTS = (
    "bool",
    "i8",
    "u8",
    "i16",
    "u16",
    "i32",
    "u32",
    "i64",
    "u64",
    "f16",
    "bf16",
    "f32",
    "f64",
)
SPECS = {
    "rows": "m,k; k,n -> m,n",
    "transposed right": "m,k; n,k -> m,n",
    "transposed left": "k,m; k,n -> m,n",
    "batched": "b,m,k; b,k,n -> b,m,n",
}
"""Layouts of the operands."""
SHAPES = ((13, 70, 21), (40, 33, 9), (1, 67, 20), (5, 4, 35))
"""Rows, columns and summed positions: whole tiles and remainders of each."""
BATCH = 2


def graph_text(source: str, sums: str, result: str, spec: str) -> str:
    """Write the graph that multiplies in `sums` and stores as `result`."""
    left, right = spec.partition("->")[0].split(";")
    out = spec.partition("->")[2].strip()
    lines = [f"graph f(x: {source}[{left.strip()}], y: {source}[{right.strip()}]) {{"]
    if source != sums:
        lines += [f" p = cast(x) {{dtype={sums}}}", f" q = cast(y) {{dtype={sums}}}"]
    operands = "x, y" if source == sums else "p, q"
    lines += [f' s = contract({operands}) {{spec="{spec}"}} : {sums}[{out}]']
    lines += (
        [" return s\n}"] if result == sums else [f" r = cast(s) {{dtype={result}}}", " return r\n}"]
    )
    return "\n".join(lines)


def numpy_type(name: str) -> np.dtype[Any]:
    """Find the NumPy type of a named element type."""
    return dtype_of(name).numpy


def operands(source: str, spec: str, shape: tuple[int, int, int]) -> list[Array]:
    """Draw small whole numbers: sums of their products are exact in every type."""
    extents = dict(zip("mnk", shape, strict=True)) | {"b": BATCH}
    rng = np.random.default_rng(sum(shape))
    low = 0 if source.startswith("u") else -1
    sides = spec.partition("->")[0].split(";")
    return [
        rng.integers(low, 2, [extents[a] for a in side.strip().split(",")]).astype(
            numpy_type(source)
        )
        for side in sides
    ]


def expected(spec: str, arrays: list[Array], result: str) -> Array:
    """Multiply in 64-bit integers, then convert."""
    subscripts = spec.replace(",", "").replace(";", ",").replace(" ", "")
    total = np.einsum(subscripts, *(a.astype(np.int64) for a in arrays))
    return total.astype(numpy_type(result))


def variants(source: str, isa: str, turn: int) -> Iterator[tuple[Variant, SingleKernel]]:
    """Yield the general code, then specialised variants for all sizes: one of them by day."""
    yield "", fuse(source, isa, usual=True)
    offered = fuse(source, isa)
    names = list(dict.fromkeys(variant for variant, *_ in offered.variants if "@" not in variant))
    for name in names if NIGHTLY or not names else [names[turn % len(names)]]:
        built, loaded = offered.variant_code(name)
        yield name, replace(offered, built=built, loaded=loaded, variants=())


def stored_as(sums: str) -> list[str]:
    """List the types that sums are stored as here: negative ones have no unsigned value."""
    return [r for r in RESULTS if sums.startswith("u") or not r.startswith("u")]


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_every_result_is_written(isa: str, sums: str) -> None:
    """All layouts, operand types and variants at night; by day they take turns."""
    for turn, result in enumerate(stored_as(sums)):
        cases = list(product(SPECS.values(), SUMS[sums]))
        for spec, source in cases if NIGHTLY else [cases[turn % len(cases)]]:
            code = graph_text(source, sums, result, spec)
            for variant, kernel in variants(code, isa, turn):
                for k, shape in enumerate(SHAPES):
                    arrays = operands(source, spec, shape)
                    actual = run_guarded(kernel, arrays, at_end=k % 2 == 0, one_by_one=k > 1)[0]
                    wanted = expected(spec, arrays, result)
                    assert np.array_equal(actual, wanted), (source, result, variant, spec, shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("result", RESULTS)
def test_packed_vectors_fit_a_panel(result: str, isa: str) -> None:
    """Check the plan alone, for instruction sets too that this processor cannot run."""
    for sums, spec in product(SUMS, SPECS.values()):
        code = graph_text(SUMS[sums][-1], sums, result, spec)
        target = Target.for_isa(isa)  # type: ignore[arg-type]
        graph = parse(code)
        kernel = lower.run(one_cluster(graph), "eager", dict.fromkeys(input_size_names(graph), 64))
        for phase in program(kernel).phases:
            plan = schedule(phase, target)
            assert plan.products, (sums, spec)
            for item in plan.products:
                assert plan.lanes * item.dtype.itemsize <= target.vector_bytes, (sums, spec)
