"""Print index expressions as integer arithmetic on lanes, with floor semantics.

x[i - 1, j] of f32[n,m]     (i - 1) * size_m + j
i // 3, where i may be < 0  floor_div(i, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from smelt.codegen.triton.writer import Text, Writer
from smelt.kernel.bounds import Facts, nonnegative
from smelt.kernel.ir import Param
from smelt.types.dtype import i32
from smelt.types.expr import Atom, Index, Monomial, product

FLOOR_FUNCTIONS = {
    "floor_div": '''
@triton.jit
def floor_div(a, b):
    """Divide integers and round down; b > 0."""
    return (a - (((a % b) + b) % b)) // b
''',
    "floor_mod": '''
@triton.jit
def floor_mod(a, b):
    """Return the remainder in 0 .. b-1; b > 0."""
    return ((a % b) + b) % b
''',
}
"""Functions for operands that may be negative: Triton's `//` and `%` round towards zero."""


def element_strides(param: Param) -> tuple[Index | None, ...]:
    """Return the elements between neighbours along each dimension; None for strides of a call."""
    shape = param.shape
    return param.strides or tuple(product(shape[d + 1 :]) for d in range(len(shape)))


def known_offset(param: Param, index: Sequence[Index]) -> Index:
    """Return the elements before the one at `index`, as far as the strides are known."""
    total: Index = 0
    for e, stride in zip(index, element_strides(param), strict=True):
        if stride is not None:
            total = total + e * stride
    return total


class IndexPrinter:
    """Prints index expressions; `variable` prints sizes, axes and computed positions."""

    def __init__(self, writer: Writer, variable: Callable[[Atom], Text], facts: Facts) -> None:
        self.writer, self.variable, self.facts = writer, variable, facts
        self.functions: set[str] = set()

    def text(self, e: Index) -> Text:
        """Return the text of an index expression, of 32 bits."""
        if isinstance(e, int):
            return Text(str(e), (), i32, e, is_atom=e >= 0)
        terms = [self._term(monomial, factor) for monomial, factor in e.terms]
        return reduce(self._sum, terms)

    def _sum(self, left: Text, right: Text) -> Text:
        if right.code.startswith("-"):
            return self._join(left, "-", replace(right, code=right.code[1:]), keep_left=True)
        return self._join(left, "+", right, keep_left=True)

    def _term(self, monomial: Monomial, factor: int) -> Text:
        if not monomial:
            return self.text(factor)
        product = reduce(lambda a, b: self._join(a, "*", b), map(self._atom, monomial))
        if factor in (1, -1):
            if factor > 0:
                return product
            return replace(product, code=f"-{product.operand}", is_atom=False)
        return self._join(Text(str(factor), (), i32), "*", product)

    def _join(self, left: Text, operator: str, right: Text, *, keep_left: bool = False) -> Text:
        """Write `left operator right`; a sum on the left of a sum keeps no parentheses."""
        axes = self.writer.joint(left, right)
        is_plain = keep_left and (left.axes == axes or not left.axes)
        first = left.code if is_plain else self.writer.spread(left, axes)
        is_product = operator in "+-" and right.axes in (axes, ()) and "+" not in right.code
        second = right.code if is_product and "-" not in right.code else None
        second = second or self.writer.spread(right, axes)
        return Text(f"{first} {operator} {second}", axes, i32, is_atom=False)

    def _atom(self, atom: Atom) -> Text:
        if atom.kind in ("size", "axis", "value"):
            return self.variable(atom)
        left, right = (self.text(e) for e in atom.args)
        axes = self.writer.joint(left, right)
        operands = f"{self.writer.spread(left, axes)}, {self.writer.spread(right, axes)}"
        if atom.kind in ("min", "max"):
            return Text(f"tl.{atom.kind}imum({operands})", axes, i32)
        if nonnegative(atom.args[0], self.facts):
            return replace(self._join(left, atom.kind, right), is_atom=False)
        name = "floor_div" if atom.kind == "//" else "floor_mod"
        self.functions.add(name)
        return Text(f"{name}({operands})", axes, i32)
