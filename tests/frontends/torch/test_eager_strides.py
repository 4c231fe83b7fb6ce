"""Code that looks at strides sees eager code's, of results and intermediates."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.statement_templates import ALONE, FOLDS, TWO, VIEWS  # noqa: E402
from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.frontends.torch.layout import ORDERED_LIKE  # noqa: E402
from smelt.frontends.torch.table import decompositions  # noqa: E402

F = torch.nn.functional
ROOM = (
    "{}.roll(-1, 0)", "{}.roll((1, -1), (0, 2))", "{}.roll(3)", "torch.copysign({}, {y})",
    "torch.copysign({}, torch.tensor(-1.0))", "torch.floor_divide({}, {y})",
    "torch.floor_divide({}, torch.tensor(2.0))", "torch.div({}, {y}, rounding_mode='floor')",
    "torch.div({}, {y}[0], rounding_mode='trunc')", "torch.complex({}, {y})",
    "torch.xlogy({}, {y})",
    "torch.special.xlog1py({}, {y})",
    "{}.index_fill(1, torch.tensor([0]), 1.0)",
    "torch.complex({}, {y}[0])", "torch.complex({}, {y}).roll(1, 0)",
    "F.max_pool2d({}, 2, 1)", "F.interpolate({}, scale_factor=2)", "F.group_norm({}, 1)",
    "F.conv2d({}, torch.ones(2, 4, 1, 1))", "F.instance_norm({})",
    "torch.ldexp({}[:, :1], x[0])", "torch.logaddexp({}[:, :1], x[0])",
    "torch.logaddexp2({}[:, :1], x[0])", "torch.logical_and({}[:, :1], x[0])",
    "torch.logical_or({}[:, :1], x[0])", "torch.logical_xor({}[:, :1], x[0])",
    "torch.heaviside({}[:, :1], x[0])", "torch.pow(2.0, {})", "2 ** {}",
    "F.channel_shuffle({}, 2)", "F.batch_norm({}, None, None, training=True)",
    "F.batch_norm({}, torch.zeros(4), torch.ones(4))",
    "F.batch_norm({}[..., 0], torch.zeros(4), torch.ones(4), training=True)",
    "F.pad({}, (1, 1, 1, 1, 1, 1), mode='reflect')",
    "F.pad({}, (1, 1, 1, 0, 0, 1), mode='replicate')",
    "F.max_unpool2d(*F.max_pool2d({}, 2, return_indices=True), 2)",
    "F.nll_loss({}, ({}[:, 0] > 2).long(), reduction='none')", "torch.normal({}, {}.abs())",
)  # fmt: skip
"""Phrases whose order in memory is not an elementwise operator's."""
LAYOUTS = {
    "reversed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand_as(x),
    "sliced": lambda x: torch.stack((x, x), -1)[..., 0],
    "sliced channels last": lambda x: torch.cat((x, x), 2).contiguous(
        memory_format=torch.channels_last
    )[:, :, ::2],
}


def phrases():
    """A sample of what programs may do, each with an operand whose order is eager's to keep."""
    blanks = {"a": 1, "b": 2, "n": 0.5, "r": 4, "y": "y"}
    for text in (*ALONE[::6], *TWO[::4], *FOLDS[::6], *VIEWS[::5], *ROOM):
        for second in ("x", "y") if text in TWO else ("x",):
            names = iter(("x", second))
            blank = text.replace("{}", "\0")
            while "\0" in blank:
                blank = blank.replace("\0", next(names, "x"), 1)
            for key, value in {"0": "x", "1": second, **blanks}.items():
                blank = blank.replace(f"{{{key}}}", str(value))
            yield blank.replace("dtype=S", "dtype=torch.float32")


def moving_strides(x):
    """The strides along dimensions of more than one element."""
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1] if x.numel() else []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_traced_strides_are_eager_codes(layout):
    x = LAYOUTS[layout](torch.rand(3, 4, 5, 6))
    compared, wrong = 0, []
    for text in dict.fromkeys(phrases()):
        for y in (torch.rand(3, 4, 5, 6), torch.rand(4, 5, 6)):
            f = eval(f"lambda x, y: {text}", {"torch": torch, "F": F})
            try:
                expected = f(x, y)
            except (RuntimeError, TypeError, IndexError):
                continue
            traced = make_fx(
                functionalize(f), decomposition_table=decompositions(), tracing_mode="fake"
            )(x, y)
            (output,) = traced.graph.find_nodes(op="output")
            result = output.args[0].meta["val"]
            compared += 1
            if moving_strides(result) != moving_strides(expected):
                wrong.append(f"{text}: {result.stride()}, eager {expected.stride()}")
            if "y" not in text:
                break
    assert not wrong, "\n".join(wrong)
    assert compared > 45


