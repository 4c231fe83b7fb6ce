"""Build hash-consed scalar expression graphs of the reductions over a streamed axis.

A *term* is a node of an expression graph: a scalar operator, a reduction, an element of an array.
Equal terms are one object (hash consing), so `is` compares them.

The planner builds terms from the operators' `define` methods, lowering builds them from the values
of a kernel. The cascade analysis sees nothing but terms: no operator names of the graph and no
shapes. Axes are known by name ("n"); `Term.axes` are those that a term varies along.

>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"n"}, f32)
>>> m = terms.reduce("max", x, ("n",), f32)
>>> terms.apply("exp", terms.sub(x, m)) is terms.apply("exp", terms.sub(x, m))
True
>>> sorted(x.axes), sorted(m.axes)
(['n'], [])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np

from smelt.graph.walk import reachable
from smelt.kernel.ir import IndexValue
from smelt.ops.cast import cast_reference
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, i8, i64
from smelt.types.expr import Index, add, axes_of, axis, mul
from smelt.types.text import number_text

Number: TypeAlias = float | int | bool
Kind: TypeAlias = Literal[
    "const",
    "leaf",
    "opaque",
    "apply",
    "cast",
    "reduce",
    "dot",
    "count",
    "first",
    "extreme",
    "fails",
    "old",
    "new",
]


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Node of an expression graph.

    Kinds:

      const    a number (`value`)
      leaf     an element of an array (`value` identifies it to whoever built the terms)
      opaque   anything that is not a scalar operator, such as a reduction over another axis
      apply    the scalar operator `op`
      cast     a conversion to `dtype`
      fold     the reduction `op` (a row of COMBINES) of one argument over the axes `over`
      dot      the sum of products of two arguments over `over`
      count    the number of elements of `over`
      first    the argument at the start of a third (`value`: 0, 1 or 2) of the axes `over`
      extreme  the minimum (`value` True: the maximum) of an integer in a block
      fails    whether a condition is false somewhere in a block
      old      the carried state number `value`: before a block, and after the last one
      new      the same state after the current block
    """

    number: int
    kind: Kind
    op: str
    args: tuple[Term, ...]
    axes: frozenset[str]
    dtype: DType
    value: Any = None
    over: tuple[str, ...] = ()
    is_reduction: bool = False
    """Whether the term reduces axes that the analysis knows."""
    reductions: frozenset[Term] = frozenset()
    """The reductions that it reads directly, not through another reduction."""

    def __repr__(self) -> str:
        shown = self.op or self.kind
        if self.value is not None:
            shown += f":{self.value}"
        return shown if not self.args else f"{shown}({', '.join(map(repr, self.args))})"


NO_AXES, NO_REDUCTIONS = frozenset[str](), frozenset[Term]()


