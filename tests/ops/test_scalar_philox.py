"""Philox4x32-10 against the known answers published with it (Random123, kat_vectors)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.numpy_machine import NumpyMachine

from smelt.ops.scalar import SCALARS
from smelt.ops.scalar_logic import philox_block
from smelt.types.dtype import u64

Words = tuple[int, ...]

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_block_cipher(counter: Words, key: Words, words: Words) -> None:
    machine = NumpyMachine()
    c0, c1, c2, c3 = (machine.const(u64, word) for word in counter)
    k0, k1 = (machine.const(u64, word) for word in key)
    got = philox_block(machine, (c0, c1, c2, c3), (k0, k1))
    assert tuple(int(word) for word in got) == words


def test_row_takes_word_by_index() -> None:
    row = SCALARS["philox"]
    got = row.numpy(np.zeros(4, np.uint64), np.arange(4, dtype=np.uint64))
    assert tuple(int(word) for word in got) == KNOWN[0][2]


def test_reference_and_lowering_agree_on_large_keys_and_indices() -> None:
    row, machine = SCALARS["philox"], NumpyMachine()
    rng = np.random.default_rng(3)
    key = rng.integers(0, 1 << 64, 500, dtype=np.uint64)
    index = rng.integers(0, 1 << 64, 500, dtype=np.uint64)
    lowered = row.apply(machine, (u64, u64), (key, index))
    np.testing.assert_array_equal(np.asarray(lowered), row.numpy(key, index))


def test_words_are_spread_evenly() -> None:
    words = SCALARS["philox"].numpy(np.uint64(42), np.arange(1 << 16, dtype=np.uint64))
    share = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(share - 0.5) < 0.002  # five standard deviations of 2^21 fair bits
    assert len(np.unique(words)) > (1 << 16) - 8  # birthday: half a collision expected
