"""Section C: contractions with prologues and epilogues."""

from __future__ import annotations

import math

from tests.catalogue.harness import EveryRow
from tests.catalogue.rows import Row

LINEAR = {"m": 4096, "n": 1024, "k": 512}
NARROW = {"m": 8192, "n": 256, "k": 512}
LINEAR_INPUTS = ("T[m,k]", "T[n,k]", "T[n]")
OUT = "s*(m*k + n*k + n + m*n)"


def silu(xp, x):
    return x / (1 + xp.exp(-x))


def gelu(xp, x):
    return 0.5 * x * (1 + xp.erf(x * math.sqrt(0.5)))


def gelu_tanh(xp, x):
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def linear(xp, x, w, b):
    return x @ xp.matrix_transpose(w) + b


def linear_otherwise(xp, t, u, c):
    return c + xp.matrix_transpose(u @ xp.matrix_transpose(t))


def after(f):
    return lambda xp, x, w, b: f(xp, linear(xp, x, w, b))


def gated(xp, x, w1, w3):
    return silu(xp, x @ xp.matrix_transpose(w1)) * (x @ xp.matrix_transpose(w3))


def gated_otherwise(xp, x, gate, up):
    g = xp.tensordot(x, gate, axes=((1,), (1,)))
    return xp.tensordot(x, up, axes=((1,), (1,))) * (g * xp.sigmoid(g))


def gated_once(xp, x, w):
    h, n = x @ xp.matrix_transpose(w), w.shape[0] // 2
    return silu(xp, h[:, :n]) * h[:, n:]


def gated_once_otherwise(xp, t, both):
    h, n = xp.tensordot(t, both, axes=((1,), (1,))), both.shape[0] // 2
    g = h[:, :n]
    return h[:, n:] * (g * xp.sigmoid(g))


def three(xp, x, q, k, v):
    return x @ q, x @ k, x @ v


def three_otherwise(xp, t, a, b, c):
    last, middle = xp.tensordot(t, c, axes=1), xp.tensordot(t, b, axes=1)
    return xp.tensordot(t, a, axes=1), middle, last


def norm_before(xp, x, g, w):
    h = x / xp.sqrt(xp.mean(x * x, axis=1, keepdims=True) + 1e-6) * g
    return h @ w


def norm_after(xp, x, w, b, residual):
    h = x @ w + b + residual
    d = h - xp.mean(h, axis=1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=1, keepdims=True) + 1e-5)


def norm_after_otherwise(xp, t, w, b, before):
    return xp.nn.layer_norm(before + (b + xp.tensordot(t, w, axes=1)))


def activation_before(xp, x, w):
    return xp.maximum(x, 0) @ w


def gather_before(xp, table, ids, w):
    return xp.take(table, ids, axis=0) @ w


def two_products(xp, x, u, v):
    return xp.maximum(x @ u, 0) @ v


def nearest(xp, x, w):
    return xp.max(xp.maximum(x @ xp.matrix_transpose(w), 0), axis=1)


def nearest_otherwise(xp, t, u):
    return xp.maximum(xp.max(xp.tensordot(t, u, axes=((1,), (1,))), axis=1), 0)


def closest(xp, x, w):
    return xp.argmax(x @ xp.matrix_transpose(w), axis=1)


