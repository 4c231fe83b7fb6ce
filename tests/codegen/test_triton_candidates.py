"""Every candidate schedule computes what the interpreter does, and orders as its rules say."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.checked_triton import launch, named_sizes
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_goldens import stored, with_lanes
from tests.codegen.triton_faults import plant, survivors
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.codegen.triton.candidates import MAX_CANDIDATES, candidates
from smelt.codegen.triton.device_limits import DeviceRates, device_limits
from smelt.codegen.triton.lane_work import lane_work
from smelt.codegen.triton.launch_time import floor_ns, launch_time, loop_shared_bytes
from smelt.codegen.triton.launch_work import launch_work
from smelt.codegen.triton.schedule import EXACT, FAST, choose_schedule
from smelt.codegen.triton.source import prepare, print_file, print_stage
from smelt.kernel.interp import run
from smelt.kernel.sizes import sizes_of_call
from smelt.kernel.text import parse
from smelt.ops.scalar import SCALARS
from smelt.types.expr import evaluate, size

H100 = DeviceRates(
    arch="sm_90",
    limits=device_limits("sm_90"),
    processors=132,
    gbytes_per_second=3350.0,
    cache_bytes=50 << 20,
    cache_gbytes_per_second=5500.0,
    launch_ns=2500.0,
    tensor_tflops=989.0,
    tf32_tflops=494.5,
    matrix_share=0.7,
    float32_tflops=67.0,
    float64_tflops=34.0,
    special_ns=1 / (132 * 16 * 1.83),
)
SOFTMAX = """
kernel softmax(x: f32[r,c]) -> y: f32[r,c]
  grid r
  m = max(x[r,c] over c)
  e = exp(x[r,c] - m)
  y[r,c] = e / sum(e over c)
"""
PRODUCT = """
kernel product(x: bf16[m,k], w: bf16[k,n]) -> y: bf16[m,n]
  grid m, n
  y[m,n] = dot(x[m,k], w[k,n] over k)
"""
COLUMNS = """
kernel columns(x: f32[r,c]) -> y: f32[c]
  grid c
  y[c] = sum(x[r,c] over r)
"""
PARTS = """
kernel parts(x: f32[r,c]) -> y: f32[]
  grid p in split(r, 2)
  stream r/all of p with total = 0
    m = max(x[r,c] over c)
    e = log(sum(exp(x[r,c] - m) over c))
    total' = total + sum(e + m over r)
  merge p: (total)
  y[] = total
"""


def best(text: str, **sizes: int):
    """The candidate that is predicted to be the fastest on an H100."""
    (of_launch,) = candidates(parse(text), sizes, H100, EXACT)
    return of_launch[0]


@pytest.mark.parametrize("lanes", [4, 1024])
@pytest.mark.parametrize("name", GOLDENS)
def test_every_candidate_computes_what_the_interpreter_does(name, lanes):
    kernel, reference = parse(GOLDENS[name]), REFERENCES[name]
    inputs = reference.inputs(np.random.default_rng(2), 3)
    arrays = {p.name: stored(p, inputs[p.name]) for p in kernel.inputs}
    extra = extra_sizes(name, arrays)
    family = any(p.each for p in kernel.inputs)
    sizes = {} if family else sizes_of_call(kernel, arrays, extra)
    wanted = run(kernel, arrays, extra)
    every = candidates(kernel, sizes, H100, EXACT)
    for of_launches in itertools.zip_longest(*every):
        chosen = [c or of[0] for c, of in zip(of_launches, every, strict=True)]
        source = print_file(kernel, [print_stage(c.launch, c.schedule) for c in chosen])
        source = with_lanes(source, max(lanes, 16) if "tl.dot" in source else lanes)
        outputs = launch(source, [arrays[p.name] for p in kernel.inputs], **named_sizes(extra))
        for p, actual in zip(kernel.outputs, outputs, strict=True):
            pairs = (
                zip(actual, wanted[p.name], strict=True) if p.each else [(actual, wanted[p.name])]
            )
            for a, b in pairs:
                np.testing.assert_allclose(
                    np.asarray(a, np.float64), np.asarray(b, np.float64), 3e-6, 3e-6
                )


def test_a_row_is_in_registers_until_it_is_too_long():
    assert best(SOFTMAX, r=4096, c=1000).blocks == "c whole in 1024, 1 warp"
    assert best(SOFTMAX, r=4096, c=4096).blocks == "c whole in 4096, 8 warps"
    looped = "c looped by 16384, 32 warps, 118 persistent programs, 3 stages"
    assert best(SOFTMAX, r=4096, c=65536).blocks == looped


def test_few_programs_pass_over_rows_that_the_cache_holds_for_them():
    """The second pass reads the cache; less than all processors have main memory's rate."""
    few = best(SOFTMAX, r=4096, c=1 << 16)
    (every,) = candidates(parse(SOFTMAX), {"r": 4096, "c": 1 << 16}, H100, EXACT)
    by_all = min(c.predicted_ns for c in every if c.schedule.programs is None)
    assert few.schedule.programs < H100.processors
    assert few.predicted_ns < 0.85 * by_all


