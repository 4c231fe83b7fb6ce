"""Gathers are loaded once for iterations that read the same: bits, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.loop.interpret import run
from smelt.loop.ir import Module
from smelt.loop.passes.hoist import hoist
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.prefetch import prefetch_farthest
from smelt.loop.passes.reuse_loads import reuse_loads
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse, text
from smelt.loop.verify import verify

GROUPS = """module f
func f(s: f32[n*g], z: f32[n*g], x: f32[n*k], p: out f32[k*n]; n, k, g)
  each i in 0 .. n
    each j in 0 .. k
      p[j*n + i] = (x[i*k + j] - z[i*g + j//{d}]) * s[i*g + j//{d}] + s[i*g + j//{e}]"""


@pytest.mark.parametrize(("d", "e"), [(1, 2), (3, 3), (4, 16), (100, 2)])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 5), (8, 17), (13, 40)])
def test_bits_are_equal(n: int, k: int, d: int, e: int) -> None:
    (func,) = parse(GROUPS.format(d=d, e=e)).funcs
    wide = vectorize(func, "i", 8, "mask", 4)
    wide = prefetch_farthest(wide, {"x": 64})
    wide = reuse_loads(hoist_offsets(hoist(wide)))
    module = verify(Module("f", (wide,)), bounds=False)  # quotients have names
    assert parse(text(module)).funcs == module.funcs
    g = (k - 1) // min(d, e) + 1
    rng = np.random.default_rng(n)
    arrays = {"s": rng.normal(size=n * g), "z": rng.normal(size=n * g), "x": rng.normal(size=n * k)}
    arrays = {name: a.astype("f4") for name, a in arrays.items()}
    sizes = {"n": n, "k": k, "g": g}
    p = {"p": np.zeros(k * n, "f4")}
    new, old = (run(m, arrays | p, sizes)["p"] for m in (module, Module("f", (func,))))
    assert new.tobytes() == old.tobytes()


@pytest.mark.parametrize(
    "value", ["x[k : 4 * n]", "x[k//2 : 4]", "x[k//2 + k : 4 * n]", "p[k//2 : 4 * 3]", "x[k//2]"]
)
def test_what_moves_or_is_written_is_loaded_each_time(value: str) -> None:
    module = parse(f"""module f
tile f(x: f32[], p: out f32[]; n)
  each k in 0 .. n
    p[k*4 : 4] = splat(0.0, 4) + {value if ":" in value else f"splat({value}, 4)"}""")
    assert reuse_loads(module.funcs[0]) == module.funcs[0]
