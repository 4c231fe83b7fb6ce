"""What NumPy computes because ours failed is counted, unless the arguments explain it."""

from __future__ import annotations

from typing import Any

import numpy  # noqa: ICN001 - `np` is ours
import pytest

import smelt.numpy as np
from smelt.errors import InternalError, ShapeError
from smelt.frontends.array.at_once import Account
from smelt.numpy.library import FAULT, LibraryOnly, call_at_once


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (InternalError("a cluster has no output"), True),
        (KeyError("axis"), True),
        (LibraryOnly("a period"), False),
        (ShapeError(op="clip", operands="f64[3]", reason="they differ"), False),
    ],
)
def test_faults_are_counted_by_line(
    error: Exception, is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ours(x: Any, low: Any, high: Any) -> Any:
        raise error

    monkeypatch.setattr(Account, "is_recorded", True)
    np.library_calls(clear=True)
    x = np.arange(20000.0)
    result = call_at_once("clip", ours, numpy.clip, (x, 2, 5), {})
    assert result.tolist() == numpy.clip(numpy.arange(20000.0), 2, 5).tolist()
    counted = [(c.name, c.file) for c in np.library_calls() if c.reason.startswith(FAULT)]
    np.library_calls(clear=True)
    assert counted == [("clip", __file__)] * is_fault


def test_arguments_that_ours_does_not_take_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "is_recorded", True)
    x = np.arange(20000.0)
    call_at_once("clip", lambda x: x, numpy.clip, (x, 2, 5), {})
    assert not [c for c in np.library_calls() if c.reason.startswith(FAULT)]
