"""Convolutions on a GPU: tiles of pixels from several rows, weights in the order of the tiles."""

from __future__ import annotations

import numpy as np
import pytest
from tests.catalogue import harness
from tests.codegen.device_catalogue import planned, recorded
from tests.codegen.device_programs import rates
from tests.codegen.test_triton_ahead import NEEDS_TRITON
from tests.codegen.test_triton_goldens import with_lanes
from tests.codegen.test_triton_programs import complaint

import smelt as sm
from smelt.backend.gpus import gpu
from smelt.codegen.triton.ahead import TritonCompiler
from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.flat_grid import flat_rows
from smelt.codegen.triton.launch_time import launch_time
from smelt.codegen.triton.launch_work import launch_work
from smelt.codegen.triton.pack_operands import pack_operands
from smelt.codegen.triton.schedule import EXACT, choose_schedule
from smelt.codegen.triton.select import select
from smelt.codegen.triton.source import print_file, print_stage, with_loops
from smelt.kernel.text import parse
from smelt.tune.scheduled_gpu import scheduled
from smelt.types.expr import evaluate


def channels_first(x, w):
    return sm.nn.relu(sm.nn.conv(x, w, padding=1))


def channels_last(x, w):
    y = sm.nn.conv(sm.permute_dims(x, (0, 3, 1, 2)), w, padding=1)
    return sm.permute_dims(sm.nn.relu(y), (0, 2, 3, 1))


def strided(x, w):
    return sm.nn.conv(x, w, stride=2, padding=2, dilation=2) * 0.5


def rows_of_sequences(x, w):
    return x @ w


PROGRAMS = {
    channels_first: ((32, 64, 28, 28), (128, 64, 3, 3), (2, 5, 6, 7), (9, 5, 3, 3)),
    channels_last: ((32, 28, 28, 64), (128, 64, 3, 3), (2, 6, 7, 5), (9, 5, 3, 3)),
    strided: ((32, 64, 28, 28), (128, 64, 3, 3), (2, 5, 9, 7), (9, 5, 3, 3)),
    rows_of_sequences: ((96, 100, 256), (256, 512), (3, 5, 6), (6, 7)),
}
"""Programs with the shapes that they are planned for, and those that they run at."""
CONVOLUTIONS = [code for code in PROGRAMS if code is not rows_of_sequences]


def example_of(code, dtype):
    *large, rows, weights = PROGRAMS[code]
    random = np.random.default_rng(0)
    arrays = [random.uniform(-1, 1, s).astype(np.float32) for s in (rows, weights)]
    return recorded(code, arrays, large, dtype)


def kernel_of(code, dtype="bf16"):
    """Return the only kernel of a program with its sizes."""
    example = example_of(code, dtype)
    ((kernel, sizes),) = planned(example.trace, example.sizes, scheduled(gpu("sm_90"))).launched
    return kernel, sizes


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("code", PROGRAMS, ids=lambda f: f.__name__)
def test_flat_rows_and_packed_weights_compute_what_the_interpreter_does(code, dtype):
    example = example_of(code, dtype)
    arrays = harness.inputs(example.trace, example.arrays)

    def sources(plan, small):
        ((kernel, sizes),) = plan.launched
        launches = [with_loops(k, sizes) for k in pack_operands(kernel, sizes)]
        assert len(launches) == 1 + (code in CONVOLUTIONS)
        launches[-1] = flat_rows(launches[-1], sizes)
        schedules = [choose_schedule(k, sizes, EXACT) for k in launches]
        source = print_file(kernel, list(map(print_stage, launches, schedules)))
        return {id(kernel): with_lanes(source, 32)}

    assert not complaint(example.trace.graph, arrays, 8, print_sources=sources)


@pytest.mark.parametrize("code", PROGRAMS, ids=lambda f: f.__name__)
def test_tiles_have_pixels_of_several_rows(code):
    kernel, sizes = kernel_of(code)
    *copies, product = candidates(kernel, sizes, rates("sm_90"), EXACT)
    assert len(copies) == (code in CONVOLUTIONS)
    assert product[0].lanes["flat"] >= 64


