"""Products with concatenated or padded operands, in every layout.

Tile transposes fall inside of a part, outside, or across its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse

from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.machine.target import Target
from smelt.types.dtype import bf16

Array = np.ndarray[Any, Any]
KINDS = {"f32": np.dtype("f4"), "f64": np.dtype("f8"), "bf16": bf16.numpy}
SPECS = ("m,k; k,n -> m,n", "m,k; n,k -> m,n", "k,m; k,n -> m,n", "k,m; n,k -> m,n")
MORE = tuple(f for f in ("avx512bf16", "avx512vnni") if Target.host().has(f))
SIZES = ((70, 43, 65), (17, 80, 129), (131, 47, 31))
MARGINS = {"m": ((3, 9),) * 2, "n": ((1, 40),) * 2, "k": ((2, 16), (20, 5))}
"""Of each axis, before and behind the left and the right operand."""


def contraction_kernel(dtype: str, isa: str, spec: str, lines: str, inputs: str) -> Any:
    source = f'graph f({inputs}) {{\n{lines}\n s = contract(a, b) {{spec="{spec}"}}\n return s\n}}'
    more = MORE if isa == "avx512" else ()
    return fuse(source.replace("T[", f"{dtype}["), isa, usual=True, features=more)


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Numbers whose sums of products are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(KINDS[dtype])


def wanted(spec: str, a: Array, b: Array) -> Array:
    result = np.einsum(
        spec.replace(",", "").replace(" ", "").replace(";", ","), a.astype("f8"), b.astype("f8")
    )
    return result.astype(np.float32).astype(a.dtype) if a.dtype == bf16.numpy else result


def shape_of(side: str, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(dict(zip("mnk", sizes, strict=True))[name.strip()] for name in side.split(","))


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("side", [0, 1])
def test_concatenated_operands(isa: str, dtype: str, spec: str, side: int) -> None:
    sides = [s.strip() for s in spec.partition("->")[0].split(";")]
    names = sides[side].split(",")
    for axis in (0, 1):
        parts = [",".join(f"{p}{n}" if k == axis else n for k, n in enumerate(names)) for p in "pq"]
        plain = f"y: T[{sides[1 - side]}]".replace(names[axis], f"p{names[axis]} + q{names[axis]}")
        inputs = ", ".join(f"x{p}: T[{part}]" for p, part in zip("pq", parts, strict=True))
        operand = f" {'ab'[side]} = concat(xp, xq) {{axis={axis}}}"
        lines = operand + f"\n {'ba'[side]} = add(y, y)"
        kernel = contraction_kernel(dtype, isa, spec, lines, f"{inputs}, {plain}")
        for nth, sizes in enumerate(SIZES):
            whole_one = drawn(dtype, shape_of(sides[side], sizes), nth)
            y = drawn(dtype, shape_of(sides[1 - side], sizes), nth + 9)
            cut = whole_one.shape[axis] * (nth + 1) // 4
            first, second = np.split(whole_one, [cut], axis)
            arrays = [np.ascontiguousarray(x) for x in (first, second, y)]
            pair = (whole_one, y + y) if side == 0 else (y + y, whole_one)
            for at_end in (False, True):
                (actual,) = run_guarded(kernel, arrays, at_end=at_end)
                assert np.array_equal(actual, wanted(spec, *pair)), (sizes, axis)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [0.0, 2.0])
def test_padded_operands(isa: str, dtype: str, spec: str, value: float) -> None:
    sides = [s.strip().split(",") for s in spec.partition("->")[0].split(";")]
    margins = [[MARGINS[name][side] for name in names] for side, names in enumerate(sides)]
    pads = [tuple(zip(*actual, strict=True)) for actual in margins]
    lines = "\n".join(
        f" {a} = pad({x}) {{low={low}, high={high}, value={value}}}"
        for a, x, (low, high) in zip("ab", "xy", pads, strict=True)
    )
    for nth, sizes in enumerate(SIZES):
        whole_ones = [shape_of(",".join(names), sizes) for names in sides]
        shapes = [
            tuple(n - sum(margin) for n, margin in zip(shape, actual, strict=True))
            for shape, actual in zip(whole_ones, margins, strict=True)
        ]
        inputs = ", ".join(
            f"{x}: T[{','.join(map(str, shape))}]" for x, shape in zip("xy", shapes, strict=True)
        )
        kernel = contraction_kernel(dtype, isa, spec, lines, inputs)
        arrays = [drawn(dtype, shape, nth + s) for s, shape in enumerate(shapes)]
        padded = [
            np.pad(x, actual, constant_values=value)
            for x, actual in zip(arrays, margins, strict=True)
        ]
        for at_end in (False, True):
            (actual,) = run_guarded(kernel, arrays, at_end=at_end)
            assert np.array_equal(actual, wanted(spec, *padded)), shapes


def test_concatenated_operands_are_transposed() -> None:
    lines = " a = concat(x, z) {axis=0}\n b = add(y, y)"
    inputs = "x: T[p,m], z: T[q,m], y: T[p + q,n]"
    kernel = contraction_kernel("f32", RUNNABLE[0], "k,m; k,n -> m,n", lines, inputs)
    packs = [
        pack
        for phase in program(kernel.kernel).phases
        for nest in schedule(phase, kernel.target).nests
        for pack in nest.packs
    ]
    assert [len(pack.transposed) for pack in packs if pack.packed == "left"] == [2]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("step", [-1, -2, 2])
def test_parts_that_are_read_in_steps_along_vectors(isa: str, step: int) -> None:
    """What is outside of a part is read by no lane, however lanes are put in order."""
    start, count = (79 if step < 0 else 0), 80 // abs(step)
    kernel = fuse(
        f"""graph f(x: f32[50,80], z: f32[2,80], y: f32[4,26]) {{
  a = concat(x, z) {{axis=0}}
  b = slice(a) {{starts=(0,{start}), sizes=(26,{count}), steps=(2,{step})}}
  c = contract(b, y) {{spec="k,m; n,k -> n,m"}}
  return c
}}""",
        isa,
    )
    x, z, y = (drawn("f32", shape, k) for k, shape in enumerate(((50, 80), (2, 80), (4, 26))))
    operand = np.concatenate([x, z])[::2, ::step]
    for at_end in (False, True):
        (actual,) = run_guarded(kernel, [x, z, y], at_end=at_end)
        assert np.array_equal(actual, y @ operand)
