"""Concatenated operands of products are packed part by part, wherever a part ends."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, fuse
from tests.codegen.llvm.test_contractions import whole_numbers
from tests.codegen.llvm.variants import forced

from smelt.codegen.llvm.module import emit
from smelt.machine.target import Target

Array = np.ndarray[Any, Any]
HEAD = "a: f32[{a}], b: f32[{b}], w: f32[{w}]"
JOINED = {
    "left, summed": ("m,i", "m,j", "i+j,n", 1, "c, w", "m,k; k,n"),
    "left, rows": ("i,k", "j,k", "k,n", 0, "c, w", "m,k; k,n"),
    "right, summed": ("i,n", "j,n", "m,i+j", 0, "w, c", "m,k; k,n"),
    "right, columns": ("k,i", "k,j", "m,k", 1, "w, c", "m,k; k,n"),
    "turned left, summed": ("i,m", "j,m", "i+j,n", 0, "c, w", "k,m; k,n"),
    "turned left, rows": ("k,i", "k,j", "k,n", 1, "c, w", "k,m; k,n"),
    "turned right, summed": ("n,i", "n,j", "m,i+j", 1, "w, c", "m,k; n,k"),
    "turned right, columns": ("i,k", "j,k", "m,k", 0, "w, c", "m,k; n,k"),
}
PARTS = {
    "": " c = concat(a, b) {{axis={axis}}}",
    "computed": " p = abs(a)\n q = sub(b, 1.0:f32)\n c = concat(p, q) {{axis={axis}}}",
    "backwards": " p = flip(a) {{axes=({axis},)}}\n c = concat(p, b) {{axis={axis}}}",
}
BORDERS = ((0, 5), (5, 0), (1, 1), (3, 30), (16, 16), (17, 47), (31, 64), (63, 193), (200, 131))


def graph(layout: str, part: str = "") -> str:
    a, b, w, axis, operands, spec = JOINED[layout]
    joined = PARTS[part].format(axis=axis)
    return (
        f"graph f({HEAD.format(a=a, b=b, w=w)}) {{\n{joined}\n"
        f' y = contract({operands}) {{spec="{spec} -> m,n"}}\n return y\n}}'
    )


def sized(layout: str, i: int, j: int, other: int, third: int) -> list[Array]:
    sizes = {"i": i, "j": j, "i+j": i + j, "m": other, "n": third, "k": third}
    sizes |= {"k": other} if "m" not in "".join(JOINED[layout][:3]) else {}
    shapes = [tuple(sizes[s] for s in JOINED[layout][k].split(",")) for k in range(3)]
    return [whole_numbers(shape, "f4", k) for k, shape in enumerate(shapes)]


EITHER = [
    (layout, isa, usual)
    for k, layout in enumerate(JOINED)
    for i, isa in enumerate(RUNNABLE)
    for usual in ((False, True) if not i else ((k.bit_count() + i) % 2 == 1,))
]
"""All layouts in the widest vectors in both forms, in the others in one each, in turn."""


@pytest.mark.parametrize(("layout", "isa", "usual"), EITHER)
def test_borders_anywhere(layout: str, isa: str, usual: bool) -> None:
    """In the forms that such sizes get, and in the code for all sizes; sums are exact."""
    kernel = fuse(graph(layout), isa, usual=usual)
    for i, j in BORDERS:
        for other, third in ((1, 3), (7, 33), (40, 70), (300, 20)):
            arrays = sized(layout, i, j, other, third)
            (wanted,), (actual,) = kernel.expected(*arrays), kernel(*arrays)
            assert np.array_equal(actual, wanted), (i, j, other, third)
    for i, j in ((3, 30), (63, 193)):
        arrays = sized(layout, i, j, 40, 70)
        for at_end in (True, False):
            (actual,) = run_guarded(kernel, arrays, at_end=at_end)
            assert np.array_equal(actual, kernel.expected(*arrays)[0])


@pytest.mark.parametrize("layout", JOINED)
@pytest.mark.parametrize("part", ["computed", "backwards"])
def test_parts_that_are_more_than_arrays(layout: str, part: str) -> None:
    for usual in (False, True):
        kernel = fuse(graph(layout, part), usual=usual)
        for i, j in BORDERS:
            arrays = sized(layout, i, j, 40, 70)
            assert np.array_equal(kernel(*arrays)[0], kernel.expected(*arrays)[0]), (i, j)


@pytest.mark.parametrize("layout", JOINED)
def test_borders_anywhere_in_every_form(layout: str) -> None:
    """Whatever the sizes: what is packed in panels, strips or squares has borders anywhere."""
    isa = RUNNABLE[0]
    for variant, *_ in fuse(graph(layout), isa).variants:
        kernel = forced(graph(layout), isa, variant)
        for i, j in BORDERS:
            arrays = sized(layout, i, j, 40, 70)
            actual, wanted = kernel(*arrays)[0], kernel.expected(*arrays)[0]
            assert np.array_equal(actual, wanted), (variant, i, j)


MANY = """graph f({inputs}, w: f32[{total},n], v: f32[n,k], u: f32[k,{total}]) {{
 a = concat({names}) {{axis=1}}
 y = contract(a, w) {{spec="m,k; k,n -> m,n"}}
{then} return {results}
}}"""
AGAIN = """ z = max(y, 0.0:f32)
 x = contract(z, v) {spec="m,k; k,n -> m,n"}
 s = min(x, 3.0:f32)
 b = contract(s, u) {spec="m,k; k,n -> m,n"}
 d = contract(z, a) {spec="k,m; k,n -> m,n"}
