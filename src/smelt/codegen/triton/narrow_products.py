"""Choose the types in which a contraction's operands are multiplied.

A value is kept in float32 registers; where a half type represents all of its elements, converting
it back loses nothing, and the product of two halves is exact in float32. So tensor cores give the
sum that the kernel asks for, up to the order of additions. For a float32 beside a half, the policy
decides:

    exact    in float32, without tensor cores
    split    x = high + low with two bfloat16: what is left is 2^-16 of x
    narrow   x rounded to the half type: 2^-8 of x for bfloat16, 2^-11 for float16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.codegen.triton.schedule import Policy
from smelt.codegen.triton.writer import Text, type_name
from smelt.dataclass import dataclass
from smelt.types.dtype import DType, bf16, f32

__all__ = ["Products", "narrow_products"]

Term = Callable[[Text], str]


@dataclass(frozen=True, slots=True)
class Products:
    """The terms of both operands whose contractions are added, and the options of each."""

    terms: Sequence[tuple[Term, Term]]
    options: str

    @property
    def has_two_terms(self) -> bool:
        """Whether an operand is read more than once."""
        return len(self.terms) > 1


def narrow_products(left: Text, right: Text, policy: Policy) -> Products:
    """Return how two operands of a contraction are multiplied."""
    if left.dtype != f32:
        return Products([(_to(left.narrow), _to(right.narrow))], ", out_dtype=tl.int32")
    half = left.narrow or right.narrow
    is_mixed = left.narrow != right.narrow
    if half is not None and (not is_mixed or policy.products == "narrow"):
        return (
            Products([(_to(left.narrow or half), _to(right.narrow or half))], "")
            if (left.narrow in (None, half) and right.narrow in (None, half))
            else _in_float32(policy)
        )
    if half == bf16 and policy.products == "split" and None in (left.narrow, right.narrow):
        terms = [
            tuple(_to(half) if x.narrow else term for x in (left, right))
            for term in (_to(half), _rest)
        ]
        return Products([(a, b) for a, b in terms], "")
    return _in_float32(policy)


def _in_float32(policy: Policy) -> Products:
    precision = {"exact": "ieee", "split": "tf32x3", "narrow": "tf32"}[policy.products]
    return Products([(_as_it_is, _as_it_is)], f', input_precision="{precision}"')


def _as_it_is(x: Text) -> str:
    return x.code


def _to(dtype: DType | None) -> Term:
    def term(x: Text) -> str:
        return x.code if dtype is None else f"{x.operand}.to({type_name(dtype)})"

    return term


def _rest(x: Text) -> str:
    """Return what rounding to bfloat16 leaves of finite numbers."""
    high = f"{x.operand}.to(tl.bfloat16).to(tl.float32)"
    is_finite = f'tl.abs({high}) < float("inf")'
    return f"tl.where({is_finite}, {x.operand} - {high}, 0.0).to(tl.bfloat16)"
