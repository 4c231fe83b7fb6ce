"""Parts of arguments that a program writes: a row of a cache, a slot of a queue.

PyTorch turns `cache[:, at] = x` into a whole new value of the cache that is copied into the old one
at the end.  Where nobody else needs the old value, the part is written where it stands, as eager
code does: bytes of a part, not of everything three times.

    updates(graph)                   # arguments by the operators that make new values of them
    write = Update(aten.index_put.default)
    write(True, cache, [at], x)      # writes into the cache and gives it
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
from smelt.frontends.torch.in_place import is_write, memory_of, nodes, span
from smelt.frontends.torch.layout import is_guarded, memory_order
from smelt.frontends.torch.row import Row

__all__ = ["Update", "apart", "settled", "updates"]

_LEAST = 1 << 16
"""Bytes of an argument that we could write whole from which writing a part is a call of torch."""
_PART = 4
"""Times that what is written goes into the argument, at least, for that."""


# ---- which -----------------------------------------------------------------------------------


def updates(graph: torch.fx.Graph, row_of: Callable[[Any], Row | None]) -> dict[Any, Any]:
    """The operators that make new values of arguments by writing a part, where the part may be
    written at once: what reads the old value leads to the writing and nowhere else, and no result
    is the argument's memory."""
    if not any(map(_is_update, graph.nodes)):
        return {}
    output = next(n for n in graph.nodes if n.op == "output")
    results = memory_of((n for n in nodes(output.args) if not is_write(n)), row_of)
    found: dict[Any, Any] = {}
    for write in filter(is_write, graph.nodes):
        place, n = write.args[0], write.args[1]
        steps: list[Any] = []
        while _is_update(n):
            steps.append(n)
            n = n.args[0]
        if n is not place or not steps or results & {place, *steps}:
            continue
        pairs = zip([*steps[1:], place], steps)
        if all(_pays(s, row_of) and _lies_as(s, place) for s in steps) and all(
            _leads_to(old, new, write) for old, new in pairs
        ):
            found |= dict.fromkeys(steps, place)
    return found


def _is_update(node: Any) -> bool:
    return (
        isinstance(node, torch.fx.Node)
        and str(node.target) in _WRITING
        and not (str(node.target) == "aten.index_put.default" and node.args[3:4] == (True,))
    )


def _pays(step: Any, row_of: Callable[[Any], Row | None]) -> bool:
    """Whether torch would be called anyway, or a small part of a large array is written."""
    row = row_of(step)
    if row is None or row.copies:
        return True
    whole = _bytes(step)
    part = max(map(_bytes, nodes(step.args[1:])), default=0)
    return whole >= _LEAST and part * _PART <= whole


def _lies_as(step: Any, place: Any) -> bool:
    """Whether a new value has the argument's type, shape and strides, which guards vouch for."""
    old, new = place.meta["val"], step.meta["val"]
    return (
        is_guarded(place)
        and not old.is_neg()
        and not old.is_conj()
        and old.dtype == new.dtype
        and tuple(old.shape) == tuple(new.shape)
        and tuple(old.stride()) == tuple(new.stride())
        and memory_order(old) is not None
    )


def _leads_to(old: Any, new: Any, write: Any) -> bool:
    """Whether all that reads a value is read, in the end, by one operator alone."""
    todo, seen = [old], {old}
    while todo:
        n = todo.pop()
        for user in n.users:
            if user in (new, write) or user in seen or _is_type_only(user, n):
                continue
            if user.op == "output" or is_write(user):
                return False
            seen.add(user)
            todo.append(user)
    return True


def _is_type_only(user: Any, n: Any) -> bool:
    """Whether a copy is given a value for its type and shape."""
    return str(user.target) == "aten.copy.default" and n not in nodes(user.args[1:])


def _bytes(node: Any) -> int:
    """Bytes of a tensor in the call that is traced; 0 of a number, and where only data tells."""
    fake = node.meta.get("val")
    return (nbytes(fake.numel()) or 0) * fake.itemsize if isinstance(fake, torch.Tensor) else 0


# ---- calls -----------------------------------------------------------------------------------


def _slice(x: Any, y: Any, dim: int = 0, *range_: Any) -> None:
    torch.ops.aten.slice.Tensor(x, dim, *range_).copy_(y)


def _select(x: Any, y: Any, dim: int, place: int) -> None:
    x.select(dim, place).copy_(y)


_ATEN = torch.ops.aten
_WRITING: dict[str, Callable[..., Any]] = {
    "aten.index_put.default": _ATEN.index_put_.default,
    "aten.scatter.src": _ATEN.scatter_.src,
    "aten.scatter.value": _ATEN.scatter_.value,
    "aten.slice_scatter.default": _slice,
    "aten.select_scatter.default": _select,
}
"""What writes into its first argument, by the operator that gives a new value of it."""


class Update:
    """An operator that gives a new value, or writes it where the old one stands."""

    __slots__ = ("_fresh", "_write")

    def __init__(self, fresh: Any) -> None:
        self._fresh, self._write = fresh, _WRITING[str(fresh)]

    def __call__(self, there: bool, x: torch.Tensor, *more: Any, **options: Any) -> torch.Tensor:
        if not there:
            return self._fresh(x, *more, **options)
        self._write(x, *more, **options)
        return x


def settled(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """An argument with its new value: copied in where it was not written there."""
    return old if new is old else old.copy_(new)


def apart(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether none of some arguments shares memory with another one, of them or of others.

    >>> x = torch.zeros(6)
    >>> apart([x[:3]], [x[3:]]), apart([x[:4]], [x[3:]]), apart([x, x], [])
    (True, False, False)
    """
    homes: dict[int, list[torch.Tensor]] = {}
    for x in (*written, *others):
        homes.setdefault(x.untyped_storage().data_ptr(), []).append(x)
    if len(homes) == len(written) + len(others):
        return True
    for k, x in enumerate(written):
        begin, end = x.data_ptr(), x.data_ptr() + span(x)
        for j, y in enumerate((*written, *others)):
            if j != k and begin < y.data_ptr() + span(y) and y.data_ptr() < end:
                return False
    return True
