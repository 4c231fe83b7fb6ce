"""Split complex tensors into parts, and check the layouts of rules on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
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
    """Stack two parts, which broadcast, to complex numbers; None stands for zeros.

    The second one may be a number.
    """
    b = b if isinstance(b, torch.Tensor) else torch.full_like(a, b or 0.0)
    parts = (a, b) if a.shape == b.shape else torch.broadcast_tensors(a, b)
    return as_complex(torch.stack(parts, -1))


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


def complex_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to complex operands of one type and reals of the matching type.

    Its result is given eager code's order in memory by `ordered`.
    """

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if not are_supported(*operands, *options.values()) or not all(x.dim() for x in tensors):
            return NotImplemented
        return rule(*operands, **options)

    return checked
