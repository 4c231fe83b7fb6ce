"""Training over windows: gradients of convolutions and of max pooling."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled  # noqa: E402

import smelt.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")
F = torch.nn.functional


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


# name: (images, weights, options of F.conv, calls of torch for gradients)
CONVOLUTIONS = {
    "points": ((2, 6, 5, 7), (4, 6, 1, 1), {}, 0),
    "points in groups": ((3, 6, 5, 4), (8, 3, 1, 1), {"groups": 2}, 0),
    "points of a line": ((2, 3, 11), (5, 3, 1), {}, 0),
    "points of a body": ((2, 3, 2, 3, 4), (5, 3, 1, 1, 1), {"stride": (1, 2, 1)}, 0),
    "points apart": ((2, 6, 7, 8), (4, 6, 1, 1), {"stride": (3, 2)}, 0),
    "points with a margin": ((2, 6, 7, 8), (4, 6, 1, 1), {"padding": 1}, 0),
    "one image, one channel": ((1, 1, 5, 5), (1, 1, 1, 1), {}, 0),
    "single channels": ((2, 5, 9, 8), (5, 1, 5, 3), {"groups": 5, "padding": (2, 1)}, 0),
    "single channels, dilated": (
        (2, 3, 13, 14),
        (3, 1, 5, 5),
        {"groups": 3, "padding": 3, "dilation": 2},
        0,
    ),
    "single channels, apart": ((2, 3, 9, 8), (3, 1, 5, 5), {"groups": 3, "stride": 2}, 1),
    "single channels, few taps": ((2, 3, 9, 8), (3, 1, 3, 3), {"groups": 3, "padding": 1}, 1),
    "single channels of a line": ((2, 6, 11), (6, 1, 4), {"groups": 6, "padding": 3}, 0),
    "single channels of a line, apart": (
        (2, 3, 13),
        (3, 1, 3),
        {"groups": 3, "stride": 2, "padding": 1},
        0,
    ),
    "single channels of a line, dilated": (
        (3, 2, 13),
        (2, 1, 3),
        {"groups": 2, "dilation": 3, "padding": 6},
        0,
    ),
    "a wide margin": ((2, 3, 6, 6), (3, 1, 4, 4), {"groups": 3, "padding": 4}, 0),
    "two outputs a channel": ((2, 3, 9, 8), (6, 1, 5, 5), {"groups": 3, "padding": 2}, 1),
    "several channels of a group": ((2, 6, 9, 8), (4, 3, 3, 3), {"groups": 2, "padding": 1}, 1),
    "lines": ((2, 3, 11), (6, 3, 5), {"padding": 2, "dilation": 2}, 1),
    "lines, apart": ((2, 3, 18), (6, 3, 5), {"padding": 1, "stride": 3}, 1),
    "lines, far apart": ((2, 3, 24), (6, 3, 11), {"stride": 9}, 2),
    "several channels": ((2, 3, 9, 8), (6, 3, 3, 3), {"padding": 1}, 2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions(name):
    shape, taps, options, calls = CONVOLUTIONS[name]
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape) - 2]

    def f(x, w, b):
        y = conv(x, w, b, **options)
        return (y * y.sin()).sum()

    def run(call):
        leaves = [x.requires_grad_() for x in (randn(*shape), randn(*taps, seed=1), randn(taps[0]))]
        call(*leaves).backward()
        return [x.grad for x in leaves]

    expected = run(f)
    with smelt.torch.record() as r:
        actual = run(compiled(f))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert [x.operator for x in r.left] == ["aten.convolution_backward.default"] * calls


@pytest.mark.parametrize(
    ("shape", "taps", "options"),
    [
        ((2, 4, 5, 4), (4, 3, 2, 2), {"stride": 2}),
        ((2, 4, 7), (4, 3, 4), {"stride": 2, "padding": 1, "groups": 2, "output_padding": 1}),
    ],
)
def test_images_of_transposed_convolutions(shape, taps, options):
    """Their gradients are convolutions; those of weights are torch's."""
    conv = F.conv_transpose2d if len(shape) == 4 else F.conv_transpose1d

    def gradients(call):
        leaves = [randn(*shape).requires_grad_(), randn(*taps, seed=1).requires_grad_()]
        call(*leaves).backward()
        return [x.grad for x in leaves]

    def f(x, w):
        return conv(x, w, **options).sin().sum()

    expected = gradients(f)
    with smelt.torch.record() as r:
        actual = gradients(compiled(f))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert sum(x.operator == "aten.convolution_backward.default" for x in r.left) == 1


