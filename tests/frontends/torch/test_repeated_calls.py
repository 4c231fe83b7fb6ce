"""Repeated calls of compiled graphs, which native code makes: the same as the first one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled  # noqa: E402

from smelt import knobs  # noqa: E402
from smelt.runtime.executable import Executable  # noqa: E402

pytestmark = pytest.mark.usefixtures("strict")


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def both(f, *args):
    fast = compiled(f)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(*args), f(*args))
    return fast


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_results_are_those_of_the_moment(dtype):
    x, y = drawn(6, 5).to(dtype), drawn(6, 5).to(dtype)
    f = lambda x, y: (x + y, (x * y).relu())  # noqa: E731
    fast = both(f, x, y)
    with torch.no_grad():
        held = [fast(x + k, y) for k in range(20)]
        for k, actual in enumerate(held):
            torch.testing.assert_close(actual, f(x + k, y))
    assert len({t.data_ptr() for pair in held for t in pair}) == 40


def test_other_sizes_and_layouts():
    f = lambda x, w: torch.softmax(x @ w, -1)  # noqa: E731
    fast = both(f, drawn(4, 8), drawn(8, 3))
    with torch.no_grad():
        for rows in (1, 5, 5, 5, 40, 5, 40):
            x = drawn(rows, 8)
            torch.testing.assert_close(fast(x, drawn(8, 3)), f(x, drawn(8, 3)))
            torch.testing.assert_close(fast(x, drawn(3, 8).T), f(x, drawn(3, 8).T))


def test_parameters_that_change():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    fast = both(model, drawn(3, 8))
    with torch.no_grad():
        for _ in range(4):
            model[0].weight.add_(1.0)
            model[2].bias.data = drawn(4)
            torch.testing.assert_close(fast(drawn(3, 8)), model(drawn(3, 8)))


def test_training_goes_on():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    fast = compiled(model)
    x, optimiser = drawn(16, 8), torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = (fast(x) - 1).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


def test_parts_that_are_kept_for_gradients(monkeypatch):
    """Backward receives x[:, 0] with strides that no guard states."""
    by_python = []
    whole = Executable.run_at

    def counted(self, *inputs):
        by_python.append(self)
        return whole(self, *inputs)

    monkeypatch.setattr(Executable, "run_at", counted)
    torch.manual_seed(0)
    model, w = torch.nn.Linear(8, 8), drawn(8, 4).requires_grad_()

    def f(x):
        y = model(x)
        return (y + model(y.relu()))[:, 0] @ w

    fast = compiled(f, dynamic=True)
    leaves = [*model.parameters(), w]
    for k in range(8):
        for shape in ((3, 5, 8), (4, 2, 8)):
            x = drawn(*shape) + k
            result, expected = (torch.autograd.grad(g(x).square().sum(), leaves) for g in (fast, f))
            for one, other in zip(result, expected, strict=True):
                # Sums of up to 15 products of three sums of 8 terms, whose signs differ.
                near = 64 * torch.finfo(other.dtype).eps * float(other.abs().max())
                torch.testing.assert_close(one, other, rtol=0, atol=near)
        if k == 3:
            by_python.clear()
    assert not by_python


def test_python_answers_where_that_is_wished():
    with knobs.config(native_calls=False):
        both(lambda x: x.exp() + 1, drawn(3))
