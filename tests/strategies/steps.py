"""The steps that random programs grow by.  A step that finds no fitting value does nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from tests.strategies.builder import LARGEST, Builder

from smelt.errors import ShapeError
from smelt.graph import build
from smelt.graph.ir import Node
from smelt.ops.combine import COMBINES
from smelt.ops.contract import Contract
from smelt.ops.create import Constant
from smelt.ops.elementwise import Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice, Window
from smelt.types.dtype import DType, bool_, i32, i64
from smelt.types.expr import Expr, Index, add, mul, sub
from smelt.types.tensor import Shape, broadcast_shapes


class Step(NamedTuple):
    """How a program grows, and how often."""

    grow: Callable[[Builder], None]
    weight: int


def _numbers(n: Node) -> bool:
    return n.type.dtype.kind != "bool"


def _floats(n: Node) -> bool:
    return n.type.dtype.is_float


def _ranked(n: Node) -> bool:
    return n.type.rank > 0


# ---- elementwise -----------------------------------------------------------------------------

_WRAPPERS: tuple[Callable[[Node], Node], ...] = (
    lambda x: x,
    lambda x: build.map("abs", x),
    lambda x: build.map("add", build.map("abs", x), build.constant(1.0, x.type.dtype)),
    lambda x: build.map("tanh", x),
)
_ARGUMENTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: x,
    np.abs,
    lambda x: np.abs(x) + 1,
    np.tanh,
)


@cache
def _wrapper(row: ScalarOp) -> int:
    """Which wrapper keeps a function of floats inside its domain."""
    sample = np.linspace(-3, 3, 61)
    for k, argument in enumerate(_ARGUMENTS):
        with np.errstate(all="ignore"):
            result = np.asarray(row.numpy(argument(sample)))
        if result.dtype.kind != "f" or not np.isnan(result).any():
            return k
    return 0


OF_KERNELS = {name for row in SCALARS.values() for name in row.over}
"""Rows that no front end asks for: what carried sums of exponentials are made of."""


def _unary(b: Builder) -> None:
    x = b.value()
    if x is None:
        return
    rows = [
        r
        for r in SCALARS.values()
        if r.arity == 1
        and x.type.dtype.kind in r.rule.accepts[0]
        and r.name not in b.excluded | OF_KERNELS
    ]
    row = b.choose(rows)
    assert isinstance(row, ScalarOp)
    safe = x.type.dtype.is_float and b.flavour != "special"
    b.add(build.map(row.name, _WRAPPERS[_wrapper(row) if safe else 0](x)))


def _partner(b: Builder, x: Node, *others: Node) -> Node:
    """A further operand of x's type: another value that broadcasts with all, or a constant."""

    def fits(y: Node) -> bool:
        try:
            shape = broadcast_shapes(*(n.type.shape for n in (x, *others, y)))
        except ShapeError:
            return False
        return b.count(shape) <= LARGEST

    other = b.value(fits) if b.number(0, 3) else None
    if other is None:
        return _constant(b, x.type.dtype)
    return b.cast(other, x.type.dtype)


def _constant(b: Builder, dtype: DType) -> Node:
    if dtype.kind == "bool":
        return build.constant(b.flag(), dtype)
    options: tuple[float, ...] = (1, 2, 0, 3, 10) if dtype.kind == "uint" else (1, 2, 0, -1, 3, 10)
    if dtype.is_float:
        options = (1.0, 0.5, 2.0, 0.0, -1.0, 3.0, 0.1, -0.0, 100.0)
    return build.constant(b.choose(options), dtype)  # type: ignore[arg-type]


def _binary(b: Builder) -> None:
    x = b.value()
    if x is None:
        return
    rows = [
        r
        for r in SCALARS.values()
        if r.arity == 2
        and r.name not in OF_KERNELS
        and x.type.dtype.kind in r.rule.accepts[0]
        and r.rule.accepts[0] == r.rule.accepts[1]
        and r.cost < 50
        and r.name not in b.excluded
    ]
    row = b.choose(rows)
    assert isinstance(row, ScalarOp)
    y = _partner(b, x)
    b.add(build.map(row.name, *((y, x) if b.flag() else (x, y))))


