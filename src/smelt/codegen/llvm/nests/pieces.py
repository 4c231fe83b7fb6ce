"""Parts of a nest's loops where some conditions have one answer: pieces of an axis, and trees."""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Item
from smelt.kernel.bounds import Facts
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index

__all__ = ["Branch", "Leaf", "Limit", "Piece", "Tree"]

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


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf: one path through the tests, and what is known on it."""

    piece: Piece


@dataclass(frozen=True, slots=True)
class Branch:
    """A test, and the subtrees where it holds and where it does not."""

    condition: Item
    yes: Branch | Leaf
    no: Branch | Leaf


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of tests inside of `depth` loops of a nest."""

    depth: int
    root: Branch | Leaf
