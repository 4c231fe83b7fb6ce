"""Templates of the lines of a random PyTorch module.

A template need not be valid: `module_generator.py` drops what eager code refuses at either size.
"""

from __future__ import annotations

from tests.frontends.torch.module_generator import Drawing

ALONE = (
    "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.silu({})", "torch.relu({})", "{}.tanh()",
    "torch.sigmoid({})", "{}.clamp(-3, 2).exp()", "{}.abs()", "{}.abs().sqrt()", "-{}", "{} ** 2",
    "{}.sin()", "{}.cos()", "torch.erf({})", "F.softplus({})", "F.logsigmoid({})", "F.mish({})",
    "F.hardswish({})", "F.leaky_relu({}, 0.1)", "F.elu({})", "F.selu({})", "F.celu({})",
    "{}.abs().log1p()", "{}.floor()", "{}.round()", "{}.sign()", "({} ** 2 + 1).rsqrt()",
    "{}.expm1()", "{}.clamp(-1, 1)", "{}.clamp(min=0.1)", "F.relu6({})", "F.hardtanh({})",
    "torch.nan_to_num({})", "{}.frac()", "{}.trunc()", "{}.reciprocal()", "{}.square()",
    "F.softsign({})", "F.tanhshrink({})", "F.softshrink({}, 0.3)", "F.hardshrink({})",
    "F.threshold({}, 0.1, -1.0)", "{}.atan()", "{}.sinh()", "{}.asinh()",
    "torch.logit({}.sigmoid())", "{}.positive()", "torch.special.expit({})",
    "torch.exp2({}.clamp(-3, 3))", "{}.clone()", "F.dropout({}, 0.5, training=False)",
    "{}.contiguous()", "{} + 0", "torch.pow({}, 3)", "{}.deg2rad()", "torch.sgn({})",
    "F.hardsigmoid({})", "torch.i0({})", "torch.sinc({})",
    "{}.clone(memory_format=torch.contiguous_format)", "F.prelu({}, torch.tensor(0.2, dtype=S))",
)  # fmt: skip
TWO = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / ({}.abs() + 0.5)",
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.atan2({}, {})",
    "torch.hypot({}, {})",
    "torch.fmax({}, {})",
    "torch.fmin({}, {})",
    "torch.copysign({}, {})",
    "torch.where({0} > {1}, {0}, {1} * 2)",
    "torch.lerp({}, {}, 0.3)",
    "torch.addcmul({0}, {1}, {1}, value=0.5)",
    "torch.add({}, {}, alpha=2)",
    "torch.addcdiv({0}, {1}, {0}.abs() + 1)",
    "torch.logaddexp({}, {})",
    "torch.rsub({}, {})",
    "torch.xlogy({}, {}.abs() + 0.1)",
    "({}.abs() + 0.1).pow({}.clamp(-2, 2))",
    "torch.fmod({}, {}.abs() + 1)",
    "torch.ldexp({}, torch.round({}).clamp(-3, 3))",
    "torch.remainder({}, {}.abs() + 1)",
    "torch.heaviside({}, {})",
    "torch.floor_divide({}, {}.abs() + 1)",
    "torch.float_power({}.abs(), {}.clamp(0, 2))",
)
NUMBERS = (
    "{} * {n}",
    "{} + {n}",
    "{n} - {}",
    "{} / {n}",
    "{n} / ({}.abs() + 1)",
    "torch.pow(2.0, {}.clamp(-3, 3))",
    "{}.clamp(max={n})",
    "torch.where({} > {n}, {}, {n})",
    "torch.lerp({}, torch.full_like({}, {n}), 0.25)",
    "{} % {n}",
    "torch.copysign({}, {n})",
    "2 ** {}.clamp(-2, 2)",
    "torch.full_like({}, {n}) * {}",
    "torch.xlogy({n}, {}.abs() + 1)",
    "torch.fmax({}, torch.tensor({n}, dtype=S))",
)
FOLDS = (
    "{}.sum({a})", "{}.mean({a})", "{}.sum({a}, keepdim=True)", "{}.mean({a}, keepdim=True)",
    "{}.amax({a})", "{}.amin({a}, keepdim=True)", "{}.var({a}, unbiased=False)",
    "{}.std({a}, correction=0)", "{}.prod({a})", "{}.logsumexp({a})",
    "({0} ** 2 + 0.1).sum({a}).sqrt()", "{}.norm(dim={a})", "torch.linalg.vector_norm({}, 1, {a})",
    "{}.cumsum({a})", "{}.clamp(-1, 1).cumprod({a})", "{}.softmax({a})", "{}.log_softmax({a})",
    "F.softmin({}, {a})", "F.normalize({}, dim={a})", "{0} - {0}.mean({a}, keepdim=True)",
    "{0} / ({0}.abs().amax({a}, keepdim=True) + 1)", "{}.max({a}).values", "{}.median({a}).values",
    "{}.sum()", "{}.mean()", "{}.max()", "{}.square().mean(({a}, 0))",
    "{}.sum((0, {a}), keepdim=True)", "{}.sort({a}).values", "{}.sort({a}, descending=True)[0]",
    "{}.topk(1, {a}).values", "torch.cummax({}, {a}).values", "torch.logcumsumexp({}, {a})",
    "torch.diff({}, dim={a})", "torch.var_mean({}, {a}, correction=0)[1]",
    "torch.aminmax({}, dim={a})[1]", "torch.renorm({}, 2, {a}, 1.0)", "F.glu({}, {a})",
    "torch.trapezoid({}, dim={a})", "{}.flip({a}).cumsum({a}).flip({a})", "{}.nansum({a})",
    "torch.cdist({0}, {0} * 2)", "torch.mean({}, {a}, dtype=torch.float64)",
)  # fmt: skip
VIEWS = (
    "{}.transpose({a}, {b})", "{}.mT", "{}.unsqueeze({a})", "{}.flatten({a})", "{}.flatten(0, {a})",
    "{}.reshape(-1)", "{}.reshape({}.shape[0], -1)", "{}[0]", "{}[:, -1]", "{}[..., ::2]", "{}[1:]",
    "{}[:, 1:]", "{}[..., :-1]", "{}[None]", "{}.select({a}, 0)", "{}.narrow({a}, 0, 2)",
    "{}.movedim({a}, {b})", "{}.diagonal(0, {a}, {b})", "{}.squeeze()", "{}.chunk(2, {a})[0]",
    "{}.chunk(2, {a})[1]", "{}.split(2, {a})[-1]", "{}.unbind({a})[-1]", "{}.expand(2, *{}.shape)",
    "{}.roll(1, {a})", "{}.roll((1, -1), (0, {a}))", "{}.flip({a})", "{}.repeat(2, 1)",
    "{}.repeat(1, 1, 2)", "{}.tile(2)", "{}.repeat_interleave(2, {a})", "F.pad({}, (1, 1))",
    "F.pad({}, (0, 1, 1, 0), value=0.5)", "F.pad({}, (1, 1), mode='reflect')",
    "F.pad({}, (1, 0), mode='replicate')", "{}.tril()", "{}.triu(1)", "{}.unfold({a}, 2, 1)",
    "torch.stack(({}, {}), {a})", "torch.cat(({}, {}), {a})", "torch.stack({}.unbind({a}), -1)",
    "{}.swapaxes({a}, {b}).contiguous()", "torch.cat({}.chunk(2, {a})[::-1], {a})", "{}.view(-1)",
    "{}.T", "{}.permute(*range({r} - 1, -1, -1))", "{}.rot90(1, ({a}, {b}))",
    "{}.unflatten({a}, (-1, 2))", "{}.unflatten({a}, (2, -1)).transpose(0, 1)", "{}.detach()",
    "torch.atleast_3d({})", "{}.view({}.shape[0], -1)", "{}.reshape(-1, {}.shape[-1])",
    "{}.expand_as(torch.cat(({}, {})))[1:]", "torch.kron({}, torch.ones(2, dtype=S))",
    "{}.new_zeros({}.shape[-1]) + {}", "{}.view_as({})", "{}.squeeze({a})",
    "{}.as_strided({}.shape, {}.stride())", "F.pad({}, (2, 1), mode='circular')",
    "torch.block_diag({}, {})", "torch.diag_embed({})",
    "{}.unsqueeze({a}).expand(*[-1] * ({r} + 1))", "torch.tensor_split({}, 2, {a})[1]",
)  # fmt: skip
WRITES = (
    "{x} += {y}", "{x} *= {n}", "{x}[..., ::2] += {n}", "{x}[..., 0] = {n}", "{x}[0] = {n}",
    "{x}[:, 1:] *= {n}", "{x}[1:] = {x}[:-1].clone()", "{x}.clamp_(-1, 1)", "{x}.mul_({y})",
    "{x}.sub_({y}, alpha=0.5)", "{x}.copy_({y})", "{x}[..., -1].add_({n})",
    "{x}.masked_fill_({x} > 0.5, {n})", "{x}[{x} < {n}] = 0", "{x}.tanh_()",
    "F.relu({x}, inplace=True)", "{x}.transpose(0, 1)[0].mul_({n})",
    "{x}.select(-1, 0).copy_({x}.select(-1, 1))",
    "{x}[0], {x}[-1] = {x}[-1].clone(), {x}[0].clone()", "{x}.addcmul_({y}, {y}, value=0.1)",
    "{x}.fill_diagonal_({n})", "{x}.zero_()", "{x}.lerp_({y}, 0.5)", "{x}.view(-1)[::2] -= {n}",
    "{x}.index_fill_(0, torch.tensor([1]), {n})", "{x}.diagonal().add_({n})",
    "{x}.unsqueeze(0).add_({y})", "{x}.neg_()",
    "{x}.index_copy_(0, torch.tensor([1, 0]), {x}[:2] * 2)", "{x}.clamp_min_({n})",
    "{x}.exp_().reciprocal_()", "{x}.fill_({n})", "{x}.round_()",
)  # fmt: skip
MASKS = (
    "{} > {n}",
    "{}.abs() < {n}",
    "{} >= {y}",
    "({} > 0) & ({} < {n})",
    "~({} > 0)",
    "{}.isfinite()",
    "{}.ge({n}).any(-1)",
    "({} > 0).all(0)",
    "torch.isclose({}, {y})",
    "{}.to(torch.bool)",
    "torch.arange({}.shape[-1]) < {n} * 2",
    "({} > 0) ^ ({} > {n})",
    "{} != {y}",
    "torch.signbit({})",
    "torch.ones({0}.shape[-1], {0}.shape[-1], dtype=torch.bool).tril()",
    "({} > {n}).logical_not()",
)
COUNTS = (
    "({} * 2).long()",
    "{}.argsort({a})",
    "({} > 0).sum({a})",
    "torch.arange({}.shape[{a}])",
    "({} > {n}).long().cumsum({a})",
    "{}.floor().to(torch.int32)",
    "torch.count_nonzero({}, {a})",
    "({} > 0).int().argmax({a})",
    "{}.topk(2, {a}).indices",
    "torch.bucketize({}, torch.tensor([-0.5, 0.0, 0.7], dtype=S))",
)
FROM_COUNTS = (
    "{i} + 1", "{i} * 3 - 2", "{i} // 2", "{i} % 3", "{i}.float().to(S)", "{i}.to(S) * {n}",
    "{i}.clamp(0, 1)", "-{i}", "{i}.flip(0)", "{i} & 1", "{i} << 1", "{i}.sum(0)", "{i}.cumsum(-1)",
    "{i}.unsqueeze(0)", "F.one_hot({i} % 4, 4)", "F.one_hot({i} % 3, 3).to(S)", "{i} == 1",
    "{i}.amax(-1)", "{i}.abs().to(S).sqrt()", "{i} / 3", "torch.bitwise_xor({i}, 5)",
    "{i}.remainder(3)", "{i} >> 1", "torch.gcd({i}, torch.tensor(6))", "{i} ** 2",
)  # fmt: skip
GATHERS = (
    "{x}[{i} % {x}.shape[0]]",
    "{x}[:, {i} % {x}.shape[1]]",
    "{x}.index_select({a}, {i} % {x}.shape[{a}])",
    "{x}.gather({a}, ({i} % {x}.shape[{a}]))",
    "torch.take_along_dim({x}, {i} % {x}.shape[{a}], {a})",
    "{x}.index_add(0, {i} % {x}.shape[0], {x}[: {i}.shape[0]])",
    "{x}[..., {i} % {x}.shape[-1]]",
    "{x}.scatter_add({a}, {i} % {x}.shape[{a}], torch.ones_like({x}))",
    "{x}.scatter({a}, {i} % {x}.shape[{a}], {n})",
    "{x}[{i} % 2, ..., 0]",
    "{x}.index_put(({i} % {x}.shape[0],), {x}[0], accumulate=True)",
    "torch.zeros_like({x}).index_add_(0, {i} % {x}.shape[0], {x}[{i} % {x}.shape[0]])",
    "{x}.mT[{i} % {x}.shape[-1]]",
    "{x}[{i} % 2, {i} % 2]",
    "{x}[:, None, {i} % {x}.shape[1]]",
    "{x}.take({i} % {x}.shape[0])",
    "{x}[{x}[..., 0].argsort(0)]",
    "{x}.index_reduce(0, {i} % {x}.shape[0], {x}[: {i}.shape[0]], 'amax')",
    "{x}.scatter_reduce({a}, {i} % {x}.shape[{a}], {x}, 'amax')",
)
LOSSES = (
    "F.mse_loss({}, {y})",
    "F.smooth_l1_loss({}, {y})",
    "F.huber_loss({}, {y}, reduction='none')",
    "F.l1_loss({}, {y})",
    "F.kl_div({}.log_softmax(-1), {y}.softmax(-1), reduction='sum')",
    "F.binary_cross_entropy_with_logits({}, {y}.sigmoid())",
    "F.cross_entropy({0}, {0}.argmax(1))",
    "F.cross_entropy({0}, {y}.softmax(1), label_smoothing=0.1)",
    "F.poisson_nll_loss({}.clamp(-2, 2), {y}.abs())",
    "F.nll_loss({0}.log_softmax(1), {0}[:, 0].long() * 0, reduction='none')",
    "F.cosine_similarity({}, {y}, dim=-1)",
    "F.pairwise_distance({}, {y})",
    "F.soft_margin_loss({}, {y}.sign())",
    "F.gaussian_nll_loss({}, {y}, {y}.abs() + 0.1)",
    "F.binary_cross_entropy({}.sigmoid(), {y}.sigmoid(), reduction='none')",
    "F.hinge_embedding_loss({}, {y}.sign())",
    "F.margin_ranking_loss({}, {y}, {y}.sign(), margin=0.1)",
)


