"""Find the blocks of a stream that masks rule out, and those that need masking.

A condition between positions or ids, such as `n <= m` or `id[n] == id[m]`, may have one known value
in a whole block of rows and of the stream (`interval.py`). If no state of the pass changes for that
value (a maximum of -inf, a sum of zeros), the block is not visited. If the other value is known,
the condition is not computed in that block. This is the block sparsity of attention kernels, found
for any spelling of a mask: conditions are found by type, their meaning by evaluating references,
and that nothing is contributed by evaluating the reduced elements at sample values
(`docs/derivations.md`, masks).

    stream n/512 from first(m) - 255 to last(m) + 1 with ..
      s = select(n <= m, t, -inf) if last(n) > first(m) else t

Skipped elements are not evaluated: a NaN among masked values goes unnoticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np

from smelt.fusion.cascade.interval import (
    BlockConditions,
    implied_answer,
    is_element,
    is_elementwise,
)
from smelt.fusion.cascade.states import State
from smelt.fusion.cascade.term import Term, Terms, cone, evaluate
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import bool_

Array = np.ndarray[Any, Any]

SAMPLE_COUNT = 6
"""Number of sample values at which masked elements are evaluated.

The first are positive, the second negative, the others mixed; each is combined with all values of
the other conditions.
"""
MAX_CONDITIONS = 10
"""Maximum conditions whose combinations are enumerated; with more, nothing is ruled out."""
_TABLE = 64
"""Number of terms with sample values of their own; further ones repeat them."""


@cache
def _sample_table() -> Array:
    """Return pseudo-random integers by multiplicative hashing.

    NumPy's generators are not used: importing them takes as long as planning.
    """
    scattered = np.arange(1, _TABLE * SAMPLE_COUNT + 1, dtype=np.uint32) * np.uint32(2654435769)
    numbers = (scattered >> np.uint32(8)).astype(np.int64).reshape(_TABLE, SAMPLE_COUNT) % 18 - 9
    sizes = np.abs(numbers) + 1
    numbers[:, 0], numbers[:, 1] = sizes[:, 0], -sizes[:, 1]
    return numbers


@dataclass(slots=True)
class VisitRange:
    """The part of the streamed axis that one pass visits; None means no restriction."""

    start: Term | None = None
    stop: Term | None = None
    """First visited position, and the position after the last one.

    The same for all rows of a task.
    """
    position_is_used: Term | None = None
    """Whether a single position contributes to any row of a task.

    Set where an end has no closed form: the end is the first contributing position, or follows the
    last one.
    """
    block_is_used: Term | None = None
    """Whether a block contributes."""
    partial_masks: dict[Term, tuple[Term, Term]] = field(
        default_factory=dict[Term, tuple[Term, Term]]
    )
    """For values that a mask selects: whether the mask is mixed in a block, else their value."""


def visit_range(
    terms: Terms, states: Iterable[State], name: str, fixed: frozenset[str]
) -> VisitRange:
    """Return the part of the axis `name` that the states of one pass need.

    `fixed` are the axes of which a block has one position.
    """
    blocks = [s.block for s in states]
    visited = VisitRange()
    narrow_range(visited, terms, blocks, _ruling_conditions(terms, blocks, name), name, fixed)
    for leaf in _minus_infinities(blocks, name):
        visited.block_is_used = _joined(
            terms.logical_and, visited.block_is_used, terms.fails(terms.equals(leaf, -math.inf))
        )
    return visited


def narrow_range(
    visited: VisitRange,
    terms: Terms,
    blocks: list[Term],
    ruling: Iterable[tuple[Term, bool]],
    name: str,
    fixed: frozenset[str],
) -> None:
    """Narrow the visited part to where conditions do not rule out every contribution.

    `ruling` are conditions with the value for which nothing is contributed.
    """
    rules = BlockConditions(terms, name, fixed)
    position_rules = BlockConditions(terms, name, fixed, each=True)
    for condition, answer in ruling:
        needed = not answer
        hull = rules.hull(condition, needed)
        visited.start = _joined(terms.maximum, visited.start, hull.start)
        visited.stop = _joined(terms.minimum, visited.stop, hull.stop)
        if not hull.exact:
            visited.block_is_used = _joined(
                terms.logical_and,
                visited.block_is_used,
                _if_informative(rules.may(condition, needed)),
            )
            if None in (hull.start, hull.stop) and hull.dense:
                visited.position_is_used = _joined(
                    terms.logical_and,
                    visited.position_is_used,
                    _if_informative(position_rules.may(condition, needed)),
                )
        partial = _if_informative(rules.may(condition, answer))
        if partial is not None:
            visited.partial_masks |= _partial_values(terms, blocks, condition, needed, partial)


def bounds(
    terms: Terms, blocks: list[Term], name: str, fixed: frozenset[str]
) -> tuple[Term | None, Term | None]:
    """Return the range of the axis `name` in which reductions receive any contribution.

    First position and the one after the last, for a block of other axes; None where open.
    """
    start: Term | None = None
    stop: Term | None = None
    rules = BlockConditions(terms, name, fixed)
    for condition, answer in _ruling_conditions(terms, blocks, name):
        hull = rules.hull(condition, not answer)
        start = _joined(terms.maximum, start, hull.start)
        stop = _joined(terms.minimum, stop, hull.stop)
    return start, stop


def _joined(join: object, left: Term | None, right: Term | None) -> Term | None:
    if left is None or right is None:
        return right if left is None else left
    return join(left, right)  # type: ignore[operator]


def _if_informative(t: Term) -> Term | None:
    """Return a condition, or None if it is constantly true."""
    return None if t.kind == "const" and t.value else t


def _ruling_conditions(terms: Terms, blocks: list[Term], name: str) -> Iterator[tuple[Term, bool]]:
    """Iterate over outermost conditions with the value for which nothing is contributed."""
    leaf_conditions = conditions(blocks)
    parts = {b: {t for a in b.args for t in cone(a)} for b in blocks}

    def is_nothing(block: Term, values: Mapping[Term, bool]) -> bool:
        # the reduced axes do not matter: passes along several axes share elements
        key = block.op or block.kind, block.args, frozenset(values.items())
        result = terms.neutral_cache.get(key)
        if result is None:
            result = terms.neutral_cache[key] = _contributes_nothing(block, values)
        return result

    def rules_out(condition: Term, answer: bool) -> bool:
        values = implied_conditions(leaf_conditions, condition, answer)
        own_values = {b: {t: x for t, x in values.items() if t in parts[b]} for b in blocks}
        unaffected = [b for b in blocks if not own_values[b]]  # unaffected by the condition
        return all(is_nothing(b, {}) for b in unaffected) and all(
            is_nothing(b, own_values[b]) for b in blocks if own_values[b]
        )

    return outermost(blocks, name, rules_out)


def outermost(
    blocks: list[Term], name: str, rules_out: Callable[[Term, bool], bool]
) -> Iterator[tuple[Term, bool]]:
    """Iterate over conditions with a value that rules something out, skipping nested ones."""
    candidates = {t: None for b in blocks for a in b.args for t in cone(a) if t.dtype == bool_}
    ruling: dict[Term, bool] = {}
    for condition in candidates:
        if condition.kind == "const" or name not in condition.axes or not is_elementwise(condition):
            continue
        for answer in (False, True):
            if rules_out(condition, answer):
                ruling[condition] = answer
    inner = {t for c in ruling for t in cone(c) if t is not c}
    yield from ((c, answer) for c, answer in ruling.items() if c not in inner)


def _partial_values(
    terms: Terms, blocks: list[Term], condition: Term, answer: bool, partial: Term
) -> dict[Term, tuple[Term, Term]]:
    """Return the values that a condition selects or is, with their value for one answer."""
    values: dict[Term, tuple[Term, Term]] = {}
    for t in dict.fromkeys(t for b in blocks for a in b.args for t in cone(a)):
        if t.kind == "apply" and t.args[0] is condition and SCALARS[t.op].is_select:
            values[t] = partial, t.args[1 if answer else 2]
        elif t.kind == "cast" and t.args[0] is condition:
            values[t] = partial, terms.const(answer, t.dtype)
    return values


def _minus_infinities(blocks: list[Term], name: str) -> Iterator[Term]:
    """Iterate over array elements that rule out, as -inf, what they are added to.

    Only where that saves more than loading them costs (a reduction over other axes), and not for
    elements at computed positions, which a question about a whole block cannot express.
    """
    parts = dict.fromkeys(t for b in blocks for a in b.args for t in cone(a))
    if not any(t.kind == "opaque" and len(t.args) > 1 for t in parts):
        return
    for t in parts:
        if is_element(t) and is_elementwise(t) and t.dtype.is_float and name in t.axes:
            if all(_contributes_nothing(b, {t: -math.inf}) for b in blocks):
                yield t


class SampleValues:
    """Sample values for terms that are not computed."""

    def __init__(self) -> None:
        self.numbers = cycle(_sample_table())
        self.known: dict[Term, Array] = {}

    def __call__(self, t: Term) -> Array:
        if t not in self.known:
            offset = 0.37 if t.dtype.is_float else 0
            self.known[t] = (next(self.numbers) + offset).astype(t.dtype.numpy)
        return self.known[t]


def enumerate_conditions(
    elements: Iterable[Term], fixed: Mapping[Term, Any]
) -> dict[Term, Any] | None:
    """Return fixed values together with all combinations of the other conditions.

    Each combination is a row of the arrays. None if there are too many conditions.
    """
    values: dict[Term, Any] = {t: np.asarray(x, t.dtype.numpy) for t, x in fixed.items()}
    open_conditions = [
        t
        for t in dict.fromkeys(t for e in elements for t in cone(e))
        if is_leaf_condition(t) and t not in values
    ]
    if len(open_conditions) > MAX_CONDITIONS:
        return None
    rows = np.arange(1 << len(open_conditions))[:, None]
    return values | {t: (rows >> k & 1).astype(bool) for k, t in enumerate(open_conditions)}


def is_leaf_condition(t: Term) -> bool:
    """Return whether a term is a condition that is not composed of conditions."""
    if t.dtype != bool_ or t.kind == "const":
        return False
    return t.kind != "apply" or any(a.dtype != bool_ for a in t.args)


def conditions(blocks: Iterable[Term]) -> list[Term]:
    """Return the elementary conditions in the elements of reductions."""
    parts = dict.fromkeys(t for b in blocks for a in b.args for t in cone(a))
    return [t for t in parts if is_leaf_condition(t)]


def implied_conditions(
    leaf_conditions: Iterable[Term], condition: Term, answer: bool
) -> dict[Term, bool]:
    """Return the values of conditions that obviously follow from one condition's value."""
    values = {condition: answer}
    for t in leaf_conditions:
        if (
            t is not condition
            and (implied_value := implied_answer(t, condition, answer)) is not None
        ):
            values[t] = implied_value
    return values


