"""Compiled kernel as plain data: machine code and how to call it.

This is what the object cache stores. `CompiledKernel` describes the calling convention of the code
as plain data, so a warm start needs neither the kernel's IR nor code generation.

>>> from smelt.types.expr import size
>>> compiled = CompiledKernel(
...     b"", ("x", "y"), ("n",), (), (), (Function("k", size("n"), 0, size("n")),), 7
... )
>>> CompiledKernel.from_data(compiled.to_data(), b"") == compiled
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from smelt.kernel.product_cost import ProductCost, product_cycles
from smelt.python.dataclass import dataclass
from smelt.types.expr import Index, evaluate, size
from smelt.types.json_data import from_data, to_data

Variant = str
"""What a specialised code variant assumes about the sizes; "" assumes nothing.

"small": all contractions are small. "rows" ("columns"): contractions have few rows (columns).
"narrow": convolution windows slide along narrow image rows.
"transposed": rows so short that the array is transposed. For a kernel with one contraction:
"tall_skinny" (few columns, short reduction), "panels" (many rows and columns, reduction short
enough for a single pass), "small_m" (as "panels" with fewer rows), "k_blocked" (any reduction
length). "packed": right operands are packed once per call, because many tasks of few rows each
share them. Sizes fixed at compile time follow an @: "small@a1=3,a2=8".
"""
SizeLimits = tuple[tuple[Index, int], ...]
"""Upper bounds of sizes: pairs (size expression, largest value allowed)."""


class Candidate(NamedTuple):
    """A code variant: the sizes that it is possible or known to be best for, and its products.

    `costs` says what its products do, if it competes with others by predicted time.
    """

    variant: Variant
    limits: SizeLimits
    costs: tuple[ProductCost, ...] = ()

    def map_indices(self, change: Callable[[Index], Index]) -> Candidate:
        """Return the same candidate with every expression of sizes changed."""
        return Candidate(
            self.variant,
            tuple((change(n), most) for n, most in self.limits),
            tuple(c.map_indices(change) for c in self.costs),
        )


Variants = tuple[Candidate, ...]
"""Code variants of a kernel, best first; the default one is last if it competes by its time."""


class Function(NamedTuple):
    """Entry point of a kernel: symbol, task count, scratch bytes, cycles on one core."""

    symbol: str
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Object code of a kernel and how to call it.

    `smelt.codegen.llvm.module.Artifact` is the code generator's result that this stores.
    """

    code: bytes
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[tuple[str, str, int], ...]
    partials: tuple[tuple[str, Index], ...]
    functions: tuple[Function, ...]
    ir_size: int
    variant: Variant = ""

    def to_data(self) -> dict[str, Any]:
        """Return everything but the code as JSON data."""
        data: dict[str, Any] = to_data(replace(self, code=b""))
        return data

    @staticmethod
    def from_data(facts: dict[str, Any], code: bytes) -> CompiledKernel:
        """Rebuild a compiled kernel from `to_data` and its code.

        Raises KeyError, TypeError or ValueError for malformed data.
        """
        built: CompiledKernel = from_data(CompiledKernel, facts)
        return replace(built, code=code)


def size_or_number(name: str) -> Index:
    """Return the size that a canonical kernel's name stands for: a symbol or a number.

    >>> size_or_number("n"), size_or_number("7")
    (n, 7)
    """
    return int(name) if name.isdigit() else size(name)


def select_variant(forms: Variants, sizes: Mapping[str, int]) -> Variant:
    """Select the variant for these sizes: the first whose limits hold, else the default one.

    If it competes by its predicted time, select the fastest of all that do.
    """
    return select_candidate(forms, sizes).variant


def select_candidate(forms: Variants, sizes: Mapping[str, int]) -> Candidate:
    """Select as `select_variant`, and return the variant with what is known of it."""
    competing: list[Candidate] = []
    for c in forms:
        if (c.costs or not competing) and _holds(c, sizes):
            if not c.costs:
                return c
            competing.append(c)
    return min(
        competing,
        key=lambda c: product_cycles(c.costs, sizes),
        default=Candidate("", ()),
    )


def competing_candidates(forms: Variants, sizes: Mapping[str, int]) -> list[Candidate]:
    """Return the variants that compete by their predicted times at these sizes."""
    return [c for c in forms if c.costs and _holds(c, sizes)]


def _holds(c: Candidate, sizes: Mapping[str, int]) -> bool:
    return all(evaluate(n, sizes) <= limit for n, limit in c.limits)
