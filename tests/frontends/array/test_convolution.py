"""Convolutions, poolings and resizing against loops in float64, and against torch if installed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm
from smelt.errors import ArgumentError, OutOfMemory, OverflowSizeError, ShapeError

PADS = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
    "symmetric": "symmetric",
}


def reference(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None,
    stride: tuple[int, ...],
    around: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    groups: int,
    mode: str,
) -> np.ndarray:
    """One result at a time, in float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    x = np.pad(x, ((0, 0), (0, 0), *around), mode=PADS[mode])  # type: ignore[call-overload]
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    places = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *places))
    inner, each = x.shape[1] // groups, w.shape[0] // groups
    for at in itertools.product(*map(range, places)):
        box = tuple(
            slice(i * s, i * s + r, d)
            for i, s, r, d in zip(at, stride, reach, dilation, strict=True)
        )
        for o in range(w.shape[0]):
            g = o // each
            part = x[(slice(None), slice(g * inner, (g + 1) * inner), *box)]
            out[(slice(None), o, *at)] = (part * w[o]).reshape(x.shape[0], -1).sum(1)
    return out if bias is None else out + bias.reshape(-1, *(1,) * len(places))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A convolution that fits."""
    count = draw(st.integers(1, 3))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    inner, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(count))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(count))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(count))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    most = 9 if count < 3 else 6
    spatial = tuple(draw(st.integers(r, max(most, r))) for r in reach)
    around = tuple(
        (draw(st.integers(0, min(2, n - 1))), draw(st.integers(0, min(2, n - 1)))) for n in spatial
    )
    return {
        "x": (draw(st.integers(1, 2)), groups * inner, *spatial),
        "w": (groups * each, inner, *kernel),
        "stride": stride,
        "padding": around,
        "dilation": dilation,
        "groups": groups,
        "mode": draw(st.sampled_from(list(PADS))),
        "bias": draw(st.booleans()),
        "jit": draw(st.booleans()),
    }


@st.composite
def alone(draw: st.DrawFn) -> dict[str, Any]:
    """A convolution of each channel by itself, with windows of any shape, in either layout."""
    count = draw(st.integers(1, 3))
    channels, most = draw(st.sampled_from((1, 2, 5, 19))), (15, 7, 3)[count - 1]
    kernel = tuple(draw(st.integers(1, most)) for _ in range(count))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(count))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(count))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    spatial = tuple(draw(st.integers(1, (40, 19, 6)[count - 1])) for _ in range(count))
    around = tuple((r // 2, draw(st.integers(r // 2, r))) for r in reach)
    return {
        "x": (draw(st.integers(1, 2)), channels, *spatial),
        "w": (channels, 1, *kernel),
        "stride": stride,
        "padding": around,
        "dilation": dilation,
        "groups": channels,
        "last": draw(st.booleans()),
    }


@settings(max_examples=25, deadline=None)
@given(alone(), st.integers(0, 3))
def test_channels_by_themselves_in_either_layout(case: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(case[k]).astype(np.float32) for k in "xw")
    options = {k: case[k] for k in ("stride", "padding", "dilation", "groups")}
    back = (0, *range(2, x.ndim), 1) if case["last"] else tuple(range(x.ndim))
    there = tuple(np.argsort(back).tolist())

    def run(x: Any, w: Any) -> Any:
        actual = sm.nn.conv(sm.permute_dims(x, there), sm.permute_dims(w, there), **options)
        return sm.permute_dims(actual, back)

    given_ = [np.ascontiguousarray(v.transpose(back)) for v in (x, w)]
    actual = np.asarray(sm.jit(run)(*given_)).transpose(there)
    expected = reference(
        x, w, None, case["stride"], case["padding"], case["dilation"], case["groups"], "zeros"
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=5e-5)


@settings(max_examples=25, deadline=None)
@given(cases(), st.integers(0, 3))
def test_conv_is_the_sum_over_each_window(case: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(case[k]).astype(np.float32) for k in "xw")
    bias = rng.standard_normal(w.shape[0]).astype(np.float32) if case["bias"] else None
    options = {k: case[k] for k in ("stride", "padding", "dilation", "groups", "mode")}

    def run(x: Any, w: Any, b: Any) -> Any:
        return sm.nn.conv(x, w, b, **options)

    actual = np.asarray((sm.jit(run) if case["jit"] else run)(x, w, bias))
    expected = reference(
        x, w, bias, case["stride"], case["padding"], case["dilation"], case["groups"], case["mode"]
    )
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("padding", "more", "dilation"), [(0, 0, 1), (2, 1, 1), (1, 0, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_is_the_adjoint(
    stride: int, padding: int, more: int, dilation: int, groups: int
) -> None:
    """<conv(y), x> = <y, conv_transpose(x)> for all x and y defines it."""
    more = min(more, max(stride, dilation) - 1)
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 4, 4, 3)), rng.standard_normal((4, 3, 3, 4))
    kept = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    actual = np.asarray(sm.nn.conv_transpose(x, w, output_padding=more, **kept))
    sizes = [
        (n - 1) * stride - 2 * padding + dilation * (k - 1) + 1 + more
        for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
    ]
    assert actual.shape == (2, 3 * groups, *sizes)
    y = rng.standard_normal(actual.shape)
    there = reference(
        y,
        w,
        None,
        (stride, stride),
        ((padding, padding),) * 2,
        (dilation, dilation),
        groups,
        "zeros",
    )
    np.testing.assert_allclose((there * x).sum(), (actual * y).sum(), rtol=1e-10)
    np.testing.assert_allclose(
        np.asarray(sm.jit(sm.nn.conv_transpose)(x, w, output_padding=more, **kept)),
        actual,
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x, w = (
        sm.astype(sm.asarray(rng.standard_normal(s)), getattr(sm, dtype))
        for s in ((1, 3, 6, 5), (2, 3, 3, 3))
    )
    actual = sm.nn.conv(x, w, padding=1)
    assert actual.dtype == getattr(sm, dtype)
    wide = [np.asarray(sm.astype(v, sm.float64)) for v in (x, w)]
    expected = reference(*wide, None, (1, 1), ((1, 1),) * 2, (1, 1), 1, "zeros")
    bound = {"float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    difference = np.abs(np.asarray(sm.astype(actual, sm.float64)) - expected)
    assert difference.max() <= bound * np.abs(expected).max()


def pooled(x: np.ndarray, size: int, stride: int, padding: int, what: str) -> np.ndarray:
    fill = {"max": -np.inf, "sum": 0.0}[what]
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return getattr(windows[:, :, ::stride, ::stride], what)((-2, -1))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 2, 0)]
)
def test_pooling(size: int, stride: int, padding: int, jit: bool) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 8, 9)).astype(np.float32)
    options = {"stride": stride, "padding": padding}

    def run(x: Any) -> Any:
        inside = sm.nn.avg_pool(x, size, count_padding=False, **options)
        return sm.nn.max_pool(x, size, **options), sm.nn.avg_pool(x, size, **options), inside

    most, mean, inside = (np.asarray(v) for v in (sm.jit(run) if jit else run)(x))
    np.testing.assert_array_equal(most, pooled(x, size, stride, padding, "max"))
    total = pooled(x, size, stride, padding, "sum")
    counts = pooled(np.ones_like(x), size, stride, padding, "sum")
    np.testing.assert_allclose(mean, total / size**2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inside, total / counts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "kernels"), [((8, 3, 16, 16), 1), ((2, 3, 8, 16, 16), 2)])
def test_what_windows_over_three_axes_read_is_stored(shape: tuple[int, ...], kernels: int) -> None:
    """A convolution is blocked along two axes of places: over three, each place would be a sum."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("f4")
    w = rng.standard_normal((16, 3, *[3] * (x.ndim - 2))).astype("f4")

    def f(x: Any, w: Any) -> Any:
        return sm.nn.max_pool(sm.nn.relu(sm.nn.conv(x, w, padding=1)), 2)

    assert len(sm.explain(f, x, w).kernels) == kernels
    actual = np.asarray(sm.jit(f)(x, w))
    image = np.maximum(np.asarray(sm.nn.conv(x, w, padding=1)), 0)
    halves = [n for s in image.shape[2:] for n in (s // 2, 2)]
    axes = tuple(range(3, 2 * x.ndim - 2, 2))
    expected = image.reshape(*image.shape[:2], *halves).max(axes)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_pooling_of_integers_and_nan() -> None:
    x = np.arange(-6, 6, dtype=np.int32).reshape(1, 1, 12)
    assert np.asarray(sm.nn.max_pool(x, 3, padding=1))[0, 0].tolist() == [-5, -2, 1, 4]
    y = np.array([[[1.0, np.nan, 3.0, 4.0]]])
    assert np.isnan(np.asarray(sm.nn.max_pool(y, 2))[0, 0]).tolist() == [True, False]


@pytest.mark.parametrize("size", [1, 3, 4, 7, (2, 5)])
def test_adaptive_pooling(size: Any) -> None:
    x = np.random.default_rng(4).standard_normal((2, 3, 7, 8))
    goals = size if isinstance(size, tuple) else (size, size)
    for run, fold in ((sm.nn.adaptive_avg_pool, np.mean), (sm.nn.adaptive_max_pool, np.max)):
        expected = x
        for axis, goal in zip((2, 3), goals, strict=True):
            n = x.shape[axis]
            runs = [slice(i * n // goal, -(-(i + 1) * n // goal)) for i in range(goal)]
            lead = (slice(None),) * axis
            expected = np.stack([fold(expected[(*lead, r)], axis=axis) for r in runs], axis)
        np.testing.assert_allclose(np.asarray(run(x, size)), expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            np.asarray(sm.jit(run)(x, size)), expected, rtol=1e-12, atol=1e-14
        )


def test_upsampling_repeats_and_mixes() -> None:
    x = np.arange(6.0).reshape(1, 1, 2, 3)
    twice = np.asarray(sm.nn.upsample(x, scale=2))
    np.testing.assert_array_equal(twice[0, 0], x[0, 0].repeat(2, 0).repeat(2, 1))
    line = np.asarray(sm.nn.upsample(np.array([[[0.0, 1.0, 2.0]]]), 6, mode="linear"))
    np.testing.assert_allclose(line[0, 0], [0, 0.25, 0.75, 1.25, 1.75, 2])
    ends = sm.nn.upsample(np.array([[[0.0, 1.0]]]), 5, mode="linear", align_corners=True)
    np.testing.assert_allclose(np.asarray(ends)[0, 0], [0, 0.25, 0.5, 0.75, 1])
    assert np.asarray(sm.nn.upsample(x, (3, 4))).shape == (1, 1, 3, 4)


WRONG = {
    "channels": (lambda x, w: sm.nn.conv(x, w[:, :2]), r"image has 4 channels.* want 2"),
    "rank": (lambda x, w: sm.nn.conv(x[0], w), "kernels of 1 spatial"),
    "groups": (lambda x, w: sm.nn.conv(x, w[:3, :2], groups=2), "do not fall into 2 groups"),
    "window": (lambda x, w: sm.nn.conv(x, w, dilation=4), r"window over 9 elements .* into the 5"),
    "reflect": (lambda x, w: sm.nn.conv(x, w, padding=6, mode="reflect"), "reach beyond"),
    "pool": (lambda x, w: sm.nn.max_pool(x, 8), "window over 8 elements does not fit"),
    "flat": (lambda x, w: sm.nn.avg_pool(x[0, 0], 2), "no|not"),
    "bias": (lambda x, w: sm.nn.conv(x, w, x), "bias is a vector"),
    "nothing left": (lambda x, w: sm.nn.conv_transpose(x[:, :3], w, padding=6), "cuts off all"),
    "less than nothing": (lambda x, w: sm.nn.conv_transpose(x[:, :3], w, padding=9), "cuts off"),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_shapes_that_do_not_fit(name: str, jit: bool) -> None:
    call, words = WRONG[name]
    x, w = np.ones((1, 4, 5, 7), np.float32), np.ones((3, 4, 3, 3), np.float32)
    run = sm.jit(call) if jit else call
    arrays = (x, w) if jit else (sm.asarray(x), sm.asarray(w))
    with pytest.raises(ShapeError, match=words) as error:
        run(*arrays)
    assert "test_convolution.py" in str(error.value)
    assert "f32[" in str(error.value)


def test_settings_that_make_no_sense() -> None:
    x, w = sm.ones((1, 2, 5)), sm.ones((2, 2, 3))
    for bad in (
        {"stride": 0},
        {"stride": (1, 1)},
        {"padding": -1},
        {"padding": "full"},
        {"dilation": 1.5},
        {"groups": 0},
        {"mode": "mirror"},
    ):
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            sm.nn.conv(x, w, **{"padding": 1, **bad})
    with pytest.raises(ArgumentError, match="output_padding"):
        sm.nn.conv_transpose(x, w, output_padding=1)
    with pytest.raises(ArgumentError, match="half of a window"):
        sm.nn.max_pool(x, 3, padding=2)
    with pytest.raises(ArgumentError, match="size"):
        sm.nn.upsample(x)


def test_sizes_beyond_all_memory() -> None:
    inputs = np.ones((1, 1, 5, 5), np.float32), np.ones((1, 1, 3, 3), np.float32)
    with pytest.raises(OutOfMemory, match="elements"):  # what a recording for all sizes finds out
        sm.jit(lambda x, w: sm.nn.conv(x, w, padding=2**62))(*inputs)
    x, w = sm.ones((1, 1, 5)), sm.ones((1, 1, 3))
    with pytest.raises(OverflowSizeError, match="bytes"):
        sm.nn.conv(x, w, padding=2**61)
    with pytest.raises(OverflowSizeError, match="bytes"):
        sm.nn.upsample(x, scale=2**61)


def test_one_program_for_all_image_sizes() -> None:
    @sm.jit
    def run(x: Any, w: Any) -> Any:
        return sm.nn.max_pool(sm.nn.conv(x, w, padding=1, stride=2), 2)

    w = np.random.default_rng(5).standard_normal((2, 3, 3, 3))
    for n, m in ((8, 9), (12, 16), (21, 10)):
        x = np.random.default_rng(n).standard_normal((1, 3, n, m))
        full = reference(x, w, None, (2, 2), ((1, 1),) * 2, (1, 1), 1, "zeros")
        np.testing.assert_allclose(np.asarray(run(x, w)), pooled(full, 2, 2, 0, "max"))


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 6, 9, 8), (6, 4, 3, 4)))
    image, kernel = torch.from_numpy(x), torch.from_numpy(w)
    pairs = [
        (
            sm.nn.conv_transpose(x, w, stride=2, padding=1, output_padding=1, groups=2),
            functional.conv_transpose2d(
                image, kernel, stride=2, padding=1, output_padding=1, groups=2
            ),
        ),
        (
            sm.nn.avg_pool(x, 3, stride=2, padding=1, ceil=True),
            functional.avg_pool2d(image, 3, 2, 1, ceil_mode=True),
        ),
        (
            sm.nn.max_pool(x, 3, stride=2, ceil=True),
            functional.max_pool2d(image, 3, 2, ceil_mode=True),
        ),
        (sm.nn.upsample(x, scale=1.5), functional.interpolate(image, scale_factor=1.5)),
        (sm.nn.upsample(x, (5, 17)), functional.interpolate(image, size=(5, 17))),
        (
            sm.nn.upsample(x, (5, 17), mode="linear"),
            functional.interpolate(image, size=(5, 17), mode="bilinear"),
        ),
        (
            sm.nn.upsample(x, scale=2, mode="linear", align_corners=True),
            functional.interpolate(image, scale_factor=2, mode="bilinear", align_corners=True),
        ),
    ]
    for actual, expected in pairs:
        np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("form", [sm.nn.conv, sm.nn.conv_transpose])
def test_empty_results(form: Any) -> None:
    x, w = np.ones((2, 4, 8, 8)), np.ones((4, 4, 3, 3))
    for stride in (1, 2):
        actual = sm.jit(lambda x, w, s=stride: form(x, w, stride=s)[:, :, 2:2, 1:3] * 2)(x, w)
        assert actual.shape == (2, 4, 0, 2)
