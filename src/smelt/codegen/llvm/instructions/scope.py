"""Where emission stands in a loop nest: bound axes, known values, lanes and mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.loopir.items import Access, Item
from smelt.dataclass import dataclass
from smelt.types.expr import Index

Value = ir.Value


@dataclass
class Lanes:
    """The vector axis at this place: its name, the position of lane 0, lane count and mask, and a
    number that the position is a multiple of."""

    axis: str
    base: Value
    count: int
    mask: Value | None
    apart: int = 1
    inside: Mapping[tuple[Index, Index], Any] = field(default_factory=dict[Any, Any], compare=False)
    """Limits that have been tested for these lanes already, with what came of it."""
    asked: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]], compare=False)
    """Buffers whose next lines have been asked for, each with a lane from which on."""


@dataclass
class Scope:
    """One level of loops.  Look-ups go outwards, and give None for what is not known; new values
    stay here."""

    parent: Scope | None = None
    axes: dict[str, Value] = field(default_factory=dict)
    values: dict[Item, Value] = field(default_factory=dict)
    offsets: dict[Access, Value] = field(default_factory=dict)
    lanes: Lanes | None = None

    def axis(self, name: str) -> Any:
        """Current position on a loop axis (a scalar i64)."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.axes:
                return scope.axes[name]
            scope = scope.parent
        return None

    def value(self, item: Item) -> Any:
        """The register of an item, if it is known here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if item in scope.values:
                return scope.values[item]
            scope = scope.parent
        return None

    def offset(self, access: Access) -> Any:
        """The part of an access's offset that is known here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if access in scope.offsets:
                return scope.offsets[access]
            scope = scope.parent
        return None
