"""Where a stream may stop: what a mask rules out for a whole block of rows is not visited.

A condition between positions, such as `n <= m` or `n < lengths[b]`, is the same for every n from
some position on.  If with that answer every state of the sweep takes up nothing (the largest of
-inf, a sum of zeros), the stream ends there.  How the mask is spelled does not matter: conditions
are found by the type of a comparison's operands, what a comparison means by asking its reference,
and that nothing is taken up by evaluating the folded elements (ALGORITHMS 1.8).

    stream n/512 to last(m) + 1 with ..

What is not visited cannot answer: a NaN among masked values stays unseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from smelt.fusion.cascade.carry import State
from smelt.fusion.cascade.term import Term, Terms, cone, evaluate
from smelt.kernel.ir import IndexValue
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import bool_
from smelt.types.expr import Expr, Index, add, axes_of, axis, mul, sub, substitute

DRAWS = 4
"""Sets of numbers for which the elements behind the stop are looked at."""
FAR = 2


@dataclass(frozen=True, slots=True)
class Stop:
    """index + sum(times · last(axis)) + sum(times · term): the first position not to visit."""

    index: Index
    lasts: tuple[tuple[str, int], ...]
    terms: tuple[tuple[Term, int], ...]


def stops(
    terms: Terms, states: Iterable[State], name: str, extent: Index, cut: frozenset[str],
    fixed: frozenset[str],
) -> list[Stop]:  # fmt: skip
    """Positions of the axis `name` from which on the states of one sweep take up nothing.

    `cut` are axes of the grid of which a block has several positions, `fixed` those with one."""
    blocks = [s.block for s in states]
    conditions = {t: None for b in blocks for a in b.args for t in cone(a) if t.dtype == bool_}
    found: dict[Stop, None] = {}
    for condition in conditions:
        if condition.kind == "apply" and name in condition.axes:
            end = _end(condition, name, extent, cut, fixed)
            if end is not None and all(_is_nothing(terms, b, condition, end[1]) for b in blocks):
                found[end[0]] = None
    return list(found)


def _end(
    condition: Term, name: str, extent: Index, cut: frozenset[str], fixed: frozenset[str]
) -> tuple[Stop, bool] | None:
    """From where on a comparison has always the same answer, and which."""
    row = SCALARS[condition.op]
    if row.arity != 2 or any(not a.dtype.is_integer for a in condition.args):
        return None
    index, others = _difference(condition.args)
    own = coefficient(index, name) if isinstance(index, Expr) else None
    if not isinstance(own, int) or abs(own) != 1:
        return None
    sign = own
    answers = [bool(row.numpy(np.int64(sign * d), np.int64(0))) for d in range(-FAR, FAR + 1)]
    moved = [bool(row.numpy(np.int64(sign * d + 7), np.int64(7))) for d in range(-FAR, FAR + 1)]
    last = answers[-1]
    if answers != moved or answers[-2] != last or all(a == last for a in answers):
        return None
    first = next(d for d in range(FAR, -FAR - 1, -1) if answers[d + FAR] != last) + 1
    rest = mul(sign, sub(index, mul(sign, axis(name, extent))))  # name + rest >= first
    lasts: list[tuple[str, int]] = []
    for a in axes_of(rest) if isinstance(rest, Expr) else ():
        times = coefficient(rest, a)
        if a in cut and isinstance(times, int) and times < 0:
            lasts.append((a, -times))
        elif a not in fixed:
            return None
    if any(not t.axes <= fixed or t.kind in ("old", "new") for t, _ in others):
        return None
    rest = substitute(rest, {a: 0 for a, _ in lasts}) if isinstance(rest, Expr) else rest
    more = tuple((t, -sign * k) for t, k in others)
    return Stop(sub(first, rest), tuple(lasts), more), last


def _difference(args: tuple[Term, ...]) -> tuple[Index, list[tuple[Term, int]]]:
    """The first of two terms minus the second: positions, and what is none."""
    index: Index = 0
    others: list[tuple[Term, int]] = []
    pending = [(args[0], 1), (args[1], -1)]
    while pending:
        t, sign = pending.pop()
        row = SCALARS[t.op] if t.kind == "apply" else None
        if t.kind == "const":
            index = add(index, sign * int(t.value))
        elif isinstance(t.value, IndexValue):
            index = add(index, mul(sign, t.value.index))
        elif t.kind == "cast" and t.args[0].dtype.is_integer:
            pending.append((t.args[0], sign))
        elif row is not None and row.linear:
            pending += [(a, sign * c) for a, c in zip(t.args, row.linear, strict=True)]
        else:
            others.append((t, sign))
    return index, others


class _Drawn:
    """Numbers for terms that are not computed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.known: dict[Term, object] = {}

    def __call__(self, t: Term) -> object:
        if t not in self.known:
            number = self.rng.integers(0, 2) if t.dtype == bool_ else self.rng.integers(-9, 9)
            fraction = 0.37 if t.dtype.is_float else 0
            self.known[t] = np.asarray(number + fraction, t.dtype.numpy)
        return self.known[t]


def _is_nothing(terms: Terms, block: Term, condition: Term, answer: bool) -> bool:
    """Whether a fold takes up nothing where a condition has an answer."""
    told = terms.const(answer, bool_)
    elements = [terms.swap(a, {condition: told}) for a in block.args]
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    wanted = row.identity(elements[0].dtype)
    for draw in range(DRAWS):
        given = _Drawn(draw)
        values = [float(evaluate(e, given)) for e in elements]
        if wanted not in values or any(v != v for v in values):
            return False
    return True
