"""Programs over pictures: filters, colours, morphology, transforms of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.programs.rows import normal, positive, program


def edge(xp: Any, x: Any, k: int) -> Any:
    """Repeat the border k times on both sides of the last two axes."""
    for _ in range(k):
        x = xp.concat([x[..., :1, :], x, x[..., -1:, :]], axis=-2)
        x = xp.concat([x[..., :, :1], x, x[..., :, -1:]], axis=-1)
    return x


@program(positive(("n", "n+3")))
def sobel(xp, x):
    p = edge(xp, x, 1)
    gx = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    gy = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    m = xp.sqrt(gx * gx + gy * gy)
    return m / xp.max(m), xp.atan2(gy, gx)


@program(positive(("n", "n+1")))
def bilateral(xp, x):
    p, (h, w) = edge(xp, x, 2), x.shape
    num, den = xp.zeros_like(x), xp.zeros_like(x)
    for i in range(5):
        for j in range(5):
            y = p[i : i + h, j : j + w]
            k = xp.exp(-((y - x) ** 2) * 10 - ((i - 2) ** 2 + (j - 2) ** 2) / 8)
            num, den = num + k * y, den + k
    return num / den


@program(positive(("n", "n+2")))
def open_close(xp, x):
    def over(f, y):
        p, (h, w) = edge(xp, y, 1), y.shape
        out = y
        for i in range(3):
            for j in range(3):
                out = f(out, p[i : i + h, j : j + w])
        return out

    opened = over(xp.maximum, over(xp.minimum, x))
    closed = over(xp.minimum, over(xp.maximum, x))
    return opened, closed, closed - opened


@program(positive(("n", "n+2")))
def median_of_nine(xp, x):
    p, (h, w) = edge(xp, x, 1), x.shape
    v = [p[i : i + h, j : j + w] for i in range(3) for j in range(3)]

    def swap(a, b):
        v[a], v[b] = xp.minimum(v[a], v[b]), xp.maximum(v[a], v[b])

    for a, b in [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3)]:
        swap(a, b)
    for a, b in [(5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)]:
        swap(a, b)
    return v[4]


@program(positive(("n", 5, 3)))
def rgb_to_hsv(xp, x):
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    hi, lo = xp.max(x, axis=-1), xp.min(x, axis=-1)
    d = hi - lo
    safe = xp.where(d == 0, xp.ones_like(d), d)
    h = xp.where(hi == r, xp.remainder((g - b) / safe, xp.full_like(d, 6.0)), (r - g) / safe + 4)
    h = xp.where((hi == g) & (hi != r), (b - r) / safe + 2, h)
    h = xp.where(d == 0, xp.zeros_like(d), h) / 6
    return xp.stack([h, d / hi, hi], axis=-1)


@program(positive(("n", 4, 3), (3, 3)))
def colour_matrix(xp, x, m):
    y = xp.matmul(x, m.T)
    low = y <= 0.0031308
    return xp.clip(xp.where(low, 12.92 * y, 1.055 * xp.pow(y, 1 / 2.4) - 0.055), 0, 1)


@program(positive(("8*n", 16)))
def jpeg_blocks(xp, x):
    k = xp.arange(8, dtype=x.dtype)
    c = xp.cos((2 * k[None, :] + 1) * k[:, None] * (np.pi / 16))
    scale = xp.where(k == 0, xp.full_like(k, 8**-0.5), xp.full_like(k, 0.5))
    c = c * scale[:, None]
    h = x.shape[0] // 8
    b = xp.permute_dims(xp.reshape(x, (h, 8, 2, 8)), (0, 2, 1, 3))
    y = xp.matmul(xp.matmul(c, b), c.T)
    back = xp.matmul(xp.matmul(c.T, y), c)
    return xp.round(y * 16), xp.reshape(xp.permute_dims(back, (0, 2, 1, 3)), x.shape)


@program(positive(("n+2", "n+3")))
def local_binary_patterns(xp, x):
    c = x[1:-1, 1:-1]
    h, w = c.shape
    code = xp.zeros(c.shape, dtype=xp.uint8)
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    for k, (i, j) in enumerate(around):
        bit = xp.astype(x[i : i + h, j : j + w] >= c, xp.uint8)
        code = code | (bit << xp.asarray(k, dtype=xp.uint8))
    return code


@program(positive(("2*n", "4*n")))
def haar(xp, x):
    a, b = x[0::2] + x[1::2], x[0::2] - x[1::2]
    y = xp.concat([a, b], axis=0) / 2
    a, b = y[:, 0::2] + y[:, 1::2], y[:, 0::2] - y[:, 1::2]
    return xp.concat([a, b], axis=1) / 2


@program(positive(("n+6", "n+7"), ("n+6", "n+7")))
def ssim(xp, x, y):
    def box(z):
        z = xp.cumulative_sum(z, axis=0, include_initial=True)
        z = xp.cumulative_sum(z[7:] - z[:-7], axis=1, include_initial=True)
        return (z[:, 7:] - z[:, :-7]) / 49

    mx, my = box(x), box(y)
    vx, vy, c = box(x * x) - mx * mx, box(y * y) - my * my, box(x * y) - mx * my
    s = (2 * mx * my + 1e-2) * (2 * c + 3e-2)
    return xp.mean(s / ((mx * mx + my * my + 1e-2) * (vx + vy + 3e-2)))


@program(lambda rng, n, dt: (rng.integers(0, 32, (n, n + 2)), rng.random(1).astype(dt)))
def otsu(xp, x, one):
    v = xp.arange(32)
    hist = xp.sum(xp.astype(xp.reshape(x, (-1, 1)) == v, one.dtype), axis=0)
    p = hist / xp.sum(hist)
    w = xp.cumulative_sum(p)
    mu = xp.cumulative_sum(p * xp.astype(v, p.dtype))
    between = (mu[-1] * w - mu) ** 2 / (w * (1 - w) + 1e-6)
    return hist, xp.max(between[:-1])


@program(positive(("n", "n+1"), (2,)))
def bilinear_warp(xp, x, s):
    h, w = x.shape
    i = xp.arange(h, dtype=x.dtype)[:, None] * 0.9 + s[0]
    j = xp.arange(w, dtype=x.dtype)[None, :] * 0.8 + s[1]
    i, j = xp.clip(i, 0, h - 1), xp.clip(j, 0, w - 1)
    fi, fj = xp.floor(i), xp.floor(j)
    ii, jj = xp.astype(fi, xp.int64), xp.astype(fj, xp.int64)
    i1, j1 = xp.clip(ii + 1, None, h - 1), xp.clip(jj + 1, None, w - 1)
    flat = xp.reshape(x, (-1,))
    shape = (h, w)

    def at(a, b):
        k = xp.broadcast_to(a * w + b, shape)
        return xp.reshape(xp.take(flat, xp.reshape(k, (-1,))), shape)

    u, v = i - fi, j - fj
    top = at(ii, jj) * (1 - v) + at(ii, j1) * v
    low = at(i1, jj) * (1 - v) + at(i1, j1) * v
    return top * (1 - u) + low * u


@program(normal((2, "2*n", "2*n+2", 3)))
def pool_and_upsample(xp, x):
    b, h, w, c = x.shape
    y = xp.reshape(x, (b, h // 2, 2, w // 2, 2, c))
    hi, mid = xp.max(y, axis=(2, 4)), xp.mean(y, axis=(2, 4))
    up = xp.repeat(xp.repeat(mid, 2, axis=1), 2, axis=2)
    return hi, x - up, xp.std(x - up, axis=(1, 2))


@program(positive(("n", "n+4")))
def ordered_dither(xp, x):
    h, w = x.shape
    i, j = xp.arange(h)[:, None], xp.arange(w)[None, :]
    a, b = i ^ j, i
    t = ((a & 1) << 3) | ((b & 1) << 2) | (((a >> 1) & 1) << 1) | ((b >> 1) & 1)
    return xp.astype(x > (xp.astype(t, x.dtype) + 0.5) / 16, xp.uint8) * xp.asarray(
        255, dtype=xp.uint8
    )


@program(positive((3, "n", "n+2"), (4, 3, 3, 3)))
def conv_by_shifts(xp, x, k):
    h, w = x.shape[1] - 2, x.shape[2] - 2
    if h <= 0:
        return xp.zeros((4,), dtype=x.dtype)
    p = xp.stack([x[:, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=1)
    y = xp.tensordot(k, xp.reshape(p, (3, 3, 3, h, w)), axes=((1, 2, 3), (0, 1, 2)))
    return xp.max(xp.maximum(y, xp.zeros_like(y)), axis=(1, 2))


@program(positive(("n", "n+1", 4), ("n", "n+1", 4)))
def alpha_blend(xp, a, b):
    aa, ba = a[..., 3:], b[..., 3:]
    alpha = aa + ba * (1 - aa)
    rgb = (a[..., :3] * aa + b[..., :3] * ba * (1 - aa)) / alpha
    out = xp.concat([rgb, alpha], axis=-1)
    return xp.astype(xp.clip(xp.round(out * 255), 0, 255), xp.uint8)
