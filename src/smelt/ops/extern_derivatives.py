"""Derivatives of library calls: the columns of extern rows.

Each function gets the cotangent g of the result, the result, the operands, and gives a cotangent
for each operand.  Those of linear algebra are as M. Giles lists them ("Collected matrix derivative
results for forward and reverse mode algorithmic differentiation", 2008).
"""

from __future__ import annotations

from typing import Any

from smelt.ops.contract import Contract
from smelt.ops.create import Iota
from smelt.ops.extern import Extern
from smelt.ops.index import Scatter
from smelt.ops.spec import Adjoint, Cotangents, V
from smelt.ops.view import Permute
from smelt.types.dtype import i64
from smelt.types.expr import axis

Operands = tuple[V, ...]


def of_sort(
    a: Adjoint[V], g: V, out: V, inputs: Operands[V], **options: Any
) -> Cotangents[V]:  # fmt: skip
    """Each cotangent goes back to the place that its element came from."""
    (x,) = inputs
    shape, along = a.type(x).shape, options["axis"]
    order = a.apply(Extern("argsort", tuple(options.items())), x)
    index: list[V] = []
    for k in range(len(shape)):
        line = tuple(n if j == k else 1 for j, n in enumerate(shape))
        index.append(order if k == along else a.apply(Iota(line, k, i64)))
    zeros = a.expand(a.constant(0.0, a.type(x).dtype), shape)
    return (a.apply(Scatter("add"), zeros, g, *index),)


def of_inverse(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """x̄ = -yᵀ g yᵀ"""
    return (a.map("neg", _product(a, _product(a, out, g, "tn"), out, "nt")),)


def of_determinant(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """x̄ = g · det x · x⁻ᵀ"""
    (x,) = inputs
    factor = a.map("mul", g, out)
    factor = a.reshape(factor, (*a.type(factor).shape, 1, 1))
    return (a.map("mul", factor, _transposed(a, a.apply(Extern("linalg_inv"), x))),)


def of_solution(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """b̄ = A⁻ᵀ g,  Ā = -b̄ xᵀ"""
    matrix, right = inputs
    by_right = a.apply(Extern("linalg_solve"), _transposed(a, matrix), g)
    first, second = by_right, out
    if a.type(right).rank == 1:
        first, second = (a.reshape(v, (*a.type(v).shape, 1)) for v in (first, second))
    return a.map("neg", _product(a, first, second, "nt")), by_right


def of_cholesky(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """x̄ = (S + Sᵀ)/2 with S = L⁻ᵀ Φ(Lᵀ g) L⁻¹; Φ takes the lower half, its diagonal halved."""
    inverse = a.apply(Extern("linalg_inv"), out)
    full = _product(a, out, g, "tn")
    kind = a.type(full)
    n, half = kind.shape[-1], a.constant(0.5, kind.dtype)
    row, column = (a.apply(Iota(s, k, i64)) for s, k in (((n, 1), 0), ((1, n), 1)))
    below = a.map("select", a.map("gt", row, column), full, a.constant(0.0, kind.dtype))
    lower = a.map("select", a.map("eq", row, column), a.map("mul", full, half), below)
    s = _product(a, inverse, _product(a, lower, inverse, "nn"), "tn")
    return (a.map("mul", a.map("add", s, _transposed(a, s)), half),)


def _transposed(a: Adjoint[V], x: V) -> V:
    rank = a.type(x).rank
    return a.apply(Permute((*range(rank - 2), rank - 1, rank - 2)), x)


def _product(a: Adjoint[V], x: V, y: V, sides: str) -> V:
    """A product of stacked matrices; `sides` says of both whether they are taken transposed."""
    stack = [f"b{k}" for k in range(a.type(x).rank - 2)]
    left = ("k", "m") if sides[0] == "t" else ("m", "k")
    right = ("n", "k") if sides[1] == "t" else ("k", "n")
    terms = [tuple(axis(name, 0) for name in (*stack, *side)) for side in (left, right)]
    return a.apply(Contract(terms[0], terms[1], (*stack, "m", "n")), x, y)
