"""First values that are what stands there: nothing to copy where a result lies over its operand.

A kernel that writes at computed places begins with a copy of what it writes into.  Where nobody
else needs that, memory is planned so that both are one array, and the loops of the copy are passed
over: two addresses are compared at run time.
"""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Access, Phase
from smelt.codegen.llvm.schedule.build_nests import Nest


def copied(nest: Nest, phase: Phase) -> tuple[str, str] | None:
    """The arrays from which and to which a nest copies element by element, and does nothing else,
    if what it writes is written to again; else None."""
    if nest.folds or nest.saves or nest.settings or nest.fixed or len(nest.stores) != 1:
        return None
    (s,) = nest.stores
    again = any(o.access.buffer == s.access.buffer and o is not s for o in phase.stores)
    read = s.value.payload
    if not again or s.where is not None or s.value.kind != "load" or not isinstance(read, Access):
        return None
    alike = (
        read.offset == s.access.offset
        and phase.dtypes[read.buffer] == phase.dtypes[s.access.buffer]
    )
    return (read.buffer, s.access.buffer) if alike and not read.limits else None


__all__ = ["copied"]
