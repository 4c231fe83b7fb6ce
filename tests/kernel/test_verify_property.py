"""The interpreter runs what the verifier accepts: no bad index, no double store."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.kernel.random_kernels import kernels

from smelt.errors import VerifyError
from smelt.kernel.interp import run
from smelt.kernel.ir import Kernel
from smelt.kernel.verify import verify
from smelt.types.expr import evaluate


def arrays_for(kernel: Kernel, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    out = {}
    for p in kernel.inputs:
        shape = tuple(int(evaluate(d, sizes)) for d in p.shape)
        out[p.name] = random.integers(-3, 9, shape).astype(p.dtype.numpy)
    return out


def accepted(kernel: Kernel) -> bool:
    try:
        verify(kernel)
    except VerifyError:
        return False
    return True


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.sampled_from([(1, 1), (1, 3), (2, 5), (4, 3), (5, 1)]), st.integers(0, 3))
def test_what_is_accepted_runs(kernel, numbers, seed):
    sizes = dict(zip(("n", "m"), numbers, strict=True))
    assume(all(evaluate(fact, sizes) >= 0 for fact in kernel.facts))
    if not accepted(kernel):
        return
    arrays = arrays_for(kernel, sizes, seed)
    run(kernel, arrays, sizes, complete=False, order="random", seed=seed)
    blocks = {a.name: 3 for a in kernel.axes}
    run(kernel, arrays, sizes, complete=False, grid_sizes=blocks)
