"""Compose nested views into one; canonicalisation applies these rules.

Views are brought into this order, from the input outwards: slice and flip, permute, reshape,
expand.  A broadcast number (an `Expand` of a constant) stays one under every view.

Each function takes a node of one kind of view and returns a simpler node of the same type, or the
node itself.  Extents are compared as expressions: views are left alone where equality cannot be
proven, and every rule also holds for sizes of 0.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.graph import build
from smelt.graph.ir import Node
from smelt.ops.create import Constant
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice, Stop
from smelt.types.expr import Index, add, mul, product, sub
from smelt.types.tensor import Shape


def at_least(a: Index, b: Index) -> bool:
    """Whether a >= b by a constant, hence for every value of the sizes."""
    d = sub(a, b)
    return isinstance(d, int) and d >= 0


def permute(node: Node) -> Node:
    """Simplify trivial or nested permutations; moving only axes of extent 1 becomes a reshape."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Permute)
    perm = op.perm
    if perm == tuple(range(len(perm))):
        return x
    if isinstance(x.op, Permute):
        inner = x.op.perm
        return _view(node, Permute(tuple(inner[p] for p in perm)), x.inputs[0])
    moved_axes = [p for p in perm if x.type.shape[p] != 1]
    if moved_axes == sorted(moved_axes):
        return _view(node, Reshape(node.type.shape), x)
    if isinstance(x.op, Expand):
        y = with_rank(x.inputs[0], x.type.rank)
        return _view(node, Expand(node.type.shape), _view(node, op, y))
    return node


def reshape(node: Node) -> Node:
    """Simplify trivial or nested reshapes, and move unit dimensions below a broadcast."""
    (x,) = node.inputs
    shape = node.type.shape
    if shape == x.type.shape:
        return x
    if isinstance(x.op, Reshape):
        return _view(node, Reshape(shape), x.inputs[0])
    if isinstance(x.op, Expand):
        inner = unit_reshape(x.inputs[0], x.type.shape, shape)
        if inner is not None:
            return _view(node, Expand(shape), inner)
    return _split_permuted_reshape(node, x) if isinstance(x.op, Permute) else node


def _split_permuted_reshape(node: Node, permuted: Node) -> Node:
    """Permute the unmerged axes of a merged, permuted and reshaped value, and reshape once."""
    (merged,), op = permuted.inputs, permuted.op
    groups = (
        _merged_groups(merged.inputs[0].type.shape, merged.type.shape) if merged.inputs else None
    )
    if groups is None or not isinstance(merged.op, Reshape) or not isinstance(op, Permute):
        return node
    perm = tuple(a for p in op.perm for a in groups[p])
    return _view(node, node.op, _view(permuted, Permute(perm), merged.inputs[0]))


def _merged_groups(old: Shape, new: Shape) -> list[list[int]] | None:
    """Return the adjacent axes of `old` merged into each axis of `new`, or None."""
    groups: list[list[int]] = []
    a = 0
    for n in new:
        group: list[int] = []
        while product(old[k] for k in group) != n and a < len(old):
            group.append(a)
            a += 1
        if product(old[k] for k in group) != n:
            return None
        groups.append(group)
    if any(old[k] != 1 for k in range(a, len(old))) or not groups:
        return None
    groups[-1] += range(a, len(old))
    return groups


def unit_reshape(y: Node, old: Shape, new: Shape) -> Node | None:
    """Reshape y to broadcast to `new` in the way it broadcasts to `old`.

    Returns None unless `old` and `new` differ in dimensions of 1 only.
    """
    old_axes = [a for a, n in enumerate(old) if n != 1]
    new_axes = [a for a, n in enumerate(new) if n != 1]
    if [old[a] for a in old_axes] != [new[a] for a in new_axes]:
        return None
    source: Shape = (*(1,) * (len(old) - y.type.rank), *y.type.shape)
    shape: list[Index] = [1] * len(new)
    for a, new_axis in zip(old_axes, new_axes, strict=True):
        shape[new_axis] = source[a]
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    target = tuple(shape[first:])
    return _view(y, Reshape(target), y)


