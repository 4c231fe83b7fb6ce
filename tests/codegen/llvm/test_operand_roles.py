"""If no result runs along either operand, the one that the batch shares is packed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.codegen.llvm.schedule.operands import plain_load

SOURCE = """graph f(q: f32[m,k], d: f32[b,n,k]) {{
 s = contract({sides}) {{spec="{spec}"}}
 t = reduce.max(s) {{axes=(2,)}}
 y = reduce.sum(t) {{axes=(1,)}}
 return y
}}"""
SIDES = {"left": ("q, d", "m,k; b,n,k -> b,m,n"), "right": ("d, q", "b,n,k; m,k -> b,m,n")}


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("side", SIDES)
def test_late_interaction_packs_the_query(side: str, isa: str) -> None:
    """Scores of a query's words and each document's (O. Khattab, M. Zaharia, 2020)."""
    sides, spec = SIDES[side]
    kernel = fuse(SOURCE.format(sides=sides, spec=spec), isa)
    (phase,) = program(kernel.kernel).phases
    (product,) = schedule(phase, kernel.target).products.values()
    assert (access := plain_load(product.right)) is not None
    assert len(kernel.kernel.param(access.buffer).shape) == 2
    for m, b, n in ((1, 3, 5), (7, 2, 1), (33, 3, 40), (40, 5, 33)):
        rng = np.random.default_rng(m)
        arrays = {"q": rng.integers(-4, 5, (m, 20)), "d": rng.integers(-4, 5, (b, n, 20))}
        actual = kernel(*(arrays[p.name].astype("f4") for p in kernel.kernel.inputs))[0]
        wanted = np.einsum("mk,bnk->bmn", arrays["q"], arrays["d"]).max(2).sum(1)
        np.testing.assert_array_equal(actual, wanted)