"""


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("again", [False, True])
def test_many_parts(isa: str, again: bool) -> None:
    """Beside other products too, where rows are streamed and operands are packed block by block."""
    rng = np.random.default_rng(7)
    for widths in ((3,) * 21, (1, 0, 31, 2, 255, 1, 40), (64, 64), (257, 300, 5)):
        names = [f"p{k}" for k in range(len(widths))]
        inputs = ", ".join(f"{n}: f32[m,{d}]" for n, d in zip(names, widths, strict=True))
        then, results = (AGAIN, "b, d") if again else ("", "y")
        text = MANY.format(
            inputs=inputs, total=sum(widths), names=", ".join(names), then=then, results=results
        )
        if not again:
            text = re.sub(r", v: .*\) \{\n", ") {\n", text)
        kernel = fuse(text, isa)
        for m in (1, 9, 70):
            shapes = [(m, d) for d in widths] + [(sum(widths), 20), (20, 6), (6, sum(widths))]
            arrays = [rng.integers(-2, 3, s).astype("f4") for s in shapes]
            arrays = arrays if again else arrays[:-2]
            for actual, wanted in zip(kernel(*arrays), kernel.expected(*arrays), strict=True):
                assert np.array_equal(actual, wanted), (widths, m)


def emitted(layout: str, variant: str) -> str:
    return str(emit(fuse(graph(layout)).kernel, Target.for_isa("avx512"), variant=variant))  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["", "tall_skinny"])
@pytest.mark.parametrize("layout", ["left, summed", "left, rows", "right, summed"])
def test_nothing_is_selected_while_packing(layout: str, variant: str) -> None:
    assert not re.search(r"select +<\d+ x i1>", emitted(layout, variant))


def test_panels_are_packed_by_whole_vectors_of_one_part() -> None:
    """But for those in which one part ends and the other one begins."""
    assert len(re.findall(r"load <32 x float>", emitted("right, columns", ""))) == 2


FIRST = """graph f({inputs}, k: f32[o,{total},3,3]) {{
 a = concat({names}) {{axis=1}}
 v0 = pad(a) {{low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=0}}
 v1 = window(v0) {{axis=2, extent=3, step={step}}}
 v2 = window(v1) {{axis=3, extent=3, step={step}}}
 v3 = contract(v2, k) {{spec="b,c,h,w,u,v; o,c,u,v -> b,o,h,w"}}
 return v3
}}"""
LAST = """graph f({inputs}, k: f32[3,3,{total},o]) {{
 a = concat({names}) {{axis=3}}
 v0 = pad(a) {{low=(0, 1, 1, 0), high=(0, 1, 1, 0), value=0}}
 v1 = window(v0) {{axis=1, extent=3, step={step}}}
 v2 = window(v1) {{axis=2, extent=3, step={step}}}
 v3 = contract(v2, k) {{spec="b,h,w,c,u,v; u,v,c,o -> b,h,w,o"}}
 return v3
}}"""
CHANNELS = {
    (3, 4): 1,
    (1, 0, 31, 2, 40): 2,
    (64, 64): 1,
    (5,) * 7: 1,
}
"""Channels of the images that are one, and the step between windows."""


def convolution(source: str, widths: tuple[int, ...], step: int = 1) -> str:
    names = [f"p{k}" for k in range(len(widths))]
    shape = "b,{},h,w" if source is FIRST else "b,h,w,{}"
    inputs = ", ".join(f"{n}: f32[{shape.format(d)}]" for n, d in zip(names, widths, strict=True))
    return source.format(inputs=inputs, total=sum(widths), names=", ".join(names), step=step)


@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("source", [FIRST, LAST])
def test_channels_of_several_images(source: str, isa: str, usual: bool) -> None:
    for widths, step in CHANNELS.items():
        if usual and len(widths) > 5:
            continue  # many parts take long to compile
        kernel = fuse(convolution(source, widths, step), isa, usual=usual)
        for b, h, w, o in ((1, 1, 2, 3), (2, 9, 20, 17)):
            last = source is LAST
            shapes = [(b, h, w, d) if last else (b, d, h, w) for d in widths]
            total = sum(widths)
            shapes.append((3, 3, total, o) if last else (o, total, 3, 3))
            arrays = [whole_numbers(s, "f4", k) for k, s in enumerate(shapes)]
            (wanted,) = kernel.expected(*arrays)
            assert np.array_equal(kernel(*arrays)[0], wanted), (widths, step, b, h, w)
            assert np.array_equal(run_guarded(kernel, arrays, at_end=True)[0], wanted)


@pytest.mark.parametrize("source", [FIRST, LAST])
def test_no_channel_is_selected(source: str) -> None:
    built = fuse(convolution(source, (32, 32, 32))).kernel
    text = str(emit(built, Target.for_isa("avx512")).llvm)
    one_or_the_other = r"select +<(\d+) x i1> %\S+ <\1 x float> %\S+ <\1 x float> %"
    assert not re.search(one_or_the_other, text)  # but for zeros around the image


def test_where_a_part_ends_the_others_are_not_read() -> None:
    # Beside both sides only the first part, which has no test of its own.  With all parts read
    # where vectors of 32 columns meet borders, the code for eight was half as long again.
    names = [f"p{k}" for k in range(4)]
    inputs = ", ".join(f"{n}: f32[k,136]" for n in names)
    kernel = fuse(
        f"graph f({inputs}, x: f32[m,k]) {{\n"
        f" c = concat({', '.join(names)}) {{axis=1}}\n"
        ' y = contract(x, c) {spec="m,k; k,n -> m,n"}\n return y\n}'
    ).kernel
    text = emit(kernel, Target.for_isa("avx512")).llvm
    blocks = [x for x in re.split(r"\n\S+:\n", text) if re.search(r"select +<\d+ x i1>", x)]
    read = [len({*re.findall(r'getelementptr float, ptr %"(p\d)"', x)}) for x in blocks]
    assert read and max(read) == 3
