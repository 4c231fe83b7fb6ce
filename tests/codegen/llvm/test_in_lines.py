"""Right operands with short rows: tiles read them where they lie if each vector is in one line of
the cache, and those in two, which every tile would load twice, are packed once."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm.guarded import Guarded
from tests.codegen.llvm.test_contractions import ATTENTION, matrices
from tests.codegen.llvm.whole import RUNNABLE, one_cluster, whole

from smelt import lower
from smelt.codegen.llvm.module import emit
from smelt.graph.text import parse
from smelt.target import Target

Array = np.ndarray[Any, Any]
PRODUCT = matrices("f32", "m,k; k,n -> m,n")


def moved(memory: Guarded, x: Array, after: int) -> Array:
    """A copy that begins so many bytes behind a page."""
    room = memory.array((x.size + 16,), x.dtype, at_end=False)
    found = room[after // 4 : after // 4 + x.size].reshape(x.shape)
    found[:] = x
    return found


@pytest.mark.parametrize(("isa", "bytes_"), [("avx512", 64), ("avx2", 32), ("neon", 16)])
def test_places_are_asked_for_whole_vectors(isa: str, bytes_: int) -> None:
    kernel = lower.run(one_cluster(parse(PRODUCT)), "eager", {})
    text = emit(kernel, Target.for_isa(isa)).llvm  # type: ignore[arg-type]
    (address,) = re.findall(r"(%\S+) = ptrtoint", text)
    assert re.search(
        rf"or i64 {re.escape(address)}, (%\S+)\n\s*%\S+ = and i64 %\S+, {bytes_ - 1}\n", text
    )


@pytest.mark.parametrize("isa", RUNNABLE)
def test_operands_at_every_place(isa: str) -> None:
    plain, streamed = whole(PRODUCT, isa, usual=True), whole(ATTENTION, isa)
    rng = np.random.default_rng(0)
    for n, k, after in product((32, 64, 96), (1, 40, 259), (0, 4, 16, 32, 60)):
        x, y = (rng.integers(-4, 5, s).astype("f4") for s in ((13, k), (k, n)))
        with Guarded() as memory:
            assert np.array_equal(plain(x, moved(memory, y, after))[0], x @ y), (n, k, after)
    for m, n, after in product((1, 25, 200), (7, 513, 700), (0, 4, 16, 32, 60)):
        q, k, v = (
            rng.standard_normal(s).astype("f4") for s in ((2, m, 64), (2, n, 64), (2, n, 64))
        )
        (wanted,) = streamed(q, k, v)
        with Guarded() as memory:
            found = streamed(q, moved(memory, k, after), moved(memory, v, after))[0]
        assert np.array_equal(found, wanted), (m, n, after)
        w = np.exp(0.25 * (q.astype("f8") @ k.transpose(0, 2, 1)))
        assert np.allclose(found, w @ v / w.sum(axis=2, keepdims=True), atol=1e-5), (m, n, after)
