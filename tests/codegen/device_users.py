"""Programs as users of NumPy write them: small arrays, sizes that they are planned for, a limit.

`USERS` has by name a function, the shapes of its arguments at both sizes, and the most microseconds
that an H100 is predicted to take: about twice what a person's kernels would, so that a plan which
leaves processors idle is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.strategies.data import Array

import smelt as sm


@dataclass(frozen=True)
class User:
    """A program; an argument is a type, a shape in names and the end of integers."""

    code: Callable[..., Any]
    arguments: str
    small: Sequence[int]
    large: Sequence[int]
    most_us: float

    def shapes(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """The shapes of the arguments; names stand for sizes in the order of their first use."""
        dims = [re.findall(r"\w+", a.partition("[")[2].partition("]")[0]) for a in self._each()]
        names = dict.fromkeys(d for shape in dims for d in shape if not d.isdigit())
        values = dict(zip(names, sizes, strict=True))
        return [tuple(values.get(d) or int(d) for d in shape) for shape in dims]

    def _each(self) -> list[str]:
        return self.arguments.split()

    def arrays(self) -> list[Array]:
        """Random arrays of the small sizes; floats are positive."""
        random = np.random.default_rng(0)
        result: list[Array] = []
        for a, shape in zip(self._each(), self.shapes(self.small), strict=True):
            dtype = np.dtype({"f": "float", "i": "int", "u": "uint"}[a[0]] + a[1:].split("[")[0])
            end = int(a.partition("<")[2] or 100)
            x = random.random(shape) + 0.05 if a[0] == "f" else random.integers(0, end, shape)
            result.append(np.asarray(x).astype(dtype))
        return result

    def specs(self) -> list[Any]:
        """The arguments at the large sizes."""
        pairs = zip(self.arrays(), self.shapes(self.large), strict=True)
        return [sm.spec(shape, str(a.dtype)) for a, shape in pairs]


def one_hot(ids, count, dtype):
    return sm.astype(ids[:, None] == sm.arange(count)[None, :], dtype)


def k_means(x, c):
    nearest = sm.argmin(sm.sum((x[:, None, :] - c[None, :, :]) ** 2, axis=-1), axis=1)
    members = one_hot(nearest, c.shape[0], x.dtype)
    return nearest, (members.T @ x) / sm.maximum(sm.sum(members, axis=0), 1.0)[:, None]


def principal_axis(x, v):
    x = x - sm.mean(x, axis=0)
    for _ in range(3):
        w = x.T @ (x @ v)
        v = w / sm.sqrt(sm.sum(w * w))
    return v


def softmax_regression(x, y, w, b):
    def loss(w, b):
        z = x @ w + b
        z = z - sm.max(z, axis=1, keepdims=True)
        z = z - sm.log(sm.sum(sm.exp(z), axis=1, keepdims=True))
        return -sm.mean(sm.take_along_axis(z, y[:, None], axis=1))

    value, (of_w, of_b) = sm.value_and_grad(loss, (0, 1))(w, b)
    return value, w - 0.1 * of_w, b - 0.1 * of_b


def clip_by_norm(a, b, c):
    norm = sm.sqrt(sm.sum(a * a) + sm.sum(b * b) + sm.sum(c * c))
    return tuple(x * sm.minimum(1.0, 1.0 / (norm + 1e-6)) for x in (a, b, c))


def layer_norm_gradients(x, g, b, slope):
    def norm(x, g, b):
        c = x - sm.mean(x, axis=1, keepdims=True)
        return c / sm.sqrt(sm.mean(c * c, axis=1, keepdims=True) + 1e-5) * g + b

    return sm.vjp(norm, x, g, b)[1](slope)


def huber_step(x, y, w):
    def loss(w):
        r = sm.abs(x @ w - y)
        return sm.mean(sm.where(r < 1, 0.5 * r * r, r - 0.5))

    return w - 0.01 * sm.grad(loss)(w)


def segment_means(x, ids):
    members = one_hot(ids, 32, x.dtype).T
    return (members @ x) / sm.maximum(sm.sum(members, axis=1), 1.0)[:, None]


def kalman(z, a, h, q):
    unit = sm.eye(4, dtype=a.dtype)

    def step(carry, seen):
        x, p = a @ carry[0], a @ carry[1] @ a.T + q
        gain = (p @ h) / (sm.sum(h * (p @ h)) + 1.0)
        x = x + gain * (seen - sm.sum(h * x))
        return (x, (unit - gain[:, None] * h[None, :]) @ p), x

    return sm.scan(step, (sm.zeros(4, dtype=a.dtype), unit), z)[1]


def game_of_life(g):
    moves = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]
    n = sum(sm.roll(g, move, axis=(0, 1)) for move in moves)
    return sm.astype((n == 3) | ((g == 1) & (n == 2)), sm.uint8)


def blur(image):
    x = sm.astype(image, sm.float32)
    x = (x[:-2] + 2 * x[1:-1] + x[2:]) / 4
    x = (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) / 4
    return sm.astype(sm.clip(sm.round(x), 0, 255), sm.uint8)


def hashed(x):
    for shift in (16, 13):
        x = (x ^ (x >> shift)) * sm.asarray(16777619, dtype=sm.uint32)
    return sm.astype(x & 0xFFFF, sm.uint16)


def looked_up(x, table):
    p = sm.clip(x, 0, 1) * (table.shape[0] - 1)
    k = sm.astype(sm.floor(p), sm.int64)
    after = sm.take(table, sm.minimum(k + 1, table.shape[0] - 1), axis=0)
    return sm.take(table, k, axis=0) + (p - sm.astype(k, x.dtype)) * (after - sm.take(table, k))


def black_scholes(s, k, t, r, v):
    d = (sm.log(s / k) + (r + v * v / 2) * t) / (v * sm.sqrt(t))
    below = [0.5 * (1 + sm.erf(x * 0.7071068)) for x in (d, d - v * sm.sqrt(t))]
    return s * below[0] - k * sm.exp(-r * t) * below[1]


def standardized(x):
    return (x - sm.mean(x, axis=0)) / (sm.std(x, axis=0) + 1e-6)


def skewness(x):
    m = sm.mean(x)
    return m, sm.sqrt(sm.mean((x - m) ** 2)), sm.mean((x - m) ** 3)


def agreements(x, y):
    m = sm.logical_xor(x > 1, y > 1) & ~sm.isnan(x)
    return sm.any(m, axis=1), sm.all(m, axis=0), sm.sum(sm.astype(m, sm.int64))


def alibi_in_a_window(q, k, v):
    n = q.shape[-2]
    i, j = sm.arange(n)[:, None], sm.arange(n)[None, :]
    slopes = sm.asarray(np.float32([0.5, 0.25]))[:, None, None]
    s = q @ sm.matrix_transpose(k) - slopes * sm.astype(i - j, q.dtype)
    s = sm.where((j <= i) & (i - j < 16), s, -np.inf)
    e = sm.exp(s - sm.max(s, axis=-1, keepdims=True))
    return (e / sm.sum(e, axis=-1, keepdims=True)) @ v


def gru(x, w, u, h):
    def step(h, seen):
        a, b, d = seen @ w, h @ u, h.shape[1]
        reset, keep = (1 / (1 + sm.exp(-(a + b)[:, k * d : (k + 1) * d])) for k in (0, 1))
        new = sm.tanh(a[:, 2 * d :] + reset * b[:, 2 * d :])
        h = (1 - keep) * new + keep * h
        return h, h

    return sm.scan(step, h, x)[1]


def heat(u):
    def step(carry):
        old, k, _ = carry
        moved = sum(sm.roll(old, by, axis=a) for by in (1, -1) for a in (0, 1))
        new = old + 0.1 * (moved - 4 * old)
        return new, k + 1, sm.max(sm.abs(new - old))

    return sm.while_loop(
        lambda carry: (carry[1] < 5) & (carry[2] > 1e-6),
        step,
        (u, 0, sm.asarray(np.float32(1.0))),
    )[0]


def viterbi(moves, emitted, seen):
    def step(score, symbol):
        paths = score[:, None] + moves
        score = sm.max(paths, axis=0) + sm.take(emitted, symbol, axis=1)
        return score, sm.argmax(paths, axis=0)

    return sm.scan(step, emitted[:, 0], seen)


def dct_of_blocks(x, c):
    h, w = x.shape
    y = c @ sm.permute_dims(sm.reshape(x, (h // 8, 8, w // 8, 8)), (0, 2, 1, 3)) @ c.T
    return sm.reshape(sm.permute_dims(y, (0, 2, 1, 3)), (h, w))


def resized(image, ys, xs):
    rows, columns = (
        sm.clip(sm.astype(sm.floor(p), sm.int64), 0, n - 2)
        for p, n in zip((ys, xs), image.shape, strict=True)
    )
    above, below = (sm.take(image, rows + k, axis=0) for k in (0, 1))
    lines = above + (ys - sm.astype(rows, ys.dtype))[:, None] * (below - above)
    left, right = (sm.take(lines, columns + k, axis=1) for k in (0, 1))
    return left + (xs - sm.astype(columns, xs.dtype))[None, :] * (right - left)


def page_rank(leaving, entering, r):
    n = r.shape[0]
    degree = sm.segment_sum(sm.ones(leaving.shape[0], dtype=r.dtype), leaving, num_segments=n)
    shares = sm.take(r / sm.maximum(degree, 1.0), leaving)
    return 0.85 * sm.segment_sum(shares, entering, num_segments=n) + 0.15 / n


def gradient_of_rows(w, ids, slope):
    return sm.vjp(lambda w: sm.take(w, ids, axis=0), w)[1](slope)


def batched_updates(x, ids, v):
    return sm.vmap(lambda x, ids, v: x.at[ids].add(v))(x, ids, v)


def attracted(x, v, m):
    def energy(x):
        d = x[:, None, :] - x[None, :, :]
        return -sm.sum(m[:, None] * m[None, :] / sm.sqrt(sm.sum(d * d, axis=-1) + 1e-3))

    v = v - 0.01 * sm.grad(energy)(x) / m[:, None]
    return x + 0.01 * v, v


def ising(spins, u):
    place = sm.arange(spins.shape[0])[:, None] + sm.arange(spins.shape[1])[None, :]
    for parity in (0, 1):
        near = sum(sm.roll(spins, by, axis=a) for by in (1, -1) for a in (0, 1))
        p = sm.exp(-0.44 * sm.astype(2 * spins * near, u.dtype))
        spins = sm.where((u[parity] < p) & (place % 2 == parity), -spins, spins)
    return spins, sm.sum(sm.astype(spins, sm.int64))


def bits_set(x):
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return sm.astype((x * sm.asarray(0x01010101, dtype=sm.uint32)) >> 24, sm.uint8)


def summed_area(g):
    s = sm.cumulative_sum(sm.cumulative_sum(sm.astype(g, sm.int64), axis=0), axis=1)
    return s[7:, 7:] - s[:-7, 7:] - s[7:, :-7] + s[:-7, :-7]


def ragged_softmax(x, length):
    keep = sm.arange(x.shape[1])[None, :] < length[:, None]
    x = sm.where(keep, x, -np.inf)
    e = sm.where(keep, sm.exp(x - sm.max(x, axis=1, keepdims=True)), 0)
    return e / sm.sum(e, axis=1, keepdims=True)


def nearest_label(x, q, labels):
    return sm.take(labels, sm.argmin(sm.sum(x * x, axis=1)[None, :] - 2 * q @ x.T, axis=1))


def apart(x, y):
    return sm.abs(x[:, None, :] - y[None, :, :])


def mixture_step(x, centre, narrow, weight):
    d = (x[:, None, :] - centre[None, :, :]) * sm.exp(narrow)[None, :, :]
    p = weight[None, :] - 0.5 * sm.sum(d * d, axis=-1) + sm.sum(narrow, axis=-1)[None, :]
    most = sm.max(p, axis=1, keepdims=True)
    every = most + sm.log(sm.sum(sm.exp(p - most), axis=1, keepdims=True))
    share = sm.exp(p - every)
    return (share.T @ x) / sm.sum(share, axis=0)[:, None], sm.mean(every)


def spectral_norm(w, u, x):
    for _ in range(2):
        v = w.T @ u
        v = v / sm.sqrt(sm.sum(v * v))
        u = w @ v
        u = u / sm.sqrt(sm.sum(u * u))
    return u, x @ (w / sm.sum(u * (w @ v))).T


def nearest(x, c):
    return sm.argmin(sm.sum((x[:, None, :] - c[None, :, :]) ** 2, axis=-1), axis=1)


USERS = {
    "k-means": User(k_means, "f32[n,d] f32[k,d]", (37, 5, 7), (100_000, 16, 64), 60),
    "principal axis": User(principal_axis, "f32[n,d] f32[d]", (37, 9), (20_000, 512), 200),
    "softmax regression": User(
        softmax_regression,
        "f32[n,d] i64[n]<5 f32[d,c] f32[c]",
        (21, 6, 5),
        (60_000, 784, 10),
        300,
    ),
    "clip by norm": User(
        clip_by_norm, "f32[a,b] f32[c] f32[d,d]", (7, 9, 33, 6), (4096, 1024, 512, 1024), 60
    ),
    "gradients of a layer norm": User(
        layer_norm_gradients, "f32[n,d] f32[d] f32[d] f32[n,d]", (20, 30), (8192, 1024), 60
    ),
    "Huber step": User(huber_step, "f32[n,d] f32[n] f32[d]", (20, 30), (100_000, 256), 80),
    "segment means": User(segment_means, "f32[n,d] i64[n]<32", (50, 6), (100_000, 128), 150),
    "long product": User(lambda x: x.T @ x, "f32[n,d]", (50, 9), (1_000_000, 64), 400),
    "Kalman filter": User(kalman, "f32[n] f32[4,4] f32[4] f32[4,4]", (7,), (1000,), 8000),
    "game of life": User(game_of_life, "u8[n,m]<2", (13, 17), (4096, 4096), 500),
    "blur": User(blur, "u8[n,m]<255", (13, 14), (4096, 4096), 200),
    "hash": User(hashed, "u32[n]<1000000", (50,), (10_000_000,), 30),
    "look-up": User(looked_up, "f32[n] f32[m]", (50, 20), (10_000_000, 1024), 60),
    "Black-Scholes": User(
        black_scholes, "f32[n] f32[n] f32[n] f32[] f32[]", (50,), (10_000_000,), 70
    ),
    "standardized": User(standardized, "f32[n,d]", (40, 20), (1_000_000, 64), 500),
    "skewness": User(skewness, "f64[n]", (300,), (10_000_000,), 90),
    "agreements": User(agreements, "f32[n,m] f32[n,m]", (9, 20), (4096, 4096), 120),
    "window with slopes": User(
        alibi_in_a_window,
        "f32[b,2,n,d] f32[b,2,n,d] f32[b,2,n,d]",
        (2, 40, 16),
        (4, 4096, 64),
        2000,
    ),
    "GRU": User(
        gru,
        "f32[t,b,i] f32[i,g] f32[h,g] f32[b,h]",
        (6, 3, 5, 12, 4),
        (128, 64, 256, 1536, 512),
        4000,
    ),
    "integers of 16 bits": User(
        lambda x: (x << 2) // 3 - (x >> 1) % 7, "i16[n]", (50,), (10_000_000,), 30
    ),
    "heat": User(heat, "f32[n,m]", (12, 14), (2048, 2048), 80),
    "Viterbi": User(viterbi, "f32[s,s] f32[s,o] i64[t]<5", (9, 5, 7), (64, 100, 1000), 9000),
    "cosines of 8 x 8": User(dct_of_blocks, "f32[h,w] f32[8,8]", (24, 32), (4096, 4096), 400),
    "resized": User(
        resized, "f32[h,w] f32[p] f32[q]", (13, 17, 9, 11), (1080, 1920, 2160, 3840), 40
    ),
    "page rank": User(
        page_rank, "i64[e]<30 i64[e]<30 f32[n]", (60, 30), (1_000_000, 100_000), 8000
    ),
    "gradient of rows": User(
        gradient_of_rows, "f32[v,d] i64[n]<11 f32[n,d]", (11, 5, 30), (50_000, 768, 8192), 200
    ),
    "batched updates": User(
        batched_updates, "f32[b,n,d] i64[b,k]<11 f32[b,k,d]", (3, 11, 4, 8), (8, 2048, 64, 512), 40
    ),
    "attracted bodies": User(attracted, "f32[n,3] f32[n,3] f32[n]", (17,), (8192,), 800),
    "Ising": User(ising, "i32[n,m]<2 f32[2,n,m]", (12, 14), (4096, 4096), 300),
    "bits set": User(bits_set, "u32[n]<1000000", (70,), (10_000_000,), 30),
    "summed area": User(summed_area, "u8[h,w]<255", (13, 17), (4096, 4096), 300),
    "ragged softmax": User(ragged_softmax, "f32[b,t] i64[b]<6", (5, 7), (4096, 2048), 40),
    "least of sums": User(
        lambda a, b: sm.min(a[:, :, None] + b[None, :, :], axis=1),
        "f32[n,k] f32[k,m]",
        (11, 7, 13),
        (1024, 1024, 1024),
        200,
    ),
    "distances": User(
        lambda x, y: sm.sum(apart(x, y), axis=-1),
        "f32[n,d] f32[m,d]",
        (13, 5, 11),
        (2000, 128, 3000),
        110,
    ),
    "nearest": User(
        lambda x, y: sm.argmin(sm.max(apart(x, y), axis=-1), axis=1),
        "f32[n,d] f32[m,d]",
        (13, 5, 41),
        (2000, 64, 3000),
        150,
    ),
    "nearest label": User(
        nearest_label, "f32[n,d] f32[m,d] i64[n]<5", (30, 5, 7), (100_000, 64, 1024), 650
    ),
    "step of a mixture": User(
        mixture_step, "f32[n,d] f32[k,d] f32[k,d] f32[k]", (33, 5, 6), (200_000, 16, 32), 100
    ),
    "float64 product": User(lambda x: x @ x, "f64[n,n]", (13,), (2048,), 1200),
    "spectral norm": User(spectral_norm, "f32[64,48] f32[64] f32[n,48]", (7,), (100,), 10),
    "nearest neighbours": User(nearest, "f32[n,3] f32[m,3]", (37, 41), (20_000, 20_000), 450),
    "four factors": User(
        lambda a, b, c, d: sm.einsum("ij,jk,kl,lm->im", a, b, c, d),
        "f32[a,b] f32[b,c] f32[c,d] f32[d,e]",
        (5, 20, 7, 18, 6),
        (512,) * 5,
        120,
    ),
}