class Terms:
    """Builds terms and interns them: equal terms are the same object."""

    def __init__(self) -> None:
        self.interned: dict[Hashable, Term] = {}
        self.neutral_cache: dict[Hashable, bool] = {}
        """Whether blocks contribute nothing, by elements and conditions (`block_sparsity.py`)."""

    def make(
        self,
        kind: Kind,
        op: str,
        args: tuple[Term, ...],
        axes: Iterable[str],
        dtype: DType,
        value: Any = None,
        over: tuple[str, ...] = (),
    ) -> Term:
        """Return the interned term with these parts."""
        value_key = (number_text(value), type(value)) if kind == "const" else value
        key = kind, op, tuple([a.number for a in args]), dtype.name, value_key, over
        term = self.interned.get(key)
        if term is None:
            number = len(self.interned)
            is_reduction = kind in ("reduce", "dot")
            term = Term(
                number,
                kind,
                op,
                args,
                frozenset(axes),
                dtype,
                value,
                over,
                is_reduction,
                _direct_reductions(args),
            )
            self.interned[key] = term
        return term

    # ---- kinds ---------------------------------------------------------------------------------

    def const(self, value: Number, dtype: DType) -> Term:
        """Return a constant of a type."""
        plain = float(value) if dtype.is_float else bool(value) if dtype == bool_ else int(value)
        return self.make("const", "", (), (), dtype, plain)

    def leaf(self, value: Hashable, axes: Iterable[str], dtype: DType) -> Term:
        """Return an element of an array; `value` identifies it."""
        return self.make("leaf", "", (), axes, dtype, value)

    def opaque(
        self, value: Hashable, args: tuple[Term, ...], axes: Iterable[str], dtype: DType
    ) -> Term:
        """Return a term that the analysis does not look into, with its arguments."""
        return self.make("opaque", "", args, axes, dtype, value)

    def apply(self, op: str, *args: Term) -> Term:
        """Return a scalar operator on terms; the result type follows from its table row."""
        dtype = _result_type(op, tuple([a.dtype for a in args]))
        return self.make("apply", op, args, _axes(args), dtype)

    def cast(self, arg: Term, dtype: DType) -> Term:
        """Return a conversion to a type.

        One to a half type rounds and continues in float32 (`value` is the half type).
        """
        if dtype == arg.dtype:
            return arg
        half = dtype if dtype.compute != dtype else None
        return self.make("cast", "", (arg,), arg.axes, dtype.compute, half)

    def reduce(self, combine: str, arg: Term, over: tuple[str, ...], dtype: DType) -> Term:
        """Return the reduction of a term over axes."""
        return self.make("reduce", combine, (arg,), arg.axes - set(over), dtype, None, over)

    def arg_reduce(
        self, combine: str, arg: Term, over: tuple[str, ...], extents: Mapping[str, Index]
    ) -> Term:
        """Return an arg-reduction: its second operand is the row-major position over the axes."""
        position: Index = 0
        for a in over:
            position = add(mul(position, extents[a]), axis(a, extents[a]))
        # bool has no identity for min and max
        arg = self.cast(arg, i8) if arg.dtype.kind == "bool" else arg
        args, axes = (arg, self.index(position)), arg.axes - set(over)
        return self.make("reduce", combine, args, axes, i64, None, over)

    def dot(self, left: Term, right: Term, over: tuple[str, ...], dtype: DType) -> Term:
        """Return a sum of products over axes.

        Factors of a half type (`value` of the term) are summed in float32.
        """
        axes = _axes((left, right)) - set(over)
        half = dtype if dtype.compute != dtype else None
        return self.make("dot", "", (left, right), axes, dtype.compute, half, over)

    def count(self, over: tuple[str, ...], dtype: DType) -> Term:
        """Return the number of elements of axes."""
        return self.make("count", "", (), (), dtype, None, over)

    def first(self, arg: Term, over: tuple[str, ...], third: int = 0) -> Term:
        """Return a term at the start of axes, or of a later third of them.

        `third` is 0, 1 or 2: the start, or the start of the second or last third.
        """
        if not arg.axes & set(over):
            return arg
        return self.make("first", "", (arg,), arg.axes - set(over), arg.dtype, third, over)

    def state(self, number: int, axes: Iterable[str], dtype: DType, *, new: bool = False) -> Term:
        """Return a carried state, before or after the current block."""
        return self.make("new" if new else "old", "", (), axes, dtype, number)

    # ---- conditions and positions --------------------------------------------------------------

    def index(self, e: Index) -> Term:
        """Return a position as an integer."""
        if isinstance(e, int):
            return self.const(e, i64)
        return self.opaque(IndexValue(e, i64), (), axes_of(e), i64)

    def extreme(self, arg: Term, *, largest: bool) -> Term:
        """Return the minimum or maximum of an integer in a block."""
        return self.make("extreme", "", (arg,), (), arg.dtype, largest)

    def fails(self, condition: Term) -> Term:
        """Return whether a condition is false somewhere in a block."""
        return self.make("fails", "", (condition,), (), bool_)

    def logical_not(self, t: Term) -> Term:
        """Return the negation of a condition, simplified."""
        if t.kind == "const":
            return self.const(not t.value, bool_)
        return t.args[0] if t.op == "not" else self.apply("not", t)

    def logical_and(self, x: Term, y: Term) -> Term:
        """Return the conjunction of two conditions, simplified."""
        return self._logical("and", x, y, False)

    def logical_or(self, x: Term, y: Term) -> Term:
        """Return the disjunction of two conditions, simplified."""
        return self._logical("or", x, y, True)

    def _logical(self, op: str, x: Term, y: Term, absorbing: bool) -> Term:
        for one, other in ((x, y), (y, x)):
            if one.kind == "const":
                return one if one.value == absorbing else other
        return x if x is y else self.apply(op, x, y)

    def exceeds(self, x: Term, y: Term, *, strict: bool) -> Term:
        """Return x > y (`strict`) or x >= y."""
        return self.apply("gt" if strict else "ge", x, y)

    def maximum(self, x: Term, y: Term) -> Term:
        """Return the maximum of two terms."""
        return x if x is y else self.apply("max", x, y)

    def minimum(self, x: Term, y: Term) -> Term:
        """Return the minimum of two terms."""
        return x if x is y else self.apply("min", x, y)

    def is_best_or_nan(self, x: Term, best: Term) -> Term:
        """Return whether x equals the best value or is NaN (NaN beats every number)."""
        is_best = self.apply("eq", x, best)
        return (
            self.logical_or(is_best, self.logical_not(self.apply("eq", x, x)))
            if x.dtype.is_float
            else is_best
        )

    def is_number(self, x: Term) -> Term:
        """Return whether x is not NaN."""
        return self.apply("eq", x, x)

    def equals(self, x: Term, number: Number) -> Term:
        """Return whether x equals a number."""
        return self.apply("eq", x, self.const(number, x.dtype))

    # ---- arithmetic ----------------------------------------------------------------------------

    def add(self, x: Term, y: Term) -> Term:
        return self.apply("add", x, y)

    def sub(self, x: Term, y: Term) -> Term:
        return self.apply("sub", x, y)

    def mul(self, x: Term, y: Term) -> Term:
        return self.apply("mul", x, y)

    def div(self, x: Term, y: Term) -> Term:
        return self.apply("div", x, y)

    def neg(self, x: Term) -> Term:
        return self.apply("neg", x)

    def where_equal(self, x: Term, number: Number, then: Term, otherwise: Term) -> Term:
        """Return `then` where x equals a number, else `otherwise`."""
        return self.select(self.equals(x, number), then, otherwise)

    def select(self, condition: Term, then: Term, otherwise: Term) -> Term:
        """Return `then` where a condition holds, else `otherwise`."""
        return self.apply("select", condition, then, otherwise)

    # ---- traversal -----------------------------------------------------------------------------

    def width(self, name: str, sizes: Mapping[str, int]) -> int:
        """Return the most elements of any term per position of an axis.

        Elements are counted along the axes in `sizes`.
        """
        return width(self.interned.values(), name, sizes)

    def substitute(self, term: Term, new: Mapping[Term, Term]) -> Term:
        """Return `term` with subterms replaced; the arguments of reductions stay as they are."""
        replaced: dict[Term, Term] = dict(new)

        def walk(t: Term) -> Term:
            result = replaced.get(t)
            if result is None:
                args = t.args if t.is_reduction else tuple(map(walk, t.args))
                result = t if args == t.args else self._with(t, args)
                replaced[t] = result
            return result

        return walk(term)

    def _with(self, t: Term, args: tuple[Term, ...]) -> Term:
        removed = frozenset(t.over) if t.kind == "first" else NO_AXES
        # axes that come from no argument, such as those of a position
        extra = t.axes - _axes(t.args)
        return self.make(
            t.kind, t.op, args, (_axes(args) | extra) - removed, t.dtype, t.value, t.over
        )


