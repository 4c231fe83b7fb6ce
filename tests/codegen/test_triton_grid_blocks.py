"""Programs over short axes: blocks of several axes of a grid, tiles, and one merged axis."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.checked_triton import launch
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_goldens import with_lanes
from tests.codegen.triton_faults import survivors

from smelt.codegen.triton.candidates import MAX_CANDIDATES, candidates
from smelt.codegen.triton.flat_grid import flat_grid
from smelt.codegen.triton.launch_time import floor_ns
from smelt.codegen.triton.launch_work import launch_work
from smelt.codegen.triton.schedule import EXACT
from smelt.codegen.triton.source import prepare, print_file, print_stage
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.types.expr import evaluate

H100 = rates("sm_90")
ROTARY = """
kernel rotary(x: bf16[{b},{s},{h},64], t: f32[{h},32]) -> y: bf16[{b},{s},{h},64]
  grid i in {b}, j in {s}, k in {h}, l in 64/4096
  v0 = f32(x[i,j,k,l])
  v1 = f32(x[i, j, k, l + 32] else 0)
  v2 = f32(x[i, j, k, l - 32] else 0)
  y[i,j,k,l] = bf16(v0 * (t[k,l] else 0) + v1 * (t[k, l - 32] else 0) - v2)
"""
FORMS = {
    "plain": "kernel f(x: f32[a,b,c], w: f32[a,b,c]) -> y: f32[a,b,c]\n"
    "  grid a, b, c/4096\n  y[a,b,c] = x[a,b,c] * w[a,b,c] + 1\n",
    "scale": "kernel f(x: f32[a,b,c], s: f32[c], t: f32[b], u: f32[a,c]) -> y: f32[a,b,c]\n"
    "  grid a, b, c/4096\n  y[a,b,c] = x[a,b,c] * s[c] + t[b] * u[a,c]\n",
    "image": "kernel f(x: f32[a,b,c]) -> y: f32[a,b,c]\n  grid a, b, c/4096\n"
    "  v0 = x[a, b - 1, c + 1] else 0\n  v1 = x[a, b + 1, c] else 0\n"
    "  y[a,b,c] = max(v0, v1) + f32(index(b * 2 + c))\n",
    "transposed": "kernel f(x: f32[c,b,a]) -> y: f32[a,b,c]\n"
    "  grid a, b, c/4096\n  y[a,b,c] = exp(x[c,b,a])\n",
    "reversed": "kernel f(x: f32[b,c,a]) -> y: f32[a,b,c]\n"
    "  grid a, b, c/4096\n  y[a,b,c] = x[b, size(c) - 1 - c, a] * 2\n",
    "halves": "kernel f(x: bf16[a,b,c]) -> y: bf16[a,b,c], z: bool[a,b,c]\n"
    "  grid a, b, c/4096\n  v = x[a, b // 2, c // 2]\n"
    "  y[a,b,c] = v\n  z[a,b,c] = f32(v) > 0\n",
    "gathered": "kernel f(x: f32[8,c], p: i64[a,b]) -> y: f32[a,b,c]\n"
    "  grid a, b, c/4096\n  q = position(p[a,b], 8)\n  y[a,b,c] = x[q,c] + 1\n",
    "rows": "kernel f(x: f32[a,b,c], s: f32[b,c]) -> y: f32[a,b,c]\n"
    "  grid a, b\n  m = max(x[a,b,c] over c)\n  y[a,b,c] = (x[a,b,c] - m) * s[b,c]\n",
    "columns": "kernel f(x: f32[r,a,b,c]) -> y: f32[a,b,c]\n"
    "  axis r, a, b, c\n  grid a, b, c/128\n  stream r with s = 0 [a,b,c]\n"
    "    s' = s + x[r,a,b,c]\n  y[a,b,c] = s\n",
    "running": "kernel f(x: f32[a,b,c]) -> y: f32[a,b,c]\n"
    "  grid a, b\n  y[a,b,c] = sum(x[a,b,c] along c)\n",
}
"""Launches over three axes, of every kind that is not a contraction."""
COUNTS = """
kernel counts(x: i64[j], v: f32[j,a,b]) -> y: f32[i,a,b]
  grid q in split(i, max(1, min(4, a)))
  stream i/all of q
    y[i,a,b] = 0
    stream j where (x[j] >= first(i)) & (x[j] <= last(i))
      at = position(x[j], size(i))
      y[at,a,b] add= v[j,a,b]
