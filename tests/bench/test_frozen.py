"""Frozen weights of Inductor are tried in a process of their own."""

from __future__ import annotations

import pytest

from smelt.bench import frozen


@pytest.mark.parametrize(
    ("program", "survives"), [("pass", True), ("import os; os.abort()", False)]
)
def test_a_crash_turns_freezing_off(monkeypatch, program, survives):
    monkeypatch.setattr(frozen, "_PROGRAM", program)
    frozen._survives.cache_clear()
    try:
        assert frozen.frozen_options(max_autotune=True) == {
            "max_autotune": True,
            "freezing": survives,
        }
    finally:
        frozen._survives.cache_clear()
