"""Write parts of arguments in place, such as a row of a cache.

PyTorch turns `cache[:, at] = x` into a complete new value of the cache that is copied into the old
one at the end. If nothing else needs the old value, the part is written in place, as eager code
does, and the rest of the cache is neither read nor copied.

    updates(graph)                   # arguments by the operators that make new values of them
    write = Update(aten.index_put.default)
    write(True, cache, [at], x)      # writes into the cache and returns it
    write(False, cache, [at], x)     # a new value: the cache shares memory with another argument
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.frontends.torch.eager_memory import nbytes
from smelt.frontends.torch.in_place import aliased_values, is_write, nodes_in, span_bytes
from smelt.frontends.torch.layout import is_guarded, memory_order
from smelt.frontends.torch.row import Row

__all__ = ["Update", "copy_if_new", "find_updates", "share_no_memory"]

_MIN_BYTES = 1 << 16
"""Bytes of an argument from which a part is written by a call of torch rather than all of it by a
kernel."""
_MIN_RATIO = 4
"""The argument must have at least this many times as many bytes as the part for that."""


# ---- analysis ------------------------------------------------------------------------------------


def find_updates(graph: torch.fx.Graph, row_of: Callable[[Any], Row | None]) -> dict[Any, Any]:
    """Return the operators that may write a part of an argument in place.

    Maps each to its argument. What reads the old value must lead to the write and nowhere else, and
    no result may share the argument's memory.
    """
    if not any(map(_is_update, graph.nodes)):
        return {}
    output = next(n for n in graph.nodes if n.op == "output")
    results = aliased_values((n for n in nodes_in(output.args) if not is_write(n)), row_of)
    in_place: dict[Any, Any] = {}
    for write in filter(is_write, graph.nodes):
        argument, n = write.args[0], write.args[1]
        steps: list[Any] = []
        while _is_update(n):
            steps.append(n)
            n = n.args[0]
        if n is not argument or not steps or results & {argument, *steps}:
            continue
        pairs = zip([*steps[1:], argument], steps)
        if all(_pays(s, row_of) and _same_layout(s, argument) for s in steps) and all(
            _only_reaches(old, new, write) for old, new in pairs
        ):
            in_place |= dict.fromkeys(steps, argument)
    return in_place


def _is_update(node: Any) -> bool:
    return (
        isinstance(node, torch.fx.Node)
        and str(node.target) in _IN_PLACE
        and not (str(node.target) == "aten.index_put.default" and node.args[3:4] == (True,))
    )


def _pays(step: Any, row_of: Callable[[Any], Row | None]) -> bool:
    """Whether writing in place pays.

    It does if torch would be called anyway, or a small part of a large array is written.
    """
    row = row_of(step)
    if row is None or row.copies_base:
        return True
    array_bytes = _value_bytes(step)
    part_bytes = max(map(_value_bytes, nodes_in(step.args[1:])), default=0)
    return array_bytes >= _MIN_BYTES and part_bytes * _MIN_RATIO <= array_bytes


def _same_layout(step: Any, argument: Any) -> bool:
    """Whether a new value has the argument's type, shape and guarded strides."""
    old, new = argument.meta["val"], step.meta["val"]
    return (
        is_guarded(argument)
        and not old.is_neg()
        and not old.is_conj()
        and old.dtype == new.dtype
        and tuple(old.shape) == tuple(new.shape)
        and tuple(old.stride()) == tuple(new.stride())
        and memory_order(old) is not None
    )


def _only_reaches(old: Any, new: Any, write: Any) -> bool:
    """Whether everything that depends on `old` is read only by `new` or `write`."""
    pending, seen = [old], {old}
    while pending:
        n = pending.pop()
        for user in n.users:
            if user in (new, write) or user in seen or _is_type_only(user, n):
                continue
            if user.op == "output" or is_write(user):
                return False
            seen.add(user)
            pending.append(user)
    return True


def _is_type_only(user: Any, n: Any) -> bool:
    """Whether a copy uses a value only for its type and shape."""
    return str(user.target) == "aten.copy.default" and n not in nodes_in(user.args[1:])


def _value_bytes(node: Any) -> int:
    """Return the bytes of a tensor in the traced call.

    0 for a number or unknown sizes.
    """
    fake = node.meta.get("val")
    return (nbytes(fake.numel()) or 0) * fake.itemsize if isinstance(fake, torch.Tensor) else 0


# ---- calls ---------------------------------------------------------------------------------------


def _slice(x: Any, y: Any, dim: int = 0, *range_: Any) -> None:
    torch.ops.aten.slice.Tensor(x, dim, *range_).copy_(y)


def _select(x: Any, y: Any, dim: int, position: int) -> None:
    x.select(dim, position).copy_(y)


_ATEN = torch.ops.aten
_IN_PLACE: dict[str, Callable[..., Any]] = {
    "aten.index_put.default": _ATEN.index_put_.default,
    "aten.scatter.src": _ATEN.scatter_.src,
    "aten.scatter.value": _ATEN.scatter_.value,
    "aten.slice_scatter.default": _slice,
    "aten.select_scatter.default": _select,
}
"""Operator that gives a new value of its first argument -> function that writes into it."""


class Update:
    """A partial write, in place or into a copy."""

    __slots__ = ("_fresh", "_write")

    def __init__(self, fresh: Any) -> None:
        self._fresh, self._write = fresh, _IN_PLACE[str(fresh)]

    def __call__(self, in_place: bool, x: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        if not in_place:
            return self._fresh(x, *more, **options)
        self._write(x, *more, **options)
        return x


def copy_if_new(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return an argument with its new value.

    The value is copied in if it was not written in place.
    """
    return old if new is old else old.copy_(new)


def share_no_memory(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether no written argument shares memory with another argument.

    >>> x = torch.zeros(6)
    >>> (
    ...     share_no_memory([x[:3]], [x[3:]]),
    ...     share_no_memory([x[:4]], [x[3:]]),
    ...     share_no_memory([x, x], []),
    ... )
    (True, False, False)
    """
    by_storage: dict[int, list[torch.Tensor]] = {}
    for x in (*written, *others):
        by_storage.setdefault(x.untyped_storage().data_ptr(), []).append(x)
    if len(by_storage) == len(written) + len(others):
        return True
    for k, x in enumerate(written):
        begin, end = x.data_ptr(), x.data_ptr() + span_bytes(x)
        for j, y in enumerate((*written, *others)):
            if j != k and begin < y.data_ptr() + span_bytes(y) and y.data_ptr() < end:
                return False
    return True
