"""Parts of an executable: placed values, and the kernels and library calls on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Index
from smelt.types.tensor import Shape

Array = np.ndarray[Any, Any]
Sizes: TypeAlias = Mapping[str, int]


class Value(NamedTuple):
    """Tensor of the plan.

    `place` is input, held (a result of the prelude), output, arena or within (the memory of an
    output that is not written yet). `number` is its index among the values there, or that
    output's number; `offset` its bytes into the arena or that output.
    """

    dtype: DType
    shape: Shape
    place: str
    number: int = -1
    offset: Index = 0
    overwrites: int = -1
    """For an output, the input that it overwrites; -1: separate memory."""


class NativeFunction(NamedTuple):
    """Function of a kernel: its address, tasks, scratch bytes, cycles of work."""

    address: int
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Kernel on values.

    `words` are its arguments in order: ("value", n), ("partial", k), ("size", expression) or
    ("stride", (n, d)).
    """

    name: str
    entries: tuple[NativeFunction, ...]
    words: tuple[tuple[str, Any], ...]
    partials: tuple[Index, ...] = ()
    loaded: Any = None
    specialize: Callable[[Sizes, bool], KernelStep | None] | None = None
    """Returns a step better suited to given sizes, or None.

    The flag requests non-temporal stores.
    """
    stream_above: int = 1 << 62
    """Threshold on bytes of results: non-temporal stores are faster above, no cache holds them."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Plan's names, or numbers, for the code's size names in `entries` and `partials`.

    Kernels that differ in names share their code.
    """

    def sizes(self, named: Sizes) -> Sizes:
        """Return the plan's sizes under the code's names."""
        constants = {code_name: int(n) for code_name, n in self.names.items() if n.isdigit()}
        return {
            **named,
            **constants,
            **{code_name: named[n] for code_name, n in self.names.items() if n in named},
        }


class CallStep(NamedTuple):
    """Library call on arrays: call(sizes, inputs, outputs) writes its outputs.

    `prepare` sets up what the call needs for given sizes before anything runs, and returns the
    bytes that the call takes while it runs.
    """

    name: str
    call: Callable[[Sizes, list[Array], list[Array]], None]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    prepare: Callable[[Sizes], int] | None = None


Step = KernelStep | CallStep
