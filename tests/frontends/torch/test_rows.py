"""Lowering rules against torch itself, on shapes with symbolic sizes."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import smelt as sm  # noqa: E402
from smelt.frontends.torch.lower import Lowering  # noqa: E402
from smelt.frontends.torch.program import Program  # noqa: E402
from smelt.frontends.torch.table import decompositions  # noqa: E402

F = torch.nn.functional
aten = torch.ops.aten


def tensor(*shape, dtype=torch.float32, seed=0, low=-3, high=4):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


X = tensor(3, 4, 5)
POSITIVE = X.abs() + 0.5
UNIT = X.sigmoid()
WHOLE = tensor(3, 4, 5, dtype=torch.int64)
MASK = X > 0
IMAGE = tensor(2, 4, 6, 8)
LABELS = torch.tensor([0, 3, -100, 1, 2])

UNARY = {
    "abs acos asin atan ceil cos cosh erf erfc exp exp2 expm1 floor isinf isnan log1p neg relu "
    "round sigmoid sign sin sinh square tan tanh trunc gelu silu softplus mish elu leaky_relu "
    "hardsigmoid hardswish hardtanh log_sigmoid": UNIT * 2 - 1,
    "log log10 log2 rsqrt sqrt reciprocal acosh": POSITIVE + 1,
    "atanh asinh": UNIT * 0.9,
}
NAMES = [(n, x) for names, x in UNARY.items() for n in names.split()]


def function(name):
    special = {"log_sigmoid": F.logsigmoid}
    return special.get(name) or getattr(torch, name, None) or getattr(F, name)


def agree(f, *inputs, left=0, **tolerances):
    """Runs `f` as traced by torch and lowered by us; `left` operators may stay torch's."""
    expected = f(*inputs)
    traced = make_fx(functionalize(f), decomposition_table=decompositions(), tracing_mode="fake")(
        *inputs
    )
    lowering = Lowering(traced.graph)
    assert len(lowering.left) == left, lowering.left
    got = Program(traced, lowering).call(list(inputs))
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerances)


@pytest.mark.parametrize(("name", "x"), NAMES, ids=[n for n, _ in NAMES])
def test_functions_of_one_number(name, x):
    f = function(name)
    agree(lambda x: f(x), x, rtol=4e-6, atol=1e-6)  # noqa: PLW0108 - traced by its signature


BINARY = {
    "add": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: 3 - x - y * 2,
    "mul": torch.mul,
    "div": torch.div,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": lambda x, y: torch.pow(x.abs(), y),
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "where": lambda x, y: torch.where(x > y, x, y),
    "lt": torch.lt,
    "copysign": torch.copysign,
    "hypot": torch.hypot,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "eq": torch.eq,
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y.abs() + 1),
    "logaddexp": torch.logaddexp,
    "fill": lambda x, y: x.masked_fill(y > 0, -1.0),
    "clamp": lambda x, y: x.clamp(y, y + 1),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 1), ()], ids=str)
def test_functions_of_two_numbers_broadcast(name, shape):
    agree(BINARY[name], X, tensor(*shape, seed=1), rtol=4e-6, atol=1e-6)


