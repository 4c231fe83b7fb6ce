"""Generalise a graph traced with fixed sizes to all sizes that its caller may vary.

A tracer that treats sizes as numbers records another graph for every batch and every length.  Here
dimensions of the caller's inputs become symbolic sizes, and numbers derived from them follow by
unification: where an operator requires equal dimensions, a size that meets a number (a parameter's
width) becomes that number, or it meets another size; a size that nothing fixes stays.  Dimensions
that count or repeat (`iota`, `expand`, a slice of a table) begin as *unknown* and become what they
meet, or else what they were.  Rules run again until nothing changes, so that the order of the
program does not matter.

The result never depends on a guess: with `Generalized.sizes` substituted it is the traced graph,
attribute by attribute.  The choices made only decide how many other traces it also covers.

>>> from smelt.graph.text import parse, text
>>> graph = parse('''graph f(x: f32[2, 5, 8], w: f32[8, 3]) {
...   v0 = reshape(x) {shape=(10, 8)}
...   v1 = contract(v0, w) {spec="m,k; k,n -> m,n"}
...   v2 = reshape(v1) {shape=(2, 5, 3)}
...   return v2
... }''')
>>> found = next(generalize(graph, fixed=graph.inputs[1:]))
>>> print(text(found.graph))
graph f(x: f32[n0,n1,8], w: f32[8,3]) {
  v0 = reshape(x) {shape=(n0*n1, 8)} : f32[n0*n1,8]
  v1 = contract(v0, w) {spec="m,k; k,n -> m,n"} : f32[n0*n1,3]
  v2 = reshape(v1) {shape=(n0, n1, 3)} : f32[n0,n1,3]
  return v2
}
>>> found.sizes
{'n0': 2, 'n1': 5}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from smelt.errors import InternalError
from smelt.graph import build
from smelt.graph.bounds import constant_value
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.unify import Sizes
from smelt.graph.walk import input_size_names, map_indices, map_type
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Input, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice, Stop, Window
from smelt.python.dataclass import dataclass
from smelt.types.expr import (
    Expr,
    Index,
    add,
    mul,
    product,
    size,
    sizes_of,
    sub,
    substitute,
    symbol_of,
)
from smelt.types.tensor import Shape, TensorType

PRODUCT, QUOTIENT, SUM = (1, 1), (1, -1), (1, 1)
"""Exponents of the operands of products and divisions, and coefficients of a sum."""


class Walk(Protocol):
    """Facts about a graph that is being generalised."""

    sizes: Sizes
    ops: dict[Node, TensorOp]
    """Operators whose attributes have changed."""
    counting: bool
    """Whether index arrays have the extent of the axis that they index."""
    guessing: bool
    """Whether dimensions without constraints may be identified by their number alone."""

    def of(self, node: Node) -> list[Index]:
        """Return the dimensions of a node as known now."""
        ...


def unify_distance_bound(w: Walk, at: Node, number: Node) -> None:
    """Match an `iota` that is shifted to negative numbers, as for relative positions.

    Both its extent (about twice a size) and the shift (minus that size) then depend on the size;
    only the numbers show it.
    """
    shift = constant_value(number)
    while isinstance(at.op, Cast) or (_is_product(at) and constant_value(at.inputs[1]) in (1, -1)):
        at = at.inputs[0]
    if not (isinstance(at.op, Iota) and isinstance(number.op, Constant) and isinstance(shift, int)):
        return
    extent = w.of(at)[at.op.axis]
    sizes = [*map(size, sizes_of(extent))]
    for n in w.sizes.free_sizes() if w.guessing and w.sizes.is_unknown(extent) else sizes:
        extent_value, length = w.sizes.value(extent), w.sizes.value(n)
        doubled = add(mul(n, 2), extent_value - 2 * length)
        if abs(extent_value - 2 * length) <= 1 and abs(abs(shift) - length) <= 1 < length:
            if w.sizes.equal(extent, doubled) == doubled:
                sign = 1 if shift > 0 else -1
                end = add(mul(n, sign), shift - sign * length)
                w.ops[number] = SizeOf(end, number.op.dtype)
            break


def unify_mean_count(w: Walk, total: Node, count: Node) -> None:
    """Replace a divisor that counts the elements summed or repeated by their number."""
    while isinstance(count.op, (Expand, Reshape, Permute, Cast)):
        (count,) = count.inputs
    while isinstance(total.op, (Reshape, Permute, Cast)) or (
        isinstance(total.op, Expand) and total.inputs[0].type.rank
    ):
        (total,) = total.inputs
    if not isinstance(count.op, (Constant, SizeOf)) or not isinstance(total.op, (Reduce, Expand)):
        return
    if isinstance(total.op, Reduce):
        dims = w.of(total.inputs[0])
        elements = product([dims[a] for a in total.op.axes])
    else:
        elements = product(w.of(total))
    divisor = count.op.value if isinstance(count.op, Constant) else count.op.expr
    if isinstance(elements, Expr) and w.sizes.traced(elements) == divisor:
        w.ops[count] = SizeOf(elements, count.op.dtype)


def unify_positions(w: Walk, at: Node, d: Index, *, aligned: bool = False) -> None:
    """Match indices along a dimension: a full `iota` has its extent, wrapping adds its extent.

    Along one element there is surely one index.  Where each position also has an index along
    another dimension (`aligned`), as in one label for each computed row, an `iota` over all rows
    is meant, even if its extent is already that of the labels.
    """
    while True:
        if isinstance(at.op, (Expand, Reshape, Permute, Cast)):
            (at,) = at.inputs
        elif (end := _wrap_offset(at)) is not None and constant_value(end) == w.sizes.traced(d):
            if isinstance(d, Expr):
                w.ops[end] = SizeOf(w.sizes.resolve(d), end.type.dtype)
            at = at.inputs[2]
        elif is_sum(at) and constant_value(at.inputs[1]) == 0:
            at = at.inputs[0]
        else:
            break
    if isinstance(at.op, Iota) and (w.counting or d == 1):
        count = w.of(at)[at.op.axis]
        free = aligned or w.sizes.is_unknown(count) or w.sizes.is_unknown(d)
        if free and w.sizes.traced(count) == w.sizes.traced(d):
            w.sizes.equal(count, d)


def _wrap_offset(at: Node) -> Node | None:
    """Return the number that is added to negative indices, if any."""
    if not isinstance(at.op, Map) or not at.op.row.is_select:
        return None
    test, wrapped, unwrapped = at.inputs
    tests_sign = isinstance(test.op, Map) and len(test.inputs) == 2 and test.inputs[0] is unwrapped
    if not (tests_sign and constant_value(test.inputs[1]) == 0):
        return None
    return wrapped.inputs[1] if is_sum(wrapped) and wrapped.inputs[0] is unwrapped else None


def is_sum(node: Node) -> bool:
    """Whether a node adds its operands."""
    return isinstance(node.op, Map) and node.op.row.linear == SUM


def _is_product(node: Node) -> bool:
    return isinstance(node.op, Map) and node.op.row.powers == PRODUCT


MAX_SIZES = 8
"""Maximum number of symbolic sizes: batches, lengths and cache lengths of two sequences and their
masks.  A program with more has many fixed shapes rather than varying ones."""


@dataclass(frozen=True, slots=True)
class Generalized:
    """A general graph, and the values of its sizes in the traced graph."""

    graph: Graph
    sizes: Mapping[str, Index]
    nodes: Mapping[Node, Node]
    """The general node of each traced node."""


def generalize(
    graph: Graph,
    *,
    fixed: Collection[Node] = (),
    hints: Mapping[str, int] | None = None,
    among: Collection[int] | None = None,
    counts: Mapping[Node, Collection[int]] | None = None,
    any_size: bool = False,
) -> Iterator[Generalized]:
    """Yield general versions of a graph, likeliest first, sizes named in order of appearance.

    Later ones are those that another trace of the program may have been generalised to.  Yields
    nothing if there would be too many sizes, or if a value has no elements.

    Args:
        graph: the graph as traced.
        fixed: inputs whose dimensions never vary, in addition to constant ones.
        hints: values of the sizes that the graph already has.
        among: numbers that may vary; None for all.
        counts: dimensions of inputs that are fixed by what the input is, such as the 2 of complex
            numbers.
        any_size: let as many sizes vary as possible: those of constant inputs too, and those that
            a reshape splits, which become products of new sizes; there may be more than
            `MAX_SIZES`. For running the program at other sizes, not for other traces of it.

    Raises ShapeError if dimensions that an operator requires to be equal were not.
    """
    fixed_dims = {**(counts or {}), **{x: range(x.type.rank) for x in fixed}}
    for distinct, least, joins in (
        (True, 1, False),
        (True, 2, False),
        (False, 2, False),
        (True, 1, True),
    ):
        walk = _Walk(
            graph,
            fixed_dims,
            hints or {},
            among,
            distinct=distinct,
            least=least,
            joins=joins,
            any_size=any_size,
        )
        result = walk.found()
        if result is not None:
            yield result


class _Walk:
    """Infer the dimensions of every node, repeatedly until nothing changes."""

    def __init__(
        self,
        graph: Graph,
        fixed: Mapping[Node, Collection[int]],
        hints: Mapping[str, int],
        among: Collection[int] | None,
        *,
        distinct: bool,
        least: int,
        joins: bool,
        any_size: bool = False,
    ) -> None:
        """Prepare to generalise a graph.

        With `distinct`, sizes of inputs differ until an operator requires them to be equal, as if
        the tracer knew that they vary; otherwise equal numbers are one size.  `least` is the
        smallest first dimension that may vary: with 1, a batch of one does.  With `joins`, a
        dimension of 1 that repeats and meets such a batch is unified with it; otherwise it stays 1.
        """
        self.graph, self.fixed, self.among, self.apart = graph, fixed, among, distinct
        self.least, self.joins, self.any_size = least, joins, any_size
        self.sizes = Sizes(hints, splits=any_size)
        self.nodes = graph.nodes()
        self.shapes: dict[Node, Shape] = {}
        self.ops: dict[Node, TensorOp] = {}
        """Operators with other attributes than they had."""
        self.repeated: set[Index] = set()
        """How often elements are repeated, where only a number is known."""
        self.counting = self.guessing = False
        self.numbers = {n: tuple([self.sizes.value(d) for d in n.type.shape]) for n in self.nodes}

    def found(self) -> Generalized | None:
        """Return the general graph, or None."""
        computed = (n for n in self.nodes if not isinstance(n.op, Input))
        if any(0 in self.numbers[n] for n in computed):
            return None
        for step in (self._start, self._start_counting, self._start_guessing, self.sizes.settle):
            step()
            self._run()
        return self._build()

    def _start(self) -> None:
        self.sizes.changed = True

    def _start_counting(self) -> None:
        """From now on, index arrays of unknown extent have that of the dimension they index."""
        self.counting = self.sizes.changed = True

    def _start_guessing(self) -> None:
        """From now on, unconstrained dimensions may be identified by their number alone."""
        self.guessing = self.sizes.changed = True

    def _run(self) -> None:
        """Apply the rules until no size changes."""
        while self.sizes.changed:
            self.sizes.changed = False
            self.ops.clear()
            for node in self.nodes:
                rule = _RULES.get(type(node.op), _fix_all)
                self.shapes[node] = tuple(rule(self, node))

    def of(self, node: Node) -> list[Index]:
        """Return the dimensions of a node as known now."""
        return [self.sizes.resolve(d) for d in self.shapes[node]]

    def set(self, node: Node, **attributes: Any) -> None:
        """Change attributes of an operator."""
        self.ops[node] = replace(node.op, **attributes)

    def meet(self, shapes: Sequence[Sequence[Index]]) -> list[Index]:
        """Return the broadcast of shapes, unifying aligned dimensions other than 1.

        A size that is 1 in the trace and meets a larger dimension repeats, hence is always 1.
        """
        rank = max(map(len, shapes), default=0)
        result: list[Index] = [1] * rank
        for shape in shapes:
            for at, d in enumerate(shape, rank - len(shape)):
                if d != 1:
                    result[at] = d if result[at] == 1 else self._broadcast_dim(result[at], d)
        return result

    def _broadcast_dim(self, a: Index, b: Index) -> Index:
        unit_dims = [d for d in (a, b) if self.sizes.value(d) == 1]
        if len(unit_dims) == 1:
            self.sizes.fix(unit_dims[0])
            return b if unit_dims[0] is a else a
        if len(unit_dims) == 2 and not self.joins:
            for unit, other in ((a, b), (b, a)):
                if unit in self.repeated and self.sizes.is_unknown(unit):
                    return other
        return self.sizes.equal(a, b)

    def leading(self, axis: int, least: int) -> int:
        """Return the smallest value of a dimension of this axis that may vary."""
        return least if axis == 0 else 2

    # ---- the graph -------------------------------------------------------------------------------

    def _build(self) -> Generalized | None:
        names, traced_values = self._new_names()
        most = MAX_SIZES + len(input_size_names(self.graph))
        if len(names) > most and not self.any_size:
            return None

        @cache
        def renamed(e: Index) -> Index:
            return substitute(self.sizes.resolve(e), names, "size")

        @cache
        def traced(e: Index) -> Index:
            return substitute(e, traced_values, "size")

        new: dict[Node, Node] = {}
        for node in self.nodes:
            op = map_indices(self.ops.get(node, node.op), renamed)
            if isinstance(op, Input):
                op = replace(op, type=TensorType(op.type.dtype, tuple(map(renamed, self.of(node)))))
                new[node] = Node(op, (), op.type, node.origin)
            else:
                inputs = [new[x] for x in node.inputs]
                new[node] = build.apply(op, *inputs, origin=node.origin)
            _check(node, new[node], traced)
        ins, outs = (tuple([new[n] for n in s]) for s in (self.graph.inputs, self.graph.outputs))
        facts = tuple(Fact(renamed(f.left), f.relation, renamed(f.right)) for f in self.graph.facts)
        return Generalized(
            Graph(self.graph.name, ins, outs, facts, self.graph.checks), traced_values, new
        )

    def _new_names(self) -> tuple[dict[str, Index], dict[str, Index]]:
        """Return new names of the sizes, in order of appearance, and their traced values."""
        names: dict[str, Index] = {}
        traced: dict[str, Index] = {}
        old = {*input_size_names(self.graph)}
        dims = [d for node in self.graph.inputs for d in self.of(node)]
        # names in expressions are sorted
        for d in sorted(dims, key=lambda d: symbol_of(d) is None):
            for name in (n for n in sizes_of(d) if n not in names):
                short = f"n{len(names)}"
                names[name] = size(short)
                traced[short] = size(name) if name in old else self.sizes.values[name]
        return names, traced


def _check(old: Node, new: Node, traced: Callable[[Index], Index]) -> None:
    """Check that a general node with its sizes substituted is the traced node."""
    op = map_indices(new.op, traced)
    if isinstance(op, SizeOf) and isinstance(old.op, Constant) and op.expr == old.op.value:
        op = old.op
    if map_type(new.type, traced) != old.type or op != old.op:
        raise InternalError(f"{old.op} of {old.type} became {new.op} of {new.type}")


# ---- rules of operators --------------------------------------------------------------------------


def _fix_all(w: _Walk, node: Node) -> Sequence[Index]:
    """Fix all dimensions of an operator without a rule to numbers."""
    for x in node.inputs:
        for d in w.of(x):
            w.sizes.fix(d)
    return node.type.shape


def _input(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Input)
    constant = node.op.constant and not w.any_size
    fixed = range(node.type.rank) if constant else w.fixed.get(node, ())
    dims: list[Index] = []
    for k, (d, n) in enumerate(zip(node.type.shape, w.numbers[node], strict=True)):
        if k in fixed:
            dims.append(d)
            continue
        may_vary = n >= w.leading(k, w.least) and (w.among is None or n in w.among)
        is_free = isinstance(d, int) and may_vary
        key = (node, k) if w.apart else n
        dims.append(
            w.sizes.resolve(w.sizes.free(key, n)) if is_free else w.sizes.unknown((node, k), d)
        )
    return dims


def _like_first(w: _Walk, node: Node) -> Sequence[Index]:
    return w.of(node.inputs[0])


def _source(w: _Walk, node: Node) -> Sequence[Index]:
    return node.type.shape


def _map(w: _Walk, node: Node) -> Sequence[Index]:
    if isinstance(node.op, Map) and node.op.row.powers == QUOTIENT:
        unify_mean_count(w, *node.inputs)
    if is_sum(node):
        unify_distance_bound(w, *node.inputs)
    return w.meet([w.of(x) for x in node.inputs])


def _iota(w: _Walk, node: Node) -> Sequence[Index]:
    return _literal_shape(w, node, node.type.shape)


def _literal_shape(w: _Walk, node: Node, shape: Sequence[Index]) -> list[Index]:
    """Return dimensions named by numbers, as in an operator's attribute `shape`."""
    dims = [w.sizes.unknown((node, k), d, w.leading(k, w.least)) for k, d in enumerate(shape)]
    counted = node.op.axis if isinstance(node.op, Iota) else None
    w.repeated |= {d for k, d in enumerate(dims) if k != counted and w.sizes.is_unknown(d)}
    w.set(node, shape=tuple(dims))
    return dims