"""


def arrays_of(kernel, sizes):
    random = np.random.default_rng(0)
    for p in kernel.inputs:
        shape = [int(evaluate(d, sizes)) for d in p.shape]
        x = random.standard_normal(shape) if p.dtype.is_float else random.integers(0, 8, shape)
        yield np.asarray(x).astype(p.dtype.numpy)


@pytest.fixture
def every_candidate(monkeypatch):
    """None of the candidates is left out."""
    module = sys.modules["smelt.codegen.triton.candidates"]
    monkeypatch.setattr(module, "MAX_CANDIDATES", 99)
    monkeypatch.setattr(module, "_varied", lambda every: every)


def check(kernel, sizes, device=H100, limit=None):
    """Run every candidate by the checked emulation; return them."""
    arrays = list(arrays_of(kernel, sizes))
    wanted = run(kernel, arrays, sizes)
    (every,) = candidates(kernel, sizes, device, EXACT)
    for c in every:
        source = print_file(kernel, [print_stage(c.launch, c.schedule)])
        outputs = launch(with_lanes(source, limit) if limit else source, arrays)
        for p, y in zip(kernel.outputs, outputs, strict=True):
            a, b = (np.asarray(v, np.float64) for v in (y, wanted[p.name]))
            np.testing.assert_allclose(a, b, 2e-2 if p.dtype.bits == 16 else 1e-5, 1e-5)
    return every


# ---- correct -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_several_axes_compute_what_the_interpreter_does(form, limit):
    """Blocks end inside of rows, and masks cut them along every axis."""
    every = check(parse(FORMS[form]), {"a": 5, "b": 9, "c": 7, "r": 3}, limit=limit)
    assert any("flat" in c.lanes for c in every)
    several = [c for c in every if sum(a in c.lanes for a in "abc") > 1]
    assert several or form == "columns"


@pytest.mark.parametrize("form", FORMS)
def test_a_merged_axis_is_what_the_kernel_says(form):
    """The interpreter computes the same of both."""
    kernel, sizes = parse(FORMS[form]), {"a": 5, "b": 4, "c": 3, "r": 2}
    flat = flat_grid(prepare(kernel, sizes)[0])
    assert flat is not None and [b.axis for b in flat.grid] == ["flat"]
    arrays = list(arrays_of(kernel, sizes))
    wanted = run(kernel, arrays, sizes)
    for name, y in run(flat, arrays, sizes).items():
        np.testing.assert_allclose(np.float64(y), np.float64(wanted[name]), 1e-6, 1e-6)


EXTENTS = st.sampled_from([1, 2, 3, 5, 8, 12, 17, 28, 33])


@settings(max_examples=25, deadline=None)
@given(
    extents=st.tuples(EXTENTS, EXTENTS, EXTENTS),
    layout=st.permutations("abc"),
    shift=st.sampled_from(["", " + 1", " - 2"]),
    shifted=st.sampled_from("abc"),
    scale=st.lists(st.sampled_from("abc"), unique=True),
    is_static=st.booleans(),
)
def test_maps_of_any_layout_compute_what_the_interpreter_does(
    extents, layout, shift, shifted, scale, is_static
):
    sizes = dict(zip("abc", extents, strict=True))
    name = {a: str(n) if is_static else a for a, n in sizes.items()}
    index = ", ".join(a + shift if a == shifted else a for a in layout)
    grid = ", ".join(f"{a} in {n}" if is_static else a for a, n in name.items())
    source = (
        f"kernel f(x: f32[{','.join(name[a] for a in layout)}],"
        f" s: f32[{','.join(name[a] for a in scale)}]) -> y: f32[{','.join(name.values())}]\n"
        f"  grid {grid}/4096\n  y[a,b,c] = (x[{index}] else 0) * s[{','.join(scale)}]\n"
    )
    check(parse(source), {} if is_static else sizes)


@pytest.mark.usefixtures("every_candidate")
def test_values_that_meet_in_memory_are_merged_in_a_free_order_alone():
    kernel, sizes = parse(COUNTS), {"i": 4, "j": 20, "a": 5, "b": 3}
    arrays = [np.arange(20) * 7 % 5 - 1, np.float32(np.arange(300) % 11).reshape(20, 5, 3)]
    wanted = run(kernel, arrays, sizes)["y"]
    every = candidates(kernel, sizes, H100, replace(EXACT, order="free"))
    assert all(any("flat" in c.lanes for c in of) for of in every)
    for first, c in itertools.product(every[0][:2], every[1]):
        stages = [print_stage(x.launch, x.schedule) for x in (first, c)]
        (y,) = launch(print_file(kernel, stages), arrays, size_i=4)
        np.testing.assert_allclose(y, wanted, 1e-5, 1e-6)
    (kept,) = candidates(kernel, sizes, H100, EXACT)
    assert not any("flat" in c.lanes for c in kept)


# ---- what is not merged --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        "kernel f(x: f32[a]) -> y: f32[a]\n  grid a/4096\n  y[a] = x[a]\n",
        (
            "kernel f(x: f32[a,k], w: f32[k,b]) -> y: f32[a,b]\n  axis a, b, k\n"
            "  grid a, b\n  y[a,b] = dot(x[a,k], w[k,b] over k)\n"
        ),
        (
            "kernel f(x: f32[a,b,c]) -> y: f32[a,b]\n  axis a, b, c\n  grid a, b/8\n"
            "  stream c/8 to last(b) + 1 with s = 0 [b]\n    s' = s + sum(x[a,b,c] over c)\n"
            "  y[a,b] = s\n"
        ),
        (
            "kernel f(x: f32[a,c]) -> y: f32[a,b]\n  axis a, b, c\n  grid a, b\n"
            "  stream c/8 to b with s = 0\n    s' = s + sum(x[a,c] over c)\n  y[a,b] = s\n"
        ),
    ],
    ids=["one axis", "contraction", "ends of a block", "ends of a loop"],
)
def test_a_grid_that_is_more_than_positions_keeps_its_axes(kernel):
    assert flat_grid(parse(kernel)) is None


# ---- chosen --------------------------------------------------------------------------------------


def best(source: str, arch: str = "sm_90", **sizes: int):
    """The candidates of a launch, its work, and the device."""
    kernel, device = parse(source), rates(arch)
    (every,) = candidates(kernel, sizes, device, EXACT)
    assert len(every) <= MAX_CANDIDATES
    return every[0], floor_ns(launch_work(kernel, sizes, EXACT), device)


def used_lanes(candidate, extents) -> float:
    """The part of a program's lanes that compute an element."""
    parts = (extents[a] / (math.ceil(extents[a] / n) * n) for a, n in candidate.lanes.items())
    return math.prod(parts)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("c", [3, 7, 12, 28, 50, 64, 197])