def width(terms: Iterable[Term], name: str, sizes: Mapping[str, int]) -> int:
    """Return the most elements of any term per position of an axis.

    Elements are counted along the axes in `sizes`.
    """
    axis_sets = {t.axes for t in terms if name in t.axes}
    return max(
        (prod(sizes[a] for a in axes if a in sizes and a != name) for axes in axis_sets), default=1
    )


@lru_cache(maxsize=1024)
def _result_type(op: str, dtypes: tuple[DType, ...]) -> DType:
    """Return the type that a scalar operator computes in."""
    return SCALARS[op].result(*dtypes).compute


def _axes(terms: Iterable[Term]) -> frozenset[str]:
    return NO_AXES.union(*[t.axes for t in terms])


def _direct_reductions(args: tuple[Term, ...]) -> frozenset[Term]:
    reductions = NO_REDUCTIONS
    for a in args:
        direct = frozenset((a,)) if a.is_reduction else a.reductions
        reductions = reductions | direct if reductions else direct
    return reductions


def cone(term: Term) -> Iterator[Term]:
    """Iterate over the subterms of `term`, itself first, down to leaves and reductions."""
    return reachable([term], lambda t: () if t.is_reduction and t is not term else t.args)


def subterms(term: Term) -> Iterator[Term]:
    """Iterate over the subterms of `term`, itself first, those of reductions included."""
    return reachable([term], lambda t: t.args)


def reductions_in(term: Term) -> frozenset[Term]:
    """Return the reductions that `term` (if a reduction, its arguments) reads."""
    return term.reductions


def evaluate(
    term: Term, leaf_value: Callable[[Term], Any], values: dict[Term, Any] | None = None
) -> Any:
    """Return the value of a term as an array or scalar.

    `leaf_value` supplies leaves, reductions and states. `values` holds values that are known
    already; those that are computed are added.
    """
    values = {} if values is None else values

    def walk(t: Term) -> Any:
        if t not in values:
            match t.kind:
                case "const":
                    values[t] = np.asarray(t.value, t.dtype.numpy)
                case "apply":
                    values[t] = SCALARS[t.op].numpy(*map(walk, t.args))
                case "cast":
                    target = t.value or t.dtype
                    converted = cast_reference(np.asarray(walk(t.args[0])), target)
                    values[t] = converted.astype(t.dtype.numpy)
                case _:
                    values[t] = leaf_value(t)
        return values[t]

    with np.errstate(all="ignore"):
        return walk(term)
