"""Kernels, bytes, memory and size of code of a fixed corpus: exactly as stored.

A difference is not a failure of the program but news: `make counters` accepts it.
"""

from __future__ import annotations

import pytest
from tests.counters import corpus

PROGRAMS = corpus.programs()


def test_every_program_is_stored():
    assert list(corpus.stored()) == list(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_counters(name):
    actual = corpus.differences(name, corpus.stored()[name], corpus.count(PROGRAMS[name]()))
    assert not actual, "\n".join([*actual, "if that is meant: make counters"])


def test_a_difference_is_reported():
    actual = corpus.differences("f", {"kernels": 1, "bytes": 8}, {"kernels": 2, "bytes": 8})
    assert actual == ["f: kernels 1 -> 2"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_must_hold_of_every_program(name):
    c = corpus.stored()[name]
    assert 1 <= c["kernels"] + c["calls"] <= c["operators"]
    assert c["launches"] <= c["kernels"] + c["calls"] + c["checks"]
    assert 0 < c["bytes"] <= c["bytes_unfused"]
    assert c["ir_lines"] > 0
