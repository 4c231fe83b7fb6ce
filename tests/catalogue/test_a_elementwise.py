"""Section A: elementwise operators, broadcasting and views."""

from __future__ import annotations

import math

import numpy as np
from tests.catalogue.harness import MACHINE, EveryRow, make, matched, record, sketch
from tests.catalogue.rows import Row, draw

import smelt as sm
from smelt import fusion, knobs
from smelt.compiler import driver

MATRIX = {"r": 8192, "c": 4096}
NARROW = {"r": 8192, "c": 4096, "k": 16}


def relu(xp, x):
    return xp.maximum(x, 0)


# ---- A2, A3 ------------------------------------------------------------------------------------


def two_readers(xp, x):
    a = xp.exp(x * 0.5)
    return a + 1, xp.sqrt(a)


def two_transposed_readers(xp, y):
    t = xp.exp(0.5 * y)
    second = xp.sqrt(t)
    first = 1 + t
    return first, second


# ---- A4 ----------------------------------------------------------------------------------------


def cheap(xp, x):
    return x * 2 + 1


def expensive(xp, x):
    return xp.erf(xp.tanh(xp.exp(xp.sin(x))))


def two_positions(f):
    """f(x) is read here, and again behind two products."""

    def code(xp, x, w):
        a = f(xp, x)
        return xp.tanh(a @ w) @ xp.matrix_transpose(w) + a

    return code


def two_positions_otherwise(f):
    def code(xp, t, u):
        inner = xp.tensordot(xp.tanh(xp.tensordot(f(xp, t), u, axes=1)), u, axes=((1,), (1,)))
        return f(xp, t) + inner

    return code


# ---- A6 ----------------------------------------------------------------------------------------


def views(xp, x, y):
    """Transposed, flipped, sliced, reshaped and expanded between elementwise operators."""
    n, m = x.shape
    t = xp.permute_dims(x * 2, (1, 0))
    t = xp.flip(t, axis=0) + y
    t = xp.reshape(t, (m, n, 1)) + xp.ones((1, 1, 3), dtype=x.dtype)
    return xp.tanh(t[:, 1:, :])


def views_otherwise(xp, x, y):
    """The same, each view in another place."""
    t = xp.permute_dims(xp.flip(x, axis=1), (1, 0))[:, 1:]
    t = (t + t) + y[:, 1:]
    return xp.tanh(xp.broadcast_to(xp.expand_dims(t, axis=2), (*t.shape, 3)) + 1)


def pieces(xp, x, y):
    return xp.concat([xp.exp(x), y * y], axis=1)


def pieces_otherwise(xp, x, y):
    swapped = xp.concat([xp.permute_dims(xp.exp(x), (1, 0)), xp.permute_dims(y**2, (1, 0))], axis=0)
    return xp.permute_dims(swapped, (1, 0))


def padded(xp, x):
    """A frame of zeros around computed values, then more work."""
    n, _ = x.shape
    zeros = xp.zeros((n, 2), dtype=x.dtype)
    return relu(xp, xp.concat([zeros, x - 1, zeros], axis=1)) * 3


def padded_otherwise(xp, t):
    zeros = xp.zeros((t.shape[0], 2), dtype=t.dtype)
    return xp.concat([zeros, 3 * relu(xp, -1 + t), zeros], axis=1)


# ---- A7 ----------------------------------------------------------------------------------------


def views_outside(xp, x, w, y):
    return xp.expand_dims(x, axis=1) @ w + xp.expand_dims(y, axis=1)


def views_grouped(xp, x, w, y):
    return xp.expand_dims(x @ w + y, axis=1)


# ---- A9 ----------------------------------------------------------------------------------------


def rotary(xp, x, cos, sin):
    half = x.shape[-1] // 2
    transposed = xp.concat([-x[..., half:], x[..., :half]], axis=-1)
    return x * cos + transposed * sin


def rotary_otherwise(xp, q, c, s):
    half = q.shape[-1] // 2
    low, high = q[..., :half], q[..., half:]
    return xp.concat(
        [low * c[:, :half] - high * s[:, :half], high * c[:, half:] + low * s[:, half:]], axis=-1
    )


