"""`torch.topk`: as reductions if they are as fast, with its derivative, and in routers."""

# pyright: reportMissingImports=false

from __future__ import annotations

import pytest
import torch
from tests.frontends.torch.models import compiled
from torch import nn

import smelt.torch

pytestmark = pytest.mark.usefixtures("strict")
TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
)


def drawn(kind, shape):
    """Different numbers, for torch says nothing of equal ones; floats with odd ones among them."""
    n = 1
    for d in shape:
        n *= d
    result = torch.randperm(n).reshape(shape) - (0 if kind == torch.uint8 else n // 2)
    result = result.to(kind)
    if kind.is_floating_point and n > 8:
        for value in (float("nan"), float("inf"), -float("inf")):
            result.view(-1)[torch.randint(n, ())] = value
    return result


def same(actual, x, k, dim, largest):
    values, places = actual
    wanted, _ = torch.topk(x, k, dim, largest)
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
    there = torch.gather(x, dim, places)
    torch.testing.assert_close(there, wanted, rtol=0, atol=0, equal_nan=True)
    last = places.sort(dim).values
    assert (last.diff(dim=dim) > 0).all()  # none twice


@pytest.mark.parametrize(
    ("kind", "largest", "dim"),
    [(k, True, -1) for k in TYPES if k.is_floating_point] + [(k, False, 0) for k in TYPES],
)
def test_as_eager(kind, largest, dim):
    f = compiled(lambda x: torch.topk(x, 4, dim, largest, False))
    for shape in ((5, 9), (4, 4), (13, 19)):
        x = drawn(kind, shape)
        same(f(x), x, 4, dim, largest)


def test_the_least_of_all_are_counted():
    low = -float("inf")
    x = torch.tensor([[low, 1.0, low, low], [low] * 4, [float("nan"), low, low, float("nan")]])
    _, places = compiled(lambda x: torch.topk(x, 4))(x)
    assert places.tolist() == [[1, 0, 2, 3], [0, 1, 2, 3], [0, 3, 1, 2]]
    x = torch.full((2, 5), -(1 << 63))
    assert compiled(lambda x: torch.topk(x, 5))(x)[1].tolist() == [[0, 1, 2, 3, 4]] * 2


def test_torch_is_not_called_where_reductions_are_as_fast():
    def left(shape, k):
        torch._dynamo.reset()
        result = smelt.torch.explain(lambda x: torch.topk(x * 2, k).values + 1, torch.randn(shape))
        return [x.operator for x in result.left]

    assert not left((4, 64), 16)
    assert not left((2, 5000), 4)
    assert left((4, 64), 17) == ["aten.topk.default"]
    assert left((2, 5000), 5) == ["aten.topk.default"]


class Router(nn.Module):
    def __init__(self, *, early):
        super().__init__()
        self.early = early
        self.route = nn.Linear(16, 8, bias=False)

    def forward(self, x):
        scores = self.route(x)
        if self.early:
            share, places = scores.topk(2, -1)
            return share.softmax(-1), places
        share, places = scores.softmax(-1).topk(2, -1)
        return share / share.sum(-1, keepdim=True), places


@pytest.mark.parametrize("early", [True, False])
def test_routers_and_their_training(early):
    torch.manual_seed(3)
    model = Router(early=early)
    fast = compiled(model, dynamic=True)
    for batch in (3, 8, 31):
        x = torch.randn(batch, 16, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for f, z in ((model, x), (fast, y)):
            share, places = f(z)
            (share * (places + 1)).sum().backward()
        torch.testing.assert_close(fast(y), model(x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-6)
