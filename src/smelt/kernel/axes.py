"""Find the axes that values vary along, and those whose positions are independent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from smelt.kernel import ir
from smelt.kernel.walk import children, joined_axes, statements, visit_statement
from smelt.python.caches import cached_by_identity
from smelt.types.affine import dependent_axes
from smelt.types.expr import Index

Axes: TypeAlias = frozenset[str]
NO_AXES: Axes = frozenset()
MAX_BODIES = 256
"""Maximum bodies whose axes are kept: those of a kernel while its schedules are compared."""


def value_axes(value: ir.Value, of: Callable[[str, bool], Axes]) -> Axes:
    """Return the axes that a value varies along.

    `of(name, new)` are those of a bound name, or of a state's new value.
    """
    match value:
        case ir.Ref(name=name, next=new):
            return of(name, new)
        case ir.Const() | ir.Partial() | ir.Extreme():
            return NO_AXES
        case ir.IndexValue(index=index):
            return dependent_axes((index,), lambda name: of(name, False))
        case _:
            inside = NO_AXES.union(*(value_axes(c, of) for c in children(value)))
    match value:
        case ir.Load(index=index):
            return inside | dependent_axes(index, lambda name: of(name, False))
        case ir.Reduce(over=over) | ir.Dot(over=over):
            return inside - set(over)
        case ir.Scan(along=along):
            return inside | {along}
        case ir.Rename(old=old, new=new) if old in inside:
            return inside - {old} | {new}
        case _:
            return inside


def axes_of_value(value: ir.Value, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a value; `names` has those of bound names."""
    return value_axes(value, lambda name, _: names.get(name, NO_AXES))


def axes_of_index(index: Iterable[Index], names: Mapping[str, Axes]) -> Axes:
    """Return the axes of index expressions, also through computed positions."""
    return dependent_axes(index, lambda name: names.get(name, NO_AXES))


@cached_by_identity(MAX_BODIES)
def axes_of_body(body: tuple[ir.Statement, ...]) -> Mapping[str, Axes]:
    """Return the axes of names and states, which may depend on one another.

    A state does not vary along the axes that its stream visits.
    """
    names: dict[str, Axes] = {}
    before: dict[str, Axes] | None = None
    while names != before:
        before = dict(names)
        _add_axes(body, names, {})
        if not any(isinstance(s, ir.Stream) for s in body):
            break  # names follow what they are computed from
    return names


def _add_axes(
    body: Iterable[ir.Statement], names: dict[str, Axes], visited: Mapping[str, Axes]
) -> None:
    """Add the axes of a body's names; `visited`: what a state's stream visits."""
    for s in body:
        if isinstance(s, ir.Let | ir.Position):
            names[s.name] = names.get(s.name, Axes()) | axes_of_value(s.value, names)
        elif isinstance(s, ir.Update):
            axes = axes_of_value(s.value, names) - visited.get(s.state, Axes())
            names[s.state] = names.get(s.state, Axes()) | axes
        elif isinstance(s, ir.Stream):
            stream_axes = Axes(b.axis for b in s.blocks)
            for state in s.states:
                axes = axes_of_value(state.init, names) | set(state.axes)
                names[state.name] = names.get(state.name, Axes()) | axes
            _add_axes(s.body, names, {**visited, **{t.name: stream_axes for t in s.states}})


def is_free(body: tuple[ir.Statement, ...], axis: str) -> bool:
    """Return whether every position of an axis is computed and stored apart from all others."""
    names = axes_of_body(body)
    for s in statements(body):
        values = [*visit_statement(s)]
        if any(isinstance(v, ir.Partial | ir.Extreme) or axis in joined_axes(v) for v in values):
            return False
        if isinstance(s, ir.Store):
            indexed = axes_of_index(s.index, names)
            if s.join or axis not in indexed:
                return False
        if isinstance(s, ir.Stream) and axis in {b.axis for b in (*s.blocks, *s.bounds)}:
            return False
        if axis in end_axes(s, names):
            return False
    return True


def end_axes(s: ir.Statement, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a stream's ends and condition; none of other statements."""
    if not isinstance(s, ir.Stream):
        return NO_AXES
    ends = (e for b in (*s.blocks, *s.bounds) for e in (b.start, b.stop))
    return NO_AXES.union(*(axes_of_value(e, names) for e in (*ends, s.where) if e is not None))
