"""Store first values of results that others are combined with in a launch.

    y[i] = 0                                          y[i] = 0
    stream j where (ids[j] >= 0) & ..                 ---- and in a second launch ----
      at = position(ids[j], size(i))                  grid j
      y[at] add= 1                                      y[at] add= 1 where (ids[j] >= 0) & ..

The second launch has a grid over the sources where their order does not matter: by atomic
operations, integers have the same result in every order, since their sums wrap around. Sums of
floats do not: only a policy gives their order up. Elsewhere it is what is left of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from smelt.codegen.triton.schedule import ATOMICS, Policy, is_atomic
from smelt.kernel import ir
from smelt.kernel.transform.part import without_unused
from smelt.kernel.walk import (
    axes_of_body,
    axes_of_index,
    bindings_of,
    stores,
    transform,
    visit,
    visit_statement,
)
from smelt.ops.combine import BOTH, COMBINES, SUM_OF_PRODUCTS
from smelt.ops.contract import bare_axis
from smelt.python.dataclass import dataclass
from smelt.types.expr import evaluate, product

ATOMIC_BYTES = (4, 8)
"""Bytes of an element that atomic operations change."""
JOINED_LANES = 1024
"""Columns of a program that combines long rows."""
FIRST_ELEMENTS = 4096
"""Maximum elements of the results of a program that stores first values itself: a launch takes as
long as a program needs for so many."""


def combining_launches(
    kernel: ir.Kernel, policy: Policy, sizes: Mapping[str, int] | None = None
) -> tuple[ir.Kernel, ...]:
    """Return launches that store first values and combine others; () for one.

    Where values are combined in order, the first one pays for results that are large at `sizes`.
    """
    parts = _parts(kernel)
    if parts is None:
        return ()
    fixed = [b for b in kernel.grid if isinstance(b, ir.Block)]
    first = _launch(kernel, f"{kernel.name}_first", fixed, (), parts.before)
    needed = bindings_of(parts.before, parts.steps)
    if all(_may_reorder(s, kernel, policy) for s in _joined(parts.steps)):
        steps = [_guarded(s, parts.where) for s in (*needed, *parts.steps)]
        update = _launch(kernel, kernel.name, fixed, parts.sources, steps)
        return (first, update) if is_atomic(update) else ()
    joins_once = not parts.sources and any(s.join in ATOMICS for s in _joined(parts.steps))
    if joins_once or sizes is None or _elements_of_program(kernel, sizes) <= FIRST_ELEMENTS:
        return ()
    body = kernel.body if parts.rows is None else _stream_body(kernel.body[0])
    rest: tuple[ir.Statement, ...] = (*needed, *body[len(parts.before) :])
    grid = _column_blocks(kernel, parts, sizes)
    if parts.rows is not None:
        rest = (replace(kernel.body[0], body=rest),)
    return first, without_unused(replace(kernel, grid=(*kernel.grid, *grid), body=rest))


def _column_blocks(
    kernel: ir.Kernel, parts: _Parts, sizes: Mapping[str, int]
) -> tuple[ir.Block, ...]:
    """Return blocks of the axes that a visit stores long rows along."""
    joined = _joined(parts.steps)
    taken = {*parts.sources, parts.rows, *(b.axis for b in kernel.grid if isinstance(b, ir.Block))}
    columns = [a for a in map(bare_axis, joined[0].index) if a is not None and a not in taken]
    count = math.prod(int(evaluate(kernel.axis(a).extent, sizes)) for a in columns)
    if count <= FIRST_ELEMENTS or any(s.index != joined[0].index for s in joined):
        return ()
    last = columns[-1]
    return tuple(ir.Block(a, JOINED_LANES if a == last else 1) for a in columns)


def _stream_body(s: ir.Statement) -> tuple[ir.Statement, ...]:
    return s.body if isinstance(s, ir.Stream) else ()


def _elements_of_program(kernel: ir.Kernel, sizes: Mapping[str, int]) -> int:
    """Return the elements that a program of the whole kernel stores first."""
    elements = max(int(evaluate(product(p.shape), sizes)) for p in kernel.outputs)
    parts = [b.parts for b in kernel.grid if isinstance(b, ir.Split)]
    parts += [kernel.axis(b.axis).extent for b in kernel.grid if isinstance(b, ir.Block)]
    return elements // max(int(evaluate(product(parts), sizes)), 1)


@dataclass(frozen=True, slots=True)
class _Parts:
    """First values, and what every visit of the source axes combines with them."""

    before: Sequence[ir.Statement]
    sources: Sequence[str]
    steps: Sequence[ir.Statement]
    where: ir.Value | None
    rows: str | None
    """The axis of the result whose parts are programs, if they are."""


def _parts(kernel: ir.Kernel) -> _Parts | None:
    body: Sequence[ir.Statement] = kernel.body
    rows: str | None = None
    match body:
        case (ir.Stream(blocks=(ir.Block(axis=axis, size=None),), states=(), where=None),):
            body, rows = body[0].body, axis
        case _:
            if any(isinstance(b, ir.Split) for b in kernel.grid):
                return None
    plain = [k for k, s in enumerate(body) if isinstance(s, ir.Store) and not s.join]
    if not plain or not any(x.join for x in stores(body[plain[-1] + 1 :])):
        return None
    before, after = body[: plain[-1] + 1], body[plain[-1] + 1 :]
    sources: Sequence[str] = ()
    where: ir.Value | None = None
    match after:
        case (ir.Stream(blocks=blocks, states=(), bounds=()) as stream,):
            if any(b != ir.Block(b.axis, 1) for b in blocks):
                return None
            sources, after = [b.axis for b in blocks], stream.body
            where = None if stream.where is None else _whole(stream.where, kernel, rows)
        case _:
            pass
    steps = [_with_values(s, kernel, rows) for s in after]
    every = (*before, *steps)
    if not all(isinstance(s, ir.Let | ir.Position | ir.Store) for s in every):
        return None
    values = [v for s in steps for v in visit_statement(s)]
    values += [] if where is None else visit(where)
    return (
        None
        if any(isinstance(v, ir.Extreme) for v in values)
        else _Parts(before, sources, steps, where, rows)
    )


def _joined(steps: Iterable[ir.Statement]) -> list[ir.Store]:
    return [x for x in stores(steps) if x.join]


def _may_reorder(s: ir.Store, kernel: ir.Kernel, policy: Policy) -> bool:
    """Return whether the order of a store's visits does not matter."""
    dtype = kernel.param(s.param).dtype
    if s.join not in ATOMICS or dtype.itemsize not in ATOMIC_BYTES:
        return False
    return dtype.kind in ("int", "uint") or (
        policy.order == "free" and s.join == COMBINES[SUM_OF_PRODUCTS[0]].scalar
    )