def _contributes_nothing(block: Term, fixed: Mapping[Term, float | bool]) -> bool:
    row = COMBINES[SUM_OF_PRODUCTS[0] if block.kind == "dot" else block.op]
    identity = row.identity(block.args[0].dtype)
    values = enumerate_conditions(block.args, fixed)
    if values is None:
        return False
    drawn, evaluated = SampleValues(), {**values}
    is_neutral: Any = False
    for a in block.args:
        results = np.asarray(evaluate(a, drawn, evaluated), np.float64)
        if np.isnan(results).any():
            return False
        is_neutral = is_neutral | (results == identity)
    return bool(np.all(is_neutral)) and not any(
        _contributes(block, drawn, {**values, **single}, identity)
        for single in _masked_only(block, fixed, evaluated)
    )


def _contributes(block: Term, drawn: SampleValues, values: dict[Term, Any], identity: Any) -> bool:
    """Return whether a block contributes a number other than the identity for some sample."""
    is_neutral: Any = False
    for a in block.args:
        results = np.asarray(evaluate(a, drawn, values), np.float64)
        is_neutral = is_neutral | (results == identity) | np.isnan(results)
    return not np.all(is_neutral)


def _masked_only(
    block: Term, fixed: Mapping[Term, float | bool], evaluated: Mapping[Term, Any]
) -> Iterator[dict[Term, Any]]:
    """Iterate over values of reductions that have met masked elements alone.

    Such a reduction, read here or by way of memory, may be the number that the mask puts there,
    such as -1e9. From -inf alone a program makes NaN anyway.
    """
    parts = dict.fromkeys(t for a in block.args for t in cone(a))
    affected = set(fixed)
    for t in sorted(parts, key=lambda t: t.number):  # operands before readers
        if not t.is_reduction and not affected.isdisjoint(t.args):
            affected.add(t)
    loaded = [t for t in parts if t.dtype.is_float and t.kind not in _COMPUTED and t not in fixed]
    seen: set[bytes] = set()
    for t in parts:
        if not t.dtype.is_float or t.kind not in _COMPUTED or t in fixed or t not in affected:
            continue
        results = np.asarray(evaluated.get(t, 0.0))
        is_constant = np.isfinite(results) & (results != 0)
        if np.any(is_constant) and results.tobytes() not in seen:
            seen.add(results.tobytes())
            for reduction in loaded:
                value = np.where(is_constant, results, evaluated.get(reduction, 1.0))
                yield {reduction: value.astype(reduction.dtype.numpy)}


_COMPUTED = ("const", "apply", "cast")
