"""Results of earlier products are packed in their vector layout."""

from __future__ import annotations

import numpy as np
from tests.codegen.llvm.native import native
from tests.codegen.llvm.single_kernel import RUNNABLE

from smelt.codegen.build import asm_text
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.interp import run
from smelt.kernel.text import parse
from smelt.machine.target import Target

GRADIENTS = """\
kernel k0(
    g: f32[h,n,64], q: f32[h,n,64], k: f32[h,n,64], v: f32[h,n,64], s: f32[h,n]
) -> y0: f32[h,n,64], y1: f32[h,n,64]
  axis i in h, j in n, l in 64, u in n
  grid i
  v1 = k[i,u,l]
  v8 = v[i,u,l]
  stream j/64 with v17 = 0 [l,u], v18 = 0 [l,u]
    v0 = q[i,j,l]
    v2 = dot(v0, v1 over l)
    v4 = s[i,j]
    v5 = v2 - v4
    v6 = exp(v5)
    v7 = g[i,j,l]
    v9 = dot(v7, v8 over l)
    v14 = v6 * v9
    v17' = v17 + dot(v14, v0 over j)
    v18' = v18 + dot(v6, v7 over j)
  y0[i,u,l] = v17
  y1[i,u,l] = v18
"""


def test_scores_are_packed_in_their_layout() -> None:
    """Tiles read the scores in place, and nothing is gathered.

    Vectors of scores run along the keys, and tiles take rows of keys from them; where the sums are
    stored transposed, panels run along the keys too.
    """
    target = Target.for_isa("avx512")
    (phase,) = program(parse(GRADIENTS)).phases
    blocked = schedule(phase, target).blocked
    assert {c.k: c.n for c in blocked} == {"l": "u", "j": "l"}
    assert [c.m_contiguous for c in blocked] == [c.k == "j" for c in blocked]
    transposed = GRADIENTS.replace(
        "-> y0: f32[h,n,64], y1: f32[h,n,64]", "-> y0: f32[h,64,n], y1: f32[h,64,n]"
    )
    transposed = transposed.replace("[i,u,l] = v17", "[i,l,u] = v17")
    transposed = transposed.replace("[i,u,l] = v18", "[i,l,u] = v18")
    assert "vgather" not in asm_text(parse(transposed), target)
    assert "vscatter" not in asm_text(parse(GRADIENTS), target)


def test_and_are_right() -> None:
    kernel = parse(GRADIENTS)
    rng = np.random.default_rng(0)
    for isa in RUNNABLE:
        code = native(GRADIENTS, isa)
        for h, n in ((1, 1), (2, 70), (1, 200), (3, 17)):
            q, k, v, g = (rng.standard_normal((h, n, 64)).astype("f4") / 4 for _ in range(4))
            s = rng.standard_normal((h, n)).astype("f4") + 3
            inputs = {"g": g, "q": q, "k": k, "v": v, "s": s}
            actual = code(inputs, {"h": h, "n": n})
            wanted = run(kernel, inputs, {"h": h, "n": n})
            weights = np.exp(np.einsum("hjl,hul->hju", q, k, dtype="f8") - s[:, :, None])
            other = np.einsum("hjl,hul->hju", g, v, dtype="f8") * weights
            exact = [np.einsum("hju,hjl->hul", a, b) for a, b in ((other, q), (weights, g))]
            for name, right in zip(("y0", "y1"), exact, strict=True):
                np.testing.assert_allclose(actual[name], right, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(wanted[name], right, rtol=1e-4, atol=1e-4)


CHAINED = """\
kernel k0(
    g: f32[n,24], h: f32[n,37], w: f32[24,37], x: f32[n,53], v: f32[37,53]
) -> y0: f32[24,37], y1: f32[37,53], y2: f32[n,53]
  axis n, i in 24, j in 37, l in 53
  v3 = w[i,j]
  v10 = v[j,l]
  stream n/64 with v2 = 0 [i,j], v8 = 0 [j,l]
    v0 = g[n,i]
    v1 = h[n,j]
    v2' = v2 + dot(v0, v1 over n)
    v4 = dot(v0, v3 over i)
    v5 = v1 <= 0
    v6 = select(v5, 0, v4)
    v7 = x[n,l]
    v13 = v7 * v7
    v8' = v8 + dot(v6, v13 over n)
    v11 = dot(v6, v10 over j)
    v12 = v11 + v13
    y2[n,l] = v12
  y0[i,j] = v2
  y1[j,l] = v8
"""


def test_each_product_has_the_layout_of_its_result() -> None:
    """The other product's columns, stored first, are rows here: with sides changed for their sake,
    every vector of both operands was scattered, and gathered by whoever read it."""
    target = Target.for_isa("avx512")
    (phase,) = program(parse(CHAINED)).phases
    blocked = schedule(phase, target).blocked
    assert {(c.m, c.n) for c in blocked if c.k == "n"} == {("i", "j"), ("j", "l")}
    assert {c.m: c.m_contiguous for c in blocked if c.k == "n"} == {"i": False, "j": True}
    assert "vscatter" not in asm_text(parse(CHAINED), target)


def test_and_is_right_too() -> None:
    rng = np.random.default_rng(1)
    kernel = parse(CHAINED)
    for isa in RUNNABLE:
        code = native(CHAINED, isa)
        for n in (1, 63, 64, 200):
            shapes = {"g": (n, 24), "h": (n, 37), "w": (24, 37), "x": (n, 53), "v": (37, 53)}
            inputs = {k: rng.standard_normal(s).astype("f4") for k, s in shapes.items()}
            actual, wanted = code(inputs, {"n": n}), run(kernel, inputs, {"n": n})
            g, h, w, x, v = (inputs[k].astype("f8") for k in shapes)
            z = np.where(h <= 0, 0, g @ w)
            exact = {"y0": g.T @ h, "y1": z.T @ (x * x), "y2": z @ v + x * x}
            # A rounding is 2^-24 of the magnitudes that are summed: one a term, 24 within z.
            size = np.where(h <= 0, 0, np.abs(g) @ np.abs(w))
            sizes = {
                "y0": n * np.abs(g).T @ np.abs(h),
                "y1": (n + 27) * size.T @ (x * x),
                "y2": (37 + 27) * (size @ np.abs(v) + x * x),
            }
            for name, right in exact.items():
                bound = 2.0**-24 * sizes[name] + 1e-30
                assert (np.abs(actual[name] - right) <= bound).all(), (name, isa, n)
                assert (np.abs(wanted[name] - right) <= bound).all(), (name, isa, n)