def _arithmetic(b: Builder) -> None:
    """The four operations that most programs consist of."""
    x = b.value(_numbers)
    if x is None:
        return
    y = _partner(b, x)
    b.add(build.map(str(b.choose(("add", "mul", "sub", "max"))), *((y, x) if b.flag() else (x, y))))


def _select(b: Builder) -> None:
    x = b.value()
    if x is None:
        return
    y = _partner(b, x)
    z = _partner(b, x, y)
    names = [name for name in ("lt", "eq", "ge") if name not in b.excluded]
    mask = build.map(str(b.choose(names)), x, y)
    b.add(build.map("select", mask, x, z))


def _cast(b: Builder) -> None:
    x = b.value()
    dtype = b.choose(b.dtypes)
    assert isinstance(dtype, DType)
    if x is not None:
        b.add(b.cast(x, dtype))


def _source(b: Builder) -> None:
    b.add(b.source())


# ---- reductions ------------------------------------------------------------------------------


def _axes(b: Builder, rank: int) -> tuple[int, ...]:
    """The last axis, the first, all, or some."""
    kinds: list[tuple[int, ...]] = [(rank - 1,), (0,), tuple(range(rank))]
    if rank > 2:
        kinds += [(1,), (0, rank - 1)]
    actual = b.choose(kinds)
    assert isinstance(actual, tuple)
    return actual


def _nonempty(b: Builder, x: Node, axes: tuple[int, ...]) -> bool:
    return all(n for a, n in enumerate(b.concrete(x.type.shape)) if a in axes)


