"""Gradients of resized images are one call of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import smelt.torch  # noqa: E402
from smelt.frontends.torch.record import record  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")
F = torch.nn.functional
SPACES = {
    "nearest": 3,
    "nearest-exact": 3,
    "linear": 1,
    "bilinear": 2,
    "trilinear": 3,
    "bicubic": 2,
}


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def gradients(call, x, grad_of=torch.cos):
    x = x.detach().requires_grad_()
    y = call(x)
    return y, torch.autograd.grad(y, x, grad_of(y.detach()))[0]


CASES = {
    **{
        f"{mode}, sizes": (mode, axes, {"size": (7, 5, 11)[:axes]}) for mode, axes in SPACES.items()
    },
    **{
        f"{mode}, factors": (mode, axes, {"scale_factor": (1.7, 0.6, 2.0)[:axes]})
        for mode, axes in SPACES.items()
    },
    "nearest of a line": ("nearest", 1, {"scale_factor": 3}),
    "nearest of an image": ("nearest", 2, {"scale_factor": 2.0}),
    "exact of an image": ("nearest-exact", 2, {"size": 5}),
    "corners": ("bilinear", 2, {"size": (9, 4), "align_corners": True}),
    "factors found again": (
        "bilinear",
        2,
        {"scale_factor": 1.7, "recompute_scale_factor": True},
    ),
    "to one": ("bicubic", 2, {"size": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_torchs_own(name):
    mode, axes, options = CASES[name]
    x = randn(2, 3, *(4, 9, 5)[:axes]).double()

    def f(x):
        return F.interpolate(input=x.sin(), mode=mode, **options)

    with record() as recorded:
        y, grad = gradients(torch.compile(f, backend="smelt"), x)
    want, wanted = gradients(f, x)
    # Weights are rounded to float32 in torch's parts of a linear step, and not in the step itself.
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad, wanted, rtol=1e-5, atol=1e-5)
    assert len(recorded.left) == 1, recorded


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_layout_of_the_gradient_is_torchs(mode):
    x = randn(2, 5, 6, 7).to(memory_format=torch.channels_last)

    def f(x):
        return F.interpolate(x, scale_factor=2, mode=mode)

    _, grad = gradients(torch.compile(f, backend="smelt"), x)
    _, wanted = gradients(f, x)
    torch.testing.assert_close(grad, wanted)
    assert grad.stride() == wanted.stride()


def test_layout_of_a_gradient_that_kernels_read():
    x = randn(2, 5, 6, 7).to(memory_format=torch.channels_last)

    def f(x):
        return F.interpolate(x * x, scale_factor=2, mode="nearest").permute(0, 2, 3, 1)

    _, grad = gradients(torch.compile(f, backend="smelt"), x)
    torch.testing.assert_close(grad, gradients(f, x)[1])


def test_other_sizes_are_not_traced_again():
    seen = CompileCounterWithBackend("smelt")

    def f(x):
        return F.interpolate(x, size=(x.shape[2] + 3, 2 * x.shape[3]), mode="bicubic")

    call = torch.compile(f, backend=seen, dynamic=True)
    for n in (8, 11, 14):
        x = randn(2, 3, n, n + 1)
        torch.testing.assert_close(gradients(call, x)[1], gradients(f, x)[1])
    assert seen.frame_count == 1


def test_autocast_and_half_types():
    x = randn(2, 3, 6, 7)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.interpolate(x, scale_factor=2, mode="bilinear")

    for inputs in (x, x.bfloat16()):
        torch._dynamo.reset()
        y, grad = gradients(torch.compile(f, backend="smelt"), inputs)
        want, wanted = gradients(f, inputs)
        assert (y.dtype, grad.dtype) == (want.dtype, wanted.dtype)
        # A step of bfloat16 in the result moves the gradient that starts from it.
        tolerance = 2**-6 if inputs.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(y, want, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(grad, wanted, rtol=tolerance, atol=4 * tolerance)


def test_transforms_of_functions_keep_the_parts():
    x = randn(3, 2, 4, 5)

    def loss(x):
        return F.interpolate(x[None], scale_factor=2, mode="bilinear").square().sum()

    def f(x):
        return torch.vmap(torch.func.grad(loss))(x)

    torch.testing.assert_close(torch.compile(f, backend="smelt")(x), f(x))


def test_without_gradients_nothing_is_left():
    def f(x):
        return F.interpolate(x, scale_factor=2, mode="bicubic").cos()

    with torch.no_grad():
        actual = smelt.torch.explain(f, randn(1, 2, 5, 6))
    assert not actual.left


@pytest.mark.parametrize("size", [(2, 1, 5, 6), (2, 1, 3, 5, 6)])
def test_gradients_of_affine_grids_for_every_batch(size):
    """torch's own way back takes no sizes but numbers."""

    def f(theta, image):
        grid = F.affine_grid(theta, image.shape, align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)

    fast = torch.compile(f, backend="smelt")
    for batch in (2, 3, 4):
        image = randn(batch, *size[1:])
        space = len(size) - 2
        theta = (randn(batch, space, space + 1) * 0.2).double()
        got = gradients(lambda t, image=image: fast(t, image.double()), theta)
        want = gradients(lambda t, image=image: f(t, image.double()), theta)
        torch.testing.assert_close(got, want)
