"""Generators draw NumPy's numbers; in recordings they have shapes, dtypes and moments."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp
from smelt.errors import ArgumentError, TracerError
from smelt.frontends.array import random as keys
from smelt.numpy import small

MOMENTS: dict[str, tuple[tuple[Any, ...], float, float]] = {
    "random": ((), 0.5, 1 / 12),
    "uniform": ((2.0, 4.0), 3.0, 4 / 12),
    "standard_normal": ((), 0.0, 1.0),
    "normal": ((1.0, 2.0), 1.0, 4.0),
    "lognormal": ((0.0, 0.5), 1.1331, 0.36469),
    "standard_exponential": ((), 1.0, 1.0),
    "exponential": ((2.0,), 2.0, 4.0),
    "laplace": ((1.0, 2.0), 1.0, 8.0),
    "logistic": ((1.0, 2.0), 1.0, 13.1595),
    "gumbel": ((0.0, 1.0), 0.57722, 1.64493),
    "rayleigh": ((2.0,), 2.50663, 1.71681),
    "pareto": ((5.0,), 0.25, 0.104167),
    "weibull": ((2.0,), 0.886227, 0.214602),
    "power": ((3.0,), 0.75, 0.0375),
    "geometric": ((0.25,), 4.0, 12.0),
    "triangular": ((0.0, 1.0, 3.0), 4 / 3, 7 / 18),
}
"""Distribution -> parameters, mean and variance."""


@pytest.mark.parametrize("name", MOMENTS)
def test_distributions_have_their_moments(name: str) -> None:
    parameters, mean, variance = MOMENTS[name]
    n = 40_000
    rng = snp.random.RecordedGenerator(keys.key(3))
    x = np.asarray(getattr(rng, name)(*parameters, size=n))
    theirs = getattr(np.random.default_rng(3), name)(*parameters, size=n)
    assert (x.shape, x.dtype) == (theirs.shape, theirs.dtype)
    bound = 6 * (variance / n) ** 0.5  # six standard errors of the mean
    assert abs(x.mean() - mean) < bound
    assert abs(x.var() - variance) < 0.15 * variance


@pytest.mark.parametrize(
    "name", [n for n in dir(np.random.Generator) if n[0] != "_" and n != "bit_generator"]
)
def test_every_method_of_numpys_generator_is_there(name: str) -> None:
    assert callable(getattr(snp.random.default_rng(0), name))


def test_a_seed_determines_the_numbers_and_draws_differ() -> None:
    a, b = snp.random.default_rng(7), snp.random.default_rng(7)
    first = a.normal(size=5)
    assert first.tolist() == b.normal(size=5).tolist()
    assert first.tolist() != a.normal(size=5).tolist()
    assert first.tolist() != snp.random.default_rng(8).normal(size=5).tolist()
    children = a.spawn(2)
    assert children[0].random(3).tolist() != children[1].random(3).tolist()


def test_parameters_may_be_arrays_and_sizes_absent() -> None:
    rng = snp.random.default_rng(0)
    assert rng.normal(np.zeros((2, 3)), 1.0).shape == (2, 3)
    assert isinstance(rng.random(), float)
    assert rng.exponential(scale=2.0, size=(2, 2)).shape == (2, 2)


def test_integers_stay_in_their_range() -> None:
    x = snp.random.RecordedGenerator(keys.key(1)).integers(-3, 4, size=5000)
    assert (int(x.min()), int(x.max()), x.dtype) == (-3, 3, sm.int64)
    rng = snp.random.RecordedGenerator(keys.key(1))
    ends = rng.integers(1, 2, size=500, endpoint=True, dtype=np.uint8)
    assert (int(ends.min()), int(ends.max()), ends.dtype) == (1, 2, sm.uint8)
    for wrong in ((3, 3), (-(2**63), 2**63 - 1)):
        with pytest.raises(ArgumentError, match="high"):
            rng.integers(*wrong)


DRAWS: list[Callable[[Any, Any], Any]] = [
    lambda np, g: g.normal(size=(3, 4)),
    lambda np, g: g.random(),
    lambda np, g: g.random(4, out=np.zeros(4)),
    lambda np, g: g.integers(0, 9, np.asarray([3, 2])),
    lambda np, g: g.normal(np.arange(5), 2.0),
    lambda np, g: g.multivariate_normal(np.zeros(2), np.eye(2), 4),
    lambda np, g: g.choice(np.arange(10.0), 3, p=np.ones(10) / 10),
    lambda np, g: g.permutation(np.arange(12).reshape(3, 4)),
    lambda np, g: g.permuted(np.arange(12).reshape(3, 4), axis=1),
    lambda np, g: shuffled(g, np.arange(30)),
    lambda np, g: shuffled(g, [*range(30)]),
    lambda np, g: g.spawn(2)[1].poisson(3.0, 5),
    lambda np, g: pickle.loads(pickle.dumps(g)).gamma(2.0, size=5),
]


def shuffled(rng: Any, x: Any) -> Any:
    rng.shuffle(x)
    return x


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("limit", [0, 8192])
def test_numbers_are_numpys(draw: Callable[[Any, Any], Any], limit: int) -> None:
    former = small.set_limit(limit)
    try:
        actual = draw(snp, snp.random.default_rng(7))
        again = draw(snp, snp.random.Generator(snp.random.PCG64(7)))
    finally:
        small.set_limit(former)
    expected = draw(np, np.random.default_rng(7))
    np.testing.assert_array_equal(np.asarray(actual), expected)
    np.testing.assert_array_equal(np.asarray(again), expected)


def test_the_older_interface_shares_one_generator() -> None:
    theirs = np.random.RandomState(5).rand(2, 2)
    snp.random.seed(5)
    first = snp.random.rand(2, 2), snp.random.randn(3), snp.random.randint(0, 9, 4)
    state = snp.random.get_state()
    after = snp.random.random(2).tolist()
    snp.random.set_state(state)
    assert snp.random.random(2).tolist() == after
    snp.random.seed(5)
    again = snp.random.rand(2, 2), snp.random.randn(3), snp.random.randint(0, 9, 4)
    assert first[0].tolist() == theirs.tolist()
    assert [a.tolist() for a in first] == [a.tolist() for a in again]


def test_recordings_draw_from_generators_created_inside() -> None:
    outside = snp.random.default_rng(0)

    @sm.jit
    def repeats() -> sm.Array:
        return outside.random(3)

    with pytest.raises(TracerError, match="Make it inside"):
        repeats()

    @sm.jit
    def inside(seed: sm.Array) -> sm.Array:
        return snp.random.default_rng(seed).random(3)

    numbers = inside(sm.asarray(3)).tolist()
    assert numbers == inside(sm.asarray(3)).tolist()
    assert numbers != inside(sm.asarray(4)).tolist()