@pytest.mark.parametrize(("text", "programs"), [(SOFTMAX, 3), (PARTS, 1)])
def test_programs_that_take_rows_in_turn_compute_them_all(monkeypatch, text, programs):
    """Of a part's rows, the cache holds the one that a program is at."""
    kernel, sizes = parse(text), {"r": 5, "c": 40000}
    small = replace(H100, cache_bytes=programs * 5 * 4 * 40000 // 3 + 9)
    monkeypatch.setattr("smelt.codegen.triton.candidates.MAX_CANDIDATES", 99)
    every = candidates(kernel, sizes, small, EXACT)
    (walking,) = (c for c in every[0] if c.schedule.programs is not None)
    assert walking.schedule.programs == programs
    x = np.random.default_rng(0).standard_normal((5, 40000)).astype(np.float32)
    stages = [print_stage(c.launch, c.schedule) for c in (walking, *(of[0] for of in every[1:]))]
    (y,) = launch(with_lanes(print_file(kernel, stages), 1024), [x])
    np.testing.assert_allclose(y, run(kernel, {"x": x})["y"], 1e-5)


def test_a_row_whose_values_exceed_the_registers_is_visited_again():
    """Three values of a row wait for its sum."""
    text = """
kernel k(x: f32[r,c]) -> y: f32[r,c]
  grid r
  v = x[r,c]
  t = tanh(v)
  m = max(t over c)
  e = exp(t - m)
  s = sum(e over c)
  y[r,c] = t + v * e / s
"""
    held, looped = best(text, r=4096, c=8192), best(text, r=4096, c=32768)
    assert "c" in held.schedule.whole and "c" in looped.schedule.streams
    kernel, sizes = parse(text), {"r": 4096, "c": 32768}
    schedule, lanes = choose_schedule(kernel, sizes), {"c": 32768}
    work = launch_work(kernel, sizes, EXACT)
    times = [
        launch_time(w, schedule, lanes, 16, H100).total for w in (work, replace(work, live=()))
    ]
    assert times[0] > 1.5 * times[1]


@pytest.mark.parametrize(("dtype", "columns"), [("f32", 40000), ("bf16", 65536), ("bf16", 100000)])
def test_long_rows_are_read_again_from_the_shared_cache(dtype, columns):
    """A processor holds one program of 32 warps: a softmax has nine tenths of a copy's rate."""
    text = SOFTMAX.replace("f32[r,c]", f"{dtype}[r,c]")
    device, rows = rates("sm_90"), (1 << 28) // columns
    ((chosen, *_),) = candidates(parse(text), {"r": rows, "c": columns}, device, EXACT)
    assert chosen.schedule.streams and chosen.warps == 32
    nbytes = 2 * rows * columns * (4 if dtype == "f32" else 2)
    assert 0.9 * chosen.predicted_ns <= nbytes / device.gbytes_per_second


def test_launches_are_divided_where_that_is_predicted_to_be_faster():
    """A row of columns is read in whole sectors by programs with several of them."""
    text = """
kernel k(x: f32[r,c]) -> top: f32[c], y: f32[r]
  grid p in split(c, 128)
  stream c/all of p with s = 0 [r]
    v = x[r,c]
    top[c] = max(v over r)
    e = exp(v)
    s' = s + sum(e over c)
  merge p: (s)
  y[r] = s
"""
    kernel, sizes = parse(text), {"r": 16384, "c": 16384}
    whole = prepare(kernel, sizes)
    every = candidates(kernel, sizes, H100, EXACT)
    assert len(whole) == 2 and [c[0].launch.name for c in every][:2] == ["k_parts", "k_parts_r"]
    assert len(candidates(kernel, {"r": 512, "c": 16384}, H100, EXACT)) == 2


def test_short_rows_share_a_program():
    assert best(SOFTMAX, r=100_000, c=64).lanes == {"r": 8, "c": 64}


def test_rows_of_a_loop_are_looped_over_one_by_one():
    kernel = parse(PARTS)
    sizes = {"r": 7, "c": 5000}
    x = np.random.default_rng(0).standard_normal((7, 5000)).astype(np.float32)
    (parts, merge) = candidates(kernel, sizes, H100, EXACT)
    looped = [c for c in parts if c.schedule.streams["r"] == 1 and c.lanes.get("c", 1) < 5000]
    assert looped
    for c in looped:
        stages = [print_stage(k.launch, k.schedule) for k in (c, merge[0])]
        (y,) = launch(print_file(kernel, stages), [x])
        np.testing.assert_allclose(y, run(kernel, [x])["y"], 1e-5)
    base = choose_schedule(looped[0].launch, sizes)
    assert math.prod(base.streams.values()) <= 4096


NEAREST = """
kernel nearest(x: f32[n,3], c: f32[m,3]) -> {result}
  axis i in n, j in m, k in 3
  grid i
  d = x[i,k] - c[j,k]
  s = sum(d * d over k)
{body}
"""
NEAREST_BODIES = {
    "position": ("y: i64[n]", "  y[i] = argmin(s over j)"),
    "distance": ("y: f32[n]", "  y[i] = min(s over j)"),
    "weights": ("y: f32[n]", "  e = exp(-s)\n  y[i] = sum(e * c[j,0] over j) / sum(e over j)"),
    "from its own": (
        "y: f32[n]",
        "  t = sum(s over j)\n  y[i] = sum(select(j < i, s - t, 0) over j)",
    ),
}


@pytest.mark.parametrize("name", NEAREST_BODIES)
def test_rows_of_a_program_share_what_its_loop_reads(name):
    result, body = NEAREST_BODIES[name]
    kernel = parse(NEAREST.format(result=result, body=body).strip())
    every = candidates(kernel, {"n": 20_000, "m": 20_000}, rates("sm_90"), EXACT)
    assert all(of_launch[0].lanes.get("i", 1) > 1 for of_launch in every)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s).astype(np.float32) for s in ((37, 3), (150, 3))]
    wanted = run(kernel, arrays)["y"]
    for of_launch in itertools.zip_longest(*every, fillvalue=None):
        stages = [
            print_stage(x.launch, x.schedule)
            for x in (c or of[0] for c, of in zip(of_launch, every, strict=True))
        ]
        source = with_lanes(print_file(kernel, stages), 16)
        np.testing.assert_allclose(launch(source, arrays)[0], wanted, 1e-5, 1e-3)


