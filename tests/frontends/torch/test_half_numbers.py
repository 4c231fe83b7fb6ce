"""Half types with numbers and 0-d tensors: every row that takes one, by bits, against eager code.

What eager code's loops on a CPU convert to float32, and what they round to a half type first:

    * /                     the second operand is float32 if it is a number or has one element
    // div(rounding_mode=)  the same; of two tensors, each step of a floored quotient is rounded
    addcmul addcdiv lerp    a factor or weight that is a number is float32; x*y + z is one fma
    ** 3, -1, -2, ±0.5      products, reciprocals, roots, each rounded; a power in float16
    all others              everything is rounded, then computed in float32 and rounded once
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.trust import measured

torch = pytest.importorskip("torch")

from tests.frontends.torch.eager_bits import (  # noqa: E402
    bits,
    compiled,
    eager,
    eager_one_by_one,
    patterns,
)

F = torch.nn.functional
Case = Callable[[Any, Any, Any], Any]

EITHER: dict[str, Case] = {
    "add": lambda t, u, s: t + s,
    "radd": lambda t, u, s: s + t,
    "sub": lambda t, u, s: t - s,
    "rsub": lambda t, u, s: s - t,
    "add_alpha": lambda t, u, s: torch.add(t, s, alpha=0.7),
    "sub_alpha": lambda t, u, s: torch.sub(t, s, alpha=0.7),
    "rsub_alpha": lambda t, u, s: torch.rsub(t, s, alpha=0.7),
    "mul": lambda t, u, s: t * s,
    "rmul": lambda t, u, s: s * t,
    "div": lambda t, u, s: t / s,
    "rdiv": lambda t, u, s: s / t,
    "floor": lambda t, u, s: torch.div(t, s, rounding_mode="floor"),
    "trunc": lambda t, u, s: torch.div(t, s, rounding_mode="trunc"),
    "floordiv": lambda t, u, s: t // s,
    "rfloordiv": lambda t, u, s: s // t,
    "remainder": lambda t, u, s: t % s,
    "fmod": lambda t, u, s: t.fmod(s),
    "pow": lambda t, u, s: t**s,
    "lerp": torch.lerp,
    "min": lambda t, u, s: t.clamp(min=s),
    "max": lambda t, u, s: t.clamp(max=s),
    "where": lambda t, u, s: torch.where(t > 1, t, s),
    "rwhere": lambda t, u, s: torch.where(t > 1, s, t),
    "masked_fill": lambda t, u, s: t.masked_fill(t > 1, s),
    "lt": lambda t, u, s: t < s,
    "ge": lambda t, u, s: t >= s,
    "eq": lambda t, u, s: t == s,
    "xlogy": lambda t, u, s: torch.xlogy(t, s),
    "add_": lambda t, u, s: t.clone().add_(s),
    "sub_": lambda t, u, s: t.clone().sub_(s),
    "mul_": lambda t, u, s: t.clone().mul_(s),
    "div_": lambda t, u, s: t.clone().div_(s),
    "floordiv_": lambda t, u, s: t.clone().floor_divide_(s),
    "pow_": lambda t, u, s: t.clone().pow_(s),
    "foreach_add": lambda t, u, s: torch._foreach_add([t, u], s)[0],
    "foreach_mul": lambda t, u, s: torch._foreach_mul([t, u], s)[0],
    "foreach_div": lambda t, u, s: torch._foreach_div([t, u], s)[0],
    "foreach_mul_list": lambda t, u, s: torch._foreach_mul([t], [s])[0],
    "foreach_add_list": lambda t, u, s: torch._foreach_add([t], [s])[0],
}
"""Cases of a number or a 0-d tensor."""
NUMBER: dict[str, Case] = {
    "alpha": lambda t, u, s: torch.add(t, u, alpha=s),
    "minus_alpha": lambda t, u, s: torch.sub(t, u, alpha=s),
    "reversed_alpha": lambda t, u, s: torch.rsub(t, u, alpha=s),
    "alpha_": lambda t, u, s: t.clone().add_(u, alpha=s),
    "addcmul": lambda t, u, s: torch.addcmul(t, u, t, value=s),
    "addcdiv": lambda t, u, s: torch.addcdiv(t, u, t, value=s),
    "addcmul_": lambda t, u, s: t.clone().addcmul_(u, t, value=s),
    "addcdiv_": lambda t, u, s: t.clone().addcdiv_(u, t, value=s),
    "lerp_": lambda t, u, s: t.clone().lerp_(u, s),
    "rpow": lambda t, u, s: abs(s) ** t,
    "clamp": lambda t, u, s: t.clamp(-0.3, s),
    "clamp_": lambda t, u, s: t.clone().clamp_(-0.3, s),
    "hardtanh": lambda t, u, s: F.hardtanh(t, -abs(s), abs(s)),
    "leaky_relu": lambda t, u, s: F.leaky_relu(t, s),
    "elu": lambda t, u, s: F.elu(t, s),
    "softplus": lambda t, u, s: F.softplus(t, s, 3.7),
    "threshold": lambda t, u, s: F.threshold(t, s, 0.123),
    "hardshrink": lambda t, u, s: F.hardshrink(t, s),
    "logit": lambda t, u, s: torch.logit(t, abs(s) % 0.5),
    "foreach_alpha": lambda t, u, s: torch._foreach_add([t, u], [u, t], alpha=s)[0],
    "foreach_addcmul": lambda t, u, s: torch._foreach_addcmul([t], [u], [t], value=s)[0],
    "foreach_addcdiv": lambda t, u, s: torch._foreach_addcdiv([t], [u], [t], value=s)[0],
    "foreach_lerp": lambda t, u, s: torch._foreach_lerp([t], [u], s)[0],
    "foreach_pow": lambda t, u, s: torch._foreach_pow([t], s)[0],
    "foreach_min": lambda t, u, s: torch._foreach_clamp_min([t], s)[0],
}
"""Cases of a number alone."""
TENSOR: dict[str, Case] = {
    "floor_tensors": lambda t, u, s: torch.div(t, u, rounding_mode="floor"),
    "trunc_tensors": lambda t, u, s: torch.div(t, u, rounding_mode="trunc"),
    "rfloor": lambda t, u, s: torch.div(s, t, rounding_mode="floor"),
    "rremainder": lambda t, u, s: s % t,
    "rfmod": lambda t, u, s: torch.fmod(s, t),
    "rpow": lambda t, u, s: s.abs() ** t,
    "maximum": lambda t, u, s: torch.maximum(t, s),
    "minimum": lambda t, u, s: torch.minimum(s, t),
    "clamp_tensors": lambda t, u, s: torch.clamp(t, u, t),
    "lerp_tensors": lambda t, u, s: torch.lerp(t, u, t),
    "addcmul": torch.addcmul,
    "addcmul_first": lambda t, u, s: torch.addcmul(t, s, u, value=0.7),
    "addcmul_start": lambda t, u, s: torch.addcmul(s, t, u),
    "addcdiv": torch.addcdiv,
    "copysign": lambda t, u, s: torch.copysign(t, s),
    "reversed_copysign": lambda t, u, s: torch.copysign(s, t),
    "foreach_alpha": lambda t, u, s: torch._foreach_add([t], s, alpha=0.7)[0],
}
"""Cases of tensors."""
CASES = {
    **{("number", name): f for name, f in (EITHER | NUMBER).items()},
    **{("tensor", name): f for name, f in (EITHER | TENSOR).items()},
}
NUMBERS = (0.1, 0.3, 1 / 3, 3.0, 257.0, -2.5, 1e-9, -0.0, 2, -1, -2, 0.5, -0.5)
ZERO_D = (0.1, 65536.0, 1e6, -2.5, 0.01, 2.0**-25, 1e-9)

APPROXIMATE = {"pow", "pow_", "rpow", "elu", "softplus", "foreach_pow", "xlogy", "logit"}
"""Functions that both approximate: some results round to the neighbour."""
MAX_APPROXIMATED = 2e-3
"""Maximum share of results that may."""
REMAINDERS = {"remainder", "fmod", "rremainder", "rfmod"}
"""Eager code's vector loops give NaN where the quotient overflows; its other loops do not."""


