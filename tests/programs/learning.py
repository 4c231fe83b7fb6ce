"""Programs that learn: models written by hand, their steps, their losses."""

from __future__ import annotations

from tests.programs.rows import normal, positive, program


def softmax(xp, z, axis=-1):
    e = xp.exp(z - xp.max(z, axis=axis, keepdims=True))
    return e / xp.sum(e, axis=axis, keepdims=True)


def sigmoid(xp, z):
    return 1 / (1 + xp.exp(-z))


@program(normal(("n", 4, 8), (8, 24), (8, 8)))
def windowed_attention(xp, x, wqkv, wo):
    b, t, d = x.shape
    qkv = xp.reshape(xp.matmul(x, wqkv), (b, t, 3, 2, 4))
    q, k, v = (xp.permute_dims(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
    s = xp.matmul(q, xp.matrix_transpose(k)) / 2
    i = xp.arange(t)
    s = s + xp.where(xp.abs(i[:, None] - i[None]) < 2, 0.0, -1e9)
    o = xp.permute_dims(xp.matmul(softmax(xp, s), v), (0, 2, 1, 3))
    return xp.matmul(xp.reshape(o, (b, t, d)), wo) + x


@program(normal(("n", 8), ("n", 8), ("n", 8)))
def linear_attention(xp, q, k, v):
    q = xp.where(q > 0, q + 1, xp.exp(xp.minimum(q, xp.zeros_like(q))))
    k = xp.where(k > 0, k + 1, xp.exp(xp.minimum(k, xp.zeros_like(k))))
    kv = xp.cumulative_sum(k[:, :, None] * v[:, None, :], axis=0)
    z = xp.cumulative_sum(k, axis=0)
    num = xp.sum(q[:, :, None] * kv, axis=1)
    return num / (xp.sum(q * z, axis=1, keepdims=True) + 1e-3)


@program(normal(("n", 6), (6, 4), (4, 6, 5), (4, 5, 6)))
def mixture_of_experts(xp, x, gate, up, down):
    g = softmax(xp, xp.matmul(x, gate))
    first = xp.argmax(g, axis=1)
    hot = xp.astype(first[:, None] == xp.arange(4), x.dtype)
    second = xp.argmax(g - hot * 2, axis=1)
    hot = hot + xp.astype(second[:, None] == xp.arange(4), x.dtype)
    w = g * hot
    w = w / xp.sum(w, axis=1, keepdims=True)
    h = xp.matmul(x[None], up)
    y = xp.matmul(h * sigmoid(xp, h), down)
    load = xp.mean(hot, axis=0) * xp.mean(g, axis=0)
    return xp.sum(xp.permute_dims(y, (1, 0, 2)) * w[:, :, None], axis=1), xp.sum(load) * 4


@program(normal(("n", 6), ("n", 5), (5, 16), (6, 16), (16,)))
def gru_like(xp, h, x, wx, wh, b):
    def layer(h):
        z = xp.matmul(x, wx[:, :6]) + xp.matmul(h, wh[:, :6]) + b[:6]
        r = xp.matmul(x, wx[:, 6:12]) + xp.matmul(h, wh[:, 6:12]) + b[6:12]
        z, r = sigmoid(xp, z), sigmoid(xp, r)
        c = xp.tanh(xp.matmul(r * h, wh[:, 8:14]) + xp.matmul(x, wx[:, 8:14]))
        return (1 - z) * h + z * c

    return layer(layer(h))


@program(positive(("n", 5), ("n", 5)))
def distillation(xp, s, t):
    zs, zt = 5 * s / 2, 5 * t / 2
    p = softmax(xp, zt)
    ls = zs - xp.max(zs, axis=1, keepdims=True)
    ls = ls - xp.log(xp.sum(xp.exp(ls), axis=1, keepdims=True))
    lt = zt - xp.max(zt, axis=1, keepdims=True)
    lt = lt - xp.log(xp.sum(xp.exp(lt), axis=1, keepdims=True))
    kl = xp.sum(p * (lt - ls), axis=1)
    return xp.mean(kl) * 4, xp.sum(softmax(xp, zs) - p, axis=0)


@program(normal(("n", 10)))
def focal_and_smoothing(xp, z):
    y = xp.arange(z.shape[0]) % 10
    hot = xp.astype(y[:, None] == xp.arange(10), z.dtype)
    p = softmax(xp, z)
    pt = xp.sum(p * hot, axis=1)
    focal = -((1 - pt) ** 2) * xp.log(pt + 1e-6)
    soft = hot * 0.9 + 0.01
    return xp.mean(focal), -xp.mean(xp.sum(soft * xp.log(p + 1e-6), axis=1))


@program(normal((2, "n", 6), (6,), (6,)))
def squeeze_excite(xp, x, a, b):
    m = xp.mean(x, axis=1, keepdims=True)
    g = sigmoid(xp, xp.maximum(m * a, xp.zeros_like(m)) + b)
    y = x * g
    mu = xp.mean(y, axis=-1, keepdims=True)
    v = xp.mean((y - mu) ** 2, axis=-1, keepdims=True)
    return (y - mu) / xp.sqrt(v + 1e-5) * a + b


@program(normal(("n", 4, 6), (6,)))
def ghost_batch_norm(xp, x, w):
    mu = xp.mean(x, axis=(0, 1))
    v = xp.var(x, axis=(0, 1))
    y = (x - mu) / xp.sqrt(v + 1e-5) * w
    running = 0.9 * w + 0.1 * mu, 0.9 * w + 0.1 * v
    return y, *running


@program(normal(("n", 12), (3, 4, 8)))
def vector_quantise(xp, x, book):
    g = xp.permute_dims(xp.reshape(x, (x.shape[0], 3, 4)), (1, 0, 2))
    d = (
        xp.sum(g * g, axis=-1, keepdims=True)
        - 2 * xp.matmul(g, book)
        + xp.sum(book * book, axis=1)[:, None, :]
    )
    code = xp.argmin(d, axis=-1)
    hot = xp.astype(code[..., None] == xp.arange(8), x.dtype)
    back = xp.matmul(hot, xp.matrix_transpose(book))
    return code, xp.mean((back - g) ** 2), xp.exp(-xp.sum(xp.mean(hot, axis=(0, 1)) * 0.5))


@program(normal(("n", 3), ("n", 4)))
def nerf_render(xp, rgb, s):
    sigma = xp.log1p(xp.exp(s))
    alpha = 1 - xp.exp(-sigma * 0.1)
    ones = xp.ones_like(alpha[:, :1])
    t = xp.cumulative_prod(xp.concat([ones, 1 - alpha], axis=1), axis=1)[:, :-1]
    w = alpha * t
    f = 2.0 ** xp.arange(4, dtype=s.dtype)
    enc = xp.concat([xp.sin(rgb[:, :, None] * f), xp.cos(rgb[:, :, None] * f)], axis=-1)
    return xp.sum(w, axis=1), xp.reshape(enc, (rgb.shape[0], 24)), xp.sum(w[:, :3] * rgb, axis=1)


@program(positive((5, "n"), (5, 5), (5,)))
def hmm_forward(xp, e, t, p):
    t = t / xp.sum(t, axis=1, keepdims=True)
    a = p / xp.sum(p) * e[:, 0]
    ll = xp.log(xp.sum(a))
    a = a / xp.sum(a)
    for i in range(1, min(e.shape[1], 5)):
        a = xp.matmul(a, t) * e[:, i]
        s = xp.sum(a)
        a, ll = a / s, ll + xp.log(s)
    return a, ll


@program(normal(("n", 7), ("n", 2)))
def tsne_gradient(xp, x, y):
    d = xp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    n = x.shape[0]
    eye = xp.eye(n, dtype=x.dtype)
    p = xp.exp(-d / 8) * (1 - eye)
    p = p / (xp.sum(p) + 1e-3)
    q = 1 / (1 + xp.sum((y[:, None] - y[None]) ** 2, axis=-1)) * (1 - eye)
    s = p - q / (xp.sum(q) + 1e-3)
    return 4 * xp.sum((s * q)[:, :, None] * (y[:, None] - y[None]), axis=1)


@program(normal(("n", 4), (6, 4)))
def gaussian_process(xp, x, z):
    def k(a, b):
        d = xp.sum(a * a, axis=1)[:, None] + xp.sum(b * b, axis=1) - 2 * xp.matmul(a, b.T)
        return xp.exp(-0.5 * xp.maximum(d, xp.zeros_like(d)))

    kzz = k(z, z) + 6 * xp.eye(6, dtype=x.dtype)
    inv = xp.eye(6, dtype=x.dtype) / 9
    for _ in range(4):
        inv = xp.matmul(inv, 2 * xp.eye(6, dtype=x.dtype) - xp.matmul(kzz, inv))
    kx = k(x, z)
    return xp.sum(xp.matmul(kx, inv) * kx, axis=1), inv


@program(normal((2, "n", 4), (3, 4)))
def depthwise_causal(xp, x, k):
    p = xp.concat([xp.zeros((2, 2, 4), dtype=x.dtype), x], axis=1)
    n = x.shape[1]
    y = sum(p[:, i : i + n] * k[i] for i in range(3))
    return y * sigmoid(xp, y), xp.sum(y, axis=1)


@program(normal(("n", 6), (6,)))
def selective_scan(xp, x, a):
    h = xp.zeros((6,), dtype=x.dtype)
    out = []
    for t in range(min(x.shape[0], 6)):
        dt = xp.log1p(xp.exp(x[t]))
        h = h * xp.exp(-dt * xp.abs(a)) + dt * x[t]
        out.append(h * sigmoid(xp, x[t]))
    return xp.stack(out), h


@program(lambda rng, n, dt: (rng.standard_normal((n, 5)).astype(dt), rng.integers(0, 4, n)))
def segment_softmax(xp, x, seg):
    hot = seg[:, None] == xp.arange(4)
    low = xp.full((1, 1, 1), -float("inf"), dtype=x.dtype)
    top = xp.max(xp.where(hot[:, :, None], x[:, None, :], low), axis=0)
    e = xp.exp(x - xp.take(top, seg, axis=0))
    s = xp.sum(xp.where(hot[:, :, None], e[:, None, :], xp.zeros_like(low)), axis=0)
    return e / xp.take(s, seg, axis=0)


@program(normal(("n", 8), (8, 8), (8,)))
def gated_and_normed(xp, x, w, g):
    s = xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    y = xp.matmul(x / s * g, w)
    a, b = y[:, ::2], y[:, 1::2]
    z = a * 0.5 * (1 + xp.tanh(0.79788456 * (b + 0.044715 * b * b * b)))
    return xp.concat([z, z * z], axis=1) + x


@program(normal((4, "n", 8), (2, "n", 8), (2, "n", 8)))
def grouped_query_attention(xp, q, k, v):
    n = q.shape[1]
    g = xp.reshape(q, (2, 2, n, 8))
    s = xp.matmul(g, xp.matrix_transpose(k)[:, None]) / 8**0.5
    slope = xp.asarray([[0.5, 0.25], [0.125, 0.0625]], dtype=q.dtype)[:, :, None, None]
    i = xp.arange(n, dtype=q.dtype)
    s = s - slope * xp.abs(i[:, None] - i[None, :])
    s = xp.where(i[:, None] >= i[None, :], 3 * xp.tanh(s / 3), xp.asarray(-1e30, dtype=q.dtype))
    return xp.reshape(xp.matmul(softmax(xp, s), v[:, None]), (4, n, 8))


@program(normal(("n", 9), (5, 9)))
def nearest_and_margin(xp, x, c):
    d = xp.sum(xp.abs(x[:, None, :] - c[None]), axis=-1)
    i = xp.argmin(d, axis=1)
    best = xp.min(d, axis=1)
    hot = i[:, None] == xp.arange(5)
    second = xp.min(xp.where(hot, xp.full_like(d, 1e9), d), axis=1)
    return i, second - best, xp.sum(xp.astype(hot, xp.int32), axis=0)


@program(normal(("n", 6), (6, 6), (6, 6)))
def newton_schulz(xp, g, a, b):
    m = xp.matmul(a, b.T)
    x = m / xp.sqrt(xp.sum(m * m))
    for _ in range(3):
        y = xp.matmul(x, x.T)
        x = 1.5 * x - 0.5 * xp.matmul(y, x)
    return xp.matmul(g, x)


@program(normal(("n", 5), ("n", 5), ("n", 5)))
def triplet_and_moments(xp, a, p, q):
    d = xp.sqrt(xp.sum((a - p) ** 2, axis=1) + 1e-6) - xp.sqrt(xp.sum((a - q) ** 2, axis=1) + 1e-6)
    loss = xp.mean(xp.maximum(d + 0.2, xp.zeros_like(d)))
    m = xp.mean(a, axis=0)
    c = a - m
    v = xp.mean(c * c, axis=0)
    skew = xp.mean(c**3, axis=0) / (v + 1e-2) ** 1.5
    kurt = xp.mean(c**4, axis=0) / (v + 1e-2) ** 2
    return loss, v, skew, kurt