def _filled(d: Drawing, form: str, x: str, kind: str = "float") -> str:
    """A form with values in its places: the first one is x, the others are like it."""
    y = d.like(x) if kind == "float" else x
    a, b = (d.axis(x), d.axis(x)) if d.rank(x) else (0, 0)
    both = (x, x if d.random.random() < 0.5 and "{} {" not in form else y)
    values = [x] * form.count("{}") if form.count("{}") > 2 else both
    return form.format(*values, a=a, b=b, n=d.number(), r=d.rank(x), y=y)


def alone(d: Drawing) -> str:
    return f"{d.new()} = {_filled(d, d.random.choice(ALONE), d.value())}"


def two(d: Drawing) -> str:
    x = d.value()
    y, form = d.like(x), d.random.choice(TWO)
    if d.random.random() < 0.5:
        x, y = y, x
    return f"{d.new()} = {form.format(x, y)}"


def numbers(d: Drawing) -> str:
    x, form = d.value(), d.random.choice(NUMBERS)
    return f"{d.new()} = {form.format(*[x] * 4, n=d.number())}"


def folds(d: Drawing) -> str:
    x, form = d.value(least=1), d.random.choice(FOLDS)
    return f"{d.new()} = {form.format(x, x, a=d.axis(x))}"


def views(d: Drawing) -> str:
    x, form = d.value(least=1), d.random.choice(VIEWS)
    return f"{d.new()} = {form.format(*[x] * 4, a=d.axis(x), b=d.axis(x), r=d.rank(x))}"


