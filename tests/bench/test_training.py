"""The training step of the benchmark learns, and Smelt's losses are eager's."""

from __future__ import annotations

import pytest

from bench import training


def test_a_step_learns_and_every_peer_sees_the_same_loss(monkeypatch):
    torch = pytest.importorskip("torch")
    for name, value in (("LAYERS", 1), ("WORDS", 50), ("LENGTH", 16), ("WIDTH", 48)):
        monkeypatch.setattr(training, name, value)
    actual = training.measure(("eager", "smelt"), rounds=3)
    torch._dynamo.reset()
    assert actual["smelt"][1] == pytest.approx(actual["eager"][1], rel=1e-4)
    first = training.stepper("eager")()
    assert actual["eager"][1] < first
    assert "| smelt |" in training.page(actual)