def expand(node: Node) -> Node:
    """Simplify trivial or nested broadcasts; the broadcast itself adds leading unit dimensions."""
    (x,) = node.inputs
    shape = node.type.shape
    if shape == x.type.shape:
        return x
    if isinstance(x.op, Expand) or adds_leading_ones(x):
        return _view(node, Expand(shape), x.inputs[0])
    first = next((k for k, n in enumerate(x.type.shape) if n != 1), x.type.rank)
    if first:  # [1,n] -> [m,n] is [n] -> [m,n]
        return _view(node, Expand(shape), _view(node, Reshape(x.type.shape[first:]), x))
    return node


def adds_leading_ones(x: Node) -> bool:
    """Whether x is a reshape that only adds leading dimensions of 1."""
    if not isinstance(x.op, Reshape):
        return False
    source, shape = x.inputs[0].type.shape, x.type.shape
    more = len(shape) - len(source)
    return more > 0 and shape == (*(1,) * more, *source)


def slice_(node: Node) -> Node:
    """Simplify trivial or nested slices, and move slices below other views."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Slice)
    from_start = all(s == 0 for s in op.starts) and all(s == 1 for s in op.steps)
    if from_start and op.sizes == x.type.shape:
        return x
    inner = x.op
    if isinstance(inner, Slice):
        starts = tuple(
            add(a, mul(b, s)) for a, b, s in zip(inner.starts, op.starts, inner.steps, strict=True)
        )
        steps = tuple(a * b for a, b in zip(inner.steps, op.steps, strict=True))
        return _view(node, Slice(starts, op.sizes, steps), x.inputs[0])
    if isinstance(inner, Flip):
        ranges = [
            (sub(sub(n, 1), start), -step) if a in inner.axes else (start, step)
            for a, (n, start, step) in enumerate(zip(x.type.shape, op.starts, op.steps))
        ]
        starts, steps = tuple(t[0] for t in ranges), tuple(t[1] for t in ranges)
        return _view(node, Slice(starts, op.sizes, steps), x.inputs[0])
    if isinstance(inner, Permute):
        back = [inner.perm.index(a) for a in range(len(inner.perm))]
        region = Slice(
            tuple(op.starts[b] for b in back),
            tuple(op.sizes[b] for b in back),
            tuple(op.steps[b] for b in back),
        )
        return _view(node, inner, _view(node, region, x.inputs[0]))
    if isinstance(inner, Expand):
        return _slice_of_expand(node, op, x.inputs[0])
    if isinstance(inner, Pad):
        return _slice_of_pad(node, op, inner, x.inputs[0])
    return _slice_of_concat(node, op, inner, x.inputs) if isinstance(inner, Concat) else node


def _slice_of_expand(node: Node, op: Slice, y: Node) -> Node:
    lead = node.type.rank - y.type.rank
    ranges = [
        (0, 1, 1) if n == 1 else (op.starts[lead + a], op.sizes[lead + a], op.steps[lead + a])
        for a, n in enumerate(y.type.shape)
    ]
    region = Slice(
        tuple(p[0] for p in ranges), tuple(p[1] for p in ranges), tuple(p[2] for p in ranges)
    )
    return _view(node, Expand(op.sizes), _view(node, region, y))


def _last(start: Index, count: Index, step: int) -> Index:
    return add(start, mul(sub(count, 1), step))


def _inside(start: Index, count: Index, step: int, begin: Index, end: Index) -> bool:
    """Whether every position of a range lies in [begin, end)."""
    low, high = start, _last(start, count, step)
    if step < 0:
        low, high = high, low
    return at_least(low, begin) and at_least(sub(end, 1), high)


def _slice_of_pad(node: Node, op: Slice, pad_: Pad, y: Node) -> Node:
    ranges = list(zip(op.starts, op.sizes, op.steps, pad_.low, y.type.shape, strict=True))
    ends = map(add, map(add, pad_.low, y.type.shape), pad_.high)
    if any(
        _inside(s, c, t, 0, low) or _inside(s, c, t, add(low, n), end)
        for (s, c, t, low, n), end in zip(ranges, ends, strict=True)
    ):
        padding = build.constant(pad_.value, node.type.dtype, node.origin)
        return _view(node, Expand(op.sizes), padding)
    if not all(_inside(s, c, t, low, add(low, n)) for s, c, t, low, n in ranges):
        return _shrink_padding(node, op, pad_, y)
    starts = tuple(sub(s, low) for s, low in zip(op.starts, pad_.low, strict=True))
    return _view(node, Slice(starts, op.sizes, op.steps), y)


def _shrink_padding(node: Node, op: Slice, pad_: Pad, y: Node) -> Node:
    """Reduce the padding where a slice keeps the whole array and part of its padding."""
    ends = map(add, op.starts, op.sizes)
    low = tuple(map(sub, pad_.low, op.starts))
    high = tuple(sub(end, add(a, n)) for end, a, n in zip(ends, pad_.low, y.type.shape))
    if any(step != 1 for step in op.steps) or not all(at_least(n, 0) for n in (*low, *high)):
        return node
    return _view(node, Pad(low, high, pad_.value), y)


def _slice_of_concat(node: Node, op: Slice, concat_: Concat, pieces: tuple[Node, ...]) -> Node:
    a = concat_.axis
    begin: Index = 0
    for piece in pieces:
        end = add(begin, piece.type.shape[a])
        if _inside(op.starts[a], op.sizes[a], op.steps[a], begin, end):
            starts = (*op.starts[:a], sub(op.starts[a], begin), *op.starts[a + 1 :])
            return _view(node, Slice(starts, op.sizes, op.steps), piece)
        begin = end
    return node


def flip(node: Node) -> Node:
    """Simplify flips: drop repeated axes and double flips, and fold a flip into a slice."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Flip)
    repeated = _broadcast_axes(x)
    axes = tuple(sorted({a for a in op.axes if x.type.shape[a] != 1 and a not in repeated}))
    if not axes:
        return x
    if isinstance(x.op, Flip):
        return _view(node, Flip(tuple(sorted({*axes} ^ {*x.op.axes}))), x.inputs[0])
    if isinstance(x.op, Slice):
        region = x.op
        ranges = [
            (_last(start, count, step), -step) if a in axes else (start, step)
            for a, (start, count, step) in enumerate(zip(region.starts, region.sizes, region.steps))
        ]
        starts, steps = tuple(t[0] for t in ranges), tuple(t[1] for t in ranges)
        return _view(node, Slice(starts, region.sizes, steps), x.inputs[0])
    if isinstance(x.op, Permute):
        inner = Flip(tuple(sorted(x.op.perm[a] for a in axes)))
        return _view(node, x.op, _view(node, inner, x.inputs[0]))
    if isinstance(x.op, Expand):
        y = x.inputs[0]
        lead = x.type.rank - y.type.rank
        inner = Flip(tuple(a - lead for a in axes))
        return _view(node, Expand(x.type.shape), _view(node, inner, y))
    return node if axes == op.axes else _view(node, Flip(axes), x)


