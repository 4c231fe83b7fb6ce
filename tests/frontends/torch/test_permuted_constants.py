"""Parameters with permuted memory order are constants like any other."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from smelt import config  # noqa: E402 - torch may be missing
from smelt.runtime import prelude  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    prelude.clear()
    torch.manual_seed(3)
    with config(constants_extra=None):  # else small programs have no room for them
        yield
    torch._dynamo.reset()


class TransposedLinear(torch.nn.Module):
    """A linear layer whose weight lies by columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(200, 256).t())

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


def convolution():
    built = torch.nn.Conv2d(64, 64, 3, padding=1).eval().to(memory_format=torch.channels_last)
    return built, torch.randn(2, 64, 14, 14).to(memory_format=torch.channels_last)


def linear():
    return TransposedLinear().eval(), torch.randn(300, 200)


def agrees(f, m, inputs) -> None:
    with torch.no_grad():
        actual, expected = f(inputs), m(inputs)
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-4)
    if isinstance(actual, torch.Tensor):
        assert actual.stride() == expected.stride()


@pytest.mark.parametrize("case", [convolution, linear])
def test_packed_once_and_read_by_later_calls(case):
    m, inputs = case()
    f = torch.compile(m, backend="smelt")
    agrees(f, m, inputs)
    assert prelude.held_bytes() == -(-m.weight.numel() // 32) * 32 * 4
    built = [h.array.ctypes.data for h in prelude._HELD.values()]
    for _ in range(3):
        agrees(f, m, inputs)
    assert [h.array.ctypes.data for h in prelude._HELD.values()] == built
    del m, f
    torch._dynamo.reset()
    gc.collect()
    assert prelude.held_bytes() == 0


def _add(m) -> None:
    m.weight.add_(1)


def _one(m) -> None:
    m.weight[3, 5] += 7.0


def _data(m) -> None:
    m.weight.data = torch.randn_like(m.weight)


def _through_data(m) -> None:
    m.weight.data.mul_(0.9).add_(torch.randn_like(m.weight))


def _make_contiguous(m) -> None:
    """Store the parameters contiguously: the tracer's guards see other strides."""
    m.weight.data = torch.randn_like(m.weight).contiguous()


@pytest.mark.parametrize("change", [_add, _one, _data, _through_data, _make_contiguous])
@pytest.mark.parametrize("case", [convolution, linear])
def test_a_change_is_noticed(case, change):
    m, inputs = case()
    f = torch.compile(m, backend="smelt")
    agrees(f, m, inputs)
    for _ in range(2):
        with torch.no_grad():
            before = m(inputs)
            change(m)
            assert not torch.allclose(m(inputs), before)
        agrees(f, m, inputs)


def test_a_transposed_square_weight_is_another_constant():
    """Its address and version stay: what was packed of it is not an answer for its transpose."""
    m = torch.nn.Linear(256, 256, bias=False).eval()
    inputs = torch.randn(300, 256)
    f = torch.compile(m, backend="smelt")
    for _ in range(4):
        agrees(f, m, inputs)
        m.weight.data = m.weight.data.t()


class Shows(torch.nn.Module):
    """A module that gives its weight away too."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x), self.layer.weight.clone(), self.layer.weight * 2, self.layer.weight


@pytest.mark.parametrize("case", [convolution, linear])
def test_results_that_are_constants_have_their_shape_and_strides(case):
    layer, inputs = case()
    m = Shows(layer)
    f = torch.compile(m, backend="smelt")
    for _ in range(2):
        with torch.no_grad():
            for actual, expected in zip(f(inputs), m(inputs), strict=True):
                torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-4)
                assert actual.stride() == expected.stride()


def test_two_layers_of_one_program_with_weights_in_both_orders():
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.nn.Parameter(torch.randn(256, 256))
            self.transposed = torch.nn.Parameter(self.plain.detach().clone().t())

        def forward(self, x):
            return torch.relu(x @ self.plain) @ self.transposed

    m, inputs = Both().eval(), torch.randn(300, 256) / 16
    f = torch.compile(m, backend="smelt")
    agrees(f, m, inputs)
    m.plain.data, m.transposed.data = m.transposed.data, m.plain.data
    agrees(f, m, inputs)
    agrees(f, m, inputs)


def test_inference_mode_tensors_are_checked_in_every_call():
    with torch.inference_mode():
        m, inputs = convolution()
        f = torch.compile(m, backend="smelt")
        for _ in range(2):
            torch.testing.assert_close(f(inputs), m(inputs), atol=1e-4, rtol=1e-4)
            m.weight.mul_(2)
