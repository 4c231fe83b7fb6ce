"""Decompose complex operators into real operators on pairs.

Kernels compute real numbers.  `view_as_real` shows the same memory as pairs, so a product of
complex tensors is made of products of their parts, by the rules of `ops.complex_pairs`; what is
left to torch (a Fourier transform) takes `view_as_complex` of what we computed.  Between two
decomposed operators these views cancel, and rotary positions, magnitudes of a
spectrum or a filter of it fuse as real programs do.

    view_as_complex(stack((a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), -1))

Pairs are a real tensor with one more, innermost dimension of size 2: what selects or orders
elements does so with pairs, and what adds elements adds both parts.  One rule serves all such
operators, since the names of their arguments say what becomes of each:

    flip(z, [0, -1])           ->  view_as_complex(flip(view_as_real(z), [0, 1]))
    where(condition, z, w)     ->  view_as_complex(where(condition[..., None], ..))

A slice of a complex tensor is a view that torch makes of an existing tensor.  A kernel that reads
the parts of the slice can as well read a slice of the parts, which is an index map, so
`view_as_real` is pushed through other views:

    view_as_real(slice(z, 1, 0, 8))  ->  slice(view_as_real(z), 1, 0, 8)

If `z` in turn was made of parts, nothing complex is left: the views cancel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, wraps
from math import isfinite
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from smelt.frontends.torch.row import overloads
from smelt.ops import complex_pairs

_ATEN: Any = torch.ops.aten
_COMPLEX_DTYPES = (torch.complex64, torch.complex128)


def _is_complex(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_complex()


def _parts_of(x: Any) -> tuple[Any, Any]:
    """Return real and imaginary part of a tensor or number.

    None for an imaginary part of zero.
    """
    if isinstance(x, complex):
        return x.real, x.imag
    if not _is_complex(x):
        return x, None
    pair = _ATEN.view_as_real.default(_ATEN._conj.default(x) if x.is_conj() else x)
    a, b = _ATEN.select.int(pair, -1, 0), _ATEN.select.int(pair, -1, 1)
    return a, -b if x.is_conj() else b


def _as_real_pairs(x: Any) -> Any:
    """View both parts as an innermost dimension of 2; a lazy conjugate is materialized."""
    return torch.stack(_parts_of(x), -1) if x.is_conj() else _ATEN.view_as_real.default(x)


def _as_complex(pair: Any) -> Any:
    """View pairs of reals as complex numbers."""
    return _ATEN.view_as_complex.default(pair)


def _from_parts(a: Any, b: Any) -> Any:
    """Stack two parts, which broadcast, to complex numbers; None stands for zeros.

    The second one may be a number.
    """
    b = b if isinstance(b, torch.Tensor) else torch.full_like(a, b or 0.0)
    parts = (a, b) if a.shape == b.shape else torch.broadcast_tensors(a, b)
    return _as_complex(torch.stack(parts, -1))


def _has_data_dependent_size(x: Any) -> bool:
    """Whether a size of the tensor depends on data.

    Its strides are then not known in advance.
    """
    return any(isinstance(n, torch.SymInt) and free_unbacked_symbols(n) for n in x.shape)


def _are_supported(*operands: Any) -> bool:
    """Whether operands have one supported complex type, and reals the matching real type."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    kinds = {x.dtype for x in tensors if x.is_complex()}
    if not kinds and any(isinstance(x, complex) for x in operands):
        kinds = {x.dtype.to_complex() for x in tensors if x.dtype.is_floating_point}
    if len(kinds) != 1 or any(x.is_neg() or _has_data_dependent_size(x) for x in tensors):
        return False
    (kind,) = kinds
    return kind in _COMPLEX_DTYPES and all(x.dtype in (kind, kind.to_real()) for x in tensors)


