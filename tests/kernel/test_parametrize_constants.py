"""Kernels that differ in a loop's indices share their code, and read their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.kernel.random_kernels import kernels
from tests.kernel.test_verify_property import accepted, arrays_for

import smelt as sm
from smelt.kernel.canonical import canonical_kernel
from smelt.kernel.interp import run
from smelt.kernel.size_constants import erase_numbers, parametrize
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify
from smelt.runtime.executable_format import Recipe
from smelt.types.expr import evaluate

STEP = """kernel k(x: f32[n,12,64], w: f32[12,1,64], h: f32[n,64]) -> y: f32[n,64]
  axis i in n, k in 64
  grid i
  y[i,k] = h[i,k] * w[{at},0,k] + x[i,{at},k]"""


def test_an_index_of_a_step_is_a_size() -> None:
    one, two = (parametrize(parse(STEP.format(at=at))) for at in (3, 11))
    assert text(one[0]) == text(two[0])
    assert [sorted(numbers.values()) for _, numbers in (one, two)] == [[3, 3], [11, 11]]
    verify(one[0])


def test_steps_have_all_but_numbers_in_common() -> None:
    """Only kernels of one such text are looked at for steps that are alike."""
    kernels = [parse(STEP.format(at=at)) for at in (0, 3, 11)]
    kernels.append(parse(STEP.format(at=3).replace("x:", "z:").replace("x[", "z[")))
    assert len({canonical_kernel(parametrize(k)[0])[0].text for k in kernels}) == 1
    texts = [canonical_kernel(k)[0].text for k in kernels]
    assert len({*texts}) == 3
    assert len({erase_numbers(t) for t in texts}) == 1
    other = canonical_kernel(parse(STEP.format(at=3).replace("*", "+")))[0].text
    assert erase_numbers(other) != erase_numbers(texts[0])


def test_indices_that_are_read_together_stay() -> None:
    """Rows next to one another are told by their numbers: code for them may read them at once."""
    kernel = parse(
        "kernel k(x: f32[n,3]) -> y: f32[n]\n  grid n\n  y[n] = x[n,0] + x[n,1] * x[n,2]"
    )
    assert parametrize(kernel) == (kernel, {})


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.sampled_from([(1, 1), (2, 5), (5, 1)]), st.integers(0, 3))
def test_random_kernels_compute_the_same(kernel, numbers, seed) -> None:
    sizes = dict(zip(("n", "m"), numbers, strict=True))
    assume(all(evaluate(fact, sizes) >= 0 for fact in kernel.facts) and accepted(kernel))
    built, places = parametrize(kernel)
    verify(built)
    arrays = arrays_for(kernel, sizes, seed)
    result, same = (
        run(k, arrays, reported, complete=False)
        for k, reported in ((kernel, sizes), (built, {**sizes, **places}))
    )
    for a, b in zip(result.values(), same.values(), strict=True):
        # As numbers: which sign a NaN has depends on how a constant reached the kernel.
        wide = a.dtype.kind == "V"
        np.testing.assert_array_equal(*((x.astype(np.float32) if wide else x) for x in (a, b)))


def recurrence(x: Any, w: Any, u: Any, m: Any, steps: int) -> Any:
    """A cell with masks, weights of each step and the row from behind."""
    xp = x.__array_namespace__()
    h, result = xp.zeros_like(x[0]), []
    for t in range(steps):
        z = xp.tanh(x[t] @ u + h @ u + w[t, :, 0])
        h = xp.where(m[:, t, None], z, h) + x[steps - 1 - t]
        result.append(xp.sum(h, axis=0))
    return xp.stack(result)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(9, 4, 8), (9, 1, 3), (7, 40, 33)])
def test_steps_of_a_loop_share_their_code(dtype: str, shape: tuple[int, ...]) -> None:
    n, rows, d = shape
    rng = np.random.default_rng(3)
    x, w, u = (rng.integers(-2, 3, s).astype(dtype) for s in (shape, (n, d, 2), (d, d)))
    m = rng.integers(0, 2, (rows, n)).astype(bool)

    def step(x: Any, w: Any, u: Any, m: Any) -> Any:
        if dtype == "int32":
            h = x[0]
            for t in range(n):
                h = (x[t] @ u + h @ u + w[t, :, 0]) * m[:, t, None] + x[n - 1 - t]
            return h
        return recurrence(x, w, u, m, n)

    f = sm.jit(step)
    with sm.config(cache=False):
        y = np.asarray(f(x, w, u, m))
        compiled = next(iter(f.traces.values()))[0].executable
    wide = [a.astype("float64") if dtype == "float32" else a for a in (x, w, u)]
    tolerance = {"float32": 1e-4, "float64": 1e-12, "int32": 0}[dtype]
    np.testing.assert_allclose(y, step(*wide, m), rtol=tolerance, atol=tolerance)
    uses = compiled.recipe.kernels
    assert len({use.stem for use in uses}) <= max(len(uses) - (n - 5), 6)
    again = Recipe.from_data(json.loads(json.dumps(compiled.recipe.to_data())))
    assert again.kernels == uses