def test_views_of_memory_see_eager_codes_order(strict):
    def every(x, y):
        return (
            torch.as_strided(torch.roll(x, -1, 0), (5, 10), (4, 1), 0),
            torch.as_strided(torch.copysign(x, y), (5, 10), (4, 1), 3),
            torch.as_strided(torch.floor_divide(x, y), (7,), (2,)),
            torch.div(x, y, rounding_mode="floor"),
            torch.roll(x, (1, 2), (1, 3)),
        )

    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    y = torch.rand(5) + 1
    with torch.no_grad():
        result = torch.compile(every, backend="smelt")(x, y)
    for one, other in zip(result, every(x, y), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


def operands_of_orders():
    aten, image = torch.ops.aten, torch.rand(3, 4, 6, 5).permute(3, 1, 0, 2)
    last = image.contiguous(memory_format=torch.channels_last)
    numbers = (torch.ones(4), torch.zeros(4))
    pooled = F.max_pool2d(last, 1, return_indices=True)
    volume = last.unsqueeze(0)[0]
    return {
        aten.angle.default: [(image,), (torch.complex(image, image),)],
        aten.roll.default: [(torch.rand(3, 4, 5), [1], [2])],
        aten.channel_shuffle.default: [(image, 2), (last, 2)],
        aten.native_channel_shuffle.default: [(image, 2), (last, 2)],
        aten.max_unpool2d.default: [(*pooled, [3, 6])],
        aten.native_batch_norm.default: [
            (x, *numbers, *numbers, True, 0.1, 1e-5) for x in (image, last, image[..., 0])
        ],
        aten.normal.Tensor_Tensor: [(image, last.abs())],
        aten.pow.Scalar: [(2.0, image), (2.0, last)],
        aten.nll_loss2d_forward.default: [(image, image[:, 0].long(), None, 0, -100)],
        aten.reflection_pad3d.default: [(volume, [1, 1, 1, 0, 0, 1])],
        aten.replication_pad3d.default: [(volume, [1, 1, 1, 0, 0, 1])],
    }


def test_every_model_of_an_order_computes_the_operators_shape():
    x, y = torch.rand(3, 4, 5) + 1, torch.rand(4, 5) + 1
    more = operands_of_orders()
    for op, like in ORDERED_LIKE.items():
        # Operands for these are long, or PyTorch has no kernel for them outside of a trace.
        if any(part in str(op) for part in ("dropout", "index_fill", "_batch_norm_")):
            continue
        options = {"rounding_mode": "floor"} if op is torch.ops.aten.div.Tensor_mode else {}
        for operands in more.get(op, [(x.permute(2, 1, 0), y.T[..., None].permute(0, 1, 2))]):
            actual = op(*operands, **options)
            actual = actual[0] if isinstance(actual, tuple) else actual
            assert like(*operands, **options).stride() == actual.stride(), op
            assert like(*operands, **options).shape == actual.shape, op


def test_one_hot_has_the_tracers_order(strict):
    """A limit: PyTorch spells it as a comparison, whose operand's order it keeps."""
    x = torch.randint(0, 10, (3, 4, 5)).permute(2, 1, 0)
    actual = torch.compile(F.one_hot, backend="smelt")(x, 10)
    assert torch.equal(actual, F.one_hot(x, 10))
    assert actual.stride() != F.one_hot(x, 10).stride()


# ---- every operator -----------------------------------------------------------------------------


def permuted(x, order):
    inverse = [order.index(a) for a in range(x.dim())]
    return x.permute(order).contiguous().permute(inverse)


OF_ANY_RANK = {
    "reversed": lambda x: permuted(x, list(range(x.dim()))[::-1]),
    "channels last": lambda x: permuted(x, [0, *range(2, x.dim()), 1]),
    "expanded": lambda x: x[:1].expand_as(x),
    "sliced": lambda x: torch.stack((x, x), -1)[..., 0],
}
ALIASED = {"cauchy", "exponential", "geometric", "log_normal", "normal", "resize_as_", "resize_"}
"""Operators in place, whose results AOTAutograd copies into their operands, which this does not."""
TRACERS = {"nn.functional.one_hot"}


def copied(x):
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def compared_strides(op, sample, layout):
    """Pairs of strides along dimensions of more than one element: of the trace and eager code's;
    None for a sample that either refuses."""
    tree = torch.utils._pytree
    leaves, nest = tree.tree_flatten((sample.input, sample.args, sample.kwargs))
    operands = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in operands):
        return None
    tensors = [layout(x) if x.dim() > 1 and x.numel() else x for x in operands]

    def call(*operands):
        rest = iter(operands)
        filled = [next(rest) if isinstance(x, torch.Tensor) else x for x in leaves]
        x, arguments, options = tree.tree_unflatten(filled, nest)
        results = tree.tree_leaves(op.op(x, *arguments, **options))
        return [y for y in results if isinstance(y, torch.Tensor)]

    def copies():
        return [t if 0 in t.stride() else copied(t) for t in tensors]

    try:
        expected = call(*copies())
        if any(y.layout is not torch.strided for y in expected):
            return None
        trace = make_fx(
            functionalize(call), decomposition_table=decompositions(), tracing_mode="fake"
        )(*copies())
    except Exception:  # noqa: BLE001 - refused, or nothing that torch can trace
        return None
    (output,) = trace.graph.find_nodes(op="output")
    actual = [x.meta["val"] for x in output.args[0]]
    return [
        (moving_strides(a), moving_strides(b))
        for a, b in zip(actual, expected, strict=True)
        if all(type(n) is int for n in a.shape)
    ]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_every_operators_strides_are_eager_codes(part):
    pytest.importorskip("expecttest")
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    wrong, compared = [], 0
    for op in methods.op_db[part::8]:
        if op.name in ALIASED | TRACERS or torch.float32 not in op.dtypes:
            continue
        samples = [s for s in op.sample_inputs("cpu", torch.float32) if moving_rank(s) > 1]
        samples.sort(key=moving_rank, reverse=True)
        for name, layout in OF_ANY_RANK.items():
            for sample in samples[:4]:
                pairs = compared_strides(op, sample, layout)
                compared += pairs is not None
                wrong += [f"{op.name} {name}: {a}, eager {b}" for a, b in pairs or () if a != b]
    assert not wrong, "\n".join(wrong)
    assert compared > 400


def moving_rank(sample):
    """The most dimensions of more than one element that an operand has."""
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return max((sum(n > 1 for n in x.shape) for x in tensors), default=0)
