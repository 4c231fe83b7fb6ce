"""Checks of every catalogue row: the plan in numbers, and the results.

A plan is made for large sizes, by a machine that is the same everywhere; the same compiled program
then runs at small ones.  Results are compared with the same code in NumPy on float64, each element
within what rounding explains (`tests.catalogue.rounding`).  Bytes count every element of an array
once; that no kernel reads one more often than that is counted too (`tests.catalogue.array_passes`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tests.catalogue.array_passes import reads
from tests.catalogue.rounding import tolerances
from tests.catalogue.rows import (
    DTYPES,
    LAYOUTS,
    Array,
    Code,
    Row,
    Sizes,
    draw,
    many_sizes,
    small,
    value_of,
    wanted,
    with_one,
)

import smelt as sm
from smelt import fusion, knobs, lower, passes
from smelt.compiler import driver
from smelt.explain.entries import entry_traffic
from smelt.explain.traffic import traffic
from smelt.explain.unfused import unfused_traffic
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.trace import Trace
from smelt.frontends.array.tree import flatten
from smelt.fusion.plan import Plan
from smelt.graph.ir import Graph
from smelt.journal.facts import Journal
from smelt.kernel.ir import Kernel
from smelt.machine.target import Target
from smelt.ops.scalar import SCALARS

MACHINE = Target.for_isa("avx512")
"""What is said of plans is planned for its caches, rates and vectors, whatever the machine at hand
has."""
RUNS = Target.for_isa(driver.host().isa)
"""What runs is planned and compiled for the widest instructions that the machine at hand has."""

# ---- the reference -----------------------------------------------------------------------------


class _Reference:
    """NumPy's namespace with the few functions that Smelt has beyond the standard."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def erf(x: Any) -> Any:
        return np.vectorize(math.erf, otypes=[np.float64])(x)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return 1 / np.sqrt(x)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    class random:  # noqa: N801 - a namespace
        """Numbers from the cipher's own reference, which its known answers test."""

        @staticmethod
        def uniform(key: Any, shape: tuple[int, ...]) -> Array:
            words = SCALARS["philox"].numpy(key, np.arange(math.prod(shape), dtype=np.uint64))
            return ((words >> np.uint32(8)) * 2.0**-24).reshape(shape)


REFERENCE = _Reference()


def expected(row: Row, arrays: Sequence[Array]) -> list[Array]:
    """The results of a row in NumPy, floats in float64."""
    wide = [a.astype(np.float64) if a.dtype in DTYPES.values() else a for a in arrays]
    code = row.reference or (lambda *xs: row.code(REFERENCE, *xs))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(x) for x in flatten(code(*wide))[0]]


# ---- compiling ---------------------------------------------------------------------------------


def record(code: Code, arrays: Sequence[Array]) -> Trace:
    """A function recorded for arrays like these; its sizes stay symbols."""
    return sm.jit(lambda *xs: code(sm, *xs)).lower(*arrays).trace


@dataclass(frozen=True)
class Sketch:
    """A program as far as counting needs it: no machine code."""

    graph: Graph
    plan: Plan
    kernels: tuple[Kernel | None, ...]


@dataclass(frozen=True)
class PlannedRow:
    """A row's program, planned for the row's sizes and perhaps compiled."""

    row: Row
    recorded: Trace
    sketch: Sketch
    machine: Target
    program: driver.Compiled | None = None

    def sizes(self, at: Mapping[str, int]) -> Sizes:
        """The graph's own sizes where the row's are `at`."""
        dims = [n for x in self.row.inputs for n in wanted(x, "f32").dims(at)]
        return matched(self.recorded, dims)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The results, with the sizes that the arrays have."""
        assert self.program is not None
        sizes_by_dim = matched(self.recorded, [n for a in arrays for n in a.shape])
        sizes = tuple(sizes_by_dim[n] for n in self.program.size_names)
        result = self.program.run(inputs(self.recorded, arrays), sizes)
        return [result[r.position] for r in self.recorded.results]


def inputs(recorded: Trace, arrays: Sequence[Array]) -> list[Array]:
    """The inputs of the recorded graph: arguments that it reads, then arrays it met on the way."""
    return [arrays[k] for k in recorded.arguments] + [evaluate(x) for x in recorded.captured]


def matched(recorded: Trace, dims: Sequence[int]) -> Sizes:
    """The values of a recording's size symbols, from all dimensions of its arguments."""
    values = recorded.match(*dims)
    assert values is not None, f"recorded for other sizes than {dims}"
    return dict(zip(driver.input_size_names(recorded.graph), values, strict=True))


_SKETCHED: dict[tuple[Any, ...], PlannedRow] = {}
_COMPILED: dict[tuple[Any, ...], PlannedRow] = {}