def test_short_last_axes_leave_few_lanes_without_an_element(c, arch):
    extents = {"a": 64, "b": 10000, "c": c}
    source = FORMS["plain"].replace("grid a, b, c", "grid a in 64, b in 10000, c in {c}")
    source = source.replace(
        "[a,b,c], w: f32[a,b,c]) -> y: f32[a,b,c]", "{0}, w: f32{0}) -> y: f32{0}"
    )
    chosen, floor = best(source.format(f"[64,10000,{c}]", c=c), arch)
    extents |= {"flat": 64 * 10000 * c}
    assert used_lanes(chosen, extents) > 0.95
    assert math.prod(chosen.lanes.values()) >= 2 * chosen.warps * rates(arch).limits.lanes
    assert chosen.predicted_ns < 1.1 * floor


def test_rotary_has_whole_rows_of_several_heads():
    chosen, floor = best(ROTARY.format(b=4, s=2048, h=16))
    assert chosen.lanes["l"] == 64 and chosen.lanes["k"] == 16 and chosen.predicted_ns < 1.6 * floor


def test_transposed_arrays_are_read_in_whole_sectors():
    for form in ("transposed", "reversed"):
        chosen, floor = best(FORMS[form], a=2048, b=2, c=2048)
        assert chosen.lanes["a"] >= 32 and chosen.lanes["c"] >= 32
        assert chosen.predicted_ns < 1.1 * floor


