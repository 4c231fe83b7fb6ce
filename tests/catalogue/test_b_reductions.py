"""Section B: reductions, normalisation and scans."""

from __future__ import annotations

import pytest
from tests.catalogue.harness import EveryRow, make
from tests.catalogue.rows import Row, draw

from smelt import knobs

MATRIX = {"r": 8192, "c": 4096}
IMAGES = {"n": 8, "c": 256, "h": 56, "w": 56}


def silu(xp, x):
    return x / (1 + xp.exp(-x))


# ---- B1, B2 ------------------------------------------------------------------------------------


def layernorm(xp, h, g, b):
    m = xp.mean(h, axis=-1, keepdims=True)
    v = xp.mean((h - m) ** 2, axis=-1, keepdims=True)
    return (h - m) / xp.sqrt(v + 1e-5) * g + b


def add_layernorm(xp, x, bias, residual, g, b):
    return layernorm(xp, x + bias + residual, g, b)


def add_layernorm_otherwise(xp, t, u, before, scale, shift):
    total = before + (u + t)
    centred = total - xp.sum(total, axis=1, keepdims=True) / total.shape[1]
    spread = xp.sum(centred * centred, axis=1, keepdims=True) / total.shape[1]
    return shift + scale * (centred * xp.rsqrt(1e-5 + spread))


def add_layernorm_composite(xp, x, bias, residual, g, b):
    return xp.nn.layer_norm(bias + x + residual, g, b)


def dropout_layernorm(xp, x, bias, residual, g, b, key):
    keep = xp.random.uniform(key, x.shape) >= 0.1
    return layernorm(xp, xp.where(keep, (x + bias) / 0.9, 0) + residual, g, b)


def rms_norm(xp, x, g):
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * g


def rms_norm_otherwise(xp, t, w):
    squares = xp.sum(xp.square(t), axis=1) / t.shape[1]
    return w * (t * xp.rsqrt(1e-6 + squares)[:, None])


