"""Programs over time series, prices and risks."""

from __future__ import annotations

import numpy as np
from tests.programs.rows import normal, positive, program


@program(positive((8,)))
def binomial_tree(xp, s):
    n, up, q = 6, 1.1, 0.48
    k = xp.arange(n + 1, dtype=s.dtype)
    price = s[:, None] * up ** (2 * k - n)[None, :]
    v = xp.maximum(price - 0.5, xp.zeros_like(price))
    for step in range(n, 0, -1):
        v = 0.99 * (q * v[:, 1 : step + 1] + (1 - q) * v[:, :step])
    return v[:, 0]


@program(positive(("n", 4)))
def drawdown(xp, p):
    r = xp.log(p[1:] / p[:-1])
    c = xp.cumulative_sum(r, axis=0)
    peak = [c[:1]]
    for t in range(1, min(c.shape[0], 7)):
        peak.append(xp.maximum(peak[-1], c[t : t + 1]))
    peak = xp.concat(peak, axis=0)
    return xp.min(c[: peak.shape[0]] - peak, axis=0) if c.shape[0] else c


@program(normal(("n+1", 3), (3,)))
def sharpe(xp, r, w):
    w = xp.exp(w) / xp.sum(xp.exp(w))
    p = xp.matmul(r, w)
    down = xp.minimum(p, xp.zeros_like(p))
    z = (p - xp.mean(p)) / (xp.std(p) + 1e-3)
    return xp.mean(p) / (xp.std(p) + 1e-3), xp.mean(p) / xp.sqrt(xp.mean(down * down) + 1e-3), z


@program(normal(("n+4",)))
def rolling_moments(xp, x):
    c1 = xp.cumulative_sum(x, include_initial=True)
    c2 = xp.cumulative_sum(x * x, include_initial=True)
    m = (c1[4:] - c1[:-4]) / 4
    v = (c2[4:] - c2[:-4]) / 4 - m * m
    return m, xp.sqrt(xp.maximum(v, xp.zeros_like(v)) + 1e-3)


@program(normal(("n",)))
def autocorrelation(xp, x):
    x = x - xp.mean(x)
    n = x.shape[0]
    out = [xp.sum(x[k:] * x[: n - k]) for k in range(min(n, 5))]
    return xp.stack(out) / (out[0] + 1e-3)


@program(normal((3, "n")))
def periodogram(xp, x):
    n = x.shape[1]
    k = xp.arange(n, dtype=x.dtype)
    a = xp.remainder(k[:, None] * k[None, :], xp.asarray(float(n), dtype=x.dtype)) * (2 * np.pi / n)
    w = 0.5 - 0.5 * xp.cos(k * (2 * np.pi / n))
    re, im = xp.matmul(x * w, xp.cos(a)), xp.matmul(x * w, xp.sin(a))
    return (re * re + im * im) / n


@program(normal(("n", 2)))
def detrend(xp, y):
    t = xp.arange(y.shape[0], dtype=y.dtype)[:, None]
    tm, ym = xp.mean(t), xp.mean(y, axis=0)
    slope = xp.sum((t - tm) * (y - ym), axis=0) / (xp.sum((t - tm) ** 2) + 1e-3)
    return y - ym - slope * (t - tm), slope


@program(positive(("n", 2), (5, 2)))
def haversine(xp, a, b):
    d = a[:, None] - b[None]
    h = xp.sin(d[..., 0] / 2) ** 2 + (
        xp.cos(a[:, None, 0]) * xp.cos(b[None, :, 0]) * xp.sin(d[..., 1] / 2) ** 2
    )
    d = 2 * xp.asin(xp.sqrt(xp.minimum(h, xp.ones_like(h))))
    return xp.min(d, axis=1), xp.argmin(d, axis=1), xp.mean(d)


@program(normal((4, "n")))
def discounted_returns(xp, r):
    n = r.shape[1]
    k = xp.arange(n, dtype=r.dtype)
    g = 0.9**k
    back = xp.flip(xp.cumulative_sum(xp.flip(r * g, axis=1), axis=1), axis=1)
    m = xp.tril(xp.ones((n, n), dtype=r.dtype)) * 0.9 ** xp.abs(k[:, None] - k[None, :])
    return xp.sum(r * g, axis=1), back[:, :1], xp.matmul(r, m)


@program(positive(("n",), ("n",), ("n",)))
def greeks(xp, s, k, t):
    sq = xp.sqrt(t)
    d1 = (xp.log(s / k) + (0.02 + 0.5 * 0.09) * t) / (0.3 * sq)
    pdf = xp.exp(-0.5 * d1 * d1) / (2 * np.pi) ** 0.5
    u = 1 / (1 + 0.2316419 * xp.abs(d1))
    poly = u * (
        0.319381530 + u * (-0.356563782 + u * (1.781477937 + u * (-1.821255978 + u * 1.330274429)))
    )
    cdf = xp.where(d1 >= 0, 1 - pdf * poly, pdf * poly)
    return cdf, pdf / (s * 0.3 * sq), s * pdf * sq


@program(normal(("n", 6)))
def value_at_risk(xp, x):
    p = xp.sum(x, axis=1)
    o = xp.sort(p)
    k = max(p.shape[0] // 10, 1)
    return o[k - 1], xp.mean(o[:k]), xp.mean(xp.where(p <= o[k - 1], p, xp.zeros_like(p)))


@program(positive(("n", "n+1")))
def cosine_and_jaccard(xp, x):
    on = x > 0.6
    a = xp.astype(on, x.dtype)
    both = xp.matmul(a, a.T)
    size = xp.sum(a, axis=1)
    union = size[:, None] + size[None, :] - both
    norm = xp.sqrt(xp.sum(x * x, axis=1))
    return both / (union + 1), xp.matmul(x, x.T) / (norm[:, None] * norm[None, :])


@program(positive(("n", 12), (12,)))
def bm25(xp, tf, q):
    tf = xp.floor(tf * 5)
    n = tf.shape[0]
    df = xp.sum(xp.astype(tf > 0, tf.dtype), axis=0)
    idf = xp.log1p((n - df + 0.5) / (df + 0.5))
    length = xp.sum(tf, axis=1, keepdims=True)
    s = idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * length / xp.mean(length)))
    return xp.matmul(s, q), xp.argmax(xp.matmul(s, q))


@program(normal(("n",), ("n",)))
def ranking_metrics(xp, s, y):
    hit = y > 0.3
    above = s[:, None] > s[None, :]
    pairs = hit[:, None] & ~hit[None, :]
    wins = xp.sum(xp.astype(above & pairs, xp.int64))
    rank = xp.sum(xp.astype(s[None, :] > s[:, None], xp.int64), axis=1)
    gain = xp.where(hit, 1 / xp.log2(xp.astype(rank, s.dtype) + 2), xp.zeros_like(s))
    return wins, xp.sum(xp.astype(pairs, xp.int64)), rank, xp.sum(gain)


@program(positive(("n",), ("n",)))
def calibration(xp, p, u):
    p = xp.minimum(p, xp.full_like(p, 0.999))
    y = xp.astype(u < p, p.dtype)
    which = xp.astype(xp.floor(p * 5), xp.int32)
    one = xp.astype(which[:, None] == xp.arange(5, dtype=xp.int32), p.dtype)
    count = xp.sum(one, axis=0)
    safe = xp.where(count == 0, xp.ones_like(count), count)
    gap = xp.abs(xp.matmul(y, one) - xp.matmul(p, one)) / safe
    return count, xp.sum(gap * count) / p.shape[0], xp.mean((p - y) ** 2)
