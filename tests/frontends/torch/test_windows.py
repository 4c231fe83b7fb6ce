"""Training over windows: gradients of convolutions, and where the greatest of a window is."""

from __future__ import annotations

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
    "points with a margin": ((2, 6, 7, 8), (4, 6, 1, 1), {"padding": 1}, 1),
    "one image, one channel": ((1, 1, 5, 5), (1, 1, 1, 1), {}, 0),
    "single channels": ((2, 5, 9, 8), (5, 1, 5, 3), {"groups": 5, "padding": (2, 1)}, 0),
    "single channels, dilated": (
        (2, 3, 13, 14), (3, 1, 5, 5), {"groups": 3, "padding": 3, "dilation": 2}, 0,
    ),
    "single channels, apart": ((2, 3, 9, 8), (3, 1, 5, 5), {"groups": 3, "stride": 2}, 1),
    "single channels, few taps": ((2, 3, 9, 8), (3, 1, 3, 3), {"groups": 3, "padding": 1}, 1),
    "a wide margin": ((2, 3, 6, 6), (3, 1, 4, 4), {"groups": 3, "padding": 4}, 1),
    "two outputs a channel": ((2, 3, 9, 8), (6, 1, 5, 5), {"groups": 3, "padding": 2}, 2),
    "several channels": ((2, 3, 9, 8), (6, 3, 3, 3), {"padding": 1}, 2),
}  # fmt: skip


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
        found = run(compiled(f))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert [x.operator for x in r.left] == ["aten.convolution_backward.default"] * calls


def test_an_image_that_needs_no_gradient_gets_none():
    x, w = randn(2, 3, 5, 5), randn(4, 3, 1, 1).requires_grad_()
    compiled(lambda x, w: F.conv2d(x, w).square().sum())(x, w).backward()
    v = w.detach().clone().requires_grad_()
    F.conv2d(x, v).square().sum().backward()
    torch.testing.assert_close(w.grad, v.grad)


POOLS = [
    ((2, 3, 6, 8), (2,), {}), ((2, 3, 9, 9), (3, 2), {"padding": 1}),
    ((3, 9, 9), (3, 1), {"padding": 1}), ((1, 2, 10, 11), (3, 2), {"ceil_mode": True}),
    ((2, 3, 9, 9), (3, 2), {"padding": 1, "dilation": 2}), ((2, 3, 9, 9), (2, 3), {}),
    ((1, 1, 4, 7), ((1, 3), 1), {}), ((1, 2, 6, 6, 6), (2,), {}), ((2, 3, 8, 8), (6, 1), {}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "windows", "options"), POOLS)
def test_the_place_of_the_greatest(shape, windows, options):
    """Of equals the first, of NaN the last, and none of the margin."""
    pool = F.max_pool3d if len(shape) == 5 else F.max_pool2d
    f = lambda x: pool(x + 0, *windows, **options, return_indices=True)  # noqa: E731
    fast = compiled(f)
    x = randn(*shape).round(decimals=0)
    low, unknown = x.clone(), x.clone()
    low[..., :4, :4] = -torch.inf
    unknown[..., 1:3, 2:4] = torch.nan
    for given in (x, low, unknown, -x.abs()):
        for got, want in zip(fast(given), f(given), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_a_pooling_in_training_is_ours():
    def run(call):
        x = randn(2, 3, 8, 8).requires_grad_()
        call(x).backward()
        return x.grad

    scale = randn(4)
    f = lambda x: (F.max_pool2d(x.relu(), 2) * scale).sum()  # noqa: E731
    with smelt.torch.record() as r:
        found = run(compiled(f))
    torch.testing.assert_close(found, run(f))
    assert [x.operator for x in r.left] == ["aten.max_pool2d_with_indices_backward.default"]


# (shape, axis, extent, step): steps that divide a window and do not, gaps, a rest behind the last
SLID = [
    ((4, 33), 1, 8, 4), ((4, 33), 1, 8, 3), ((33, 4), 0, 8, 8), ((33, 4, 2), 0, 5, 1),
    ((3, 40), 1, 4, 7), ((7,), 0, 7, 2), ((2, 20, 3), 1, 1, 3), ((12, 3), -1, 3, 1),
]  # fmt: skip


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
        found = run(compiled(f))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert not r.left


@pytest.mark.parametrize("places", [3, 8, 12])
def test_windows_laid_back_are_cut_and_filled_up(places):
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
        found = compiled(f)(x)
    torch.testing.assert_close(found, f(x), rtol=1e-13, atol=1e-13)
    assert len(r.left) < 8
