"""Determine the memory layout of tensors and of results, which is that of eager code.

Eager code gives `y[:, 1:3]` as a view of all of `y`. A result that takes most of a value, shares it
with another result or repeats elements is made as eager code makes it, a view of the complete
value. If it takes little, the rest is not computed: the part is stored alone and then copied to
eager code's strides.

A traced value's strides decide how its result is stored, and what `as_strided` of it shows. Those
of a FakeTensor are eager code's but for a few operators whose composite form PyTorch traces; a
decomposition of our own may order its result in another way too. Such a result is copied to the
order of a value that is computed from the same operands without data:

    copysign(x, y)  ->  copysign(x, y).permute(order).clone().permute(inverse)

The copy is an index map in our graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from threading import local
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from smelt.frontends.torch.fake_facts import nbytes
from smelt.frontends.torch.row import Row, overloads

_PARTIAL_VIEWS = """
    slice.Tensor select.int split.Tensor split_with_sizes.default unbind.int diagonal.default
    as_strided.default
"""
PARTIAL_VIEWS = {f"aten.{name}" for name in _PARTIAL_VIEWS.split()}
"""Views that leave elements out: such a result need not keep the rest of the memory alive."""

USER_RESULTS = "smelt_seen"
"""Metadata key at the output node: how many results, from the first, the user sees."""
MIN_VIEW_SHARE = 0.5
"""Minimum share of a value for a view of it to be made by computing all of it."""


def memory_order(fake: Any) -> list[int] | None:
    """Return the dimensions from slowest to fastest if the tensor is dense; else None.

    A tensor that is not `materialize` is copied before it is read, so its order is that of its
    axes.

    >>> memory_order(torch.empty(2, 3, 4).transpose(0, 2))
    [2, 1, 0]
    """
    if fake.is_contiguous() or fake.is_neg():
        return list(range(fake.dim()))
    shape, strides = tuple(fake.shape), fake.stride()
    if any(isinstance(s, int) and s == 0 for s in strides):
        return None
    order = sorted(range(fake.dim()), key=lambda a: (-_stride_hint(strides[a]), a))
    if all(isinstance(n, int) for n in (*shape, *strides)):
        dense = _is_dense([shape[a] for a in order], [strides[a] for a in order])
    else:  # symbolic sizes: consult the guards, which is as slow as calling an operator
        dense = fake.permute(order).is_contiguous()
    return order if dense else None


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements are contiguous, as torch defines it."""
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n not in (1, 0) and s != step:
            return 0 in shape
        step *= n
    return True


def is_guarded(node: Any) -> bool:
    """Whether the tracer's guards check an argument's strides."""
    return bool(node.meta.get("smelt_guarded"))


def is_constant(node: Any) -> bool:
    """Whether every call passes the same tensor, with the strides that were traced."""
    if not node.meta.get("smelt_constant"):
        return False
    order = memory_order(node.meta["val"])
    return order is not None and (order == list(range(len(order))) or is_guarded(node))


def constant_permutation(node: Any) -> tuple[int, ...] | None:
    """Return the permutation of a constant to its memory order; None if there is none.

    Calls pass the constant as it is; its readers permute it.
    """
    order = memory_order(node.meta["val"]) if is_constant(node) else None
    return None if order is None or order == list(range(len(order))) else tuple(order)


def is_fixed(node: Any) -> bool:
    """Whether an argument is a parameter or buffer of the model, whose dimensions never vary."""
    return bool(node.meta.get("smelt_fixed"))


def complex_axis(node: Any) -> int | None:
    """Return the axis, in memory order, of the real and imaginary parts of a `view_as_real`.

    Its extent is always 2. None for other values.
    """
    if node.target is not torch.ops.aten.view_as_real.default:
        return None
    fake = node.meta["val"]
    order = memory_order(fake) or [*range(fake.dim())]
    return order.index(fake.dim() - 1)


def declared_strides(fake: Any, *, guarded: bool) -> tuple[int | None, ...]:
    """Return the strides that an input declares.

    0 and 1 are fixed, None is read at the call. Without guards at most one stride is declared 1, so
    that a copy can have the same strides.

    >>> declared_strides(torch.empty(2, 8).as_strided((2, 3, 2), (8, 1, 1)), guarded=False)
    (None, None, 1)
    """
    strides = [s if isinstance(s, int) and s in (0, 1) else None for s in fake.stride()]
    ones = [d for d, s in enumerate(strides) if s == 1]
    for d in () if guarded else ones[:-1]:
        strides[d] = None
    return tuple(strides)


