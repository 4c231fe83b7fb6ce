"""The programs of `docs/short.md`: all sizes, and the same numbers as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from tools.short import PEERS, Case, Torch, cases, medians

import smelt as sm

SMALL = {case[0]: case for case in cases(48)}


@pytest.mark.parametrize("name", SMALL)
def test_programs_agree_with_numpy(name: str) -> None:
    _, program, arrays = SMALL[name]
    actual = np.asarray(sm.jit(lambda *a: program(sm, *a))(*arrays))
    wide = [a.astype("f8") if a.dtype.kind == "f" else a for a in arrays]
    np.testing.assert_allclose(actual, program(np, *wide), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_programs_agree_with_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    _, program, arrays = SMALL[name]
    actual = program(Torch(), *(torch.from_numpy(a) for a in arrays))
    np.testing.assert_allclose(actual, program(np, *arrays), rtol=1e-4, atol=1e-4)


def test_all_take_turns() -> None:
    turns: list[int] = []
    actual = medians([lambda k=k: turns.append(k) for k in range(len(PEERS))])
    assert len(actual) == len(PEERS) and min(actual) > 0
    assert {*turns} == {*range(len(PEERS))}


def test_names_are_distinguished() -> None:
    named: list[Case] = cases(48)
    assert len(SMALL) == len(named) >= 25
