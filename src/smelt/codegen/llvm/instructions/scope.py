"""Represent the emission point in a loop nest: bound axes, known values, lanes and mask."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index

Value = ir.Value


@dataclass
class Lanes:
    """The vector axis at the emission point.

    `base` is the position of lane 0, `count` the number of lanes, `alignment` a number which the
    position is a multiple of.
    """

    axis: str
    base: Value
    count: int
    mask: Value | None
    alignment: int = 1
    tested_limits: Mapping[tuple[Index, Index], Any] = field(
        default_factory=dict[Any, Any], compare=False
    )
    """Bounds already tested for these lanes, with the results."""
    prefetched: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]], compare=False)
    """Buffers whose next cache lines have been prefetched, each from a lane on."""


@dataclass
class Scope:
    """A level of loops.

    Lookups go outwards, and return None for what is unknown; new values are stored here.
    """

    parent: Scope | None = None
    axes: dict[str, Value] = field(default_factory=dict)
    values: dict[Item, Value] = field(default_factory=dict)
    offsets: dict[Access, Value] = field(default_factory=dict)
    lanes: Lanes | None = None

    @contextmanager
    def branch(self) -> Generator[dict[Item, Value]]:
        """Keep values that are computed in a branch apart; yields those available in it."""
        outside, self.values = self.values, dict(self.values)
        yield self.values
        self.values = outside

    def bind(self, name: str, position: Value) -> None:
        """Set the current position on a loop axis."""
        self.axes[name] = position

    def define(self, item: Item, value: Value) -> Value:
        """Make the register of an item available here and further in, and return it."""
        self.values[item] = value
        return value

    def locate(self, access: Access, offset: Value) -> None:
        """Make a part of an access's offset available here and further in."""
        self.offsets[access] = offset

    def axis(self, name: str) -> Any:
        """Return the current position on a loop axis (i64)."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.axes:
                return scope.axes[name]
            scope = scope.parent
        return None

    def value(self, item: Item) -> Any:
        """Return the register of an item, if it is available here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if item in scope.values:
                return scope.values[item]
            scope = scope.parent
        return None

    def offset(self, access: Access) -> Any:
        """Return the part of an access's offset available here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if access in scope.offsets:
                return scope.offsets[access]
            scope = scope.parent
        return None
