"""Lower matrix products, attention, and gathers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smelt.errors import UnsupportedError
from smelt.frontends.torch.row import Call, Row, axis_of
from smelt.frontends.torch.value import V, contract, gather, iota, number, select, wrap_negative
from smelt.graph.ir import Graph
from smelt.ops.create import Input
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index, floordiv


def _product(spec: str) -> Any:
    return lambda c, a, b: _contract_guarded(c, a, b, spec)


def _contract_guarded(c: Call, a: V, b: V, spec: str, dtype: DType | None = None) -> V:
    """Contract operands after respelling dimensions that guards make equal.

    Dimensions that share a letter are spelt alike, as a number if one of them is.
    """
    left, _, right = spec.partition("->")[0].partition(",")
    sizes = dict(zip(left, a.shape, strict=True))
    for letter, n in zip(right, b.shape, strict=True):
        sizes[letter] = n if isinstance(n, int) else sizes.get(letter, n)
    a, b = (
        c.sizes.respell(x, tuple([sizes[n] for n in side])) for x, side in ((a, left), (b, right))
    )
    return contract(a, b, spec, dtype)


def _addmm(spec: str) -> Any:
    """Return beta · x + alpha · a b, rounded once."""

    def lower(c: Call, x: V, a: V, b: V, *, beta: Any = 1, alpha: Any = 1) -> V:
        dtype = c.dtype.compute
        product = _contract_guarded(c, a, b, spec, dtype)
        if alpha != 1:
            product = product * alpha
        if beta == 0:
            return product.cast(c.dtype)
        x = x.cast(dtype) if beta == 1 else x.cast(dtype) * beta
        return (product + x).cast(c.dtype)

    return lower


def _attention(
    c: Call,
    q: V,
    k: V,
    v: V,
    _dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[V, V]:
    """Return softmax(q kᵀ · scale + mask) v and the logarithm of the softmax's sum."""
    factor, dtype = _score_factor(q, scale), q.dtype.compute
    k, v = (_expand_heads(x, q) for x in (k, v))
    scores = contract(q, k, "bhmd,bhnd->bhmn", dtype) * factor
    if attn_mask is not None:
        scores = scores + attn_mask.cast(scores.dtype)
    if is_causal:
        scores = _mask_later(c, scores, -math.inf)
    maximum = scores.reduce("max", (3,), True)
    if attn_mask is not None:
        maximum = select(maximum.map("eq", -math.inf), number(0.0, maximum.dtype), maximum)
    exponentials = (scores - maximum).map("exp")
    total = exponentials.sum((3,), True)
    if attn_mask is not None:  # a query that sees no key gets nothing
        total = select(total.map("eq", 0), number(1.0, total.dtype), total)
    weights = exponentials / total
    output = contract(weights, v, "bhmn,bhne->bhme", dtype)
    return output.cast(c.dtype), (total.map("log") + maximum).reshape(*total.shape[:3])


def _attention_backward(
    c: Call,
    grad: V,
    q: V,
    k: V,
    v: V,
    out: V,
    logs: V,
    _dropout: float,
    is_causal: bool,
    *,
    attn_mask: V | None = None,
    scale: float | None = None,
) -> tuple[V, V, V]:
    """Return the gradients of q, k and v (T. Dao et al., FlashAttention, 2022).

    The weights are recomputed from the saved logarithms; see `docs/derivations.md`, attention
    backward.
    """
    if c.dtype.bits == 16:
        raise UnsupportedError("gradients of attention in half precision")
    factor, group = _score_factor(q, scale), _group_size(q, k)
    h = "hg" if group > 1 else "h"
    grad, q, out, logs = (_split_heads(x, group) for x in (grad, q, out, logs))
    scores = contract(q, k, f"b{h}md,bhnd->b{h}mn") * factor
    if attn_mask is not None:
        scores = scores + _split_heads(attn_mask, group).cast(scores.dtype)
    weights = (scores - logs.cast(scores.dtype).unsqueeze(logs.rank)).map("exp")
    if attn_mask is not None:  # a query that sees no key: its logarithm is -inf
        weights = select(scores.map("eq", -math.inf), number(0.0, scores.dtype), weights)
    if is_causal:
        weights = _mask_later(c, weights, 0.0)
    of_weights = contract(grad, v, f"b{h}me,bhne->b{h}mn")
    shift = (grad * out).sum((out.rank - 1,), True)
    of_scores = weights * (of_weights - shift) * factor
    of_q = contract(of_scores, k, f"b{h}mn,bhnd->b{h}md")
    of_k = contract(of_scores, q, f"b{h}mn,b{h}md->b{h}nd")
    of_v = contract(weights, grad, f"b{h}mn,b{h}me->b{h}ne")
    if group > 1:
        return of_q.reshape(*c.shape), of_k.sum((2,)), of_v.sum((2,))
    return of_q, of_k, of_v


