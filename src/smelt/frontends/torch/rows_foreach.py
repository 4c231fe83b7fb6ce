"""Lower `_foreach_` operators on lists of tensors, as optimisers use them.

Each tensor follows the rule of the single-tensor operator. All results of a list are values of one
graph: a step over all parameters is planned at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row

_LISTS: Mapping[str, str] = {
    "abs.default": "abs.default", "neg.default": "neg.default", "sqrt.default": "sqrt.default",
    "rsqrt.default": "rsqrt.default", "reciprocal.default": "reciprocal.default",
    "exp.default": "exp.default", "log.default": "log.default", "sign.default": "sign.default",
    "sigmoid.default": "sigmoid.default", "tanh.default": "tanh.default",
    **{f"{name}.{kind}": f"{name}.Tensor" for name in ("add", "mul", "div")
       for kind in ("List", "Scalar", "ScalarList", "Tensor")},
    **{f"{name}.{kind}": f"{name}.default" for name in ("addcmul", "addcdiv")
       for kind in ("Scalar", "ScalarList")},
    "sub.List": "sub.Tensor", "sub.Scalar": "sub.Tensor", "sub.ScalarList": "sub.Tensor",
    "lerp.Scalar": "lerp.Scalar", "lerp.List": "lerp.Tensor", "lerp.ScalarList": "lerp.Scalar",
    "pow.Scalar": "pow.Tensor_Scalar", "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.List": "pow.Tensor_Tensor", "pow.ScalarAndTensor": "pow.Scalar",
    "maximum.List": "maximum.default", "minimum.List": "minimum.default",
    "norm.Scalar": "linalg_vector_norm.default", "clamp_min.Scalar": "clamp_min.default",
    "clamp_max.Scalar": "clamp_max.default",
}  # fmt: skip
"""Overload of `_foreach_...` -> the overload whose rule each tensor of the list follows."""


def _each(rule: Callable[..., Any], values: bool) -> Callable[..., tuple[Any, ...]]:
    """Apply `rule` at every position of the lists.

    With `values` a third list is a factor.
    """

    def lower(c: Call, *args: Any, **options: Any) -> tuple[Any, ...]:
        count = len(c.out)
        results: list[Any] = []
        for k in range(count):
            operands = [_item_at(a, k, count) for a in args]
            fakes = [_item_at(f, k, count) for f in c.fakes]
            more = dict(options)
            if values and len(operands) > 3:
                more["value"] = operands.pop()
            one = Call(c.out[k], fakes, c.sizes, c.origin)
            results.append(rule(one, *operands, **more))
        return tuple(results)

    return lower


def _item_at(a: Any, k: int, count: int) -> Any:
    if not isinstance(a, (list, tuple)):
        return a
    if len(a) != count:
        raise UnsupportedError("lists of different lengths")
    return a[k]


def rows(table: Mapping[str, Row]) -> tuple[Row, ...]:
    """Return a row for each list operator, by the rules of `table`."""
    return tuple(
        Row(f"aten._foreach_{name}", _each(table[f"aten.{one}"].lower, one.startswith("addc")))
        for name, one in _LISTS.items()
    )