def writes(d: Drawing) -> str:
    x = d.value(least=1)
    return d.random.choice(WRITES).format(x=x, y=d.like(x), n=d.number())


def masks(d: Drawing) -> str:
    x, form = d.value(least=1), d.random.choice(MASKS)
    return f"{d.new()} = {form.format(*[x] * 3, y=d.like(x), n=d.number())}"


def masked(d: Drawing) -> str:
    x, m = d.value(), d.value("truth")
    form = d.random.choice(
        (
            "{x}.masked_fill({m}, {n})",
            "torch.where({m}, {x}, {y})",
            "{x} * {m}",
            "{x}.masked_fill(~{m}, float('-inf')).softmax(-1)",
            "{m}.to(S) * {n}",
            "{m}.sum(-1)",
            "{x}.masked_fill({m}, -1e9).softmax(0)",
            "torch.where({m}, {n}, {x})",
            "{m}.float().to(S).mean()",
            "{x} + {m}",
            "({x} * {m}).sum(-1) / ({m}.sum(-1) + 1)",
        )
    )
    return f"{d.new()} = {form.format(x=x, m=m, y=d.like(x), n=d.number())}"


def counts(d: Drawing) -> str:
    x, form = d.value(least=1), d.random.choice(COUNTS)
    return f"{d.new()} = {form.format(x, a=d.axis(x), n=d.number())}"