def heads(xp, x, w):
    n, c = x.shape
    h = xp.reshape(x @ w, (n, 8, c // 8))
    return xp.permute_dims(h, (1, 0, 2))


def heads_otherwise(xp, t, w):
    parts = xp.reshape(xp.tensordot(t, w, axes=1), (t.shape[0], 8, t.shape[1] // 8))
    return xp.moveaxis(parts, 1, 0)


def quantised(xp, x, w, scale):
    total = xp.astype(x, xp.int32) @ xp.astype(w, xp.int32)
    return xp.maximum(xp.astype(total, xp.float32) * scale, 0)


SIBLINGS = {
    "plan_dtype": "in half the bytes, reading one operand once saves less than packing the others"
    " for fewer rows at a time costs: split by cost",
    "plan_dtype f64": "",
}
HALVES = {
    "plan_dtype": "written in half the bytes, the sum costs less to store than its row to keep:"
    " split by cost",
    "plan_dtype f64": "",
}
ROWS = (
    Row("C1", linear, LINEAR_INPUTS, LINEAR, fused=OUT, unfused="s*(m*k + 3*m*n + n*k + n)",
        also=(linear_otherwise,)),
    Row("C2 ReLU", after(lambda xp, y: xp.maximum(y, 0)), LINEAR_INPUTS, LINEAR, fused=OUT,
        unfused="s*(m*k + 5*m*n + n*k + n)",
        also=(lambda xp, t, u, c: xp.nn.relu(linear_otherwise(xp, t, u, c)),)),
    Row("C2 GELU", after(gelu), LINEAR_INPUTS, LINEAR, fused=OUT,
        unfused="s*(m*k + 14*m*n + n*k + n)",
        also=(lambda xp, t, u, c: xp.nn.gelu(linear_otherwise(xp, t, u, c)),)),
    Row("C2 GELU tanh", after(gelu_tanh), LINEAR_INPUTS, LINEAR, fused=OUT,
        unfused="s*(m*k + 21*m*n + n*k + n)",
        also=(lambda xp, t, u, c: xp.nn.gelu(linear(xp, t, u, c), approximate="tanh"),)),
    Row("C2 SiLU", after(silu), LINEAR_INPUTS, LINEAR, fused=OUT,
        unfused="s*(m*k + 12*m*n + n*k + n)",
        also=(lambda xp, t, u, c: xp.nn.silu(linear_otherwise(xp, t, u, c)),)),
    Row("C3", lambda xp, x, w, b, r: linear(xp, x, w, b) + r, (*LINEAR_INPUTS, "T[m,n]"), LINEAR,
        fused="s*(m*k + n*k + n + 2*m*n)", unfused="s*(m*k + 6*m*n + n*k + n)",
        also=(lambda xp, t, u, c, r: r + linear_otherwise(xp, t, u, c),)),
    Row("C4", gated, ("T[m,k]", "T[n,k]", "T[n,k]"), LINEAR, fused="s*(m*k + 2*n*k + m*n)",
        unfused="s*(2*m*k + 14*m*n + 2*n*k)", also=(gated_otherwise,)),
    Row("C4 one weight", gated_once, ("T[m,k]", "T[2*n,k]"), LINEAR,
        fused="s*(m*k + 2*n*k + m*n)", unfused="s*(2*m*k + 14*m*n + 2*n*k)",
        also=(gated_once_otherwise,)),
    Row("C5 equal", three, ("T[m,k]", "T[k,n]", "T[k,p]", "T[k,p]"),
        {"m": 8192, "n": 384, "p": 384, "k": 384}, fused="s*(m*k + k*(n + 2*p) + m*(n + 2*p))",
        unfused="s*(2*k*p + 3*m*k + m*n + 2*m*p + n*k)", also=(three_otherwise,)),
    Row("C5 unequal", three, ("T[m,k]", "T[k,n]", "T[k,p]", "T[k,p]"),
        {"m": 4096, "n": 1024, "p": 256, "k": 512}, fused="s*(m*k + k*(n + 2*p) + m*(n + 2*p))",
        unfused="s*(2*k*p + 3*m*k + m*n + 2*m*p + n*k)", also=(three_otherwise,),
        short=SIBLINGS),
    Row("C6 norm", norm_before, ("T[m,k]", "T[k]", "T[k,n]"), NARROW,
        fused="s*(m*k + k + k*n + m*n)", unfused="s*(8*m*k + m*n + n*k + k + 8*m)",
        also=(lambda xp, t, g, w: xp.nn.rms_norm(t, g) @ w,)),
    Row("C6 activation", activation_before, ("T[m,k]", "T[k,n]"), NARROW,
        fused="s*(m*k + k*n + m*n)", unfused="s*(3*m*k + m*n + n*k)",
        also=(lambda xp, t, w: xp.tensordot(xp.where(t > 0, t, 0), w, axes=1),)),
    Row("C6 gather", gather_before, ("T[v,k]", "i64[m] < v", "T[k,n]"), {**LINEAR, "v": 30000},
        fused="s*(m*k + k*n + m*n) + 8*m", unfused="s*(3*m*k + k*n + m*n) + 58*m",
        also=(lambda xp, t, ids, w: t[ids] @ w,), bounded=True),
    Row("C6 transpose", lambda xp, x, w: xp.matrix_transpose(x) @ w, ("T[k,m]", "T[k,n]"), LINEAR,
        fused="s*(m*k + k*n + m*n)", unfused="s*(m*k + k*n + m*n)",
        also=(lambda xp, t, w: xp.tensordot(t, w, axes=((0,), (0,))),)),
    Row("C7", norm_after, ("T[m,k]", "T[k,n]", "T[n]", "T[m,n]"),
        {"m": 4096, "n": 512, "k": 512}, fused="s*(m*k + k*n + n + 2*m*n)",
        unfused="s*(m*k + 14*m*n + n*k + 12*m + n)", also=(norm_after_otherwise,),
        short=HALVES),
    Row("C7 long", norm_after, ("T[m,k]", "T[k,n]", "T[n]", "T[m,n]"),
        {"m": 4096, "n": 8192, "k": 512}, fused="s*(m*k + k*n + n + 4*m*n)",
        unfused="s*(m*k + 14*m*n + n*k + 12*m + n)",
        kernels=2, stored=("add",), dtypes=()),
    Row("C8", nearest, ("T[m,k]", "T[n,k]"), {"m": 8192, "n": 8192, "k": 128},
        fused="s*(m*k + n*k + m)",
        unfused="s*(m*k + 4*m*n + n*k + m)",
        also=(nearest_otherwise,)),
    Row("C8 head", nearest, ("T[m,k]", "T[n,k]"), {"m": 4096, "n": 30000, "k": 384},
        fused="s*(m*k + n*k + m)", unfused="s*(m*k + 4*m*n + n*k + m)", dtypes=()),
    Row("C8 argmax", closest, ("T[m,k]", "T[n,k]"), {"m": 1000, "n": 100000, "k": 128},
        fused="s*(m*k + n*k) + 8*m", unfused="s*(m*k + n*k + 2*m*n) + 8*m",
        also=(lambda xp, t, u: xp.argmin(-xp.tensordot(t, u, axes=((1,), (1,))), axis=1),),
        dtypes=()),
    Row("C9 vector", lambda xp, w, x: w @ x, ("T[m,k]", "T[k]"), LINEAR, fused="s*(m*k + k + m)",
        unfused="s*(m*k + k + m)", also=(lambda xp, w, x: xp.sum(w * x, axis=1),)),
    Row("C9 skinny", lambda xp, x, w: x @ xp.matrix_transpose(w), ("T[p,k]", "T[n,k]"),
        {"p": 4, "n": 8192, "k": 4096}, fused="s*(p*k + n*k + p*n)",
        unfused="s*(p*k + n*k + p*n)",
        also=(lambda xp, t, w: xp.matrix_transpose(w @ xp.matrix_transpose(t)),)),
    Row("C9 batch", lambda xp, x, y: x @ y, ("T[b,m,k]", "T[b,k,n]"),
        {"b": 512, "m": 32, "n": 32, "k": 32}, fused="s*b*(m*k + k*n + m*n)",
        unfused="s*b*(m*k + k*n + m*n)"),
    Row("C10", two_products, ("T[m,k]", "T[k,n]", "T[n,k]"), LINEAR,
        fused="s*(2*m*k + 2*n*k + 2*m*n)", unfused="s*(2*m*k + 4*m*n + 2*n*k)",
        also=(lambda xp, t, u, v: xp.tensordot(xp.nn.relu(t @ u), v, axes=1),), kernels=2,
        stored=("max",)),
    Row("C11", quantised, ("i8[m,k]", "i8[k,n]", "f32[n]"), LINEAR,
        fused="m*k + k*n + 4*n + 4*m*n", unfused="9*m*k + 28*m*n + 9*n*k + 4*n", dtypes=()),
    Row("C12", heads, ("T[m,k]", "T[k,k]"), {"m": 4096, "k": 512}, fused="s*(2*m*k + k*k)",
        unfused="s*(4*m*k + k*k)",
        also=(heads_otherwise,), multiples={"k": 8}),
    Row("C13", lambda xp, x, y: xp.tensordot(x, y, axes=((2, 0), (0, 1))),
        ("T[b,m,k]", "T[k,b,n]"), {"b": 32, "m": 512, "k": 64, "n": 512},
        fused="s*(b*m*k + k*b*n + m*n)", unfused="s*(b*m*k + k*b*n + m*n)"),
)  # fmt: skip


class TestRows(EveryRow):
    """Every row of section C."""