def test_an_image_that_needs_no_gradient_gets_none():
    x, w = randn(2, 3, 5, 5), randn(4, 3, 1, 1).requires_grad_()
    compiled(lambda x, w: F.conv2d(x, w).square().sum())(x, w).backward()
    v = w.detach().clone().requires_grad_()
    F.conv2d(x, v).square().sum().backward()
    torch.testing.assert_close(w.grad, v.grad)


POOLS = [
    ((2, 3, 6, 8), (2,), {}),
    ((2, 3, 9, 9), (3, 2), {"padding": 1}),
    ((3, 9, 9), (3, 1), {"padding": 1}),
    ((1, 2, 10, 11), (3, 2), {"ceil_mode": True}),
    ((2, 3, 9, 9), (3, 2), {"padding": 1, "dilation": 2}),
    ((2, 3, 9, 9), (2, 3), {}),
    ((1, 1, 4, 7), ((1, 3), 1), {}),
    ((1, 2, 6, 6, 6), (2,), {}),
    ((2, 3, 8, 8), (6, 1), {}),
]


@pytest.mark.parametrize(("shape", "windows", "options"), POOLS)
def test_the_index_of_the_maximum(shape, windows, options):
    """Of equals the first, of NaN the last, and none of the margin."""
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d
    f = lambda x: pool(x + 0, *windows, **options, return_indices=True)  # noqa: E731
    fast = compiled(f)
    x = randn(*shape).round(decimals=0)
    low, unknown = x.clone(), x.clone()
    low[..., :4, :4] = -torch.inf
    unknown[..., 1:3, 2:4] = torch.nan
    for inputs in (x, low, unknown, -x.abs()):
        for got, want in zip(fast(inputs), f(inputs), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


def weighed(f, x, *more):
    """Gradients of x and of what else is given, of which each element counts differently."""
    leaves = [x.clone().requires_grad_(), *(y.clone().requires_grad_() for y in more)]
    y = f(*leaves)
    (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def agree(f, calls, *leaves):
    expected = weighed(f, *leaves)
    with smelt.torch.record() as r:
        actual = weighed(compiled(f), *leaves)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert list(map(strides, actual)) == list(map(strides, expected))
    assert sorted(x.operator for x in r.left) == sorted(calls)


def strides(x):
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


@pytest.mark.parametrize(("shape", "windows", "options"), POOLS)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
def test_gradients_of_the_greatest(shape, windows, options, last):
    """Ours where no element stands in two windows.  Of equals one is chosen, as eager code does."""
    n = len(shape) - 2 if len(shape) > 3 else 2
    pool = F.max_pool3d if n == 3 else F.max_pool2d
    size, step = (windows * 2)[:2]
    each = [(v, v) if isinstance(v, int) else v for v in (size, step, options.get("dilation", 1))]
    apart = all((k - 1) * d < s or k == 1 for k, s, d in zip(*each, strict=True))
    name = f"aten.max_pool{n}d_with_indices"
    calls = [] if apart else [f"{name}_backward.default"]
    x = randn(*shape).round(decimals=0)
    if last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    calls += [f"{name}.default"] if size == 6 else []
    agree(lambda x: pool(x * 2, *windows, **options), calls, x)


def test_a_pooling_in_training_is_ours():
    scale = randn(4)
    agree(lambda x: F.max_pool2d(x.relu(), 2) * scale, [], randn(2, 3, 8, 8))


AVERAGES = [
    ((2, 3, 6, 8), (2,)),
    ((2, 3, 9, 9), (3, 2, 1)),
    ((3, 9, 9), (3, 1, 1)),
    ((1, 2, 10, 11), (3, 2, 0, True)),
    ((1, 2, 10, 11), (3, 2, 1, True)),
    ((2, 3, 9, 9), (2, 3)),
    ((2, 3, 9, 11), ((3, 2), (2, 1), (1, 0))),
    ((1, 2, 6, 6, 7), (2, 2, 1, True)),
]


@pytest.mark.parametrize(
    ("shape", "windows", "margin", "divisor"),
    [
        (*a, *d)
        for k, a in enumerate(AVERAGES)
        for d in ((True, None), (False, None), (k % 2 == 0, 5))
    ],
)
def test_averages_and_their_gradients(shape, windows, margin, divisor):
    pool = F.avg_pool3d if len(shape) == 5 else F.avg_pool2d

    def f(x):
        return pool(x * 2, *windows, count_include_pad=margin, divisor_override=divisor)

    agree(f, [], randn(*shape))
    if len(shape) == 4:
        agree(f, [], randn(*shape).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 8, 8), 4),
        ((2, 3, 7, 10), (3, 4)),
        ((2, 3, 3, 4), (7, 8)),
        ((2, 3, 5), 2),
        ((2, 3, 5, 6, 7), (2, 3, 4)),
        ((3, 7, 7), 1),
        ((2, 1, 1, 1), 3),
    ],
)
def test_averages_over_windows_of_different_sizes(shape, size):
    pool = {3: F.adaptive_avg_pool1d, 5: F.adaptive_avg_pool3d}.get(len(shape))
    if len(shape) == 4 or shape[1:] == (7, 7):
        pool = F.adaptive_avg_pool2d
    agree(lambda x: pool(x * 2, size), [], randn(*shape))


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("margins", [(1, 2), (0, 3), (4, 0)], ids=str)
def test_gradients_of_padding(mode, count, margins):
    agree(lambda x: F.pad(x * 2, margins * count, mode=mode), [], randn(2, 3, *[5] * count))