def match_strides(x: torch.Tensor, strides: tuple[int | None, ...]) -> torch.Tensor:
    """Return the tensor, or a copy of it, with strides as `declared_strides`.

    A value that the forward graph keeps need not have the strides that the tracer expects.

    >>> match_strides(torch.empty(2, 3, 4), (None, 1, None)).stride()
    (12, 1, 3)
    >>> match_strides(torch.ones(2, 3), (None, 0)).stride()
    (1, 0)
    """
    if all(s is None or s == t or n < 2 for n, s, t in zip(x.shape, strides, x.stride())):
        return x
    shape = x.shape
    for d, s in enumerate(strides):
        x = x.narrow(d, 0, 1) if s == 0 and shape[d] else x
    order = sorted(range(x.dim()), key=lambda d: strides[d] == 1)
    back = [order.index(d) for d in range(x.dim())]
    return x.permute(order).contiguous().permute(back).expand(shape)


def _stride_hint(stride: Any) -> int:
    """Return a stride's value in the traced call."""
    node = getattr(stride, "node", None)
    return int(stride) if node is None else int(node.hint)


def user_results(output: Any) -> list[Any]:
    """Return the values among a graph's results that the user sees."""
    count = output.meta.get(USER_RESULTS, 0)
    return [n for n in output.args[0][:count] if isinstance(n, torch.fx.Node)] if count else []


def viewed_bases(output: Any, row_of: Callable[[Any], Row | None]) -> list[Any]:
    """Return the values that must be computed completely because results are views of them."""
    users: dict[Any, list[Any]] = {}
    for n in dict.fromkeys(user_results(output)):
        base, partial = _base(n, row_of)
        if base is not None:
            users.setdefault(base, []).append((n, partial))
    bases: list[Any] = []
    for base, views in users.items():
        parts = [n for n, partial in views if partial]
        if parts and (
            len(views) > 1
            or any(_is_large_part(n, base) or _has_repeated_elements(n) for n in parts)
        ):
            bases.append(base)
    return bases


def full_view_results(
    output: Any, row_of: Callable[[Any], Row | None], required: Mapping[Any, Any]
) -> list[Any]:
    """Return hidden results that are full views of values which nothing else needs.

    `required` are the values that exist as tensors so far. Kernels store these results directly,
    where torch would need a call for each view:

        t(t(mm(..)))  # a gradient of weights
    """
    visible = {*user_results(output)}
    results_of: dict[Any, list[Any]] = {}
    for n in output.all_input_nodes:
        base, partial = _base(n, row_of)
        if base is not None:
            results_of.setdefault(base, []).append(None if partial or n in visible else n)
    pairs = [(n, base) for base, (n, *others) in results_of.items() if not others and n is not None]
    return [
        n
        for n, base in pairs
        if base is not n
        and memory_order(n.meta["val"]) is not None
        and not any(x in required for x in _view_chain(n, base))
    ]


def _view_chain(node: Any, base: Any) -> list[Any]:
    return [node] if node is base else [node, *_view_chain(node.args[0], base)]


def _base(node: Any, row_of: Callable[[Any], Row | None]) -> tuple[Any, bool]:
    """Return the computed value that a result views, and whether elements are left out.

    None for a view of a tensor that torch has.
    """
    partial = False
    while True:
        row = row_of(node)
        if row is None:
            return None, False
        if node.target is operator.getitem and row.alias:
            node = node.args[0]
            continue
        if not row.alias:
            return node, partial
        partial = partial or str(node.target) in PARTIAL_VIEWS
        node = node.args[0]


def _is_large_part(node: Any, base: Any) -> bool:
    part, all_of_it = (nbytes(x.meta["val"].numel()) for x in (node, base))
    return part is None or all_of_it is None or part >= MIN_VIEW_SHARE * all_of_it


def _has_repeated_elements(node: Any) -> bool:
    return any(isinstance(s, int) and s == 0 for s in node.meta["val"].stride())


def materialize(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its elements as they are in memory.

    Some tensors have a lazy negation, and zeros from forward derivatives have no memory at all.

    >>> x = torch.tensor([1 + 2j]).conj().imag
    >>> materialize(x).is_neg(), float(materialize(x))
    (False, -2.0)
    """
    if x._is_zerotensor():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return x.resolve_neg()


def copy_to_strides(x: torch.Tensor, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """Copy a tensor to other strides, which do not overlap.

    >>> copy_to_strides(torch.arange(4.0).reshape(2, 2), (6, 2), 1).stride()
    (6, 2)
    """
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    memory = x.new_empty(extent if x.numel() else offset)
    return memory.as_strided(x.shape, strides, offset).copy_(x)


ATEN: Any = torch.ops.aten


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Roll as eager code does, which joins both parts of one dimension after another."""
    if not dims or x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format if not dims else None)
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.size(dim)
        start = (n - shift) % n
        x = torch.cat((x.narrow(dim, start, n - start), x.narrow(dim, 0, start)), dim)
    return x


