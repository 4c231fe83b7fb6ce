"""Terms: what the folds over one axis compute, as a graph of scalar operators; equal terms are one.

The planner makes terms from operators' definitions and lowering makes them from a kernel's values;
the analysis of a cascade sees nothing else, hence neither names of operators nor shapes.

>>> from smelt.types.dtype import f32
>>> terms = Terms()
>>> x = terms.leaf("x", {"n"}, f32)
>>> m = terms.fold("max", x, ("n",), f32)
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

from smelt.dataclass import dataclass
from smelt.kernel.ir import IndexValue
from smelt.ops.cast import cast_reference
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_, i8, i64
from smelt.types.expr import Index, add, axes_of, axis, mul

Number: TypeAlias = float | int | bool
Kind: TypeAlias = Literal[
    "const",
    "leaf",
    "opaque",
    "apply",
    "cast",
    "fold",
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
    """One value.  Kinds:

    const    a number (`value`)
    leaf     an element from outside (`value` tells the maker of the terms which)
    opaque   something that is no scalar operator, such as a fold over another axis
    apply    the scalar operator `op`
    cast     a conversion to `dtype`
    fold     the fold `op` (a row of COMBINES) of one argument over the axes `over`
    dot      the sum of products of two arguments over `over`
    count    how many elements `over` has
    first    the argument at the first position of a third (`value`) of the axes `over`
    extreme  the least (`value` True: the most) that an integer is in a block
    fails    whether a condition fails somewhere in a block
    old      the carried state number `value`: before a block, and after the last one
    new      the same after the present block
    """

    number: int
    kind: Kind
    op: str
    args: tuple[Term, ...]
    axes: frozenset[str]
    dtype: DType
    value: Any = None
    over: tuple[str, ...] = ()
    is_fold: bool = False
    """Ends axes that the analysis knows of."""
    folds: frozenset[Term] = frozenset()
    """The folds that it reads (a fold: its arguments read), none behind another one."""

    def __repr__(self) -> str:
        shown = self.op or self.kind
        if self.value is not None:
            shown += f":{self.value}"
        return shown if not self.args else f"{shown}({', '.join(map(repr, self.args))})"


NO_AXES, NO_FOLDS = frozenset[str](), frozenset[Term]()


class Terms:
    """Makes terms, equal ones once."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Term] = {}
        self.nothing: dict[Hashable, bool] = {}
        """Whether reductions add nothing, by elements and conditions (`block_sparsity.py`)."""

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
        """The term with these parts."""
        own = (repr(value), type(value)) if kind == "const" else value
        key = kind, op, tuple([a.number for a in args]), dtype.name, own, over
        found = self.known.get(key)
        if found is None:
            number = len(self.known)
            is_fold = kind in ("fold", "dot")
            found = Term(
                number, kind, op, args, frozenset(axes), dtype, value, over, is_fold, _folds(args)
            )
            self.known[key] = found
        return found

    # ---- kinds ---------------------------------------------------------------------------------

    def const(self, value: Number, dtype: DType) -> Term:
        """A number."""
        plain = float(value) if dtype.is_float else bool(value) if dtype == bool_ else int(value)
        return self.make("const", "", (), (), dtype, plain)

    def leaf(self, value: Hashable, axes: Iterable[str], dtype: DType) -> Term:
        """An element from outside."""
        return self.make("leaf", "", (), axes, dtype, value)

    def opaque(
        self, value: Hashable, args: tuple[Term, ...], axes: Iterable[str], dtype: DType
    ) -> Term:
        """Something else, made of terms."""
        return self.make("opaque", "", args, axes, dtype, value)

    def apply(self, op: str, *args: Term) -> Term:
        """A scalar operator; the result type follows from its row."""
        dtype = _result(op, tuple([a.dtype for a in args]))
        return self.make("apply", op, args, _axes(args), dtype)

    def cast(self, arg: Term, dtype: DType) -> Term:
        """A conversion; to a half type it rounds, and goes on in float32 (`value` says so)."""
        if dtype == arg.dtype:
            return arg
        half = dtype if dtype.compute != dtype else None
        return self.make("cast", "", (arg,), arg.axes, dtype.compute, half)

    def fold(self, combine: str, arg: Term, over: tuple[str, ...], dtype: DType) -> Term:
        """A fold over axes."""
        return self.make("fold", combine, (arg,), arg.axes - set(over), dtype, None, over)

    def winner(
        self, combine: str, arg: Term, over: tuple[str, ...], extents: Mapping[str, Index]
    ) -> Term:
        """A fold that asks where the winner stands: with the row-major position as an operand."""
        at: Index = 0
        for a in over:
            at = add(mul(at, extents[a]), axis(a, extents[a]))
        arg = self.cast(arg, i8) if arg.dtype.kind == "bool" else arg  # truths have no extremes
        args, axes = (arg, self.index(at)), arg.axes - set(over)
        return self.make("fold", combine, args, axes, i64, None, over)

    def dot(self, left: Term, right: Term, over: tuple[str, ...], dtype: DType) -> Term:
        """A sum of products over axes; of factors of a half type (`value` says so) in float32."""
        axes = _axes((left, right)) - set(over)
        half = dtype if dtype.compute != dtype else None
        return self.make("dot", "", (left, right), axes, dtype.compute, half, over)

    def count(self, over: tuple[str, ...], dtype: DType) -> Term:
        """How many elements axes have."""
        return self.make("count", "", (), (), dtype, None, over)

    def first(self, arg: Term, over: tuple[str, ...], third: int = 0) -> Term:
        """A term at the first position of axes, or of their second or last third."""
        if not arg.axes & set(over):
            return arg
        return self.make("first", "", (arg,), arg.axes - set(over), arg.dtype, third, over)

    def state(self, number: int, axes: Iterable[str], dtype: DType, *, new: bool = False) -> Term:
        """A carried state."""
        return self.make("new" if new else "old", "", (), axes, dtype, number)

    # ---- what blocks of a stream are told by ---------------------------------------------------

    def index(self, e: Index) -> Term:
        """A position as an integer."""
        if isinstance(e, int):
            return self.const(e, i64)
        return self.opaque(IndexValue(e, i64), (), axes_of(e), i64)

    def extreme(self, arg: Term, *, largest: bool) -> Term:
        """The least or the most of an integer in a block."""
        return self.make("extreme", "", (arg,), (), arg.dtype, largest)

    def fails(self, condition: Term) -> Term:
        """Whether a condition fails somewhere in a block."""
        return self.make("fails", "", (condition,), (), bool_)

    def negated(self, t: Term) -> Term:
        """The opposite of a condition."""
        if t.kind == "const":
            return self.const(not t.value, bool_)
        return t.args[0] if t.op == "not" else self.apply("not", t)

    def both(self, x: Term, y: Term) -> Term:
        """Whether two conditions hold."""
        return self._logical("and", x, y, False)

    def either(self, x: Term, y: Term) -> Term:
        """Whether one of two conditions holds."""
        return self._logical("or", x, y, True)

    def _logical(self, op: str, x: Term, y: Term, decides: bool) -> Term:
        for one, other in ((x, y), (y, x)):
            if one.kind == "const":
                return one if one.value == decides else other
        return x if x is y else self.apply(op, x, y)

    def exceeds(self, x: Term, y: Term, *, strict: bool) -> Term:
        """x > y, or x >= y."""
        return self.apply("gt" if strict else "ge", x, y)

    def greater(self, x: Term, y: Term) -> Term:
        """The greater of two numbers."""
        return x if x is y else self.apply("max", x, y)

    def lesser(self, x: Term, y: Term) -> Term:
        """The lesser of two numbers."""
        return x if x is y else self.apply("min", x, y)

    def as_good(self, x: Term, best: Term) -> Term:
        """Whether x is the best number of all, or NaN, than which nothing is better."""
        same = self.apply("eq", x, best)
        return self.either(same, self.negated(self.apply("eq", x, x))) if x.dtype.is_float else same

    def is_number(self, x: Term) -> Term:
        """Whether x is not NaN."""
        return self.apply("eq", x, x)

    def equals(self, x: Term, number: Number) -> Term:
        """Whether x is a number."""
        return self.apply("eq", x, self.const(number, x.dtype))

    # ---- what transports are built with --------------------------------------------------------

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
        """`then` where x is a number, else `otherwise`."""
        return self.choose(self.equals(x, number), then, otherwise)

    def choose(self, condition: Term, then: Term, otherwise: Term) -> Term:
        """`then` where a condition holds, else `otherwise`."""
        return self.apply("select", condition, then, otherwise)

    # ---- ways through --------------------------------------------------------------------------

    def width(self, name: str, sizes: Mapping[str, int]) -> int:
        """The most elements that any term has at one position of an axis, along axes of `sizes`."""
        return width(self.known.values(), name, sizes)

    def swap(self, term: Term, new: Mapping[Term, Term]) -> Term:
        """`term` with terms in it replaced; what folds read is left alone."""
        done: dict[Term, Term] = dict(new)

        def walk(t: Term) -> Term:
            found = done.get(t)
            if found is None:
                args = t.args if t.is_fold else tuple(map(walk, t.args))
                found = t if args == t.args else self._with(t, args)
                done[t] = found
            return found

        return walk(term)

    def _with(self, t: Term, args: tuple[Term, ...]) -> Term:
        gone = frozenset(t.over) if t.kind == "first" else NO_AXES
        kept = t.axes - _axes(t.args)  # axes of its own
        return self.make(t.kind, t.op, args, (_axes(args) | kept) - gone, t.dtype, t.value, t.over)


