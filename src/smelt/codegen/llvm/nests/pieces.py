"""Pieces of an axis in which some conditions have one answer."""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Item
from smelt.kernel.bounds import Facts
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index

Limit = tuple[Index, Index]
"""A bounds check: an index, and the extent that it must be below."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a partitioned axis, and the facts that hold in it.

    It begins where the previous piece ends.
    """

    last: Index | None
    """Position at which it ends; None: the end of the axis."""
    facts: Facts
    taken: dict[Item, bool]
    """Conditions with one answer."""
    limits: frozenset[Limit]
    """Bounds checks that hold."""
