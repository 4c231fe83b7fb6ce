"""Find kernels of a GPU's plan that torch's own product computes: nothing is fused to them.

einsum = product_einsum(kernel)     # None, or what torch.einsum takes
y = torch.einsum(einsum.equation, *(arrays[k] for k in einsum.operands))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from smelt.kernel.ir import (
    Apply,
    Cast,
    Const,
    Dot,
    Kernel,
    Let,
    Load,
    Merge,
    Ref,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import statements, visit_body
from smelt.ops.contract import bare_axis
from smelt.types.dtype import bf16, f16, f32
from smelt.types.expr import Index


class ProductEinsum(NamedTuple):
    """An equation of `torch.einsum`, and which of a kernel's inputs are its operands."""

    equation: str
    operands: tuple[int, int]


def product_einsum(kernel: Kernel) -> ProductEinsum | None:
    """Return the product that a kernel is, None if it computes anything else.

    >>> from smelt.kernel.text import parse
    >>> product_einsum(
    ...     parse('''
    ... kernel product(x: f32[m,k], w: f32[n,k]) -> y: f32[m,n]
    ...   grid m, n
    ...   y[m,n] = dot(x[m,k], w[n,k] over k)
    ... ''')
    ... )
    ProductEinsum(equation='ac,bc->ab', operands=(0, 1))
    """
    body = tuple(statements(kernel))
    values = tuple(visit_body(kernel.body))
    dots = [v for v in values if isinstance(v, Dot)]
    stores = [s for s in body if isinstance(s, Store)]
    if len(dots) != 1 or len(stores) != 1 or not _only_multiplies(body, values):
        return None
    (dot,), (store,) = dots, stores
    lets = {s.name: s.value for s in body if isinstance(s, Let)}
    left, right = (lets.get(v.name, v) if isinstance(v, Ref) else v for v in (dot.left, dot.right))
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    accesses = [(x.param, x.index) for x in (left, right, store)]
    params = [kernel.param(p) for p, _ in accesses]
    if len({p.dtype for p in params}) > 1 or params[0].dtype not in (f16, bf16, f32):
        return None
    letters = {a.name: chr(ord("a") + k) for k, a in enumerate(kernel.axes)}
    terms = [_term(kernel, p.shape, index, letters) for p, (_, index) in zip(params, accesses)]
    summed = {letters[a] for a in dot.over}
    if None in terms or not summed <= set(terms[0] or "") & set(terms[1] or ""):
        return None
    names = [p.name for p in kernel.inputs]
    return ProductEinsum(
        f"{terms[0]},{terms[1]}->{terms[2]}", (names.index(left.param), names.index(right.param))
    )


def _only_multiplies(body: Iterable[object], values: Iterable[Value]) -> bool:
    """Whether nothing is computed but a product, its sum over blocks, and roundings."""
    sums: list[Value] = []
    for s in body:
        match s:
            case Update(value=Apply(op="add", args=(Ref(), Dot())) as value):
                sums.append(value)
            case Stream(where=None, blocks=(block,)) if block.start is None and block.stop is None:
                pass
            case Store(where=None, join="") | Let() | Merge():
                pass
            case _:
                return False
    return all(isinstance(v, Load | Ref | Dot | Cast | Const) or v in sums for v in values)


def _term(
    kernel: Kernel, shape: tuple[Index, ...], index: tuple[Index, ...], letters: dict[str, str]
) -> str | None:
    """Return the axes of an array that is read as a whole, None for others."""
    axes = [bare_axis(e) for e in index]
    if len(set(axes)) < len(axes) or None in axes:
        return None
    names = [a for a in axes if a is not None]
    if any(kernel.axis(a).extent != n for a, n in zip(names, shape, strict=True)):
        return None
    return "".join(letters[a] for a in names)