def _broadcast_axes(x: Node) -> set[int]:
    """Return the axes along which a broadcast repeats one element."""
    if not isinstance(x.op, Expand):
        return set()
    y = x.inputs[0]
    lead = x.type.rank - y.type.rank
    return {a for a in range(x.type.rank) if a < lead or y.type.shape[a - lead] == 1}


def pad(node: Node) -> Node:
    """Simplify empty or nested padding with one value, and move padding below a permutation."""
    (x,) = node.inputs
    op = node.op
    assert isinstance(op, Pad)
    if all(m == 0 for m in (*op.low, *op.high)):
        return x
    constant = Constant(op.value, x.type.dtype)
    if isinstance(x.op, Pad) and Constant(x.op.value, x.type.dtype) == constant:
        low = tuple(add(a, b) for a, b in zip(op.low, x.op.low, strict=True))
        high = tuple(add(a, b) for a, b in zip(op.high, x.op.high, strict=True))
        return _view(node, Pad(low, high, op.value), x.inputs[0])
    if isinstance(x.op, Permute):
        # So a padded copy that has to be stored is written in its source's memory order.
        back = [x.op.perm.index(a) for a in range(len(x.op.perm))]
        inner = Pad(tuple(op.low[b] for b in back), tuple(op.high[b] for b in back), op.value)
        return _view(node, x.op, _view(node, inner, x.inputs[0]))
    return node