def test_a_sum_over_images_is_not_split_along_contiguous_channels():
    """64 parts of 64 channels would read every line of memory 16 times over."""
    x = randn(8, 64, 16, 16).float().contiguous(memory_format=torch.channels_last)
    with smelt.torch.record() as r:
        compiled(lambda x: (F.max_pool2d(x.relu(), 2).square().sum(), x.relu()))(x)
    (split,) = re.findall(r"split\((\w), \d+\)", "".join(k.text for k in r.kernels))
    read = re.search(r"= x\w*\[(.*?)\]", "".join(k.text for k in r.kernels)).group(1)
    assert split != read.split(",")[-1].strip()


SLIDING = {
    "max": lambda x: F.max_pool2d(x * 2, 2),
    "apart": lambda x: F.max_pool2d(x * 2, 2, 3),
    "margin": lambda x: F.max_pool2d(x * 2, 2, 2, 1),
    "avg": lambda x: F.avg_pool2d(x * 2, 2),
    "overlap": lambda x: F.avg_pool2d(x * 2, 3, 2, 1),
    "inside": lambda x: F.avg_pool2d(x * 2, 3, 2, 1, count_include_pad=False),
    "replicate": lambda x: F.pad(x * 2, (1, 2, 1, 0), mode="replicate"),
    "reflect": lambda x: F.pad(x * 2, (1, 2, 1, 0), mode="reflect"),
    "whole": lambda x: F.adaptive_avg_pool2d(x * 2, 1),
}


@pytest.mark.parametrize("name", SLIDING)
def test_gradients_over_images_of_any_size(name):
    fast = compiled(SLIDING[name], dynamic=True)
    with smelt.torch.record() as r:
        for shape in ((2, 3, 8, 9), (2, 3, 11, 7), (3, 2, 6, 6)):
            actual = weighed(fast, randn(*shape))
            torch.testing.assert_close(actual, weighed(SLIDING[name], randn(*shape)))
    assert not r.left
    assert len(r.graphs) == 2


# (shape, axis, extent, step): steps that divide a window and do not, gaps, a rest behind the last
SLID = [
    ((4, 33), 1, 8, 4),
    ((4, 33), 1, 8, 3),
    ((33, 4), 0, 8, 8),
    ((33, 4, 2), 0, 5, 1),
    ((3, 40), 1, 4, 7),
    ((7,), 0, 7, 2),
    ((2, 20, 3), 1, 1, 3),
    ((12, 3), -1, 3, 1),
]


@pytest.mark.parametrize("case", SLID, ids=str)
def test_windows_along_an_axis_and_their_gradient(case):
    shape, *windows = case

    def run(call):
        x = randn(*shape).requires_grad_()
        y = call(x)
        (y * torch.arange(y.numel()).reshape(y.shape)).sum().backward()
        return y.detach(), x.grad

    def f(x):
        return x.unfold(*windows) * 2

    expected = run(f)
    with smelt.torch.record() as r:
        actual = run(compiled(f))
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    assert not r.left


@pytest.mark.parametrize("places", [3, 8, 12])
def test_folded_windows_are_cropped_and_padded(places):
    """torch takes fewer windows than there is room for, and more."""
    g = randn(2, places, 6)

    def f(g):
        return torch.ops.aten.unfold_backward(g * 2, [2, 20], 1, 6, 2)

    torch.testing.assert_close(compiled(f)(g), f(g), rtol=1e-13, atol=1e-13)


def test_a_spectrum_and_back_is_overlap_and_sum():
    """The frames of a short-time transform come from one graph, and go into one."""
    x, w = randn(2, 400), torch.hann_window(32, dtype=torch.float64)

    def f(x):
        s = torch.stft(x, 32, 8, window=w, return_complex=True)
        return torch.istft(s, 32, 8, window=w, length=400) * 2

    with smelt.torch.record() as r:
        actual = compiled(f)(x)
    torch.testing.assert_close(actual, f(x), rtol=1e-13, atol=1e-13)
    assert len(r.left) < 8
