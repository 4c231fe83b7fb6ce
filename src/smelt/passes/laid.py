"""Windows of a product that are laid back and summed become windows of one of its factors.

The gradient of an image that windows slide over is a product with an axis for the places and one
for the taps of each pair, laid back along the image and summed over the taps.  As it stands that is
an array of all windows, and a fold over it.  But the places belong to one factor (the gradient
of the result) and the taps to the other (the weights), so that it is a product over the taps as
well: a convolution of the one with the other backwards.

    sum over k of z[p - k·d, k],  z[i, k] = Σ x[i, c]·w[k, c]   =   Σ x[p - k·d, c]·w[k, c] over k, c

Where windows step over their places, there are zeros between the x[i]: place p = q·s + r meets the
taps r, r + s, r + 2s, .., so that the remainders r are an axis of the weights, and no zero is
multiplied but where s does not divide the taps.

What lies outside is zero, and is multiplied as in every convolution with a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.dataclass import dataclass
from smelt.graph import build
from smelt.graph.ir import Graph, Node
from smelt.graph.walk import rebuild_from, use_counts
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.reduce import Reduce
from smelt.ops.spec import TensorOp
from smelt.ops.view import Flip, Pad, Permute, Reshape, Shear, Slice, Window
from smelt.types.dtype import f32, f64
from smelt.types.expr import Index, add, axes_of, axis, floordiv, mul, product, sub
from smelt.types.tensor import Shape

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
    if not isinstance(node.op, Reduce) or node.op.combine != "sum":
        return None
    (x,) = node.inputs
    if not isinstance(x.op, Shear) or node.op.axes != (x.type.rank - 1,) or uses.get(x, 1) > 1:
        return None
    if x.type.dtype not in (f32, f64) or x.op.dilation < 1:
        return None
    a, (inner,) = x.op.axis, x.inputs
    step, source = _spread(inner, a, uses)
    found = _of_views(source, a, _Laid(step, x.op.dilation, x.type.shape[a]), uses)
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
        not isinstance(more, int) or more < 1 or pad.value != 0 or pad.high != zeros
        or any(n != 0 for n in pad.low) or bare.type.shape[a + 1] != 1
        or x.type.shape != (*bare.type.shape[:a], mul(bare.type.shape[a], more + 1),
                            *bare.type.shape[a + 2 :])
    ):  # fmt: skip
        return 1, x
    shape = (*bare.type.shape[: a + 1], *bare.type.shape[a + 2 :])
    if isinstance(bare.op, Reshape) and uses.get(bare, 1) == 1:
        (bare,) = bare.inputs
    return more + 1, bare if bare.type.shape == shape else _view(x, Reshape(shape), bare)


# ---- through views of other axes -----------------------------------------------------------------


def _of_views(x: Node, a: int, what: _Laid, uses: Uses) -> Node | None:
    """The sum of a product's windows, where views leave both of their axes alone."""
    if uses.get(x, 1) > 1:
        return None
    if isinstance(x.op, Contract):
        return _of_product(x, a, what)
    if not x.inputs:
        return None
    (inner, *_), last = x.inputs, x.type.rank - 1
    if isinstance(x.op, Reshape):
        b = _same_axis(inner.type.shape, x.type.shape, a)
        found = None if b is None else _of_views(inner, b, what, uses)
        return None if found is None else _view(x, Reshape(_target(x, a, what)), found)
    if isinstance(x.op, Permute):
        perm = x.op.perm
        if perm[last] != last:
            return None
        found = _of_views(inner, perm[a], what, uses)
        return None if found is None else _view(x, Permute(perm[:last]), found)
    if isinstance(x.op, Slice):
        op = x.op
        if any((op.starts[k], op.sizes[k], op.steps[k]) != (0, inner.type.shape[k], 1)
               for k in (a, last)):  # fmt: skip
            return None
        found = _of_views(inner, a, what, uses)
        return None if found is None else _view(
            x, Slice(op.starts[:last], _target(x, a, what), op.steps[:last]), found
        )  # fmt: skip
    return None


def _target(x: Node, a: int, what: _Laid) -> Shape:
    """The shape of x's windows when they are laid along axis `a` and summed."""
    return (*x.type.shape[:a], what.places, *x.type.shape[a + 1 : -1])


def _same_axis(old: Shape, new: Shape, a: int) -> int | None:
    """Which axis of `old` is axis `a` of `new`, if that and the last one are the same in both."""
    if old[-1] != new[-1]:
        return None
    before = product(new[:a])
    same = (b for b, n in enumerate(old[:-1]) if n == new[a] and product(old[:b]) == before)
    return next(same, None)


# ---- the product ---------------------------------------------------------------------------------


def _of_product(x: Node, a: int, what: _Laid) -> Node | None:
    """The product over the taps as well: its one factor has the places, the other the taps."""
    op = x.op
    assert isinstance(op, Contract)
    if op.padded or op.dtype not in (None, x.type.dtype):
        return None
    at, tap = op.out[a], op.out[-1]
    sides = [(op.left, x.inputs[0]), (op.right, x.inputs[1])]
    places = [_alone(terms, at) for terms, _ in sides]
    taps = [_alone(terms, tap) for terms, _ in sides]
    for k in range(2):
        dim, other = places[k], taps[1 - k]
        if dim is None or other is None or places[1 - k] != -1 or taps[k] != -1:
            continue
        if dim < 0 or other < 0:
            continue
        made = _windows(x, op, a, what, (sides[k], dim), (sides[1 - k], other))
        if made is None:
            return None
        (slid, weights), (out, shape) = made
        order = (slid, weights) if k == 0 else (weights, slid)
        whole = replace(op, left=order[0][0], right=order[1][0], out=out,
                          extents=tuple(e for e in op.extents if e[0] not in (at, tap)))  # fmt: skip
        found = build.apply(whole, order[0][1], order[1][1], origin=x.origin)
        if found.type.shape != shape:  # remainders are an axis of their own
            found = _view(x, Reshape((*shape[:a], mul(found.type.shape[a], what.step),
                                      *shape[a + 1 :])), found)  # fmt: skip
            found = _view(x, Slice((0,) * len(shape), shape, (1,) * len(shape)), found)
        return found
    return None