def sketch(
    row: Row,
    dtype: str = "f32",
    form: int = 0,
    layout: str | None = None,
    machine: Target = MACHINE,
) -> PlannedRow:
    """A row planned for its sizes on a machine: form 0 is its own code, k the kth of `also`."""
    rounding = knobs.ROUNDING.get()
    key = (id(row), dtype, form, layout, rounding, knobs.CHECK_POSITIONS.get(), machine.isa)
    if key not in _SKETCHED:
        arrays = draw(row, small(row, 3), dtype)
        if layout is not None:
            arrays = [LAYOUTS[layout](a) for a in arrays]
        recorded = record((row.code, *row.also)[form], arrays)
        assert all(r.kind == "graph" for r in recorded.results)
        hints = _hints(row, recorded)
        graph = passes.run(recorded.graph, Journal(), rounding)
        plan = fusion.plan(graph, machine, None, hints)
        kernels = tuple(
            None if c.is_extern or c.body is not None else lower.run(c, rounding, hints)
            for c in plan.all_clusters
        )
        _SKETCHED[key] = PlannedRow(row, recorded, Sketch(graph, plan, kernels), machine)
    return _SKETCHED[key]


def make(row: Row, dtype: str = "f32", form: int = 0) -> PlannedRow:
    """A row compiled for its sizes on the machine that runs it."""
    key = (id(row), dtype, form, knobs.ROUNDING.get())
    if key not in _COMPILED:
        compiled_program = sketch(row, dtype, form, machine=RUNS)
        hints = _hints(row, compiled_program.recorded)
        program = driver.compile(compiled_program.recorded.graph, hints=hints, target=RUNS)
        whole = Sketch(program.graph, program.plan, program.kernels)
        _COMPILED[key] = replace(compiled_program, sketch=whole, program=program)
    return _COMPILED[key]


def _hints(row: Row, recorded: Trace) -> Sizes:
    return matched(recorded, [n for x in row.inputs for n in wanted(x, "f32").dims(row.sizes)])


# ---- counting ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """A plan in numbers.  Of what runs in rounds the kernels of one count, and the bytes that all
    move across their border; what they hold in a cache is not stored."""

    kernels: int
    calls: int
    launches: int
    stored: tuple[str, ...]
    fused: int
    sweeps: int

    def __str__(self) -> str:
        stored = ", ".join(self.stored) or "nothing"
        return (
            f"{self.kernels} kernels, {self.calls} calls, {self.launches} launches,"
            f" {self.fused:,} bytes in {self.sweeps} sweeps, stores {stored}"
        )


def count(built: PlannedRow) -> Counts:
    """What the plan of a row is, in numbers, at the row's sizes."""
    plan, sizes = built.sketch.plan, built.sizes(built.row.sizes)
    results = set(plan.graph.outputs)
    stored = [n.op.name for c in plan.clusters for n in c.outputs if n not in results]
    fused = sweeps = 0
    for cluster, kernel in zip(plan.clusters, built.sketch.kernels, strict=False):
        if kernel is None:
            fused += entry_traffic(cluster, sizes, built.machine).nbytes
        else:
            fused += traffic(kernel, sizes).nbytes
            sweeps = max([sweeps, *reads(kernel, built.machine, sizes).values()])
    calls = sum(c.is_extern for c in plan.clusters)
    kernels = sum(c.body is None for c in plan.all_clusters) - calls
    return Counts(kernels, calls, len(plan.launches), tuple(stored), fused, sweeps)


def is_exact(built: PlannedRow) -> bool:
    """Whether the bytes of every kernel are known without running it."""
    sizes = built.sizes(built.row.sizes)
    outer = built.sketch.kernels[: len(built.sketch.plan.clusters)]
    return all(traffic(k, sizes).exact for k in outer if k is not None)


def unfused(built: PlannedRow) -> int:
    """Bytes that the operators would move one by one."""
    return sum(
        a.nbytes
        for a in unfused_traffic(built.sketch.plan, built.machine, built.sizes(built.row.sizes))
    )


# ---- comparing ---------------------------------------------------------------------------------


def compare(row: Row, recorded: Trace, arrays: Sequence[Array], got: Sequence[Array]) -> None:
    """Results against float64, within what rounding explains of every element."""
    arguments = inputs(recorded, arrays)
    sizes = matched(recorded, [n for a in arrays for n in a.shape])
    allowed = tolerances(recorded.graph, arguments, sizes)
    for k, (want, result) in enumerate(zip(expected(row, arrays), got, strict=True)):
        problem = differ(want, result, allowed[recorded.results[k].position])
        assert not problem, f"result {k} for {[a.shape for a in arrays]}: {problem}"


