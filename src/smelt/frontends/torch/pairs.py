"""Complex numbers as pairs of real ones, for the operators that compute element by element.

Kernels know real numbers.  `view_as_real` shows the same memory as pairs, so that a product of
complex tensors is made of products of their parts; what is left to torch (a Fourier transform, a
product of matrices) takes `view_as_complex` of what we computed.  Between two operators here those
views cancel, and rotary positions or the magnitudes of a spectrum are fused as other programs are.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

Results are laid out in the order of their axes; operands that lie otherwise are left to torch.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import torch

__all__ = ["PARTS", "cancel"]

ATEN: Any = torch.ops.aten


def _is_complex(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_complex()


def _pair(x: Any) -> Any:
    return ATEN.view_as_real.default(x)


def _halves(x: Any) -> tuple[Any, Any]:
    """Real and imaginary parts."""
    pair = _pair(x)
    return ATEN.select.int(pair, -1, 0), ATEN.select.int(pair, -1, 1)


def _joined(real: Any, imaginary: Any) -> Any:
    return ATEN.view_as_complex.default(torch.stack((real, imaginary), -1))


def _straight(x: Any) -> bool:
    """Whether a tensor lies in memory in the order of its axes."""
    steps = [step for n, step in zip(x.shape, x.stride(), strict=True) if n != 1 and step != 0]
    return all(a >= b for a, b in pairwise(steps))


def _by_parts(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, for complex tensors of one type, real ones as precise as they are, and numbers."""

    @wraps(rule)
    def apart(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        kinds = {x.dtype for x in tensors if x.is_complex()}
        if len(kinds) != 1 or any(isinstance(x, complex) for x in (*operands, *options.values())):
            return NotImplemented
        (kind,) = kinds
        if kind is torch.complex32 or any(x.dtype not in (kind, kind.to_real()) for x in tensors):
            return NotImplemented
        if any(not x.dim() or x.is_conj() or x.is_neg() or not _straight(x) for x in tensors):
            return NotImplemented
        return rule(*operands, **options)

    return apart


@_by_parts
def _mul(x: Any, y: Any) -> Any:
    if not _is_complex(x):
        x, y = y, x
    if _is_complex(y):
        (a, b), (c, d) = _halves(x), _halves(y)
        return _joined(a * c - b * d, a * d + b * c)
    factor = y.unsqueeze(-1) if isinstance(y, torch.Tensor) else y
    return ATEN.view_as_complex.default(_pair(x) * factor)


def _sum(of: Any) -> Callable[..., Any]:
    @_by_parts
    def rule(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        if not _is_complex(x) or not _is_complex(y):
            return NotImplemented
        return ATEN.view_as_complex.default(of(_pair(x), _pair(y), alpha=alpha))

    return rule


@_by_parts
def _neg(x: Any) -> Any:
    return ATEN.view_as_complex.default(-_pair(x))


@_by_parts
def _abs(x: Any) -> Any:
    return torch.hypot(*_halves(x))


@_by_parts
def _sgn(x: Any) -> Any:
    length = torch.hypot(*_halves(x))
    length = torch.where(length == 0, 1.0, length)
    return ATEN.view_as_complex.default(_pair(x) / length.unsqueeze(-1))


def _clone(x: Any, *, memory_format: Any = None) -> Any:
    """What is conjugate by a note at the tensor alone, written out."""
    if not _is_complex(x) or not x.is_conj() or not x.dim() or not _straight(x):
        return NotImplemented
    if x.dtype is torch.complex32 or memory_format not in _LAID_OUT:
        return NotImplemented
    a, b = _halves(ATEN._conj.default(x))
    return _joined(a, -b)


_LAID_OUT = (None, torch.preserve_format, torch.contiguous_format)

PARTS: dict[Any, Callable[..., Any]] = {
    ATEN.mul.Tensor: _mul, ATEN.add.Tensor: _sum(ATEN.add.Tensor), ATEN.clone.default: _clone,
    ATEN.sub.Tensor: _sum(ATEN.sub.Tensor), ATEN.neg.default: _neg, ATEN.abs.default: _abs,
    ATEN.sgn.default: _sgn,
}  # fmt: skip
"""Decompositions by operator."""

_INVERSE: dict[Any, Any] = {
    ATEN.view_as_real.default: ATEN.view_as_complex.default,
    ATEN.view_as_complex.default: ATEN.view_as_real.default,
    ATEN._conj.default: ATEN._conj.default,
}


def cancel(graph: torch.fx.Graph) -> None:
    """Drops views of views that are the tensor itself."""
    for node in list(graph.nodes):
        inverse = _INVERSE.get(node.target)
        shown: Any = node.args[0] if inverse is not None else None
        if isinstance(shown, torch.fx.Node) and shown.target is inverse:
            if isinstance(shown.args[0], torch.fx.Node):
                node.replace_all_uses_with(shown.args[0])
    for node in reversed(list(graph.nodes)):
        if node.target in _INVERSE and not node.users:
            graph.erase_node(node)