def test_columns_are_read_in_whole_sectors():
    chosen = best(COLUMNS, r=8192, c=4096)
    assert chosen.lanes["c"] >= 32 and math.ceil(4096 / chosen.lanes["c"]) >= 64


def test_an_access_of_few_bytes_does_not_lengthen_the_others():
    """Sectors that one array wastes are counted for its bytes alone."""
    one = parse("kernel k(x: f32[r,c]) -> y: f32[r]\n  grid r\n  y[r] = max(x[r,c] over c)")
    work = launch_work(one, {"r": 4096, "c": 4096}, EXACT)
    (of_launch,) = candidates(one, {"r": 4096, "c": 4096}, H100, EXACT)
    assert of_launch[0].predicted_ns < 1.3 * floor_ns(work, H100)


def test_a_gather_from_an_array_that_is_read_whole_adds_its_own_sectors():
    """The logit of a label: one element of each row, beside all of them."""
    label = parse(
        "kernel k(x: f32[r,c], t: i64[r]) -> y: f32[r]\n  grid r\n  at = position(t[r], size(c))\n"
        "  y[r] = max(x[r,c] over c) - x[r,at]"
    )
    sizes = {"r": 8192, "c": 4096}
    (of_launch,) = candidates(label, sizes, H100, EXACT)
    assert of_launch[0].predicted_ns < 1.3 * floor_ns(launch_work(label, sizes, EXACT), H100)


@given(st.sets(st.sampled_from(["x", "y", "w"])), st.integers(0, 3))
def test_arrays_in_the_shared_cache_are_never_slower(cached, shape):
    text = "kernel k(x: f32[r,c], w: f32[c]) -> y: f32[r,c]\n  grid r\n  y[r,c] = x[r,c] * w[c]"
    rows, columns = ((8, 64), (4096, 4096), (100, 1 << 15), (1 << 20, 16))[shape]
    kernel, sizes = parse(text), {"r": rows, "c": columns}
    (of_launch,) = candidates(kernel, sizes, H100, EXACT)
    for c in of_launch:
        work = launch_work(c.launch, sizes, EXACT)
        times = [
            launch_time(work, c.schedule, c.lanes, c.warps, H100, some).total
            for some in ((), cached, ("x", "y", "w"))
        ]
        assert times[0] == pytest.approx(c.predicted_ns) and times == sorted(times, reverse=True)
        least = H100.launch_ns + work.bytes / H100.cache_gbytes_per_second
        assert times[-1] >= least * 0.999
        assert floor_ns(work, H100, cached) <= floor_ns(work, H100)


def split_causal(parts: int) -> str:
    split = f"part in split(n, {parts})"
    return f"""
kernel k(x: f32[m,d], y: f32[n,d]) -> z: f32[m,d]
  grid m/64, {split}
  stream n/64 of part to last(m) + 1 with s = 0 [m,d]
    w = dot(x[m,d], y[n,d] over d)
    s' = s + dot(select(n <= m, w, 0), y[n,d] over n)
  merge part: (s)
  z[m,d] = s
"""


@pytest.mark.parametrize("parts", [2, 7, 16])
def test_parts_of_a_stream_visit_together_what_the_whole_one_does(parts):
    sizes = {"m": 1024, "n": 1024, "d": 64}
    launches = prepare(parse(split_causal(parts)), sizes)
    works = [launch_work(k, sizes, EXACT) for k in launches]
    assert works[0].parts["n"] == {"part"}
    assert works[0].visited["n"] == pytest.approx(0.53, abs=0.05)
    assert works[1].visited["part"] == pytest.approx(1 - 1 / parts)


def test_integer_operators_are_no_special_functions():
    """Random numbers take vector instructions, of 64 bits; exponentials have a unit."""
    head = "kernel k(x: u64[n]) -> y: u32[n]\n  grid n/1024\n  y[n] = philox(x[n], x[n])\n"
    (random,) = lane_work(parse(head))
    assert random.specials == 0 and random.cost == 2 * SCALARS["philox"].cost