def _expand(w: _Walk, node: Node) -> Sequence[Index]:
    (x,) = node.inputs
    new = node.type.rank - x.type.rank
    aligned = [1] * new + w.of(x)
    for k, (d, n) in enumerate(zip(aligned, w.numbers[node], strict=True)):
        if n != 1 and w.sizes.value(d) == 1:
            aligned[k] = w.sizes.fix(d)
    dims = _literal_shape(w, node, [n if d == 1 else 1 for d, n in zip(aligned, node.type.shape)])
    dims = [n if d == 1 else d for d, n in zip(aligned, dims, strict=True)]
    w.set(node, shape=tuple(dims))
    return dims


def _reshape(w: _Walk, node: Node) -> Sequence[Index]:
    dims = w.sizes.reshape_dims(node, w.of(node.inputs[0]), node.type.shape)
    w.set(node, shape=tuple(dims))
    return dims


def _permute(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Permute)
    shape = w.of(node.inputs[0])
    return [shape[p] for p in node.op.perm]


def _slice(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Slice)
    op, x = node.op, w.of(node.inputs[0])
    from_contraction = _is_from_contraction(node.inputs[0])
    ranges = [
        _slice_dim(w, (node, k), d, p, is_split=from_contraction)
        for k, (d, p) in enumerate(zip(x, zip(op.starts, op.sizes, op.steps)))
    ]
    starts, counts = tuple(s for s, _ in ranges), tuple(n for _, n in ranges)
    w.set(node, starts=starts, sizes=counts)
    return counts


