"""Section D: convolutions with prologues and epilogues.

A convolution reads its image, its kernels and what its epilogue adds once, and writes its result:
no array of windows exists.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.catalogue.harness import EveryRow
from tests.catalogue.rows import Row

import smelt as sm

IMAGE = {"n": 8, "c": 64, "o": 96, "h": 56, "w": 48}
INPUTS = ("T[n,c,h,w]", "T[o,c,3,3]", "T[o]")
CONV = "s*(n*c*h*w + 9*o*c + n*o*h*w)"
"""Bytes of a convolution alone that keeps the image's size."""
PLAIN = {"dtypes": (), "layouts": ()}

# ---- the reference -----------------------------------------------------------------------------


def conv(x, w, *, stride=1, padding=0, dilation=1, groups=1):
    """A convolution in NumPy: windows, then one sum of products."""
    count = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * count))
    reach = [(k - 1) * dilation + 1 for k in w.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, 2 + count)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, stride),) * count)]
    windows = windows[(..., *(slice(None, None, dilation),) * count)]
    windows = windows.reshape(x.shape[0], groups, x.shape[1] // groups, *windows.shape[2:])
    kernels = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y, k = string.ascii_uppercase[:count], string.ascii_lowercase[-count:]
    result = np.einsum(f"bgc{y}{k},goc{k}->bgo{y}", windows, kernels, optimize=True)
    return result.reshape(x.shape[0], w.shape[0], *result.shape[3:])


def relu(x):
    return np.maximum(x, 0)


def along(v, x):
    """A vector along the channels of x."""
    return v.reshape(-1, *(1,) * (x.ndim - 2))


def normal(x, mean, variance, gain, shift):
    mean, variance, gain, shift = (along(v, x) for v in (mean, variance, gain, shift))
    return (x - mean) / np.sqrt(variance + 1e-5) * gain + shift


def group_normal(x, groups):
    split = x.reshape(x.shape[0], groups, x.size // max(x.shape[0] * groups, 1))
    split = split - split.mean(2, keepdims=True)
    result = split / np.sqrt((split * split).mean(2, keepdims=True) + 1e-5)
    return result.reshape(x.shape)


# ---- rows --------------------------------------------------------------------------------------


def biased(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """relu(conv(x, w) + b), in Smelt and in NumPy."""

    def code(xp: Any, x: Any, w: Any, b: Any) -> Any:
        return xp.nn.relu(xp.nn.conv(x, w, b, **options))

    def reference(x: Any, w: Any, b: Any) -> Any:
        result = conv(x, w, **options)
        return relu(result + along(b, result))

    return code, reference


def row(name: str, code: Any, inputs: Any, sizes: Any, **more: Any) -> Row:
    """A row whose code and reference come as a pair."""
    return Row(name, code[0], inputs, sizes, reference=code[1], **(PLAIN | more))


def formulas(out: str, image: str = "n*c*h*w", kernel: str = "9*o*c") -> dict[str, str]:
    """Bytes of relu(conv + b) in one kernel, and of the three operators."""
    return {
        "fused": f"s*({image} + {kernel} + o + {out})",
        "unfused": f"s*({image} + {kernel} + o + 5*{out})",
    }


def residual(xp: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    return xp.nn.relu(xp.nn.conv(x, w, b, padding=1) + r)


def normed(xp: Any, x: Any, w: Any, *parameters: Any) -> Any:
    return xp.nn.relu(xp.nn.batch_norm(xp.nn.conv(x, w, padding=1), *parameters))


def separable(xp: Any, x: Any, d: Any, a: Any, p: Any, b: Any) -> Any:
    inner = xp.nn.relu(xp.nn.conv(x, d, a, padding=1, groups=64))
    return xp.nn.relu(xp.nn.conv(inner, p, b))


def separable_reference(x: Any, d: Any, a: Any, p: Any, b: Any) -> Any:
    inner = conv(x, d, padding=1, groups=64)
    inner = conv(relu(inner + along(a, inner)), p)
    return relu(inner + along(b, inner))


def pooled(xp: Any, x: Any, w: Any) -> Any:
    return xp.nn.max_pool(xp.nn.relu(xp.nn.conv(x, w, padding=1)), 2)


def pooled_reference(x: Any, w: Any) -> Any:
    y = relu(conv(x, w, padding=1))
    windows = np.lib.stride_tricks.sliding_window_view(y, (2, 2), (2, 3))
    return windows[:, :, ::2, ::2].max((-2, -1))


def enlarged(xp: Any, x: Any, w: Any) -> Any:
    return xp.nn.conv(xp.nn.upsample(x, scale=2), w, padding=1)


def block(xp: Any, x: Any, w: Any) -> Any:
    return xp.nn.conv(xp.nn.silu(xp.nn.group_norm(x, 4)), w, padding=1)


def block_reference(x: Any, w: Any) -> Any:
    y = group_normal(x, 4)
    return conv(y / (1 + np.exp(-y)), w, padding=1)


def averaged(xp: Any, x: Any, w: Any) -> Any:
    return xp.nn.avg_pool(xp.nn.relu(xp.nn.conv(x, w, padding=1)), 2)


def averaged_reference(x: Any, w: Any) -> Any:
    y = relu(conv(x, w, padding=1))
    windows = np.lib.stride_tricks.sliding_window_view(y, (2, 2), (2, 3))
    return windows[:, :, ::2, ::2].mean((-2, -1))


HALF = "((h + 1)//2)*((w + 1)//2)"
ROWS = (
    row("D1", biased(padding=1), INPUTS, IMAGE, dtypes=("f64",), layouts=("stepped", "turned"),
        **formulas("n*o*h*w")),
    row("D1 strided", biased(padding=1, stride=2), INPUTS, IMAGE, **formulas(f"n*o*{HALF}")),
    row("D1 dilated", biased(padding=2, dilation=2), INPUTS, IMAGE, **formulas("n*o*h*w")),
    row("D1 1x1", biased(), ("T[n,c,h,w]", "T[o,c,1,1]", "T[o]"), IMAGE,
        **formulas("n*o*h*w", kernel="o*c")),
    row("D1 line", biased(padding=1), ("T[n,c,h]", "T[o,c,3]", "T[o]"),
        {"n": 8, "c": 64, "o": 96, "h": 4096}, **formulas("n*o*h", "n*c*h", "3*o*c")),
    row("D1 space", biased(padding=1), ("T[n,c,t,h,w]", "T[o,c,3,3,3]", "T[o]"),
        {"n": 2, "c": 16, "o": 32, "t": 8, "h": 28, "w": 32}, fixed=("n",),
        **formulas("n*o*t*h*w", "n*c*t*h*w", "27*o*c")),
    row("D1 residual", (residual, lambda x, w, b, r: relu(
            conv(x, w, padding=1) + along(b, x) + r)), (*INPUTS, "T[n,o,h,w]"), IMAGE,
        fused="s*(n*c*h*w + 9*o*c + o + 2*n*o*h*w)",
        unfused="s*(n*c*h*w + 9*o*c + o + 8*n*o*h*w)"),
    row("D2", (normed, lambda x, w, *p: relu(normal(conv(x, w, padding=1), *p))),
        ("T[n,c,h,w]", "T[o,c,3,3]", "T[o]", "T[o] > 0", "T[o]", "T[o]"), IMAGE,
        dtypes=("f64",),
        fused="s*(n*c*h*w + 9*o*c + 4*o + n*o*h*w)",
        unfused="s*(n*c*h*w + 9*o*c + 8*o + 11*n*o*h*w)"),
    # Rows that fill tiles: with others two kernels are faster (`fusion/test_contraction_cost.py`).
    row("D3", (separable, separable_reference),
        ("T[n,64,h,w]", "T[64,1,3,3]", "T[64]", "T[o,64,1,1]", "T[o]"),
        {"n": 8, "o": 96, "h": 56, "w": 64}, dtypes=("f64",),
        fused="s*(64*n*h*w + 640 + 64*o + o + n*o*h*w)",
        unfused="s*(7*64*n*h*w + 640 + 64*o + o + 5*n*o*h*w)"),
    row("D4", (lambda xp, x, w: xp.nn.conv(x, w, padding=1, groups=4),
               lambda x, w: conv(x, w, padding=1, groups=4)),
        ("T[n,4*c,h,w]", "T[4*o,c,3,3]"), {"n": 8, "c": 16, "o": 24, "h": 56, "w": 48},
        dtypes=("f64",), fused="s*4*(n*c*h*w + 9*o*c + n*o*h*w)",
        unfused="s*4*(n*c*h*w + 9*o*c + 3*n*o*h*w)"),
    row("D4 line", (lambda xp, x, w: xp.nn.conv(x, w, groups=4), lambda x, w: conv(x, w, groups=4)),
        ("T[n,4*c,t]", "T[4*o,c,1]"), {"n": 8, "c": 192, "o": 192, "t": 128},
        dtypes=("f64",), fused="s*4*(n*c*t + o*c + n*o*t)",
        unfused="s*4*(n*c*t + o*c + 3*n*o*t)"),
    row("D5 pool", (pooled, pooled_reference), INPUTS[:2], IMAGE, dtypes=(), layouts=(),
        multiples={"h": 2, "w": 2},
        fused="s*(n*c*h*w + 9*o*c + n*o*h*w//4)",
        unfused="s*(n*c*h*w + 9*o*c + 4*n*o*h*w + n*o*h*w//4)"),
    row("D5 average", (averaged, averaged_reference), INPUTS[:2], IMAGE, dtypes=(), layouts=(),
        multiples={"h": 2, "w": 2},
        fused="s*(n*c*h*w + 9*o*c + n*o*h*w//4)",
        unfused="s*(n*c*h*w + 9*o*c + 4*n*o*h*w + 3*n*o*h*w//4)"),
    row("D5 upsample", (enlarged, lambda x, w: conv(
            x.repeat(2, 2).repeat(2, 3), w, padding=1)), INPUTS[:2], IMAGE,
        bounded=True,
        fused="s*(n*c*h*w + 9*o*c + 4*n*o*h*w)", unfused="s*(n*c*h*w + 9*o*c + 4*n*o*h*w)"),
    row("D6", (block, block_reference), ("T[n,4*c,h,w]", "T[o,4*c,3,3]"),
        {"n": 8, "c": 16, "o": 96, "h": 56, "w": 48}, kernels=2, dtypes=(), layouts=(),
        stored=("mul",), fused="s*(3*4*n*c*h*w + 36*o*c + n*o*h*w)",
        unfused="s*(14*4*n*c*h*w + 48*n + 36*o*c + n*o*h*w)"),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section D."""


def chain(x: Any, w: Any, v: Any, *, last: bool) -> Any:
    """Two convolutions with a ReLU between, in either order of channels."""
    transposed, back = ((0, 3, 1, 2), (0, 2, 3, 1)) if last else ((0, 1, 2, 3), (0, 1, 2, 3))
    for k in (w, v):
        x = sm.permute_dims(x, transposed)
        x = sm.permute_dims(sm.nn.relu(sm.nn.conv(x, k, padding=1)), back)
    return x


def test_d7_no_order_is_converted() -> None:
    """D7: the order of channels stays what the code says, which is as good inside of a chain as any
    other: whatever is packed for a product is packed anyway.  Measured layer by layer, ResNet-18
    would gain 3 % before anything is converted (`docs/convolutions.md`)."""
    rng = np.random.default_rng(3)
    x, w, v = (
        rng.standard_normal(s).astype(np.float32)
        for s in ((2, 16, 20, 24), (32, 16, 3, 3), (16, 32, 3, 3))
    )
    expected = relu(conv(relu(conv(x, w, padding=1)), v, padding=1))
    most = 64 * np.finfo(np.float32).eps * expected.max()
    for last in (False, True):
        run = sm.jit(lambda x, w, v, last=last: chain(x, w, v, last=last))
        order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
        image = np.ascontiguousarray(x.transpose(order))
        np.testing.assert_allclose(
            np.asarray(run(image, w, v)), expected.transpose(order), rtol=0, atol=most
        )
        report = sm.explain(run, image, w, v)
        assert len(report.kernels) == 2, "no kernel turns an array"
        assert report.kernels[0].text.count("dot(") == report.kernels[1].text.count("dot(") == 1


def test_a_part_of_a_convolution_is_all_that_is_computed() -> None:
    """What is cut off, as a transposed convolution's padding, is neither computed nor stored."""
    rng = np.random.default_rng(4)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 6, 9, 11), (6, 4, 3, 3)))
    run = sm.jit(lambda x, w: sm.nn.conv_transpose(x, w, padding=1))
    expected = conv(x, w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3), padding=1)
    np.testing.assert_allclose(np.asarray(run(x, w)), expected, rtol=0, atol=1e-4)
    assert len(sm.explain(run, x, w).kernels) == 1
    odd = sm.jit(lambda x, w: sm.nn.conv(x, w, padding=1)[:, 1:, ::2, 1:-1])
    expected = conv(x, w.transpose(1, 0, 2, 3), padding=1)[:, 1:, ::2, 1:-1]
    actual = np.asarray(odd(x, np.ascontiguousarray(w.transpose(1, 0, 2, 3))))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