INTEGERS = {
    "add": lambda x: x + 3,
    "floor": lambda x: x // 2,
    "trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % -3,
    "fmod": lambda x: torch.fmod(x, 2),
    "and": lambda x: x & 6,
    "xor": lambda x: x ^ x.flip(0),
    "not": lambda x: ~x,
    "mixed": lambda x: x + 0.5,
    "mean": lambda x: x.float().mean(-1),
    "sum": lambda x: x.sum(0),
    "true": lambda x: x / 2,
    "pow": lambda x: x**3,
    "compare": lambda x: x > 0.5,
    "logical": lambda x: torch.logical_and(x, x > 1),
    "max": lambda x: x.amax((0, 2)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    agree(INTEGERS[name], WHOLE)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("by", [1, 3, 7, 100, -2, -3, -100])
def test_division_towards_zero(by, dtype):
    """The least number of a type has no magnitude in it: its quotients had the wrong sign."""
    ends = torch.iinfo(dtype)
    near = torch.arange(-128, 128).to(dtype)
    x = torch.cat([near, torch.tensor([ends.min, ends.min + 1, ends.max], dtype=dtype)])
    if by > 0 or dtype.is_signed:
        agree(lambda x: torch.div(x, by, rounding_mode="trunc"), x)
        agree(lambda x: torch.fmod(x, by), x)


SHIFTS = {
    "<<": lambda x, n: x << n,
    ">>": lambda x, n: x >> n,
    "<<5": lambda x, n: x << 5,
    ">>5": lambda x, n: x >> 5,
    "left": torch.bitwise_left_shift,
    "none": lambda x, n: x >> 0,
    "right": lambda x, n: torch.bitwise_right_shift(x, 1),
    "3<<": lambda x, n: 3 << n,
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts(name, dtype):
    """Counts that are too large or negative as well."""
    x = torch.arange(-128, 128).to(dtype)
    agree(SHIFTS[name], x, torch.cat([x[::4] % 70, x[1::4], x[2::4] % 8, x[3::4] % 3]))


@pytest.mark.parametrize(
    "comb",
    [
        (1, 0, 9, 3),
        (1, 1, 9, 3),
        (1, 2, 9, 3),
        (1, 1, 8, 3),
        (1, -9, 9, 3),
        (0, 0, 9, 2),
        (0, 3, 7, 2),
    ],
)
def test_values_are_put_at_every_so_many_positions(comb):
    d, start, end, step = comb
    x = tensor(7, 9)
    y = tensor(*x.movedim(d, 0)[start:end:step].movedim(0, d).shape, seed=1)
    agree(lambda x, y: torch.slice_scatter(x, y, *comb), x, y)


FOLDS = {
    "sum": lambda x: x.sum((0, 2)),
    "keep": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(0),
    "max": lambda x: x.max(1),
    "argmin": lambda x: x.argmin(2),
    "argmax": lambda x: x.argmax(),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -2).all(),
    "var": lambda x: x.var((0, 1)),
    "std": lambda x: x.std(2, correction=0),
    "norm": lambda x: x.norm(dim=1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(-1),
    "short cumsum": lambda x: (x * 4).int().cumsum(1, dtype=torch.int32),
    "short sum": lambda x: (x * 4).int().sum(1, dtype=torch.int32),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp((1, 2)),
    "layer_norm": lambda x: F.layer_norm(x, (5,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
    "normalize": lambda x: F.normalize(x, dim=2),
    "var_mean": lambda x: torch.var_mean(x, 1),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds(name):
    agree(FOLDS[name], X, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_reductions_of_numbers(name):
    for x in (2.0, math.inf, math.nan):
        agree(lambda x: getattr(torch, name)(x, 0), torch.tensor(x))


VIEWS = {
    "slice": lambda x: x[1:, ::2, -3:] + 0,
    "select": lambda x: x[:, -1] * 2,
    "cat": lambda x: torch.cat([x, x * 2, x[:, :0]], 1),
    "stack": lambda x: torch.stack([x, -x], 2),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((0,), (0,)) + 1,
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "crop": lambda x: F.pad(x, (-1, 2)),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "split": lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    "chunk": lambda x: x.chunk(2, 1)[1] + 1,
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(),
    "unbind": lambda x: x.unbind(1)[2] * x.unbind(1)[0],
    "expand": lambda x: x[:, :1].expand(3, 4, 5) + 1,
    "arange": lambda x: x + torch.arange(x.shape[2]),
    "full": lambda x: torch.full_like(x, 2) + x,
    "linspace": lambda x: x * torch.linspace(0, 1, 5),
    "eye": lambda x: x[0] @ torch.eye(5),
    "reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 1), mode="replicate"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    agree(VIEWS[name], X)


def test_products():
    a, b, c = tensor(4, 6), tensor(6, 5, seed=1), tensor(5, seed=2)
    agree(lambda a, b: a @ b, a, b)
    agree(lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), a, b, c)
    agree(torch.bmm, tensor(3, 4, 6), tensor(3, 6, 5))
    agree(lambda a, b, c: torch.baddbmm(c, a, b), tensor(3, 4, 6), tensor(3, 6, 5), tensor(3, 1, 5))
    agree(lambda a, c: a.mv(c), tensor(4, 5), c)
    agree(F.linear, tensor(2, 3, 6), tensor(5, 6), c)
    agree(lambda a, b: torch.einsum("bij,kj->bki", a, b), tensor(2, 3, 6), tensor(5, 6))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    q, k, v = (tensor(2, 3, 7, 4, seed=s) for s in range(3))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    agree(f, q, k, v, rtol=1e-5, atol=1e-6)


def test_reads_at_computed_positions():
    at = torch.tensor([[0, 2], [-1, 1]])
    table = tensor(6, 4)
    agree(lambda t, i: F.embedding(i.abs(), t), table, at)
    agree(lambda t, i: t[i], table, at)
    agree(lambda t, i: t[:, i[0]], table, at)
    agree(lambda t, i: t[i[0], i[1]], table, at)
    agree(lambda t, i: t.index_select(1, i[1].abs()), table, at)
    agree(lambda t, i: t.gather(1, i.abs()), table, at)
    agree(lambda x, y: F.cross_entropy(x, y), tensor(5, 4), LABELS)  # noqa: PLW0108 - its signature


def test_one_write_along_an_axis():
    at = torch.tensor([[1], [0], [2]])
    x = tensor(3, 4)
    agree(lambda x, i: x.scatter(1, i, 7.0), x, at)
    agree(lambda x, i: x.scatter(1, i, x[:, :1] * 2), x, at)
    agree(lambda x, i: x.scatter_add(1, i, x[:, 1:2]), x, at)
    agree(lambda x, i: x.scatter(1, torch.cat([i, i + 1], 1), 7.0), x, at)


def test_lists_of_tensors():
    def step(a, b, c):
        values = torch._foreach_mul([a, b], 0.9)
        values = torch._foreach_add(values, [c, a], alpha=0.1)
        values = torch._foreach_addcdiv(values, [a, b], torch._foreach_exp([a, b]), 0.5)
        values = torch._foreach_addcmul(values, [a, b], [b, a], scalars=[0.5, 2.0])
        return torch._foreach_sqrt(torch._foreach_pow(torch._foreach_abs(values), 2.0))

    agree(step, tensor(4, 3), tensor(4, 3, seed=1), tensor(4, 3, seed=2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("f", [F.nll_loss, F.cross_entropy])
def test_labels_and_weights(f, reduction):
    def loss(x, y, *weight):
        return f(x, y, *weight, reduction=reduction)

    pixels = tensor(1, 3, 2, dtype=torch.int64, low=0, high=5)
    for more in ((), (POSITIVE[0, 0],)):
        for x, y in ((tensor(5, 5), LABELS), (tensor(5), LABELS[1]), (tensor(1, 5, 3, 2), pixels)):
            agree(loss, x, y, *more, rtol=1e-5, atol=1e-6)


def test_what_torch_keeps_of_a_log_sigmoid():
    agree(lambda x: aten.log_sigmoid_forward(x)[1], X * 30, rtol=1e-5, atol=1e-6)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg": lambda x: F.avg_pool2d(x, (2, 3), 1),
    "one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
}


@pytest.mark.parametrize("name", POOLS)
def test_images(name):
    agree(POOLS[name], IMAGE, rtol=1e-5, atol=1e-6)


CONVOLUTIONS = {
    "plain": ((2, 4, 9, 8), (6, 4, 3, 3), {}),
    "strided": ((2, 4, 9, 8), (6, 4, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((2, 4, 9, 8), (6, 4, 3, 2), {"padding": (1, 2), "dilation": 2}),
    "grouped": ((2, 4, 9, 8), (6, 2, 3, 1), {"groups": 2}),
    "depthwise": ((2, 4, 9, 8), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "one": ((2, 4, 9), (3, 4, 5), {"padding": 2}),
    "three": ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    image, kernel, options = CONVOLUTIONS[name]

    def f(x, w):
        return torch.convolution(
            x,
            w,
            None,
            *(
                _each(options.get(key, other), len(kernel) - 2)
                for key, other in (("stride", 1), ("padding", 0), ("dilation", 1))
            ),
            False,
            [0] * (len(kernel) - 2),
            options.get("groups", 1),
        )

    agree(f, tensor(*image), tensor(*kernel, seed=1), rtol=1e-5, atol=1e-5)


def _each(n, count):
    return [n] * count if isinstance(n, int) else list(n)


@pytest.mark.parametrize(
    ("image", "kernel", "options"),
    [
        ((2, 4, 5, 7), (4, 3, 4, 4), {"stride": 2, "padding": 1}),
        ((1, 4, 1, 1), (4, 2, 2, 2), {"stride": 2, "output_padding": 1}),
        ((2, 6, 5, 5), (6, 2, 4, 2), {"stride": (2, 1), "groups": 3, "padding": (3, 0)}),
        ((2, 4, 9), (4, 3, 16), {"stride": 8, "padding": 4, "output_padding": 3}),
        ((1, 2, 3, 4, 2), (2, 3, 2, 4, 2), {"stride": (1, 2, 2)}),
        ((3, 4, 4, 4), (4, 5, 2, 2), {}),
        ((2, 1, 4, 4), (1, 1, 3, 3), {"stride": 3}),
        ((2, 4, 5, 5), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 4, 5, 3), (4, 1, 5, 3), {"stride": (3, 2), "groups": 4, "dilation": (1, 3)}),
        ((2, 4, 3), (4, 3, 5), {"stride": 2, "padding": 4}),
        ((2, 4, 5, 5), (4, 3, 2, 2), {"dilation": 2}),
    ],
)
def test_transposed_convolutions(image, kernel, options):
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(kernel) - 3]
    bias = tensor(kernel[1] * options.get("groups", 1), seed=2)
    agree(
        lambda x, w, b: f(x, w, b, **options),
        tensor(*image),
        tensor(*kernel, seed=1),
        bias,
        rtol=1e-5,
        atol=1e-5,
    )


def test_transposed_convolutions_of_tiny_images_and_many_taps_are_left_to_torch():
    agree(F.conv_transpose2d, tensor(2, 4, 1, 1), tensor(4, 3, 4, 4), left=1)
    agree(
        lambda x, w: F.conv_transpose1d(x, w, stride=9), tensor(2, 4, 5), tensor(4, 3, 11), left=1
    )
    agree(lambda x, w: F.conv1d(x, w, groups=4), tensor(2, 4, 29), tensor(4, 1, 11), left=1)
    with sm.config(rounding="exact"):  # of which no product is made
        agree(F.conv_transpose2d, tensor(2, 4, 5, 5), tensor(4, 3, 3, 3), left=1)


@pytest.mark.parametrize("last", [False, True])
def test_many_taps_over_one_channel(last):
    x = tensor(2, 4, 9, 9)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    agree(lambda x, w: F.conv2d(x, w, groups=4), x, tensor(4, 1, 7, 5), atol=1e-5, rtol=1e-5)


def test_images_with_weights():
    kernel, c = tensor(3, 4, 1, 1, seed=1), tensor(4, seed=2)
    agree(lambda x, w, b: F.conv2d(x, w, b, stride=2), IMAGE, kernel, c[:3], atol=1e-5, rtol=1e-5)

    def norm(x, m, v, w, b):
        return aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[0]

    agree(norm, IMAGE, c, c.abs(), c, c, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_sign_of_nan_is_none(dtype):
    """Eager code's is 0, where NumPy's is NaN; the derivative of abs reads it."""
    x = torch.tensor([1.0, float("nan"), -2.0, 0.0, float("-inf")] * 5, dtype=dtype)
    call = torch.compile(lambda x: (x.sign() + 1, x.abs()), backend="smelt")
    assert torch.equal(call(x)[0], x.sign() + 1)
    x.requires_grad_()
    (actual,) = torch.autograd.grad(call(x)[1].sum(), x)
    assert torch.equal(actual, torch.autograd.grad(x.abs().sum(), x)[0])


def test_what_must_raise_is_left_to_torch():
    zero = torch.zeros(3, dtype=torch.int64)
    agree(lambda x: torch.div(x, x + 1, rounding_mode="floor"), zero, left=1)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        agree(lambda x: torch.div(x + 1, x, rounding_mode="floor"), zero, left=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_rounded_where_torch_rounds(dtype):
    x = X.to(dtype)
    for f in (lambda x: F.gelu(x) + 1, lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (5,))):
        agree(f, x, rtol=1e-2, atol=1e-2)


def test_a_way_between_two_numbers_ends_at_the_second():
    """From the nearer end, as in eager code: nothing is left of a 1 beside 1e8 else."""
    start, end = torch.tensor([[1e8], [1.0], [-3e7]]).expand(3, 5).contiguous(), X[:3, 0]
    near = {"rtol": 2.0**-22, "atol": 2.0**-21}  # roundings of terms up to 3 in the middle row

    def line(weight):
        return lambda x, y: torch.lerp(x, y, weight)

    for weight in (0.3, 0.7, 1.0):
        agree(line(weight), start, end, **near)
    agree(torch.lerp, start, end, torch.tensor([0.0, 0.4, 0.5, 0.9, 1.0]), **near)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: torch.lerp(x, y, 0.3),
        lambda x, y: torch.addcmul(x, y, y, value=1e-4),
        lambda x, y: torch.addcdiv(x, y, x, value=0.5),
        lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: torch.sub(y, x, alpha=2),
        lambda x, y: torch.rsub(x, y, alpha=2),
    ],
)
def test_sums_with_multiples_of_halves_are_rounded_once(f):
    """What is added may be greater than any half: eager code adds in float32."""
    x = torch.tensor([6e4, -6e4, 4e4, 1.0, -2.5]).half().repeat(64)  # not odd ones behind vectors
    agree(f, x, -x.flip(0).roll(1), rtol=2.0**-11, atol=0)
    agree(f, x, -x, rtol=2.0**-11, atol=0)


def test_a_reciprocal_root_is_that_of_the_sign_of_zero():
    x = torch.tensor([4.0, 0.0, -0.0, float("inf"), float("-inf"), -1.0])
    agree(lambda x: x**-0.5, x)


def test_a_number_that_a_forward_derivative_casts():
    def f(x):
        return aten._to_copy(0.1, dtype=torch.float32) * x

    agree(f, X)