def check(kind: str, names: list[str], dtype: Any, s: float, count: int) -> int:
    """Compare cases by bits; returns how many results were compared."""
    t, u = patterns(dtype, count, 1), patterns(dtype, count, 2)
    operands = (t, u, torch.tensor(s)) if kind == "tensor" else (t, u)
    chosen: dict[str, Any] = {}
    expected: list[Any] = []
    for name in names:
        f = CASES[kind, name]
        f = f if kind == "tensor" else lambda t, u, f=f: f(t, u, s)
        loop = eager_one_by_one if name in REMAINDERS else eager
        if (kind, name) == ("number", "addcdiv"):  # traced as three operators
            f_eager = torch.compile(f, backend="eager")
        else:
            f_eager = f
        try:
            expected.append(loop(f_eager, operands))
        except RuntimeError:  # a number that the type lacks
            continue
        chosen[name] = f
    actual = compiled(list(chosen.values()), operands)
    for name, want, result in zip(chosen, expected, actual, strict=True):
        assert (result.dtype, result.shape) == (want.dtype, want.shape), name
        differs = bits(result) != bits(want)
        if name in APPROXIMATE:
            near = (bits(result) - bits(want)).abs() <= 1
            assert near.all() and differs.float().mean() <= MAX_APPROXIMATED, (name, dtype, s)
            continue
        at = int(differs.int().argmax())
        message = f"{name} of {t[at].item()}, {u[at].item()}, {s}: {result[at]}, not {want[at]}"
        assert not differs.any(), f"{message} ({dtype}, {kind}, {int(differs.sum())} differ)"
    return count * len(chosen)


def _drawn(kind: str, name: str) -> tuple[Any, float]:
    """Draw the type and the number of a case by its name."""
    seed = zlib.crc32(f"{kind} {name}".encode())
    numbers = NUMBERS if kind == "number" else ZERO_D
    return (torch.float16, torch.bfloat16)[seed % 2], numbers[seed // 2 % 5]


GROUPS = sorted({(kind, *_drawn(kind, name)) for kind, name in CASES}, key=str)


@pytest.mark.parametrize(("kind", "dtype", "s"), GROUPS)
def test_numbers_have_the_bits_of_eager_code(kind: str, dtype: Any, s: float) -> None:
    """Each case with one number, on a length that leaves a tail."""
    names = [n for k, n in CASES if k == kind and _drawn(k, n) == (dtype, s)]
    measured("results compared", check(kind, names, dtype, s, 4096 + 13))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "s"), [*(("number", s) for s in NUMBERS), *(("tensor", s) for s in ZERO_D)]
)
def test_all_numbers_have_the_bits_of_eager_code(kind: str, s: float, dtype: Any) -> None:
    names = [n for k, n in CASES if k == kind]
    for k in range(0, len(names), 16):
        check(kind, names[k : k + 16], dtype, s, 1 << 16)


def test_a_loss_scale_of_its_own_type_is_not_rounded() -> None:
    t = torch.full((4,), 0.01).half()
    (actual,) = compiled([lambda t, s: t * s], (t, torch.tensor(65536.0)))
    assert math.isclose(actual[0].item(), 655.5)
