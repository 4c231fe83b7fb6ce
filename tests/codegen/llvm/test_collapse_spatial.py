"""Products whose columns are pixels: height and width are one axis, also under padding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.native import Native, native, native_kernel

import smelt as sm
from smelt.codegen.build import Variant, code_variants
from smelt.codegen.llvm.program import program
from smelt.kernel.text import parse
from smelt.machine.target import Target
from smelt.types.expr import evaluate

Array = np.ndarray[Any, Any]


def text(rows: int, depth: int, reach: int = 1, apart: int = 1, image: str = "l") -> str:
    """A depthwise convolution with margins before a product, over any image."""
    taps = [(u, v) for u in range(-reach, reach + 1) for v in range(-reach, reach + 1)]
    width = 2 * reach + 1
    weights = f"d: f32[{depth},{width},{width}], p: f32[{rows},{depth}]"
    lines = [
        f"kernel f(x: f32[b,{depth},h,w], {weights}) -> y: f32[b,{rows},h,w]",
        f"  axis b, m in {rows}, h, w, l in {depth}",
        "  grid b, m, h, w",
    ]
    total = ""
    for n, (u, v) in enumerate(taps):
        place = ", ".join(
            f"{a} {'-' if k < 0 else '+'} {abs(k * apart)}" if k else a
            for a, k in (("h", u), ("w", v))
        )
        limit = " else 0" if u or v else ""
        lines.append(f"  v{n} = x[b, {image}, {place}]{limit}")
        lines.append(f"  u{n} = v{n} * d[l,{u + reach},{v + reach}]")
        total = f"t{n}" if n else "u0"
        if n:
            before = f"t{n - 1}" if n > 1 else "u0"
            lines.append(f"  t{n} = {before} + u{n}")
    lines += [
        f"  r = max({total}, 0)",
        "  s = dot(r, p[m,l] over l)",
        "  y[b,m,h,w] = max(s, 0)",
    ]
    return "\n".join(lines)


def expected(x: Array, d: Array, p: Array, apart: int = 1) -> Array:
    """Compute the convolution in double precision."""
    reach = d.shape[1] // 2
    far, (h, w) = reach * apart, x.shape[2:]
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (far, far), (far, far)))
    total = np.zeros(x.shape)
    with np.errstate(invalid="ignore"):
        for u, v in pairs(range(2 * reach + 1), repeat=2):
            part = wide[:, :, u * apart : u * apart + h, v * apart : v * apart + w]
            total += part * d[None, :, u, v, None, None].astype(np.float64)
        inner = np.maximum(total, 0)
        return np.maximum(np.einsum("blhw,ml->bmhw", inner, p.astype(np.float64)), 0)


def conv_inputs(
    rows: int, depth: int, sizes: tuple[int, int, int], width: int
) -> tuple[Array, ...]:
    rng, (b, h, w) = np.random.default_rng(rows + depth), sizes
    shapes = (b, depth, h, w), (depth, width, width), (rows, depth)
    x, d, p = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return x, d, p


@cache
def formed(code: str, variant: Variant) -> Native:
    return native_kernel(parse(code), "avx512", variant)


def served(code: str, sizes: dict[str, int]) -> Iterator[Native]:
    """The kernel in its usual form, and in all that serve these sizes."""
    yield formed(code, "")
    for variant, limits, *_ in code_variants(parse(code), Target.for_isa("avx512")):
        if all(evaluate(n, sizes) <= most for n, most in limits):
            yield formed(code, variant)


def is_right(code: str, arrays: tuple[Array, ...], apart: int = 1, *, at_end: bool = True) -> None:
    x, *_ = arrays
    want, (b, _, h, w) = expected(*arrays, apart), x.shape
    for kernel in served(code, {"b": b, "h": h, "w": w}):
        for one_by_one in (False, True):
            actual = kernel(
                dict(zip("xdp", arrays, strict=True)), at_end=at_end, one_by_one=one_by_one
            )["y"]
            np.testing.assert_allclose(actual, want, rtol=2e-4, atol=2e-4)


def test_rows_are_one_axis_with_and_without_padding() -> None:
    for code in (text(64, 32), text(64, 32, reach=2), text(64, 32, apart=3)):
        (phase,) = program(parse(code)).phases
        assert [*phase.axes] == ["b", "m", "w", "l"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[b,m,h,w] =", "y[b,m,w,h] ="),  # stored across
        ("x[b, l, h, w]", "x[b, l, w, h]"),  # read across
        ("x[b, l, h, w]", "x[b, l, h*2, w] else 0"),  # every second line
        ("h - 1, w + 1] else 0", "h + l - 1, w + 1] else 0"),  # told apart by what is summed too
    ],
)
def test_lines_that_are_no_run_stay(old: str, new: str) -> None:
    code = text(64, 32).replace(old, new)
    assert new in code
    (phase,) = program(parse(code)).phases
    assert {"h", "w"} <= {*phase.axes}


SIZES = (
    (1, 1, 1),
    (1, 1, 40),
    (2, 40, 1),
    (3, 2, 2),
    (1, 7, 7),
    (2, 14, 14),
    (1, 15, 17),
    (1, 16, 16),
    (2, 17, 31),
    (1, 5, 33),
    (1, 3, 100),
)


@pytest.mark.parametrize(("rows", "depth"), [(5, 3), (24, 17), (64, 32), (130, 20), (200, 48)])
@pytest.mark.parametrize("at_end", [False, True])
def test_of_every_size(rows: int, depth: int, at_end: bool) -> None:
    for sizes in SIZES:
        is_right(text(rows, depth), conv_inputs(rows, depth, sizes, 3), at_end=at_end)


@pytest.mark.parametrize(("reach", "apart"), [(2, 1), (1, 2), (1, 20), (2, 3)])
def test_windows_that_reach_beyond_lines(reach: int, apart: int) -> None:
    for sizes in ((1, 3, 5), (2, 14, 14), (1, 9, 21), (1, 33, 18)):
        arrays = conv_inputs(40, 20, sizes, 2 * reach + 1)
        is_right(text(40, 20, reach, apart), arrays, apart)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_line(bad: float) -> None:
    """Places that are margin to a line are read from its neighbours otherwise."""
    for h, w in ((7, 7), (9, 20), (4, 33)):
        x, d, p = conv_inputs(40, 20, (1, h, w), 3)
        x[0, 3, h // 2, -1] = x[0, 5, h // 2, 0] = bad
        with np.errstate(invalid="ignore"):
            is_right(text(40, 20), (x, np.abs(d), np.abs(p)))


def test_a_network_of_any_size() -> None:
    """One program for all images."""
    rng = np.random.default_rng(0)
    d, p = (rng.standard_normal(s).astype(np.float32) for s in ((32, 1, 3, 3), (48, 32, 1, 1)))

    def pair(x: Any) -> Any:
        return sm.nn.relu(sm.nn.conv(sm.nn.relu(sm.nn.conv(x, d, padding=1, groups=32)), p))

    run = sm.jit(pair)
    for b, h, w in (
        (1, 28, 28),
        (2, 13, 29),
        (1, 5, 4),
        (1, 56, 56),
        (3, 16, 1),
        (0, 7, 7),
        (1, 1, 200),
    ):
        x = rng.standard_normal((b, 32, h, w)).astype(np.float32)
        want = expected(x, d[:, 0], p[:, :, 0, 0])
        np.testing.assert_allclose(np.asarray(run(x)), want, rtol=2e-4, atol=2e-4)


def test_indices_are_right_in_rows_of_any_length() -> None:
    """Quotients and remainders of places, which lanes count from the first one on."""
    code = (
        "kernel f(x: f32[b,h,w], p: f32[24,b]) -> y: f32[24,h,w]\n  axis m in 24, h, w, b\n"
        "  grid m, h, w\n  v0 = x[b,h,w - 1] else 0\n  v1 = x[b,h - 1,w] else 0\n"
        "  v2 = v0 - v1\n  v3 = dot(v2, p[m,b] over b)\n  y[m,h,w] = v3"
    )
    rng = np.random.default_rng(1)
    p = rng.integers(-3, 4, (24, 18)).astype(np.float32)
    for h, w in pairs((1, 2, 3, 30), (*range(1, 20), 31, 32, 33, 47, 200)):
        x = rng.integers(-9, 9, (18, h, w)).astype(np.float32)
        left, up = np.zeros_like(x), np.zeros_like(x)
        left[:, :, 1:], up[:, 1:] = x[:, :, :-1], x[:, :-1]
        actual = native(code)({"x": x, "p": p})["y"]
        assert np.array_equal(actual, np.einsum("bhw,mb->mhw", left - up, p)), (h, w)
