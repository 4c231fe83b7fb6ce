"""Optimisers step as PyTorch's do, in one launch, with states that go through `jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ArgumentError

SHAPES = {"w": (4, 3), "b": (3,), "s": ()}
CASES: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "sgd": (sm.optim.sgd(0.1), lambda t, ps: t.optim.SGD(ps, 0.1)),
    "momentum": (sm.optim.sgd(0.1, momentum=0.9), lambda t, ps: t.optim.SGD(ps, 0.1, momentum=0.9)),
    "nesterov": (
        sm.optim.sgd(0.1, momentum=0.9, nesterov=True),
        lambda t, ps: t.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (
        sm.optim.adam(0.02, betas=(0.8, 0.95)),
        lambda t, ps: t.optim.Adam(ps, 0.02, betas=(0.8, 0.95)),
    ),
    "adamw": (
        sm.optim.adamw(0.02, decay=0.1),
        lambda t, ps: t.optim.AdamW(ps, 0.02, weight_decay=0.1),
    ),
}


def draw(seed: int, dtype: str = "float64") -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {k: np.asarray(rng.normal(size=s), dtype) for k, s in SHAPES.items()}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    (start, step), theirs = CASES[name]
    p: Any = draw(0)
    tensors = {k: torch.tensor(a, requires_grad=True) for k, a in p.items()}
    other = theirs(torch, list(tensors.values()))
    state, update = start(p), sm.jit(step)
    for seed in range(1, 5):
        slopes = draw(seed)
        p, state = update(p, slopes, state)
        for k, t in tensors.items():
            t.grad = torch.tensor(slopes[k])
        other.step()
        for k, t in tensors.items():
            np.testing.assert_allclose(np.asarray(p[k]), t.detach().numpy(), rtol=1e-12)
    assert sum(map(len, update.traces.values())) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_short_floats_keep_their_type(dtype: str) -> None:
    """The state of half types is float32; nothing becomes float64."""
    start, step = sm.optim.adamw(0.02)
    p: Any = draw(0, dtype)
    new, (count, m, v) = sm.jit(step)(p, draw(1, dtype), start(p))
    assert {a.dtype for a in new.values()} == {getattr(sm, dtype)}
    assert {a.dtype for nest in (m, v) for a in nest.values()} == {sm.float32}
    assert float(count) == 1


def test_the_rate_may_change_without_compiling_again() -> None:
    def train(p: Any, slopes: Any, state: Any, rate: Any) -> Any:
        return sm.optim.adam(rate).step(p, slopes, state)

    update = sm.jit(train)
    p: Any = draw(0, "float32")
    state = sm.optim.adam(0.0).start(p)
    for rate in (0.1, 0.01):
        old = np.asarray(p["w"])
        p, state = update(p, draw(1, "float32"), state, rate)
        np.testing.assert_allclose(np.abs(np.asarray(p["w"]) - old), rate, rtol=1e-3)
    assert sum(map(len, update.traces.values())) == 1


def test_clipping() -> None:
    slopes = draw(3)
    flat = np.concatenate([np.ravel(a) for a in slopes.values()])
    length = np.sqrt(np.sum(flat**2))
    np.testing.assert_allclose(float(sm.optim.norm(slopes)), length)
    for largest in (0.5, 100.0):
        clipped = sm.jit(lambda g, most=largest: sm.optim.clip(g, most))(slopes)
        factor = min(1.0, largest / (length + 1e-6))
        for k, a in slopes.items():
            np.testing.assert_allclose(np.asarray(clipped[k]), a * factor)


def test_all_parameters_in_one_launch() -> None:
    """Catalogue G2: what does not depend on an element, the corrections, is one kernel before."""
    start, step = sm.optim.adam(0.01)
    ps = [np.ones((3 + k, 4), np.float32) for k in range(20)]
    update = sm.jit(step)
    update(ps, ps, start(ps))
    plan = next(iter(update.traces.values()))[0].executable.plan
    assert len(plan.launches) <= 2


def test_mistakes() -> None:
    start, step = sm.optim.sgd(0.1)
    with pytest.raises(ArgumentError, match="nest"):
        step({"a": np.ones(2)}, [np.ones(2)], start({"a": np.ones(2)}))
    with pytest.raises(ArgumentError, match="at least one"):
        sm.optim.norm({})