def _is_from_contraction(x: Node) -> bool:
    """Whether a value is elementwise in a contraction."""
    while isinstance(x.op, (Map, Cast, Reshape)):
        x = max(x.inputs, key=lambda y: y.type.rank)
    return isinstance(x.op, Contract)


def _slice_dim(
    w: _Walk, key: tuple[Node, int], d: Index, region: tuple[Index, Index, int], *, is_split: bool
) -> tuple[Index, Index]:
    """Return start and count of a slice along a dimension.

    Of the elements before, in and after the slice, the longest part varies with the dimension.  One
    element stays one, as a program may drop its axis; one of two fixes the dimension to 2.  If the
    dimension is a number, the count may vary, as for a prefix of a table; but of a contraction's
    result (`is_split`) it is one of several fixed parts.
    """
    start, count, step = region
    length = w.sizes.traced(d)
    if not isinstance(start, int) or not isinstance(count, int) or not isinstance(length, int):
        return start, w.sizes.unknown(key, count)
    if step != 1 or (count == 1 and length == 2):
        w.sizes.fix(d)
        return start, count
    after = length - start - count
    if start == after == 0:
        return 0, d
    if isinstance(d, Expr) and count > max(1, start) and count >= after:
        return start, sub(d, start + after)
    if is_split and isinstance(d, int):
        return start, count
    length_taken = w.sizes.unknown(key, count)
    if after == 0 or (isinstance(d, Expr) and start >= after):
        return sub(d, add(length_taken, after)), length_taken
    return start, length_taken


