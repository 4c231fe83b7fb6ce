"""Products and convolutions that PyTorch computes within a compiled program."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import smelt as sm
from smelt.frontends.torch.library import TORCH
from smelt.journal.facts import Fact, LibraryProduct, subscribe
from smelt.ops.library_product import provider, using


@pytest.fixture(autouse=True)
def one_number_of_threads() -> Any:
    """Limit PyTorch to one thread, no more than a call of ours takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.set_num_threads(before)


@contextmanager
def always() -> Generator[list[LibraryProduct]]:
    """Compile with every product PyTorch's; yields what was decided."""
    decisions: list[LibraryProduct] = []

    def listen(fact: Fact) -> None:
        if isinstance(fact, LibraryProduct):
            decisions.append(fact)

    stop = subscribe(listen)
    try:
        with sm.config(library_products="always", probe="off", cache=False):
            yield decisions
    finally:
        stop()


def check(module: Any, *arrays: torch.Tensor) -> list[tuple[int, ...]]:
    """Values and gradients are those of eager code; returns the shapes of PyTorch's products."""
    compiled = torch.compile(module, backend="smelt", dynamic=True)
    with always() as decisions:
        results = [compiled(*arrays) for _ in range(3)]
        again = compiled(*(x.detach()[:-1].requires_grad_(x.requires_grad) for x in arrays))
    assert decisions and all(d.taken and d.library == "PyTorch" for d in decisions)
    expected = module(*arrays)
    torch.testing.assert_close(results[-1], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, module(*(x[:-1] for x in arrays)), rtol=1e-4, atol=1e-4)
    wanted = [x for x in (*arrays, *module.parameters()) if x.requires_grad]
    for a, b in zip(
        torch.autograd.grad(results[-1].square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)
    return [d.shape[2:] for d in decisions]


def test_arrays_stay_with_numpy() -> None:
    assert provider().name == "numpy"
    with using(TORCH):
        assert provider() is TORCH
    assert provider().name == "numpy"


def test_linear_layers_and_their_gradients() -> None:
    torch.manual_seed(0)
    check(
        nn.Sequential(nn.Linear(300, 200), nn.GELU(), nn.Linear(200, 100, bias=False)),
        torch.randn(50, 300, requires_grad=True),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"padding": 1, "bias": False},
        {"stride": 2, "padding": (0, 2), "bias": False},
        {"dilation": 2, "bias": False},
        {"stride": (1, 3), "padding": 3},
    ],
)
def test_convolutions_and_their_gradients(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 6, 20, 17, requires_grad=True)
    assert (8, 6 * 3 * 3) in check(nn.Conv2d(6, 8, 3, **options), images)


def test_one_dimension_and_images_that_are_channels_last() -> None:
    torch.manual_seed(0)
    rows = torch.randn(4, 6, 50, requires_grad=True)
    assert (8, 6 * 5) in check(nn.Conv1d(6, 8, 5, padding=2, bias=False), rows)
    images = torch.randn(4, 6, 20, 17).to(memory_format=torch.channels_last).requires_grad_()
    check(nn.Conv2d(6, 8, 3, padding=1, bias=False), images)
