"""Hoist monotone functions out of a maximum or minimum.

max_j h(v_j) = h(max_j v_j) for an h that never falls (`docs/derivations.md`, running-shift).
Expensive operators are then computed once per row instead of once per element, and the value that a
mask puts in place of an element becomes the identity of the reduction, so that a stream may skip
masked blocks. An element that a mask replaces by c may as well be replaced by anything that h maps
to the same number, hence by the smallest value.

    max(select(m, log1p(max(z, 0)), 0))  =  log1p(max(max(select(m, z, -inf)), 0))

An operator's table row gives its direction. Evaluating the operators' references shows that a chain
of them maps numbers to numbers, and what it makes of a constant.

>>> from smelt.types.dtype import bool_, f32
>>> terms = Terms()
>>> z, m = terms.leaf("z", {"n"}, f32), terms.leaf("m", {"n"}, bool_)
>>> zero = terms.const(0.0, f32)
>>> chosen = terms.select(m, terms.apply("log1p", terms.apply("max", z, zero)), zero)
>>> found = hoist_monotone(terms, terms.reduce("max", chosen, ("n",), f32))
>>> found.element, found.combine, found.apply_layers(terms, terms.leaf("r", (), f32))
(select(leaf:m, leaf:z, const:-inf), 'max', log1p(max(leaf:r, const:0.0)))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from smelt.fusion.cascade.gauge import opposite
from smelt.fusion.cascade.term import Term, Terms, evaluate
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_

ORDER_PROBES = (
    -math.inf, -3e38, -700.5, -30.25, -3.0, -1.5, -1.0, -0.5, -1e-30, 0.0, 1e-30, 0.5, 1.0, 1.5,
    3.0, 30.25, 700.5, 3e38, math.inf,
)  # fmt: skip
"""Numbers at which a chain of operators must yield numbers and keep their order."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator with one varying operand, the others being constants."""

    term: Term
    operand_index: int

    def apply_to(self, terms: Terms, x: Term) -> Term:
        """Apply the operator to another operand."""
        if self.term.kind == "cast":
            return terms.cast(x, self.term.value or self.term.dtype)
        args = list(self.term.args)
        args[self.operand_index] = x
        return terms.apply(self.term.op, *args)


@dataclass(frozen=True, slots=True)
class HoistedReduction:
    """A reduction, and the operators applied to its result, innermost last."""

    element: Term
    combine: str
    layers: tuple[Layer, ...] = ()

    def apply_layers(self, terms: Terms, result: Term) -> Term:
        """Apply the hoisted operators to a result."""
        for layer in reversed(self.layers):
            result = layer.apply_to(terms, result)
        return result

    @property
    def bottom(self) -> float:
        """Identity of the reduction."""
        return float(COMBINES[self.combine].identity(self.element.dtype))


def hoist_monotone(terms: Terms, reduction: Term) -> HoistedReduction:
    """Return the reduction with as many operators as possible applied to its result."""
    unhoisted = HoistedReduction(reduction.args[0], reduction.op)
    row = COMBINES[reduction.op]
    if not row.idempotent or row.grow != "same" or not reduction.dtype.is_float:
        return unhoisted
    candidates = list(_hoist_stepwise(terms, unhoisted, frozenset(reduction.over)))
    return next((w for w in reversed(candidates) if _keeps_order(terms, w)), unhoisted)


def _hoist_stepwise(
    terms: Terms, current: HoistedReduction, over: frozenset[str]
) -> Iterator[HoistedReduction]:
    """Iterate over reductions with more and more operators hoisted."""
    while True:
        yield current
        layer = _outermost_layer(current.element, over)
        if layer is not None:
            current = _peel(current, layer)
            continue
        masked = _hoist_masked(terms, current, over)
        if masked is None or masked.element is current.element:
            return
        current = masked


