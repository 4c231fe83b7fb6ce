"""Which blocks a stream visits, and where in them a mask has to be looked at.

A condition between positions or ids, such as `n <= m` or `id[n] == id[m]`, may be known for a whole
block of rows and a whole block of the stream (`interval.py`).  If with that answer every state of
the sweep takes up nothing (the largest of -inf, a sum of zeros), the block is not visited; if the
other answer is known, the condition is not computed in that block.  How the mask is spelled does
not matter: conditions are found by their type, what they mean by asking their references, and that
nothing is taken up by evaluating the folded elements (ALGORITHMS 1.8).

    stream n/512 from first(m) - 255 to last(m) + 1 with ..
      s = select(n <= m, t, -inf) if last(n) > first(m) else t

What is not visited cannot answer: a NaN among masked values stays unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np

from smelt.dataclass import dataclass
from smelt.fusion.cascade.interval import Blocks, implied, is_plain, is_read
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, cone, evaluate
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bool_

Array = np.ndarray[Any, Any]

DRAWS = 6
"""Sets of numbers for which the elements that a mask rules out are looked at: positive ones, then
negative ones, then any; with every combination of what other conditions say."""
MOST_ASKED = 10
"""Conditions of which all combinations are looked at; with more of them nothing is ruled out."""
_TABLE = 64
"""Terms with numbers of their own; beyond, they come again."""


@cache
def _draws() -> Array:
    """Numbers, scattered by multiplying: to import NumPy's generators takes as long as to plan."""
    scattered = np.arange(1, _TABLE * DRAWS + 1, dtype=np.uint32) * np.uint32(2654435769)
    numbers = (scattered >> np.uint32(8)).astype(np.int64).reshape(_TABLE, DRAWS) % 18 - 9
    sizes = np.abs(numbers) + 1
    numbers[:, 0], numbers[:, 1] = sizes[:, 0], -sizes[:, 1]
    return numbers


@dataclass(slots=True)
class Visible:
    """What one sweep visits.  Each is None where there is nothing to say."""

    start: Term | None = None
    stop: Term | None = None
    """The first position of the streamed axis that is visited, and the first that is not any more:
    one number for all rows of a task."""
    seen: Term | None = None
    """Whether a single position is of use to any row of a task.  Told where the closed form of an
    end is not known: it is that of the first, or behind the last, position that is of use."""
    where: Term | None = None
    """Whether a block is of use."""
    cuts: dict[Term, tuple[Term, Term]] = field(default_factory=dict[Term, tuple[Term, Term]])
    """For values that a mask chooses: whether it cuts a block, and what they are where it does
    not."""


def visible(terms: Terms, states: Iterable[State], name: str, fixed: frozenset[str]) -> Visible:
    """What the states of one sweep along the axis `name` take up; `fixed` are the axes of which a
    block has one position."""
    blocks = [s.block for s in states]
    found = Visible()
    narrowed(found, terms, blocks, _masks(terms, blocks, name), name, fixed)
    for leaf in _minus_infinities(blocks, name):
        found.where = _joined(terms.both, found.where, terms.fails(terms.equals(leaf, -math.inf)))
    return found


def narrowed(
    found: Visible,
    terms: Terms,
    blocks: list[Term],
    masks: Iterable[tuple[Term, bool]],
    name: str,
    fixed: frozenset[str],
) -> None:
    """Less is visited: not where conditions have an answer for which nothing is taken up."""
    rules = Blocks(terms, name, fixed)
    each = Blocks(terms, name, fixed, each=True)
    for condition, answer in masks:
        wanted = not answer
        hull = rules.hull(condition, wanted)
        found.start = _joined(terms.greater, found.start, hull.start)
        found.stop = _joined(terms.lesser, found.stop, hull.stop)
        if not hull.exact:
            found.where = _joined(terms.both, found.where, _told(rules.may(condition, wanted)))
            if None in (hull.start, hull.stop) and hull.dense:
                found.seen = _joined(terms.both, found.seen, _told(each.may(condition, wanted)))
        partial = _told(rules.may(condition, answer))
        if partial is not None:
            found.cuts |= _choices(terms, blocks, condition, wanted, partial)


