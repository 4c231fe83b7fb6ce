"""The loops that pack operands and move tiles between layouts: their text, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from smelt.codegen.llvm.products.move_elements import (
    channel_planes,
    pair_rows,
    panel_rows,
    pixel_rows,
    run_tile,
)
from smelt.codegen.llvm.schedule.conv_plan import LEFT_PITCH
from smelt.loop.interpret import run
from smelt.loop.ir import Func, Module
from smelt.loop.text import parse, text
from smelt.loop.verify import verify

Array = np.ndarray[Any, Any]
RUNS = """tile runs(p: out f32[], w: f16[], table: i64[], next: f16[]; stride, rows, length)
  if length >= 2
    o_1 = min(0, rows - 1)*stride
    o_2 = min(1, rows - 1)*stride
    for i in 0 .. length by 2
      at = min(i, length - 2)
      prefetch next[at] level 2
      row_1 = w[at + o_1 : 2]
      prefetch next[at + stride] level 2
      row_2 = w[at + o_2 : 2]
      tile_1 = shuffle(transpose, row_1, row_2)
      to_k_1 = table[at]
      p[to_k_1 : 2] = shuffle(permute, tile_1; 0, 1)
      to_k_2 = table[at + 1]
      p[to_k_2 : 2] = shuffle(permute, tile_1; 2, 3)
  else
    prefetch next[0] level 2
    row_3 = w[min(0, rows - 1)*stride : 2 | \
prefix(min(4611686018427387904, max(-4611686018427387904, length)), 2)]
    prefetch next[stride] level 2
    row_4 = w[min(1, rows - 1)*stride : 2 | \
prefix(min(4611686018427387904, max(-4611686018427387904, length)), 2)]
    tile_2 = shuffle(transpose, row_3, row_4)
    to_j_1 = table[0]
    p[to_j_1 : 2] = shuffle(permute, tile_2; 0, 1)
    to_j_2 = table[1]
    p[to_j_2 : 2] = shuffle(permute, tile_2; 2, 3)"""
PAIRS = """tile pairs(p: out i16[], w: i16[]; rows, stride, complete, all)
  for m in 0 .. rows
    o_1 = m*stride + stride*4
    o_2 = m*stride
    for k in 0 .. complete
      prefetch w[k*6 + o_1] level 2
      p[k*6 + m*832 : 8] = shuffle(interleave, w[k*6 + o_2 : 4 | prefix(3, 4)], \
w[k*6 + o_2 + 3 : 4 | prefix(3, 4)])
    for j in complete .. all
      p[j*6 + m*832 : 8] = shuffle(interleave, w[j*6 + o_2 : 4 | prefix(3, 4)], \
splat(i16(0), 4))"""
PLANES = """tile planes(y: out f32[], s: f32[]; channels, plane, pixel, length)
  whole = (length//2)*2
  each c in 0 .. channels by 2
    o_1 = c + pixel
    o_2 = c*plane
    o_3 = c*plane + plane
    each a in 0 .. whole by 2
      row_1 = s[a*pixel + c : 2]
      row_2 = s[a*pixel + o_1 : 2]
      tile_1 = shuffle(transpose, row_1, row_2)
      y[a + o_2 : 2] = shuffle(permute, tile_1; 0, 1)
      y[a + o_3 : 2] = shuffle(permute, tile_1; 2, 3)
    each z in whole .. length by 2
      row_3 = s[c + z*pixel : 2]
      row_4 = s[z*pixel + o_1 : 2]
      tile_2 = shuffle(transpose, row_3, row_4)
      y[z + o_2 : 2 | 0 + lane(2) < -z + length] = shuffle(permute, tile_2; 0, 1)
      y[z + o_3 : 2 | 0 + lane(2) < -z + length] = shuffle(permute, tile_2; 2, 3)"""
GOLDEN = {
    RUNS: run_tile(2, "f16", "f32"),
    PAIRS: pair_rows(4, 3, odd=True),
    PLANES: channel_planes(2, "f32", 0, full=True),
}


@pytest.mark.parametrize("source", GOLDEN)
def test_the_text_of_loops(source: str) -> None:
    module = verify(Module("f", (GOLDEN[source],)))
    assert text(module).partition("\n")[2] == source
    assert parse(source).funcs == module.funcs


def moved(func: Func, arrays: Mapping[str, Array], numbers: Mapping[str, int]) -> Array:
    """What a tile writes, for arrays of these lengths; the first array is written."""
    params = tuple(replace(p, elements=arrays[p.name].size) for p in func.params)
    entry = verify(Module("f", (replace(func, kind="func", params=params),)), bounds=False)
    return run(entry, arrays, numbers)[func.params[0].name]


def numbers_of(func: Func, *values: int) -> dict[str, int]:
    return dict(zip(func.numbers, values, strict=True))


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(("rows", "channels"), [(4, 3), (3, 1), (1, 2)])
def test_runs_become_rows_of_a_panel(rows: int, channels: int, lanes: int) -> None:
    taps = 2, 3
    length, stride, block = channels * 6, channels * 6 + 5, 4
    w = np.arange(rows * stride, dtype="f2")
    offsets = {"table": np.zeros(block * 6, "i8")}
    table = moved(panel_rows(block, lanes, taps, (3, 1)), offsets, {})
    arrays = {"p": np.zeros(block * 6 * lanes, "f4"), "w": w, "table": table, "next": w}
    func = run_tile(lanes, "f16", "f32", short=length < lanes)
    p = moved(func, arrays, numbers_of(func, stride, rows, length))
    by_tap = p.reshape(6, block, lanes)[:, :channels]
    runs = np.lib.stride_tricks.sliding_window_view(w, length)[::stride][:rows]
    expected = runs[np.minimum(np.arange(lanes), rows - 1)].reshape(lanes, channels, 6)
    assert np.array_equal(by_tap, expected.transpose(2, 1, 0).astype("f4"))


@pytest.mark.parametrize("odd", [False, True])
def test_channels_become_pairs(odd: bool) -> None:
    taps, rows, pairs = 5, 2, 3
    channels = 2 * pairs - odd
    w = np.arange(1, rows * channels * taps + 1, dtype="i2")
    func = pair_rows(4, taps, odd=odd)
    arrays = {"p": np.zeros(2 * LEFT_PITCH * rows, "i2"), "w": w}
    p = moved(func, arrays, numbers_of(func, rows, channels * taps, pairs - odd, pairs))
    full = np.zeros((rows, 2 * pairs, taps), "i2")
    full[:, :channels] = w.reshape(rows, channels, taps)
    expected = full.reshape(rows, pairs, 2, taps).swapaxes(2, 3).reshape(rows, -1)
    assert np.array_equal(p.reshape(rows, -1)[:, : expected.shape[1]], expected)


@pytest.mark.parametrize("channels", [8, 6, 1])
@pytest.mark.parametrize("width", [4, 7])
def test_sums_become_planes(channels: int, width: int) -> None:
    lanes, height = 4, 3
    sums = np.random.default_rng(0).normal(size=(height, width + 3, 8)).astype("f4")
    func = channel_planes(lanes, "f32", 1, full=channels % lanes == 0)
    plane = height * width
    values = (channels, plane, 8, width, height, (width + 3) * 8, width)
    arrays = {"y": np.zeros(channels * plane, "f4"), "s": sums.ravel()}
    y = moved(func, arrays, numbers_of(func, *values))
    expected = sums[:, :width, :channels].transpose(2, 0, 1)
    assert np.array_equal(y.reshape(channels, height, width), expected)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("channels", [4, 3])
def test_rows_of_pixels_become_vectors_of_channels(channels: int, step: int) -> None:
    lanes, height, width = 4, 3, 6
    x = np.random.default_rng(1).normal(size=(channels, height, width)).astype("f4")
    phases = step * width // step
    row = phases * lanes
    spare = height * row
    func = pixel_rows(lanes, "f32", "f32", (1, step))
    packed, phase = lanes, lanes * (width // step)
    values = (channels, height * width, spare, 0, height, 0, width, row, 0)
    values += (0, width, 0, 1, packed, phase if step > 1 else 0)
    arrays = {"p": np.zeros(spare + 4 * lanes, "f4"), "x": x.ravel()}
    p = moved(func, arrays, numbers_of(func, *values))
    image = x[np.minimum(np.arange(lanes), channels - 1)].transpose(1, 2, 0)
    split = image.reshape(height, width // step, step, lanes).swapaxes(1, 2)
    assert np.array_equal(p[:spare].reshape(split.shape), split)
