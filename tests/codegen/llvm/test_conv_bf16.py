"""Convolutions of bfloat16 numbers, in pairs of channels, in every layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.llvm.guard_pages import run_guarded
from tests.codegen.llvm.single_kernel import RUNNABLE, SingleKernel, fuse, one_cluster
from tests.strategies.effort import NIGHT, effort

from smelt import lower
from smelt.codegen.build import asm_text
from smelt.graph.text import parse
from smelt.kernel.verify import verify
from smelt.machine.blocks import WINDOW_COLUMNS as COLUMNS
from smelt.machine.target import Target
from smelt.types.dtype import bf16

pytestmark = NIGHT

Array = np.ndarray[Any, Any]
MORE = tuple(f for f in ("avx512bf16",) if Target.host().has(f))
paired = pytest.mark.skipif(not MORE or RUNNABLE[0] != "avx512", reason="no AVX512-BF16")

PLAIN = """graph f(x: bf16[{x}], k: bf16[{k}]) {{
  {before}
  v0 = pad(y) {{low=({low}), high=({low}), value=0}}
  v1 = window(v0) {{axis={first}, extent={u}, step={s}, dilation={d}}}
  v2 = window(v1) {{axis={second}, extent={v}, step={s}, dilation={d}}}
  v3 = contract(v2, k) {{spec="{x},u,v; {e} -> {out}"}}
  return v3
}}"""
FIRST, LAST = "b,c,h,w", "b,h,w,c"
AS_IT_IS = "y = reshape(x) {{shape=({x})}}"
INVERSE = "y = div(1.0:bf16, x)"
"""What would be infinite beyond the last channel."""


def source(
    x: str = FIRST,
    e: str = "o,c,u,v",
    *,
    p: int = 1,
    s: int = 1,
    d: int = 1,
    u: int = 3,
    v: int = 3,
    before: str = AS_IT_IS,
    out: str = "",
) -> str:
    taps = {"u": str(u), "v": str(v)}
    k = ",".join(taps.get(a, a) for a in e.split(","))
    first = 2 if x == FIRST else 1
    low = ", ".join(str(p) if a in (first, first + 1) else "0" for a in range(4))
    return PLAIN.format(
        x=x,
        k=k,
        e=e,
        low=low,
        first=first,
        second=first + 1,
        u=u,
        v=v,
        s=s,
        d=d,
        before=before.format(x=x),
        out=out or x.replace("c", "o"),
    )


def conv_kernel(text: str, *, usual: bool = False, rounding: str = "eager") -> SingleKernel:
    kernel = fuse(text, "avx512", usual=usual, features=MORE, rounding=rounding)
    assert "dpbf16" in asm_text(kernel.kernel, kernel.target)
    return kernel


@pytest.mark.parametrize("x", [FIRST, LAST])
def test_pairs_compile_on_every_processor(x: str) -> None:
    kernel = verify(lower.run(one_cluster(parse(source(x, before=INVERSE))), "eager", {}))
    target = Target.for_isa("avx512")
    target = replace(target, features=(*target.features, "avx512bf16"))
    assert "dpbf16" in asm_text(kernel, target)


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    """Powers of two, whose products and sums are exact."""
    rng = np.random.default_rng(seed)
    return [
        (2.0 ** rng.integers(-1, 2, s) * rng.choice([-1, 1], s)).astype(bf16.numpy) for s in shapes
    ]


def check(kernel: SingleKernel, *arrays: Array) -> None:
    wanted = kernel.expected(*arrays)[0]
    for at_end in (False, True):
        (actual,) = run_guarded(kernel, arrays, at_end=at_end)
        np.testing.assert_array_equal(actual.astype("f4"), wanted.astype("f4"))


@paired
@pytest.mark.parametrize("usual", [False, True])
@pytest.mark.parametrize("weights", ["o,c,u,v", "c,o,u,v", "o,u,v,c", "u,v,c,o"])
@pytest.mark.parametrize("image", [FIRST, LAST])
def test_every_layout_and_number_of_channels(image: str, weights: str, usual: bool) -> None:
    kernel = conv_kernel(source(image, weights), usual=usual)
    for channels in (0, 1, 2, 3, 5, 8, 57, 130):
        sizes = {"b": 2, "c": channels, "h": 6, "w": 7, "o": 13, "u": 3, "v": 3}
        shapes = [tuple(sizes[a] for a in side.split(",")) for side in (image, weights)]
        check(kernel, *drawn(*shapes, seed=channels))


@paired
@pytest.mark.parametrize("outputs", [16, 64, 80])
def test_sums_of_lines_of_known_length_are_rounded_in_place(outputs: int) -> None:
    """Of few channels, and of several blocks of them."""
    kernel = conv_kernel(
        source(LAST, "o,u,v,c").replace("b,h,w,c]", "b,h,9,c]").replace("(b,h,w", "(b,h,9")
    )
    for channels in (3, 190):
        check(kernel, *drawn((2, 5, 9, channels), (outputs, 3, 3, channels)))


@paired
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, 9),
        ({"s": 2, "p": 3, "u": 7, "v": 7}, 21),
        ({"v": 2}, 12),
        ({"s": 3, "v": 5}, 40),
        ({"d": 2}, 11),
        ({"v": 1, "p": 0}, 8),
    ],
)
def test_pairs_of_colours_begin_anywhere_on_a_line(options: dict[str, int], line: int) -> None:
    """What is beside the last number of a window is not part of it, infinite or not."""
    text = source(LAST, "o,u,v,c", **options).replace(",c]", ",3]").replace(",w,c)", ",w,3)")
    taps = options.get("u", 3), options.get("v", 3)
    for wide in (text, text.replace("b,h,w,", f"b,h,{line},", 2)):
        kernel = conv_kernel(wide)
        for outputs in (20, 32):
            x, k = drawn((2, 8, line, 3), (outputs, *taps, 3))
            x[0, 4, line // 2, 2] = x[1, 5, 3, 0] = np.inf
            check(kernel, x, k)


@paired
@pytest.mark.parametrize("image", [FIRST, LAST])
@pytest.mark.parametrize(
    ("options", "size", "outputs"),
    [
        ({"s": 2}, (3, 8, 11), 5),
        ({"s": 2, "p": 3, "u": 7, "v": 7}, (3, 20, 37), 20),
        ({"d": 2, "p": 2}, (6, 7, 20), 4),
        ({"u": 5, "v": 4, "p": 2, "s": 3}, (7, 11, 12), 34),
        ({"u": 1, "v": 1, "p": 0}, (37, 9, 10), 33),
        ({"u": 1, "v": 1, "p": 0, "s": 2}, (6, 9, 10), 70),
        ({}, (4, 3, COLUMNS + 40), 2),
        ({}, (33, 33, 40), 13),
        ({"p": 0}, (2, 6, 9), 197),
    ],
)
def test_steps_and_blocks(
    image: str, options: dict[str, int], size: tuple[int, ...], outputs: int
) -> None:
    c, h, w = size
    text = source(image, **options)  # type: ignore[arg-type]
    x = (1, c, h, w) if image == FIRST else (1, h, w, c)
    taps = options.get("u", 3), options.get("v", 3)
    check(conv_kernel(text), *drawn(x, (outputs, c, *taps)))


@paired
@pytest.mark.parametrize("image", [FIRST, LAST])
@pytest.mark.parametrize("rounding", ["eager", "fast"])
def test_what_is_beyond_an_odd_channel_is_no_number_of_the_image(image: str, rounding: str) -> None:
    kernel = conv_kernel(source(image, before=INVERSE), rounding=rounding)
    for channels in (1, 3, 4, 7):
        x, k = drawn((2, channels, 9, 11), (6, channels, 3, 3))
        check(kernel, x if image == FIRST else np.ascontiguousarray(x.transpose(0, 2, 3, 1)), k)


@paired
@pytest.mark.parametrize("image", [FIRST, LAST])
def test_infinities_reach_no_further_than_their_windows(image: str) -> None:
    x, k = drawn((1, 5, 9, 40), (3, 5, 3, 3))
    x[0, 4, 8, 39], x[0, 0, 0, 0], x[0, 3, 4, 20] = np.inf, np.nan, -np.inf
    x = x if image == FIRST else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    check(conv_kernel(source(image)), x, k)


@paired
def test_numbers_that_nobody_has_rounded_are_rounded_as_they_are_packed() -> None:
    """With fast rounding a computed image is single precision: one rounding is its error."""
    text = source(before="z = exp(x)\n  y = sqrt(z)")
    rng = np.random.default_rng(3)
    x, k = (rng.standard_normal(s).astype(bf16.numpy) for s in ((1, 9, 8, 9), (5, 9, 3, 3)))
    kernel = conv_kernel(text, rounding="fast")
    (actual,), wanted = kernel(x, k), kernel.expected(x, k)[0]
    size = np.abs(np.asarray(wanted, "f8")).max()
    assert np.abs(np.asarray(actual, "f8") - np.asarray(wanted, "f8")).max() <= 2**-7 * size


@paired
@effort(12)
@given(
    st.sampled_from([FIRST, LAST]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.tuples(*[st.integers(1, n) for n in (2, 9, 9, 70, 40)]),
    st.booleans(),
)
def test_any_size(image: str, s: int, d: int, size: tuple[int, ...], usual: bool) -> None:
    b, c, h, w, o = size
    x = (b, c, h, w) if image == FIRST else (b, h, w, c)
    kernel = conv_kernel(source(image, s=s, d=d, p=2), usual=usual)
    check(kernel, *drawn(x, (o, c, 3, 3), seed=sum(size)))