def test_small_products_have_small_tiles():
    large, small = best(PRODUCT, m=8192, n=8192, k=8192), best(PRODUCT, m=256, n=256, k=4096)
    assert large.lanes["m"] * large.lanes["n"] >= 128 * 128
    assert small.lanes["m"] * small.lanes["n"] <= 64 * 64
    assert best(PRODUCT, m=1, n=4096, k=4096).lanes["m"] == 16


def test_candidates_are_few_and_differ():
    for text, policy in itertools.product((SOFTMAX, PRODUCT, COLUMNS), (EXACT, FAST)):
        sizes = dict.fromkeys("rcmnk", 2048)
        (of_launch,) = candidates(parse(text), sizes, H100, policy)
        assert 1 < len(of_launch) <= MAX_CANDIDATES
        assert len({c.blocks for c in of_launch}) == len(of_launch)
        is_last = [bool(c.schedule.specialised) for c in of_launch]
        times = [c.predicted_ns for c in of_launch if not c.schedule.specialised]
        assert times == sorted(times) and all(t > 0 for t in times) and is_last == sorted(is_last)


def test_every_time_is_finite():
    small = replace(H100, limits=replace(H100.limits, shared_bytes=1000))
    (of_launch,) = candidates(parse(PRODUCT), {"m": 512, "n": 512, "k": 512}, small, EXACT)
    assert len(of_launch) == 1 and math.isfinite(of_launch[0].predicted_ns)
    small = replace(H100, limits=replace(H100.limits, shared_bytes=70_000))
    (of_launch,) = candidates(parse(PRODUCT), {"m": 512, "n": 512, "k": 512}, small, EXACT)
    assert len(of_launch) > 1 and all(math.isfinite(c.predicted_ns) for c in of_launch)


def test_more_work_is_predicted_to_take_longer():
    times = [best(SOFTMAX, r=r, c=4096).predicted_ns for r in (1024, 4096, 16384)]
    assert times == sorted(times) and times[-1] > 3 * times[1] / 2
    times = [best(PRODUCT, m=m, n=4096, k=4096).predicted_ns for m in (512, 2048, 8192)]
    assert times == sorted(times)


# ---- products: tensor copies and persistent programs ---------------------------------------------

FEW = replace(H100, processors=2)
"""A device with more blocks than processors at the sizes of tests."""
FORMS = {
    "rows": (
        "kernel product(x: bf16[m,k], w: bf16[k,n], b: f32[n]) -> y: bf16[m,n], z: f32[m,n]\n"
        "  grid m, n\n  a = dot(x[m,k], w[k,n] over k)\n  h = a + b[n]\n"
        "  y[m,n] = h * sigmoid(h)\n  z[m,n] = a\n"
    ),
    "columns": (
        "kernel product(x: bf16[m,k], w: bf16[n,k]) -> y: bf16[m,n]\n"
        "  grid m, n\n  y[m,n] = dot(x[m,k], w[n,k] over k)\n"
    ),
    "two": (
        "kernel product(x: bf16[m,k], v: bf16[k,n], w: bf16[k,n]) -> y: f32[m,n]\n"
        "  grid m, n\n  a = dot(x[m,k], v[k,n] over k)\n"
        "  y[m,n] = a * dot(x[m,k], w[k,n] over k)\n"
    ),
    "batch": (
        "kernel product(x: f16[3,70,48], w: f16[3,48,72]) -> y: f16[3,70,72]\n"
        "  axis b in 3, m in 70, n in 72, k in 48\n"
        "  grid b, m, n\n  y[b,m,n] = dot(x[b,m,k], w[b,k,n] over k)\n"
    ),
    "whole rows": (
        "kernel product(x: bf16[m,k], w: bf16[n,k]) -> y: f32[m,n]\n"
        "  grid m\n  a = dot(x[m,k], w[n,k] over k)\n  y[m,n] = a - max(a over n)\n"
    ),
    "bytes": (
        "kernel product(x: i8[m,k], w: i8[k,n]) -> y: i32[m,n]\n"
        "  grid m, n\n  y[m,n] = dot(i32(x[m,k]), i32(w[k,n]) over k as i32)\n"
    ),
}


@pytest.fixture
def every_candidate(monkeypatch):
    """None of the candidates is left out."""
    module = sys.modules["smelt.codegen.triton.candidates"]
    monkeypatch.setattr(module, "MAX_CANDIDATES", 99)
    monkeypatch.setattr(module, "_varied", lambda every: every)


def test_candidates_have_small_tiles_too():
    """They are left where a long epilogue spills the registers of large ones."""
    (every,) = candidates(parse(PRODUCT), dict.fromkeys("mnk", 4096), H100, EXACT)
    assert any(c.lanes["m"] * c.lanes["n"] <= 64 * 64 for c in every)
    assert sum(c.lanes == every[0].lanes for c in every) <= 4


