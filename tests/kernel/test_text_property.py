"""The text of any kernel reads back to an equal kernel, and prints as itself again."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from tests.kernel.random_kernels import kernels

from smelt.kernel.text import parse, text


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels())
def test_any_kernel_reads_back(kernel):
    shown = text(kernel)
    again = parse(shown)
    assert again == kernel, shown
    assert text(again) == shown
