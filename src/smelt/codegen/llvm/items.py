"""A kernel ready to be scheduled: values as a flat graph with flat memory offsets.

Each item is one value with the axes it varies along; loads and stores carry one offset in elements.
A phase is straight-line work over a grid; a program is one phase, or two where a fold is split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from smelt.ops.combine import Combine
from smelt.types.dtype import DType
from smelt.types.expr import Index

Kind = Literal["const", "index", "load", "apply", "cast", "fold", "dot", "scan", "position"]


class Item:
    """One value.  `axes` are those that it varies along; `dtype` is its register type."""

    __slots__ = ("args", "axes", "dtype", "kind", "number", "payload")

    def __init__(
        self, number: int, kind: Kind, payload: Payload, args: tuple[Item, ...],
        axes: frozenset[str], dtype: DType,
    ) -> None:  # fmt: skip
        self.number, self.payload = number, payload
        self.kind: Kind = kind
        self.args, self.axes, self.dtype = args, axes, dtype

    def __repr__(self) -> str:
        return f"%{self.number}:{self.kind}"


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes: an offset in elements, and limits that are not proven."""

    buffer: str
    offset: Index
    limits: tuple[tuple[Index, Index], ...] = ()
    other: float | int | bool = 0

    @property
    def gives_zero(self) -> bool:
        """Whether positions outside read as 0 (but not -0), as lanes outside a mask do."""
        return self.other == 0 and math.copysign(1.0, self.other) > 0


@dataclass(frozen=True, slots=True)
class Folding:
    """A fold over axes; `positions` is the row-major position over them, for arg kinds."""

    row: Combine
    over: tuple[str, ...]
    positions: Index


@dataclass(frozen=True, slots=True)
class Converting:
    """A conversion: the type written (a half type rounds, then goes on as float32)."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class Clamping:
    """A computed position: its name in index expressions and the extent it is clamped into."""

    name: str
    extent: Index


Payload = float | int | bool | Index | Access | str | Converting | Folding | Clamping


@dataclass(frozen=True, slots=True)
class StoreItem:
    """A write of `value` at an access."""

    access: Access
    value: Item
    where: Item | None
    axes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer argument: its name, element type, and whether it is written."""

    name: str
    dtype: DType
    written: bool
    nbytes: Index


@dataclass
class Phase:
    """Straight-line work over a grid.  `grid` axes are independent; `cut` limits some axes to
    blocks: axis -> block length, with the block's number as a grid axis of its own."""

    name: str
    axes: dict[str, Index]
    grid: list[str]
    cut: dict[str, tuple[str, Index]] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    stores: list[StoreItem] = field(default_factory=list)
    positions: dict[str, Item] = field(default_factory=dict)


@dataclass
class Program:
    """A kernel ready to be scheduled."""

    name: str
    buffers: list[Buffer]
    strides: list[tuple[str, int]]
    phases: list[Phase]
    partials: list[Buffer]
