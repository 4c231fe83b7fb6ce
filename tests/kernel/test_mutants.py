"""R14: hundreds of wrong kernels, each refused before it runs; the right ones are all accepted."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS
from tests.kernel.mutate import Mutant, mutants
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.errors import VerifyError
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse
from smelt.kernel.verify import verify

LEAST = 500


def kernel_of(name: str) -> Kernel:
    return parse(GOLDENS[name].replace("each of 148", "each of 2"))


def is_wrong(name: str, kernel: Kernel, seed: int = 1) -> bool:
    """Whether a run at some size leaves an array, or stores an element twice."""
    for scale in (1, 2):
        arrays = REFERENCES[name].inputs(np.random.default_rng(seed), scale)
        arrays = {k: v[:2] if isinstance(v, list) else v for k, v in arrays.items()}
        sizes = extra_sizes(name, arrays)
        for cut in ({}, {a.name: 2 for a in kernel.axes}):
            try:
                run(kernel, arrays, sizes, complete=False, grid_sizes=cut)
            except VerifyError:
                return True
    return False


def refused(kernel: Kernel) -> bool:
    try:
        verify(kernel)
    except VerifyError:
        return True
    return False


def wrong_mutants(name: str) -> list[Mutant]:
    return [(what, k) for what, k in mutants(kernel_of(name)) if is_wrong(name, k)]


@pytest.fixture(scope="module")
def judged() -> dict[str, list[Mutant]]:
    return {name: wrong_mutants(name) for name in GOLDENS}


def test_there_are_enough_mutants(judged):
    assert sum(map(len, judged.values())) >= LEAST


@pytest.mark.parametrize("name", GOLDENS)
def test_every_wrong_mutant_is_refused(name, judged):
    passed = [what for what, kernel in judged[name] if not refused(kernel)]
    assert not passed


@pytest.mark.parametrize("name", GOLDENS)
def test_the_original_is_accepted_and_runs(name):
    assert not refused(kernel_of(name))
    assert not is_wrong(name, kernel_of(name))
