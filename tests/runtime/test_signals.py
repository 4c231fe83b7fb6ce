"""What a signal's handler raises is told from errors of the code that it interrupts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import passes
from smelt.errors import raised_by_signal_handler


class Late(Exception):
    """A user's timeout."""


def late(*_: object) -> None:
    raise Late


class Handler:
    """Handlers that are not plain functions."""

    def method(self, *_: object) -> None:
        raise Late

    def __call__(self, *_: object) -> None:
        raise Late


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def raised(f: Callable[[], Any]) -> Exception:
    try:
        f()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(1000):
        pass


@pytest.mark.parametrize(
    "handler", [late, partial(late), Handler().method, Handler(), lambda *_: late()]
)
def test_handlers_are_found_in_the_traceback(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    assert raised_by_signal_handler(raised(interrupted))

    def caused() -> None:
        try:
            interrupted()
        except Late as error:
            raise ValueError from error

    assert raised_by_signal_handler(raised(caused))
    assert not raised_by_signal_handler(raised(lambda: 1 // 0))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert not raised_by_signal_handler(raised(late))


@pytest.mark.parametrize("way", ["jit", "lazy"])
def test_a_timeout_in_the_middle_of_a_compilation_reaches_the_caller(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = passes.run

    def slow(*arguments: Any) -> Any:
        interrupted()
        return run(*arguments)

    x = np.arange(12, dtype=np.float32)

    def compute() -> Any:
        number = {"jit": 0.8125, "lazy": 0.6875}[way]
        if way == "jit":
            return sm.jit(lambda x: sm.exp(x * number) + 2)(x)
        return sm.exp(sm.asarray(x) * number + 1) + 2

    signal.signal(signal.SIGUSR1, late)
    with monkeypatch.context() as patch:
        patch.setattr(passes, "run", slow)
        with pytest.raises(Late):
            np.asarray(compute())
    assert np.isfinite(np.asarray(compute())).all()
