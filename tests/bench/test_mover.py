"""Moving bytes takes time, and more of it for more bytes."""

from __future__ import annotations

import pytest

from bench.mover import Mover
from smelt.machine.target import Target
from smelt.runtime.probe import Kernels


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(Target.host())


@pytest.mark.parametrize(
    ("read", "written"),
    [(1 << 20, 1 << 20), (3 << 20, 1 << 20), (0, 1 << 16), (1 << 16, 0), (8, 8)],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_mover_takes_time_for_any_mix(
    kernels: Kernels, read: int, written: int, threads: int
) -> None:
    mover = Mover(kernels, read, written, threads)
    assert 0 < mover.time_ns(3) < 1e9


def test_mover_time_follows_the_bytes(kernels: Kernels) -> None:
    def best(size: int) -> float:
        mover = Mover(kernels, size, size, 1)
        return min(mover.time_ns(20) for _ in range(7))

    assert best(4 << 20) > 2 * best(1 << 20)