def _pad(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Pad)
    x = w.of(node.inputs[0])
    sides = [
        _pad_dim(w, (node, k), d, m)
        for k, (d, m) in enumerate(zip(x, zip(node.op.low, node.op.high)))
    ]
    w.set(node, low=tuple(a for a, _ in sides), high=tuple(b for _, b in sides))
    return [add(add(a, d), b) for d, (a, b) in zip(x, sides, strict=True)]


def _pad_dim(
    w: _Walk, key: tuple[Node, int], d: Index, padding: tuple[Index, Index]
) -> tuple[Index, Index]:
    """Return both paddings of a dimension, for all sizes of a family.

    A padding wider than the dimension fills it up to a size, so it becomes that size minus the
    rest.
    """
    low, high = padding
    inner = w.sizes.traced(d)
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(inner, int)):
        return low, high
    if max(low, high) <= inner:
        return low, high
    padded = w.sizes.unknown(key, low + inner + high)
    total_padding = sub(padded, d)
    return (sub(total_padding, high), high) if low > high else (low, sub(total_padding, low))


def _concat(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Concat)
    axis, (dims, *others) = node.op.axis, [w.of(x) for x in node.inputs]
    for part in others:  # concatenation does not broadcast: dimensions of 1 are equal too
        dims = [
            add(d, e) if a == axis else w.sizes.equal(d, e)
            for a, (d, e) in enumerate(zip(dims, part, strict=True))
        ]
    return [w.sizes.resolve(d) for d in dims]


