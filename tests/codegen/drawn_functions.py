"""Draw functions of the kinds whose kernels are hard: convolutions, loops, attention, long rows.

    function, arrays = FAMILIES["convolution"](draw)

Operators around them, options, shapes and data are drawn too. Sizes are small and odd, some are
empty; `check_drawn` plans for larger ones, and prints any schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from tests.catalogue import harness
from tests.codegen import test_triton_programs as programs
from tests.codegen.device_catalogue import DevicePlan
from tests.codegen.drawn_schedules import drawn, low_limits, small_device
from tests.strategies import data

import smelt as sm
from smelt.errors import DeviceKernelError
from smelt.types.dtype import DType, bf16, f16, f32, f64, i8, i32, i64

Draw = Callable[[Any], Any]
SIZES = (5, 17, 1, 33, 3, 16, 2, 8)
HALVES = (f32, bf16, f32, f16)
LARGER = {"convolution": (1, 9, 64), "rows": (1, 700, 40_000), "scan": (1, 700, 40_000)}
"""How often larger the sizes are that a family is planned for; that of the others is next."""
USUAL = (1, 60, 900)


class Function(NamedTuple):
    """A function with arrays for its arguments."""

    code: Callable[..., Any]
    arrays: list[Any]


class Drawer:
    """Draws the parts of a function."""

    def __init__(self, draw: Draw, dtypes: Sequence[DType]) -> None:
        self.draw = draw
        self.dtype = self.pick(dtypes)
        self.flavour = self.pick(("normal", "normal", "uniform", "special"))
        self.arrays: list[Any] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def chance(self, percent: int) -> bool:
        return self.number(0, 99) >= 100 - percent

    def size(self, empty: int = 3) -> int:
        return 0 if self.chance(empty) else self.pick(SIZES)

    def array(self, *shape: int, dtype: DType | None = None, flavour: str = "") -> int:
        """Add an argument; return its number."""
        kind, number = flavour or self.flavour, self.number(0, 99)
        self.arrays.append(data.array(dtype or self.dtype, shape, kind, number))
        return len(self.arrays) - 1

    def ids(self, end: int, *shape: int) -> int:
        random = np.random.default_rng(self.number(0, 99))
        dtype = self.pick((i64, i32)).numpy
        self.arrays.append(random.integers(0, max(end, 1), shape).astype(dtype))
        return len(self.arrays) - 1

    def map(self) -> Callable[[Any], Any]:
        """An elementwise function."""
        return self.pick(MAPS)


MAPS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    sm.nn.relu,
    sm.nn.gelu,
    sm.nn.silu,
    sm.tanh,
    lambda x: x * 0.5 + 1,
    lambda x: sm.where(x > 0, x, 0.1 * x),
    lambda x: sm.clip(x, -1, 1),
    lambda x: sm.exp(-abs(x)),
)


def gradient_of(code: Callable[..., Any], by: Sequence[int]) -> Callable[..., Any]:
    """The gradients of the sum of squares of what a function returns."""

    def total(*xs: Any) -> Any:
        return sm.sum(sm.square(sm.astype(code(*xs), sm.float32)))

    return sm.value_and_grad(total, tuple(by))


# ---- convolutions --------------------------------------------------------------------------------


def convolution(draw: Draw) -> Function:
    """A convolution with stride, padding, dilation and groups, between maps, pooled or summed."""
    d = Drawer(draw, HALVES)
    rank = d.pick((2, 2, 1))
    groups = d.pick((1, 1, 2, 3))
    depthwise = d.chance(15)
    inner, outer = (1, d.pick((1, 2))) if depthwise else (d.size(0), d.pick((1, 4, 17)))
    window = [d.pick((3, 1, 2)) for _ in range(rank)]
    options = {
        "stride": d.pick((1, 1, 2)),
        "padding": d.pick((0, 1, 2)),
        "dilation": d.pick((1, 1, 2)),
        "groups": groups,
    }
    image = [d.pick((7, 9, 5, 12)) for _ in range(rank)]
    batch, channels, results = d.size(), inner * groups, outer * groups
    is_last = d.chance(40)
    shape = (batch, *image, channels) if is_last else (batch, channels, *image)
    x, w = d.array(*shape), d.array(results, inner, *window)
    bias = d.array(results) if d.chance(50) else None
    before, after = d.map(), d.map()
    end = d.pick(("", "", "", "sum", "mean", "residual", "twice"))
    to_first = (0, rank + 1, *range(1, rank + 1))
    to_last = (0, *range(2, rank + 2), 1)

    def code(*xs: Any) -> Any:
        y = sm.permute_dims(xs[x], to_first) if is_last else xs[x]
        y = sm.nn.conv(before(y), xs[w], None if bias is None else xs[bias], **options)
        if end == "residual":
            y = y + sm.mean(y, axis=1, keepdims=True)
        y = after(y)
        if end == "twice":
            return y, sm.sum(y, axis=0)
        if end in ("sum", "mean"):
            return getattr(sm, end)(y, axis=tuple(range(2, rank + 2)))
        return sm.permute_dims(y, to_last) if is_last else y

    if end != "twice" and d.chance(25):
        return Function(gradient_of(code, (x, w)), d.arrays)
    return Function(code, d.arrays)


# ---- loops ---------------------------------------------------------------------------------------


def loop(draw: Draw) -> Function:
    """A scan whose step multiplies, sums or normalises what it carries."""
    d = Drawer(draw, (f32, f32, bf16, f64))
    steps, rows, n = d.pick((5, 1, 17, 2)), d.size(0), d.pick((3, 16, 1, 8))
    kind = d.pick(("cell", "gated", "outer", "delta", "norm", "largest"))
    x = d.array(steps, rows, n)
    k = d.array(steps, rows, n)
    gate = d.array(steps, rows, flavour="uniform")
    w = d.array(n, n)
    u = d.array(n, n)
    wide = d.array(rows, n, n)
    h = d.array(rows, n)
    is_reversed, keeps = d.chance(30), d.pick(("both", "carry", "all"))
    after = d.map()

    def cell(h: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        h = sm.tanh(h @ w + x)
        return h, h * k

    def gated(h: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        z = sm.nn.sigmoid(h @ w + x)
        h = z * h + (1 - z) * sm.tanh((h * z) @ u + k)
        return h, h * g[:, None]

    def outer(s: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        s = s * g[:, None, None] + x[:, :, None] * k[:, None, :]
        return s, sm.sum(s * k[:, :, None], axis=1)

    def delta(s: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        error = x - sm.sum(k[:, :, None] * s, axis=1)
        s = s + g[:, None, None] * k[:, :, None] * error[:, None, :] * 0.1
        return s, error

    def norm(h: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        h = h * 0.5 + x * g[:, None]
        h = h / sm.sqrt(sm.mean(h * h, axis=-1, keepdims=True) + 1e-3)
        return h, h * k

    def largest(h: Any, x: Any, k: Any, g: Any, w: Any, u: Any) -> Any:
        h = sm.maximum(h, x) - sm.max(h, axis=-1, keepdims=True) * 0.5
        return h, sm.sum(h, axis=-1)

    step = {f.__name__: f for f in (cell, gated, outer, delta, norm, largest)}[kind]
    start = wide if kind in ("outer", "delta") else h

    def code(*xs: Any) -> Any:
        def of_one(s: Any, x: Any) -> Any:
            return step(s, *x, xs[w], xs[u])

        rows_of_steps = (after(xs[x]), xs[k], xs[gate])
        carry, every = sm.scan(of_one, xs[start], rows_of_steps, reverse=is_reversed)
        return {"both": (carry, every), "carry": carry, "all": after(every)}[keeps]

    if keeps == "all" and d.dtype == f32 and d.chance(25):
        return Function(gradient_of(code, (x, start)), d.arrays)
    return Function(code, d.arrays)


# ---- attention -----------------------------------------------------------------------------------


def attention(draw: Draw) -> Function:
    """Attention with masks, biases, caps and groups of heads, and its gradients."""
    d = Drawer(draw, HALVES)
    group, heads = d.pick((1, 1, 2, 3)), d.pick((1, 2, 3))
    queries, keys = d.size(2), d.size(2)
    width, values = d.pick((8, 16, 5, 33)), d.pick((8, 16, 3, 17))
    mask = d.pick(("", "causal", "window", "lengths", "documents", "given"))
    if mask in ("window", "documents") or d.chance(50):
        queries = keys
    scale = d.pick((None, 0.3))
    cap, biased, sink = d.chance(20), d.pick(("", "full", "slopes")), d.chance(15)
    q = d.array(heads, group, queries, width)
    k, v = d.array(heads, 1, keys, width), d.array(heads, 1, keys, values)
    extra = {
        "full": lambda: d.array(queries, keys),
        "slopes": lambda: d.array(heads, group, 1, 1),
        "": lambda: -1,
    }[biased]()
    marks = {
        "lengths": lambda: d.ids(keys + 1, heads, 1, 1, 1),
        "documents": lambda: d.ids(3, keys),
        "given": lambda: d.ids(2, queries, keys),
    }.get(mask, lambda: -1)()

    def hidden(xs: Any, s: Any) -> Any:
        i = sm.arange(s.shape[-2])[:, None] + (s.shape[-1] - s.shape[-2])
        j = sm.arange(s.shape[-1])
        seen = {
            "causal": lambda: j <= i,
            "window": lambda: (j <= i) & (i - j < 7),
            "lengths": lambda: j < xs[marks],
            "documents": lambda: xs[marks][:, None] == xs[marks],
            "given": lambda: xs[marks] > 0,
        }
        return sm.where(seen[mask](), s, -sm.inf) if mask else s

    def code(*xs: Any) -> Any:
        plain = not (cap or sink or biased) and mask in ("", "causal")
        if plain or 0 in (queries, keys):  # what is empty has no largest element
            return sm.nn.attention(xs[q], xs[k], xs[v], causal=mask == "causal", scale=scale)
        s = (xs[q] @ sm.matrix_transpose(xs[k])) * (scale or 0.2)
        if cap:
            s = 3.0 * sm.tanh(s / 3.0)
        if biased == "full":
            s = s + xs[extra]
        if biased == "slopes":
            distances = sm.arange(s.shape[-1]) - sm.arange(s.shape[-2])[:, None]
            s = s + xs[extra] * sm.astype(distances, s.dtype)
        s = hidden(xs, s)
        top = sm.max(s, axis=-1, keepdims=True)
        top = sm.where(sm.isfinite(top), top, 0.0)
        top = sm.maximum(top, 0.5) if sink else top
        e = sm.exp(s - top)
        total = sm.sum(e, axis=-1, keepdims=True) + (sm.exp(0.5 - top) if sink else 1e-6)
        return (e / total) @ xs[v]

    if keys and queries and d.chance(30):
        return Function(gradient_of(code, (q, k, v)), d.arrays)
    return Function(code, d.arrays)


# ---- products ------------------------------------------------------------------------------------


def product(draw: Draw) -> Function:
    """A product with a prologue and an epilogue, whose rows may be reduced, and its gradients."""
    d = Drawer(draw, HALVES)
    batch = (d.pick((2, 3)),) if d.chance(30) else ()
    m, k, n = d.size(), d.size(), d.size()
    is_transposed, swapped = d.chance(40), d.chance(20)
    before = d.pick(("", "map", "norm", "rows", "cast"))
    after = d.pick(("", "gelu", "gate", "softmax", "residual", "largest", "labels", "moments"))
    if after in ("softmax", "largest", "labels") and n == 0:
        after = ""
    x = d.array(*batch, *((k, m) if swapped else (m, k)))
    w = d.array(*((n, k) if is_transposed else (k, n)))
    v = d.array(k, n)
    bias, other = d.array(n), d.array(*batch, m, n)
    ids = d.ids(m, m)
    labels = d.ids(n, *batch, m)
    bytes_ = [d.array(s, t, dtype=i8) for s, t in ((m, k), (k, n))] if d.chance(10) else []
    f, g = d.map(), d.map()

    def operand(xs: Any) -> Any:
        y = sm.matrix_transpose(xs[x]) if swapped else xs[x]
        if before == "map":
            return f(y)
        if before == "norm":
            return sm.nn.rms_norm(y)
        if before == "rows" and m:
            return sm.take(y, xs[ids], axis=-2)
        return sm.astype(sm.astype(y, sm.float32) * 0.5, y.dtype) if before == "cast" else y

    def code(*xs: Any) -> Any:
        if bytes_:
            x, w = (sm.astype(xs[b], sm.int32) for b in bytes_)
            return g(sm.astype(x @ w, sm.float32) * 0.01)
        y = operand(xs)
        z = y @ (xs[w_].T if is_transposed else xs[w_])
        if after == "gelu":
            return sm.nn.gelu(z + xs[bias])
        if after == "gate":
            return sm.nn.silu(z) * (y @ xs[v])
        if after == "softmax":
            return sm.nn.softmax(z + xs[bias])
        if after == "residual":
            return g(z) + xs[other]
        if after == "largest":
            return sm.max(sm.log1p(sm.nn.relu(z + xs[bias])), axis=-1)
        if after == "labels":
            picked = sm.take_along_axis(z, sm.astype(xs[labels], sm.int64)[..., None], axis=-1)
            return sm.nn.logsumexp(z, axis=-1) - picked[..., 0]
        if after == "moments":
            return sm.sum(z, axis=-1), sm.sum(z * z, axis=-2)
        return g(z)

    w_ = w
    if after != "moments" and not bytes_ and d.chance(25):
        return Function(gradient_of(code, (x, w)), d.arrays)
    return Function(code, d.arrays)


# ---- rows and scans ------------------------------------------------------------------------------


def rows(draw: Draw) -> Function:
    """Softmax, norms, largest elements and statistics of rows or columns, with gathers."""
    d = Drawer(draw, (f32, bf16, f64, f16))
    r, c = d.size(), d.pick((33, 257, 1, 17, 64))
    axis = d.pick((-1, -1, 0))
    r = r or 3 if axis == 0 else r
    kind = d.pick(("softmax", "log", "norm", "rms", "lse", "arg", "var", "loss", "divergence"))
    x, y = d.array(r, c), d.array(r, c)
    g, b = d.array(c), d.array(c)
    ids = d.ids(r, d.size(0))
    picks, before, after = d.chance(20) and r > 0, d.map(), d.map()

    def code(*xs: Any) -> Any:
        a = before(sm.take(xs[x], xs[ids], axis=0) if picks else xs[x])
        if kind == "softmax":
            return after(sm.nn.softmax(a, axis=axis))
        if kind == "log":
            return after(sm.nn.log_softmax(a, axis=axis))
        if kind == "norm":
            return after(sm.nn.layer_norm(a, xs[g], xs[b]))
        if kind == "rms":
            return after(sm.nn.rms_norm(a, xs[g]))
        if kind == "lse":
            return sm.nn.logsumexp(a, axis=axis)
        if kind == "arg":
            return sm.argmax(a, axis=axis), sm.min(a, axis=axis)
        if kind == "var":
            return sm.var(a, axis=axis), sm.mean(a, axis=axis), sm.std(a)
        if kind == "loss":
            return sm.sum(sm.where(abs(a) < 1, 0.5 * a * a, abs(a) - 0.5))
        p, q = sm.nn.log_softmax(xs[x]), sm.nn.log_softmax(xs[y])
        return sm.sum(sm.exp(q) * (q - p), axis=-1)

    if kind not in ("arg", "var") and d.chance(25):
        return Function(gradient_of(code, (x,)), d.arrays)
    return Function(code, d.arrays)


def scan(draw: Draw) -> Function:
    """Running sums and largest elements, of rows or columns, before and after maps; histograms."""
    d = Drawer(draw, (f32, i64, i32, f64, bf16))
    r, c = d.size(), d.pick((33, 257, 1, 17, 130))
    axis = d.pick((-1, -1, 0))
    kind = d.pick(("sum", "sum", "sums", "scatter", "segments", "table"))
    x = d.array(r, c)
    ids, cells = d.ids(7, r), d.ids(7, r)
    table, slope = d.array(7, c), d.array(r, c)
    is_float = d.dtype.is_float
    before = d.map() if is_float else (lambda a: a + 1)
    flips = d.chance(30)

    def code(*xs: Any) -> Any:
        a = before(xs[x])
        a = sm.flip(a, axis=axis) if flips else a
        if kind == "sum":
            return sm.cumulative_sum(a, axis=axis)
        if kind == "sums":
            s = sm.cumulative_sum(a, axis=axis)
            return s - a, sm.max(s, axis=axis) if 0 not in a.shape else s
        if kind == "scatter":
            return xs[table].at[xs[ids]].add(a)
        if kind == "segments":
            return sm.segment_sum(a, xs[ids], 7), sm.bincount(xs[cells], minlength=9)
        return sm.vjp(lambda t: sm.take(t, xs[ids], axis=0), xs[table])[1](xs[slope])

    if kind == "table" and not is_float:
        return Function(lambda *xs: sm.take(xs[table], xs[ids], axis=0) * 2, d.arrays)
    return Function(code, d.arrays)


FAMILIES: dict[str, Callable[[Draw], Function]] = {
    f.__name__: f for f in (convolution, loop, attention, product, rows, scan)
}
"""By name: what draws a function."""


def check_drawn(draw: Draw, family: str, target: str) -> str:
    """Compare a drawn function's printed kernels with the graph's interpreter.

    Returns "judged", or "refused" for what no kernel computes. Raises AssertionError.
    """
    function = FAMILIES[family](draw)
    larger = draw(st.sampled_from(LARGER.get(family, USUAL)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    is_best = draw(st.booleans())
    trace = sm.jit(function.code).lower(*function.arrays).trace
    arrays = harness.inputs(trace, function.arrays)
    sizes = harness.matched(trace, [n for a in function.arrays for n in a.shape])

    def sources(plan: DevicePlan, small: Sequence[Mapping[str, int]]) -> dict[int, str]:
        device, result = small_device(random), {}
        for kernel, at, of_call in zip(plan.kernels, plan.sizes, small, strict=True):
            if kernel is not None:
                _, result[id(kernel)] = drawn(random, kernel, at, of_call, device)
        return result

    with nullcontext() if is_best else low_limits():
        how = programs.sources_of if is_best else sources
        try:
            problem = programs.complaint(trace.graph, arrays, larger, target, how, sizes)
        except DeviceKernelError:
            return "refused"
    assert not problem, problem
    return "judged"