def width(terms: Iterable[Term], name: str, sizes: Mapping[str, int]) -> int:
    """The same of some terms."""
    found = {t.axes for t in terms if name in t.axes}
    return max(
        (prod(sizes[a] for a in axes if a in sizes and a != name) for axes in found), default=1
    )


@lru_cache(maxsize=1024)
def _result(op: str, dtypes: tuple[DType, ...]) -> DType:
    """The type that a scalar operator computes in."""
    return SCALARS[op].result(*dtypes).compute


def _axes(terms: Iterable[Term]) -> frozenset[str]:
    return NO_AXES.union(*[t.axes for t in terms])


def _folds(args: tuple[Term, ...]) -> frozenset[Term]:
    """The folds that arguments are or read."""
    found = NO_FOLDS
    for a in args:
        more = frozenset((a,)) if a.is_fold else a.folds
        found = found | more if found else more
    return found


def cone(term: Term) -> Iterator[Term]:
    """The terms that `term` is made of, itself first, down to leaves and folds."""
    seen = {term}
    pending = [term]
    while pending:
        t = pending.pop()
        yield t
        for a in () if t.is_fold and t is not term else t.args:
            if a not in seen:
                seen.add(a)
                pending.append(a)


def folds_in(term: Term) -> frozenset[Term]:
    """The folds that `term` (if a fold, its arguments) reads."""
    return term.folds


def evaluate(term: Term, given: Callable[[Term], Any], known: dict[Term, Any] | None = None) -> Any:
    """The value of a term, as an array or a scalar; `given` knows leaves, folds and states, and
    `known` the values of some terms, to which those of others are added."""
    known = {} if known is None else known

    def walk(t: Term) -> Any:
        if t not in known:
            match t.kind:
                case "const":
                    known[t] = np.asarray(t.value, t.dtype.numpy)
                case "apply":
                    known[t] = SCALARS[t.op].numpy(*map(walk, t.args))
                case "cast":
                    wanted = t.value or t.dtype
                    found = cast_reference(np.asarray(walk(t.args[0])), wanted)
                    known[t] = found.astype(t.dtype.numpy)
                case _:
                    known[t] = given(t)
        return known[t]

    with np.errstate(all="ignore"):
        return walk(term)
