"""Merge the axes of a launch's grid into one: its blocks cross the ends of short axes.

    grid i in 28, j in 28/1024                  grid flat in 784/1024
    y[i,j] = x[i,j] * s[j]                      y[flat//28, flat%28] = x[..] * s[flat%28]

Blocks of the last axis alone would have 28 of 1024 lanes. Where an array is visited in the order
of memory, quotients and remainders add up to the merged index again.

The rows of a product may be merged, too: tiles of a convolution then take pixels of several rows of
an image, and of several images, as those of an implicit GEMM do (Chetlur et al., cuDNN, 2014).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.schedule import is_atomic
from smelt.kernel import ir
from smelt.kernel.canonical import names_of, unused_name
from smelt.kernel.transform.block import with_state_axes
from smelt.kernel.walk import (
    Axes,
    axes_of_body,
    axes_of_value,
    end_axes,
    joined_axes,
    loads,
    map_statement,
    statements,
    stores,
    substitute,
    substitute_index,
    visit_statement,
)
from smelt.ops.contract import bare_axis
from smelt.types.expr import Index, axes_of, evaluate, floordiv, mod, product

ROW_TILE = 128
"""Rows of a product that whole tiles of all sizes take."""


def flat_grid(launch: ir.Kernel) -> ir.Kernel | None:
    """Return a launch with one axis in place of all those of its grid.

    None for a grid of one axis, for contractions, and where an axis of the grid is more than an
    index of elements.
    """
    blocks = [b for b in launch.grid if isinstance(b, ir.Block)]
    several = [b for b in blocks if launch.axis(b.axis).extent != 1]
    if len(blocks) < len(launch.grid) or dots_of(launch.body):
        return None
    if any(b.size != 1 for b in several[:-1]) or not _is_free(launch, several):
        return None
    ones = [b for b in blocks if b not in several]
    return _merged(launch, several, ones, blocks[-1].size)


def flat_rows(launch: ir.Kernel, sizes: Mapping[str, int]) -> ir.Kernel | None:
    """Return a product with one axis of rows in place of several.

    They are the axes of the grid that left operands alone have. None where that is one axis, where
    an axis is more than an index of elements, and where whole tiles take the axis in blocks.
    """
    names = axes_of_body(launch.body)
    sides = {
        axes_of_value(d.left, names) - axes_of_value(d.right, names) for d in dots_of(launch.body)
    }
    if len(sides) != 1:
        return None
    (axes,) = sides
    rows = [b for b in launch.grid if isinstance(b, ir.Block) and b.axis in axes]
    rows = [b for b in rows if launch.axis(b.axis).extent != 1]
    blocked = [b for b in rows if b.size != 1]
    if len(blocked) != 1 or not _is_free(launch, rows):
        return None
    if evaluate(launch.axis(blocked[0].axis).extent, sizes) % ROW_TILE == 0:
        return None
    return _merged(launch, rows, (), blocked[0].size)


def _merged(
    launch: ir.Kernel, several: Sequence[ir.Block], ones: Sequence[ir.Block], size: int | None
) -> ir.Kernel | None:
    """Return a launch with one axis in blocks of `size`; `ones` have one position."""
    if any(launch.axis(b.axis).extent == 0 for b in several):
        return None  # a quotient by zero is not an index
    name = unused_name("flat", {*names_of(launch)})
    flat = ir.Axis(name, product(launch.axis(b.axis).extent for b in several))
    places: dict[str, Index] = {b.axis: 0 for b in ones}
    rest: Index = flat.index
    for b in reversed(several):
        extent = launch.axis(b.axis).extent
        places[b.axis], rest = mod(rest, extent), floordiv(rest, extent)
    kept = tuple(a for a in launch.axes if a.name not in places)
    merged = Axes(b.axis for b in several)
    body = with_state_axes(launch.body, merged, axes_of_body(launch.body))
    grid = [b for b in launch.grid if b not in (*several[1:], *ones)]
    grid[grid.index(several[0])] = ir.Block(name, size)
    return replace(
        launch,
        axes=(flat, *kept),
        grid=tuple(grid),
        body=tuple(_substituted(body, places, name)),
    )


def _is_free(launch: ir.Kernel, blocks: Sequence[ir.Block]) -> bool:
    """Return whether axes of the grid are read as indices alone."""
    axes = Axes(b.axis for b in blocks)
    if len(blocks) < 2:
        return False
    if any((b.start, b.stop, b.part) != (None, None, None) for b in blocks):
        return False
    if not _has_element_for_each(launch, axes):
        return False
    names = axes_of_body(launch.body)
    return not any(_controls(s, axes, names) for s in statements(launch))


def _has_element_for_each(launch: ir.Kernel, axes: Axes) -> bool:
    """Return whether an array has an element for each position of the grid.

    Its offsets then have as many bits as the merged index.
    """
    if any(s.join for s in stores(launch)):
        plain = [map(bare_axis, x.index) for x in loads(launch)] if is_atomic(launch) else []
        return any(axes.issubset(p) for p in plain)
    return any(axes.issubset(a for e in s.index for a in axes_of(e)) for s in stores(launch))


def _controls(s: ir.Statement, axes: Axes, names: Mapping[str, Axes]) -> bool:
    """Return whether a statement controls a loop, or all lanes of a block, by axes."""
    for v in visit_statement(s):
        if isinstance(v, ir.Partial | ir.Extreme) or axes.intersection(joined_axes(v)):
            return True
    return bool(isinstance(s, ir.Stream) and s.bounds) or bool(axes & end_axes(s, names))


def _substituted(
    body: Iterable[ir.Statement], places: Mapping[str, Index], name: str
) -> Iterator[ir.Statement]:
    """Yield statements with other indices for axes; states vary along the new axis."""
    for s in body:
        if isinstance(s, ir.Store):
            s = replace(s, index=tuple(substitute_index(e, places) for e in s.index))
        if isinstance(s, ir.Stream):
            states = tuple(
                replace(t, axes=tuple(dict.fromkeys(name if a in places else a for a in t.axes)))
                for t in s.states
            )
            s = replace(s, states=states, body=tuple(_substituted(s.body, places, name)))
        yield map_statement(s, lambda v: substitute(v, places))