def test_whole_tiles_of_rows_stay():
    """An axis that tiles divide has nothing to gain from quotients."""
    kernel = parse(
        "kernel k(x: f32[b,256,k], w: f32[k,n]) -> y: f32[b,256,n]\n  axis b, m in 256, n, k\n"
        "  grid b, m, n\n  y[b,m,n] = dot(x[b,m,k], w[k,n] over k)"
    )
    (product,) = candidates(kernel, {"b": 8, "k": 64, "n": 64}, rates("sm_90"), EXACT)
    assert not any("flat" in c.lanes for c in product)


@pytest.mark.parametrize(
    ("load", "is_packed"), [("o,c,v", True), ("v,c,o", False), ("o,v,c", False), ("o,v", False)]
)
def test_an_operand_is_packed_where_its_neighbours_are_steps_of_a_loop(load, is_packed):
    shape = load.replace("v", "3")
    kernel = parse(
        f"kernel k(x: f32[n + 2,c], w: f32[{shape}]) -> y: f32[n,o]\n  axis n, o, c, v in 3\n"
        f"  grid n, o\n  y[n,o] = dot(x[n + v,c], w[{load}] over c, v)"
    )
    *copies, product = pack_operands(kernel, {"n": 64, "o": 64, "c": 64})
    assert len(copies) == is_packed
    assert [p.shape for k in copies for p in k.outputs] == [product.inputs[-1].shape] * is_packed


@pytest.mark.parametrize(
    ("load", "dtype", "rows", "is_packed"),
    [
        ("k,n", "i8", 4096, True),
        ("n,k", "i8", 4096, False),
        ("k,n", "i8", 16, False),
        ("k,n", "bf16", 4096, False),
    ],
)
def test_bytes_are_packed_along_the_sum_where_many_tiles_read_them(load, dtype, rows, is_packed):
    kernel = parse(
        f"kernel k(x: {dtype}[m,k], w: {dtype}[{load}]) -> y: f32[m,n]\n  grid m, n\n"
        f"  y[m,n] = f32(dot(x[m,k], w[{load}] over k as {'i32' if dtype == 'i8' else 'f32'}))"
    )
    sizes = {"m": rows, "k": 4096, "n": 4096}
    *copies, _ = candidates(kernel, sizes, rates("sm_90"), EXACT)
    assert len(copies) == is_packed


def test_operands_without_vectors_take_longer():
    """Weights with taps last are loaded element by element, those with columns last in vectors."""
    head = "kernel k(x: bf16[n + 2,256], w: bf16[{}]) -> y: bf16[n,o]\n"
    body = "  axis n, o, c in 256, v in 3\n  grid n, o\n  y[n,o] = dot(x[n + v,c], w[{}] over c, v)"
    sizes = {"n": 1 << 15, "o": 256}

    def fastest(shape, index):
        launch = with_loops(parse(head.format(shape) + body.format(index)), sizes)
        schedule = choose_schedule(launch, sizes, EXACT)
        lanes = schedule.lanes({a.name: int(evaluate(a.extent, sizes)) for a in launch.axes})
        return launch_time(launch_work(launch, sizes, EXACT), schedule, lanes, 8, rates("sm_90"))

    taps_last, columns_last = fastest("o,256,3", "o,c,v"), fastest("3,256,o", "v,c,o")
    assert taps_last.total > 2 * columns_last.total


@NEEDS_TRITON
@pytest.mark.parametrize("code", CONVOLUTIONS, ids=lambda f: f.__name__)
def test_products_over_windows_spill_nothing(code):
    kernel, sizes = kernel_of(code)
    for x in select(kernel, sizes, rates("sm_90"), TritonCompiler(), EXACT).launches:
        assert x.warning is None
        assert x.program.resources.spills == 0
