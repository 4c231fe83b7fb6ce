"""Determine the memory layout of tensors and of results that are partial views.

Eager code gives `y[:, 1:3]` as a view of all of `y`. A result that takes most of a value, shares it
with another result or repeats elements is made as eager code makes it, a view of the complete
value. If it takes little, the rest is not computed: the part is stored alone and then copied to
eager code's strides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.frontends.torch.fake_facts import nbytes
from smelt.frontends.torch.row import Row

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
