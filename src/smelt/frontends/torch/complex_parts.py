"""Split complex tensors into parts, and check the layouts of rules on them."""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

ATEN: Any = torch.ops.aten


COMPLEX_DTYPES = (torch.complex64, torch.complex128)


def is_complex(x: Any) -> bool:
    """Whether it is a complex tensor."""
    return isinstance(x, torch.Tensor) and x.is_complex()


def parts_of(x: Any) -> tuple[Any, Any]:
    """Return real and imaginary part of a tensor or number.

    None for an imaginary part of zero.
    """
    if isinstance(x, complex):
        return x.real, x.imag
    if not is_complex(x):
        return x, None
    pair = ATEN.view_as_real.default(ATEN._conj.default(x) if x.is_conj() else x)
    a, b = ATEN.select.int(pair, -1, 0), ATEN.select.int(pair, -1, 1)
    return a, -b if x.is_conj() else b


def as_real_pairs(x: Any) -> Any:
    """View both parts as an innermost dimension of 2; a lazy conjugate is materialized."""
    return torch.stack(parts_of(x), -1) if x.is_conj() else ATEN.view_as_real.default(x)


def as_complex(pair: Any) -> Any:
    """View pairs of reals as complex numbers."""
    return ATEN.view_as_complex.default(pair)


def from_parts(a: Any, b: Any) -> Any:
    """Stack two parts to complex numbers; None stands for zeros."""
    return as_complex(torch.stack((a, torch.zeros_like(a) if b is None else b), -1))


def has_data_dependent_size(x: Any) -> bool:
    """Whether a size of the tensor depends on data.

    Its strides are then not known in advance.
    """
    return any(isinstance(n, torch.SymInt) and free_unbacked_symbols(n) for n in x.shape)


def are_supported(*operands: Any) -> bool:
    """Whether operands have one supported complex type, and reals the matching real type."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    kinds = {x.dtype for x in tensors if x.is_complex()}
    if not kinds and any(isinstance(x, complex) for x in operands):
        kinds = {x.dtype.to_complex() for x in tensors if x.dtype.is_floating_point}
    if len(kinds) != 1 or any(x.is_neg() or has_data_dependent_size(x) for x in tensors):
        return False
    (kind,) = kinds
    return kind in COMPLEX_DTYPES and all(x.dtype in (kind, kind.to_real()) for x in tensors)


def stride_order(x: Any) -> list[int]:
    """Return the dimensions from slowest to fastest.

    Dimensions of one element or stride 0 keep their position.
    """
    steps = x.stride()
    strided = [a for a in range(x.dim()) if x.shape[a] != 1 and steps[a] != 0]
    if all(steps[a] >= steps[b] for a, b in pairwise(strided)):
        return list(range(x.dim()))
    by_stride = iter(sorted(strided, key=lambda a: -steps[a]))
    return [next(by_stride) if a in strided else a for a in range(x.dim())]


def _leader(tensors: Sequence[Any]) -> Any | None:
    """Return the tensor that has the broadcast shape and repeats nothing, if there is one."""
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    return next((x for x in tensors if x.shape == shape and 0 not in x.stride()), None)


def _aligned(x: Any, rank: int) -> Any:
    """Return a tensor with leading dimensions added up to `rank`."""
    return x[(None,) * (rank - x.dim())] if isinstance(x, torch.Tensor) and x.dim() < rank else x


def elementwise_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a rule to operands permuted to memory order, and permute its result back.

    Eager code's results have the memory order of their operands.
    """

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if not are_supported(*operands, *options.values()) or any(not x.dim() for x in tensors):
            return NotImplemented
        orders = [stride_order(x) for x in tensors]
        identities = [list(range(x.dim())) for x in tensors]
        if orders == identities:
            return rule(*operands, **options)
        order = orders[0]
        if any(
            o != order or x.shape != tensors[0].shape for o, x in zip(orders, tensors, strict=True)
        ):
            leader = _leader(tensors)
            if leader is None:
                return NotImplemented
            order = stride_order(leader)
            operands = tuple(_aligned(x, leader.dim()) for x in operands)
            if any(
                stride_order(x.permute(order)) != list(range(x.dim()))
                for x in operands
                if isinstance(x, torch.Tensor)
            ):
                return NotImplemented
        permuted = (x.permute(order) if isinstance(x, torch.Tensor) else x for x in operands)
        result = rule(*permuted, **options)
        if result is NotImplemented:
            return result
        return result.permute([order.index(a) for a in range(len(order))])

    return checked


def same_type_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to complex tensors of one type."""

    @wraps(rule)
    def checked(x: Any, *operands: Any, **options: Any) -> Any:
        flat = [*operands, *options.values()]
        if not is_complex(x) or not are_supported(x, *flat):
            return NotImplemented
        if any(
            isinstance(y, complex) or (isinstance(y, torch.Tensor) and y.dtype != x.dtype)
            for y in flat
        ):
            return NotImplemented
        return rule(x, *operands, **options)

    return checked


def axis_order_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to tensors stored in the order of their axes."""

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        flat = [y for x in operands for y in (x if isinstance(x, (list, tuple)) else (x,))]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        kinds = [x for x in tensors if x.is_complex()]
        if not kinds or not are_supported(*kinds) or any(x.is_neg() for x in tensors):
            return NotImplemented
        permuted = any(stride_order(x) != list(range(x.dim())) or not x.dim() for x in tensors)
        return NotImplemented if permuted else rule(*operands, **options)

    return checked
