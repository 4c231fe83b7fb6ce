"""Counts and sums in gradients of half types, of more elements than float16 can count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

COUNT = 70_000
ZEROS = torch.zeros(COUNT, dtype=torch.long)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax(),
    "amin of rows": lambda x: x.reshape(1, -1).expand(2, -1).amin(1).mean(),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "mean": lambda x: x.mean(),
    "var": lambda x: x.var(correction=0),
    "median": lambda x: x.median(),
    "norm": lambda x: x.norm(),
    "largest": lambda x: x.norm(torch.inf),
    "gather": lambda x: x.gather(0, ZEROS).mean(),
    "index": lambda x: x[ZEROS].mean(),
    "select": lambda x: x.index_select(0, ZEROS).mean(),
    "running": lambda x: x.cummax(0)[0].mean(),
    "loss": lambda x: torch.nn.functional.mse_loss(x, x.detach() * 0.5),
}
"""Functions of many equal numbers."""


def _slopes(xs: list[Any], call: Callable[..., Any]) -> list[Any]:
    return list(torch.autograd.grad(sum(y.double() for y in call(*xs)), xs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_equal_halves_count_them_all(dtype: Any) -> None:
    def together(*xs: Any) -> tuple[Any, ...]:
        return tuple(f(x) for f, x in zip(FUNCTIONS.values(), xs, strict=True))

    torch._dynamo.reset()
    halves = [torch.full((COUNT,), 1.5, dtype=dtype, requires_grad=True) for _ in FUNCTIONS]
    doubles = [x.detach().double().requires_grad_() for x in halves]
    actual = _slopes(halves, torch.compile(together, backend="smelt"))
    info = torch.finfo(dtype)
    for name, a, want in zip(FUNCTIONS, actual, _slopes(doubles, together), strict=True):
        bound = 2 * info.eps * want.abs() + info.tiny * info.eps
        assert ((a.double() - want).abs() <= bound).all(), (name, a[:2], want[:2])