def _contiguous(x: Any) -> Any:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _image(x: Any, *_: Any, **__: Any) -> Any:
    """Keep the order of an image that is stored channels last, and no other."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _unpooled(x: Any, indices: Any, size: Sequence[Any]) -> Any:
    return x.new_empty((*x.shape[:-2], *size)).contiguous(memory_format=suggest_memory_format(x))


def _padded(x: Any, padding: Sequence[Any]) -> Any:
    """Keep the order of a volume that is stored as an image with channels last."""
    sides = zip(padding[-2::-2], padding[-1::-2], strict=True)
    inner = [n + a + b for n, (a, b) in zip(x.shape[-3:], sides, strict=True)]
    return x.new_empty((*x.shape[:-3], *inner)).contiguous(memory_format=suggest_memory_format(x))


ORDERED_LIKE: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        overloads("""
            copysign.Tensor xlogy.Tensor heaviside.default logaddexp.default logaddexp2.default
            special_xlog1py.default logical_and.default logical_or.default logical_xor.default
        """),
        torch.add,
    ),
    **dict.fromkeys(
        overloads("""
            channel_shuffle.default native_channel_shuffle.default native_batch_norm.default
            _batch_norm_with_update.default _batch_norm_with_update_functional.default
            _native_batch_norm_legit.default _native_batch_norm_legit.no_stats
            _native_batch_norm_legit_functional.default
            _native_batch_norm_legit_no_training.default
        """),
        _image,
    ),
    ATEN.angle.default: lambda x: _contiguous(x) if x.is_complex() else torch.empty_like(x),
    ATEN.floor_divide.default: torch.true_divide,
    ATEN.div.Tensor_mode: lambda x, y, rounding_mode: torch.true_divide(x, y),
    ATEN.roll.default: _roll,
    ATEN.ldexp.Tensor: lambda x, exponent: x * _contiguous(exponent),
    ATEN.max_unpool2d.default: _unpooled,
    ATEN.nll_loss2d_forward.default: lambda x, target, *_: _contiguous(target),
    ATEN.normal.Tensor_Tensor: lambda x, y, **_: x.new_empty(
        torch.broadcast_shapes(x.shape, y.shape)
    ),
    ATEN.pow.Scalar: lambda base, exponent: _contiguous(exponent),
    ATEN.reflection_pad3d.default: _padded,
    ATEN.replication_pad3d.default: _padded,
    ATEN.native_dropout_backward.default: lambda gradient, mask, scale: gradient * mask,
    ATEN.index_fill.int_Scalar: lambda x, *_: torch.empty_like(x),
    ATEN.index_fill.int_Tensor: lambda x, *_: torch.empty_like(x),
}
"""Operators whose FakeTensors have other strides than eager code's results, and for each a function
of the same operands whose FakeTensors have them. Of several results it describes the first."""


def ordered(op: Any, rule: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a decomposition of `op` whose result has eager code's memory order.

    `rule` is the decomposition without it; None for an operator that stays as it is.
    """
    like: Any = ORDERED_LIKE.get(op, op)

    @wraps(op if rule is None else rule)
    def ordered_rule(*operands: Any, **options: Any) -> Any:
        result = NotImplemented if rule is None else rule(*operands, **options)
        if result is NotImplemented and like is not op:
            result = undecomposed(op, operands, options)
        first = result[0] if isinstance(result, tuple) else result
        if not isinstance(first, torch.Tensor) or first.dim() < 2:
            return result
        first = _reordered(first, _order_of(like, operands, options, first))
        return (first, *result[1:]) if isinstance(result, tuple) else first

    return ordered_rule


_KEPT = local()
"""Operator that is traced as it is in this thread, by `undecomposed`."""


def undecomposed(op: Any, operands: Any, options: Any) -> Any:
    """Call an operator so that the trace keeps it; NotImplemented from within that call."""
    if getattr(_KEPT, "op", None) is op:
        return NotImplemented
    _KEPT.op = op
    try:
        return op(*operands, **options)
    finally:
        _KEPT.op = None


def _order_of(like: Callable[..., Any], operands: Any, options: Any, result: Any) -> Any:
    """Return the order in memory of a value that is not part of the trace.

    None if it is that of `result`, or PyTorch cannot compute it without data.
    """
    with disable_proxy_modes_tracing():
        try:
            model = like(*operands, **options)
        except Exception:  # noqa: BLE001 - operators of any library: the order stays as traced
            return None
        if not isinstance(model, torch.Tensor) or result.shape != model.shape:
            return None
        order = memory_order(model)
        return None if order == memory_order(result) else order


def _reordered(result: Any, order: list[int] | None) -> Any:
    """Copy a result to an order in memory; None leaves it as it is."""
    if order is None:
        return result
    inverse = [order.index(a) for a in range(len(order))]
    copy = result.permute(order).clone(memory_format=torch.contiguous_format)
    return copy.permute(inverse)