def _alone(terms: tuple[Index, ...], name: str) -> int | None:
    """The dimension that an axis is by itself; -1 if there is none; None if it is part of one."""
    have = [k for k, t in enumerate(terms) if name in axes_of(t)]
    if not have:
        return -1
    return have[0] if len(have) == 1 and bare_axis(terms[have[0]]) == name else None


Side = tuple[tuple[tuple[Index, ...], Node], int]
Factor = tuple[tuple[Index, ...], Node]


def _windows(
    x: Node, op: Contract, a: int, what: _Laid, slid: Side, weights: Side
) -> tuple[tuple[Factor, Factor], tuple[tuple[str, ...], Shape]] | None:
    """Both factors with the taps backwards, and the product's axes and shape."""
    ((terms, y), dim), ((others, w), place) = slid, weights
    taps, places = w.type.shape[place], what.places
    have, tap = y.type.shape[dim], op.out[-1]
    shape = (*x.type.shape[:a], places, *x.type.shape[a + 1 : -1])
    out = op.out[:-1]
    if not isinstance(taps, int) or taps < 1:
        return None
    reach, dilation = (taps - 1) * what.dilation, what.dilation
    if add(floordiv(sub(places, reach + 1), what.step), 1) != have:
        return None  # not the places that such windows have
    if what.step == 1:
        y = _slide(y, dim, reach, reach, taps, dilation)
        w = _view(w, Flip((place,)), w)
        return (((*terms, axis(tap, 0)), y), (others, w)), (out, shape)
    if dilation > 1:
        return None
    rounds = -(-taps // what.step)
    more = rounds * what.step - taps
    behind = rounds - 1 if taps + what.step - 1 <= rounds * what.step else rounds
    y = _slide(y, dim, rounds - 1, behind, rounds, 1)
    rest = _fresh("r", {*op.out, *(n for t in (*terms, *others) for n in axes_of(t))})
    none = (0,) * w.type.rank
    if more:
        high = tuple(more if k == place else 0 for k in range(w.type.rank))
        w = _view(w, Pad(none, high, 0.0), w)
    w = _view(w, Reshape((*w.type.shape[:place], rounds, what.step,
                          *w.type.shape[place + 1 :])), w)  # fmt: skip
    w = _view(w, Flip((place,)), w)
    others = (*others[: place + 1], axis(rest, 0), *others[place + 1 :])
    out = (*out[: a + 1], rest, *out[a + 1 :])
    return (((*terms, axis(tap, 0)), y), (others, w)), (out, shape)


def _slide(y: Node, dim: int, low: int, high: int, taps: int, dilation: int) -> Node:
    """Windows along a dimension, with zeros around it."""
    y = _surrounded(y, dim, low, high) if low or high else y
    return _view(y, Window(dim, taps, 1, dilation), y)


def _surrounded(y: Node, dim: int, low: int, high: int) -> Node:
    """Zeros along a dimension; before windows of another one, so that margins meet."""
    if isinstance(y.op, Window) and dim not in (y.op.axis, y.type.rank - 1):
        return _view(y, y.op, _surrounded(y.inputs[0], dim, low, high))
    sides = [tuple(n if k == dim else 0 for k in range(y.type.rank)) for n in (low, high)]
    return _view(y, Pad(sides[0], sides[1], 0.0), y)


def _fresh(wanted: str, taken: set[str]) -> str:
    name, k = wanted, 1
    while name in taken:
        name, k = f"{wanted}{k}", k + 1
    return name


# ---- less of a product ---------------------------------------------------------------------------


def _narrowed(node: Node, uses: Uses) -> Node | None:
    """A part of a product over windows as the product of parts: a margin that was cut off is never
    computed."""
    if not isinstance(node.op, Slice):
        return None
    (x,), box = node.inputs, node.op
    if not isinstance(x.op, Contract) or x.op.padded or uses.get(x, 1) > 1:
        return None
    if not any(isinstance(y.op, Window) for y in x.inputs):
        return None
    cut = {
        name: (start, count, step)
        for name, n, start, count, step in zip(
            x.op.out, x.type.shape, box.starts, box.sizes, box.steps, strict=True)
        if (start, count, step) != (0, n, 1)
    }  # fmt: skip
    sides = ((x.op.left, x.inputs[0]), (x.op.right, x.inputs[1]))
    if any(_alone(terms, name) is None for name in cut for terms, _ in sides):
        return None
    parts = [_part(y, {_alone(terms, name): pick for name, pick in cut.items()})
             for terms, y in sides]  # fmt: skip
    op = replace(x.op, extents=tuple(e for e in x.op.extents if e[0] not in cut))
    found = build.apply(op, *parts, origin=x.origin)
    return found if found.type == node.type else None


def _part(y: Node, cut: Mapping[int | None, tuple[Index, Index, int]]) -> Node:
    """Some positions along dimensions; of windows by taking fewer."""
    if not any(k is not None and k >= 0 for k in cut):
        return y
    if isinstance(y.op, Window) and y.type.rank - 1 not in cut:
        (x,), op = y.inputs, y.op
        own = dict(cut)
        if op.axis in cut:
            start, count, step = cut[op.axis]
            if step < 1:
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


def _view(like: Node, op: TensorOp, x: Node) -> Node:
    return build.apply(op, x, origin=like.origin)
