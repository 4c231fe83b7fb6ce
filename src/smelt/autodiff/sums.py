"""Avoid sums in gradients: those that are zero, and those that follow from another sum.

Two identities make gradients as cheap as the ones written by hand (`docs/derivations.md`, attention
backward):

    zero sums    Σⱼ (xⱼ - mean x)·k = 0          a variance sends nothing back through its mean
    sum swap     Σⱼ Pᵢⱼ Σ_d gᵢ_d Vⱼ_d = Σ_d gᵢ_d Oᵢ_d    where O = P·V was computed anyway
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from smelt.autodiff.tape import Step
from smelt.graph.ir import Node
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, SizeOf
from smelt.ops.elementwise import Map
from smelt.ops.reduce import Reduce
from smelt.ops.view import Expand, Reshape
from smelt.types.expr import Index, product
from smelt.types.tensor import TensorType

Axes = tuple[int, ...]
MAX_DEPTH = 12
"""Maximum operators that the analysis of a sum follows."""


def scalar_operator(x: Node) -> str:
    """Return the scalar row that made a value; empty for any other operator."""
    return x.op.scalar if isinstance(x.op, Map) and x.inputs else ""


def same_value(x: Node, y: Node, depth: int = 4) -> bool:
    """Whether two values are the same, comparing up to `depth` operators."""
    if x is y:
        return True
    if x.op != y.op or not depth or len(x.inputs) != len(y.inputs):
        return False
    if not x.inputs:
        return isinstance(x.op, (Constant, SizeOf))
    return all(same_value(a, b, depth - 1) for a, b in zip(x.inputs, y.inputs, strict=True))


class Sums:
    """Rewrites of sums of one gradient.

    `type_of` and `size` return types and sizes as far as they are resolved.
    """

    def __init__(self, see: Callable[[Node], TensorType], size: Callable[[Index], Index]) -> None:
        self.type_of = see
        self.size = size
        self.contractions: list[Step] = []

    def record_contractions(self, steps: Iterable[Step]) -> None:
        """Record the contractions whose results exist."""
        self.contractions += [s for s in steps if isinstance(s.op, Contract)]

    # Zero sums

    def nonzero_part(self, x: Node, axes: Axes) -> tuple[Node | None, bool]:
        """Return the part of x that its sum over `axes` depends on, and its sign.

        None if the sum is zero; True for a positive sign.
        """
        positive = True
        for _ in range(MAX_DEPTH):
            form = scalar_operator(x)
            if self.sums_to_zero(x, axes):
                return None, positive
            if form == "neg":
                (x,), positive = x.inputs, not positive
                continue
            if form not in ("add", "sub") or not all(self._same(i, x) for i in x.inputs):
                break
            a, b = x.inputs
            if self.sums_to_zero(b, axes):
                x = a
            elif self.sums_to_zero(a, axes):
                x, positive = b, positive == (form == "add")
            else:
                break
        return x, positive

    def sums_to_zero(self, x: Node, axes: Axes, depth: int = MAX_DEPTH) -> bool:
        """Whether x sums to zero over `axes` for all values."""
        form = scalar_operator(x)
        if not depth or not form:
            return False
        if form == "neg":
            return self.sums_to_zero(x.inputs[0], axes, depth - 1)
        if form in ("add", "sub"):
            first, second = x.inputs
            centred = form == "sub" and self._same(first, x)
            if centred and self._is_centred(first, second, axes):
                return True
            return all(self._same(i, x) and self.sums_to_zero(i, axes, depth - 1) for i in x.inputs)
        if form in ("mul", "div"):
            pairs = (x.inputs,) if form == "div" else (x.inputs, x.inputs[::-1])
            return any(
                self._same(a, x)
                and self._is_fixed(b, x, axes)
                and self.sums_to_zero(a, axes, depth - 1)
                for a, b in pairs
            )
        return False

    def _same(self, a: Node, b: Node) -> bool:
        return self.type_of(a) == self.type_of(b)

    def _is_fixed(self, factor: Node, x: Node, axes: Axes) -> bool:
        """Whether an operand of x is constant along `axes`."""
        while isinstance(factor.op, Expand) and factor.inputs:
            (factor,) = factor.inputs
        shape = self.type_of(factor).shape
        lead = x.type.rank - len(shape)
        return all(a < lead or shape[a - lead] == 1 for a in axes)

    def _is_centred(self, x: Node, mean: Node, axes: Axes) -> bool:
        """Whether `mean` is the mean of x over `axes`."""
        if not self._is_fixed(mean, x, axes):
            return False
        mean = _skip_views(mean)
        if scalar_operator(mean) != "div":
            return False
        total, count = _skip_views(mean.inputs[0]), mean.inputs[1]
        op = total.op
        if not isinstance(op, Reduce) or op.combine != "sum" or op.axes != axes:
            return False
        if not total.inputs or not same_value(total.inputs[0], x, MAX_DEPTH):
            return False
        shape = self.type_of(x).shape
        size = product(shape[a] for a in axes)
        if isinstance(count.op, SizeOf):
            return self.size(count.op.expr) == size
        return isinstance(count.op, Constant) and count.op.value == size

    # Sum swap

    def swap(self, x: Node, axes: Axes) -> Swap | None:
        """Derive the sum of a product x over `axes` from a known contraction.

        None if no contraction fits.
        """
        if not self.contractions or scalar_operator(x) != "mul":
            return None
        factors = _factors(x)
        for position, factor in enumerate(factors):
            if not isinstance(factor.op, Contract) or not factor.inputs:
                continue
            if self.type_of(factor).shape != self.type_of(x).shape:
                continue
            rest = factors[:position] + factors[position + 1 :]
            for step in self.contractions:
                swap = self._swap_with(step, factor, rest, axes)
                if swap is not None:
                    return swap
        return None

    def _swap_with(self, step: Step, inner: Node, rest: list[Node], axes: Axes) -> Swap | None:
        op, contract = step.op, inner.op
        assert isinstance(op, Contract)
        assert isinstance(contract, Contract)
        known_terms, inner_terms = (op.left, op.right), (contract.left, contract.right)
        for k in range(2):
            weights, values = step.inputs[k], step.inputs[1 - k]
            same = self.type_of(weights).shape == self.type_of(inner).shape
            if not same or not _same_product(_factors(weights), rest):
                continue
            for j in range(2):
                if inner.inputs[1 - j] is not values:
                    continue
                letters = tuple(
                    map(
                        _axis_names,
                        (known_terms[k], known_terms[1 - k], inner_terms[j], inner_terms[1 - j]),
                    )
                )
                match = _match_axes(letters, op, contract, axes)
                if match is not None:
                    return Swap(inner.inputs[j], step.node, *match)
        return None


class Swap(NamedTuple):
    """A sum in another form: over `axes` of other·known[perm]."""

    other: Node
    known: Node
    perm: tuple[int, ...]
    axes: Axes


def _skip_views(x: Node) -> Node:
    while isinstance(x.op, (Expand, Reshape)) and x.inputs:
        (x,) = x.inputs
    return x


def _factors(x: Node, depth: int = MAX_DEPTH) -> list[Node]:
    if not depth or scalar_operator(x) != "mul":
        return [x]
    return [f for i in x.inputs for f in _factors(i, depth - 1)]


def _same_product(factors: list[Node], others: list[Node]) -> bool:
    unmatched = list(others)
    for f in factors:
        position = next((k for k, g in enumerate(unmatched) if same_value(f, g)), None)
        if position is None:
            return False
        unmatched.pop(position)
    return not unmatched


def _match_axes(
    letters: tuple[list[str] | None, ...], op: Contract, contract: Contract, axes: Axes
) -> tuple[tuple[int, ...], Axes] | None:
    """Match the axes of the known result to the remaining operand.

    Returns the permutation of the known result and the axes to sum over; None if they do not fit.
    """
    weights, values, other, inner_values = letters
    if weights is None or values is None or other is None or inner_values is None:
        return None
    table: dict[str, str] = {}
    for a, b in (*zip(weights, contract.out), *zip(values, inner_values)):
        if table.setdefault(a, b) != b:
            return None
    if len(set(table.values())) != len(table):
        return None
    summed = {contract.out[a] for a in axes}
    if {table[n] for n in op.reduction_axes()} != summed:
        return None
    out = [table[n] for n in op.out]
    if sorted(out) != sorted(other):
        return None
    output_axes = [n for n in contract.out if n not in summed]
    last = [n for n in other if n not in output_axes]
    if [n for n in other if n in output_axes] != output_axes:
        return None
    return tuple(out.index(n) for n in other), tuple(other.index(n) for n in last)


def _axis_names(terms: tuple[object, ...]) -> list[str] | None:
    """Return the axes that index an operand, if each occurs alone and once."""
    axes = [bare_axis(t) for t in terms]  # type: ignore[arg-type]
    names = [n for n in axes if n is not None]
    return names if len(names) == len(axes) == len(set(names)) else None