def _window(w: _Walk, node: Node) -> Sequence[Index]:
    """Fix the dimension that windows slide along: kernels are built for its extent."""
    assert isinstance(node.op, Window)
    a, shape = node.op.axis, w.of(node.inputs[0])
    w.sizes.fix(shape[a])
    return [*shape[:a], node.type.shape[a], *shape[a + 1 :], node.op.extent]


def _contract(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Contract)
    extents: dict[str, Index] = dict(node.op.extents)
    for terms, x in zip((node.op.left, node.op.right), node.inputs, strict=True):
        for term, d in zip(terms, w.of(x), strict=True):
            name = bare_axis(term)
            if name is None:
                w.sizes.fix(d)
            else:
                extents[name] = w.sizes.equal(extents.get(name, d), d)
    return [w.sizes.resolve(extents[name]) for name in node.op.out]


def _reduce(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Reduce)
    axes = node.op.axes
    return [d for a, d in enumerate(w.of(node.inputs[0])) if a not in axes]


def _gather(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Gather)
    x, *index = node.inputs
    shape, first = w.of(x), node.op.first
    for at, d in zip(index, shape[first:]):
        unify_positions(w, at, d, aligned=len(index) > 1 and not isinstance(x.op, Input))
    return [*shape[:first], *w.meet([w.of(i) for i in index]), *shape[first + len(index) :]]


def _scatter(w: _Walk, node: Node) -> Sequence[Index]:
    x, updates, *index = node.inputs
    shape = w.of(x)
    for at, d in zip(index, shape):
        unify_positions(w, at, d)
    target = [*w.meet([w.of(i) for i in index]), *shape[len(index) :]]
    updated = [
        w.sizes.fix(d) if n == 1 else d  # updates broadcast; what they are written to does not
        for d, n in zip(reversed(w.of(updates)), reversed(target))
    ]
    w.meet([updated[::-1], target])
    return w.of(x)


_RULES: Mapping[type[TensorOp], Callable[[_Walk, Node], Sequence[Index]]] = {
    Input: _input,
    Constant: _source,
    SizeOf: _source,
    Iota: _iota,
    Map: _map,
    Cast: _like_first,
    Flip: _like_first,
    Stop: _like_first,
    Scan: _like_first,
    Permute: _permute,
    Reshape: _reshape,
    Expand: _expand,
    Slice: _slice,
    Pad: _pad,
    Concat: _concat,
    Window: _window,
    Contract: _contract,
    Reduce: _reduce,
    Gather: _gather,
    Scatter: _scatter,
}