def product_arrays(kernel, sizes):
    random = np.random.default_rng(1)
    shapes = [tuple(int(evaluate(d, sizes)) for d in p.shape) for p in kernel.inputs]
    return [
        (random.standard_normal(s) * 4).astype(p.dtype.numpy)
        for p, s in zip(kernel.inputs, shapes, strict=True)
    ]


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_product_computes_what_the_interpreter_does(form, aligned):
    kernel = parse(FORMS[form])
    sizes = {"m": 70, "n": 96, "k": 48} if aligned else {"m": 70, "n": 97, "k": 45}
    sizes = {} if form == "batch" else sizes
    arrays = product_arrays(kernel, sizes)
    wanted = run(kernel, arrays)
    (every,) = candidates(kernel, sizes, FEW, EXACT)
    has_copies = aligned or form == "batch"
    forms = {
        (bool(s.copied), s.programs, bool(s.stored), s.specialised, s.group): c
        for c in every
        for s in (c.schedule,)
    }
    assert any(group > 1 for *_, group in forms) == (form != "whole rows")
    assert {key[:2] for key in forms} == {(c, p) for c in {False, has_copies} for p in (None, 2)}
    for c in forms.values():
        source = print_file(kernel, [print_stage(c.launch, c.schedule)])
        outputs = launch(with_lanes(source, 32), arrays)
        for p, y in zip(kernel.outputs, outputs, strict=True):
            a, b = (np.asarray(v, np.float64) for v in (y, wanted[p.name]))
            np.testing.assert_allclose(a, b, 1e-2 if p.dtype.bits == 16 else 1e-5, 1e-3)


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("form", FORMS)
def test_stores_by_descriptors_and_specialised_warps_compute_what_the_interpreter_does(form, arch):
    one = replace(H100, arch=arch, limits=device_limits(arch), processors=1)
    kernel = parse(FORMS[form])
    sizes = {} if form == "batch" else {"m": 150, "n": 96, "k": 48}
    arrays = product_arrays(kernel, sizes)
    wanted = run(kernel, arrays)
    (every,) = candidates(kernel, sizes, one, EXACT)
    chosen = [next(c for c in every if c.schedule.stored)]
    chosen += [c for c in every if c.schedule.specialised][:1]
    assert len(chosen) == 2 - (arch == "sm_90" and form == "two")
    for c in chosen:
        source = print_file(kernel, [print_stage(c.launch, c.schedule)])
        assert "tl.store(" not in source
        assert ("warp_specialize=True" in source) == bool(c.schedule.specialised)
        assert ("flatten=True" in source) == (c.schedule.specialised != "nested")
    outputs = launch(with_lanes(source, 32), arrays)
    for p, y in zip(kernel.outputs, outputs, strict=True):
        a, b = (np.asarray(v, np.float64) for v in (y, wanted[p.name]))
        np.testing.assert_allclose(a, b, 1e-2 if p.dtype.bits == 16 else 1e-5, 1e-3)


@pytest.mark.usefixtures("every_candidate")
def test_results_are_stored_by_descriptors_where_their_rows_are_aligned():
    def stored(text, **sizes):
        (every,) = candidates(parse(text), sizes, H100, EXACT)
        return {s.param for c in every for s in c.schedule.stored}

    assert stored(PRODUCT, m=4000, n=4096, k=1024) == {"y"}
    assert stored(PRODUCT, m=4000, n=4100, k=1024) == set()


def test_large_results_are_stored_by_descriptors():
    """A descriptor costs a program half a microsecond, addresses cost all elements."""
    large, small = best(PRODUCT, m=16384, n=8192, k=512), best(PRODUCT, m=4096, n=4096, k=512)
    assert large.schedule.stored and small.schedule.programs and not small.schedule.stored


def test_programs_persist_where_a_processor_has_several_blocks():
    """Where it has one, nothing is behind which the next one is loaded."""
    for m, rounds in ((8192, 16), (512, 1)):
        (every,) = candidates(parse(PRODUCT), {"m": m, "n": 8192, "k": 1024}, H100, EXACT)
        assert (every[0].schedule.programs is not None) == (rounds > 1), every[0].blocks
        assert all(c.schedule.programs in (None, 132) for c in every)
    assert "one round of processors" in every[0].schedule.reason
    assert all(c.schedule.programs is None or c.schedule.copied for c in every[:1])


def test_small_matrices_have_programs_of_their_own():
    """A processor has many at a time, which overlap; one persistent program waits at every step."""
    kernel = parse(
        FORMS["batch"]
        .replace("[3,70,48]", "[65536,8,32]")
        .replace("[3,48,72]", "[65536,32,8]")
        .replace("[3,70,72]", "[65536,8,8]")
        .replace("b in 3, m in 70, n in 72, k in 48", "b in 65536, m in 8, n in 8, k in 32")
    )
    (every,) = candidates(kernel, {}, H100, EXACT)
    assert every[0].schedule.programs is None


@pytest.mark.usefixtures("every_candidate")
def test_tensor_copies_need_the_instruction_and_aligned_rows():
    def copies(device, **sizes):
        (every,) = candidates(parse(PRODUCT), sizes, device, EXACT)
        return {v.param for c in every for v in c.schedule.copied}

    assert copies(H100, m=4000, n=4096, k=1024) == {"x", "w"}
    assert copies(H100, m=4000, n=4097, k=1024) == {"x"}
    assert copies(H100, m=4000, n=4097, k=1025) == set()
    ampere = replace(H100, arch="sm_80", limits=device_limits("sm_80"))
    assert copies(ampere, m=4000, n=4096, k=1024) == set()