def concat(node: Node) -> Node:
    """Simplify concatenation: flatten it, drop empty pieces, join adjacent slices.

    Pieces with one common permutation are concatenated before it. A piece that is repeated often is
    one view, so that doubling an array again and again has no more pieces at each step.
    """
    op = node.op
    assert isinstance(op, Concat)
    a = op.axis
    pieces: list[Node] = []
    for x in node.inputs:
        inner = x.inputs if isinstance(x.op, Concat) and x.op.axis == a else (x,)
        pieces += [piece for piece in inner if piece.type.shape[a] != 0]
    merged: list[Node] = []
    for piece in pieces:
        combined = _adjacent(merged[-1], piece, a) if merged else None
        if combined is None:
            merged.append(piece)
        else:
            merged[-1] = combined
    if not merged:
        return node.inputs[0]
    if len(merged) == 1:
        return merged[0]
    if len(merged) >= _MIN_REPEATS and len(set(merged)) == 1:
        return _repeated(node, merged[0], len(merged), a)
    views = {x.op for x in merged}
    if len(views) == 1 and isinstance(view := views.pop(), Permute):
        inner = _view(node, Concat(view.perm[a]), *(x.inputs[0] for x in merged))
        return _view(node, view, inner)
    return node if tuple(merged) == node.inputs else _view(node, op, *merged)


_MIN_REPEATS = 4
"""Minimum equal pieces that are a view: the ends of fewer are tested, for contiguous loads."""


def _repeated(node: Node, piece: Node, count: int, a: int) -> Node:
    """Return a view of so many equal pieces one after another along axis `a`."""
    before, after = piece.type.shape[:a], piece.type.shape[a:]
    single = _view(node, Reshape((*before, 1, *after)), piece)
    several = _view(node, Expand((*before, count, *after)), single)
    return _view(node, Reshape(node.type.shape), several)


def _adjacent(left: Node, right: Node, a: int) -> Node | None:
    """Join two slices of one value that are adjacent along axis `a`."""
    p, q = left.op, right.op
    if not (isinstance(p, Slice) and isinstance(q, Slice)) or left.inputs != right.inputs:
        return None
    others = [b for b in range(len(p.sizes)) if b != a]
    if p.steps != q.steps or q.starts[a] != add(p.starts[a], mul(p.sizes[a], p.steps[a])):
        return None
    if any(p.starts[b] != q.starts[b] or p.sizes[b] != q.sizes[b] for b in others):
        return None
    sizes = (*p.sizes[:a], add(p.sizes[a], q.sizes[a]), *p.sizes[a + 1 :])
    return _view(left, Slice(p.starts, sizes, p.steps), *left.inputs)


def stop(node: Node) -> Node:
    """Drop `stop`: nothing is differentiated after the passes."""
    return node.inputs[0]


def with_rank(x: Node, rank: int) -> Node:
    """Add leading dimensions of 1 to x until its rank is `rank`."""
    if x.type.rank == rank:
        return x
    return _view(x, Reshape((*(1,) * (rank - x.type.rank), *x.type.shape)), x)


VIEWS: dict[type[TensorOp], Callable[[Node], Node]] = {
    Concat: concat,
    Expand: expand,
    Flip: flip,
    Pad: pad,
    Permute: permute,
    Reshape: reshape,
    Slice: slice_,
    Stop: stop,
}


def simplify_view(node: Node) -> Node:
    """Apply `VIEWS` to a node until nothing changes."""
    while (view := VIEWS.get(type(node.op))) is not None:
        node, before = _view_of_splat(node) or view(node), node
        if node is before:
            break
    return node


def _view_of_splat(node: Node) -> Node | None:
    """Return a view of one repeated number as that number broadcast, or None."""
    op = node.op
    constants = {c.op if c else None for c in map(build.splat, node.inputs)}
    if isinstance(op, Pad):
        constants.add(Constant(op.value, node.type.dtype))
    if len(constants) != 1 or (isinstance(op, Expand) and not node.inputs[0].inputs):
        return None
    number = build.splat(node.inputs[0])
    return number and _view(node, Expand(node.type.shape), number)


def _view(node: Node, op: TensorOp, *inputs: Node) -> Node:
    """Apply a view with the origin of `node`, and simplify it."""
    return simplify_view(build.apply(op, *inputs, origin=node.origin))