def _whole(value: ir.Value, kernel: ir.Kernel, rows: str | None) -> ir.Value:
    """Return a value with the ends of all rows in place of a program's."""

    def change(v: ir.Value) -> ir.Value:
        match v:
            case ir.Extreme(arg=ir.IndexValue(index=index, dtype=dtype), largest=largest) if (
                rows is not None and bare_axis(index) == rows
            ):
                return ir.IndexValue(kernel.axis(rows).extent - 1 if largest else 0, dtype)
            case _:
                return v

    return transform(value, change)


def _with_values(s: ir.Statement, kernel: ir.Kernel, rows: str | None) -> ir.Statement:
    match s:
        case ir.Let() | ir.Position():
            return replace(s, value=_whole(s.value, kernel, rows))
        case ir.Store():
            where = None if s.where is None else _whole(s.where, kernel, rows)
            return replace(s, value=_whole(s.value, kernel, rows), where=where)
        case _:
            return s


def _guarded(s: ir.Statement, where: ir.Value | None) -> ir.Statement:
    """Return a store under the condition of its visit."""
    if where is None or not isinstance(s, ir.Store):
        return s
    return replace(s, where=where if s.where is None else ir.Apply(BOTH, (where, s.where)))


def _launch(
    kernel: ir.Kernel,
    name: str,
    fixed: Sequence[ir.Block],
    sources: Sequence[str],
    body: Sequence[ir.Statement],
) -> ir.Kernel:
    """Return a launch with a grid over sources and the elements that it stores."""
    names = axes_of_body(tuple(body))
    stored = axes_of_index((e for s in body if isinstance(s, ir.Store) for e in s.index), names)
    order = [*(b.axis for b in fixed), *sources]
    order += [a.name for a in kernel.axes if a.name in stored and a.name not in order]
    grid = tuple(ir.Block(a, 1) for a in order)
    return without_unused(replace(kernel, name=name, grid=grid, body=tuple(body)))
