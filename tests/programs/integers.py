"""Programs over integers and truth values: codes, generators, automata, counts."""

from __future__ import annotations

import numpy as np
from tests.programs.rows import bits, program


def u32(xp, value):
    return xp.asarray(value, dtype=xp.uint32)


@program(bits(("n",), ("n",)))
def xorshift_and_lcg(xp, s, t):
    for _ in range(3):
        s = s ^ (s << u32(xp, 13))
        s = s ^ (s >> u32(xp, 17))
        s = s ^ (s << u32(xp, 5))
        t = t * u32(xp, 1664525) + u32(xp, 1013904223)
    return s, t, xp.astype(s >> u32(xp, 8), xp.float32) * 2.0**-24


@program(bits(("n",)))
def gray_and_morton(xp, x):
    g = x ^ (x >> u32(xp, 1))
    y = x & u32(xp, 0xFFFF)
    for s, m in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        y = (y | (y << u32(xp, s))) & u32(xp, m)
    back = g
    for s in (1, 2, 4, 8, 16):
        back = back ^ (back >> u32(xp, s))
    return g, y, back == x


@program(bits(("n", 3), dtype=np.uint8))
def base64_codes(xp, b):
    x = xp.astype(b, xp.uint32)
    w = (x[:, 0] << u32(xp, 16)) | (x[:, 1] << u32(xp, 8)) | x[:, 2]
    return xp.stack([(w >> u32(xp, 18 - 6 * k)) & u32(xp, 63) for k in range(4)], axis=1)


@program(bits(("n",), ("n",), dtype=np.int64))
def saturating_and_mixed(xp, a, b):
    s = a + b
    over = ((a ^ s) & (b ^ s)) < 0
    top = xp.asarray(2**63 - 1, dtype=xp.int64)
    d = xp.where(b == 0, xp.ones_like(b), b)
    q = a // d
    return xp.where(over, xp.where(a < 0, -top - 1, top), s), q, a - q * d, a % d, a >> 7, ~a


@program(bits(("n",), ("n",), dtype=np.int8))
def small_integers(xp, a, b):
    wide = xp.astype(a, xp.int16) * xp.astype(b, xp.int16)
    total = xp.sum(a)
    return (
        a + b,
        a * b,
        wide,
        total,
        xp.cumulative_sum(b),
        xp.abs(a),
        xp.maximum(a, -b),
        xp.sign(a),
        xp.prod(xp.astype(a | xp.asarray(1, dtype=xp.int8), xp.int32)),
    )


@program(lambda rng, n, dt: (rng.random(n + 4) < 0.4,))
def rule_thirty(xp, x):
    for _ in range(4):
        x = xp.roll(x, 1) ^ (x | xp.roll(x, -1))
    runs = xp.astype(x[1:] != x[:-1], xp.int64)
    return x, xp.sum(runs), xp.cumulative_sum(runs), xp.any(x), xp.all(x)


@program(lambda rng, n, dt: (rng.integers(0, 5, (n, n + 1)),))
def sandpile(xp, g):
    for _ in range(3):
        tip = xp.astype(g >= 4, xp.int64)
        z = xp.zeros_like(tip[:1])
        w = xp.zeros_like(tip[:, :1])
        up = xp.concat([tip[1:], z], axis=0)
        down = xp.concat([z, tip[:-1]], axis=0)
        left = xp.concat([tip[:, 1:], w], axis=1)
        right = xp.concat([w, tip[:, :-1]], axis=1)
        g = g - 4 * tip + up + down + left + right
    return g, xp.max(g), xp.sum(g)


@program(lambda rng, n, dt: (rng.integers(0, 50, (6, 6)), rng.integers(0, 6, n)))
def floyd_warshall(xp, d, at):
    for k in range(6):
        d = xp.minimum(d, d[:, k][:, None] + d[k, :][None, :])
    return d, xp.take(d, at, axis=0), xp.take(xp.max(d, axis=1), at)


@program(lambda rng, n, dt: (rng.integers(0, 4, n), rng.integers(0, 4, n + 1)))
def edit_rows(xp, a, b):
    row = xp.arange(b.shape[0] + 1)
    j = xp.arange(b.shape[0] + 1)
    for i in range(min(a.shape[0], 3)):
        cost = xp.astype(b != a[i], xp.int64)
        step = xp.minimum(row[1:] + 1, row[:-1] + cost)
        new = xp.concat([xp.full((1,), i + 1, dtype=row.dtype), step])
        m = xp.where(j[:, None] >= j[None, :], (new - j)[None, :], 10**6)
        row = xp.min(m, axis=1) + j
    return row


@program(lambda rng, n, dt: (rng.integers(0, 7, n), rng.integers(0, 7, n)))
def confusion(xp, a, b):
    one = xp.astype(a[:, None] == xp.arange(7), xp.int32)
    two = xp.astype(b[:, None] == xp.arange(7), xp.int32)
    m = xp.matmul(one.T, two)
    tp = xp.sum(m * xp.astype(xp.eye(7), xp.int32), axis=0)
    return m, tp, xp.sum(m, axis=0) - tp, xp.sum(m, axis=1) - tp


@program(lambda rng, n, dt: (rng.integers(-100, 100, (n, 8)),))
def ranks_and_sorts(xp, x):
    r = xp.argsort(x, axis=1, stable=True)
    s = xp.take_along_axis(x, r, axis=1)
    keep = xp.concat([xp.ones_like(s[:, :1], dtype=xp.bool), s[:, 1:] != s[:, :-1]], axis=1)
    return s, xp.sum(xp.astype(keep, xp.int64), axis=1), xp.sort(x, axis=0)


@program(bits(("n", 4), dtype=np.uint16))
def checksums(xp, x):
    w = xp.astype(x, xp.uint32)
    s = xp.sum(w, axis=1, dtype=xp.uint32)
    s = (s & u32(xp, 0xFFFF)) + (s >> u32(xp, 16))
    a = xp.cumulative_sum(xp.astype(x, xp.uint64), axis=1)
    m = xp.asarray(65521, dtype=xp.uint64)
    return ~xp.astype(s, xp.uint16), a[:, -1] % m, xp.sum(a, axis=1) % m


@program(lambda rng, n, dt: (rng.random((n, n)) < 0.2, rng.random(n) < 0.3))
def reachability(xp, adj, start):
    seen = start
    for _ in range(3):
        seen = seen | xp.any(adj & seen[:, None], axis=0)
    degree = xp.sum(xp.astype(adj, xp.int64), axis=1)
    two = xp.matmul(xp.astype(adj, xp.int32), xp.astype(adj, xp.int32))
    return seen, degree, two > 0, xp.count_nonzero(adj & adj.T)
