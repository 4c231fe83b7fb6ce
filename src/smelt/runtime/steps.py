"""What an executable is made of: values with places, kernels and library calls on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from smelt.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index
from smelt.types.tensor import Shape

Array = np.ndarray[Any, Any]
Sizes: TypeAlias = Mapping[str, int]


class Value(NamedTuple):
    """A tensor of the plan: `place` is input, held (a result of the prelude), output, arena or
    within (the memory of an output that is not written yet); `number` its position among its kind,
    or that output's, `offset` its bytes into the arena or that output."""

    dtype: DType
    shape: Shape
    place: str
    number: int = -1
    offset: Index = 0
    over: int = -1
    """For an output, the input in whose memory it is written; -1: memory of its own."""


class Native(NamedTuple):
    """One function of a kernel: its address, tasks, scratch bytes, cycles of work."""

    address: int
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A kernel on values.  `words` are its arguments in order: ("value", n), ("partial", k),
    ("size", expression) or ("stride", (n, d))."""

    name: str
    entries: tuple[Native, ...]
    words: tuple[tuple[str, Any], ...]
    partials: tuple[Index, ...] = ()
    loaded: Any = None
    variant: Callable[[Sizes, bool], KernelStep | None] | None = None
    """Another step that serves given sizes better, if one does; the flag asks for one that stores
    past the caches."""
    stream_above: int = 1 << 62
    """Bytes of its results above which that pays: no cache holds them."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The plan's names for the sizes in `entries` and `partials`, or their numbers, by the code's
    own names: kernels that differ in names share their code."""

    def sizes(self, named: Sizes) -> Sizes:
        """The plan's sizes under the code's names."""
        told = {own: int(n) for own, n in self.names.items() if n.isdigit()}
        return {**named, **told, **{own: named[n] for own, n in self.names.items() if n in named}}


class CallStep(NamedTuple):
    """A library call on arrays: call(sizes, inputs, outputs) writes its outputs.  What it needs for
    sizes is made ready by `prepare`, before anything runs, which tells the bytes that it takes
    while it runs."""

    name: str
    call: Callable[[Sizes, list[Array], list[Array]], None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    prepare: Callable[[Sizes], int] | None = None


Step = KernelStep | CallStep


__all__ = ["CallStep", "KernelStep", "Native", "Sizes", "Step", "Value"]