def from_counts(d: Drawing) -> str:
    i = d.value("whole")
    return f"{d.new()} = {d.random.choice(FROM_COUNTS).format(i=i, n=d.number())}"


def gathers(d: Drawing) -> str:
    x, i = d.value(least=1), d.value("whole")
    return f"{d.new()} = {d.random.choice(GATHERS).format(x=x, i=i, a=d.axis(x), n=d.number())}"


def losses(d: Drawing) -> str:
    x = d.value(least=1)
    return f"{d.new()} = {d.random.choice(LOSSES).format(x, x, y=d.like(x))}"


def winner(d: Drawing) -> str:
    """The position of a largest or least element, beside its value or alone."""
    x = d.value(least=1)
    a, v, i = d.axis(x), d.new(), d.new()
    d.reached[i] = (x, a)
    keep = d.random.choice(["", ", keepdim=True"])
    return d.random.choice(
        [
            f"{v}, {i} = {x}.max({a}{keep})",
            f"{i} = {x}.argmax({a}{keep})",
            f"{i} = {x}.argmin({a}{keep})",
            f"{v}, {i} = {x}.min({a}{keep})",
            f"{v}, {i} = {x}.topk(2, {a})",
            f"{v}, {i} = {x}.sort({a})",
        ]
    )


def linear(d: Drawing) -> str:
    x = d.value(least=2)
    n, out = d.static(x, -1), d.random.choice([2, 4, 5, 8])
    form = d.random.choice(
        (
            f"nn.Linear({n}, {out})",
            f"nn.Linear({n}, {out}, bias=False)",
            f"nn.Sequential(nn.Linear({n}, {out}), nn.GELU())",
            f"nn.Sequential(nn.Linear({n}, {out}), nn.LayerNorm({out}), nn.Linear({out}, {n}))",
            f"nn.Sequential(nn.Dropout(0.0), nn.Linear({n}, {out}), nn.Tanh())",
        )
    )
    return f"{d.new()} = {d.member(form)}({x})"


