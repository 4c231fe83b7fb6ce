"""Call library functions within a plan: one call each, a barrier for fusion.

Each function of the `pullback` column gets the cotangent g of the result, the result and the
operands, and returns a cotangent for each operand.  Sources: linear algebra: M. Giles, "Collected
matrix derivative results for forward and reverse mode algorithmic differentiation", 2008; singular
vectors: J. Townsend, "Differentiating the singular value decomposition", 2016; QR: H.-J. Liao et
al., "Differentiable programming tensor networks", 2019, section III.B.

A decomposition has one result, with all of its factors in one row (`split` takes it apart).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ExternError, GradientError
from smelt.ops.contract import Contract
from smelt.ops.create import Iota
from smelt.ops.index import Scatter
from smelt.ops.spec import Adjoint, Array, Cotangents, Sizes, TensorOp, V
from smelt.ops.view import Permute, Slice
from smelt.python.cached_property import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.dtype import i64
from smelt.types.expr import Index, add, axis, product
from smelt.types.tensor import Shape, TensorType

EXTERNS: dict[str, ExternRow] = {}


@dataclass(frozen=True)
class ExternRow:
    """A library function: its type rule and its call (arrays and attributes in, an array out)."""

    name: str
    doc: str
    infer: Callable[..., TensorType]
    call: Callable[..., Any]
    pullback: Callable[..., Any] | None = None
    """Derivative: (adjoint, g, result, operands, **attributes) -> cotangents of the operands."""
    into: Callable[..., None] | None = None
    """Like `call`, but writes into its first argument, if that avoids a copy."""


def register(row: ExternRow) -> ExternRow:
    """Add a row to `EXTERNS`; raise ExternError if its name exists."""
    if EXTERNS.setdefault(row.name, row) is not row:
        raise ExternError(f"an extern operator named {row.name!r} exists already")
    return row


@dataclass(frozen=True)
class Extern(TensorOp):
    """Run the library function registered under `call` with the given attributes."""

    doc: ClassVar[str] = "a library call"
    fusible: ClassVar[bool] = False
    call: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return f"extern.{self.call}"

    @cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options)

    def attributes(self) -> dict[str, Any]:
        return dict(self.options)

    def infer(self, *inputs: TensorType) -> TensorType:
        return EXTERNS[self.call].infer(*inputs, **dict(self.options))

    def reference(self, sizes: Sizes, *inputs: Array) -> Array:
        return np.asarray(EXTERNS[self.call].call(*inputs, **dict(self.options)))

    def compute_into(self, destination: Array | None, sizes: Sizes, *inputs: Array) -> Array:
        into = EXTERNS[self.call].into
        if destination is None or into is None:
            return super().compute_into(destination, sizes, *inputs)
        into(destination, *inputs, **self._options)
        return destination

    def pullback(
        self, a: Adjoint[V], g: V, out: V, inputs: tuple[V, ...], needed: tuple[bool, ...]
    ) -> Cotangents[V]:
        derive = EXTERNS[self.call].pullback
        if derive is None:
            return super().pullback(a, g, out, inputs, needed)
        return derive(a, g, out, inputs, **dict(self.options))


Operands = tuple[V, ...]


def of_sort(a: Adjoint[V], g: V, out: V, inputs: Operands[V], **options: Any) -> Cotangents[V]:
    """Return each cotangent to the position that its element came from."""
    (x,) = inputs
    shape, sort_axis = a.type(x).shape, options["axis"]
    order = a.apply(Extern("argsort", tuple(options.items())), x)
    index: list[V] = []
    for k in range(len(shape)):
        axis_shape = tuple(n if j == k else 1 for j, n in enumerate(shape))
        index.append(order if k == sort_axis else a.apply(Iota(axis_shape, k, i64)))
    zeros = a.expand(a.constant(0.0, a.type(x).dtype), shape)
    return (a.apply(Scatter("add"), zeros, g, *index),)


def of_inverse(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the inverse: x̄ = -yᵀ g yᵀ."""
    return (a.map("neg", _matmul(a, _matmul(a, out, g, "tn"), out, "nt")),)


