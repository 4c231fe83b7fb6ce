"""What a user is told of typical mistakes: the own line, what came, and what to write instead.

And what is not a mistake, though it looks unusual.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import LeakError, ShapeError, SmeltError, StaticArgError, TracerError


def raised(error: type[SmeltError], f: Callable[[], Any]) -> SmeltError:
    """What is raised, at a line of this file."""
    with pytest.raises(error) as caught:
        f()
    assert caught.value.origin.file == __file__, caught.value
    return caught.value


@pytest.mark.parametrize("f", [np.exp, np.sort, np.asarray, np.linalg.norm, np.median])
def test_functions_of_numpy_name_the_line_that_calls_them(f: Callable[[Any], Any]) -> None:
    error = raised(TracerError, lambda: sm.jit(lambda x: f(x) + 1)(np.ones((3, 4))))
    assert "lambda x: f(x) + 1" in error.origin.text
    assert "sm.exp(x) in place of np.exp(x)" in error.help


def _inverses(x: Any, y: Any) -> Any:
    first = sm.linalg.inv(x + 1 - 1)
    second = sm.linalg.inv(y * 1)
    return (first + second) * 2


@pytest.mark.parametrize("wrap", [sm.jit, lambda f: lambda *args: np.asarray(f(*args))])
def test_a_failing_library_call_names_its_line(wrap: Any) -> None:
    """Lazy code named the line that read the result, compiled code the one that called it."""
    f, good, bad = wrap(_inverses), sm.eye(3), sm.zeros((3, 3))
    for _ in range(2):
        for name, args in (("first", (bad, good)), ("second", (good, bad))):
            error = raised(sm.errors.ExternError, lambda args=args: f(*args))
            assert error.origin.text.startswith(f"{name} = sm.linalg.inv"), error
    transposed = sm.asarray(np.zeros((3, 3), order="F"))
    error = raised(sm.errors.ExternError, lambda: f(good, transposed))
    assert error.origin.text.startswith("second"), error


def _tall(x: Any) -> Any:
    y = sm.exp(x)
    wide = sm.stack([y, y + 1, y + 2])
    return sm.sum(y), wide


@pytest.mark.parametrize("wrap", [sm.jit, lambda f: lambda x: np.asarray(f(x)[1])])
def test_memory_that_does_not_suffice_names_the_line_of_the_largest_value(wrap: Any) -> None:
    for n in (3000, 4000):
        with sm.config(max_extra_memory=1000):
            error = raised(sm.errors.OutOfMemory, lambda n=n: wrap(_tall)(np.zeros(n)))
        assert error.origin.text.startswith("wide ="), error
        assert f"the largest value is f64[3,{n}], concat of f64[1,{n}] and" in error.message


def test_sizes_beyond_64_bits_name_their_operands() -> None:
    def outer(x: Any, y: Any) -> Any:
        wide = x[:, None, None] + y[None, :, None] + sm.zeros((1, 1, 1 << 30))
        return wide * 2

    error = raised(sm.errors.OutOfMemory, lambda: sm.jit(outer)(np.ones(1 << 20), np.ones(1 << 21)))
    assert error.origin.text.startswith("wide ="), error
    assert (
        "the largest value is f64[1048576,2097152,1073741824], add of f64[1048576,2097152,1] and "
        "f64[1,1,1073741824]" in error.message
    )


def test_values_that_outlived_their_recording_say_so_to_numpy_too() -> None:
    kept: list[Any] = []
    sm.jit(lambda x: kept.append(x + 1) or x)(np.ones(3))
    for read in (np.asarray, float, bool, np.sum):
        raised(LeakError, lambda read=read: read(kept[0]))


def test_stack_errors_name_the_shapes() -> None:
    error = raised(ShapeError, lambda: sm.stack([sm.ones(3), sm.ones(4)]))
    assert "stack(f64[3], f64[4]): their shapes differ" in error.message
    raised(ShapeError, lambda: sm.stack([sm.ones(3), sm.ones((3, 4))]))


def test_errors_of_bound_methods_name_what_is_allowed() -> None:
    class Scaled:
        factor = 3.0

        @sm.jit
        def plain(self, x: Any) -> Any:
            return x * self.factor

        @functools.partial(sm.jit, static_argnums=0)
        def fixed(self, x: Any) -> Any:
            return x * self.factor

    @dataclasses.dataclass
    class Nest:
        factor: Any

        @sm.jit
        def scaled(self, x: Any) -> Any:
            return x * self.factor

    error = raised(StaticArgError, lambda: Scaled().plain(np.ones(2)))
    assert "argument 'self' of type Scaled" in error.message
    assert "dataclass" in error.help
    assert "static_argnums=0" in error.help
    assert Scaled().fixed(np.ones(2)).tolist() == [3, 3]
    for factor in (2.0, np.asarray([5.0, 7.0])):
        assert Nest(factor).scaled(np.ones(2)).tolist() == (np.ones(2) * factor).tolist()


# No mistakes


def tenfold(f: Callable[..., Any]) -> Callable[..., Any]:
    """A user's decorator, which hands on what `functools.wraps` finds."""

    @functools.wraps(f)
    def wrapped(*args: Any) -> Any:
        return f(*args) * 10

    return wrapped


def test_what_wraps_a_compiled_function_is_compiled_itself() -> None:
    """The wrapper has the attributes of what it wraps; it was taken for that."""
    x = np.arange(3.0)
    for inner in (sm.jit(lambda x: sm.sum(x**2)), sm.jit(lambda x: sm.sum(x**2), rounding="fast")):
        assert sm.jit(tenfold(inner))(x) == 50
        assert sm.jit(sm.grad(inner))(x).tolist() == [0, 2, 4]
        value, slope = sm.jit(sm.value_and_grad(inner))(x)
        assert (float(value), slope.tolist()) == (5, [0, 2, 4])
        twice = sm.jit(sm.grad(lambda x, f=inner: sm.sum(sm.jit(sm.grad(f))(x) ** 2)))
        assert twice(x).tolist() == [0, 8, 16]
        assert sm.explain(sm.grad(inner), x).kernels
    outer: Any = sm.jit(tenfold(inner))
    assert outer.__wrapped__.__wrapped__ is inner


def test_attributes_of_a_function_are_kept() -> None:
    def f(x: Any) -> Any:
        return x + 1

    f.mine = 7  # type: ignore[attr-defined]
    assert sm.jit(f).mine == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lists", "wanted"),
    [
        ([[1, 2], [3]], "length 2 at obj[0], length 1 at obj[1]"),
        ([1, [2]], "no list at obj[0], length 1 at obj[1]"),
        ([[[1], [2, 3]], [[1], [2]]], "length 1 at obj[0][0], length 2 at obj[0][1]"),
        ([[[1], [2]], [[1], []]], "length 1 at obj[0][0], length 0 at obj[1][1]"),
    ],
)
def test_ragged_lists_are_named_by_their_indices(lists: Any, wanted: str) -> None:
    error = raised(sm.errors.ArgumentError, lambda: sm.asarray(lists))
    assert wanted in str(error)
    assert "sm.concat" in str(error)