def products(d: Drawing) -> str:
    x = d.value(least=2)
    y = d.like(x)
    form = d.random.choice(
        (
            "{0} @ {0}.mT",
            "{0} @ {1}.mT",
            "{0}.mT @ {1}",
            "{0} @ {1}",
            "torch.einsum('...ij,...kj->...ik', {0}, {1})",
            "torch.einsum('ij,ik->jk', {0}, {1})",
            "torch.bmm({0}, {1}.mT)",
            "torch.mm({0}.T, {1})",
            "torch.addmm({0}[0], {0}, {1}.T @ {1})",
            "torch.baddbmm({0}, {0} @ {0}.mT, {1})",
            "({0} * {1}).sum(-1)",
            "torch.outer({0}[0], {1}[0])",
            "torch.einsum('bij,bij->b', {0}, {1})",
            "torch.matmul({0}, {1}[..., 0, :])",
            "torch.tensordot({0}, {1}, ([-1], [-1]))",
        )
    )
    if d.random.random() < 0.3:
        w = d.member(f"nn.Parameter(torch.randn({d.static(x, -1)}, 4))")
        return f"{d.new()} = {x} @ {w}"
    return f"{d.new()} = {form.format(x, y)}"


def convolutions(d: Drawing) -> str:
    x = d.value(least=3, most=4)
    n, rank = d.static(x, 1), d.rank(x) - 2
    g = n if d.random.random() < 0.3 else 1
    out = d.random.choice([2, 4]) * g
    w = d.random.choice([1, 2, 3])
    more = d.random.choice(
        [
            "",
            ", padding=1",
            ", stride=2",
            ", padding=1, stride=2",
            ", dilation=2",
            ", padding='same'",
        ]
    )
    kind = d.random.choice(["Conv", "Conv", "Conv", "ConvTranspose"])
    if kind == "ConvTranspose":
        more = d.random.choice(["", ", stride=2", ", padding=1, stride=2"])
    return f"{d.new()} = {d.member(f'nn.{kind}{rank}d({n}, {out}, {w}, groups={g}{more})')}({x})"


