"""Random numbers: the same everywhere for one key, and distributed as they say."""

from __future__ import annotations

import numpy as np
import pytest

import smelt as sm

R = sm.random


def test_known_words() -> None:
    """Philox4x32-10 of counter 0 and key 0, from the authors' known answers."""
    words = R.bits(R.key(0), (4,)).tolist()
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_one_key_one_answer() -> None:
    key = R.key(42)
    first = np.asarray(R.uniform(key, (5, 7)))
    np.testing.assert_array_equal(R.uniform(key, (5, 7)), first)
    np.testing.assert_array_equal(sm.jit(lambda k: R.uniform(k, (5, 7)))(key), first)
    np.testing.assert_array_equal(np.ravel(R.uniform(key, 35)), first.ravel())
    f = sm.jit(lambda k, x: x + R.uniform(k, x.shape))
    for n in (3, 5):
        np.testing.assert_array_equal(
            f(key, np.zeros((n, 7), np.float32)), first[:n] if n == 5 else R.uniform(key, (3, 7))
        )


def test_keys_differ() -> None:
    keys = R.split(R.key(1), 50)
    assert len({int(k) for k in keys}) == 50
    drawn = {tuple(R.bits(k, (3,)).tolist()) for k in keys}
    assert len(drawn) == 50
    assert int(R.key(-1)) == 2**64 - 1
    a, b = sm.jit(R.split)(R.key(1))
    assert [int(a), int(b)] == [int(k) for k in R.split(R.key(1))]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_uniform(dtype: str) -> None:
    u = np.asarray(R.uniform(R.key(3), (20000,), low=-1.0, high=3.0, dtype=dtype)).astype(
        np.float64
    )
    assert u.min() >= -1
    assert u.max() <= 3
    assert abs(u.mean() - 1) < 0.04  # 4.9 standard errors: 4 / sqrt(12) / sqrt(20000)
    assert abs(u.var() - 16 / 12) < 0.05
    unit = np.asarray(R.uniform(R.key(3), (20000,), dtype=dtype)).astype(np.float64)
    assert unit.min() >= 0
    assert unit.max() < 1  # one of 512 numbers in bfloat16 was 1
    assert abs(unit.mean() - 0.5) < 0.012  # 5 standard errors, and half a step of bfloat16


def test_normal() -> None:
    for dtype in ("float64", "float32"):
        z = np.asarray(R.normal(R.key(4), (50000,), mean=2.0, std=3.0, dtype=dtype)) - 2.0
        assert abs(z.mean()) < 0.07  # 5 standard errors
        assert abs(z.std() / 3 - 1) < 0.016
        assert abs((z**3).mean() / 27) < 0.06
        assert abs((z**4).mean() / 81 - 3) < 0.25
        assert np.isfinite(z).all()


def test_bits_are_independent() -> None:
    words = np.asarray(R.bits(R.key(5), (20000,), dtype="uint64"))
    ones = np.unpackbits(words.view(np.uint8)).reshape(20000, 64).mean(0)
    assert np.abs(ones - 0.5).max() < 0.02  # 5.6 standard errors
    assert len(np.unique(words)) == 20000


def test_bernoulli() -> None:
    chance = np.asarray([0.0, 0.25, 1.0], np.float32)
    actual = np.asarray(R.bernoulli(R.key(6), chance, (20000, 3))).mean(0)
    assert actual[0] == 0
    assert actual[2] == 1
    assert abs(actual[1] - 0.25) < 0.016


def test_mistakes() -> None:
    for wrong in (
        lambda: R.key("a"),
        lambda: R.bits(R.key(0), 3, dtype="int8"),
        lambda: R.bits(sm.ones(2), 3),
        lambda: R.uniform(R.key(0), 3, dtype="int32"),
        lambda: R.normal(3, 3),
    ):
        with pytest.raises(sm.errors.SmeltError):
            wrong()
