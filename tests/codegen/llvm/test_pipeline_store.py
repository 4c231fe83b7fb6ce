"""Rows that are stored in the loop of the next row: the numbers stay for any tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import SingleKernel, fuse

from smelt.codegen.llvm.loops.pipeline_store import can_pipeline_store
from smelt.codegen.llvm.module import build_schedules
from smelt.codegen.llvm.program import program
from smelt.machine.target import Target

Array = np.ndarray[Any, Any]


def softmax(kind: str, axis: int, after: str) -> str:
    """Softmax of what `x` says, and what becomes of it."""
    kept = ",".join("1" if a == axis else "abc"[a] for a in range(kind.count(",") + 1))
    return (
        f"graph f(x: {kind}) {{\n m = reduce.max(x) {{axes=({axis},)}}\n"
        f" n = reshape(m) {{shape=({kept})}}\n d = sub(x, n)\n e = exp(d)\n"
        f" s = reduce.sum(e) {{axes=({axis},)}}\n t = reshape(s) {{shape=({kept})}}\n"
        f" y = div(e, t)\n{after}}}"
    )


GRAPHS = {
    "rows": softmax("f32[a,b]", 1, " return y\n"),
    "doubles": softmax("f64[a,b]", 1, " return y\n"),
    "two": softmax("f32[a,b]", 1, " z = mul(y, x)\n return y, z\n"),
    "halves": softmax("f32[a,b]", 1, " z = cast(y) {dtype=bf16}\n return z\n"),
    "batches": softmax("f32[a,b,c]", 2, " return y\n"),
    "columns": softmax("f32[a,b]", 0, " return y\n"),
    "cheap": "graph f(x: f32[a,b]) {\n s = reduce.sum(x) {axes=(1,)}\n"
    " t = reshape(s) {shape=(a,1)}\n y = sub(x, t)\n return y\n}",
}
BEHIND = {"rows", "doubles", "two", "halves", "batches"}
SIZES = ((1, 1, 1), (3, 1, 17), (2, 35, 64), (1, 67, 128), (2, 5, 1000), (1, 3, 2112), (0, 3, 64))


def arrays_for(kernel: SingleKernel, size: tuple[int, int, int]) -> list[Array]:
    (node,) = kernel.graph.inputs
    batch, rows, columns = size
    shape = size if len(node.type.shape) == 3 else (batch * rows, columns)
    x = np.random.default_rng(sum(size)).standard_normal(shape)
    if x.size > 64:
        x.flat[40], x.flat[-3] = np.nan, np.inf
    return [(3 * x).astype(node.type.dtype.numpy)]


def is_same(first: list[Array], second: list[Array]) -> bool:
    """Compare numbers; the sign of a NaN depends on the lane that met it first."""
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a.astype("f8"), b.astype("f8"), equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("name", GRAPHS)
def test_which_rows(name: str) -> None:
    """Only rows with much computation before the store are pipelined."""
    kernel = fuse(GRAPHS[name]).kernel
    target = Target.for_isa("avx512")
    actual = [
        can_pipeline_store(s)
        for p in program(kernel).phases
        for s in build_schedules(p, target, "")
    ]
    assert any(actual) == (name in BEHIND)


@pytest.mark.parametrize("name", sorted(BEHIND))
def test_rows_behind(name: str) -> None:
    """Results are aligned or not; chunks have one task or all; row blocks are whole or not."""
    kernel, past = fuse(GRAPHS[name]), fuse(GRAPHS[name], streaming=True)
    for size in SIZES:
        arrays = arrays_for(kernel, size)
        with np.errstate(all="ignore"):
            wanted = kernel(*arrays)
            expected = kernel.expected(*arrays)
        for a, b in zip(expected, wanted, strict=True):
            near = 1e-2 if name == "halves" else 1e-5
            assert np.allclose(b.astype("f8"), a.astype("f8"), near, near, equal_nan=True), size
        for skip in (0, 1, 16):
            out: list[Array] = []
            for w in wanted:
                raw = np.zeros(w.nbytes + 256, np.uint8)
                start = -raw.ctypes.data % 64 + skip * w.itemsize
                out.append(raw[start : start + w.nbytes].view(w.dtype).reshape(w.shape))
            past(*arrays, out=out)
            assert is_same(out, wanted), (size, skip)
        for alone in (True, False):
            actual = run_guarded(past, arrays, at_end=alone, one_by_one=alone)
            assert is_same(actual, wanted), (size, alone)


def test_rows_behind_in_place() -> None:
    """A row is overwritten after everything was read of it."""
    kernel, past = fuse(GRAPHS["rows"]), fuse(GRAPHS["rows"], streaming=True)
    for rows, columns in ((37, 64), (4, 2112), (5, 1000)):
        raw = np.zeros(rows * columns + 16, "f4")
        x = raw[-raw.ctypes.data % 64 // 4 :][: rows * columns].reshape(rows, columns)
        x[...] = np.random.default_rng(rows).standard_normal(x.shape)
        (wanted,) = kernel(x.copy())
        past(x, out=[x])
        assert is_same([x], [wanted])