def _complex_rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a rule to complex operands of one type and reals of the matching type.

    Its result is given eager code's order in memory by `ordered`.
    """

    @wraps(rule)
    def checked(*operands: Any, **options: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        if not _are_supported(*operands, *options.values()) or not all(x.dim() for x in tensors):
            return NotImplemented
        return rule(*operands, **options)

    return checked


# ---- elements that are moved or added ------------------------------------------------------------


_MEMORY_FORMATS = (None, torch.preserve_format, torch.contiguous_format)
_MASKS = (torch.bool, torch.uint8)
"""Types of positions that leave the size of a result to data."""
_POSITIONS = ("index", "indices")
_SIZES = {"repeats": 1, "size": 2}
"""Argument with an entry for each dimension -> its entry for that of pairs."""
_CONDITIONS = ("condition", "mask")
"""Arguments that are bools for whole numbers, not for each part."""


def _of_pairs(name: str, x: Any, rank: int) -> Any:
    """Return the argument for pairs of an operator's argument; `rank` counts without pairs."""
    if name in _CONDITIONS:
        return x.unsqueeze(-1)
    if _is_complex(x):
        return _as_real_pairs(x)
    if name == "tensors":
        return [_as_real_pairs(t) for t in x]
    if name in ("dim", "dims", "dim0", "dim1"):
        return x % rank if isinstance(x, int) else [d % rank for d in x]
    if name in _SIZES:
        return [*x, _SIZES[name]]
    return [0, 0, *x] if name == "pad" else x


def view_arguments(view: Any, arguments: Sequence[Any], rank: int) -> list[Any]:
    """Return the arguments, after the first, of the same view of pairs."""
    names = [argument.name for argument in view._schema.arguments[1:]]
    counted = max(rank + (view is _ATEN.unsqueeze.default), 1)
    pairs = [_of_pairs(n, x, counted) for n, x in zip(names, arguments, strict=False)]
    return [[*pairs[0], rank]] if view is _ATEN.permute.default else pairs


def _pairwise(op: Any, new_dims: int = 0) -> Callable[..., Any]:
    """Return the rule of an operator that moves or adds elements.

    A new dimension counts for what its argument `dim` may be.
    """
    names = [argument.name for argument in op._schema.arguments]

    @wraps(op)
    def rule(*args: Any, dtype: Any = None, **options: Any) -> Any:
        named = [*zip(names, args, strict=False), *options.items()]
        flat = [(n, y) for n, x in named for y in (x if isinstance(x, (list, tuple)) else (x,))]
        tensors = [(n, x) for n, x in flat if isinstance(x, torch.Tensor)]
        numbers = [x for _, x in tensors if x.is_complex()]
        others = [(n, x.dtype) for n, x in tensors if not x.is_complex()]
        if (
            not _are_supported(*numbers)
            or dtype not in (None, numbers[0].dtype)
            or any(isinstance(x, complex) for _, x in flat)
            or any(n not in (*_CONDITIONS, *_POSITIONS) for n, _ in others)
            or any(n in _POSITIONS and t in _MASKS for n, t in others)
            or any(x.is_neg() or not x.dim() for _, x in tensors)
            or len({x.dim() for n, x in tensors if n == "tensors"}) > 1
        ):
            return NotImplemented
        rank = numbers[0].dim() + new_dims
        pairs = [_of_pairs(n, x, rank) for n, x in zip(names, args, strict=False)]
        return _as_complex(op(*pairs, **options))

    return rule