def pools(d: Drawing) -> str:
    x = d.value(least=3, most=4)
    k = d.rank(x) - 2
    form = d.random.choice(
        (
            "F.avg_pool{k}d({x}, 2)",
            "F.max_pool{k}d({x}, 2)",
            "F.adaptive_avg_pool{k}d({x}, 2)",
            "F.adaptive_max_pool{k}d({x}, 1)",
            "F.max_pool{k}d({x}, 3, 1, 1)",
            "F.avg_pool{k}d({x}, 3, 1, 1)",
            "F.interpolate({x}, scale_factor=2)",
            "F.interpolate({x}, scale_factor=2, mode='bilinear')",
            "F.pixel_shuffle({x}, 2)",
            "F.avg_pool{k}d({x}, 2, 1, count_include_pad=False)",
            "F.lp_pool{k}d({x}, 2, 2)",
            "F.unfold({x}, 2)",
            "F.channel_shuffle({x}, 2)",
            "F.pixel_unshuffle({x}, 2)",
        )
    )
    return f"{d.new()} = {form.format(x=x, k=k)}"


def norms(d: Drawing) -> str:
    x = d.value(least=2, most=4)
    last, form = (
        d.static(x, -1),
        d.random.choice(
            [
                "Layer",
                "RMS",
                "Group",
                "Batch",
                "Batch",
                "Instance",
            ]
        ),
    )
    if form in ("Layer", "RMS"):
        return f"{d.new()} = {d.member(f'nn.{form}Norm({last})')}({x})"
    n, rank = d.static(x, 1), max(1, d.rank(x) - 2)
    if form == "Group":
        return f"{d.new()} = {d.member(f'nn.GroupNorm({d.random.choice([1, n])}, {n})')}({x})"
    more = d.random.choice(["", ", affine=False", ", momentum=None"]) if form == "Batch" else ""
    return f"{d.new()} = {d.member(f'nn.{form}Norm{rank}d({n}{more})')}({x})"


def attention(d: Drawing) -> str:
    x = d.value(least=2, most=4)
    y = d.like(x)
    form = d.random.choice(
        (
            "F.scaled_dot_product_attention({x}, {x} * 0.5, {y})",
            "F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)",
            "(({x} @ {x}.mT) / {x}.shape[-1] ** 0.5).softmax(-1) @ {x}",
            (
                "({x} @ {x}.mT).masked_fill(torch.ones({x}.shape[-2]).diag() > 0, -1e9)"
                ".softmax(-1) @ {y}"
            ),
            "({x} @ {y}.mT).softmax(-1) @ {y}",
            "(({x} @ {x}.mT) - torch.arange({x}.shape[-2], dtype=S)).softmax(-1) @ {x}",
        )
    )
    return f"{d.new()} = {form.format(x=x, y=y)}"


def heads(d: Drawing) -> str:
    """Attention with heads: one product, its parts as heads, and together again."""
    x = d.value(least=3, most=3)
    n = d.static(x, -1)
    if n % 2:
        raise IndexError
    w, q, y = d.member(f"nn.Linear({n}, {3 * n})"), d.new(), d.new()
    parts = d.random.choice([f"view(*{x}.shape[:-1], 3, 2, {n // 2})", "unflatten(-1, (3, 2, -1))"])
    inner = d.random.choice(
        [
            f"F.scaled_dot_product_attention({q}[0], {q}[1], {q}[2])",
            f"({q}[0] @ {q}[1].mT).softmax(-1) @ {q}[2]",
        ]
    )
    return (
        f"{q} = {w}({x}).{parts}.permute(2, 0, 3, 1, 4)\n{y} = ({inner}).transpose(1, 2).flatten(2)"
    )