def differ(want: Array, actual: Array, tolerance: Array) -> str:
    """Where a result is not the reference, or nothing."""
    if want.shape != actual.shape:
        return f"shape {actual.shape} instead of {want.shape}"
    with np.errstate(all="ignore"):
        a = want.astype(actual.dtype).astype(np.float64)  # as large numbers as its type has
        b = actual.astype(np.float64)
        near = np.abs(want.astype(np.float64) - b) <= tolerance
    fine = near | (a == b) | (np.isnan(a) & np.isnan(b)) | np.isinf(tolerance)
    if fine.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~fine)[0])
    return (
        f"{b[at]} instead of {want[at]} at {at}, {tolerance[at]:.3g} off is allowed;"
        f" {(~fine).sum()} of {fine.size} are wrong"
    )


def run_jitted(row: Row, arrays: Sequence[Array]) -> None:
    """The row as a user calls it, its results compared."""
    f = sm.jit(lambda *xs: row.code(sm, *xs))
    got = [np.asarray(x) for x in flatten(f(*arrays))[0]]
    ((recorded,),) = f.traces.values()
    compare(row, recorded, arrays, got)


# ---- the checks --------------------------------------------------------------------------------


class EveryRow:
    """The checks of every row; a module's `class TestRows(EveryRow)` runs them on its `ROWS`.

    Those whose names begin with `plan` compare counts with the catalogue.
    """

    def test_plan(self, row: Row) -> None:
        program = sketch(row)
        assert is_exact(program) or row.bounded
        same(count(program), wanted_counts(row))

    def test_unfused(self, row: Row) -> None:
        moved = unfused(sketch(row))
        assert moved == value_of(row.unfused, dict(row.sizes) | {"s": 4}), f"{moved:,} bytes"

    def test_plan_dtype(self, row: Row, dtype: str) -> None:
        said = replace(row, **row.other.get(dtype, {}))
        if row.eager and DTYPES[dtype].itemsize == 2:
            with knobs.config(rounding="fast"):
                same(count(sketch(row, dtype)), wanted_counts(said, dtype))
            said = replace(said, **row.eager)
        same(count(sketch(row, dtype)), wanted_counts(said, dtype))

    def test_plan_layout(self, row: Row, layout: str) -> None:
        actual = count(sketch(row, layout=layout))
        same(replace(actual, sweeps=row.sweeps), wanted_counts(row))  # rows may lie across now

    def test_same_plan(self, row: Row, form: int) -> None:
        one, other = count(sketch(row)), count(sketch(row, form=form + 1))
        same(replace(other, stored=one.stored), one)

    def test_numbers(self, row: Row) -> None:
        program = make(row)
        assert program.program is not None
        same(count(program), count(sketch(row, machine=RUNS)))
        for n, sizes in enumerate(many_sizes(row)):
            check(program, draw(row, sizes, seed=n))

    def test_numbers_dtype(self, row: Row, dtype: str) -> None:
        program = make(row, dtype)
        for shift in (0, 6):
            check(program, draw(row, small(row, shift), dtype))

    def test_numbers_form(self, row: Row, form: int) -> None:
        check(make(row, form=form + 1), draw(row, small(row, 5)))

    def test_jit(self, row: Row) -> None:
        run_jitted(row, draw(row, small(row, 3)))

    def test_jit_layout(self, row: Row, layout: str) -> None:
        run_jitted(row, [LAYOUTS[layout](a) for a in draw(row, small(row, 2))])

    def test_jit_one(self, row: Row) -> None:
        for sizes in with_one(row, 1):
            run_jitted(row, draw(row, sizes))

    def test_jit_empty(self, row: Row) -> None:
        for sizes in with_one(row, 0):
            arrays = draw(row, sizes)
            try:
                expected(row, arrays)
            except (ValueError, IndexError):
                with pytest.raises((ValueError, IndexError)):  # NumPy refuses it, and so must we
                    sm.jit(lambda *xs: row.code(sm, *xs))(*arrays)
            else:
                run_jitted(row, arrays)


def wanted_counts(row: Row, dtype: str = "f32") -> Counts:
    """What a row says, for a dtype."""
    item = dict(row.sizes) | {"s": DTYPES[dtype].itemsize}
    launches = row.launches or row.kernels + row.calls
    fused = value_of(row.fused, item)
    return Counts(row.kernels, row.calls, launches, row.stored, fused, row.sweeps)


def same(actual: Counts, wanted: Counts) -> None:
    """Two plans with equal counts."""
    assert actual == wanted, f"{actual}; wanted {wanted}"


def check(built: PlannedRow, arrays: Sequence[Array]) -> None:
    """A program run on arrays, against NumPy."""
    compare(built.row, built.recorded, arrays, built.run(arrays))
