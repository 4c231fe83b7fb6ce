"""Sum products of a vector and a matrix in lanes: no matrix unit multiplies a vector.

    grid b/128                                  grid b
    stream t with h = 0 [b,k]                   stream t with h = 0 [k]
      y = dot(h, w[k,j] over k)                   y = sum(h * w[k,j] over k)

A step of a recurrence needs the whole state that the step before left, so one program runs all
steps of one row or of a block of rows.  For a block each contraction is a matrix product; for one
row it is a vector times a matrix, which lanes sum.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.schedule import carries_steps
from smelt.kernel.ir import Apply, Block, Cast, Dot, Kernel, Reduce, Stream, Value
from smelt.kernel.walk import Axes, axes_of_body, axes_of_value, map_values, statements
from smelt.ops.combine import SUM_OF_PRODUCTS


def vector_sums(launch: Kernel) -> Kernel | None:
    """Rewrite a recurrence to one row per program, its contractions to sums.

    Where both factors of a contraction have axes of their own, those of one factor that are blocked
    in the grid get blocks of one position.  A contraction becomes a sum if one factor is then left
    without an axis of its own.  Returns None if no step has a contraction.
    """
    streams = [s for s in statements(launch) if isinstance(s, Stream) and carries_steps(s)]
    dots = [d for s in streams for d in dots_of(s.body)]
    if not dots:
        return None
    names = axes_of_body(launch.body)
    blocks = Axes(b.axis for b in launch.grid if isinstance(b, Block))
    rows = Axes()
    for d in dots:
        left, right = (axes_of_value(x, names) for x in (d.left, d.right))
        if left - right and right - left:
            rows |= next((s for s in (left - right, right - left) if s <= blocks), Axes())
    grid = tuple(
        replace(b, size=1) if isinstance(b, Block) and b.axis in rows else b for b in launch.grid
    )
    fixed = {b.axis for b in grid if isinstance(b, Block) and b.size == 1}
    fixed |= {b.axis for s in streams for b in s.blocks if b.size == 1}
    combine, times = SUM_OF_PRODUCTS

    def as_sum(v: Value) -> Value:
        if not isinstance(v, Dot) or v not in dots:
            return v
        left, right = (axes_of_value(x, names) - fixed for x in (v.left, v.right))
        if left - right and right - left:
            return v
        factors = tuple(Cast(x, v.dtype.compute) for x in (v.left, v.right))
        return Reduce(combine, Apply(times, factors), v.over, v.dtype)

    return map_values(replace(launch, grid=grid), as_sum)