def casts(d: Drawing) -> str:
    x = d.value()
    form = d.random.choice(
        (
            "{x}.to(H).to(S)",
            "({x}.to(H) * 2).to(S)",
            "{x}.double()",
            "({x}.double() + {y}).to(S)",
            "{x}.to(dtype=H)",
            "{x}.type_as({y})",
            "{x}.to(H).sum(-1).to(S)",
            "{x}.to(S)",
            "{x}.to(H).softmax(-1)",
            "({x}.to(H) @ {x}.to(H).mT).to(S)",
            "{x}.long().to(S)",
        )
    )
    return f"{d.new()} = {form.format(x=x, y=d.like(x))}"


def autocast(d: Drawing) -> str:
    x = d.value(least=2)
    n, v, w = d.static(x, -1), d.new(), d.new()
    inner = d.member(f"nn.Linear({n}, 4)")
    second = d.random.choice(
        [
            f"F.gelu({v})",
            f"{v}.softmax(-1)",
            f"{v} @ {v}.mT",
            f"F.layer_norm({v}, (4,))",
            f"{v}.sum(0)",
            f"{v} + {x}.mean()",
        ]
    )
    return f"with torch.autocast('cpu', dtype=H):\n    {v} = {inner}({x})\n    {w} = {second}"


def buffers(d: Drawing) -> str:
    x = d.value(least=1)
    n = d.static(x, -1)
    b, v = d.buffer(f"torch.linspace(0, 1, {n})"), d.new()
    axes = f"{x}.detach().flatten(0, -2).mean(0)" if d.rank(x) > 1 else f"{x}.detach()"
    line = d.random.choice(
        [
            f"{b} += {axes}",
            f"{b}.mul_(0.9).add_({axes}, alpha=0.1)",
            f"{b}.lerp_({axes}, 0.1)",
            f"{b}.copy_({axes})",
            f"{b}[0] = {axes}[0]",
            f"{b}[:1] += {axes}[:1]",
        ]
    )
    return f"with torch.no_grad():\n    {line}\n{v} = {x} * {b}"


def tables(d: Drawing) -> str:
    i = d.value("whole", most=2)
    n = d.random.choice([3, 4])
    form = d.random.choice([f"nn.Embedding(7, {n})", f"nn.Embedding(7, {n}, padding_idx=1)"])
    return f"{d.new()} = {d.member(form)}({i} % 7)"


def branches(d: Drawing) -> str:
    """Control by sizes, numbers made of them."""
    x, v = d.value(least=1), d.new()
    return d.random.choice(
        [
            f"{v} = {x} * 2 if {x}.shape[0] > 4 else {x} + 1",
            f"{v} = {x} / {x}.shape[0]",
            f"{v} = {x} * {x}.numel() ** -0.5",
            f"{v} = {x} + torch.arange({x}.shape[-1], dtype=S)",
            f"{v} = sum({x}[k] for k in range({x}.shape[0]))",
            f"{v} = {x} * torch.linspace(0, 1, {x}.shape[-1], dtype=S)",
            f"{v} = {x}[: {x}.shape[0] // 2 + 1]",
            f"{v} = {x}[..., {x}.shape[-1] // 2 :]",
            f"{v} = torch.eye({x}.shape[-1], dtype=S) + {x}",
            f"{v} = {x}.new_ones({x}.shape[0], 2)",
            f"{v} = {x} + torch.zeros({x}.shape[-1], dtype=S).fill_(0.5)",
            f"{v} = torch.cat(({x}, torch.zeros_like({x}[:1])))",
        ]
    )


PHRASES = (
    (10, alone), (12, two), (5, numbers), (14, folds), (22, views), (10, writes), (4, masks),
    (6, masked), (4, counts), (4, from_counts), (6, gathers), (4, losses), (4, winner), (8, linear),
    (7, products), (5, convolutions), (4, pools), (7, norms), (4, attention), (3, heads),
    (3, casts), (3, autocast), (4, buffers), (2, tables), (4, branches),
)  # fmt: skip
