"""Divide a product's launch into its loop and an epilogue, for halves of columns.

    s = sum of dot(x, w) over k                 s = sum of dot(x, w) over k
    y[m,n] = gelu(s + b[n]) + r[m,n]            for both halves of a tile's n:
                                                  y[m,n] = gelu(s + b[n]) + r[m,n]

The accumulators of a wide tile take half of a thread's registers, and what an epilogue computes of
them as many again. A half of the columns leaves room, and what the loop does not read is loaded
after it. Results are the same elements, computed alike.
"""

from __future__ import annotations

from smelt.codegen.triton.loop_axes import names_read
from smelt.kernel import ir
from smelt.kernel.walk import axes_of_body, axes_of_index, stores, values_of, visit
from smelt.python.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DividedLaunch:
    """A launch: statements before its loop, the loop, and its epilogue."""

    before: tuple[ir.Statement, ...]
    loop: ir.Stream
    epilogue: tuple[ir.Statement, ...]


def divided_launch(launch: ir.Kernel, axis: str) -> DividedLaunch | None:
    """Return a launch whose epilogue takes each index of an axis alone.

    None where an epilogue combines elements, and where it only stores the accumulators.
    """
    loops = [k for k, s in enumerate(launch.body) if isinstance(s, ir.Stream)]
    if len(loops) != 1:
        return None
    at = loops[0]
    loop = launch.body[at]
    assert isinstance(loop, ir.Stream)
    needed, before, early = set(names_read(loop)), list[ir.Statement](), list[ir.Statement]()
    for s in reversed(launch.body[:at]):
        if not isinstance(s, ir.Let):
            return None
        if s.name in needed:
            needed |= names_read(s)
        (before if s.name in needed else early).append(s)
    epilogue = (*early[::-1], *launch.body[at + 1 :])
    names = axes_of_body(launch.body)
    shared = {s.name for s in before if isinstance(s, ir.Let) and axis in names[s.name]}
    if any(not _is_elementwise(s) or shared & names_read(s) for s in epilogue):
        return None
    every = (x for s in epilogue for v in values_of(s) for x in visit(v))
    if not any(isinstance(x, ir.Apply | ir.Load) for x in every):
        return None
    of_axis = (axis in axes_of_index(s.index, names) for s in epilogue if isinstance(s, ir.Store))
    if len(list(stores(launch))) != sum(of_axis):
        return None
    return DividedLaunch(tuple(before[::-1]), loop, epilogue)


def _is_elementwise(s: ir.Statement) -> bool:
    """Return whether a statement is a value or a plain store without anything across lanes."""
    if not isinstance(s, ir.Let) and not (isinstance(s, ir.Store) and not s.join):
        return False
    across = ir.Reduce | ir.Scan | ir.Dot | ir.Rename | ir.Extreme | ir.Partial
    return not any(isinstance(x, across) for v in values_of(s) for x in visit(v))
