"""Values kept between calls take no more memory than fusion saves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.compiler import ahead, driver
from smelt.explain.api import report
from smelt.fusion.predict import plan_peak_bytes, unfused_peak_bytes
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.journal.facts import ConstantWeighed
from smelt.runtime.executable_format import LoopUse
from smelt.runtime.prelude import Allowance

RNG = np.random.default_rng(4)


def layers(count: int, width: int = 256) -> Graph:
    """Products with constants, each behind operators that need two more arrays when apart."""
    inputs = ", ".join(f"w{k}: f32[{width},{width}] constant" for k in range(count))
    lines = [f"graph f(x: f32[n,{width}], {inputs}) {{"]
    value = "x"
    for k in range(count):
        lines += [
            f"  t{k} = tanh({value})",
            f"  s{k} = sin({value})",
            f"  u{k} = mul(t{k}, s{k})",
            f"  e{k} = add(u{k}, {value})",
            f'  c{k} = contract(e{k}, w{k}) {{spec="m,k; n,k -> m,n"}}',
        ]
        value = f"c{k}"
    return parse("\n".join([*lines, f"  return {value}", "}"]))


def compiled(graph: Graph, rows: int, allowance: Allowance | None = None, **settings: Any):
    with sm.config(**settings):
        return driver.compile(graph, hints={"n": rows}, allowance=allowance)


def kept(built: driver.Compiled) -> int:
    prelude = built.executable.prelude
    return 0 if prelude is None else prelude.nbytes


def weighed(built: driver.Compiled) -> list[ConstantWeighed]:
    return built.journal.of(ConstantWeighed)


@pytest.mark.parametrize("rows", [1, 40, 300, 3000])
def test_with_what_is_kept_no_more_than_the_operators_apart(rows: int):
    program = compiled(layers(4), rows)
    held = plan_peak_bytes(program.plan, {"n": rows}) + kept(program)
    assert held <= max(
        unfused_peak_bytes(program.graph, {"n": rows}), plan_peak_bytes(program.plan, {"n": rows})
    )


def test_more_rows_save_more_and_pack_more():
    with sm.config(target="avx512"):  # compiled, not run
        actual = [kept(compiled(layers(4), rows)) for rows in (40, 600, 20_000)]
    assert actual == sorted(actual) and actual[0] < actual[-1] == 4 * 4 * 256 * 256


@pytest.mark.parametrize("extra", [0, 256 * 1024, 3 * 256 * 1024 - 1])
def test_a_setting_gives_more(extra: int):
    program = compiled(layers(3), 30, Allowance(0, 0), constants_extra=extra)
    assert kept(program) == extra // (256 * 1024) * 256 * 1024
    assert kept(compiled(layers(3), 30, constants_extra=None)) == 3 * 256 * 1024


def test_half_of_an_allowance_counts_instead():
    graph = layers(3)
    peak = plan_peak_bytes(compiled(graph, 300).plan, {"n": 300})
    for panels in range(4):
        room = 2 * panels * 256 * 1024 + 100
        assert kept(compiled(graph, 300, Allowance(peak + room, 1 << 40))) == panels * 256 * 1024
        assert kept(compiled(graph, 300, Allowance(1 << 40, room))) == panels * 256 * 1024


def test_every_candidate_is_recorded_with_its_numbers():
    program = compiled(layers(3), 30, Allowance(0, 0), constants_extra=300 * 1024)
    facts = weighed(program)
    assert [f.kept for f in facts] == [True, False, False]
    assert all(f.what == "packed" and f.bytes == 256 * 1024 and f.saves_ns > 0 for f in facts)
    assert [f.room_bytes for f in facts] == [300 * 1024, 44 * 1024, 44 * 1024]
    data = json.loads(report(program, {"n": 30}).to_json())
    assert [c["kept"] for c in data["constants"]] == [True, False, False]
    assert "more would save" in str(report(program, {"n": 30}))


def test_the_greatest_gain_per_byte_is_kept():
    graph = parse("""graph f(x: f32[n,256], z: f32[40,256], w: f32[256,256] constant,
      v: f32[256,256] constant) {
  a = contract(z, v) {spec="m,k; n,k -> m,n"}
  b = contract(x, w) {spec="m,k; n,k -> m,n"}
  return a, b
}""")
    program = compiled(graph, 2000, Allowance(0, 0), constants_extra=256 * 1024)
    assert [(f.value, f.kept) for f in weighed(program)] == [("w", True), ("v", False)]


def test_what_there_is_no_room_for_is_computed_in_every_call():
    graph = parse("""graph f(x: f32[n,200], a: f32[200,200] constant, b: f32[200,200] constant) {
  ea = exp(a)
  eb = tanh(b)
  la = log1p(ea)
  p = contract(x, la) {spec="m,k; n,k -> m,n"}
  q = contract(x, eb) {spec="m,k; n,k -> m,n"}
  y = add(p, q)
  return y
}""")
    arrays = [RNG.standard_normal(s).astype("f4") for s in ((50, 200), (200, 200), (200, 200))]
    x, a, b = (v.astype("f8") for v in arrays)
    expected = x @ np.log1p(np.exp(a)).T + x @ np.tanh(b).T
    for extra, parts in ((0, 0), (160_000, 1), (320_000, 2)):
        program = compiled(graph, 50, Allowance(0, 0), constants_extra=extra)
        prelude = program.executable.prelude
        assert (0 if prelude is None else len(prelude.parts)) == parts
        assert kept(program) <= extra
        (actual,) = program.run(arrays, (50,))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


def test_equal_layers_are_queried_once_and_packed_each(monkeypatch: pytest.MonkeyPatch):
    """Arrays and sizes of their own make no difference to how a product wants its operand."""
    queries: list[object] = []
    panels = ahead.panels
    monkeypatch.setattr(ahead, "panels", lambda *a: (queries.append(a), panels(*a))[1])
    program = compiled(layers(8, 1024), 300, constants_extra=None)
    assert len(program.kernels) > 2 * len(queries)
    assert sorted(c.value for c in weighed(program)) == [f"w{k}" for k in range(8)]
    assert kept(program) == 8 * 4 * 1024 * 1024


# ---- loops ---------------------------------------------------------------------------------------


def recurrent(dtype: str, again: bool) -> Graph:
    """A recurrence whose steps multiply by one of two constant matrices, run once or twice."""
    weights = sm.asarray(RNG.integers(-100, 100, (2, 256, 384)).astype(dtype), copy=True)

    def step(h: Any, x: Any) -> Any:
        left = sm.astype(sm.round(h * 100), weights.dtype)
        wide = (sm.astype(v, sm.int32) if dtype == "i1" else v for v in (left, weights[1]))
        total = sm.matmul(*wide)
        z = sm.tanh(x + sm.astype(total, sm.float32) * 1e-4)
        h = z[:, :256] * z[:, 128:]
        return h, h

    def f(h: Any, xs: Any) -> Any:
        if again:
            h, _ = sm.scan(step, h, xs, reverse=True)
        return sm.scan(step, h, xs)

    h, xs = np.ones((5, 256), np.float32), np.ones((7, 5, 384), np.float32)
    return sm.jit(f).lower(h, xs).trace.graph


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("dtype", "rank"), [("f4", 3), ("i1", 4)])
def test_steps_of_loops_read_panels_that_are_packed_before(dtype: str, rank: int, again: bool):
    """Panels, of four interleaved rows for bytes, in place of the matrix in each step."""
    graph = recurrent(dtype, again)
    sizes = dict(zip(driver.input_size_names(graph), (7, 5), strict=True))
    with sm.config(constants_extra=1 << 22):
        packed = driver.compile(graph, hints=sizes)
    plain = driver.compile(graph, hints=sizes)
    (part,) = packed.recipe.parts
    assert part.packed and not plain.recipe.parts
    loops = [s for s in packed.recipe.steps if isinstance(s, LoopUse)]
    assert len(loops) == 1 + again
    for loop in loops:
        held = packed.recipe.values[loop.inputs[-1]]
        assert held.place == "held" and len(held.shape) == rank
        assert loop.body.values[len(loop.inputs) - 1].shape == held.shape
    h = RNG.uniform(-1, 1, (5, 256)).astype(np.float32)
    xs = RNG.standard_normal((7, 5, 384)).astype(np.float32)
    matrices = RNG.integers(-100, 100, (2, 256, 384)).astype(dtype)
    arrays = [h, xs, matrices if graph.inputs[2].type.rank == 3 else matrices[0].copy()]
    results = [program.run(arrays, tuple(sizes.values())) for program in (packed, plain)]
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