def _peel(current: HoistedReduction, layer: Layer) -> HoistedReduction:
    """Return the reduction of a layer's operand."""
    t = layer.term
    slope = 1 if t.kind == "cast" else SCALARS[t.op].monotone[layer.operand_index]
    combine = current.combine if slope > 0 else opposite(current.combine)
    return HoistedReduction(t.args[layer.operand_index], combine, (*current.layers, layer))


def _outermost_layer(t: Term, over: frozenset[str]) -> Layer | None:
    """Return an element's outermost operator if it is monotone in its only varying operand."""
    if t.kind not in ("apply", "cast") or any(not a.dtype.is_float for a in t.args):
        return None
    varying = [k for k, a in enumerate(t.args) if a.kind != "const"]
    if len(varying) != 1 or not t.args[varying[0]].axes & over or not t.dtype.is_float:
        return None
    if t.kind == "apply" and not any(SCALARS[t.op].monotone[k : k + 1] != (0,) for k in varying):
        return None
    is_monotone = t.kind == "cast" or bool(SCALARS[t.op].monotone)
    return Layer(t, varying[0]) if is_monotone else None


def _hoist_masked(
    terms: Terms, current: HoistedReduction, over: frozenset[str]
) -> HoistedReduction | None:
    """Hoist through a mask that replaces elements by a constant.

    Operators on the other elements are applied to the result, and the identity of the reduction
    replaces the constant.
    """
    choice = _masked_by_constant(terms, current.element)
    if choice is None:
        return None
    condition, answer, selected, constant = choice
    target = _image(terms, current, constant)
    hoisted: HoistedReduction | None = None
    for inner in _hoist_stepwise(terms, replace(current, element=selected), over):
        identity = terms.const(inner.bottom, inner.element.dtype)
        image = _image(terms, inner, identity)
        if image == target:
            sides = (inner.element, identity) if answer else (identity, inner.element)
            hoisted = replace(inner, element=terms.select(condition, *sides))
    return hoisted


def _masked_by_constant(terms: Terms, t: Term) -> tuple[Term, bool, Term, Term] | None:
    """Return a mask's condition, the answer that keeps the element, the element, and the constant.

    A product with a condition counts as a mask that puts 0.
    """
    if t.kind != "apply" or not t.dtype.is_float:
        return None
    if SCALARS[t.op].is_select:
        condition, then, otherwise = t.args
        for answer, selected, other in ((True, then, otherwise), (False, otherwise, then)):
            if other.kind == "const" and selected.kind != "const":
                return condition, answer, selected, other
    elif t.op == SUM_OF_PRODUCTS[1]:
        for selected, other in (t.args, t.args[::-1]):
            if other.kind == "cast" and other.args[0].dtype == bool_ and selected.kind != "const":
                return other.args[0], True, selected, terms.const(0.0, t.dtype)
    return None


def _image(terms: Terms, way: HoistedReduction, x: Term) -> float:
    """Return the number that hoisted operators make of a constant."""
    return float(evaluate(way.apply_layers(terms, x), _not_constant))


def _not_constant(t: Term) -> object:
    raise AssertionError(f"{t} is not a constant")


def _keeps_order(terms: Terms, hoisted: HoistedReduction) -> bool:
    """Return whether the hoisted chain is monotone and maps numbers to numbers, NaN to NaN.

    Operators that are not defined everywhere may follow others that restrict their operand.
    """
    dtype = hoisted.element.dtype
    with np.errstate(all="ignore"):
        values = [_image(terms, hoisted, terms.const(p, dtype)) for p in ORDER_PROBES]
    if any(math.isnan(v) for v in values):
        return False
    is_falling = (
        sum(
            SCALARS[x.term.op].monotone[x.operand_index] < 0
            for x in hoisted.layers
            if x.term.kind == "apply"
        )
        % 2
    )
    ordered: Sequence[float] = values[::-1] if is_falling else values
    if any(a > b for a, b in pairwise(ordered)):
        return False
    return math.isnan(_image(terms, hoisted, terms.const(math.nan, dtype)))
