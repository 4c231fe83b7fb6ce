"""A kernel's text compiled and called, without a graph around it.

>>> double = native("kernel f(x: f32[n]) -> y: f32[n]\\n  grid n/64\\n  y[n] = x[n] * 2")
>>> double({"x": np.ones(3, "f4")})["y"]
array([2., 2., 2.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.codegen.llvm.guard_pages import KERNEL, Guarded

from smelt.codegen.build import CompiledKernel, Variant, build
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel import ir
from smelt.kernel.sizes import sizes_of_call
from smelt.kernel.text import parse
from smelt.kernel.verify import verify
from smelt.machine.target import Target
from smelt.runtime.code import Loaded
from smelt.runtime.host import unsupported_reason
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Native:
    """A kernel with its code; a call gives the outputs by name."""

    kernel: ir.Kernel
    target: Target
    built: CompiledKernel
    loaded: Loaded | emulate.Machine

    def __call__(
        self,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        *,
        at_end: bool = True,
        one_by_one: bool = False,
    ) -> dict[str, Array]:
        """Every array, partial results and scratch memory stand at forbidden pages;
        `one_by_one`: each task is a call of its own, last first.

        Code for AArch64 is emulated elsewhere. Skips the test where this processor cannot run the
        code: it was compiled all the same."""
        if not emulate.is_foreign(self.target) and (reason := unsupported_reason(self.target)):
            pytest.skip(f"compiled for {self.target.name}, not run: {reason}")
        inputs = {p.name: np.asarray(arrays[p.name]) for p in self.kernel.inputs}
        named = dict(sizes_of_call(self.kernel, inputs, sizes or {}))
        with Guarded() as memory:
            places = {
                n: memory.copy(np.ascontiguousarray(a), at_end=at_end) for n, a in inputs.items()
            }
            for p in self.kernel.outputs:
                shape = [int(evaluate(n, named)) for n in p.shape]
                places[p.name] = memory.array(shape, p.dtype.numpy, at_end=at_end)
            for name, nbytes in self.built.partials:
                whole = int(evaluate(nbytes, named))
                places[name] = memory.array((whole,), np.dtype("u1"), at_end=at_end)
            for stride, name, d in self.built.strides:
                named[stride] = places[name].strides[d] // places[name].itemsize
            words = [places[b].ctypes.data for b in self.built.buffers]
            words += [named[s] for s in self.built.sizes]
            frame = memory.copy(np.array(words, np.int64), at_end=True)
            for f in self.built.functions:
                tasks, scratch = (int(evaluate(e, named)) for e in (f.tasks, f.scratch))
                scratch_address = memory.block(scratch, at_end=True) if scratch else 0
                call = emulate.function(self.loaded.address(f.symbol), KERNEL)
                ranges = [(t, t + 1) for t in reversed(range(tasks))]
                for begin, end in ranges if one_by_one else [(0, tasks)]:
                    call(frame.ctypes.data, begin, end, scratch_address)
            return {p.name: places[p.name].copy() for p in self.kernel.outputs}

    def block_sizes(self) -> dict[str, int]:
        """How many positions the back end takes together along each axis that is cut."""
        results: dict[str, int] = {}
        for phase in program(self.kernel).phases:
            s = schedule(phase, self.target)
            results |= s.block
            results |= {v.axis: v.size for r in s.phase.regions() for v in r.visits if v.size}
        return results


def native_kernel(kernel: ir.Kernel, isa: str | Target, variant: Variant = "") -> Native:
    """A kernel compiled for an instruction set or a machine, in one of its forms."""
    target = isa if isinstance(isa, Target) else Target.for_isa(isa)  # type: ignore[arg-type]
    built = build(verify(kernel), target, variant=variant)
    loaded = emulate.load(built.code, [f.symbol for f in built.functions])
    return Native(kernel, target, built, loaded)


@lru_cache(maxsize=128)
def native(source: str, isa: str = "") -> Native:
    """Compile a kernel's text, by default for the widest set that this processor runs."""
    return native_kernel(parse(source), isa or Target.host().isa)


__all__ = ["Native", "native", "native_kernel"]