TF32 = """kernel product(x: f32[m,k], w: f32[{w}]) -> y: f32[m,n]
  grid m, n
  y[m,n] = dot(x[m,k], w[{w}] over k)
"""


def test_tf32_operands_are_transposed_before_where_that_is_faster():
    """Elsewhere matrix units get them element by element."""
    device, sizes = rates("sm_90"), dict.fromkeys("mnk", 4096)
    kernel = parse(TF32.format(w="k,n"))
    copy, every = candidates(kernel, sizes, device, FAST)
    assert copy[0].launch.outputs[0].shape == (size("n"), size("k"))
    assert {v.param for v in every[0].schedule.copied} == {"x", "w_packed"}
    small = {**sizes, "m": 256}  # of a result that is smaller than the weights
    for at, policy in ((sizes, EXACT), (small, FAST)):
        assert len(candidates(kernel, at, device, policy)) == 1
    arrays = product_arrays(kernel, {"m": 70, "n": 96, "k": 48})
    stages = [print_stage(c[0].launch, c[0].schedule) for c in (copy, every)]
    (y,) = launch(with_lanes(print_file(kernel, stages), 32), arrays)
    x, w = (a.astype(np.float64) for a in arrays)
    assert (abs(y - x @ w) <= 2.0**-10 * (abs(x) @ abs(w))).all()


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("layout", ["n,k", "k,n"])
def test_tf32_products_are_copied_where_both_are_contiguous_along_the_sum(layout):
    """Steps have 128 bytes, as those of half types; each form computes the product."""
    kernel, sizes = parse(TF32.format(w=layout)), {"m": 70, "n": 96, "k": 48}
    arrays = product_arrays(kernel, sizes)
    *_, every = candidates(kernel, sizes, FEW, FAST)
    assert {v.param for c in every for v in c.schedule.copied} == set(
        "xw" if layout == "n,k" else ""
    )
    (exact,) = candidates(kernel, sizes, FEW, EXACT)
    assert not any(c.schedule.copied for c in exact)
    x, w = (a.astype(np.float64) for a in arrays)
    w = w.T if layout == "n,k" else w
    forms = {(bool(c.schedule.copied), bool(c.schedule.stored)): c for c in every}
    assert len(forms) == (3 if layout == "n,k" else 1)
    for c in forms.values():
        source = print_file(kernel, [print_stage(c.launch, c.schedule)])
        (y,) = launch(with_lanes(source, 32), arrays)
        assert (abs(y - x @ w) <= 2.0**-10 * (abs(x) @ abs(w))).all()


def test_tf32_tiles_are_those_of_half_types_with_half_of_the_step():
    sizes = dict.fromkeys("mnk", 4096)
    kernel = parse(TF32.format(w="n,k"))
    device = rates("sm_90")
    (every,) = candidates(kernel, sizes, device, FAST)
    assert every[0].lanes == {"m": 128, "n": 256, "k": 32}
    assert 2e-3 * 4096**3 / every[0].predicted_ns >= 0.6 * device.tf32_tflops
    (lanes,) = candidates(kernel, sizes, replace(device, tf32_tflops=0.0), FAST)
    assert lanes[0].lanes["n"] < 256, "vector lanes have smaller tiles"


def test_rows_of_the_call_decide_about_tensor_copies():
    """Candidates are compared at rounded sizes, whose rows may be aligned where none are."""
    sizes = dict.fromkeys("mnk", 4096)
    (every,) = candidates(parse(PRODUCT), sizes, H100, EXACT, {**sizes, "k": 4001, "n": 4001})
    assert not any(c.schedule.copied for c in every)


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("form", FORMS)
def test_faults_of_copies_and_persistent_programs_are_caught(form):
    """Nothing that is wrong with a descriptor or a walk computes the right result."""
    kernel = parse(FORMS[form])
    sizes = {} if form == "batch" else {"m": 70, "n": 96, "k": 80}
    arrays = product_arrays(kernel, sizes)
    (every,) = candidates(kernel, sizes, FEW, EXACT)
    chosen = next(c for c in every if c.schedule.stored)
    source = print_file(kernel, [print_stage(chosen.launch, chosen.schedule)])
    source = with_lanes(source, 32)
    assert len(list(plant(source, lambda what: what.startswith("next block")))) >= 3
    kinds = "next block", "indices swapped", "a row less", "longer", "every"
    planted, missed = survivors(source, arrays, lambda what: what.startswith(kinds))
    assert planted >= 5 and not missed


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize(
    ("form", "access", "name", "sizes"),
    [
        ("rows", "copied", "x", {"m": 70, "n": 96, "k": 45}),
        ("columns", "stored", "y", {"m": 70, "n": 97, "k": 48}),
    ],
)
def test_a_descriptor_of_rows_that_are_not_aligned_is_refused_at_the_call(
    form, access, name, sizes
):
    kernel = parse(FORMS[form])
    (every,) = candidates(kernel, {"m": 70, "n": 96, "k": 48}, FEW, EXACT)
    chosen = next(c for c in every if getattr(c.schedule, access))
    source = print_file(kernel, [print_stage(chosen.launch, chosen.schedule)])
    with pytest.raises(ValueError, match=f"{name} has rows that no tensor descriptor copies"):
        launch(source, product_arrays(kernel, sizes))


