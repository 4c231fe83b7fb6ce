"""The training example: its losses are PyTorch's, step by step, and they fall."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "examples" / "train.py").read_text(encoding="utf-8")
STEPS = 12


def example() -> Any:
    spec = spec_from_file_location("train", ROOT / "examples" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def losses_of_torch(torch: Any, train: Any) -> list[float]:
    """Train the model with PyTorch's own functions and optimiser."""
    functional = torch.nn.functional
    p = {k: torch.tensor(a, requires_grad=True) for k, a in train.initial(len(set(TEXT))).items()}
    optimiser = torch.optim.Adam(p.values(), lr=3e-3, betas=(0.9, 0.99), eps=1e-8)
    losses: list[float] = []

    def norm(x: Any) -> Any:
        return functional.rms_norm(x, (train.WIDTH,), eps=1e-6)

    for tokens in map(torch.tensor, train.batches(TEXT, STEPS)):
        x = p["tokens"][tokens[:, :-1]] + p["places"]
        shape = (*x.shape[:2], train.HEADS, train.WIDTH // train.HEADS)
        h = norm(x)
        q, k, v = ((h @ p[name]).reshape(shape).transpose(1, 2) for name in "qkv")
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(1, 2).reshape(x.shape) @ p["mix"]
        h = functional.gelu(norm(x) @ p["up"] + p["up_bias"], approximate="tanh")
        scores = (norm(x + h @ p["down"]) * p["norm"]) @ p["head"]
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def test_losses_are_those_of_torch() -> None:
    """Adam divides by the root of squared gradients, so rounding grows where they are tiny."""
    torch = pytest.importorskip("torch")
    train = example()
    _, losses = train.train(TEXT, STEPS)
    np.testing.assert_allclose(losses, losses_of_torch(torch, train), rtol=2e-4)
    assert losses[-1] < losses[0] - 0.5


def test_one_recording_serves_every_step() -> None:
    train = example()
    train.train(TEXT, 3)
    assert sum(map(len, train.train_step.traces.values())) == 1
