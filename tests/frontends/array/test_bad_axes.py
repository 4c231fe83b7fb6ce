"""Every public function raises an error of this package for a missing axis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ArgumentError, AxisError, DTypeError, ShapeError, SmeltError

UNTYPED: Any = sm  # for what type checkers refuse already
NOT_INTEGERS: list[Any] = [1.5, "x", [0.5], float("nan"), np.float32(0)]
WRONG: list[Any] = [
    *NOT_INTEGERS, 5, -5, (0, 0), (0, -2), (0, "x"), (0, 5), np.int64(7), {}, object(), [[0]],
    10**30, np.array([0, 0]),
]  # fmt: skip
_AXES = {"axis", "axes", "source", "destination"}
_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "arrays": lambda x: [x, x],
    "q": lambda _: 0.5,
    "shift": lambda _: 1,
    "repeats": lambda _: 1,
    "k": lambda _: 1,
    "source": lambda _: 0,
    "destination": lambda _: 0,
    "indices": lambda x: sm.zeros(x.shape, dtype="int64"),
    "labels": lambda x: sm.zeros(x.shape, dtype="int64"),
}


def _functions() -> Iterator[tuple[str, Callable[..., Any], str]]:
    for module in (sm, sm.linalg, sm.nn):
        for name in module.__all__:
            f = getattr(module, name)
            if not callable(f) or isinstance(f, type):
                continue
            for parameter in _AXES & {*inspect.signature(f).parameters}:
                yield f"{module.__name__}.{name}({parameter}=)", f, parameter


FUNCTIONS = sorted(_functions(), key=lambda x: x[0])


def _call(f: Callable[..., Any], parameter: str, axis: Any, x: Any) -> None:
    args: list[Any] = []
    options: dict[str, Any] = {}
    for name, p in inspect.signature(f).parameters.items():
        if name != parameter and p.default is not p.empty:
            continue
        value = axis if name == parameter else _ARGUMENTS.get(name, lambda x: x)(x)
        if p.kind is p.KEYWORD_ONLY or name == parameter != "source" != parameter:
            if p.kind is not p.POSITIONAL_ONLY:
                options[name] = value
                continue
        args.append(value)
    f(*args, **options)


@pytest.mark.parametrize("which", FUNCTIONS, ids=[x[0] for x in FUNCTIONS])
def test_wrong_axes_are_refused(which: tuple[str, Callable[..., Any], str]) -> None:
    _, f, parameter = which
    for rank in range(3):
        x = sm.ones((3,) * rank)
        for axis in WRONG:
            try:
                _call(f, parameter, axis, x)
            except SmeltError:
                continue
            assert not any(axis is bad for bad in NOT_INTEGERS), (rank, axis)


def test_there_is_something_to_refuse() -> None:
    assert len(FUNCTIONS) > 50
    for _, f, parameter in FUNCTIONS:
        if parameter == "axis" and f not in (sm.expand_dims, sm.stack):
            with pytest.raises(SmeltError):
                _call(f, parameter, 7, sm.ones((3, 3)))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: sm.linalg.cross(sm.ones((2, 3)), sm.ones((2, 3)), axis=5), AxisError),
        (lambda: sm.linalg.cross(sm.ones(()), sm.ones(3)), AxisError),
        (lambda: sm.linalg.cross(sm.ones(3), sm.ones(()), axis=0), AxisError),
        (lambda: UNTYPED.permute_dims(sm.ones((2, 3)), (0.5, 1.5)), ArgumentError),
        (lambda: UNTYPED.moveaxis(sm.ones((2, 3)), 0.5, 1), ArgumentError),
        (lambda: UNTYPED.tensordot(sm.ones(3), sm.ones(3), axes=([0.5], [0.5])), ArgumentError),
        (lambda: UNTYPED.tensordot(sm.ones(3), sm.ones(3), axes=10**30), AxisError),
        (lambda: UNTYPED.roll(sm.ones(3), 1, axis="x"), ArgumentError),
        (lambda: UNTYPED.sort(sm.ones(3), axis=(0,)), ArgumentError),
        (lambda: sm.nn.rotary(sm.ones(3)), ShapeError),
        (lambda: UNTYPED.astype(sm.ones(3), sm.ones(3)), DTypeError),
    ],
)
def test_the_class_says_what_is_wrong(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        call()
    assert "test_bad_axes.py" in str(raised.value)


@pytest.mark.parametrize("argnums", [(0, 0), (0, -2), [1, 1], 2, -3, 1.5, "a", None, [0, 0.5]])
def test_arguments_to_differentiate_by(argnums: Any) -> None:
    for derive in (sm.grad, sm.value_and_grad):
        with pytest.raises(ArgumentError):
            derive(lambda a, b: a * b, argnums=argnums)(1.0, 2.0)


def test_arguments_to_differentiate_by_may_be_numpys() -> None:
    assert float(UNTYPED.grad(lambda a, b: a * b, argnums=np.int64(1))(3.0, 2.0)) == 3.0
    both = sm.grad(lambda a, b: a * b, argnums=[1, 0])(3.0, 2.0)
    assert [float(x) for x in both] == [3.0, 2.0]


def test_rotary_of_nothing() -> None:
    assert sm.nn.rotary(sm.ones((3, 0))).shape == (3, 0)
