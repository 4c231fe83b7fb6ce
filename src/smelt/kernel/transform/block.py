"""Give grid axes blocks: states that vary along them are declared with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.kernel.axes import Axes
from smelt.kernel.ir import Statement, Stream


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