# ---- batches of small matrices -------------------------------------------------------------------

BATCHES = {
    "rows": (
        "kernel product(x: bf16[11,5,70], w: bf16[11,70,9], b: f32[11,9]) -> y: f32[11,5,9]\n"
        "  axis b in 11, m in 5, n in 9, k in 70\n"
        "  grid b, m, n\n  y[b,m,n] = tanh(dot(x[b,m,k], w[b,k,n] over k)) + b[b,n]\n"
    ),
    "columns": (
        "kernel product(x: f16[3,9,17,20], w: f16[3,9,13,20]) -> y: f16[3,9,17,13]\n"
        "  axis a in 3, b in 9, m in 17, n in 13, k in 20\n"
        "  grid a, b, m, n\n  y[a,b,m,n] = dot(x[a,b,m,k], w[a,b,n,k] over k)\n"
    ),
    "batch between": (
        "kernel product(x: bf16[7,9,20], w: bf16[20,9,6]) -> y: f32[7,9,6]\n"
        "  axis m in 7, b in 9, n in 6, k in 20\n"
        "  grid b, m, n\n  y[m,b,n] = dot(x[m,b,k], w[k,b,n] over k)\n"
    ),
    "terms": (
        "kernel product(x: f32[6,20,24], w: bf16[6,24,18]) -> y: f32[6,20,18]\n"
        "  axis b in 6, m in 20, n in 18, k in 24\n"
        "  grid b, m, n\n  y[b,m,n] = dot(exp(x[b,m,k] / 8), w[b,k,n] over k)\n"
    ),
    "bytes": (
        "kernel product(x: i8[9,4,20], w: i8[9,20,5]) -> y: i32[9,4,5]\n"
        "  axis b in 9, m in 4, n in 5, k in 20\n"
        "  grid b, m, n\n  y[b,m,n] = dot(i32(x[b,m,k]), i32(w[b,k,n]) over k as i32)\n"
    ),
    "whole rows": (
        "kernel product(x: f32[10,12,16], w: f32[10,13,16]) -> y: f32[10,12,13]\n"
        "  axis b in 10, m in 12, n in 13, k in 16\n"
        "  grid b, m\n  a = dot(x[b,m,k], w[b,n,k] over k)\n  y[b,m,n] = a - max(a over n)\n"
    ),
    "attention": (
        "kernel attention(q: f32[12,9,20], k: f32[12,9,20], v: f32[12,9,20]) -> y: f32[12,9,20]\n"
        "  axis b in 12, m in 9, n in 9, d in 20, e in 20\n"
        "  grid b, m/128\n"
        "  stream n/64 to last(m) + 1 with s = 0 [m], r = 0 [m,e]\n"
        "    t = dot(q[b,m,d], k[b,n,d] over d)\n"
        "    p = exp(select(n <= m, t, -inf) if last(n) > first(m) else t)\n"
        "    s' = s + sum(p over n)\n    r' = r + dot(p, v[b,n,e] over n)\n"
        "  y[b,m,e] = r / s\n"
    ),
}
"""Contractions of small matrices; the axis `b` is one of both operands."""


def batched_candidates(kernel, device=H100):
    (every,) = candidates(kernel, {}, device, EXACT)
    return [c for c in every if c.schedule.grid["b"] > 1]


@pytest.mark.usefixtures("every_candidate")
@pytest.mark.parametrize("form", BATCHES)
def test_several_matrices_of_a_program_are_what_the_interpreter_computes(form):
    kernel = parse(BATCHES[form])
    arrays = product_arrays(kernel, {})
    wanted = run(kernel, arrays)
    every = batched_candidates(kernel)
    assert {c.schedule.grid["b"] for c in every} >= {2, 4, 8}
    for c in every:
        source = print_file(kernel, [print_stage(c.launch, c.schedule)])
        assert source.count("tl.dot(") == {"terms": 3, "attention": 2}.get(form, 1)
        outputs = launch(source, arrays)
        for p, y in zip(kernel.outputs, outputs, strict=True):
            a, b = (np.asarray(v, np.float64) for v in (y, wanted[p.name]))
            np.testing.assert_allclose(a, b, 1e-2 if p.dtype.bits == 16 else 1e-5, 1e-4)


@settings(max_examples=12, deadline=None)
@given(
    extents=st.tuples(*[st.integers(1, 24)] * 3),
    count=st.integers(2, 9),
    left=st.permutations("bmk"),
    right=st.permutations("bkn"),
    result=st.permutations("bmn"),
    order=st.permutations("bmnk"),
    dtype=st.sampled_from(["bf16", "f32"]),
)
def test_batches_of_any_layout_are_multiplied(extents, count, left, right, result, order, dtype):
    sizes = {"b": count, **dict(zip("mnk", extents, strict=True))}

    def shape(axes):
        return f"[{','.join(str(sizes[a]) for a in axes)}]"

    kernel = parse(
        f"kernel product(x: {dtype}{shape(left)}, w: {dtype}{shape(right)})"
        f" -> y: f32{shape(result)}\n"
        f"  axis {', '.join(f'{a} in {sizes[a]}' for a in order)}\n  grid b, m, n\n"
        f"  y[{','.join(result)}] = dot(x[{','.join(left)}], w[{','.join(right)}] over k)\n"
    )
    arrays = product_arrays(kernel, {})
    for c in batched_candidates(kernel)[:2]:
        (y,) = launch(print_file(kernel, [print_stage(c.launch, c.schedule)]), arrays)
        np.testing.assert_allclose(y, run(kernel, arrays)["y"], 1e-5, 1e-4)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("form", BATCHES)
