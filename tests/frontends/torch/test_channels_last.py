"""Channels-last images: values between kernels keep the layout."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt  # noqa: E402
from smelt.fusion.bitsets import Hints, at_hints  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
nn = torch.nn


class Inverted(nn.Module):
    """Wider by a 1×1 convolution, each channel alone, narrow again, and the input added."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(16, 48, 1),
            nn.BatchNorm2d(48),
            nn.ReLU6(),
            nn.Conv2d(48, 48, 3, padding=1, groups=48),
            nn.BatchNorm2d(48),
            nn.ReLU6(),
            nn.Conv2d(48, 16, 1),
            nn.BatchNorm2d(16),
        )

    def forward(self, x):
        return x + self.body(x)


class Classifier(nn.Module):
    """Strides, groups, poolings, joined and enlarged images, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(4, 16, 3, padding=1, stride=2)
        self.b = nn.Conv2d(16, 32, 3, padding=1, groups=4)
        self.c = nn.Conv2d(48, 16, 5, padding=2)
        self.norm = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        a = self.a(x).relu()
        b = nn.functional.max_pool2d(nn.functional.gelu(self.b(a)), 2)
        b = nn.functional.interpolate(b, scale_factor=2)
        y = nn.functional.avg_pool2d(self.norm(self.c(torch.cat([a, b], 1))), 2)
        return self.head(y.mean((2, 3))), y


def _step(model, run, x):
    x = x.detach().requires_grad_()
    out = run(x)
    result = out if isinstance(out, tuple) else (out,)
    model.zero_grad()
    sum((y * y).sum() for y in result).backward()
    return [*result, x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("block", [Inverted, Classifier])
@pytest.mark.parametrize("train", [False, True])
def test_as_eager(block, train: bool) -> None:
    torch.manual_seed(0)
    model = block().to(memory_format=torch.channels_last).train(train)
    exact = block().to(torch.float64).train(train)
    exact.load_state_dict(model.state_dict())
    x = torch.randn(2, next(model.parameters()).shape[1], 20, 24)
    x = x.to(memory_format=torch.channels_last)
    wanted = _step(exact, exact, x.double())
    eager = _step(model, model, x)
    exact.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="smelt", dynamic=False)
    for actual, near, far in zip(_step(model, compiled, x), eager, wanted, strict=True):
        size = far.abs().max() + 1
        assert (actual - far).abs().max() <= 4 * (near - far).abs().max() + 1e-5 * size
        assert actual.shape == far.shape
    for actual, near in zip(_step(model, compiled, x)[:2], eager, strict=False):
        assert actual.stride() == near.stride()


def _stored(model, x) -> int:
    """Return the bytes that kernels write in a step, at sizes that are guessed."""
    with smelt.record() as record:
        run = torch.compile(model, backend="smelt", dynamic=False)
        run(x.requires_grad_()).square().sum().backward()
    assert all(not g.fallback for g in record.graphs)
    plans = [s.compiled.plan for g in record.graphs for s in g.program.segments]
    return sum(
        at_hints(n.type.nbytes, Hints()) for p in plans for c in p.clusters for n in c.outputs
    )


def test_nothing_is_stored_in_two_orders() -> None:
    """What is kept for the gradients is what the next kernel reads."""
    torch.manual_seed(0)
    stored = []
    for order in (torch.contiguous_format, torch.channels_last):
        model = Inverted().to(memory_format=order).train()
        x = torch.randn(2, 16, 20, 24).to(memory_format=order)
        stored.append(_stored(model, x))
        torch._dynamo.reset()
    first, last = stored
    assert last <= 1.1 * first
