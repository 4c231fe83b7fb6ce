"""Code that looks at strides sees eager code's, of results and intermediates."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.statement_templates import ALONE, FOLDS, TWO, VIEWS  # noqa: E402
from torch.func import functionalize  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from smelt.frontends.torch.eager_strides import ORDERED_LIKE  # noqa: E402
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
)  # fmt: skip
"""Phrases whose order in memory is no elementwise operator's."""
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


def test_every_model_of_an_order_computes_the_operators_shape():
    x, y = torch.rand(3, 4, 5) + 1, torch.rand(4, 5) + 1
    more = {torch.ops.aten.roll.default: (x, [1], [2])}
    for op, like in ORDERED_LIKE.items():
        if "dropout" in str(op) or "index_fill" in str(op):
            continue
        options = {"rounding_mode": "floor"} if op is torch.ops.aten.div.Tensor_mode else {}
        operands = more.get(op, (x.permute(2, 1, 0), y.T[..., None].permute(0, 1, 2)))
        assert like(*operands, **options).stride() == op(*operands, **options).stride(), op
