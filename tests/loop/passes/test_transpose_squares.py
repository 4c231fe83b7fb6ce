"""Strided loads go through squares that registers transpose: the same elements, no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.errors import LoopPassError
from smelt.loop.interpret import run
from smelt.loop.ir import For, Func, Load, Module
from smelt.loop.passes.transpose_squares import stage_shared, stage_tiles, transpose_squares
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse, text
from smelt.loop.verify import verify
from smelt.loop.walk import loads, statements, values
from smelt.types.expr import Expr

PITCH = 16
SIDE = 4
SOURCE = """func f(x: f32[r*c], z: f32[r*c], y: out f32[(c + 4)*16], t: out f32[16*16]; r, c, a)
  each i in a .. c
    each j in 0 .. r
      y[i*16 + j] = {value}"""
MASKED = "x[(j + 1)*c + i - 2 | (1 <= i) & (2 <= i) & (j + 1 < r) : -7.0]"


def _source(value: str) -> Func:
    (func,) = parse(SOURCE.format(value=value)).funcs
    return func


def _result(func: Func, sizes: dict[str, int]) -> np.ndarray:
    r, c = sizes["r"], sizes["c"]
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=r * c).astype("f4") for name in "xz"}
    arrays |= {"y": np.zeros((c + SIDE) * PITCH, "f4"), "t": np.zeros(PITCH * PITCH, "f4")}
    y = run(verify(Module("f", (func,)), bounds=False), arrays, sizes)["y"].reshape(-1, PITCH)
    return y[sizes["a"] : c, :r].copy()


@pytest.mark.parametrize(
    "sizes", [(8, 8, 0), (7, 9, 1), (5, 12, 3), (1, 2, 0), (3, 1, 0), (4, 4, 4)]
)
@pytest.mark.parametrize("value", ["x[j*c + i]", MASKED, "x[j*c + i] * 2.0 + 0.5", "x[j//2*c + i]"])
@pytest.mark.parametrize(
    ("run_elements", "ahead", "tile"), [(0, 0, 0), (0, 2, 0), (4, 0, 16), (8, 0, 16)]
)
def test_squares_and_tiles_have_the_same_elements(
    value: str, sizes: tuple[int, int, int], run_elements: int, ahead: int, tile: int
) -> None:
    plain, numbers = _source(value), dict(zip("rca", sizes, strict=True))
    options: dict[str, Any] = {"run": run_elements, "ahead": ahead, "tile": tile}
    wanted = _result(plain, numbers)
    squares = transpose_squares(plain, "i", "j", SIDE, **options)
    assert text(parse(text(Module("f", (squares,))))) == text(Module("f", (squares,)))
    assert np.array_equal(_result(squares, numbers), wanted)
    load = next(x for s in statements(plain.body) for x in loads(*values(s)))
    assert isinstance(load.place.at, Expr)
    staged, fills = stage_tiles(plain, "i", "j", {("x", load.place.at): ("t", PITCH)})
    assert np.array_equal(_result(staged, numbers), wanted)
    staged = transpose_squares(staged, *fills["t"], SIDE, **options)
    assert np.array_equal(_result(staged, numbers), wanted)


@pytest.mark.parametrize("value", ["x[j*c + i//3] * z[j*2]", "x[i + j] + z[j*2 + i//4*2]"])
@pytest.mark.parametrize("sizes", [(8, 8, 0), (5, 12, 3), (6, 9, 7)])
def test_rows_share_what_they_read_at_a_stride(value: str, sizes: tuple[int, int, int]) -> None:
    plain, numbers = _source(value), dict(zip("rca", sizes, strict=True))
    shared, walks = stage_shared(plain, "i", "j", PITCH)
    assert len(walks) == value.count("j*")
    for walk in walks:
        shared = vectorize(shared, walk, SIDE, "mask")
    assert np.array_equal(_result(shared, numbers), _result(plain, numbers))


def test_only_what_is_strided_is_transposed() -> None:
    func = transpose_squares(_source("x[j*c + i] + z[i*r + j]"), "i", "j", SIDE)
    read = [x for s in statements(func.body) for x in loads(*values(s)) if x.place.buffer == "z"]
    assert len(read) == SIDE
    assert all(isinstance(x, Load) and x.place.lanes == SIDE for x in read)
    assert [s.kind for s in statements(func.body) if isinstance(s, For)] == ["for", "for"]


@pytest.mark.parametrize("value", ["x[i*r + j]", "x[j*c + i] + z[j*c + i]"])
def test_one_load_is_transposed_at_once(value: str) -> None:
    with pytest.raises(LoopPassError, match="loads are strided"):
        transpose_squares(_source(value), "i", "j", SIDE)


def test_lines_of_a_next_tile_follow_one_another() -> None:
    func = transpose_squares(_source("x[j*c + i]"), "i", "j", SIDE, run=16, tile=32)
    lines = text(Module("f", (func,))).splitlines()
    prefetches = [line.strip() for line in lines if "prefetch" in line]
    assert prefetches == [
        f"prefetch x[next_{n}{at}] level 2" for n in (1, 2) for at in ("", " + 16")
    ]
    begins = [line.split("= ")[1] for line in lines if line.strip().startswith("next_")]
    assert len(begins) == 2 and begins[0] != begins[1]
    assert all("next_" not in begin for begin in begins)


def test_whole_squares_are_read_without_masks() -> None:
    plain, sizes = _source("x[j*c + i]"), {"r": 8, "c": 12, "a": 4}
    squares = transpose_squares(plain, "i", "j", SIDE, run=4, whole=True)
    assert not any(x.place.mask for s in statements(squares.body) for x in loads(*values(s)))
    assert np.array_equal(_result(squares, sizes), _result(plain, sizes))