def test_a_small_array_decides_no_tile():
    """A vector along an outer axis is in a cache: tiles would only scatter the rest."""
    chosen, _ = best(
        "kernel f(x: f32[a,b,c], s: f32[a]) -> y: f32[a,b,c]\n"
        "  grid a, b, c/4096\n  y[a,b,c] = x[a,b,c] * s[a]\n",
        a=2048,
        b=64,
        c=64,
    )
    assert "a" not in chosen.lanes


def test_short_rows_of_several_axes_share_a_program():
    chosen, floor = best(FORMS["rows"], a=4096, b=3, c=16)
    rows = math.prod(n for a, n in chosen.lanes.items() if a != "c")
    assert rows >= 32 and chosen.predicted_ns < 1.2 * floor


def test_elements_that_neighbours_share_are_counted_once():
    source = FORMS["scale"]
    work = [
        launch_work(k, {"a": 64, "b": 8, "c": 32}, EXACT)
        for k in (parse(source), flat_grid(parse(source)))
    ]
    assert work[0].bytes == work[1].bytes
    by_param = {x.param: x for x in work[1].accesses}
    assert by_param["t"].share == 8 / 1024 and by_param["u"].share == 128 / 1024
    assert by_param["y"].share == by_param["y"].waste == 1.0
    (flat,) = (
        x
        for x in launch_work(
            flat_grid(parse(FORMS["transposed"])), dict.fromkeys("abc", 32), EXACT
        ).accesses
        if x.param == "x"
    )
    assert flat.share == 1.0 and flat.waste == 8.0


# ---- faults --------------------------------------------------------------------------------------


FAULTS = (
    *("no mask", "no fill", "a bound", "next element", "a stride is lost", "blocks overlap"),
    *("stored twice", "never stored", "program order", "other axis", "other comparison"),
)
"""Those of indices; what is computed has its own tests."""


def is_meant(what: str) -> bool:
    """Remainders are inside of the array behind its last element, too: masks change nothing."""
    return what.startswith(FAULTS) and not (what.startswith("no mask") and "% size" in what)


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("form", ["scale", "image", "transposed", "rows"])
def test_faults_of_blocks_are_caught(form):
    kernel, sizes = parse(FORMS[form]), {"a": 5, "b": 6, "c": 7}
    arrays = list(arrays_of(kernel, sizes))
    (every,) = candidates(kernel, sizes, H100, EXACT)
    flat = next(c for c in every if "flat" in c.lanes)
    tile = next(c for c in every if len(set("abc") & {*c.lanes}) > 1)
    for chosen in (flat, tile):
        source = with_lanes(print_file(kernel, [print_stage(chosen.launch, chosen.schedule)]), 4)
        planted, missed = survivors(source, arrays, is_meant)
        assert planted >= 10 and len(missed) <= 0.05 * planted, missed
