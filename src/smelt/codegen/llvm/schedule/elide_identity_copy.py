"""Find copies that are skipped at run time if output and input are one array.

A kernel that scatters begins with a copy of the array it writes into.  If nothing else needs that
array, the memory plan makes both one, and the copy loop is skipped: the two addresses are compared
at run time.
"""

from __future__ import annotations

from smelt.codegen.llvm.loopir.items import Access, Phase
from smelt.codegen.llvm.schedule.build_nests import Nest


def find_identity_copy(nest: Nest, phase: Phase) -> tuple[str, str] | None:
    """Return the source and destination of a nest that only copies, or None.

    What it writes must be written again by another store.
    """
    if nest.reductions or nest.saves or nest.state_updates or nest.scalars or len(nest.stores) != 1:
        return None
    (s,) = nest.stores
    is_rewritten = any(o.access.buffer == s.access.buffer and o is not s for o in phase.stores)
    source = s.value.payload
    if (
        not is_rewritten
        or s.where is not None
        or s.value.kind != "load"
        or not isinstance(source, Access)
    ):
        return None
    same_elements = (
        source.offset == s.access.offset
        and phase.dtypes[source.buffer] == phase.dtypes[s.access.buffer]
    )
    return (source.buffer, s.access.buffer) if same_elements and not source.limits else None


__all__ = ["find_identity_copy"]
