"""An argument as `out=`: its result overwrites it, however it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ExternError, OutsideError
from smelt.runtime import executable

F = Callable[..., Any]
N = 4099

CASES: dict[str, tuple[F, tuple[int | None, ...]]] = {
    "map": (lambda x: x * 2 + 1, (0,)),
    "two": (lambda x, y: (x + y, x - y), (0, 1)),
    "two, crossed": (lambda x, y: (x + y, x - y), (1, 0)),
    "crossed, unchanged": (lambda x, y: (y, x * 1), (0, 1)),
    "one unchanged": (lambda x, y: (y, x + 1), (0, 1)),
    "unchanged elsewhere": (lambda x, y: (x + y, x), (0, None)),
    "equal results": (lambda x, y: (x + y, x + y), (0, 1)),
    "turned": (lambda x: x[::-1] + x, (0,)),
    "moved": (lambda x: sm.roll(x, 1) + x, (0,)),
    "running": (lambda x: sm.cumulative_sum(x) + 1, (0,)),
    "a fold": (lambda x: x - sm.mean(x), (0,)),
    "a fold beside": (lambda x, y: (x + y, sm.sum(x)), (0, None)),
    "read by a later kernel": (lambda x, y: (x + 1, sm.cumulative_sum(y) + x[::-1]), (0, 1)),
    "an optimiser": (lambda p, g, m: (p - 0.1 * (0.9 * m + g), 0.9 * m + g), (0, 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [0, 1, 5, N])
def test_results_are_those_of_other_memory(name: str, n: int) -> None:
    f, places = CASES[name]
    call: Any = sm.jit(f)
    rng = np.random.default_rng(n).standard_normal((f.__code__.co_argcount, n))
    wanted = call(*rng)
    wanted = [np.array(x) for x in (wanted if isinstance(wanted, tuple) else (wanted,))]
    for ours in (False, False, True):
        arguments: list[Any] = [sm.asarray(x, copy=True) if ours else x.copy() for x in rng]
        out = [np.empty_like(w) if k is None else arguments[k] for k, w in zip(places, wanted)]
        call(*arguments, out=out[0] if len(out) == 1 else tuple(out))
        for actual, expected in zip(out, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(actual), expected)


@pytest.mark.parametrize(
    ("f", "out"),
    [
        (lambda x, w: x @ w, 0),
        (lambda x, w: sm.nn.relu(x @ w) + x, 0),
        (lambda x, w: x.T + w, 0),
        (lambda x, w: sm.nn.softmax(x) * w, 1),
        (lambda x, w: w - sm.max(x, axis=0), 0),
    ],
)
def test_matrices(f: F, out: int) -> None:
    call: Any = sm.jit(f)
    rng = np.random.default_rng(2).standard_normal((2, 37, 37))
    wanted = np.array(call(*rng))
    x = rng.copy()
    call(*x, out=x[out])
    np.testing.assert_array_equal(x[out], wanted)


def test_no_other_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    f: Any = sm.jit(lambda p, g: (p - 0.1 * g, g * 0))
    step: Any = sm.jit(lambda x: x * 0.5)
    p, g = np.ones(N), np.ones(N)
    f(p, g, out=(p, g))
    step(p, out=p)
    monkeypatch.setattr(executable, "allocate", lambda n: pytest.fail(f"{n} bytes are taken"))
    for _ in range(3):
        f(p, g, out=(p, g))
        step(p, out=p)
    assert p[0] == 0.5**4 * 0.9 and not g.any()


def test_the_same_array_twice_and_what_is_closed_over() -> None:
    x = np.arange(float(N))
    add: Any = sm.jit(lambda x, y: x + y[::-1])
    add(x, x, out=x)
    np.testing.assert_array_equal(x, np.full(N, N - 1.0))
    closed: Any = sm.jit(lambda y: y + sm.asarray(x)[::-1])
    x[:] = np.arange(float(N))
    for _ in range(2):
        closed(x, out=x)
    np.testing.assert_array_equal(x, np.full(N, 2 * (N - 1.0)))


@pytest.mark.parametrize(
    ("f", "error"),
    [
        (lambda x: (x + 1, sm.linalg.inv(sm.reshape(x[:4], (2, 2)))), ExternError),
        (lambda x: (x + 1, sm.take(x, sm.astype(x[:2] + N, sm.int64))), OutsideError),
    ],
)
def test_inputs_survive_a_call_that_fails(f: F, error: type[Exception]) -> None:
    x, call = np.zeros(N), sm.jit(f)
    out: Any = (x, np.empty((2, 2)) if error is ExternError else np.empty(2))
    with pytest.raises(error):
        call(x, out=out)  # pyright: ignore[reportCallIssue]
    assert not x.any()