def group_norm_silu(xp, x, g, b):
    n, c, h, w = x.shape
    split = xp.reshape(x, (n, 32, c // 32, h, w))
    m = xp.mean(split, axis=(2, 3, 4), keepdims=True)
    v = xp.mean((split - m) ** 2, axis=(2, 3, 4), keepdims=True)
    y = xp.reshape((split - m) / xp.sqrt(v + 1e-5), x.shape)
    return silu(xp, y * g[:, None, None] + b[:, None, None])


def group_norm_silu_otherwise(xp, x, g, b):
    y = xp.nn.group_norm(x, 32, g, b)
    return y * xp.sigmoid(y)


def instance_norm(xp, x):
    m = xp.mean(x, axis=(2, 3), keepdims=True)
    v = xp.mean((x - m) ** 2, axis=(2, 3), keepdims=True)
    return (x - m) / xp.sqrt(v + 1e-5)


def instance_norm_otherwise(xp, x):
    n, c, h, w = x.shape
    rows = xp.reshape(x, (n, c, h * w))
    centred = rows - xp.mean(rows, axis=2, keepdims=True)
    scale = xp.rsqrt(xp.mean(centred * centred, axis=2, keepdims=True) + 1e-5)
    return xp.reshape(centred * scale, x.shape)


def l2_normalise(xp, x):
    return x / xp.maximum(xp.sqrt(xp.sum(x * x, axis=1, keepdims=True)), 1e-12)


def l2_normalise_otherwise(xp, v):
    length = xp.sum(v**2, axis=-1) ** 0.5
    return v / xp.expand_dims(xp.where(length < 1e-12, 1e-12, length), axis=1)


def cosine(xp, x, y):
    along = xp.sum(x * y, axis=1)
    return along / xp.sqrt(xp.sum(x * x, axis=1) * xp.sum(y * y, axis=1))


def cosine_otherwise(xp, a, b):
    lengths = xp.sqrt(xp.sum(b**2, axis=-1) * xp.sum(a**2, axis=-1))
    return xp.sum(b * a, axis=-1) / lengths


# ---- B3 ----------------------------------------------------------------------------------------


def batch_norm(xp, x, m, v, g, b):
    def along(t):
        return t[:, None, None]

    return xp.maximum((x - along(m)) / xp.sqrt(along(v) + 1e-5) * along(g) + along(b), 0)


def batch_norm_otherwise(xp, x, m, v, g, b):
    return xp.nn.relu(xp.nn.batch_norm(x, m, v, g, b))


def batch_norm_training(xp, x, g, b):
    axes = (0, 2, 3)
    m = xp.mean(x, axis=axes, keepdims=True)
    v = xp.mean((x - m) ** 2, axis=axes, keepdims=True)
    return (x - m) / xp.sqrt(v + 1e-5) * g[:, None, None] + b[:, None, None]


def batch_norm_training_otherwise(xp, x, g, b):
    return xp.nn.batch_norm(x, None, None, g, b)


# ---- B4 ----------------------------------------------------------------------------------------


def softmax(axis):
    def code(xp, x):
        e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return e / xp.sum(e, axis=axis, keepdims=True)

    return code


def softmax_otherwise(axis):
    return lambda xp, x: xp.nn.softmax(x, axis=axis)


def log_softmax(xp, x):
    d = x - xp.max(x, axis=-1, keepdims=True)
    return d - xp.log(xp.sum(xp.exp(d), axis=-1, keepdims=True))


def masked_softmax(xp, x, keep):
    s = xp.where(keep, x * 0.125, -1e4)
    e = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def masked_softmax_otherwise(xp, scores, allowed):
    hidden = xp.where(xp.logical_not(allowed), -1e4, scores / 8)
    return xp.nn.softmax(hidden)


# ---- B5, B6, B7 --------------------------------------------------------------------------------


def statistics(axis):
    def code(xp, x):
        m = xp.mean(x, axis=axis)
        v = xp.var(x, axis=axis)
        return m, v, xp.max(x, axis=axis), xp.min(x, axis=axis), xp.argmax(x, axis=axis)

    return code


def statistics_otherwise(axis):
    def code(xp, t):
        place, low, high = xp.argmax(t, axis=axis), xp.min(t, axis=axis), xp.max(t, axis=axis)
        return xp.mean(t, axis=axis), xp.std(t, axis=axis) ** 2, high, low, place

    return code


def both_sums(xp, x, y):
    p = x * y
    return xp.sum(p, axis=1), xp.sum(x, axis=0)


def both_sums_otherwise(xp, x, y):
    columns = xp.sum(xp.permute_dims(x, (1, 0)), axis=1)
    return xp.sum(y * x, axis=-1), columns


def distance(xp, x, y):
    return xp.sqrt(xp.sum((x - y) ** 2)) * 0.5 + 1


def distance_otherwise(xp, a, b):
    d = xp.abs(b - a)
    return 1 + xp.sqrt(xp.sum(xp.sum(d * d, axis=1))) / 2


# ---- B8 ----------------------------------------------------------------------------------------


def logsumexp(xp, x):
    m = xp.max(x, axis=1, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - m), axis=1)) + m[:, 0]


def entropy(xp, x):
    d = x - xp.max(x, axis=1, keepdims=True)
    e = xp.exp(d)
    z = xp.sum(e, axis=1)
    return xp.log(z) - xp.sum(e * d, axis=1) / z


def entropy_otherwise(xp, logits):
    p = xp.nn.softmax(logits)
    return -xp.sum(p * xp.nn.log_softmax(logits), axis=-1)


def divergence(xp, x, y):
    p, q = log_softmax(xp, x), log_softmax(xp, y)
    return xp.sum(xp.exp(p) * (p - q), axis=1)


def divergence_otherwise(xp, s, t):
    p, q = xp.nn.softmax(s), xp.nn.log_softmax(t)
    return xp.sum(p * (xp.nn.log_softmax(s) - q), axis=1)


def smoothed(xp, x, labels):
    n = x.shape[1]
    p = log_softmax(xp, x)
    hit = xp.take_along_axis(p, labels[:, None], axis=1)[:, 0]
    return -(0.9 * hit + 0.1 * xp.sum(p, axis=1) / n)


def smoothed_otherwise(xp, logits, marks):
    each = xp.nn.cross_entropy(logits, marks, reduction="none")
    return 0.9 * each - xp.mean(xp.nn.log_softmax(logits), axis=-1) * 0.1


# ---- B9 ----------------------------------------------------------------------------------------


