"""A failure of the compiler, in any call, never costs an answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import fusion, knobs
from smelt.codegen import build as cpu_backend
from smelt.compiler import driver, warm
from smelt.errors import FallbackWarning, FusionError, InternalError
from smelt.graph.text import parse
from smelt.runtime import prelude
from smelt.runtime.executable import reference_executable
from smelt.runtime.reference import program_step

RNG = np.random.default_rng(3)
Planted = Callable[..., None]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that others have built is known."""
    for home in (driver, warm):
        monkeypatch.setattr(home, "find", lambda key, journal: None)
    with knobs.config(strict=False, cache=False, constants_extra=None):
        yield


def with_warnings(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A result, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    assert all(issubclass(w.category, FallbackWarning) for w in caught)
    return result, [str(w.message) for w in caught]


def planted(
    monkeypatch: pytest.MonkeyPatch, home: Any, name: str, fails: Callable[..., bool]
) -> None:
    """Has a function fail where `fails` says so of its arguments."""
    real = getattr(home, name)

    def run(*inputs: Any, **options: Any) -> Any:
        if fails(*inputs, **options):
            raise ZeroDivisionError("planted")
        return real(*inputs, **options)

    monkeypatch.setattr(home, name, run)


def program(x: Any, w: Any) -> Any:
    y = x @ w
    return sm.sum(y * x, axis=0), sm.max(y, axis=1), x.T, y, x


def arrays_of(n: int, d: int) -> list[Any]:
    return [RNG.standard_normal((n, d)), RNG.standard_normal((d, d))]


def check(actual: Any, x: Any, w: Any) -> None:
    expected = [*program_in_numpy(x, w)]
    for a, b in zip(actual, expected, strict=True):
        assert np.allclose(np.asarray(a), b, rtol=1e-12)


def program_in_numpy(x: Any, w: Any) -> Any:
    y = x @ w
    return (y * x).sum(0), y.max(1), x.T, y, x


def always(*_: Any, **__: Any) -> bool:
    return True


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_that_no_kernel_supports_are_computed_in_numpy(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = sm.jit(program)
    with knobs.config(threads=threads):
        f(*arrays_of(5, 2))  # in a form for rows of two
        planted(monkeypatch, cpu_backend, "build", always)
        x, w = arrays_of(4, 300)
        actual, lines = with_warnings(lambda: f(x, w))
        check(actual, x, w)
        assert len(lines) == 1 and "at n0=4, n1=300" in lines[0] and "planted" in lines[0]
        actual, lines = with_warnings(lambda: [f(x, w) for _ in range(4)])
        check(actual[-1], x, w)
        assert not lines  # it is known now
        check(f(*(inputs := arrays_of(5, 2))), *inputs)


def test_a_variant_that_fails_to_build_leaves_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = sm.jit(program)
    f(*arrays_of(5, 2))
    planted(monkeypatch, cpu_backend, "build", lambda *_, variant, **__: variant != "")
    x, w = arrays_of(4, 30)
    actual, lines = with_warnings(lambda: f(x, w))
    check(actual, x, w)
    assert len(lines) == 1 and "a variant of kernel" in lines[0]
    actual, lines = with_warnings(
        lambda: f(*(other := arrays_of(4, 31))) and check(f(*other), *other)
    )
    assert not lines  # nor is it tried for other sizes


def test_strictness_and_missing_memory_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    f = sm.jit(program)
    f(*arrays_of(5, 2))
    planted(monkeypatch, cpu_backend, "build", always)
    with knobs.config(strict=True), pytest.raises(ZeroDivisionError):
        sm.jit(program)(*arrays_of(5, 2)), f(*arrays_of(4, 300))
    x, w = arrays_of(4, 300)

    def without_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(cpu_backend, "build", without_memory)
    with pytest.raises(MemoryError):
        f(x, w)


def test_arguments_are_read_before_they_are_written_over() -> None:
    lowered = sm.jit(lambda x, y: (x * y[0], x + y)).lower(sm.spec("f64[n]"), sm.spec("f64[n]"))
    graph = lowered.trace.graph
    x, y = np.arange(1.0, 4), np.arange(5.0, 8)
    expected = [x * y[0], x + y]
    step = program_step(graph, (0, 1), dict(zip((2, 3), graph.outputs, strict=True)))
    step.call({"n": 3}, [x, y], [x, y])
    assert np.array_equal(x, expected[0]) and np.array_equal(y, expected[1])


def test_what_is_computed_once_is_computed_in_numpy_if_need_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prelude.clear()
    w = RNG.standard_normal((60, 256))
    kept = sm.asarray(w, copy=True)
    f = sm.jit(lambda x: x @ sm.exp(kept) + sm.sum(kept, axis=0))
    x = RNG.standard_normal((70, 60))
    f.lower(x).compile()
    planted(monkeypatch, warm, "compile", lambda graph, **_: len(graph.inputs) == 1)
    actual, lines = with_warnings(lambda: f(x))
    assert np.allclose(np.asarray(actual), x @ np.exp(w) + w.sum(0))
    assert len(lines) == 1 and "computed once" in lines[0]


def test_a_program_that_fails_as_one_runs_as_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, fusion, "plan", lambda *_, fuse, **__: fuse)
    x, w = arrays_of(6, 5)
    actual, lines = with_warnings(lambda: sm.jit(program)(x, w))
    check(actual, x, w)
    assert len(lines) == 1 and "program as one" in lines[0]
    with knobs.config(strict=True), pytest.raises(ZeroDivisionError):
        sm.jit(program)(x, w)


def test_failures_of_every_fallback_name_the_users_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted(monkeypatch, fusion, "plan", always)
    with pytest.raises(InternalError, match="of program: ZeroDivisionError: planted") as failed:
        sm.jit(program)(*arrays_of(6, 5))
    assert "test_failures.py" in str(failed.value)


def test_what_the_user_demands_is_no_failure() -> None:
    with pytest.raises(FusionError):
        sm.jit(lambda x: sm.sort(sm.exp(x)) + 1, must=True)(np.ones((8, 8)))


def test_references_take_results_that_are_one() -> None:
    graph = parse("graph f(x: f64[n]) {\n v0 = add(x, 1.0:f64)\n return v0, x, v0\n}")
    x = np.arange(5.0)
    actual = reference_executable(graph).run([x], (5,))
    assert [a.tolist() for a in actual] == [(x + 1).tolist(), x.tolist(), (x + 1).tolist()]
