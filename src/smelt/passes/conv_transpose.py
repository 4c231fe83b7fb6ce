"""Windows of a product that are laid back and summed become windows of one of its factors.

The gradient of an image that windows slide over is a product with an axis for the places and one
for the taps of each pair, laid back along the image and summed over the taps.  As it stands that is
an array of all windows, and a fold over it.  But the places belong to one factor (the gradient
of the result) and the taps to the other (the weights), so that it is a product over the taps as
well: a convolution of the one with the other backwards.

    sum over k of z[p - k·d, k]   =   sum over k and c of x[p - k·d, c]·w[k, c]
    where z[i, k] = sum over c of x[i, c]·w[k, c]

Where windows step over their places, there are zeros between the x[i]: place p = q·s + r meets the
taps r, r + s, r + 2s, .., so that there is a product for each remainder r, whose places are dealt
out, and no zero is multiplied.

What lies outside is zero, and is multiplied as in every convolution with a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.combine import SUM_OF_PRODUCTS
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Flip, Pad, Permute, Reshape, Shear, Slice, Window
from smelt.types.dtype import f32, f64
from smelt.types.expr import Index, add, axes_of, axis, floordiv, mul, product, sub
from smelt.types.tensor import Shape
from smelt.windows import is_laid

__all__ = ["laid"]

Uses = Mapping[Node, int]


def laid(graph: Graph) -> Graph:
    """Sums of windows that a product made become products over windows.

    >>> from smelt.graph.text import parse, text
    >>> print(
    ...     text(
    ...         laid(
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
        new = _summed(node, uses) or _narrowed(node, uses) or node
        uses[new] = counts[old]
        return new

    return rebuild_from(graph, change)


@dataclass(frozen=True, slots=True)
class _Laid:
    """What is summed: windows of an axis, laid back along it."""

    step: int
    dilation: int
    places: Index
    """Positions of the axis they are laid along."""


def _summed(node: Node, uses: Uses) -> Node | None:
    """A sum over taps of what was laid back, as a product over them."""
    if not isinstance(node.op, Reduce) or node.op.combine != SUM_OF_PRODUCTS[0]:
        return None
    (x,) = node.inputs
    if not isinstance(x.op, Shear) or node.op.axes != (x.type.rank - 1,) or uses.get(x, 1) > 1:
        return None
    if x.type.dtype not in (f32, f64) or x.op.dilation < 1:
        return None
    a, (inner,) = x.op.axis, x.inputs
    step, source = _spread(inner, a, uses)
    taps = x.type.rank - 1
    found = _of_views(source, a, taps, _Laid(step, x.op.dilation, x.type.shape[a]), uses)
    if found is None or found.type != node.type:
        return None
    return found


def _spread(x: Node, a: int, uses: Uses) -> tuple[int, Node]:
    """How far apart elements along an axis are, with zeros behind each, and those elements."""
    apart = x.inputs[0] if isinstance(x.op, Reshape) else x
    if not isinstance(apart.op, Pad) or any(uses.get(y, 1) > 1 for y in (x, apart)):
        return 1, x
    (bare,), pad = apart.inputs, apart.op
    more = pad.high[a + 1] if len(pad.high) > a + 1 else 0
    zeros = tuple(more if k == a + 1 else 0 for k in range(apart.type.rank))
    if (
        not isinstance(more, int)
        or more < 1
        or pad.value != 0
        or pad.high != zeros
        or any(n != 0 for n in pad.low)
        or bare.type.shape[a + 1] != 1
        or x.type.shape
        != (*bare.type.shape[:a], mul(bare.type.shape[a], more + 1), *bare.type.shape[a + 2 :])
    ):
        return 1, x
    shape = (*bare.type.shape[: a + 1], *bare.type.shape[a + 2 :])
    if isinstance(bare.op, Reshape) and uses.get(bare, 1) == 1:
        (bare,) = bare.inputs
    return more + 1, bare if bare.type.shape == shape else _view(x, Reshape(shape), bare)


# ---- through views of other axes -----------------------------------------------------------------


def _of_views(x: Node, a: int, t: int, what: _Laid, uses: Uses) -> Node | None:
    """The sum over the taps, axis `t`, laid along the places, axis `a`, of a product that is seen
    through views which leave both alone."""
    if uses.get(x, 1) > 1:
        return None
    if isinstance(x.op, Contract):
        return _of_product(x, a, t, what)
    if isinstance(x.op, Concat):
        if x.op.axis in (a, t):
            return None
        parts = [_of_views(y, a, t, what, uses) for y in x.inputs]
        known = [p for p in parts if p is not None]
        whole = len(known) == len(parts)
        return _view(x, Concat(_without(x.op.axis, t)), *known) if whole else None
    if isinstance(x.op, (Reshape, Permute, Slice, Pad)):
        return _of_view(x, a, t, what, uses)
    return None


def _of_view(x: Node, a: int, t: int, what: _Laid, uses: Uses) -> Node | None:
    """The same, where a view is on top."""
    (inner,), op = x.inputs, x.op
    shape = list(x.type.shape)
    shape[a] = what.places
    del shape[t]
    view: TensorOp = Reshape(tuple(shape))
    before = [_same_axis(inner.type.shape, x.type.shape, k) for k in (a, t)]
    if isinstance(op, Permute):
        before = [op.perm[a], op.perm[t]]
        view = Permute(tuple(_without(p, op.perm[t]) for k, p in enumerate(op.perm) if k != t))
    elif isinstance(op, Slice):
        kept = [k for k in range(x.type.rank) if k != t]
        whole = [
            (op.starts[k], op.sizes[k], op.steps[k]) == (0, inner.type.shape[k], 1) for k in (a, t)
        ]
        before = [a, t] if all(whole) else [None, None]
        view = Slice(
            tuple(op.starts[k] for k in kept), tuple(shape), tuple(op.steps[k] for k in kept)
        )
    elif isinstance(op, Pad):  # zeros are the sums of zeros
        low, high = (tuple(n for k, n in enumerate(side) if k != t) for side in (op.low, op.high))
        none = op.value == 0 and not any((op.low[k], op.high[k]) != (0, 0) for k in (a, t))
        before = [a, t] if none else [None, None]
        view = Pad(low, high, op.value)
    places, taps = before
    if places is None or taps is None:
        return None
    found = _of_views(inner, places, taps, what, uses)
    return None if found is None else _view(x, view, found)


def _without(k: int, t: int) -> int:
    """The number of axis k where axis t is gone."""
    return k - (k > t)


def _same_axis(old: Shape, new: Shape, a: int) -> int | None:
    """Which axis of `old` is axis `a` of `new`, of as many elements and with as many before it."""
    before = product(new[:a])
    same = (b for b, n in enumerate(old) if n == new[a] and product(old[:b]) == before)
    return next(same, None)


# ---- the product ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sides:
    """A product whose factor `slid` alone has the places, and whose other one alone the taps."""

    product: Node
    taps: int
    """The axis of the taps in the result."""
    slid: int
    """Which of the factors has the places."""
    dim: int
    """Their dimension there."""
    place: int
    """The dimension of the taps in the other factor."""

    def over(self, slid: Node, weights: Node) -> Node:
        """The product of windows, which have the taps last, and of weights; of places alone where
        the weights lack the taps."""
        op = self.product.op
        assert isinstance(op, Contract)
        tap, kept = op.out[self.taps], tuple(n for k, n in enumerate(op.out) if k != self.taps)
        terms = [op.left, op.right]
        if slid.type.rank > len(terms[self.slid]):
            terms[self.slid] = (*terms[self.slid], axis(tap, 0))
        else:
            other = terms[1 - self.slid]
            terms[1 - self.slid] = (*other[: self.place], *other[self.place + 1 :])
        at = bare_axis((op.left, op.right)[self.slid][self.dim])
        extents = tuple(e for e in op.extents if e[0] not in (at, tap))
        whole = replace(op, left=terms[0], right=terms[1], out=kept, extents=extents)
        factors = (slid, weights) if self.slid == 0 else (weights, slid)
        return build.apply(whole, *factors, origin=self.product.origin)


def _of_product(x: Node, a: int, t: int, what: _Laid) -> Node | None:
    """The sum as a product over the taps as well; of several for windows that step over places."""
    taps, sides = x.type.shape[t], _sides(x, a, t)
    if sides is None or not isinstance(taps, int) or taps < 1:
        return None
    reach = (taps - 1) * what.dilation
    if add(floordiv(sub(what.places, reach + 1), what.step), 1) != x.type.shape[a]:
        return None  # not the places that such windows have
    y, w = x.inputs[sides.slid], x.inputs[1 - sides.slid]
    if not is_laid(what.step, what.dilation, taps):
        return None
    if what.step == 1:
        slid = _slide(y, sides.dim, (reach, reach), taps, what.dilation)
        return sides.over(slid, _view(w, Flip((sides.place,)), w))
    if taps <= what.step and what.dilation == 1:
        return _side_by_side(x, a, t, taps, what)
    behind, a = -(-reach // what.step), _without(a, t)
    parts = [_of_remainder(sides, r, taps, behind, what) for r in range(what.step)]
    apart = [
        _view(x, Reshape((*p.type.shape[: a + 1], 1, *p.type.shape[a + 1 :])), p) for p in parts
    ]
    return _dealt(build.apply(Concat(a + 1), *apart, origin=x.origin), a, what)


def _of_remainder(sides: _Sides, r: int, taps: int, behind: int, what: _Laid) -> Node:
    """What the windows give to the places q·step + r, for as many q as there are windows and
    `behind` more: those of the taps v for which step divides r - v·dilation."""
    step, dilation = what.step, what.dilation
    y, w = (sides.product.inputs[k] for k in (sides.slid, 1 - sides.slid))
    first = next(v for v in range(step) if (v * dilation - r) % step == 0)
    count, late = len(range(first, taps, step)), (first * dilation - r) // step
    box = [(0, n, 1) for n in w.type.shape]
    box[sides.place] = (first, count, step)
    w = _sliced(w, dict(enumerate(box)))
    around = (late + (count - 1) * dilation, behind - late)
    if count == 1:
        shape = w.type.shape
        w = _view(w, Reshape((*shape[: sides.place], *shape[sides.place + 1 :])), w)
        return sides.over(_surrounded(y, sides.dim, *around), w)
    slid = _slide(y, sides.dim, around, count, dilation)
    return sides.over(slid, _view(w, Flip((sides.place,)), w))


def _side_by_side(x: Node, a: int, t: int, taps: int, what: _Laid) -> Node:
    """Windows without a place in common are laid one behind the other; a product has their taps
    beside its channels."""
    op = x.op
    assert isinstance(op, Contract)
    weights = op.left if _alone(op.left, op.out[t]) != -1 else op.right
    dims = [-1 if (d := _alone(weights, n)) is None else d for n in op.out]
    beside = [k for k in range(a) if -1 < dims[k] < dims[t]]
    if beside and (at := beside[-1] + 1) < t:
        order = [*range(at), t, *(k for k in range(at, len(op.out)) if k != t)]
        whole = replace(op, out=tuple(op.out[k] for k in order))
        x = build.apply(whole, *x.inputs, origin=x.origin)
        x = _view(x, Permute(tuple(map(order.index, range(len(order))))), x)
    order = [k for k in range(x.type.rank) if k != t]
    a = _without(a, t)
    x = _view(x, Permute((*order[: a + 1], t, *order[a + 1 :])), x)
    high = tuple(what.step - taps if k == a + 1 else 0 for k in range(x.type.rank))
    x = _view(x, Pad((0,) * len(high), high, 0.0), x) if any(high) else x
    return _dealt(x, a, what, tuple(taps - 1 if k == a else 0 for k in range(len(order))))


def _dealt(x: Node, a: int, what: _Laid, behind: tuple[int, ...] = ()) -> Node:
    """The places of x, which has their quotients by the step and their remainders."""
    shape = x.type.shape
    x = _view(x, Reshape((*shape[:a], mul(shape[a], what.step), *shape[a + 2 :])), x)
    x = _view(x, Pad((0,) * len(behind), behind, 0.0), x) if any(behind) else x
    shape = x.type.shape
    whole = (*shape[:a], what.places, *shape[a + 1 :])
    return _view(x, Slice((0,) * len(shape), whole, (1,) * len(shape)), x)


def _sides(x: Node, a: int, t: int) -> _Sides | None:
    """How the places along axis `a` and the taps along `t` belong to a product's factors."""
    op = x.op
    assert isinstance(op, Contract)
    if op.padded or op.dtype not in (None, x.type.dtype):
        return None
    for k, (own, other) in enumerate(((op.left, op.right), (op.right, op.left))):
        dim, place = _alone(own, op.out[a]), _alone(other, op.out[t])
        if dim is None or place is None or min(dim, place) < 0:
            continue
        if _alone(other, op.out[a]) == _alone(own, op.out[t]) == -1:
            return _Sides(x, t, k, dim, place)
    return None


def _alone(terms: tuple[Index, ...], name: str) -> int | None:
    """The dimension that an axis is by itself; -1 if there is none; None if it is part of one."""
    have = [k for k, t in enumerate(terms) if name in axes_of(t)]
    if not have:
        return -1
    return have[0] if len(have) == 1 and bare_axis(terms[have[0]]) == name else None


def _slide(y: Node, dim: int, around: tuple[int, int], taps: int, dilation: int) -> Node:
    """Windows along a dimension, with zeros around it."""
    y = _surrounded(y, dim, *around)
    return _view(y, Window(dim, taps, 1, dilation), y)


def _surrounded(y: Node, dim: int, low: int, high: int) -> Node:
    """Zeros along a dimension; before windows of another one, so that margins meet."""
    if not low and not high:
        return y
    if isinstance(y.op, Window) and dim not in (y.op.axis, y.type.rank - 1):
        return _view(y, y.op, _surrounded(y.inputs[0], dim, low, high))
    sides = [tuple(n if k == dim else 0 for k in range(y.type.rank)) for n in (low, high)]
    return _view(y, Pad(sides[0], sides[1], 0.0), y)


# ---- less of a product ---------------------------------------------------------------------------


def _narrowed(node: Node, uses: Uses) -> Node | None:
    """A part of a product over windows as the product of parts, also where it is a part of what
    such products deal out: a margin that was cut off is never computed."""
    if not isinstance(node.op, Slice):
        return None
    (x,) = node.inputs
    if uses.get(x, 1) > 1:
        return None
    found = _less_of_product(node, x) or _less_of_dealt(node, x, uses)
    return found if found is not None and found.type == node.type else None


def _less_of_product(node: Node, x: Node) -> Node | None:
    box = node.op
    assert isinstance(box, Slice)
    if not isinstance(x.op, Contract) or x.op.padded:
        return None
    cut = {
        name: (start, count, step)
        for name, n, start, count, step in zip(
            x.op.out, x.type.shape, box.starts, box.sizes, box.steps, strict=True
        )
        if (start, count, step) != (0, n, 1)
    }
    sides = ((x.op.left, x.inputs[0]), (x.op.right, x.inputs[1]))
    if any(_alone(terms, name) is None for name in cut for terms, _ in sides):
        return None
    parts = [
        _part(y, {_alone(terms, name): pick for name, pick in cut.items()}) for terms, y in sides
    ]
    op = replace(x.op, extents=tuple(e for e in x.op.extents if e[0] not in cut))
    return build.apply(op, *parts, origin=x.origin)


def _less_of_dealt(node: Node, x: Node, uses: Uses) -> Node | None:
    """Places from `first` on of what was dealt out: place i of them is place (first + i) // step of
    part (first + i) % step."""
    box, dealt = node.op, x.inputs[0] if x.inputs else x
    assert isinstance(box, Slice)
    if isinstance(x.op, Slice) and set(x.op.steps) == {1}:
        starts = tuple(map(add, x.op.starts, box.starts))
        return _less_of_dealt(_view(node, replace(box, starts=starts), dealt), dealt, uses)
    if not isinstance(x.op, Reshape) or not isinstance(dealt.op, Concat):
        return None
    a, step, parts = dealt.op.axis - 1, len(dealt.inputs), dealt.inputs
    whole = (*dealt.type.shape[: a + 1], *dealt.type.shape[a + 2 :])
    if (
        a < 0
        or any(uses.get(y, 1) > 1 for y in (x, dealt, *parts))
        or not all(isinstance(y.op, Reshape) and y.inputs[0].type.shape == whole for y in parts)
        or x.type.shape != (*whole[:a], mul(whole[a], step), *whole[a + 1 :])
    ):
        return None
    first, rows = box.starts[a], floordiv(add(box.sizes[a], step - 1), step)
    beyond = sub(mul(whole[a], step), add(first, mul(rows, step)))
    sizes = (*box.sizes[:a], rows, *box.sizes[a + 1 :])
    if box.steps[a] != 1 or not isinstance(first, int) or (sizes == whole and not first):
        return None
    if not isinstance(beyond, int) or beyond < 0:
        return None
    found: list[Node] = []
    for r in range(first, first + step):
        starts = (*box.starts[:a], r // step, *box.starts[a + 1 :])
        less = _less(parts[r % step].inputs[0], Slice(starts, sizes, box.steps), uses)
        found.append(_view(x, Reshape((*sizes[: a + 1], 1, *sizes[a + 1 :])), less))
    dealt = _view(x, Concat(a + 1), *found)
    dealt = _view(x, Reshape((*sizes[:a], mul(rows, step), *sizes[a + 1 :])), dealt)
    return _less(dealt, Slice((0,) * len(sizes), box.sizes, (1,) * len(sizes)), uses)


def _less(x: Node, box: Slice, uses: Uses) -> Node:
    """A part of x."""
    if (box.starts, box.sizes, box.steps) == ((0,) * x.type.rank, x.type.shape, (1,) * x.type.rank):
        return x
    node = _view(x, box, x)
    return _narrowed(node, uses) or node


def _part(y: Node, cut: Mapping[int | None, tuple[Index, Index, int]]) -> Node:
    """Some positions along dimensions; of windows by taking fewer."""
    if not any(k is not None and k >= 0 for k in cut):
        return y
    if isinstance(y.op, Window) and y.type.rank - 1 not in cut:
        (x,), op = y.inputs, y.op
        own = dict(cut)
        if op.axis in cut:
            start, count, step = cut[op.axis]
            if step < 1 or count == 0:
                return _sliced(y, cut)
            reach = (op.extent - 1) * op.dilation + 1
            whole = add(mul(sub(count, 1), step * op.step), reach)
            own[op.axis] = (mul(start, op.step), whole, 1)
            op = replace(op, step=step * op.step)
        return _view(y, op, _part(x, own))
    return _sliced(y, cut)


def _sliced(y: Node, cut: Mapping[int | None, tuple[Index, Index, int]]) -> Node:
    picks = [cut.get(k, (0, n, 1)) for k, n in enumerate(y.type.shape)]
    starts, sizes, steps = (tuple(p[k] for p in picks) for k in range(3))
    return _view(y, Slice(starts, sizes, steps), y)  # type: ignore[arg-type]


def _view(like: Node, op: TensorOp, *x: Node) -> Node:
    return build.apply(op, *x, origin=like.origin)