def _keepdims(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def _reduce(b: Builder) -> None:
    x = b.value(_ranked)
    if x is None:
        return
    axes = _axes(b, x.type.rank)
    rows = [r for r in COMBINES.values() if x.type.dtype.kind in r.kinds]
    if not _nonempty(b, x, axes):
        rows = [r for r in rows if not r.has_no_empty_value]
    name = b.choose([r.name for r in rows])
    assert isinstance(name, str)
    row = COMBINES[name]
    if row.positional and len(axes) not in (1, x.type.rank):
        axes = (axes[0],)
    if row.has_no_empty_value:
        for a in axes:
            if isinstance(x.type.shape[a], Expr):
                b.fact(1, "<=", x.type.shape[a])
    result = b.apply(Reduce(name, axes), x)
    if b.flag():
        result = b.apply(Reshape(_keepdims(x.type.shape, axes)), result)
    b.add(result)


def _folded(b: Builder, name: str, x: Node, axis: int) -> Node:
    """A reduction along one axis that keeps the dimension."""
    return b.apply(Reshape(_keepdims(x.type.shape, (axis,))), b.apply(Reduce(name, (axis,)), x))


def _cascade_axis(b: Builder) -> tuple[Node, int] | None:
    x = b.value(lambda n: _floats(n) and _ranked(n))
    if x is None:
        return None
    axis = b.choose((x.type.rank - 1, 0))
    assert isinstance(axis, int)
    if not _nonempty(b, x, (axis,)):
        return None
    if isinstance(x.type.shape[axis], Expr):
        b.fact(1, "<=", x.type.shape[axis])
    return x, axis


def _softmax(b: Builder) -> None:
    """max, subtract, exp, sum, divide: or its logarithm."""
    result = _cascade_axis(b)
    if result is None:
        return
    x, axis = result
    shifted = build.map("sub", x, _folded(b, "max", x, axis))
    e = build.map("exp", shifted)
    total = _folded(b, "sum", e, axis)
    if b.flag():
        b.add(build.map("sub", shifted, build.map("log", total)))
    else:
        b.add(build.map("div", e, total))


def _normalize(b: Builder) -> None:
    """Subtract the mean, divide by the deviation, scale."""
    result = _cascade_axis(b)
    if result is None:
        return
    x, axis = result
    n = build.constant(float(b.concrete(x.type.shape)[axis]), x.type.dtype)
    d = build.map("sub", x, build.map("div", _folded(b, "sum", x, axis), n))
    var = build.map("div", _folded(b, "sum", build.map("mul", d, d), axis), n)
    scale = build.map("rsqrt", build.map("add", var, build.constant(1e-3, x.type.dtype)))
    b.add(build.map("mul", d, scale))


def _scan(b: Builder) -> None:
    x = b.value(lambda n: _ranked(n) and _numbers(n))
    if x is None:
        return
    axis = b.choose((x.type.rank - 1, 0))
    assert isinstance(axis, int)
    name = b.choose([n for n, row in COMBINES.items() if row.prefix is not None])
    b.add(b.apply(Scan(str(name), axis), x))


# ---- views -----------------------------------------------------------------------------------


def _permute(b: Builder) -> None:
    x = b.value(lambda n: n.type.rank > 1)
    if x is not None:
        rank = x.type.rank
        orders = [tuple(reversed(range(rank))), (*range(1, rank), 0), (1, 0, *range(2, rank))]
        b.add(b.apply(Permute(b.choose(orders)), x))  # type: ignore[arg-type]


def _reshape(b: Builder) -> None:
    x = b.value()
    if x is None:
        return
    shape = x.type.shape
    options: list[Shape] = [(*shape, 1), (1, *shape)]
    if len(shape) > 1:
        options += [(mul(shape[0], shape[1]), *shape[2:]), (*shape[:-2], mul(shape[-2], shape[-1]))]
        if shape[0] != 0:
            options.append((x.type.elements,))
    if shape and isinstance(shape[-1], int):
        options += [(*shape[:-1], shape[-1] // k, k) for k in (2, 3, 4) if shape[-1] % k == 0]
    kept = tuple(n for n in shape if n != 1)
    if kept != shape:
        options.append(kept)
    b.add(b.apply(Reshape(b.choose(options)), x))  # type: ignore[arg-type]


def _expand(b: Builder) -> None:
    x = b.value()
    if x is None:
        return
    shape = tuple(b.dim() if n == 1 else n for n in x.type.shape)
    if shape == x.type.shape or b.flag():
        shape = (b.dim(), *shape)
    if b.count(shape) <= LARGEST:
        b.add(b.apply(Expand(shape), x))


def _slice(b: Builder) -> None:
    x = b.value(_ranked)
    if x is None:
        return
    boxes = [_range(b, dim, n) for dim, n in zip(x.type.shape, b.concrete(x.type.shape))]
    starts, sizes, steps = zip(*boxes)
    b.add(b.apply(Slice(starts, sizes, steps), x))


def _range(b: Builder, dim: Index, n: int) -> tuple[Index, Index, int]:
    """Start, count and step inside a dimension of n."""
    kind = b.number(0, 4) if n else 0
    if kind == 0:
        return 0, dim, 1
    cut = b.number(1, min(n, 3))
    if kind == 1:
        if isinstance(dim, Expr):
            b.fact(cut, "<=", dim)
        return cut, sub(dim, cut), 1
    if kind == 2:
        return (0, cut, 1) if isinstance(dim, int) else (*_head(b, dim, cut), 1)
    if isinstance(dim, Expr):
        return sub(dim, 1), dim, -1
    return (n - 1, -(-n // 2), -2) if kind == 3 else (n % 2, n // 2, 2)


def _head(b: Builder, dim: Expr, cut: int) -> tuple[Index, Index]:
    b.fact(cut, "<=", dim)
    return 0, cut


def _flip(b: Builder) -> None:
    x = b.value(_ranked)
    if x is not None:
        b.add(b.apply(Flip(_axes(b, x.type.rank)), x))


def _pad(b: Builder) -> None:
    x = b.value(_ranked)
    if x is None:
        return
    low, high = (tuple(b.number(0, 2) for _ in x.type.shape) for _ in range(2))
    number = _constant(b, x.type.dtype).op
    assert isinstance(number, Constant)
    if b.count(tuple(add(add(a, n), c) for a, n, c in zip(low, x.type.shape, high))) <= LARGEST:
        b.add(b.apply(Pad(low, high, number.value), x))


def _window(b: Builder) -> None:
    x = b.value(_ranked)
    if x is None:
        return
    axis = b.number(0, x.type.rank - 1)
    n = b.concrete(x.type.shape)[axis]
    if n < 1:
        return
    extent = b.number(1, min(n, 3))
    dilation = b.number(1, 2) if (extent - 1) * 2 < n else 1
    reach = (extent - 1) * dilation + 1
    if b.count(x.type.shape) * extent > LARGEST:
        return
    if isinstance(x.type.shape[axis], Expr):
        b.fact(reach, "<=", x.type.shape[axis])
    b.add(b.apply(Window(axis, extent, b.number(1, 2), dilation), x))


def _concat(b: Builder) -> None:
    x = b.value(_ranked)
    if x is None:
        return
    axis = b.number(0, x.type.rank - 1)

    def fits(y: Node) -> bool:
        if y.type.rank != x.type.rank or y.type.dtype != x.type.dtype:
            return False
        shapes = enumerate(zip(x.type.shape, y.type.shape))
        return all(a == axis or n == m for a, (n, m) in shapes)

    y = b.value(fits)
    pieces = (x, y or x, x) if b.number(0, 3) == 3 else (x, y or x)
    if sum(b.count(p.type.shape) for p in pieces) <= LARGEST:
        b.add(b.apply(Concat(axis), *pieces))


# ---- data-dependent reads and writes, contractions -------------------------------------------


def _positions(b: Builder, extent: int, shape: Shape) -> Node:
    """An input of positions inside an axis."""
    dtype = b.choose((i64, i32))
    assert isinstance(dtype, DType)
    rng = np.random.default_rng(b.number(0, 3))
    array = rng.integers(0, extent, b.concrete(shape)).astype(dtype.numpy)
    node = b.input(dtype, shape, array)
    b.values.remove(node)
    b.values.insert(0, node)
    return node


def _gather(b: Builder) -> None:
    x = b.value(lambda n: _ranked(n) and 0 not in b.concrete(n.type.shape))
    if x is None:
        return
    first = b.number(0, x.type.rank - 1)
    shape = tuple(b.dim() for _ in range(b.number(0, 2)))
    rest = (*x.type.shape[:first], *shape, *x.type.shape[first + 1 :])
    if b.count(rest) > LARGEST:
        return
    index = _positions(b, b.concrete(x.type.shape)[first], shape)
    b.add(b.apply(Gather(first), x, index))


def _scatter(b: Builder) -> None:
    x = b.value(
        lambda n: _ranked(n) and n.type.dtype != bool_ and 0 not in b.concrete(n.type.shape)
    )
    if x is None:
        return
    shape = (b.dim(),)
    updates = b.input(x.type.dtype, (*shape, *x.type.shape[1:]))
    if b.flag():
        updates = b.apply(Map("add"), updates, updates)  # which the kernel computes where it adds
    index = _positions(b, b.concrete(x.type.shape)[0], shape)
    how = ("put", "add", "mul", "max", "min")
    b.add(b.apply(Scatter(str(b.choose(how))), x, updates, index))


def _contract(b: Builder) -> None:
    """A matrix product (plain, transposed or batched) of a value with another or a new input."""
    x = b.value(lambda n: _floats(n) and n.type.rank in (2, 3))
    if x is None:
        return
    k = x.type.shape[-1]
    n = b.dim()
    transposed = b.flag()
    w = b.input(x.type.dtype, (n, k) if transposed else (k, n))
    right = "n,k" if transposed else "k,n"
    left = "m,k" if x.type.rank == 2 else "b,m,k"
    out = left.replace("k", "n")
    rows = x.type.shape[:-1]
    if b.count((*rows, n)) <= LARGEST:
        b.add(b.apply(Contract.parse(f"{left}; {right} -> {out}"), x, w))


STEPS: dict[str, Step] = {
    "arithmetic": Step(_arithmetic, 6),
    "unary": Step(_unary, 5),
    "binary": Step(_binary, 3),
    "select": Step(_select, 1),
    "cast": Step(_cast, 2),
    "reduce": Step(_reduce, 4),
    "softmax": Step(_softmax, 2),
    "normalize": Step(_normalize, 1),
    "permute": Step(_permute, 1),
    "reshape": Step(_reshape, 2),
    "expand": Step(_expand, 1),
    "slice": Step(_slice, 2),
    "flip": Step(_flip, 1),
    "pad": Step(_pad, 1),
    "window": Step(_window, 1),
    "concat": Step(_concat, 1),
    "scan": Step(_scan, 1),
    "gather": Step(_gather, 1),
    "scatter": Step(_scatter, 1),
    "contract": Step(_contract, 1),
    "source": Step(_source, 1),
}
"""Every step, simple ones first, with its weight."""