def running_sum(xp, x):
    return xp.cumulative_sum(xp.exp(x * 0.5), axis=1) * 2 + 1


def running_sum_otherwise(xp, t):
    total = xp.cumulative_sum(xp.exp(t / 2), axis=-1)
    return 1 + (total + total)


def running_product(xp, x):
    return xp.log(xp.cumulative_prod(1 + 0.01 * x, axis=1))


def running_product_otherwise(xp, t):
    return xp.log(xp.cumulative_prod(0.01 * t + 1, axis=-1))


# ---- the table ---------------------------------------------------------------------------------

TABLE = ("T[r,c]",)
TALL = {
    "plan_dtype f64": "512 rows of 512 columns in double precision are twice what the cache holds:"
    " streamed in two sweeps, where fewer columns at a time would need one"
}
ROWS = (
    Row("B1", add_layernorm, ("T[r,c]", "T[c]", "T[r,c]", "T[c]", "T[c]"),
        {"r": 8192, "c": 1024}, fused="s*(3*r*c + 3*c)", unfused="s*(17*r*c + 3*c + 12*r)",
        also=(add_layernorm_otherwise, add_layernorm_composite)),
    Row("B1 dropout", dropout_layernorm,
        ("T[r,c]", "T[c]", "T[r,c]", "T[c]", "T[c]", "u64[]"), {"r": 8192, "c": 1024},
        fused="s*(3*r*c + 3*c) + 8", unfused="118*r*c + 12*c + 48*r + 8", dtypes=("bf16",)),
    Row("B2 RMSNorm", rms_norm, ("T[r,c]", "T[c]"), MATRIX, fused="s*(2*r*c + c)",
        unfused="s*(7*r*c + c + 8*r)",
        also=(rms_norm_otherwise, lambda xp, x, g: xp.nn.rms_norm(x, g))),
    Row("B2 GroupNorm SiLU", group_norm_silu, ("T[n,c,h,w]", "T[c]", "T[c]"), IMAGES,
        fused="s*(2*n*c*h*w + 2*c)", unfused="s*(21*n*c*h*w + 2*c + 384*n)",
        also=(group_norm_silu_otherwise,),
        multiples={"c": 32}),
    Row("B2 InstanceNorm", instance_norm, ("T[n,c,h,w]",), IMAGES, fused="s*2*n*c*h*w",
        unfused="s*(8*n*c*h*w + 12*n*c)", also=(instance_norm_otherwise,)),
    Row("B2 L2", l2_normalise, TABLE, MATRIX, fused="s*2*r*c", unfused="s*(5*r*c + 6*r)",
        also=(l2_normalise_otherwise,)),
    Row("B2 cosine", cosine, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*(2*r*c + r)",
        unfused="s*(10*r*c + 11*r)",
        also=(cosine_otherwise,)),
    Row("B3 inference", batch_norm, ("T[n,c,h,w]", "T[c]", "T[c] > 0", "T[c]", "T[c]"), IMAGES,
        fused="s*(2*n*c*h*w + 4*c)", unfused="s*(10*n*c*h*w + 8*c)",
        also=(batch_norm_otherwise,)),
    Row("B3 training", batch_norm_training, ("T[n,c,h,w]", "T[c]", "T[c]"), IMAGES,
        fused="s*(2*n*c*h*w + 2*c)", unfused="s*(12*n*c*h*w + 14*c)",
        also=(batch_norm_training_otherwise,)),
    Row("B3 training long", batch_norm_training, ("T[n,c,h,w]", "T[c]", "T[c]"),
        {"n": 64, "c": 64, "h": 112, "w": 112}, fused="s*(2*n*c*h*w + 2*c)",
        unfused="s*(12*n*c*h*w + 14*c)", also=(batch_norm_training_otherwise,), sweeps=2),
    Row("B4 rows", softmax(-1), TABLE, MATRIX, fused="s*2*r*c", unfused="s*(8*r*c + 4*r)",
        also=(softmax_otherwise(1),)),
    Row("B4 columns", softmax(0), TABLE, MATRIX, fused="s*2*r*c", unfused="s*(8*r*c + 4*c)",
        sweeps=2, eager={"sweeps": 3}, also=(softmax_otherwise(0),)),
    Row("B4 middle", softmax(1), ("T[n,c,w]",), {"n": 256, "c": 512, "w": 512},
        fused="s*2*n*c*w", unfused="s*(8*n*c*w + 4*n*w)", short=TALL,
        also=(softmax_otherwise(-2),)),
    Row("B4 middle short", softmax(1), ("T[n,c,w]",), {"n": 512, "c": 64, "w": 512},
        fused="s*2*n*c*w", unfused="s*(8*n*c*w + 4*n*w)", also=(softmax_otherwise(-2),)),
    Row("B4 long", softmax(1), TABLE, {"r": 8, "c": 1 << 24}, fused="s*2*r*c", sweeps=2,
        unfused="s*(8*r*c + 4*r)", also=(softmax_otherwise(1),),
        eager={"kernels": 2, "stored": ("reduce.max", "reduce.sum"), "fused": "s*(3*r*c + 4*r)",
               "sweeps": 2}),
    Row("B4 log", log_softmax, TABLE, MATRIX, fused="s*2*r*c", unfused="s*(8*r*c + 6*r)",
        also=(lambda xp, x: xp.nn.log_softmax(x),)),
    Row("B4 mask", masked_softmax, ("T[r,c]", "bool[r,c]"), MATRIX, fused="(2*s + 1)*r*c",
        unfused="49*r*c + 16*r", also=(masked_softmax_otherwise,)),
    Row("B5 rows", statistics(1), TABLE, MATRIX, fused="s*(r*c + 4*r) + 8*r",
        unfused="s*(9*r*c + 13*r)",
        also=(statistics_otherwise(1),)),
    Row("B5 columns", statistics(0), TABLE, MATRIX, fused="s*(r*c + 4*c) + 8*c",
        unfused="s*(9*r*c + 13*c)",
        also=(statistics_otherwise(0),)),
    Row("B5 all", statistics(None), TABLE, MATRIX, fused="s*(r*c + 4) + 8",
        unfused="s*(9*r*c + 13)",
        also=(statistics_otherwise(None),)),
    Row("B6", both_sums, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*(2*r*c + r + c)",
        unfused="s*(5*r*c + c + r)",
        also=(both_sums_otherwise,)),
    Row("B7", distance, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*(2*r*c + 1)",
        unfused="s*(6*r*c + 7)",
        also=(distance_otherwise,)),
    Row("B8 logsumexp", logsumexp, TABLE, MATRIX, fused="s*(r*c + r)", unfused="s*(6*r*c + 8*r)",
        also=(lambda xp, x: xp.nn.logsumexp(x, axis=-1),)),
    Row("B8 entropy", entropy, TABLE, MATRIX, fused="s*(r*c + r)", unfused="s*(10*r*c + 12*r)",
        also=(entropy_otherwise,)),
    Row("B8 KL", divergence, ("T[r,c]", "T[r,c]"), MATRIX, fused="s*(2*r*c + r)",
        unfused="s*(25*r*c + 13*r)",
        also=(divergence_otherwise,)),
    Row("B8 smoothed", smoothed, ("T[r,c]", "i64[r] < c"), MATRIX, fused="s*(r*c + r) + 8*r",
        unfused="36*r*c + 138*r", also=(smoothed_otherwise,), bounded=True),
    Row("B9 sum", running_sum, TABLE, MATRIX, fused="s*2*r*c", unfused="s*(10*r*c)",
        also=(running_sum_otherwise,)),
    Row("B9 product", running_product, TABLE, {"r": 8192, "c": 512}, fused="s*2*r*c",
        unfused="s*(8*r*c)", also=(running_product_otherwise,)),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section B."""


# ---- beyond the counts -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["B4 rows", "B5 columns", "B5 all", "B6", "B7", "B9 sum"])
def test_threads_do_not_change_a_bit(name: str) -> None:
    row = next(r for r in ROWS if r.id == name)
    program = make(row)
    arrays = draw(row, {"r": 1031, "c": 517})
    with knobs.config(threads=1):
        alone = program.run(arrays)
    for threads in (2, 3):
        with knobs.config(threads=threads):
            again = program.run(arrays)
        assert [a.tobytes() for a in again] == [a.tobytes() for a in alone]
