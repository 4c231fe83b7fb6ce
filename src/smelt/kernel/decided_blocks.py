"""Find the blocks of a stream in which a condition fails everywhere.

    s = select(n <= m, t, -inf) if last(n) > first(m) else t

The condition compares sums of indices, so that it fails in all blocks of `n` between two positions:
here those before `first(m) + 1`. A loop over such blocks needs no mask.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.kernel.ir import Apply, Const, Extreme, If, IndexValue, Partial, Stream, Value
from smelt.kernel.walk import visit_body
from smelt.ops.combine import COMBINES, SUM_OF_PRODUCTS
from smelt.ops.scalar import SCALARS
from smelt.ops.symbolic import prime_implicants, sign_table
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Atom, Expr, Index, atoms, axes_of, coefficient

MAX_ARITY = 3
"""Maximum operands of an operator on truth values whose truth table is enumerated."""


@dataclass(frozen=True, slots=True)
class DecidedBlocks:
    """The blocks of a stream's axis in which `conditions` fail.

    They are those from the largest start to the least stop; each is one number for all visits.
    """

    axis: str
    conditions: frozenset[Value]
    starts: tuple[Value, ...]
    stops: tuple[Value, ...]


def decided_blocks(stream: Stream) -> DecidedBlocks | None:
    """Return where the conditions of a stream's masks fail; None if that is unknown."""
    if len(stream.blocks) != 1 or stream.bounds or stream.blocks[0].size == 1:
        return None
    axis = stream.blocks[0].axis
    conditions = {v.condition for v in visit_body(stream.body) if isinstance(v, If)}
    starts: list[Value] = []
    stops: list[Value] = []
    decided: set[Value] = set()
    for condition in conditions:
        bounds = _bounds(condition, False, axis)
        if bounds:
            decided.add(condition)
            starts += [v for is_stop, v in bounds if not is_stop]
            stops += [v for is_stop, v in bounds if is_stop]
    if not decided:
        return None
    ends = (tuple(sorted(set(x), key=repr)) for x in (starts, stops))
    return DecidedBlocks(axis, frozenset(decided), *ends)


def _bounds(condition: Value, target: bool, name: str) -> list[tuple[bool, Value]] | None:
    """Return ends of a range of blocks in which a condition is `target` everywhere.

    Each end is paired with whether it is a stop. None if there is no such range.
    """
    if isinstance(condition, Partial):
        return None if target else _bounds(condition.condition, True, name)
    if not isinstance(condition, Apply):
        return None
    end = _compared(condition, target, name)
    if end is not None:
        return [end]
    arity = len(condition.args)
    if arity > MAX_ARITY or any(not isinstance(a, Apply | Partial) for a in condition.args):
        return None
    for implicant in prime_implicants(condition.op, arity, target):
        parts = [_bounds(condition.args[k], value, name) for k, value in implicant]
        if all(parts):
            return [end for part in parts for end in part or ()]
    return None


# ---- comparisons of sums of indices --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sum:
    """A number and sizes, and terms with factors: ends of a block, or indices (end None)."""

    index: Index
    terms: Mapping[tuple[Atom, bool | None], int]

    def plus(self, other: _Sum, factor: int) -> _Sum:
        """Return the sum with `factor` times another one."""
        terms = dict(self.terms)
        for key, n in other.terms.items():
            terms[key] = terms.get(key, 0) + factor * n
        return _Sum(self.index + other.index * factor, {key: n for key, n in terms.items() if n})


def _compared(condition: Apply, target: bool, name: str) -> tuple[bool, Value] | None:
    """Return an end of the blocks in which a comparison is `target`.

    With it, whether it is a stop.
    """
    sides = [_sum(a) for a in condition.args] if len(condition.args) == 2 else [None]
    left, right = (*sides, None)[:2]
    if left is None or right is None:
        return None
    answers = sign_table(condition.op)
    signs = {sign for sign, answer in answers if answer == target}
    if len(answers) != 3 or len(signs & {-1, 1}) != 1:
        return None
    difference = _Sum(0, {}).plus(left, 1).plus(right, -1)
    if 1 in signs:
        difference = _Sum(0, {}).plus(difference, -1)
    streamed = [key for key in difference.terms if key[0].name == name]
    if len(streamed) != 1 or abs(factor := difference.terms[streamed[0]]) != 1:
        return None
    others = {key: n for key, n in difference.terms.items() if key != streamed[0]}
    # factor * place + the largest value of the others is at most 0, or less
    is_stop, is_strict = factor == 1, 0 not in signs
    total = difference.index + int(is_strict)
    first: Value = IndexValue(1 - total if is_stop else total, i64)
    for (atom, end), n in others.items():
        index = IndexValue(Expr((((atom,), 1),)), i64)
        extreme = Extreme(index, n > 0 if end is None else end)
        factors = Const(-n if is_stop else n, i64), extreme
        term = extreme if factors[0].value == 1 else Apply(SUM_OF_PRODUCTS[1], factors)
        first = Apply(COMBINES[SUM_OF_PRODUCTS[0]].scalar, (first, term))
    return is_stop, first


def _sum(v: Value) -> _Sum | None:
    """Return an integer as a sum of indices, ends of blocks, sizes and a number."""
    match v:
        case Const(value=number, dtype=dtype) if dtype == i64:
            return _Sum(int(number), {})
        case IndexValue(index=index, dtype=dtype) if dtype == i64:
            return _of_index(index, None)
        case Extreme(arg=IndexValue(index=index, dtype=dtype), largest=largest) if dtype == i64:
            return _of_index(index, largest)
        case Apply(op=op, args=args) if factors := SCALARS[op].linear:
            total = _Sum(0, {})
            for part, factor in zip(map(_sum, args), factors, strict=True):
                if part is None:
                    return None
                total = total.plus(part, factor)
            return total
        case _:
            return None


def _of_index(e: Index, largest: bool | None) -> _Sum | None:
    """Return an affine index, or its extreme: that of each axis, by the sign of its factor."""
    rest: Index = e
    terms: dict[tuple[Atom, bool | None], int] = {}
    for atom in atoms(e):
        if atom.kind == "value":
            return None
        if atom.kind == "axis":
            factor = coefficient(e, atom.name)
            if not isinstance(factor, int):
                return None
            rest = rest - Expr((((atom,), 1),)) * factor
            terms[atom, None if largest is None else largest == (factor > 0)] = factor
    return None if axes_of(rest) else _Sum(rest, terms)