def of_determinant(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the determinant: x̄ = g · det x · x⁻ᵀ."""
    (x,) = inputs
    factor = a.map("mul", g, out)
    factor = a.reshape(factor, (*a.type(factor).shape, 1, 1))
    return (a.map("mul", factor, _transposed(a, a.apply(Extern("linalg_inv"), x))),)


def of_solution(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the solution of A x = b: b̄ = A⁻ᵀ g, Ā = -b̄ xᵀ."""
    matrix, right = inputs
    b_cotangent = a.apply(Extern("linalg_solve"), _transposed(a, matrix), g)
    b_column, x_column = b_cotangent, out
    if a.type(right).rank == 1:
        b_column, x_column = (a.reshape(v, (*a.type(v).shape, 1)) for v in (b_column, x_column))
    return a.map("neg", _matmul(a, b_column, x_column, "nt")), b_cotangent


def of_cholesky(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the Cholesky factor L: x̄ = (S + Sᵀ)/2.

    S = L⁻ᵀ Φ(Lᵀ g) L⁻¹; Φ takes the lower half, with its diagonal halved.
    """
    inverse = a.apply(Extern("linalg_inv"), out)
    full = _matmul(a, out, g, "tn")
    kind = a.type(full)
    half = a.constant(0.5, kind.dtype)
    below = _select_by_index(a, "gt", full, a.expand(a.constant(0.0, kind.dtype), kind.shape))
    lower = _select_by_index(a, "eq", a.map("mul", full, half), below)
    s = _matmul(a, inverse, _matmul(a, lower, inverse, "nn"), "tn")
    return (a.map("mul", a.map("add", s, _transposed(a, s)), half),)


def split(a: Adjoint[V], packed: V, *shapes: Shape) -> list[V]:
    """Split factors stored one after another along the last axis into matrices or vectors."""
    stack = a.type(packed).shape[:-1]
    factors: list[V] = []
    first: Index = 0
    for shape in shapes:
        count = product(shape)
        zeros = (0,) * len(stack)
        region = Slice((*zeros, first), (*stack, count), (1,) * (len(stack) + 1))
        factors.append(a.reshape(a.apply(region, packed), (*stack, *shape)))
        first = add(first, count)
    return factors


def of_signed_logarithm(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the log-determinant: x̄ = g x⁻ᵀ.

    The sign is constant wherever it has a derivative.
    """
    (x,) = inputs
    _, g_log = split(a, g, (), (1, 1))
    return (a.map("mul", g_log, _transposed(a, a.apply(Extern("linalg_inv"), x))),)


def of_symmetric(a: Adjoint[V], g: V, out: V, inputs: Operands[V]) -> Cotangents[V]:
    """Differentiate the eigendecomposition of a symmetric matrix.

    x̄ is the symmetric part of V (diag w̄ + F ∘ Vᵀ V̄) Vᵀ with F = 1/(wⱼ - wᵢ).
    """
    (x,) = inputs
    n = a.type(x).shape[-1]
    w, v = split(a, out, (n,), (n, n))
    g_w, g_v = split(a, g, (n,), (n, n))
    inner = a.map("mul", _inverse_gaps(a, w), _matmul(a, v, g_v, "tn"))
    inner = a.map("add", inner, _on_diagonal(a, g_w))
    full = _matmul(a, _matmul(a, v, inner, "nn"), v, "nt")
    half = a.constant(0.5, a.type(x).dtype)
    return (a.map("mul", a.map("add", full, _transposed(a, full)), half),)


def of_singular(a: Adjoint[V], g: V, out: V, inputs: Operands[V], *, wide: bool) -> Cotangents[V]:
    """Differentiate the singular value decomposition.

    x̄ = [U (F ∘ (UᵀŪ - ŪᵀU)) S + (1 - UUᵀ) Ū S⁻¹ + U diag s̄] Vᵀ, and the corresponding terms of V
    on the right, with F = 1/(sⱼ² - sᵢ²).
    """
    (x,) = inputs
    m, n = a.type(x).shape[-2:]
    k = m if wide else n
    u, s, vh = split(a, out, (m, k), (k,), (k, n))
    g_u, g_s, g_vh = split(a, g, (m, k), (k,), (k, n))
    gaps = _inverse_gaps(a, a.map("mul", s, s))
    row, column = (_as_matrix(a, s, at) for at in (-1, -2))  # s along columns, and along rows
    left = _matmul(a, u, g_u, "tn")
    right = _matmul(a, vh, g_vh, "nt")
    rotation_u = a.map("mul", gaps, a.map("sub", left, _transposed(a, left)))
    rotation_v = a.map("mul", gaps, a.map("sub", right, _transposed(a, right)))
    inner = a.map("add", a.map("mul", rotation_u, column), a.map("mul", rotation_v, row))
    inner = a.map("add", inner, _on_diagonal(a, g_s))
    gradient = _matmul(a, _matmul(a, u, inner, "nn"), vh, "nn")
    outside_span = a.map("sub", g_u, _matmul(a, u, left, "nn"))  # the part that U does not span
    gradient = a.map("add", gradient, _matmul(a, a.map("div", outside_span, column), vh, "nn"))
    outside_span = a.map("sub", g_vh, _matmul(a, right, vh, "tn"))
    return (a.map("add", gradient, _matmul(a, u, a.map("div", outside_span, row), "nn")),)


def of_singular_values(
    a: Adjoint[V], g: V, out: V, inputs: Operands[V], *, wide: bool
) -> Cotangents[V]:
    """Differentiate singular values: x̄ = U diag(g) Vᵀ."""
    (x,) = inputs
    m, n = a.type(x).shape[-2:]
    k = m if wide else n
    packed = a.apply(Extern("linalg_svd", (("wide", wide),)), x)
    u, _, vh = split(a, packed, (m, k), (k,), (k, n))
    return (_matmul(a, a.map("mul", u, _as_matrix(a, g, -2)), vh, "nn"),)


def of_orthogonal(a: Adjoint[V], g: V, out: V, inputs: Operands[V], *, wide: bool) -> Cotangents[V]:
    """Differentiate QR: x̄ = (Q̄ + Q C) R⁻ᵀ.

    C is the symmetric matrix with the lower half of R R̄ᵀ - Q̄ᵀ Q.
    """
    (x,) = inputs
    m, n = a.type(x).shape[-2:]
    if wide and m != n:
        raise GradientError(op="qr", reason="matrices with more columns than rows have none")
    q, r = split(a, out, (m, n), (n, n))
    g_q, g_r = split(a, g, (m, n), (n, n))
    inner = a.map("sub", _matmul(a, r, g_r, "nt"), _matmul(a, g_q, q, "tn"))
    mirrored = _select_by_index(a, "ge", inner, _transposed(a, inner))
    right = a.map("add", g_q, _matmul(a, q, mirrored, "nn"))
    return (_matmul(a, right, a.apply(Extern("linalg_inv"), r), "nt"),)


def _select_by_index(a: Adjoint[V], compare: str, x: V, y: V) -> V:
    """Select x where the row index compares to the column index as given, y elsewhere."""
    n = a.type(x).shape[-1]
    row, column = (a.apply(Iota(s, k, i64)) for s, k in (((n, 1), 0), ((1, n), 1)))
    return a.map("select", a.map(compare, row, column), x, y)


def _as_matrix(a: Adjoint[V], x: V, at: int) -> V:
    """View vectors as matrices of one row (at = -2) or one column (-1)."""
    shape = list(a.type(x).shape)
    shape.insert(len(shape) if at == -1 else len(shape) - 1, 1)
    return a.reshape(x, tuple(shape))


def _on_diagonal(a: Adjoint[V], x: V) -> V:
    kind = a.type(x)
    wide = a.expand(_as_matrix(a, x, -2), (*kind.shape, kind.shape[-1]))
    return _select_by_index(a, "eq", wide, a.constant(0.0, kind.dtype))


def _inverse_gaps(a: Adjoint[V], w: V) -> V:
    """Return 1 / (wⱼ - wᵢ), 0 on the diagonal."""
    kind = a.type(w)
    one, zero = (a.constant(c, kind.dtype) for c in (1.0, 0.0))
    gap = a.map("sub", _as_matrix(a, w, -2), _as_matrix(a, w, -1))
    gap = _select_by_index(a, "eq", a.expand(one, a.type(gap).shape), gap)
    return _select_by_index(a, "eq", a.expand(zero, a.type(gap).shape), a.map("div", one, gap))


def _transposed(a: Adjoint[V], x: V) -> V:
    rank = a.type(x).rank
    return a.apply(Permute((*range(rank - 2), rank - 1, rank - 2)), x)


def _matmul(a: Adjoint[V], x: V, y: V, sides: str) -> V:
    """Multiply stacked matrices; `sides` has "t" or "n" for each: transposed or not."""
    stack = [f"b{k}" for k in range(a.type(x).rank - 2)]
    left = ("k", "m") if sides[0] == "t" else ("m", "k")
    right = ("n", "k") if sides[1] == "t" else ("k", "n")
    terms = [tuple(axis(name, 0) for name in (*stack, *side)) for side in (left, right)]
    return a.apply(Contract(terms[0], terms[1], (*stack, "m", "n")), x, y)
