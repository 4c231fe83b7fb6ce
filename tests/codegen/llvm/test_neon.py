"""Code for AArch64, run in an emulator, computes what the kernel interpreter does."""

from __future__ import annotations

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.codegen.llvm.guard_pages import Guarded
from tests.codegen.llvm.native import native, native_kernel
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.errors import UnsupportedError
from smelt.kernel.text import parse

pytestmark = emulate.needed


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_kernels_compute_their_reference(name: str) -> None:
    reference = REFERENCES[name]
    for seed, scale in ((7, 2), (8, 5)):
        arrays = reference.inputs(np.random.default_rng(seed), scale)
        try:
            kernel = native(GOLDENS[name], "neon")
        except UnsupportedError:
            assert name == "adamw"  # no back end has families
            return
        for at_end in (True, False):
            actual = kernel(arrays, extra_sizes(name, arrays), at_end=at_end)
            for key, value in reference.outputs(**arrays).items():
                np.testing.assert_allclose(
                    actual[key].astype("f8"), value, rtol=reference.rtol, atol=reference.atol
                )


def test_memory_outside_of_buffers_is_forbidden() -> None:
    """The judge itself: a kernel that reads one element too many does not pass."""
    text = "kernel f(x: f32[n]) -> y: f32[n]\n  grid n/64\n  y[n] = x[n] * 2"
    kernel = native_kernel(parse(text), "neon")
    with Guarded() as memory:
        x = memory.copy(np.ones(8, "f4"), at_end=True)
        y = memory.array((9,), np.dtype("f4"), at_end=True)
        frame = memory.copy(np.array([x.ctypes.data, y.ctypes.data, 9], np.int64), at_end=True)
        assert isinstance(kernel.loaded, emulate.Machine)
        (function,) = kernel.built.functions
        with pytest.raises(Exception, match="UNMAPPED"):
            kernel.loaded.call(kernel.loaded.address(function.symbol), frame.ctypes.data, 0, 1, 0)
