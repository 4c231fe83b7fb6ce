"""Call library functions within a plan: one call each, a barrier for fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ExternError
from smelt.ops.spec import Adjoint, Array, Cotangents, Sizes, TensorOp, V
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.tensor import TensorType

EXTERNS: dict[str, ExternRow] = {}


@dataclass(frozen=True)
class ExternRow:
    """A library function: its type rule and its call (arrays and attributes in, an array out)."""

    name: str
    doc: str
    infer: Callable[..., TensorType]
    call: Callable[..., Any]
    pullback: Callable[..., Any] | None = None
    """Derivative: (adjoint, g, result, operands, **attributes) -> cotangents of the operands."""
    into: Callable[..., None] | None = None
    """Like `call`, but writes into its first argument, if that avoids a copy."""


def register(row: ExternRow) -> ExternRow:
    """Add a row to `EXTERNS`; raise ExternError if its name exists."""
    if EXTERNS.setdefault(row.name, row) is not row:
        raise ExternError(f"an extern operator named {row.name!r} exists already")
    return row


@dataclass(frozen=True)
class Extern(TensorOp):
    """Run the library function registered under `call` with the given attributes."""

    doc: ClassVar[str] = "a library call"
    fusible: ClassVar[bool] = False
    call: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"extern.{self.call}"

    @cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options)

    def attributes(self) -> dict[str, Any]:
        return dict(self.options)

    def infer(self, *inputs: TensorType) -> TensorType:
        return EXTERNS[self.call].infer(*inputs, **dict(self.options))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.asarray(EXTERNS[self.call].call(*inputs, **dict(self.options)))

    def compute_into(self, destination: Array | None, sizes: Sizes, *inputs: Array) -> Array:
        into = EXTERNS[self.call].into
        if destination is None or into is None:
            return super().compute_into(destination, sizes, *inputs)
        into(destination, *inputs, **self._options)
        return destination

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        derive = EXTERNS[self.call].pullback
        if derive is None:
            return super().pullback(a, g, out, inputs, needed)
        return derive(a, g, out, inputs, **dict(self.options))