def bounds(
    terms: Terms, blocks: list[Term], name: str, fixed: frozenset[str]
) -> tuple[Term | None, Term | None]:
    """Between which positions of the axis `name` some folds take up anything at all in a block of
    other axes: the first one and the one behind the last, None where that is open."""
    start: Term | None = None
    stop: Term | None = None
    rules = Blocks(terms, name, fixed)
    for condition, answer in _masks(terms, blocks, name):
        hull = rules.hull(condition, not answer)
        start = _joined(terms.greater, start, hull.start)
        stop = _joined(terms.lesser, stop, hull.stop)
    return start, stop


def _joined(join: object, one: Term | None, other: Term | None) -> Term | None:
    if one is None or other is None:
        return other if one is None else one
    return join(one, other)  # type: ignore[operator]


def _told(t: Term) -> Term | None:
    """A condition that says something."""
    return None if t.kind == "const" and t.value else t


def _masks(terms: Terms, blocks: list[Term], name: str) -> Iterator[tuple[Term, bool]]:
    """Conditions with the answer for which nothing is taken up, none inside another one."""
    asked = conditions(blocks)
    parts = {b: {t for a in b.args for t in cone(a)} for b in blocks}

    def is_nothing(block: Term, told: Mapping[Term, bool]) -> bool:
        # along which axes it folds says nothing: sweeps along several ask of the same elements
        key = block.op or block.kind, block.args, frozenset(told.items())
        found = terms.nothing.get(key)
        if found is None:
            found = terms.nothing[key] = _is_nothing(block, told)
        return found

    def rules_out(condition: Term, answer: bool) -> bool:
        told = following(asked, condition, answer)
        mine = {b: {t: x for t, x in told.items() if t in parts[b]} for b in blocks}
        cheap = [b for b in blocks if not mine[b]]  # no answer changes them
        return all(is_nothing(b, {}) for b in cheap) and all(
            is_nothing(b, mine[b]) for b in blocks if mine[b]
        )

    return outermost(blocks, name, rules_out)


def outermost(
    blocks: list[Term], name: str, rules_out: Callable[[Term, bool], bool]
) -> Iterator[tuple[Term, bool]]:
    """Conditions with an answer that rules something out, none inside another one."""
    known = {t: None for b in blocks for a in b.args for t in cone(a) if t.dtype == bool_}
    found: dict[Term, bool] = {}
    for condition in known:
        if condition.kind == "const" or name not in condition.axes or not is_plain(condition):
            continue
        for answer in (False, True):
            if rules_out(condition, answer):
                found[condition] = answer
    inner = {t for c in found for t in cone(c) if t is not c}
    yield from ((c, answer) for c, answer in found.items() if c not in inner)


def _choices(
    terms: Terms, blocks: list[Term], condition: Term, answer: bool, partial: Term
) -> dict[Term, tuple[Term, Term]]:
    """The values that a condition chooses or is, with what they are where it has an answer."""
    found: dict[Term, tuple[Term, Term]] = {}
    for t in dict.fromkeys(t for b in blocks for a in b.args for t in cone(a)):
        if t.kind == "apply" and t.args[0] is condition and SCALARS[t.op].chooses:
            found[t] = partial, t.args[1 if answer else 2]
        elif t.kind == "cast" and t.args[0] is condition:
            found[t] = partial, terms.const(answer, t.dtype)
    return found


def _minus_infinities(blocks: list[Term], name: str) -> Iterator[Term]:
    """Elements of arrays that rule out what they are added to, where they are -inf.  Only where
    something dearer than a look at them is saved: sums over other axes; and not where it is
    computed which element to look at, which a question about a whole block has no name for."""
    parts = dict.fromkeys(t for b in blocks for a in b.args for t in cone(a))
    if not any(t.kind == "opaque" and len(t.args) > 1 for t in parts):
        return
    for t in parts:
        if is_read(t) and is_plain(t) and t.dtype.is_float and name in t.axes:
            if all(_is_nothing(b, {t: -math.inf}) for b in blocks):
                yield t


