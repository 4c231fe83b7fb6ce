"""Find the calls that eager code refuses: those stay calls of torch, which raises its own error.

What computes without data checks shapes; types and numbers are often checked by the operator's code
for the processor alone, and composite forms drop such checks. So that code runs once for each call,
on small stand-ins with the operands' types. Sizes above `KEPT_SIZE` become small ones in the same
order, equal ones equal. A refusal may be due to those sizes where numbers of the call refer to
them: then sizes as they are must be refused too. What is refused for the stand-in's elements, a
division by zero or a position out of bounds, is not refused both for zeros and for ones.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from smelt.python.dataclass import dataclass

KEPT_SIZE = 8
"""Largest size that stand-ins keep: windows, heads, and numbers of groups."""
MAX_ELEMENTS = 1 << 20
"""Maximum elements of all operands together for a call to be tried with the sizes as they are."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """The type of a tensor operand."""

    dtype: Any
    shape: tuple[int, ...]


class _UnknownError(Exception):
    """An operand that has no stand-in."""


def is_refused(op: Any, operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether eager code refuses this call whatever its tensors hold."""
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
        return False
    if op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    if op._schema.name.endswith("_backward"):  # autograd's call, with types that it announces
        return False
    leaves, nest = tree_flatten((tuple(operands), dict(options)))
    try:
        key = tuple(map(_operand, leaves))
        return _is_refused(op, key, tuple(map(type, key)), nest)
    except (_UnknownError, TypeError):  # no stand-in, or an operand that is not hashable
        return False


def _operand(x: Any) -> Any:
    """Describe an operand of a traced call: tensors by type, symbols by their hints."""
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.device.type != "cpu" or x.dtype.itemsize < 1:
            raise _UnknownError
        return _Operand(x.dtype, tuple(map(_operand, x.shape)))
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if x.node.hint is None:
            raise _UnknownError
        return x.node.hint
    return x


@lru_cache(maxsize=4096)
def _is_refused(op: Any, leaves: tuple[Any, ...], _types: Any, nest: TreeSpec) -> bool:
    """Whether a call is refused; `_types` keeps 1, 1.0 and True apart in the cache."""
    small = _with_small_sizes(leaves)
    if not _fails(op, small, nest):
        return False
    if small == leaves or not any(type(x) is int for x in leaves):
        return True
    elements = sum(torch.Size(x.shape).numel() for x in leaves if isinstance(x, _Operand))
    return elements <= MAX_ELEMENTS and _fails(op, leaves, nest)


def _with_small_sizes(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    numbers = {x for x in leaves if type(x) is int}
    sizes = {n for x in leaves if isinstance(x, _Operand) for n in x.shape}.union(numbers)
    small = {n: KEPT_SIZE + 1 + k for k, n in enumerate(sorted(n for n in sizes if n > KEPT_SIZE))}

    def replaced(x: Any) -> Any:
        if isinstance(x, _Operand):
            return _Operand(x.dtype, tuple(small.get(n, n) for n in x.shape))
        return small.get(x, x) if type(x) is int else x

    return tuple(map(replaced, leaves))


def _fails(op: Any, leaves: tuple[Any, ...], nest: TreeSpec) -> bool:
    """Whether a call raises an error, both for zeros and for ones."""
    with _disable_current_modes(), torch.no_grad():
        return _raises(op, leaves, nest, torch.ones) and _raises(op, leaves, nest, torch.zeros)


def _raises(op: Any, leaves: tuple[Any, ...], nest: TreeSpec, fill: Callable[..., Any]) -> bool:
    """Whether a call raises an error if `fill` makes its tensors."""
    values = [fill(x.shape, dtype=x.dtype) if isinstance(x, _Operand) else x for x in leaves]
    operands, options = tree_unflatten(values, nest)
    try:
        op(*operands, **options)
    except Exception:  # noqa: BLE001 - whatever the user would see
        return True
    return False
