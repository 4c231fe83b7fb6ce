"""Choose the types in which a contraction's operands are multiplied.

A value is kept in float32 registers; where a half type represents all of its elements, converting
it back loses nothing, and the product of two halves is exact in float32. So tensor cores give the
sum that the kernel asks for, up to the order of additions. Other operands beside a half are sums of
bfloat16 terms, each of which has 8 bits: a float32 has three, a float16 two. Products of later
terms count where that of the first ones is finite: infinity times a later term, which may be zero
or of the other sign, would make NaN of infinity. The policy decides:

    exact    all products of terms: what is left out is 2^-24 of a product (float16), or nothing
    split    two terms of a float32 beside a bfloat16: 2^-16 of a product
    narrow   x rounded to the half type: 2^-8 of x for bfloat16, 2^-11 for float16

Without matrix units (Triton uses none before compute capability 8.0) float32 lanes multiply. So
they do 8-bit integers, whose products of a block have an exact sum in float32.

G. Henry, P. Tang, A. Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
Higher-Precision Computations", 2019.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from smelt.codegen.triton.block_axes import dots_of
from smelt.codegen.triton.schedule import Policy
from smelt.codegen.triton.writer import Text, type_name
from smelt.kernel.ir import Cast, Kernel, Let, Load, Ref, Value
from smelt.kernel.walk import MAX_BODIES, axes_of_body, axes_of_value, statements
from smelt.python.caches import cached_by_identity
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f16, f32, i8, i32

TERMS: dict[DType | None, int] = {bf16: 1, f16: 2, None: 3}
"""Terms of bfloat16 whose sum is a value of a type; None is float32."""

Term = Callable[[Text], Text]


@dataclass(frozen=True, slots=True)
class Products:
    """The terms of both operands whose contractions are added, and the options of each."""

    terms: Sequence[tuple[Term, Term]]
    options: str
    result: str = ""
    """What converts the result of each."""

    @property
    def has_two_terms(self) -> bool:
        """Whether an operand is read more than once."""
        return len(self.terms) > 1


def narrow_products(left: Text, right: Text, policy: Policy) -> Products:
    """Return how two operands of a contraction are multiplied."""
    if left.dtype != f32:
        if not policy.has_matrix_units:
            floats = [(_to(f32), _to(f32))]
            return Products(floats, ', input_precision="ieee"', ".to(tl.int32)")
        return Products([(_to(left.narrow), _to(right.narrow))], ", out_dtype=tl.int32")
    types = {left.narrow, right.narrow} - {None}
    if not types:
        return _in_float32(policy)
    half = bf16 if bf16 in types else f16
    is_multiplied = half == f16 or policy.has_matrix_units
    is_same = left.narrow == right.narrow or policy.products == "narrow"
    if types == {half} and is_same and is_multiplied:
        return Products([(_to(half), _to(half))], "")
    has_terms = policy.products == "exact" or (policy.products == "split" and types == {bf16})
    if has_terms and policy.has_matrix_units:
        orders = product_orders(left.narrow, right.narrow, policy)
        return Products([(_term(i), _term(j)) for i, j in orders], "")
    return _in_float32(policy)


@cached_by_identity(MAX_BODIES)
def operand_loads(kernel: Kernel) -> dict[Load, tuple[str, ...]]:
    """Return the loads whose elements a contraction multiplies, converted at most.

    Each has the kernel's axes in the order of its matrix: those of both results first, those summed
    last on the left side, and before the columns on the right one.
    """
    every = tuple(statements(kernel))
    axes_of = axes_of_body(every)
    names = {s.name: s.value for s in every if isinstance(s, Let)}

    def loaded(v: Value) -> Value:
        match v:
            case Ref(name=name, next=False) if name in names:
                return loaded(names[name])
            case Cast(arg=arg):
                return loaded(arg)
            case _:
                return v

    result: dict[Load, tuple[str, ...]] = {}
    for dot in dots_of(every):
        shared = axes_of_value(dot.left, axes_of) & axes_of_value(dot.right, axes_of)
        batch = [a.name for a in kernel.axes if a.name in shared - set(dot.over)]
        others = [a.name for a in kernel.axes if a.name not in (*batch, *dot.over)]
        left, right = loaded(dot.left), loaded(dot.right)
        if isinstance(right, Load):
            result[right] = (*batch, *dot.over, *others)
        if isinstance(left, Load):
            result[left] = (*batch, *others, *dot.over)
    return result


def matrix_axes(
    left: Sequence[str], right: Sequence[str], over: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the axes of two operands in the order of `tl.dot`.

    None for others than two matrices, or as many pairs of them as one more axis of both has lanes.

    >>> matrix_axes(("b", "m", "k"), ("b", "n", "k"), ("k",))
    (('b', 'm', 'k'), ('b', 'k', 'n'))
    >>> matrix_axes(("b", "m", "k"), ("n", "k"), ("k",))
    """
    batch = tuple(a for a in left if a in right and a not in over)
    summed = tuple(a for a in over if a in left and a in right)
    rows = tuple(a for a in left if a not in (*batch, *over))
    columns = tuple(a for a in right if a not in (*batch, *over))
    if len(batch) > 1 or not len(summed) == len(rows) == len(columns) == 1:
        return None
    is_all = not any(a in (*left, *right) and a not in summed for a in over)
    return ((*batch, *rows, *summed), (*batch, *summed, *columns)) if is_all else None


def is_dot(dtype: DType, left: DType | None, right: DType | None) -> bool:
    """Return whether `tl.dot` sums products of two types in `dtype`; else lanes do.

    >>> is_dot(f32, None, bf16), is_dot(i8, i8, i8)
    (True, False)
    """
    return dtype.compute == f32 or (dtype == i32 and left == right == i8)


def product_orders(
    left: DType | None, right: DType | None, policy: Policy
) -> list[tuple[int, int]]:
    """Return which terms of both operands meet: a term is 2^-8 of the one before.

    >>> from smelt.codegen.triton.schedule import EXACT
    >>> product_orders(None, bf16, EXACT)
    [(0, 0), (1, 0), (2, 0)]
    """
    counts = [TERMS.get(t, TERMS[None]) for t in (left, right)]
    most = 2 if policy.products == "exact" else 1
    pairs = itertools.product(range(counts[0]), range(counts[1]))
    return [(i, j) for i, j in pairs if i + j <= most]


def _in_float32(policy: Policy) -> Products:
    products = policy.products if policy.has_matrix_units else "exact"
    precision = {"exact": "ieee", "split": "tf32x3", "narrow": "tf32"}[products]
    return Products([(_as_it_is, _as_it_is)], f', input_precision="{precision}"')


def _as_it_is(x: Text) -> Text:
    return x.stored if x.stored is not None and x.stored.dtype == x.dtype else x


def _to(dtype: DType | None) -> Term:
    def term(x: Text) -> Text:
        if dtype is None or (x.stored is not None and x.stored.dtype == dtype):
            return x if x.stored is None else x.stored
        return _converted(x, x.operand, dtype)

    return term


def _converted(x: Text, code: str, dtype: DType) -> Text:
    return replace(x, code=f"{code}.to({type_name(dtype)})", dtype=dtype, is_atom=True)


def _term(order: int) -> Term:
    """Return the bfloat16 that the terms before leave of a finite number, the largest first."""

    def term(x: Text) -> Text:
        rest, high = x.operand, f"{x.operand}.to(tl.bfloat16)"
        for _ in range(order):
            rest = f"({rest} - {high}.to(tl.float32))"
            high = f"{rest}.to(tl.bfloat16)"
        return _converted(x, rest, bf16)

    return term
