"""How slow a machine may be before a bound on a time says no more."""

from __future__ import annotations

import timeit
from typing import Any

import pytest
from tests.pace import CALL, MOST, pace


@pytest.mark.parametrize(("calls", "wanted"), [(0.5, 1.0), (1.0, 1.0), (2.5, 2.5), (100.0, MOST)])
def test_bounds_grow_with_the_interpreters_slowness_and_not_for_ever(
    calls: float, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turns(*_: Any, number: int, repeat: int, **__: Any) -> list[float]:
        return [calls * CALL * number * (1 + k) for k in range(repeat)]

    monkeypatch.setattr(timeit, "repeat", turns)
    assert pace() == pytest.approx(wanted)