def test_faults_of_batches_are_caught(form):
    kernel = parse(BATCHES[form])
    arrays = product_arrays(kernel, {})
    chosen = min(batched_candidates(kernel), key=lambda c: c.schedule.grid["b"])
    source = print_file(kernel, [print_stage(chosen.launch, chosen.schedule)])

    def is_meant(what: str) -> bool:
        in_one_block = what.startswith("blocks overlap") and "BLOCK_b" not in what
        return not in_one_block and what.startswith(BATCH_FAULTS)

    planted, missed = survivors(source, arrays, is_meant)
    assert planted >= 5 and not missed


BATCH_FAULTS = ("no mask", "not transposed", "a stride is lost", "other matrix", "blocks overlap")


RESULTS = """
kernel results(x: f32[m,k], v: f32[k,n], w: f32[k,p]) -> y: f32[m,n], z: f32[m,p]
  grid m
  a = x[m,k]
  y[m,n] = dot(a, v[k,n] over k) + 1
  b = dot(a, w[k,p] over k)
  z[m,p] = {z}
"""


def test_results_with_columns_of_their_own_are_launches_with_blocks_of_them():
    kernel, sizes = parse(RESULTS.format(z="b")), {"m": 40, "k": 20, "n": 200, "p": 70}
    every = candidates(kernel, sizes, H100, EXACT)
    assert [of[0].launch.name for of in every] == ["results_0", "results_1"]
    assert [[b.axis for b in of[0].launch.grid] for of in every] == [["m", "n"], ["m", "p"]]
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(s).astype(np.float32) for s in ((40, 20), (20, 200), (20, 70))]
    stages = [print_stage(of[0].launch, of[0].schedule) for of in every]
    outputs = launch(with_lanes(print_file(kernel, stages), 16), arrays)
    for p, y in zip(kernel.outputs, outputs, strict=True):
        np.testing.assert_allclose(y, run(kernel, arrays)[p.name], 1e-5, 1e-5)


def test_results_that_are_short_or_read_their_rows_stay_together():
    short = {"m": 40, "k": 20, "n": 64, "p": 64}
    assert len(candidates(parse(RESULTS.format(z="b")), short, H100, EXACT)) == 1
    long = {"m": 40, "k": 20, "n": 512, "p": 512}
    reads_rows = parse(RESULTS.format(z="b - max(b over p)"))
    assert len(candidates(reads_rows, long, H100, EXACT)) == 1


def test_whole_rows_of_a_product_have_few_elements_a_thread():
    kernel = parse(FORMS["whole rows"])
    (every,) = candidates(kernel, {"m": 4096, "n": 512, "k": 512}, H100, EXACT)
    each = [c.lanes["m"] * c.lanes["n"] / (32 * c.warps) for c in every]
    assert len(every) > 2 and sum(n <= 64 for n in each) >= len(each) - 1


def test_tiles_load_as_far_ahead_as_shared_memory_allows():
    """A large tile with few stages is predicted to be faster than a small one with many."""
    kernel, sizes, device = parse(PRODUCT), {"m": 4096, "n": 4096, "k": 1024}, rates("gfx942")
    (of_launch,) = candidates(kernel, sizes, device, EXACT)
    work = launch_work(kernel, sizes, EXACT)
    for c in of_launch:
        nbytes = loop_shared_bytes(work, c.schedule, c.lanes, device.limits)
        assert nbytes <= device.limits.shared_bytes
    assert of_launch[0].lanes == {"m": 128, "n": 256, "k": 64}
    assert of_launch[0].schedule.stages == 2
    assert all(c.schedule.stages > 2 for c in of_launch if c.lanes["n"] < 256)


def test_a_kernel_of_constant_shapes_has_blocks_for_its_rows():
    """Products that are not matrices multiply all axes of a block, of which Triton has 2^20."""
    kernel = parse("""
kernel k(w: f32[64,48], u: f32[64], x: f32[100,48]) -> y: f32[48], z: f32[100,64]
  axis i in 48, j in 64, k in 100
  v = dot(w[j,i], u[j] over j)
  y[i] = v
  z[k,j] = dot(x[k,i], w[j,i] * v over i)
""")
    ((chosen, *_),) = candidates(kernel, {}, H100, EXACT)
    assert math.prod(chosen.lanes.values()) <= 4096
    arrays = [np.random.default_rng(4).standard_normal(p.shape) for p in kernel.inputs]
    arrays = [a.astype(np.float32) for a in arrays]
    source = print_file(kernel, [print_stage(chosen.launch, chosen.schedule)])
    wanted = run(kernel, arrays)
    for p, y in zip(kernel.outputs, launch(source, arrays), strict=True):
        np.testing.assert_allclose(y, wanted[p.name], 1e-4, 1e-3)
