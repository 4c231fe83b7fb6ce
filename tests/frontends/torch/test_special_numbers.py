"""±0, ±inf, NaN, subnormal and largest numbers: exact operators have the bits of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.trust import measured

torch = pytest.importorskip("torch")

from tests.frontends.torch.eager_bits import (  # noqa: E402
    LANES,
    bits,
    compiled,
    eager,
    eager_one_by_one,
    special,
)

F = torch.nn.functional

UNARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda x, name=name: getattr(torch, name)(x)
        for name in (
            "abs",
            "neg",
            "sign",
            "ceil",
            "floor",
            "round",
            "trunc",
            "frac",
            "sqrt",
            "reciprocal",
            "square",
            "relu",
            "isnan",
            "isinf",
        )
    },
    **{
        name: lambda x, name=name: getattr(F, name)(x)
        for name in ("relu6", "hardtanh", "hardshrink", "hardsigmoid", "softsign")
    },
    "clamp 0 to 1": lambda x: x.clamp(0, 1),
    "clamp -0 to 1": lambda x: x.clamp(-0.0, 1),
    "clamp -1 to 0": lambda x: x.clamp(-1, 0),
    "clamp from 0": lambda x: x.clamp(min=0.0),
    "clamp to 0": lambda x: x.clamp(max=0.0),
    "clamped twice": lambda x: x.clamp(min=0.0).clamp(max=6.0).clamp(min=-0.0),
    "relu twice": lambda x: torch.relu(torch.relu(x)),
    "relu of the negative": lambda x: torch.relu(-x),
    "negative of relu": lambda x: -torch.relu(x),
    "threshold": lambda x: F.threshold(x, -1.0, -0.0),
    "leaky": lambda x: F.leaky_relu(x, 0.0),
    "leaky below": lambda x: F.leaky_relu(x, -0.5),
    "remainder by 1": lambda x: x % 1,
    "remainder by -1": lambda x: x % -1,
    "fmod": lambda x: torch.fmod(x, 1.5),
    "floored": lambda x: x // 2,
    "floored by -2": lambda x: x // -2.0,
    "truncated": lambda x: torch.div(x, 3.0, rounding_mode="trunc"),
    "times 0": lambda x: x * 0,
    "times -1": lambda x: x * -1,
    "plus 0": lambda x: x + 0,
    "plus -0": lambda x: x + -0.0,
    "minus 0": lambda x: x - 0,
    "from 0": lambda x: 0 - x,
    "from -0": lambda x: -0.0 - x,
    "by 0": lambda x: x / 0,
    "0 by": lambda x: 0 / x,
    "minus itself": lambda x: x - x,
    "plus its negative": lambda x: x + (-x),
    "negative difference": lambda x: -(x - 1),
    **{f"to {n}": lambda x, n=n: x**n for n in (0, 1, 2, 3, -1, -2, 0.5)},
    "addcmul": lambda x: torch.addcmul(x, x, x, value=-1),
    "lerp": lambda x: torch.lerp(x, -x, 0.3),
    "where": lambda x: torch.where(x > 0, x, -0.0),
    "sum of two": lambda x: torch.stack((x, x), 1).sum(1),
    "sum of three": lambda x: torch.stack((x, x, x), 1).sum(1),
    "running sum": lambda x: torch.stack((x, x, x), 1).cumsum(1)[:, 2],
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "maximum",
            "minimum",
            "add",
            "sub",
            "mul",
            "div",
            "copysign",
            "remainder",
            "fmod",
            "eq",
            "lt",
            "ge",
        )
    },
    "floored": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp from": lambda x, y: torch.clamp(x, min=y),
    "clamp to": lambda x, y: torch.clamp(x, max=y),
    "alpha": lambda x, y: torch.add(x, y, alpha=-2),
    "lerp": lambda x, y: torch.lerp(x, y, 0.7),
    "addcmul": lambda x, y: torch.addcmul(x, y, x, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x),
    "both orders": lambda x, y: torch.copysign(torch.maximum(x, y), torch.maximum(y, x)),
    "bounded": lambda x, y: torch.minimum(torch.maximum(x, y), y),
}
ONE_BY_ONE = {"remainder", "fmod"}
"""In vectors eager code gives NaN where the quotient overflows."""

SOME = [torch.float32, pytest.param(torch.float64, marks=pytest.mark.nightly), torch.bfloat16]


@pytest.mark.parametrize("dtype", [*SOME, pytest.param(torch.float16, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("table", [UNARY, BINARY], ids=["unary", "binary"])
def test_special_numbers_have_the_bits_of_eager_code(table: dict[str, Any], dtype: Any) -> None:
    """The length leaves a tail after whole vectors, whose bits must be the same."""
    x = special(dtype)
    n = len(x)
    operands = (x.repeat(5),) if table is UNARY else (x.repeat_interleave(n), x.repeat(n))
    assert len(operands[0]) % LANES
    items = list(table.items())
    for k in range(0, len(items), 30):
        some = dict(items[k : k + 30])
        actual = compiled(list(some.values()), operands)
        for (name, f), result in zip(some.items(), actual, strict=True):
            want = (eager_one_by_one if name in ONE_BY_ONE else eager)(f, operands)
            differs = bits(result) != bits(want)
            at = int(differs.int().argmax())
            case = [o[at].item() for o in operands]
            assert not differs.any(), f"{name} of {case}: {result[at]}, not {want[at]} ({dtype})"
    measured("results compared", len(items) * len(operands[0]))