def _score_factor(q: V, scale: float | None) -> float:
    if scale is not None:
        return scale
    size = q.shape[-1]
    if not isinstance(size, int):
        raise UnsupportedError("attention with a symbolic size of heads")
    return 1 / math.sqrt(size)


def _mask_later(c: Call, x: V, value: float) -> V:
    """Replace the entries of keys that come after their query."""
    rows, columns = (iota(x.shape[-2:], a, i64, c.origin) for a in (0, 1))
    return select(columns.map("le", rows), x, number(value, x.dtype))


def _expand_heads(x: V, q: V) -> V:
    """Repeat keys or values for each head of the queries that share them."""
    group = _group_size(q, x)
    if group == 1:
        return x
    b, shared, *rest = x.shape
    shape = (b, shared, group, *rest)
    return x.unsqueeze(2).expand(shape).reshape(b, q.shape[1], *rest)


def _split_heads(x: V, group: int) -> V:
    """Split the heads of queries by the key heads that `group` of them share."""
    if group == 1 or x.rank == 2:  # a mask for all heads
        return x
    b, heads, *rest = x.shape
    split = (1, 1) if heads == 1 else (floordiv(heads, group), group)
    return x.reshape(b, *split, *rest)


def _group_size(q: V, k: V) -> int:
    """Return how many heads of queries share one head of keys."""
    heads, shared = q.shape[1], k.shape[1]
    if heads == shared:
        return 1
    if not isinstance(heads, int) or not isinstance(shared, int):
        raise UnsupportedError("attention whose heads share keys, of a symbolic number")
    return heads // shared


# ---- reads at computed positions -----------------------------------------------------------------


def _check_positions(c: Call, index: V, extent: Index) -> None:
    """Record positions made of sizes alone, so that they are checked.

    Only positions that a rule makes are known to be in bounds; these look the same.
    """
    if not any(isinstance(n.op, Input) for n in Graph("positions", (), (index.node,)).nodes()):
        c.reads.append((index.node, extent, (getattr(c.origin, "operator", "a read"), c.origin)))


def _embedding(c: Call, table: V, index: V, *_more: Any) -> V:
    _check_positions(c, index, table.shape[0])
    return gather(table, 0, index.cast(i64))


def _index(c: Call, x: V, indices: Sequence[V | None]) -> V:
    positions = [k for k, i in enumerate(indices) if i is not None]
    chosen = [i for i in indices if i is not None]
    if any(i.dtype.kind not in ("int", "uint") or i.dtype.name == "u8" for i in chosen):
        raise UnsupportedError("an index by a mask: its size depends on data")
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise UnsupportedError("index arrays that are not side by side")
    inside = [wrap_negative(i, x.shape[k]) for k, i in zip(positions, chosen, strict=True)]
    return gather(x, positions[0], *inside)


def _index_select(c: Call, x: V, dim: int, index: V) -> V:
    if not x.rank:
        return x
    _check_positions(c, index, x.shape[axis_of(dim, x.rank)])
    return gather(x, axis_of(dim, x.rank), index.cast(i64).reshape(*(index.shape or (1,))))


def _gather(c: Call, x: V, dim: int, index: V, **_options: Any) -> V:
    if not x.rank or not index.rank:
        raise UnsupportedError("gather of a single element")
    a = axis_of(dim, x.rank)
    _check_positions(c, index, x.shape[a])
    where = [
        index.cast(i64) if k == a else iota(index.shape, k, i64, c.origin) for k in range(x.rank)
    ]
    return gather(x, 0, *where)


ROWS = (
    Row("aten.mm.default", _product("mk,kn->mn")),
    Row("aten.bmm.default", _product("bmk,bkn->bmn")),
    Row("aten.mv.default", _product("mk,k->m")),
    Row("aten.dot.default", _product("k,k->")),
    Row("aten.addmm.default", _addmm("mk,kn->mn")),
    Row("aten.baddbmm.default", _addmm("bmk,bkn->bmn")),
    Row(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        _attention,
        equal_dims=(((0, 0), (1, 0)), ((1, 0), (2, 0)), ((1, 2), (2, 2))),
    ),
    Row("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", _attention_backward),
    Row("aten.embedding.default", _embedding),
    Row("aten.index.Tensor", _index),
    Row("aten._unsafe_index.Tensor", _index, in_bounds=True),
    Row("aten.index_select.default", _index_select),
    Row("aten.gather.default", _gather),
)
"""Rows of products, attention and gathers."""
