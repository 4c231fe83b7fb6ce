"""The gauge oracle: any other gauge must do as well as a running maximum.

Every streamed kernel runs with its gauges replaced by numbers that jump up and down from block to
block; what it computes must not move beyond rounding.  A kernel without one of its rescalings is
caught at once (ALGORITHMS 1.10, in floating point on harmless data instead of finite fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.lower.test_stream import CASES, Case, drawn, streamed
from tests.property.oracles import agree, interpret, sizes_at, spread

from smelt.kernel import interp
from smelt.kernel.ir import (
    Apply,
    Const,
    Dot,
    Kernel,
    Reduce,
    Ref,
    Statement,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import map_values, statements, transform, values_of, visit
from smelt.types.dtype import f32

ASKED = {
    "largest normalised",
    "quantised",
    "argmax",
    "argmax of all",
    "argmin of columns",
    "max and argmax",
    "nearest",
}
"""Cases that ask for the maximum itself, or for its place."""

WEIGHED = [c for c in CASES if c.name.startswith("weighed ") or c.name == "weighed"]
"""Cases whose gauge is a power of 2 near a sum that is asked for itself."""


def gauges(stream: Stream) -> set[str]:
    """States that others are brought to: their new values are read inside the stream."""
    read = {
        v.name
        for s in stream.body
        for value in values_of(s)
        for v in visit(value)
        if isinstance(v, Ref) and v.next
    }
    return {s.name for s in stream.states} & read


def changed(kernel: Kernel, change: Callable[[Update, Stream], Statement]) -> Kernel:
    """The kernel with the updates of its streams changed."""

    def of(s: Statement) -> Statement:
        if not isinstance(s, Stream):
            return s
        body = tuple(change(x, s) if isinstance(x, Update) else x for x in s.body)
        return replace(s, body=body)

    return replace(kernel, body=tuple(map(of, kernel.body)))


def jump(update: Update, stream: Stream) -> Statement:
    """A gauge that follows the smallest element of each block, whatever came before."""
    value = update.value
    if update.state not in gauges(stream) or not isinstance(value, Apply):
        return update
    fold = value.args[1]
    assert isinstance(fold, Reduce)
    least = replace(fold, combine="min")
    finite = Apply("max", (least, Const(-5.0, fold.dtype)))
    finite = Apply("min", (finite, Const(5.0, fold.dtype)))
    return Update(update.state, Apply("sub", (finite, Const(0.7, fold.dtype))))


def forget(update: Update, stream: Stream) -> Update:
    """A sum that is not brought to the new gauge."""
    value = update.value
    if update.state in gauges(stream) or not isinstance(value, Apply):
        return update
    return Update(update.state, replace(value, args=(Ref(update.state), value.args[1])))


def power(value: Value) -> Value:
    """A power that goes up and down with the sum, whatever its size."""
    if not (isinstance(value, Apply) and value.op == "log2"):
        return value
    wild = Apply("sin", (Apply("mul", (*value.args, Const(40.0, f32))),))
    return Apply("mul", (wild, Const(9.0, f32)))


def unmoved(kernel: Kernel) -> Kernel:
    """Sums of products that are not brought to the new power."""
    moved = {
        s.state
        for s in statements(kernel)
        if isinstance(s, Update) and any(isinstance(v, Dot) for v in visit(s.value))
    }
    return changed(kernel, lambda u, s: forget(u, s) if u.state in moved else u)


def wrong(case: Case, kernel: Kernel) -> str:
    """Where a kernel departs from the graph, or nothing."""
    graph, _ = streamed(case)
    arrays = drawn(case, 3, scale=1.0)
    sizes = sizes_at(graph, arrays)
    blocks = {s.blocks[0].axis: 5 for s in kernel.body if isinstance(s, Stream)}
    result = interp.run(kernel, arrays, sizes, grid_sizes=blocks)
    allowed, wanted = spread(graph, arrays, sizes), interpret(graph, arrays, sizes)
    problems = (agree(g, w, a) for g, w, a in zip(result.values(), wanted, allowed, strict=True))
    return next(filter(None, problems), "")


CARRIED = [
    c
    for c in CASES
    if c.name not in ASKED
    and c not in WEIGHED
    and any(gauges(s) for s in statements(streamed(c)[1]) if isinstance(s, Stream))
]


def test_most_cases_have_gauges() -> None:
    assert len(CARRIED) >= 15


@pytest.mark.parametrize("case", CARRIED, ids=str)
def test_any_gauge_gives_the_same(case: Case) -> None:
    assert not wrong(case, changed(streamed(case)[1], jump))


@pytest.mark.parametrize("case", CARRIED[:4] + CARRIED[-4:-1], ids=str)
def test_a_missing_rescaling_is_caught(case: Case) -> None:
    kernel = changed(streamed(case)[1], lambda u, s: jump(forget(u, s), s))
    assert wrong(case, kernel)


@pytest.mark.parametrize("case", WEIGHED, ids=str)
def test_any_power_gives_the_same(case: Case) -> None:
    kernel = streamed(case)[1]
    other = map_values(kernel, lambda v: transform(v, power))
    assert other != kernel
    assert not wrong(case, other)


@pytest.mark.parametrize("case", WEIGHED, ids=str)
def test_sums_that_stay_under_the_last_power_are_caught(case: Case) -> None:
    kernel = map_values(streamed(case)[1], lambda v: transform(v, power))
    assert unmoved(kernel) != kernel
    assert wrong(case, unmoved(kernel))
