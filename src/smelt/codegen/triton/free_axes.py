"""Find the axes that a value varies along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.kernel.env import NO_AXES, Axes, value_axes
from smelt.kernel.ir import (
    Let,
    Position,
    Statement,
    Stream,
    Update,
    Value,
)
from smelt.types.affine import dependent_axes
from smelt.types.expr import Index


def axes_of_value(value: Value, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a value; `names` has those of bound names."""
    return value_axes(value, lambda name, _: names.get(name, NO_AXES))


def axes_of_index(e: Index, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of an index expression, also through computed positions."""
    return dependent_axes((e,), lambda name: names.get(name, NO_AXES))


def axes_of_body(body: Iterable[Statement]) -> dict[str, Axes]:
    """Return the axes of names and states, which may depend on one another.

    A state does not vary along the axes that its stream visits.
    """
    body = list(body)
    names: dict[str, Axes] = {}
    before: dict[str, Axes] | None = None
    while names != before:
        before = dict(names)
        _add_axes(body, names, {})
        if not any(isinstance(s, Stream) for s in body):
            break  # names follow what they are computed from
    return names


def _add_axes(
    body: Iterable[Statement], names: dict[str, Axes], visited: Mapping[str, Axes]
) -> None:
    """Add the axes of a body's names; `visited`: what a state's stream visits."""
    for s in body:
        if isinstance(s, Let | Position):
            names[s.name] = names.get(s.name, Axes()) | axes_of_value(s.value, names)
        elif isinstance(s, Update):
            axes = axes_of_value(s.value, names) - visited.get(s.state, Axes())
            names[s.state] = names.get(s.state, Axes()) | axes
        elif isinstance(s, Stream):
            stream_axes = Axes(b.axis for b in s.blocks)
            for state in s.states:
                axes = axes_of_value(state.init, names) | set(state.axes)
                names[state.name] = names.get(state.name, Axes()) | axes
            _add_axes(s.body, names, {**visited, **{t.name: stream_axes for t in s.states}})


def with_state_axes(
    body: Iterable[Statement], axes: Axes, names: Mapping[str, Axes]
) -> Iterable[Statement]:
    """Yield statements whose states are declared with those of `axes` that they vary along."""
    for s in body:
        if not isinstance(s, Stream):
            yield s
            continue
        states = tuple(
            replace(t, axes=(*t.axes, *sorted((names[t.name] & axes) - set(t.axes))))
            for t in s.states
        )
        yield replace(s, states=states, body=tuple(with_state_axes(s.body, axes, names)))
