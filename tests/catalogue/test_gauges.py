"""The gauge oracle on the catalogue: attention in its variants and losses, under another gauge.

Gauges jump up and down from block to block instead of following the largest element; nothing may
move beyond rounding, and a kernel that forgets one rescaling is caught.  The oracle, with small
programs, is in `tests/lower/test_gauges.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.catalogue import test_f_losses as losses
from tests.catalogue.harness import make
from tests.catalogue.rows import Row, draw
from tests.catalogue.test_e_attention import VARIANTS, Array, Variant, arguments, compiled_variant
from tests.catalogue.test_e_weights import WEIGHTS, attention, operands
from tests.lower.test_gauges import changed, forget, gauges, jump, power, unmoved

import smelt as sm
from smelt.kernel import interp
from smelt.kernel.ir import Kernel, Stream
from smelt.kernel.text import parse
from smelt.kernel.walk import map_values, statements, transform

CARRIED = [r for r in losses.ROWS if r.id in ("F2", "F2 softcap", "F2 smoothed, z-loss")]
"""Rows of one kernel whose maximum is a gauge and nothing else."""
STREAMED_VARIANTS = [v for v in VARIANTS if v.name != "E6 talking heads"]
"""All that are one kernel.  Parts of a split axis could not be joined under a gauge that jumps."""


def has_gauge(kernel: Kernel) -> bool:
    return any(gauges(s) for s in statements(kernel) if isinstance(s, Stream))


def results(kernel: Kernel, arrays: list[Array], sizes: dict[str, int]) -> list[Array]:
    """What a kernel gives in blocks of 5 along what it streams."""
    blocks = {s.blocks[0].axis: 5 for s in statements(kernel) if isinstance(s, Stream)}
    return list(interp.run(kernel, arrays, sizes, grid_sizes=blocks).values())


def of_attention(v: Variant) -> tuple[Kernel, list[Array], dict[str, int]]:
    trace, program = compiled_variant(v)
    (kernel,) = program.kernels
    assert kernel is not None
    inputs = arguments(v, 2, 23, seed=4)
    values = trace.match(*(d for a in inputs for d in a.shape))
    sizes = dict(zip(program.size_names, values, strict=True))
    return kernel, [inputs[k] for k in trace.arguments], sizes


def of_loss(row: Row) -> tuple[Kernel, list[Array], dict[str, int]]:
    program: Any = make(row)
    (kernel,) = [k for k in program.sketch.kernels if k is not None]
    arrays = draw(row, {"r": 9, "k": 4, "c": 23})
    return kernel, arrays, program.sizes({"r": 9, "k": 4, "c": 23})


def agree(kernel: Kernel, other: Kernel, arrays: list[Array], sizes: dict[str, int]) -> bool:
    with np.errstate(all="ignore"):
        pairs = zip(results(kernel, arrays, sizes), results(other, arrays, sizes), strict=True)
        return all(np.allclose(a, b, rtol=2e-5, atol=2e-6, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("variant", [v for v in STREAMED_VARIANTS if not v.parts], ids=str)
def test_attention_under_any_gauge(variant: Variant) -> None:
    kernel, arrays, sizes = of_attention(variant)
    assert has_gauge(kernel)
    assert agree(kernel, changed(kernel, jump), arrays, sizes)


@pytest.mark.parametrize("loss", CARRIED, ids=str)
def test_losses_under_any_gauge(loss: Row) -> None:
    kernel, arrays, sizes = of_loss(loss)
    assert has_gauge(kernel)
    assert agree(kernel, changed(kernel, jump), arrays, sizes)


@pytest.mark.parametrize("name", ["E1 causal", "E1 window", "E3 grouped", "E2 sink"])
def test_a_missing_rescaling_is_caught(name: str) -> None:
    kernel, arrays, sizes = of_attention(next(v for v in VARIANTS if v.name == name))
    without = changed(kernel, lambda u, s: jump(forget(u, s), s))
    assert not agree(kernel, without, arrays, sizes)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weight", [w for w in WEIGHTS if w != "signed"])
def test_weights_under_any_power(weight: str, masked: bool) -> None:
    """Weights over their sum are carried under a power of 2 near it: any other power does too, if
    sums are brought from one to the next."""
    arrays = [a[:, :23] for a in operands(40)]
    (compiled_variant,) = sm.explain(
        attention(weight, masked), *[sm.spec("f32[h,n,16]")] * 3
    ).kernels
    kernel = parse(compiled_variant.text)
    sizes = {"h": len(arrays[0]), "n": 23}
    other = map_values(kernel, lambda v: transform(v, power))
    assert other != kernel
    assert agree(kernel, other, arrays, sizes)
    assert not agree(kernel, unmoved(other), arrays, sizes)
