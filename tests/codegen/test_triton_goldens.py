"""Golden kernels printed as Triton programs compute what the interpreter computes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.codegen.checked_triton import launch, named_sizes
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.codegen.triton.source import triton_source
from smelt.errors import DeviceKernelError
from smelt.kernel.interp import run
from smelt.kernel.ir import Param
from smelt.kernel.text import parse

FOLDER = Path(__file__).parents[1] / "golden" / "triton"
PRINTED = tuple(GOLDENS)
SHOWN = ("add_layernorm", "ragged", "linear_gelu", "adamw", "decode", "messages")
"""Goldens whose text is kept."""


def stored(param: Param, array: np.ndarray) -> np.ndarray:
    """An array with the strides of a parameter: broadcast along 0, rows apart where unknown."""
    if param.strides is None or param.each:
        return array
    first = tuple(slice(0, 1) if n == 0 else slice(None) for n in param.strides)
    array = np.broadcast_to(array[first], array.shape)
    if None not in param.strides:
        return array
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def with_lanes(source: str, lanes: int) -> str:
    """A printed file whose blocks are small, so that small arrays have several."""
    return re.sub(r"(BLOCK_\w+) = (\d+)$", rf"\1 = min(\2, {lanes})", source, flags=re.MULTILINE)


@pytest.mark.parametrize("lanes", [2, 4, 1024])
@pytest.mark.parametrize("scale", [1, 2, 3])
@pytest.mark.parametrize("name", PRINTED)
def test_printed_golden_computes_what_the_interpreter_does(name, scale, lanes):
    kernel, reference = parse(GOLDENS[name]), REFERENCES[name]
    inputs = reference.inputs(np.random.default_rng(scale), scale)
    arrays = {p.name: stored(p, inputs[p.name]) for p in kernel.inputs}
    extra = extra_sizes(name, arrays)
    wanted = run(kernel, arrays, extra)
    source = triton_source(kernel)
    source = with_lanes(source, max(lanes, 16) if "tl.dot" in source else lanes)
    outputs = launch(source, [arrays[p.name] for p in kernel.inputs], **named_sizes(extra))
    for p, actual in zip(kernel.outputs, outputs, strict=True):
        pairs = zip(actual, wanted[p.name], strict=True) if p.each else [(actual, wanted[p.name])]
        for a, b in pairs:
            np.testing.assert_allclose(
                np.asarray(a, np.float64), np.asarray(b, np.float64), 3e-6, 3e-6
            )


@pytest.mark.parametrize("name", SHOWN)
def test_printed_text_is_its_golden(name):
    """`python -m tests.codegen.test_triton_goldens` writes them."""
    assert triton_source(parse(GOLDENS[name])) == (FOLDER / f"{name}.txt").read_text()


def test_same_kernel_has_the_same_text():
    kernel = parse(GOLDENS["causal_attention"])
    sizes = dict.fromkeys("bhmnde", 64)
    assert triton_source(kernel, sizes) == triton_source(parse(GOLDENS["causal_attention"]), sizes)


def test_states_as_long_as_no_tensor_are_refused():
    """Unless programs have columns of them, or few steps are a sum."""
    text = """
kernel f(x: f32[r,c]) -> y: f32[c]
  stream r with s = 0 [c]
    s' = s + sum({} over r)
  y[c] = s
"""
    sums, shares = (parse(text.format(f"x[r,c]{x}")) for x in ("", " / max(x[r,c] over c)"))
    for kernel, rows in ((sums, 2), (sums, 1000), (shares, 2)):
        assert triton_source(kernel, {"r": rows, "c": 4_000_000})
    with pytest.raises(DeviceKernelError, match="all 4000000 elements of a row at once") as caught:
        triton_source(shares, {"r": 1000, "c": 4_000_000})
    assert caught.value.code == "E505"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for golden in SHOWN:
        (FOLDER / f"{golden}.txt").write_text(triton_source(parse(GOLDENS[golden])))