# ---- A10 ---------------------------------------------------------------------------------------


def choices(xp, x, y):
    """where, comparisons, clamps, integer and boolean algebra, casts."""
    k = xp.astype(xp.floor(xp.clip(x, -3, 3) * 4), xp.int64)
    odd = (k & 1) == 1
    keep = odd ^ (x > y) | ~(y <= 0)
    return xp.where(keep, x + xp.astype(k >> 1, x.dtype), -y)


def choices_otherwise(xp, x, y):
    bounded = xp.minimum(xp.maximum(x, -3), 3)
    k = xp.astype(xp.floor(4 * bounded), xp.int64)
    keep = xp.logical_or(xp.logical_xor(k % 2 != 0, y < x), xp.logical_not(y <= 0))
    return xp.where(xp.logical_not(keep), xp.negative(y), xp.astype(k // 2, x.dtype) + x)


def black_scholes(xp, price, strike, years):
    rate, sigma = 0.03, 0.2
    root = sigma * xp.sqrt(years)
    d1 = (xp.log(price / strike) + (rate + 0.5 * sigma * sigma) * years) / root
    d2 = d1 - root
    worth = strike * xp.exp(-rate * years)

    def below(z):
        return 0.5 * (1 + xp.erf(z * math.sqrt(0.5)))

    call = price * below(d1) - worth * below(d2)
    return call, call - price + worth


def black_scholes_otherwise(xp, s, k, t):
    v = 0.2 * xp.sqrt(t)
    q = k * xp.exp(t * -0.03)
    b = xp.log(s / k) / v + t * 0.05 / v
    c = s * (xp.erf(b * math.sqrt(0.5)) + 1) / 2 - q * (xp.erf((b - v) * math.sqrt(0.5)) + 1) / 2
    return c, (c + q) - s


def mish(xp, x):
    return x * xp.tanh(xp.log1p(xp.exp(x)))


def gelu(xp, x):
    return 0.5 * x * (1 + xp.erf(x / math.sqrt(2)))


def gelu_tanh(xp, x):
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# ---- A11 ---------------------------------------------------------------------------------------


def stored_first(xp, x, y):
    scaled = x * 2
    both = scaled + y
    total = xp.sum(scaled * both, axis=1)
    return both, total


def computed_just_before(xp, x, y):
    scaled = x * 2
    total = xp.sum(scaled * (scaled + y), axis=1)
    both = y + scaled
    return both, total


# ---- A12 ---------------------------------------------------------------------------------------


def dropout(xp, x, b, key):
    keep = xp.random.uniform(key, x.shape) >= 0.25
    return xp.where(keep, relu(xp, x + b) / 0.75, 0) * 2


def dropout_otherwise(xp, x, b, key):
    gone = xp.random.uniform(key, x.shape) < 0.25
    h = relu(xp, b + x)
    return 2 * xp.where(gone, 0, h / 0.75)


# ---- the table ---------------------------------------------------------------------------------

ROWS = (
    Row("A1 large b", lambda xp, x, b: xp.log(relu(xp, x + b)), ("T[r,c] > 0", "T[r,c] > 0"),
        MATRIX, fused="s*3*r*c", unfused="s*7*r*c",
        also=(lambda xp, x, b: xp.log(xp.where(b + x > 0, b + x, 0)),
              lambda xp, u, v: xp.log(0.5 * ((u + v) + xp.abs(u + v))))),
    Row("A1 row b", lambda xp, x, b: xp.log(relu(xp, x + b)), ("T[r,c] > 0", "T[c] > 0"),
        MATRIX, fused="s*(2*r*c + c)", unfused="s*(6*r*c + c)",
        also=(lambda xp, x, b: xp.log(relu(xp, xp.broadcast_to(b, x.shape) + x)),
              lambda xp, x, b: xp.log(xp.reshape(relu(xp, b[None, :] + x), x.shape)))),
    Row("A2", lambda xp, x: relu(xp, x * 2) + 1, ("T[r,c]",), MATRIX,
        fused="s*2*r*c", unfused="s*6*r*c",
        also=(lambda xp, x: 1 + xp.where(x + x > 0, x + x, 0),
              lambda xp, t: 2 * relu(xp, t) + 1)),
    Row("A3", two_readers, ("T[r,c]",), MATRIX, fused="s*3*r*c", unfused="s*8*r*c",
        also=(two_transposed_readers,)),
    Row("A4 cheap", two_positions(cheap), ("T[r,c]", "T[c,k]"), NARROW,
        fused="s*(3*r*c + 2*c*k + 2*r*k)", unfused="s*(2*c*k + 9*r*c + 4*r*k)", kernels=2,
        stored=("tanh",),
        also=(two_positions_otherwise(cheap),)),
    Row("A4 dear", two_positions(expensive), ("T[r,c]", "T[c,k]"), NARROW,
        fused="s*(5*r*c + 2*c*k + 2*r*k)", unfused="s*(2*c*k + 13*r*c + 4*r*k)", kernels=3,
        stored=("erf", "tanh"),
        also=(two_positions_otherwise(expensive),)),
    Row("A6 views", views, ("T[r,c]", "T[c,r]"), MATRIX,
        fused="s*(2*(r-1)*c + 3*(r-1)*c)", unfused="s*13*(r-1)*c", also=(views_otherwise,)),
    Row("A6 concat", pieces, ("T[r,c]", "T[r,d]"), {"r": 8192, "c": 4096, "d": 1024},
        fused="s*2*r*(c+d)", unfused="s*4*r*(c+d)", also=(pieces_otherwise,)),
    Row("A6 pad", padded, ("T[r,c]",), MATRIX, fused="s*(r*c + r*(c+4))",
        unfused="s*(3*r*c + 3*r*(c+4))", also=(padded_otherwise,)),
    Row("A7", views_outside, ("T[n,k]", "T[k,m]", "T[n,m]"), {"n": 2048, "k": 512, "m": 1024},
        fused="s*(n*k + k*m + 2*n*m)", unfused="s*(n*k + k*m + 4*n*m)", also=(views_grouped,)),
    Row("A8", lambda xp, x: xp.permute_dims(xp.exp(x), (1, 0)), ("T[r,c]",), MATRIX,
        fused="s*2*r*c", unfused="s*2*r*c",
        also=(lambda xp, x: xp.exp(xp.matrix_transpose(x)),)),
    Row("A9", rotary, ("T[b,n,c]", "T[n,c]", "T[n,c]"), {"b": 32, "n": 2048, "c": 128},
        fused="s*(2*b*n*c + 2*n*c)", unfused="s*(8*b*n*c + 2*n*c)", also=(rotary_otherwise,),
        multiples={"c": 2}),
    Row("A10 choices", choices, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*3*r*c", unfused="152*r*c",
        also=(choices_otherwise,)),
    Row("A10 Black-Scholes", black_scholes, ("T[n] > 0", "T[n] > 0", "T[n] > 0"),
        {"n": 1 << 25}, fused="s*5*n", unfused="s*58*n", also=(black_scholes_otherwise,)),
    Row("A10 Mish", mish, ("T[r,c]",), MATRIX, fused="s*2*r*c", unfused="s*9*r*c",
        also=(lambda xp, x: sm.nn.mish(x) if xp is sm else mish(xp, x),)),
    Row("A10 GELU erf", gelu, ("T[r,c]",), MATRIX, fused="s*2*r*c", unfused="s*11*r*c",
        also=(lambda xp, x: sm.nn.gelu(x),)),
    Row("A10 GELU tanh", gelu_tanh, ("T[r,c]",), MATRIX, fused="s*2*r*c", unfused="s*18*r*c",
        also=(lambda xp, x: sm.nn.gelu(x, approximate="tanh"),)),
    Row("A10 pow", lambda xp, x, y: xp.pow(x, y) + x**3 - x**0.5, ("T[r,c] > 0", "T[r,c]"),
        MATRIX, fused="s*3*r*c", unfused="s*13*r*c",
        also=(lambda xp, x, y: x * x * x - xp.sqrt(x) + x**y,)),
    Row("A11", stored_first, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*(3*r*c + r)",
        unfused="s*(9*r*c + r)",
        also=(computed_just_before,)),
    Row("A12", dropout, ("T[r,c]", "T[c]", "u64[]"), MATRIX, fused="s*(2*r*c + c) + 8",
        unfused="74*r*c + 4*c + 8", also=(dropout_otherwise,), dtypes=("bf16", "f16")),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section A."""


# ---- beyond the counts -------------------------------------------------------------------------


def row(name: str) -> Row:
    return next(r for r in ROWS if r.id == name)


def test_a2_step_by_step() -> None:
    """The values that the kernel's statements take for x = 3."""
    program = make(row("A2"))
    (cluster,) = program.sketch.plan.clusters
    values = dict(zip(cluster.inputs, [np.full((1, 1), 3.0, np.float32)], strict=True))
    shown = [3.0]
    for node in cluster.nodes:
        result = node.op.reference(
            program.sizes({"r": 1, "c": 1}), *(values[x] for x in node.inputs)
        )
        values[node] = result
        if not node.op.is_source:
            shown.append(float(result[0, 0]))
    assert shown == [3.0, 6.0, 6.0, 7.0]
    assert program.run([np.full((2, 5), 3.0, np.float32)])[0].tolist() == [[7.0] * 5] * 2


def test_a4_the_decisions_say_why() -> None:
    def clusters_with(name: str, operator: str) -> list[bool]:
        clusters = sketch(row(name)).sketch.plan.clusters
        return [
            operator in [n.op.name for n in c.recomputed]
            for c in clusters
            if operator in [n.op.name for n in c.nodes]
        ]

    assert clusters_with("A4 cheap", "mul") == [True, True]
    assert clusters_with("A4 dear", "exp") == [False]
    split = [d for d in sketch(row("A4 dear")).sketch.plan.decisions if d.verdict == "split"]
    requested = [d for d in split if d.reason == "recompute-dear" and d.fused_ns is not None]
    assert requested
    for d in requested:
        assert d.fused_ns > d.split_ns > 0
        assert d.saves_bytes > 0


def updates(xp, *arrays):
    half = len(arrays) // 2
    return [p - 0.1 * g for p, g in zip(arrays[:half], arrays[half:], strict=True)]


def test_a5_a_hundred_small_arrays_are_one_launch() -> None:
    arrays = [np.zeros(50 + 7 * k, np.float32) for k in range(100)]
    recorded = record(updates, arrays + arrays)
    hints = matched(recorded, [a.size for a in arrays + arrays])
    plan = fusion.plan(recorded.graph, MACHINE, None, hints)
    assert [len(launch) for launch in plan.launches] == [100]
    assert all(
        [n.op.name for n in c.nodes if not n.op.is_source] == ["mul", "sub"] for c in plan.clusters
    )


def test_a5_runs() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (1, 3, 17, 65, 2049) * 2]
    result = sm.jit(lambda xs: updates(sm, *xs))(arrays)
    for p, g, y in zip(arrays[:5], arrays[5:], result, strict=True):
        np.testing.assert_allclose(np.asarray(y), p - np.float32(0.1) * g, rtol=1e-6)


def test_a7_the_same_plan_before_and_after_grouping() -> None:
    one, other = (sketch(row("A7"), form=k).sketch.plan for k in (0, 1))
    names = [
        [[n.op.name for n in c.nodes if not n.op.is_view] for c in p.clusters] for p in (one, other)
    ]
    assert names[0] == names[1]


def test_a12_one_seed_one_mask() -> None:
    """Masks have the same bits for any number of threads, any tile and any fusion."""
    arrays = draw(row("A12"), {"r": 301, "c": 517})
    masks = set()
    for settings in ({"threads": 1}, {"threads": 3}, {"fuse": False}, {"target": "portable"}):
        with knobs.config(**settings):
            f = sm.jit(lambda *xs: dropout(sm, *xs) != 0)
            masks.add(np.asarray(f(*arrays)).tobytes())
    for hints in ({"r": 1, "c": 1}, {"r": 1 << 14, "c": 1 << 12}):
        recorded = record(dropout, arrays)
        program = driver.compile(
            recorded.graph, hints=dict(zip(recorded.hints, hints.values(), strict=True))
        )
        masks.add((program.run(arrays, (301, 517))[0] != 0).tobytes())
    assert len(masks) == 1
