"""Scatters whose positions were tested by an enclosing guard stay in bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.loopir.items import Position
from smelt.codegen.llvm.program import program

HEAD = "graph f(x: T[k{d}], u: T[m{d}], i: i64[m]{more}) {{\n"
ENDS = {
    "as given": " v = scatter.add(x, u, i)",
    "computed": " j = add(i, i)\n v = scatter.add(x, u, j)",
    "the greatest": " v = scatter.max(x, u, i)",
    "the last": " v = scatter.put(x, u, i)",
    "read there too": " a = gather(w, i) {{first=0}}\n b = mul(u, a)\n v = scatter.add(x, b, i)",
}
JOIN = {"the greatest": np.maximum, "the last": lambda old, new: new}
RNG = np.random.default_rng(7)


def positions(kernel: Any) -> list[bool]:
    """Of each computed position of a kernel, whether it is taken as it is."""
    items = [item for phase in program(kernel.kernel).phases for item in phase.items]
    return [item.inside for item in items if isinstance(item, Position)]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("width", [None, 3, 40])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_nothing_outside_is_touched(isa: str, name: str, width: int | None, dtype: str) -> None:
    row = "" if width is None else ",d"
    reads = "read there" in name
    head = HEAD.format(d=row, more=f", w: T[k{row}]" if reads else "")
    source = f"{head}{ENDS[name].format()}\n return v\n}}".replace("T[", f"{dtype}[")
    kernel = fuse(source, isa, usual=True)
    actual = positions(kernel)
    assert actual
    assert actual and all(actual)
    kind = np.float32 if dtype == "f32" else np.int64
    for k, m in ((7, 300), (1, 5), (64, 1)):
        shape = () if width is None else (width,)
        x, u, w = (RNG.integers(0, 9, (n, *shape)).astype(kind) for n in (k, m, k))
        i = RNG.integers(-k, 2 * k, m)
        at = i * 2 if name == "computed" else i
        wanted = x.copy()
        for p, new in zip(at, u, strict=True):
            if 0 <= p < k:
                value = new * w[p] if reads else new
                wanted[p] = JOIN.get(name, np.add)(wanted[p], value)
        for at_end in (False, True):
            inputs = [x, u, i, w] if reads else [x, u, i]
            (result,) = run_guarded(kernel, inputs, at_end=at_end)
            np.testing.assert_array_equal(result, wanted)
