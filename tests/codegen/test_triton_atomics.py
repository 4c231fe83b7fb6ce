"""Stores that combine values in any order have a grid over their sources, with atomic operations.

Sums of integers do, and sums of floats by a policy; others keep the kernel's order.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codegen.checked_triton import CheckError, launch
from tests.codegen.device_programs import PROGRAMS, rates
from tests.codegen.test_triton_goldens import with_lanes
from tests.codegen.triton_faults import plant
from tests.kernel.goldens import GOLDENS

import smelt as sm
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.schedule import EXACT, Policy
from smelt.codegen.triton.select import select
from smelt.codegen.triton.source import prepare, triton_source
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.packages.installed import has_triton

FREE = Policy(order="free")
COUNTS = """
kernel counts(ids: i64[j], w: {dtype}[j], v: {dtype}[j,d]) -> y: {dtype}[i,d]
  grid q in split(i, max(1, min(4, d)))
  stream i/all of q
    y[i,d] = {first}
    stream j where (ids[j] >= first(i)) & (ids[j] <= last(i))
      at = position(ids[j], size(i))
      y[at,d] {join}= v[j,d] * w[j]
"""


def counts(dtype="i64", join="add", first="0"):
    return parse(COUNTS.format(dtype=dtype, join=join, first=first))


def arrays(sources, rows, columns, dtype=np.int64, seed=0):
    random = np.random.default_rng(seed)
    ids = random.integers(-2, rows + 2, sources)
    w, v = random.integers(-50, 50, sources), random.integers(-50, 50, (sources, columns))
    return [ids, w.astype(dtype), v.astype(dtype)]


def is_atomic(kernel, policy=EXACT):
    return "tl.atomic_" in triton_source(kernel, policy=policy)


@pytest.mark.parametrize(
    ("join", "dtype", "first"),
    [
        ("add", "i64", "0"),
        ("add", "i32", "7"),
        ("max", "i64", "-100"),
        ("min", "i32", "100"),
        ("add", "u32", "3"),
    ],
)
def test_integers_are_combined_in_any_order(join, dtype, first):
    kernel = counts(dtype, join, first)
    name = {"i64": np.int64, "i32": np.int32, "u32": np.uint32}[dtype]
    inputs = arrays(50, 6, 5, name)
    source = with_lanes(triton_source(kernel), 4)
    assert f"tl.atomic_{join}" in source and source.count("@triton.jit\ndef kernel_") == 2
    (y,) = launch(source, inputs, size_i=6)
    np.testing.assert_array_equal(y, run(kernel, inputs, {"i": 6})["y"])


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
def test_sums_of_integers_are_those_of_the_interpreter(sources, rows, columns, seed):
    kernel, inputs = counts(), arrays(sources, rows, columns, seed=seed)
    (y,) = launch(with_lanes(triton_source(kernel), 8), inputs, size_i=rows)
    np.testing.assert_array_equal(y, run(kernel, inputs, {"i": rows})["y"])


@given(st.integers(1, 40), st.integers(1, 9), st.integers(2, 6), st.integers(0, 99))
def test_sums_of_floats_have_the_bits_of_the_kernels_order(sources, rows, columns, seed):
    """Programs find the positions that are theirs in blocks, and visit them one after another."""
    kernel = counts("f32")
    ids, w, v = arrays(sources, rows, columns, np.float32, seed)
    inputs = [ids, w / np.float32(7), v / np.float32(3)]
    source = with_lanes(triton_source(kernel), 8)
    assert "for _ in tl.range(0, tl.sum(holds_j" in source
    (y,) = launch(source, inputs, size_i=rows)
    np.testing.assert_array_equal(y, run(kernel, inputs, {"i": rows})["y"])


def test_programs_of_a_device_share_the_rows_of_a_result():
    def parts(machine, *shapes):
        report = sm.explain(
            lambda x, ids: sm.segment_sum(x, ids, num_segments=shapes[0]),
            *(sm.spec(s) for s in shapes[1:]),
            target=machine,
        )
        return re.findall(r"split\(i, (\d+)\)", report.kernels[0].text)

    with sm.config(device_code=False):
        assert parts("h100", 5000, "f32[9000]", "i64[9000]") == ["528"]
        assert parts("h100", 50, "f32[9000]", "i64[9000]") == ["50"]
        assert parts("avx2", 5000, "f32[9000]", "i64[9000]") == []


def test_order_is_kept_where_it_matters():
    """Floats, narrow integers, and stores of the last value are not atomic by default."""
    assert is_atomic(counts()) and is_atomic(counts("f32"), FREE)
    for dtype in ("f32", "f16", "i8", "u16"):
        assert not is_atomic(counts(dtype))
    assert not is_atomic(counts("f32", "max"), FREE)  # NaN and the sign of zero
    assert not is_atomic(counts("i64", "mul"))
    assert not is_atomic(parse(GOLDENS["histogram"]))
    assert not is_atomic(parse(GOLDENS["messages"]))


def test_floats_are_combined_in_any_order_by_policy():
    kernel = parse(GOLDENS["messages"])
    random = np.random.default_rng(3)
    h, w = (random.standard_normal(s).astype(np.float32) for s in ((9, 5), 40))
    inputs = [h, w, *(random.integers(0, 9, 40) for _ in range(2))]
    source = with_lanes(triton_source(kernel, policy=FREE), 4)
    assert "tl.atomic_add" in source
    (y,) = launch(source, inputs)
    np.testing.assert_allclose(y, run(kernel, inputs)["y"], 1e-5, 1e-5)


def test_sources_are_the_grid():
    first, update = prepare(counts(), {"i": 6, "j": 1000, "d": 4})
    assert [b.axis for b in first.grid] == ["i", "d"]
    assert [b.axis for b in update.grid] == ["j", "d"]


RACES = {
    "a store in place of the operation": ("tl.atomic_add(", "store("),
    "no first value": ("kernel_counts_first[", "nothing["),
    "another order of memory": ('sem="relaxed"', 'sem="weak"'),
}


@pytest.mark.parametrize("race", RACES)
def test_races_are_caught(race):
    """What only an atomic operation may do, and what it relies on."""
    old, new = RACES[race]
    source = with_lanes(triton_source(counts()), 4)
    wrong = source.replace(old, new) + (
        "\n\ndef store(place, value, mask, sem):\n    tl.store(place, value, mask=mask)\n"
        "\n\nclass Nothing:\n    def __getitem__(self, grid):\n"
        "        return lambda *a, **k: None\n\n\nnothing = Nothing()\n"
    )
    assert wrong != source
    with pytest.raises(CheckError):
        launch(wrong, arrays(50, 6, 5), size_i=6)


def test_an_element_that_an_operation_changes_is_not_loaded():
    source = with_lanes(triton_source(counts()), 4)
    read = "tl.load(ptr_y + tl.arange(0, 1))\n    tl.atomic_add("
    with pytest.raises(CheckError, match="loaded after it was stored"):
        launch(source.replace("tl.atomic_add(", read), arrays(50, 6, 5), size_i=6)


def test_planted_faults_are_caught():
    kernel, inputs = counts(), arrays(30, 6, 5)
    source = with_lanes(triton_source(kernel), 4)
    (right,) = launch(source, inputs, size_i=6)
    missed: list[str] = []
    planted = list(plant(source))
    for what, wrong in planted:
        try:
            (y,) = launch(wrong, inputs, size_i=6)
        except (CheckError, ValueError, TypeError, IndexError):
            continue
        missed += [what] if np.array_equal(y, right) else []
    assert len(planted) > 20
    assert len(missed) <= 0.05 * len(planted), missed


@pytest.mark.skipif(not has_triton(), reason="compiling ahead of time needs Triton")
@pytest.mark.parametrize("policy", [EXACT, FREE])
def test_histogram_compiles_to_atomic_operations(policy):
    ((kernel, sizes),) = PROGRAMS["histogram"].kernels()
    selection = select(kernel, sizes, rates("sm_90"), TritonCompiler(), policy)
    instructions = [x.program.resources.instructions for x in selection.launches]
    assert any("ATOMG" in c or "REDG" in c for c in instructions), instructions
    assert all(x.warning is None for x in selection.launches)