def _roll(x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    return _pairwise(_ATEN.roll.default)(x, shifts, dims) if dims else NotImplemented


def _pad(x: Any, pad: Sequence[Any], value: Any = 0) -> Any:
    return _pairwise(_ATEN.constant_pad_nd.default)(x, pad) if value == 0 else NotImplemented


_WHERE = _pairwise(_ATEN.where.self)


def _total(x: Any, dims: Any = None, *more: Any, **options: Any) -> Any:
    """Add over dimensions, over all if none is named: not over those of pairs."""
    rule = _pairwise(_ATEN.sum.dim_IntList)
    return rule(x, dims or [*range(x.dim())], *more, **options)


@_complex_rule
def _mean(x: Any, dims: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
    total = _total(x, dims, keep, dtype=dtype)
    if total is NotImplemented:
        return total
    count = 1
    for d in {d % x.dim() for d in dims} if dims else range(x.dim()):
        count = count * x.shape[d]
    a, b = _parts_of(total)
    # Divides by count + 0j as complex division does: infinities give NaN.
    return _from_parts((a + b * 0.0) / count, (b - a * 0.0) / count)


@_complex_rule
def _norm(x: Any, order: Any = 2, *more: Any, dtype: Any = None) -> Any:
    if dtype is not None:
        return NotImplemented
    return _ATEN.linalg_vector_norm.default(torch.hypot(*_parts_of(x)), order, *more)


@_complex_rule
def _clone(x: Any, *, memory_format: Any = None) -> Any:
    if memory_format not in _MEMORY_FORMATS:
        return NotImplemented
    if x.is_conj():  # a lazy conjugation: materialize it
        return _from_parts(*_parts_of(x))
    return _as_complex(_ATEN.clone.default(_as_real_pairs(x), memory_format=memory_format))


@_complex_rule
def _triangle(keep: Any, x: Any, k: int = 0) -> Any:
    inside = keep(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device), k)
    return _as_complex(torch.where(inside.unsqueeze(-1), _as_real_pairs(x), 0.0))


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if not _is_complex(x):
        return NotImplemented
    fill = _full(x.shape, value, dtype=x.dtype, device=x.device)
    return NotImplemented if fill is NotImplemented else _WHERE(mask, fill, x)


# ---- creation ------------------------------------------------------------------------------------


def _full(size: Sequence[Any], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    number = isinstance(value, (bool, int, float, complex))
    is_strided = options.get("layout") in (None, torch.strided)
    if not number or dtype not in _COMPLEX_DTYPES or not is_strided:
        return NotImplemented
    real = {"dtype": dtype.to_real(), "device": options.get("device")}
    if value == 0:
        return _as_complex(torch.zeros([*size, 2], **real))
    parts = (complex(value).real, complex(value).imag)
    return _from_parts(*(torch.full(size, part, **real) for part in parts))


def _full_like(
    x: Any, value: Any, *, dtype: Any = None, memory_format: Any = None, **options: Any
) -> Any:
    if memory_format not in _MEMORY_FORMATS or _has_data_dependent_size(x):
        return NotImplemented
    size = options.pop("size", x.shape)
    return _full(size, value, dtype=dtype or x.dtype, **{"device": x.device} | options)


def _copied_to(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    """Convert to another complex type; a real operand gets imaginary parts of zero."""
    is_plain = not any(y is not None and y is not False for y in options.values())
    if dtype not in _COMPLEX_DTYPES or not is_plain or x.is_neg() or _has_data_dependent_size(x):
        return NotImplemented
    if not _is_complex(x):
        return _from_parts(x.to(dtype.to_real()), None)
    if not x.dim() or x.dtype not in _COMPLEX_DTYPES:
        return NotImplemented
    return _as_complex(_as_real_pairs(x).to(dtype.to_real()))


# ---- arithmetic ----------------------------------------------------------------------------------


def _number_of(of: Callable[..., Any]) -> Callable[..., Any]:
    """Let the first operand, or the second, be a Python number."""

    def function(x: Any, y: Any) -> Any:
        like = x if isinstance(x, torch.Tensor) else y
        return of(*(p if isinstance(p, torch.Tensor) else torch.full_like(like, p) for p in (x, y)))

    return function


def _where(condition: Any, x: Any, y: Any) -> Any:
    return (x if condition else y) if isinstance(condition, bool) else torch.where(condition, x, y)


_REALS = complex_pairs.namespace(
    torch,
    abs=abs,
    copysign=_number_of(torch.copysign),
    maximum=_number_of(torch.maximum),
    minimum=_number_of(torch.minimum),
    signbit=lambda x: torch.copysign(torch.ones_like(x), x) < 0,
    where=_where,
)
"""Functions of real tensors that rules of complex numbers are written with."""


def _both_parts(x: Any) -> tuple[Any, Any]:
    """Return both parts; a real operand has an imaginary part of zero.

    Eager code does the same, so infinities times that zero give NaN.
    """
    a, b = _parts_of(x)
    return a, 0.0 if b is None else b


def _function(name: str) -> Callable[..., Any]:
    @_complex_rule
    def rule(x: Any) -> Any:
        result = complex_pairs.FUNCTIONS[name](_REALS, _parts_of(x))
        return _from_parts(*result) if isinstance(result, tuple) else result

    return rule


@_complex_rule
def _mul(x: Any, y: Any) -> Any:
    return _from_parts(*complex_pairs.multiply(_both_parts(x), _both_parts(y)))


@_complex_rule
def _div(x: Any, y: Any) -> Any:
    """Divide by Smith's algorithm, as eager code does."""
    c, d = divisor = _both_parts(y)
    if not isinstance(c, torch.Tensor) and not (isfinite(c) and isfinite(d) and (c or d)):
        return NotImplemented
    return _from_parts(*complex_pairs.divide(_REALS, _both_parts(x), divisor))


def _sum(of: Any) -> Callable[..., Any]:
    rule = complex_pairs.add if of is _ATEN.add.Tensor else complex_pairs.subtract

    @_complex_rule
    def total(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        if isinstance(alpha, complex):
            return NotImplemented
        if _is_complex(x) and _is_complex(y) and not x.is_conj() and not y.is_conj():
            return _as_complex(of(_as_real_pairs(x), _as_real_pairs(y), alpha=alpha))
        y = tuple(p if alpha == 1 else p * alpha for p in _both_parts(y))
        return _from_parts(*rule(_both_parts(x), y))

    return total


@_complex_rule
def _sgn(x: Any) -> Any:
    """Divide by the magnitude, as eager code does: infinite numbers have no direction."""
    magnitude = torch.hypot(*_parts_of(x))
    magnitude = torch.where(magnitude == 0, 1.0, magnitude)
    return _as_complex(_as_real_pairs(x) / magnitude.unsqueeze(-1))


def _complex(a: Any, b: Any) -> Any:
    if any(
        x.dtype.to_complex() not in _COMPLEX_DTYPES or x.is_neg() or _has_data_dependent_size(x)
        for x in (a, b)
    ):
        return NotImplemented
    return _from_parts(*torch.broadcast_tensors(a, b))


def _polar(size: Any, angle: Any) -> Any:
    return _complex(size * torch.cos(angle), size * torch.sin(angle))


_POWERS = (2, 3, -1, -2, 0.5, -0.5)
"""Exponents for which eager code multiplies or takes a root."""


@_complex_rule
def _power(x: Any, exponent: Any) -> Any:
    if not _is_complex(x) or exponent not in _POWERS:
        return NotImplemented
    exponent = exponent if exponent % 1 else int(exponent)
    result = complex_pairs.power(_REALS, _parts_of(x), abs(exponent))
    assert result is not None
    return _from_parts(*(result if exponent > 0 else _RECIPROCAL(_REALS, result)))


_RECIPROCAL = complex_pairs.FUNCTIONS["reciprocal"]


@_complex_rule
def _equal(x: Any, y: Any) -> Any:
    (a, b), (c, d) = _both_parts(x), _both_parts(y)
    return (a == c) & ((b == d) if isinstance(b, torch.Tensor) else (d == b))


def _differs(x: Any, y: Any) -> Any:
    equal = _equal(x, y)
    return equal if equal is NotImplemented else ~equal


@_complex_rule
def _addcmul(x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else value * y * z)


# ---- products ------------------------------------------------------------------------------------


@_complex_rule
def _matmul(x: Any, y: Any) -> Any:
    """Multiply complex matrices as one product of real matrices.

    Both forms do the same arithmetic; one writes an expanded operand, the other an expanded result:
    the smaller is chosen.
    """
    m, k, n = _size_hint(x.shape[-2]), _size_hint(y.shape[-2]), _size_hint(y.shape[-1])
    return _product_by_rows(x, y) if m * (k + 3 * n) < 2 * k * n else _product_by_columns(x, y)


def _product_by_columns(x: Any, y: Any) -> Any:
    """Double the reduction and the columns: [a b] times [[c d], [-d c]].

    The rows of `x` are read in place; each row of `y` is written twice, plain and times i.
    """
    c, d = _parts_of(y)
    both = torch.stack((torch.stack((c, d), -1), torch.stack((-d, c), -1)), -3)
    both = both.flatten(-2).flatten(-3, -2)
    return _as_complex((_as_real_pairs(x).flatten(-2) @ both).unflatten(-1, (y.shape[-1], 2)))


def _product_by_rows(x: Any, y: Any) -> Any:
    """Double the rows and columns: real and imaginary rows of `x` times `y`.

    For few rows of `x` and many weights in `y`, which is read in place; half of the product is then
    multiplied by i.
    """
    conjugated = y.is_conj()
    pairs = _ATEN.view_as_real.default(_ATEN._conj.default(y) if conjugated else y).flatten(-2)
    parts = torch.stack(_parts_of(x), -3).flatten(-3, -2) @ pairs
    parts = parts.unflatten(-1, (y.shape[-1], 2)).unflatten(-3, (2, x.shape[-2]))
    a, b = parts.select(-4, 0).unbind(-1), parts.select(-4, 1).unbind(-1)
    if conjugated:
        return _from_parts(a[0] + b[1], b[0] - a[1])
    return _from_parts(a[0] - b[1], a[1] + b[0])


def _size_hint(n: Any) -> int:
    """Return a size in the traced call, without adding a guard."""
    return n if isinstance(n, int) else n.node.hint or 1


def _addmm(x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _matmul(y, z) if beta == alpha == 1 and _is_complex(x) else NotImplemented
    return product if product is NotImplemented else x + product


_MOVED: dict[Any, Callable[..., Any]] = {
    op: _pairwise(op)
    for op in overloads("""
        copy.default cat.default slice_scatter.default select_scatter.default flip.default
        repeat.default where.self index.Tensor index_select.default index_put.default
        index_add.default cumsum.default nan_to_num.default neg.default
    """)
} | {
    _ATEN.clone.default: _clone,
    _ATEN.constant_pad_nd.default: _pad,
    _ATEN.sum.default: _total,
    _ATEN.sum.dim_IntList: _total,
    _ATEN.zeros.default: lambda size, **options: _full(size, 0, **options),
    _ATEN.new_zeros.default: lambda x, size, **options: _full_like(x, 0, size=size, **options),
    _ATEN.zeros_like.default: lambda x, **options: _full_like(x, 0, **options),
    _ATEN.full.default: _full,
    _ATEN.full_like.default: _full_like,
    _ATEN.ones_like.default: lambda x, **options: _full_like(x, 1, **options),
    _ATEN._to_copy.default: _copied_to,
    _ATEN.roll.default: _roll,
    _ATEN.stack.default: _pairwise(_ATEN.stack.default, new_dims=1),
    _ATEN.masked_fill.Scalar: _masked_fill,
    _ATEN.tril.default: partial(_triangle, torch.tril),
    _ATEN.triu.default: partial(_triangle, torch.triu),
    _ATEN.mean.default: _mean,
    _ATEN.mean.dim: _mean,
    _ATEN.linalg_vector_norm.default: _norm,
}
"""Decompositions of what moves, adds or makes elements."""
_FUNCTIONS = """
    abs angle cos cosh exp expm1 isinf isnan log log10 log1p log2 reciprocal sin sinh sqrt tan tanh
"""
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = (
    _MOVED
    | {getattr(_ATEN, name).default: _function(name) for name in _FUNCTIONS.split()}
    | {
        _ATEN.mul.Tensor: _mul, _ATEN.mul.Scalar: _mul, _ATEN.div.Tensor: _div,
        _ATEN.add.Tensor: _sum(_ATEN.add.Tensor), _ATEN.sub.Tensor: _sum(_ATEN.sub.Tensor),
        _ATEN.sgn.default: _sgn, _ATEN.complex.default: _complex, _ATEN.polar.default: _polar,
        _ATEN.pow.Tensor_Scalar: _power, _ATEN._conj_physical.default: _function("conj"),
        _ATEN.conj_physical.default: _function("conj"), _ATEN.eq.Tensor: _equal,
        _ATEN.eq.Scalar: _equal, _ATEN.ne.Tensor: _differs, _ATEN.ne.Scalar: _differs,
        _ATEN.addcmul.default: _addcmul, _ATEN.bmm.default: _matmul, _ATEN.mm.default: _matmul,
        _ATEN.addmm.default: _addmm, _ATEN.baddbmm.default: _addmm,
    }
)  # fmt: skip
"""Decompositions by operator."""


ATEN: Any = torch.ops.aten
_REAL, _WHOLE, _CONJ = (ATEN.view_as_real.default, ATEN.view_as_complex.default, ATEN._conj.default)
_INVERSE: dict[Any, Any] = {_REAL: _WHOLE, _WHOLE: _REAL, _CONJ: _CONJ}


_SINGLE: Any = frozenset(
    (
        *(ATEN.alias.default, ATEN.detach.default, ATEN.slice.Tensor, ATEN.select.int),
        *(ATEN.squeeze.dim, ATEN.squeeze.dims, ATEN.transpose.int, ATEN.unsqueeze.default),
        *(ATEN.permute.default, ATEN.view.default, ATEN._unsafe_view.default, ATEN.expand.default),
    )
)
"""Views of complex numbers that are views of pairs too."""
_MULTIPLE: Any = frozenset((ATEN.split.Tensor, ATEN.split_with_sizes.default, ATEN.unbind.int))
"""Operators that give several views."""
_VIEWS = {*_INVERSE, *_SINGLE, *_MULTIPLE, operator.getitem}


def cancel_views(graph: torch.fx.Graph) -> None:
    """Make kernels read pairs through views, and drop pairs of inverse views."""
    for node in reversed(list(graph.nodes)):
        if node.target in (_REAL, _CONJ) and node.users:
            _push_through_views(graph, node)
    for node in list(graph.nodes):
        inverse = _INVERSE.get(node.target)
        shown: Any = node.args[0] if inverse is not None else None
        if isinstance(shown, torch.fx.Node) and shown.target is inverse:
            if isinstance(shown.args[0], torch.fx.Node):
                node.replace_all_uses_with(shown.args[0])
    for node in reversed(list(graph.nodes)):
        if node.target in _VIEWS and not node.users:
            graph.erase_node(node)


def _push_through_views(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """Move a `view_as_real` or lazy conjugation in front of the views that it reads."""
    while True:
        shown: Any = node.args[0]
        is_item = isinstance(shown, torch.fx.Node) and shown.target is operator.getitem
        view: Any = shown.args[0] if is_item else shown
        views = _MULTIPLE if is_item else _SINGLE
        if not isinstance(view, torch.fx.Node) or view.target not in views or view.kwargs:
            return
        source: Any = view.args[0]
        fake = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(fake, torch.Tensor) or not fake.is_complex() or fake.is_neg():
            return
        arguments = view.args[1:]
        if node.target is _REAL:
            if fake.is_conj() or any(isinstance(a, torch.fx.Node) for a in arguments[:1]):
                return
            arguments = view_arguments(view.target, arguments, fake.dim())
        elif not fake.is_conj():
            return
        with graph.inserting_before(node):
            pairs = _insert_call(graph, node, node.target, (source,))
            view_of_pairs = _insert_call(graph, node, view.target, (pairs, *arguments))
            if is_item:
                view_of_pairs = _insert_call(
                    graph, node, operator.getitem, (view_of_pairs, shown.args[1])
                )
        node.replace_all_uses_with(view_of_pairs)
        graph.erase_node(node)
        node = pairs


def _insert_call(
    graph: torch.fx.Graph, like: torch.fx.Node, target: Any, args: Any
) -> torch.fx.Node:
    """Insert a call with the metadata of `like` and its own example value."""
    node = graph.call_function(target, args)
    node.meta = dict(like.meta)
    node.meta["val"] = target(*map_arg(args, lambda n: n.meta["val"]))
    return node
