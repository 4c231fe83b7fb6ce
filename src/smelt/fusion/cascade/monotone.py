"""What leaves a largest or a smallest element: functions that never fall, or never rise.

max_j h(v_j) = h(max_j v_j) for an h that never falls (ALGORITHMS 1.1, T3): what is dear is computed
once for a row instead of once for an element, and what a mask put in an element's place becomes
the fold's own nothing, so that streams pass over it.  An element that a mask replaces by c may just
as well be replaced by anything that h takes to the same number, hence by what lies below all.

    max(select(m, log1p(max(z, 0)), 0))  =  log1p(max(max(select(m, z, -inf)), 0))

Which way an operator goes is told by its row, that a chain of them is a number for every number by
asking the references, and so is what it makes of a constant.

>>> from smelt.types.dtype import bool_, f32
>>> terms = Terms()
>>> z, m = terms.leaf("z", {"n"}, f32), terms.leaf("m", {"n"}, bool_)
>>> zero = terms.const(0.0, f32)
>>> chosen = terms.choose(m, terms.apply("log1p", terms.apply("max", z, zero)), zero)
>>> found = outside(terms, terms.fold("max", chosen, ("n",), f32))
>>> found.element, found.combine, found.of(terms, terms.leaf("r", (), f32))
(select(leaf:m, leaf:z, const:-inf), 'max', log1p(max(leaf:r, const:0.0)))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from smelt.dataclass import dataclass
from smelt.fusion.cascade.gauge import opposite
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import bool_

PROBES = (
    -math.inf, -3e38, -700.5, -30.25, -3.0, -1.5, -1.0, -0.5, -1e-30, 0.0, 1e-30, 0.5, 1.0, 1.5,
    3.0, 30.25, 700.5, 3e38, math.inf,
)  # fmt: skip
"""Numbers on which it is tried whether a chain of operators gives numbers and keeps their order."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator on one thing that varies, the other operands being constants."""

    term: Term
    place: int

    def on(self, terms: Terms, x: Term) -> Term:
        """The operator on something else."""
        if self.term.kind == "cast":
            return terms.cast(x, self.term.value or self.term.dtype)
        args = list(self.term.args)
        args[self.place] = x
        return terms.apply(self.term.op, *args)


@dataclass(frozen=True, slots=True)
class Outside:
    """A fold of elements, and what is done to its result, innermost last."""

    element: Term
    combine: str
    layers: tuple[Layer, ...] = ()

    def of(self, terms: Terms, result: Term) -> Term:
        """What is done to a result."""
        for layer in reversed(self.layers):
            result = layer.on(terms, result)
        return result

    @property
    def bottom(self) -> float:
        """What the fold starts from."""
        return float(COMBINES[self.combine].identity(self.element.dtype))


def outside(terms: Terms, fold: Term) -> Outside:
    """The fold with as much as possible done to its result, not to each element."""
    here = Outside(fold.args[0], fold.op)
    row = COMBINES[fold.op]
    if not row.idempotent or row.grow != "same" or not fold.dtype.is_float:
        return here
    ways = list(_ways(terms, here, frozenset(fold.over)))
    return next((w for w in reversed(ways) if _keeps_order(terms, w)), here)


def _ways(terms: Terms, here: Outside, over: frozenset[str]) -> Iterator[Outside]:
    """One thing after the other taken out of the fold."""
    while True:
        yield here
        layer = _layer(here.element, over)
        if layer is not None:
            here = _without(here, layer)
            continue
        masked = _masked(terms, here, over)
        if masked is None or masked.element is here.element:
            return
        here = masked


def _without(here: Outside, layer: Layer) -> Outside:
    """A fold of a layer's operand."""
    t = layer.term
    slope = 1 if t.kind == "cast" else SCALARS[t.op].monotone[layer.place]
    combine = here.combine if slope > 0 else opposite(here.combine)
    return Outside(t.args[layer.place], combine, (*here.layers, layer))


def _layer(t: Term, over: frozenset[str]) -> Layer | None:
    """The outermost operator of an element, if it goes one way in the only thing that varies."""
    if t.kind not in ("apply", "cast") or any(not a.dtype.is_float for a in t.args):
        return None
    places = [k for k, a in enumerate(t.args) if a.kind != "const"]
    if len(places) != 1 or not t.args[places[0]].axes & over or not t.dtype.is_float:
        return None
    if t.kind == "apply" and not any(SCALARS[t.op].monotone[k : k + 1] != (0,) for k in places):
        return None
    known = t.kind == "cast" or bool(SCALARS[t.op].monotone)
    return Layer(t, places[0]) if known else None


def _masked(terms: Terms, here: Outside, over: frozenset[str]) -> Outside | None:
    """A fold whose elements a mask replaces by a constant: with what is done to the others done to
    the result, and what lies below all in place of the constant."""
    choice = _choice(terms, here.element)
    if choice is None:
        return None
    condition, answer, kept, constant = choice
    wanted = _number(terms, here, constant)
    best: Outside | None = None
    for inner in _ways(terms, replace(here, element=kept), over):
        below = terms.const(inner.bottom, inner.element.dtype)
        found = _number(terms, inner, below)
        if found == wanted:
            sides = (inner.element, below) if answer else (below, inner.element)
            best = replace(inner, element=terms.choose(condition, *sides))
    return best


def _choice(terms: Terms, t: Term) -> tuple[Term, bool, Term, Term] | None:
    """A condition, the answer for which an element is kept, the element, and the constant that
    replaces it otherwise.  A product with a condition is one of a number with 0."""
    if t.kind != "apply" or not t.dtype.is_float:
        return None
    if SCALARS[t.op].chooses:
        condition, then, otherwise = t.args
        for answer, kept, other in ((True, then, otherwise), (False, otherwise, then)):
            if other.kind == "const" and kept.kind != "const":
                return condition, answer, kept, other
    elif t.op == SUM_OF_PRODUCTS[1]:
        for kept, other in (t.args, t.args[::-1]):
            if other.kind == "cast" and other.args[0].dtype == bool_ and kept.kind != "const":
                return other.args[0], True, kept, terms.const(0.0, t.dtype)
    return None


def _number(terms: Terms, way: Outside, x: Term) -> float:
    """What is made of a constant."""
    return float(evaluate(way.of(terms, x), _unknown))


def _unknown(t: Term) -> object:
    raise AssertionError(f"{t} is no constant")


def _keeps_order(terms: Terms, way: Outside) -> bool:
    """Whether what is done to the result is a number for every number, NaN for NaN, and goes one
    way: operators that are not defined everywhere may follow others that see to it."""
    dtype = way.element.dtype
    with np.errstate(all="ignore"):
        values = [_number(terms, way, terms.const(p, dtype)) for p in PROBES]
    if any(math.isnan(v) for v in values):
        return False
    turned = (
        sum(SCALARS[x.term.op].monotone[x.place] < 0 for x in way.layers if x.term.kind == "apply")
        % 2
    )
    ordered: Sequence[float] = values[::-1] if turned else values
    if any(a > b for a, b in pairwise(ordered)):
        return False
    return math.isnan(_number(terms, way, terms.const(math.nan, dtype)))
