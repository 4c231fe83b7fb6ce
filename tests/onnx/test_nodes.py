"""ONNX's own node tests, counted by `tools.onnx_node_tests`; they need the package onnx."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed (make onnx)")

SAMPLE = 20
"""Tests that the quick form runs, spread over the alphabet."""
MAX_FAILURES = 90
"""Tests that may fail of all 1,884: text, images, trees, training, and last bits of half types."""


def cases() -> tuple[Any, list[Any]]:
    counter = importlib.import_module("tools.onnx_node_tests")
    return counter, counter.all_cases("")


def test_a_sample_of_node_tests() -> None:
    counter, every = cases()
    chosen = every[:: len(every) // SAMPLE]
    causes = {c.name: counter.run_case(c, "error") for c in chosen}
    failed = {name: cause for name, cause in causes.items() if cause}
    assert len(failed) <= SAMPLE // 10, failed


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_most_node_tests_pass() -> None:
    counter, every = cases()
    causes = {c.name: counter.run_case(c, "error") for c in every}
    failed = {name: cause for name, cause in causes.items() if cause}
    assert len(failed) <= MAX_FAILURES, failed
