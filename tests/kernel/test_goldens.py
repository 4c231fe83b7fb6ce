"""Every golden kernel: its text is its own print, and it computes what NumPy says."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.kernel.interp import Trace, run
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify
from smelt.kernel.walk import blocks


def test_every_golden_has_a_reference():
    assert set(GOLDENS) == set(REFERENCES)


@pytest.mark.parametrize("name", GOLDENS)
def test_text_is_its_own_print(name):
    kernel = parse(GOLDENS[name])
    assert text(kernel) == GOLDENS[name]
    assert parse(text(kernel)) == kernel
    assert hash(parse(text(kernel))) == hash(kernel)


@pytest.mark.parametrize("name", GOLDENS)
def test_the_verifier_accepts(name):
    kernel = parse(GOLDENS[name])
    assert verify(kernel) is kernel


def flat(value: object) -> np.ndarray:
    """An output, or a family of them, as one float64 vector."""
    members = value if isinstance(value, list) else [value]
    return np.concatenate([np.asarray(a).astype(np.float64).ravel() for a in members])


def small_blocks(name: str, size: int) -> dict[str, int]:
    return {b.axis: size for b in blocks(parse(GOLDENS[name])) if b.size != 1}


@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize("name", GOLDENS)
def test_golden_computes_its_reference(name, size, order):
    reference = REFERENCES[name]
    random = np.random.default_rng(7)
    arrays = reference.inputs(random, 2)
    cut = {} if size is None else dict.fromkeys(small_blocks(name, size), size + 1)
    actual = run(
        parse(GOLDENS[name]), arrays, extra_sizes(name, arrays), order=order, grid_sizes=cut
    )
    wanted = reference.outputs(**arrays)
    assert set(actual) == set(wanted)
    for key, value in wanted.items():
        np.testing.assert_allclose(
            flat(actual[key]), flat(value), rtol=reference.rtol, atol=reference.atol
        )


@pytest.mark.parametrize("name", GOLDENS)
def test_blocks_and_order_change_no_more_than_the_last_bits(name):
    arrays = REFERENCES[name].inputs(np.random.default_rng(3), 2)
    kernel, sizes = parse(GOLDENS[name]), extra_sizes(name, arrays)
    whole = run(kernel, arrays, sizes)
    parts = run(kernel, arrays, sizes, grid_sizes=small_blocks(name, 2), order="backward")
    for key, value in whole.items():
        np.testing.assert_allclose(flat(value), flat(parts[key]), rtol=1e-5, atol=1e-6)


def test_trace_counts_what_crosses_memory():
    kernel = parse(GOLDENS["add_layernorm"])
    arrays = REFERENCES["add_layernorm"].inputs(np.random.default_rng(0), 2)
    trace = Trace()
    run(kernel, arrays, trace=trace)
    rows, columns = arrays["x"].shape
    assert trace.loads["x"].unique == trace.loads["x"].elements == rows * columns
    assert trace.loads["g"].unique_nbytes == 4 * columns
    assert trace.loads["g"].nbytes == 4 * rows * columns
    assert trace.stores["y"].unique_nbytes == 4 * rows * columns
    assert trace.nbytes == 4 * (3 * rows * columns + 2 * columns)
    assert trace.blocks == rows
