"""Number arguments of jitted functions: sizes where they bound something, guards where they are
compared, values otherwise.  Each function runs as NumPy runs it, for all values, in few recordings.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm

X = np.arange(40 * 6, dtype=np.float32).reshape(40, 6) / 7
ALL = [*range(-12, 13), 20, 39, 40, 41, -39, -40, -41]
"""Around each corner: -1, 0 and 1 have recordings of their own, as sizes of 0 and 1 have."""

WHOLE = {
    "slice": (lambda xp, x, i: x[i : i + 5] * 2, ALL, 10),
    "to": (lambda xp, x, i: xp.sum(x[:i], axis=0), ALL, 9),
    "from": (lambda xp, x, i: x[i:] + 1, ALL, 9),
    "from the end": (lambda xp, x, i: x[-i:] + 1, ALL, 9),
    "a quotient": (lambda xp, x, i: x[i // 2 : i] * 2, range(2, 13), 2),
    "least": (lambda xp, x, i: x[i : min(i + 5, x.shape[0])] * 2, range(13), 4),
    "roll": (lambda xp, x, i: xp.roll(x, i, axis=0) * 2, ALL, 9),
    "roll back": (lambda xp, x, i: xp.roll(x, -i, axis=0) * 2, ALL, 9),
    "roll flat": (lambda xp, x, i: xp.roll(x, i) * 2, [3, 4, 5, 50, 100, 239], 1),
    "range": (lambda xp, x, i: xp.arange(i) * 2, ALL, 5),
    "range from": (lambda xp, x, i: xp.arange(2, i + 3) * 2, ALL, 5),
    "zeros": (lambda xp, x, i: xp.zeros((i, 3)) + 1, range(13), 3),
    "spread": (lambda xp, x, i: xp.linspace(0.0, 1.0, i), range(2, 13), 1),
    "eye": (lambda xp, x, i: xp.eye(i) * 2, range(13), 3),
    "repeat": (lambda xp, x, i: xp.repeat(x, i, axis=0) + 1, range(7), 3),
    "tile": (lambda xp, x, i: xp.tile(x, (i, 1)) + 1, range(7), 3),
    "broadcast": (lambda xp, x, i: xp.broadcast_to(x[0], (i, 6)) * 2, range(7), 3),
    "triangle": (lambda xp, x, i: xp.tril(x, k=i) * 2, ALL, 2),
    "rows": (lambda xp, x, i: xp.sum(xp.reshape(x, (i, -1)), axis=1), [2, 4, 5, 8, 10, 20], 1),
    "columns": (lambda xp, x, i: xp.sum(xp.reshape(x, (-1, i)), axis=1), [2, 4, 5, 8, 10, 20], 1),
    "one row": (lambda xp, x, i: x[i] * 2, range(-40, 40), 1),
    "both": (lambda xp, x, i: x[:i] * i, range(2, 13), 1),
    "a branch": (lambda xp, x, i: x * 2 if i > 3 else x + i, ALL, 2),
    "branches": (lambda xp, x, i: x[:i] if i >= 4 and i != 7 else x * i, range(13), 4),
    "truth": (lambda xp, x, i: x * i if i else x, ALL, 2),
    "asked of a size": (lambda xp, x, i: x[i:] if i < x.shape[0] else x, ALL, 10),
    "steps": (lambda xp, x, i: x[::i] * 2, [2, 3, 5], 3),
    "count": (lambda xp, x, i: sum(x[k] for k in range(i)), [1, 2, 3], 3),
}
"""What is done, with which values, and how many recordings it may take at most."""


@pytest.mark.parametrize("name", WHOLE)
def test_whole_number(name):
    f, values, most = WHOLE[name]
    jitted = sm.jit(lambda x, i: f(sm, x, i))
    for i in values:
        np.testing.assert_allclose(jitted(X, i), f(np, X, i), rtol=1e-6, err_msg=f"i = {i}")
        np.testing.assert_allclose(jitted(X, i), f(np, X, i), rtol=1e-6, err_msg=f"again {i}")
    assert sum(map(len, jitted.traces.values())) <= most


FLOATS = {
    "branch": lambda xp, x, v: x * v if v > 0.5 else x + v,
    "not a number": lambda xp, x, v: x if v == v else x * 0,
    "arithmetic": lambda xp, x, v: x + 1 if 2 * v - 1 <= 0.5 else x - 1,
    "chain": lambda xp, x, v: x * 2 if 0.0 < v < 1.0 else x,
}


@pytest.mark.parametrize("name", FLOATS)
def test_comparison_of_a_float(name):
    f = FLOATS[name]
    jitted = sm.jit(lambda x, v: f(sm, x, v))
    for v in [-1.0, -0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0, np.inf, -np.inf, np.nan]:
        with np.errstate(invalid="ignore"):  # 0 * inf
            np.testing.assert_array_equal(jitted(X, v), f(np, X, v))
    assert sum(map(len, jitted.traces.values())) <= 3


def test_ends_of_a_line():
    jitted = sm.jit(sm.linspace)
    for low, high, n in [(0.5, 2.0, 4), (0.25, -1.0, 9), (-3.0, 7.5, 2), (0.0, 0.0, 5)]:
        np.testing.assert_allclose(jitted(low, high, n), np.linspace(low, high, n), rtol=1e-15)
    assert sum(map(len, jitted.traces.values())) == 1


def test_a_seed():
    jitted = sm.jit(lambda seed: sm.random.uniform(sm.random.key(seed), (8,)))
    for seed in [0, 1, 7, -1, 2**62]:
        np.testing.assert_array_equal(jitted(seed), sm.random.uniform(sm.random.key(seed), (8,)))
    assert sum(map(len, jitted.traces.values())) == 1


def test_two_numbers_bound_one_slice():
    jitted = sm.jit(lambda x, low, high: sm.sum(x[low:high], axis=1))
    for low in range(2, 9):
        for high in range(low + 2, 12):
            np.testing.assert_allclose(jitted(X, low, high), X[low:high].sum(1), rtol=1e-6)
    assert sum(map(len, jitted.traces.values())) == 1


def test_a_cache_that_grows():
    """One position a call, as a decoder does: one recording for all lengths."""

    @sm.jit
    def step(cache, row, at):
        cache = sm.concat([cache[:at], row, cache[at + 1 :]])
        return cache, sm.sum(cache[: at + 1], axis=0)

    cache = np.zeros_like(X)
    for at in range(2, 38):
        cache, total = step(cache, X[at : at + 1], at)
        np.testing.assert_allclose(total, X[2 : at + 1].sum(0), rtol=1e-5)
    assert sum(map(len, step.traces.values())) == 1


def test_a_number_beside_sizes_of_the_same_name():
    lowered = sm.jit(lambda x, i: x[:i]).lower(sm.spec("f32[k0,n0]"), 5)
    np.testing.assert_array_equal(lowered.compile()(X, 7), X[:7])


def test_derivative_of_a_slice():
    jitted = sm.jit(sm.grad(lambda x, i: sm.sum(x[:i] ** 2)))
    for i in range(2, 9):
        want = np.where(np.arange(40)[:, None] < i, 2 * X, 0)
        np.testing.assert_allclose(jitted(X, i), want, rtol=1e-6)
    assert sum(map(len, jitted.traces.values())) == 1


def test_explanation_of_a_number():
    report = sm.explain(lambda x, i: sm.exp(x[i : i + 5]), X, 7)
    assert "exp" in str(report)


BITS: dict[str, Callable[[Any], Any]] = {
    "divmod": lambda n: divmod(n, 3),
    "rdivmod": lambda n: divmod(17, n),
    ">>": lambda n: n >> 1,
    "<<": lambda n: n << 2,
    "1 <<": lambda n: 1 << n,
    "&": lambda n: (n & 1, n & 6, 5 & n),
    "|": lambda n: (n | 8, 8 | n),
    "^": lambda n: n ^ 3,
    "~": lambda n: ~n,
    "trunc": lambda n: math.trunc(n / 2),
    "bits": lambda n: n.bit_length(),
    "& n": lambda n: n & n,
}


@pytest.mark.parametrize("what", BITS)
def test_sizes_and_arguments_count_in_bits_as_integers_do(what: str) -> None:
    f = BITS[what]

    def by_condition(n: Any) -> Any:
        result = f(n)
        return [sm.asarray(v) * 1 for v in (result if isinstance(result, tuple) else (result,))]

    of_size, of_number = sm.jit(lambda x: by_condition(x.shape[0])), sm.jit(by_condition)
    for n in (5, 6, 2, 13):
        result = f(n)
        want = list(result) if isinstance(result, tuple) else [result]
        assert [int(v) for v in of_size(np.zeros(n))] == want
        assert [int(v) for v in of_number(n)] == want


def test_halving_by_a_shift_compiles_once() -> None:
    f = sm.jit(lambda x: x[: x.shape[0] >> 1] if x.shape[0] & 1 else x)
    for n in (8, 10, 12, 9, 11, 13):
        assert f(np.zeros(n)).shape == (n >> 1 if n & 1 else n,)
    assert sum(len(t) for t in f.traces.values()) == 2


def test_floats_have_no_bits() -> None:
    for f in (lambda k: k & 1, lambda k: k >> 1, lambda k: ~k, lambda k: 1 << k):
        with pytest.raises(TypeError):
            sm.jit(f)(2.5)


def test_integers_of_numpy_are_those_of_python() -> None:
    def code(xp: Any, x: Any, i: Callable[[int], Any]) -> tuple[Any, ...]:
        rolled, transposed = xp.roll(x, i(2), axis=i(-1)), xp.moveaxis(x, i(0), i(1))
        built = xp.arange(i(1), i(9), i(2)), xp.eye(i(3), i(4), k=i(1)), xp.tril(x, k=i(1))
        return rolled, transposed, *built, xp.tensordot(x, x, axes=i(2))

    for got, want in zip(code(sm, sm.asarray(X), np.int32), code(np, X, int), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