class Drawn:
    """Numbers for terms that are not computed."""

    def __init__(self) -> None:
        self.numbers = cycle(_draws())
        self.known: dict[Term, Array] = {}

    def __call__(self, t: Term) -> Array:
        if t not in self.known:
            fraction = 0.37 if t.dtype.is_float else 0
            self.known[t] = (next(self.numbers) + fraction).astype(t.dtype.numpy)
        return self.known[t]


def answered(elements: Iterable[Term], told: Mapping[Term, Any]) -> dict[Term, Any] | None:
    """What is told, and all that the other conditions in some elements may say together, a row for
    each combination.  None where these are too many."""
    known: dict[Term, Any] = {t: np.asarray(x, t.dtype.numpy) for t, x in told.items()}
    asked = [
        t
        for t in dict.fromkeys(t for e in elements for t in cone(e))
        if is_asked(t) and t not in known
    ]
    if len(asked) > MOST_ASKED:
        return None
    rows = np.arange(1 << len(asked))[:, None]
    return known | {t: (rows >> k & 1).astype(bool) for k, t in enumerate(asked)}


def is_asked(t: Term) -> bool:
    """Whether a term is a condition that is not made of conditions."""
    if t.dtype != bool_ or t.kind == "const":
        return False
    return t.kind != "apply" or any(a.dtype != bool_ for a in t.args)


def conditions(blocks: Iterable[Term]) -> list[Term]:
    """The conditions that the elements of folds are made of."""
    parts = dict.fromkeys(t for b in blocks for a in b.args for t in cone(a))
    return [t for t in parts if is_asked(t)]


def following(asked: Iterable[Term], condition: Term, answer: bool) -> dict[Term, bool]:
    """What conditions say where one of them has an answer, as far as that is plain."""
    found = {condition: answer}
    for t in asked:
        if t is not condition and (other := implied(t, condition, answer)) is not None:
            found[t] = other
    return found


def _is_nothing(block: Term, told: Mapping[Term, float | bool]) -> bool:
    """Whether a fold takes up nothing where some terms are what is `told`."""
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    wanted = row.identity(block.args[0].dtype)
    known = answered(block.args, told)
    if known is None:
        return False
    drawn, given = Drawn(), {**known}
    nothing: Any = False
    for a in block.args:
        values = np.asarray(evaluate(a, drawn, given), np.float64)
        if np.isnan(values).any():
            return False
        nothing = nothing | (values == wanted)
    return bool(np.all(nothing)) and not any(
        _takes_up(block, drawn, {**known, **alone}, wanted) for alone in _alone(block, told, given)
    )


def _takes_up(block: Term, drawn: Drawn, known: dict[Term, Any], wanted: Any) -> bool:
    """Whether a fold takes up a number, for some of those drawn, that is not as good as none."""
    nothing: Any = False
    for a in block.args:
        values = np.asarray(evaluate(a, drawn, known), np.float64)
        nothing = nothing | (values == wanted) | np.isnan(values)
    return not np.all(nothing)


def _alone(
    block: Term, told: Mapping[Term, float | bool], given: Mapping[Term, Any]
) -> Iterator[dict[Term, Any]]:
    """What a fold that is read, here or by way of memory, may be where it has met elements alone
    that a mask rules out: the number that the mask has put there, such as -1e9.  Of nothing but
    -inf a program makes NaN."""
    parts = dict.fromkeys(t for a in block.args for t in cone(a))
    moved = set(told)
    for t in sorted(parts, key=lambda t: t.number):  # operands come first
        if not t.is_fold and not moved.isdisjoint(t.args):
            moved.add(t)
    read = [t for t in parts if t.dtype.is_float and t.kind not in _COMPUTED and t not in told]
    seen: set[bytes] = set()
    for t in parts:
        if not t.dtype.is_float or t.kind not in _COMPUTED or t in told or t not in moved:
            continue
        values = np.asarray(given.get(t, 0.0))
        put = np.isfinite(values) & (values != 0)
        if np.any(put) and values.tobytes() not in seen:
            seen.add(values.tobytes())
            for fold in read:
                number = np.where(put, values, given.get(fold, 1.0))
                yield {fold: number.astype(fold.dtype.numpy)}


_COMPUTED = ("const", "apply", "cast")
