"""Rewrite col2im as a transposed convolution: sum of sheared windows -> contraction over windows.

The gradient of an image under a convolution is a contraction with an axis of window positions and
one of taps, sheared back along the image (`Shear`) and summed over the taps.  Computed literally,
that materialises all windows.  But the positions belong to one factor (the gradient of the result)
and the taps to the other (the weights), so the sum over taps can move into the contraction: a
convolution of the one with the flipped other.

    sum over k of z[p - k·d, k]   =   sum over k and c of x[p - k·d, c]·w[k, c]
    where z[i, k] = sum over c of x[i, c]·w[k, c]

With a window step s there are zeros between the x[i]: position p = q·s + r meets the taps r, r + s,
r + 2s, .., so each remainder r gets a contraction of its own, whose results are interleaved, and no
zero is multiplied (sub-pixel convolution).

Positions out of bounds are zeros and are multiplied, as in every padded convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Flip, Pad, Permute, Reshape, Shear, Slice, Window
from smelt.ops.windows import is_transposed_convolution
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64
from smelt.types.expr import Index, add, axes_of, axis, floordiv, mul, product, sub
from smelt.types.tensor import Shape

Uses = Mapping[Node, int]


def fuse_col2im(graph: Graph) -> Graph:
    """Rewrite sums of sheared contractions (col2im) as contractions over windows.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         fuse_col2im(
    ...             parse('''graph f(x: f32[n,c], w: f32[3,c]) {
    ...   z = contract(x, w) {spec="i,c; k,c -> i,k"}
    ...   l = shear(z) {shape=(n + 2, 3), axis=0, dilation=1}
    ...   s = reduce.sum(l) {axes=(1,)}
    ...   return s
    ... }''')
    ...         )
    ...     )
    ... )
    graph f(x: f32[n,c], w: f32[3,c]) {
      v0 = pad(x) {low=(2, 0), high=(2, 0), value=0.0} : f32[n + 4,c]
      v1 = window(v0) {axis=0, extent=3, step=1, dilation=1} : f32[n + 2,c,3]
      v2 = flip(w) {axes=(0,)} : f32[3,c]
      v3 = contract(v1, v2) {spec="i,c,k; k,c -> i"} : f32[n + 2]
      return v3
    }
    """
    if not any(isinstance(x.op, (Shear, Slice)) for x in graph.nodes()):
        return graph
    counts = use_counts(graph)
    uses: dict[Node, int] = {}

    def change(node: Node, old: Node) -> Node:
        new = _fuse_sum(node, uses) or _narrow_slice(node, uses) or node
        uses[new] = counts[old]
        return new

    return rebuild_from(graph, change)


@dataclass(frozen=True, slots=True)
class _WindowShape:
    """Parameters of the windows that are sheared back along an axis."""

    step: int
    dilation: int
    places: Index
    """Extent of the axis that they are sheared along."""


def _fuse_sum(node: Node, uses: Uses) -> Node | None:
    """Return a sum over taps of sheared windows as a contraction, or None."""
    if not isinstance(node.op, Reduce) or node.op.combine != SUM_OF_PRODUCTS[0]:
        return None
    (x,) = node.inputs
    if not isinstance(x.op, Shear) or node.op.axes != (x.type.rank - 1,) or uses.get(x, 1) > 1:
        return None
    if x.type.dtype not in (f32, f64) or x.op.dilation < 1:
        return None
    a, (inner,) = x.op.axis, x.inputs
    step, source = _undilate(inner, a, uses)
    taps = x.type.rank - 1
    result = _through_views(
        source, a, taps, _WindowShape(step, x.op.dilation, x.type.shape[a]), uses
    )
    if result is None or result.type != node.type:
        return None
    return result


def _undilate(x: Node, a: int, uses: Uses) -> tuple[int, Node]:
    """Return the dilation along axis `a`, and the elements without the zeros between them."""
    split = x.inputs[0] if isinstance(x.op, Reshape) else x
    if not isinstance(split.op, Pad) or any(uses.get(y, 1) > 1 for y in (x, split)):
        return 1, x
    (dense,), pad = split.inputs, split.op
    zeros_after = pad.high[a + 1] if len(pad.high) > a + 1 else 0
    padding = tuple(zeros_after if k == a + 1 else 0 for k in range(split.type.rank))
    if (
        not isinstance(zeros_after, int)
        or zeros_after < 1
        or pad.value != 0
        or pad.high != padding
        or any(n != 0 for n in pad.low)
        or dense.type.shape[a + 1] != 1
        or x.type.shape
        != (
            *dense.type.shape[:a],
            mul(dense.type.shape[a], zeros_after + 1),
            *dense.type.shape[a + 2 :],
        )
    ):
        return 1, x
    shape = (*dense.type.shape[: a + 1], *dense.type.shape[a + 2 :])
    if isinstance(dense.op, Reshape) and uses.get(dense, 1) == 1:
        (dense,) = dense.inputs
    return zeros_after + 1, dense if dense.type.shape == shape else _view(x, Reshape(shape), dense)


# ---- through views of other axes -----------------------------------------------------------------


def _through_views(x: Node, a: int, t: int, windows: _WindowShape, uses: Uses) -> Node | None:
    """Fuse a sum over window taps into the contraction behind views.

    The windows slide along `a`, `t` is the axis of their taps, and the views are of other axes.
    None if that is impossible.
    """
    if uses.get(x, 1) > 1:
        return None
    if isinstance(x.op, Contract):
        return _fuse_contract(x, a, t, windows)
    if isinstance(x.op, Concat):
        if x.op.axis in (a, t):
            return None
        parts = [_through_views(y, a, t, windows, uses) for y in x.inputs]
        fused = [p for p in parts if p is not None]
        complete = len(fused) == len(parts)
        return _view(x, Concat(_axis_after_removal(x.op.axis, t)), *fused) if complete else None
    if isinstance(x.op, (Reshape, Permute, Slice, Pad)):
        return _through_view(x, a, t, windows, uses)
    return None


def _through_view(x: Node, a: int, t: int, windows: _WindowShape, uses: Uses) -> Node | None:
    """Move one view that leaves axes `a` and `t` alone behind the fused sum."""
    (inner,), op = x.inputs, x.op
    shape = list(x.type.shape)
    shape[a] = windows.places
    del shape[t]
    view: TensorOp = Reshape(tuple(shape))
    inner_axes = [_same_axis(inner.type.shape, x.type.shape, k) for k in (a, t)]
    if isinstance(op, Permute):
        inner_axes = [op.perm[a], op.perm[t]]
        view = Permute(
            tuple(_axis_after_removal(p, op.perm[t]) for k, p in enumerate(op.perm) if k != t)
        )
    elif isinstance(op, Slice):
        axes = [k for k in range(x.type.rank) if k != t]
        full = [
            (op.starts[k], op.sizes[k], op.steps[k]) == (0, inner.type.shape[k], 1) for k in (a, t)
        ]
        inner_axes = [a, t] if all(full) else [None, None]
        view = Slice(
            tuple(op.starts[k] for k in axes), tuple(shape), tuple(op.steps[k] for k in axes)
        )
    elif isinstance(op, Pad):  # zeros are the sums of zeros
        low, high = (tuple(n for k, n in enumerate(side) if k != t) for side in (op.low, op.high))
        is_clear = op.value == 0 and not any((op.low[k], op.high[k]) != (0, 0) for k in (a, t))
        inner_axes = [a, t] if is_clear else [None, None]
        view = Pad(low, high, op.value)
    position_axis, tap_axis = inner_axes
    if position_axis is None or tap_axis is None:
        return None
    result = _through_views(inner, position_axis, tap_axis, windows, uses)
    return None if result is None else _view(x, view, result)


def _axis_after_removal(k: int, t: int) -> int:
    """Return the number of axis k after axis t was removed."""
    return k - (k > t)


def _same_axis(old: Shape, new: Shape, a: int) -> int | None:
    """Return the axis of `old` that a reshape to `new` keeps as `a`.

    It has the same extent and stride.  None if there is none.
    """
    before = product(new[:a])
    same = (b for b, n in enumerate(old) if n == new[a] and product(old[:b]) == before)
    return next(same, None)


# ---- the contraction ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Factors:
    """A contraction whose factor `slid` alone has the positions, and whose other alone the taps."""

    product: Node
    taps: int
    """The axis of the taps in the result."""
    slid: int
    """Which of the factors has the window positions: 0 or 1."""
    dim: int
    """Dimension of the positions in that factor."""
    place: int
    """Dimension of the taps in the other factor."""

    def over(self, slid: Node, weights: Node) -> Node:
        """Contract windows (taps last) with weights.

        Where the weights lack taps, `slid` has positions alone.
        """
        op = self.product.op
        assert isinstance(op, Contract)
        tap, out = op.out[self.taps], tuple(n for k, n in enumerate(op.out) if k != self.taps)
        terms = [op.left, op.right]
        if slid.type.rank > len(terms[self.slid]):
            terms[self.slid] = (*terms[self.slid], axis(tap, 0))
        else:
            other = terms[1 - self.slid]
            terms[1 - self.slid] = (*other[: self.place], *other[self.place + 1 :])
        position_axis = bare_axis((op.left, op.right)[self.slid][self.dim])
        extents = tuple(e for e in op.extents if e[0] not in (position_axis, tap))
        contract = replace(op, left=terms[0], right=terms[1], out=out, extents=extents)
        factors = (slid, weights) if self.slid == 0 else (weights, slid)
        return build.apply(contract, *factors, origin=self.product.origin)


def _fuse_contract(x: Node, a: int, t: int, windows: _WindowShape) -> Node | None:
    """Fuse the sum over window taps into a contraction.

    For a step > 1, into a contraction for each remainder by the step.
    """
    taps, sides = x.type.shape[t], _factors(x, a, t)
    if sides is None or not isinstance(taps, int) or taps < 1:
        return None
    reach = (taps - 1) * windows.dilation
    if add(floordiv(sub(windows.places, reach + 1), windows.step), 1) != x.type.shape[a]:
        return None  # not the extent that such windows have
    y, w = x.inputs[sides.slid], x.inputs[1 - sides.slid]
    if not is_transposed_convolution(windows.step, windows.dilation, taps):
        return None
    if windows.step == 1:
        slid = _windows(y, sides.dim, (reach, reach), taps, windows.dilation)
        return sides.over(slid, _view(w, Flip((sides.place,)), w))
    if taps <= windows.step and windows.dilation == 1:
        return _fuse_disjoint(x, a, t, taps, windows)
    extra_windows, a = -(-reach // windows.step), _axis_after_removal(a, t)
    parts = [_phase_contract(sides, r, taps, extra_windows, windows) for r in range(windows.step)]
    split_parts = [
        _view(x, Reshape((*p.type.shape[: a + 1], 1, *p.type.shape[a + 1 :])), p) for p in parts
    ]
    return _interleave(build.apply(Concat(a + 1), *split_parts, origin=x.origin), a, windows)


def _phase_contract(
    sides: _Factors, r: int, taps: int, extra_windows: int, windows: _WindowShape
) -> Node:
    """Contract the taps that reach the output positions q·step + r.

    This is done for all windows and `extra_windows` more.  A tap v reaches them if step divides r -
    v·dilation.
    """
    step, dilation = windows.step, windows.dilation
    y, w = (sides.product.inputs[k] for k in (sides.slid, 1 - sides.slid))
    first = next(v for v in range(step) if (v * dilation - r) % step == 0)
    count, delay = len(range(first, taps, step)), (first * dilation - r) // step
    ranges = [(0, n, 1) for n in w.type.shape]
    ranges[sides.place] = (first, count, step)
    w = _sliced(w, dict(enumerate(ranges)))
    around = (delay + (count - 1) * dilation, extra_windows - delay)
    if count == 1:
        shape = w.type.shape
        w = _view(w, Reshape((*shape[: sides.place], *shape[sides.place + 1 :])), w)
        return sides.over(_pad_zeros(y, sides.dim, *around), w)
    slid = _windows(y, sides.dim, around, count, dilation)
    return sides.over(slid, _view(w, Flip((sides.place,)), w))


def _fuse_disjoint(x: Node, a: int, t: int, taps: int, windows: _WindowShape) -> Node:
    """Fuse windows that do not overlap by storing them contiguously.

    The contraction keeps the taps next to the channels of the weights.
    """
    op = x.op
    assert isinstance(op, Contract)
    weights = op.left if _bare_dim(op.left, op.out[t]) != -1 else op.right
    dims = [-1 if (d := _bare_dim(weights, n)) is None else d for n in op.out]
    before = [k for k in range(a) if -1 < dims[k] < dims[t]]
    if before and (at := before[-1] + 1) < t:
        order = [*range(at), t, *(k for k in range(at, len(op.out)) if k != t)]
        contract = replace(op, out=tuple(op.out[k] for k in order))
        x = build.apply(contract, *x.inputs, origin=x.origin)
        x = _view(x, Permute(tuple(map(order.index, range(len(order))))), x)
    order = [k for k in range(x.type.rank) if k != t]
    a = _axis_after_removal(a, t)
    x = _view(x, Permute((*order[: a + 1], t, *order[a + 1 :])), x)
    high = tuple(windows.step - taps if k == a + 1 else 0 for k in range(x.type.rank))
    x = _view(x, Pad((0,) * len(high), high, 0.0), x) if any(high) else x
    return _interleave(x, a, windows, tuple(taps - 1 if k == a else 0 for k in range(len(order))))


def _interleave(x: Node, a: int, windows: _WindowShape, padding: tuple[int, ...] = ()) -> Node:
    """Merge quotients and remainders of positions by the step, and trim to the extent."""
    shape = x.type.shape
    x = _view(x, Reshape((*shape[:a], mul(shape[a], windows.step), *shape[a + 2 :])), x)
    x = _view(x, Pad((0,) * len(padding), padding, 0.0), x) if any(padding) else x
    shape = x.type.shape
    sizes = (*shape[:a], windows.places, *shape[a + 1 :])
    return _view(x, Slice((0,) * len(shape), sizes, (1,) * len(shape)), x)


def _factors(x: Node, a: int, t: int) -> _Factors | None:
    """Match positions (axis `a`) and taps (axis `t`) to the factors of a contraction.

    Returns None unless each belongs to one factor alone.
    """
    op = x.op
    assert isinstance(op, Contract)
    if op.padded or op.dtype not in (None, x.type.dtype):
        return None
    for k, (terms, other_terms) in enumerate(((op.left, op.right), (op.right, op.left))):
        dim, tap_dim = _bare_dim(terms, op.out[a]), _bare_dim(other_terms, op.out[t])
        if dim is None or tap_dim is None or min(dim, tap_dim) < 0:
            continue
        if _bare_dim(other_terms, op.out[a]) == _bare_dim(terms, op.out[t]) == -1:
            return _Factors(x, t, k, dim, tap_dim)
    return None


def _bare_dim(terms: tuple[Index, ...], name: str) -> int | None:
    """Return the dimension that an axis is by itself, or -1 if it is absent.

    None if it is part of a larger expression.
    """
    dims = [k for k, t in enumerate(terms) if name in axes_of(t)]
    if not dims:
        return -1
    return dims[0] if len(dims) == 1 and bare_axis(terms[dims[0]]) == name else None


def _windows(y: Node, dim: int, around: tuple[int, int], taps: int, dilation: int) -> Node:
    """Take windows along a dimension padded with zeros."""
    y = _pad_zeros(y, dim, *around)
    return _view(y, Window(dim, taps, 1, dilation), y)


def _pad_zeros(y: Node, dim: int, low: int, high: int) -> Node:
    """Pad a dimension with zeros, below windows of other dimensions so that paddings merge."""
    if not low and not high:
        return y
    if isinstance(y.op, Window) and dim not in (y.op.axis, y.type.rank - 1):
        return _view(y, y.op, _pad_zeros(y.inputs[0], dim, low, high))
    sides = [tuple(n if k == dim else 0 for k in range(y.type.rank)) for n in (low, high)]
    return _view(y, Pad(sides[0], sides[1], 0.0), y)


# ---- slices of the result ------------------------------------------------------------------------


def _narrow_slice(node: Node, uses: Uses) -> Node | None:
    """Push a slice into a contraction over windows or its interleaved parts.

    Padding that is cut off again is then never computed.
    """
    if not isinstance(node.op, Slice):
        return None
    (x,) = node.inputs
    if uses.get(x, 1) > 1:
        return None
    result = _slice_contract(node, x) or _slice_interleaved(node, x, uses)
    return result if result is not None and result.type == node.type else None


def _slice_contract(node: Node, x: Node) -> Node | None:
    region = node.op
    assert isinstance(region, Slice)
    if not isinstance(x.op, Contract) or x.op.padded:
        return None
    ranges = {
        name: (start, count, step)
        for name, n, start, count, step in zip(
            x.op.out, x.type.shape, region.starts, region.sizes, region.steps, strict=True
        )
        if (start, count, step) != (0, n, 1)
    }
    sides = ((x.op.left, x.inputs[0]), (x.op.right, x.inputs[1]))
    if any(_bare_dim(terms, name) is None for name in ranges for terms, _ in sides):
        return None
    parts = [
        _slice_operand(
            y, {_bare_dim(terms, name): position_range for name, position_range in ranges.items()}
        )
        for terms, y in sides
    ]
    op = replace(x.op, extents=tuple(e for e in x.op.extents if e[0] not in ranges))
    return build.apply(op, *parts, origin=x.origin)


def _slice_interleaved(node: Node, x: Node, uses: Uses) -> Node | None:
    """Push a slice that starts at `first` into the interleaved parts.

    Position i of the slice is position (first + i) // step of part (first + i) % step.
    """
    region, interleaved = node.op, x.inputs[0] if x.inputs else x
    assert isinstance(region, Slice)
    if isinstance(x.op, Slice) and set(x.op.steps) == {1}:
        starts = tuple(map(add, x.op.starts, region.starts))
        return _slice_interleaved(
            _view(node, replace(region, starts=starts), interleaved), interleaved, uses
        )
    if not isinstance(x.op, Reshape) or not isinstance(interleaved.op, Concat):
        return None
    a, step, parts = interleaved.op.axis - 1, len(interleaved.inputs), interleaved.inputs
    part_shape = (*interleaved.type.shape[: a + 1], *interleaved.type.shape[a + 2 :])
    if (
        a < 0
        or any(uses.get(y, 1) > 1 for y in (x, interleaved, *parts))
        or not all(
            isinstance(y.op, Reshape) and y.inputs[0].type.shape == part_shape for y in parts
        )
        or x.type.shape != (*part_shape[:a], mul(part_shape[a], step), *part_shape[a + 1 :])
    ):
        return None
    first, rows = region.starts[a], floordiv(add(region.sizes[a], step - 1), step)
    excess = sub(mul(part_shape[a], step), add(first, mul(rows, step)))
    sizes = (*region.sizes[:a], rows, *region.sizes[a + 1 :])
    if region.steps[a] != 1 or not isinstance(first, int) or (sizes == part_shape and not first):
        return None
    if not isinstance(excess, int) or excess < 0:
        return None
    slices: list[Node] = []
    for r in range(first, first + step):
        starts = (*region.starts[:a], r // step, *region.starts[a + 1 :])
        part = _sliced_value(parts[r % step].inputs[0], Slice(starts, sizes, region.steps), uses)
        slices.append(_view(x, Reshape((*sizes[: a + 1], 1, *sizes[a + 1 :])), part))
    interleaved = _view(x, Concat(a + 1), *slices)
    interleaved = _view(x, Reshape((*sizes[:a], mul(rows, step), *sizes[a + 1 :])), interleaved)
    return _sliced_value(
        interleaved, Slice((0,) * len(sizes), region.sizes, (1,) * len(sizes)), uses
    )


def _sliced_value(x: Node, region: Slice, uses: Uses) -> Node:
    """Slice x, and push the slice into it if possible."""
    if (region.starts, region.sizes, region.steps) == (
        (0,) * x.type.rank,
        x.type.shape,
        (1,) * x.type.rank,
    ):
        return x
    node = _view(x, region, x)
    return _narrow_slice(node, uses) or node


def _slice_operand(y: Node, ranges: Mapping[int | None, tuple[Index, Index, int]]) -> Node:
    """Slice dimensions of an operand; of a window's dimension by taking fewer windows."""
    if not any(k is not None and k >= 0 for k in ranges):
        return y
    if isinstance(y.op, Window) and y.type.rank - 1 not in ranges:
        (x,), op = y.inputs, y.op
        inner_ranges = dict(ranges)
        if op.axis in ranges:
            start, count, step = ranges[op.axis]
            if step < 1 or count == 0:
                return _sliced(y, ranges)
            reach = (op.extent - 1) * op.dilation + 1
            span = add(mul(sub(count, 1), step * op.step), reach)
            inner_ranges[op.axis] = (mul(start, op.step), span, 1)
            op = replace(op, step=step * op.step)
        return _view(y, op, _slice_operand(x, inner_ranges))
    return _sliced(y, ranges)


def _sliced(y: Node, ranges: Mapping[int | None, tuple[Index, Index, int]]) -> Node:
    full = [ranges.get(k, (0, n, 1)) for k, n in enumerate(y.type.shape)]
    starts, sizes, steps = (tuple(p[k] for p in full) for k in range(3))
    return _view(y, Slice(starts, sizes, steps), y)  # type: ignore[arg-type]


def _view(like: Node, op: TensorOp, *x: Node) -> Node:
    return build.apply(op, *x, origin=like.origin)
