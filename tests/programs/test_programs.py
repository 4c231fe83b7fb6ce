"""Programs as users write them: one answer in every namespace, type and size, however they run.

The reference is NumPy with more precision.  A program is a composition, and nobody has derived its
error: what NumPy itself loses at the precision of the test is the yardstick, beside a few roundings
of the largest value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.programs import finance, images, integers, learning, physics
from tests.programs.rows import PROGRAMS, Program

import smelt as sm

FAMILIES = (images, physics, finance, learning, integers)
MORE = {np.float32: np.float64, np.float64: np.longdouble}
"""The type in which a program is judged."""
ROUNDINGS = 64
"""Roundings of the largest value that a result may be off, where NumPy's own is off by none."""
WORSE = 4
"""How many times NumPy's own error is allowed."""


def leaves(actual: Any) -> list[Any]:
    return [x for e in actual for x in leaves(e)] if isinstance(actual, tuple | list) else [actual]


def in_type(arrays: tuple[Any, ...], dtype: Any) -> list[Any]:
    return [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]


def check(program: Program, actual: list[Any], n: int, dtype: Any) -> None:
    args = program.make(np.random.default_rng(n), n, dtype)
    with np.errstate(all="ignore"):
        same = [np.asarray(x) for x in leaves(program.run(np, *args))]
        best = [np.asarray(x) for x in leaves(program.run(np, *in_type(args, MORE[dtype])))]
    assert len(actual) == len(same)
    for got, reference, true in zip(map(np.asarray, actual), same, best, strict=True):
        assert (got.shape, got.dtype) == (reference.shape, reference.dtype)
        if reference.dtype.kind != "f":
            np.testing.assert_array_equal(got, reference)
            continue
        finite = np.isfinite(true)
        scale = np.abs(true[finite]).max(initial=0)
        lost = np.abs(reference - true)[finite].max(initial=0)
        allowed = ROUNDINGS * np.finfo(got.dtype).eps * scale + WORSE * lost
        np.testing.assert_array_equal(got[~finite], reference[~finite])
        assert np.abs(got - true)[finite].max(initial=0) <= allowed


def test_every_family_is_entered() -> None:
    assert {p.run.__module__ for p in PROGRAMS.values()} == {f.__name__ for f in FAMILIES}


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_once_for_all_sizes(name: str) -> None:
    program = PROGRAMS[name]
    compiled = sm.jit(lambda *args: program.run(sm, *args))
    for n, dtype in ((17, np.float32), (1, np.float32), (64, np.float32), (5, np.float64)):
        args = program.make(np.random.default_rng(n), n, dtype)
        check(program, leaves(compiled(*args)), n, dtype)


@pytest.mark.parametrize("name", [*PROGRAMS][::4])
def test_lazily(name: str) -> None:
    program = PROGRAMS[name]
    args = program.make(np.random.default_rng(9), 9, np.float32)
    check(program, leaves(program.run(sm, *map(sm.asarray, args))), 9, np.float32)
