"""Store results in eager code's memory order where the trace has another one.

A traced value's strides decide how its result is stored, and what `as_strided` of it shows. Those
of a FakeTensor are eager code's but for a few operators whose composite form PyTorch traces; a
decomposition of our own may order its result in another way too. Such a result is copied to the
order of a value that is computed from the same operands without data:

    copysign(x, y)  ->  copysign(x, y).permute(order).clone().permute(inverse)

The copy is an index map in our graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from threading import local
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from smelt.frontends.torch.layout import memory_order

ATEN: Any = torch.ops.aten


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Roll as eager code does, which joins both parts of one dimension after another."""
    if not dims or x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format if not dims else None)
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.size(dim)
        start = (n - shift) % n
        x = torch.cat((x.narrow(dim, start, n - start), x.narrow(dim, 0, start)), dim)
    return x


def _contiguous(x: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _image(x: Any, *_: Any, **__: Any) -> Any:
    """Keep the order of an image that is stored channels last, and no other."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _unpooled(x: Any, indices: Any, size: Sequence[Any]) -> Any:
    return x.new_empty((*x.shape[:-2], *size)).contiguous(memory_format=suggest_memory_format(x))


def _padded(x: Any, padding: Sequence[Any]) -> Any:
    """Keep the order of a volume that is stored as an image with channels last."""
    sides = zip(padding[-2::-2], padding[-1::-2], strict=True)
    inner = [n + a + b for n, (a, b) in zip(x.shape[-3:], sides, strict=True)]
    return x.new_empty((*x.shape[:-3], *inner)).contiguous(memory_format=suggest_memory_format(x))


ORDERED_LIKE: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        (
            *(ATEN.copysign.Tensor, ATEN.xlogy.Tensor, ATEN.heaviside.default),
            *(ATEN.logaddexp.default, ATEN.logaddexp2.default, ATEN.special_xlog1py.default),
            *(ATEN.logical_and.default, ATEN.logical_or.default, ATEN.logical_xor.default),
        ),
        torch.add,
    ),
    **dict.fromkeys(
        (
            *(ATEN.channel_shuffle.default, ATEN.native_channel_shuffle.default),
            *(ATEN._batch_norm_with_update.default, ATEN.native_batch_norm.default),
            *(ATEN._batch_norm_with_update_functional.default,),
            *(ATEN._native_batch_norm_legit.default, ATEN._native_batch_norm_legit.no_stats),
            *(ATEN._native_batch_norm_legit_functional.default,),
            *(ATEN._native_batch_norm_legit_no_training.default,),
        ),
        _image,
    ),
    ATEN.angle.default: lambda x: _contiguous(x) if x.is_complex() else torch.empty_like(x),
    ATEN.floor_divide.default: torch.true_divide,
    ATEN.div.Tensor_mode: lambda x, y, rounding_mode: torch.true_divide(x, y),
    ATEN.roll.default: _roll,
    ATEN.ldexp.Tensor: lambda x, exponent: x * _contiguous(exponent),
    ATEN.max_unpool2d.default: _unpooled,
    ATEN.nll_loss2d_forward.default: lambda x, target, *_: _contiguous(target),
    ATEN.normal.Tensor_Tensor: lambda x, y, **_: x.new_empty(
        torch.broadcast_shapes(x.shape, y.shape)
    ),
    ATEN.pow.Scalar: lambda base, exponent: _contiguous(exponent),
    ATEN.reflection_pad3d.default: _padded,
    ATEN.replication_pad3d.default: _padded,
    ATEN.native_dropout_backward.default: lambda gradient, mask, scale: gradient * mask,
    ATEN.index_fill.int_Scalar: lambda x, *_: torch.empty_like(x),
    ATEN.index_fill.int_Tensor: lambda x, *_: torch.empty_like(x),
}
"""Operators whose FakeTensors have other strides than eager code's results, and for each a function
of the same operands whose FakeTensors have them. Of several results it describes the first."""


def ordered(op: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition of `op` whose result has eager code's memory order.

    `rule` is the decomposition without it; None for an operator that stays as it is.
    """
    like: Any = ORDERED_LIKE.get(op, op)

    @wraps(op if rule is None else rule)
    def ordered_rule(*operands: Any, **options: Any) -> Any:
        result = NotImplemented if rule is None else rule(*operands, **options)
        if result is NotImplemented and like is not op:
            result = undecomposed(op, operands, options)
        first = result[0] if isinstance(result, tuple) else result
        if not isinstance(first, torch.Tensor) or first.dim() < 2:
            return result
        first = _reordered(first, _order_of(like, operands, options, first))
        return (first, *result[1:]) if isinstance(result, tuple) else first

    return ordered_rule


_KEPT = local()
"""Operator that is traced as it is in this thread, by `undecomposed`."""


def undecomposed(op: Any, operands: Any, options: Any) -> Any:
    """Call an operator so that the trace keeps it; NotImplemented from within that call."""
    if getattr(_KEPT, "op", None) is op:
        return NotImplemented
    _KEPT.op = op
    try:
        return op(*operands, **options)
    finally:
        _KEPT.op = None


def _order_of(like: Callable[..., Any], operands: Any, options: Any, result: Any) -> Any:
    """Return the order in memory of a value that is not part of the trace.

    None if it is that of `result`, or PyTorch cannot compute it without data.
    """
    with disable_proxy_modes_tracing():
        try:
            model = like(*operands, **options)
        except Exception:  # noqa: BLE001 - operators of any library: the order stays as traced
            return None
        if not isinstance(model, torch.Tensor) or result.shape != model.shape:
            return None
        order = memory_order(model)
        return None if order == memory_order(result) else order


def _reordered(result: Any, order: list[int] | None) -> Any:
    """Copy a result to an order in memory; None leaves it as it is."""
    if order is None:
        return result
    inverse = [order.index(a) for a in range(len(order))]
    copy = result.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute(inverse)
