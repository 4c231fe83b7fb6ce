"""A graph that was traced with numbers, as the graph of all sizes that its caller may vary.

A tracer that takes sizes for numbers gives another graph for every batch and every length.  Here
dimensions of what the caller passes become sizes, and numbers behind them follow: where operators
want dimensions to be equal, a size meets a number (a parameter's width) and is that number, or it
meets another; a size that nothing fixes stays.  What counts or repeats (`iota`, `expand`, a slice
of a table) begins as *unknown* and is what it meets, or else what it was.  Operators see each
other's dimensions again until nothing changes: the order of the program does not matter.

The result is never a guess about numbers: with `Generalized.sizes` put in it is the graph that was
given, attribute by attribute.  Only how often another trace finds it depends on what was chosen.

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
from typing import Any

from smelt.dataclass import dataclass
from smelt.errors import InternalError
from smelt.graph import build
from smelt.graph.counts import QUOTIENT, ends, is_sum, mean, positions
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.unify import Sizes, is_size
from smelt.graph.walk import map_indices, map_type, size_names
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.create import Constant, Input, Iota, SizeOf
from smelt.ops.elementwise import Cast, Map
from smelt.ops.index import Gather, Scatter
from smelt.ops.reduce import Reduce, Scan
from smelt.ops.spec import TensorOp
from smelt.ops.view import Concat, Expand, Flip, Pad, Permute, Reshape, Slice, Stop, Window
from smelt.types.expr import Expr, Index, add, size, sizes_of, sub, substitute
from smelt.types.tensor import Shape, TensorType

__all__ = ["MOST_SIZES", "Generalized", "generalize"]

MOST_SIZES = 8
"""Sizes that a program is made general in, at most: batches, lengths and what was kept of earlier
ones, of two texts and their masks.  With more it is one over many shapes, of which none varies."""


@dataclass(frozen=True, slots=True)
class Generalized:
    """A graph, and what each of its sizes is in the graph it was made of."""

    graph: Graph
    sizes: Mapping[str, Index]
    nodes: Mapping[Node, Node]
    """Its nodes by those that they were."""


def generalize(
    graph: Graph,
    *,
    fixed: Collection[Node] = (),
    hints: Mapping[str, int] | None = None,
    among: Collection[int] | None = None,
    counts: Mapping[Node, Collection[int]] | None = None,
) -> Iterator[Generalized]:
    """The graph with its numbers made sizes, all named in order of appearance: the likeliest first,
    others behind it that another trace of the program may have been taken for; none where there are
    too many sizes, or no elements.

    Args:
        graph: as it was traced.
        fixed: inputs whose dimensions never vary, beside those that are constant.
        hints: values of the sizes that it has already.
        among: numbers that may vary; None for all.
        counts: dimensions of inputs that are what they are by what the input is, as both parts of
            complex numbers are two.

    Raises ShapeError where dimensions that an operator wants to be equal were not.
    """
    told = {**(counts or {}), **{x: range(x.type.rank) for x in fixed}}
    for apart, least, joins in (
        (True, 1, False),
        (True, 2, False),
        (False, 2, False),
        (True, 1, True),
    ):
        walk = _Walk(graph, told, hints or {}, among, apart=apart, least=least, joins=joins)
        found = walk.found()
        if found is not None:
            yield found


class _Walk:
    """Dimensions of every node, found again until nothing changes."""

    def __init__(
        self,
        graph: Graph,
        fixed: Mapping[Node, Collection[int]],
        hints: Mapping[str, int],
        among: Collection[int] | None,
        *,
        apart: bool,
        least: int,
        joins: bool,
    ) -> None:
        """Sizes of inputs are told `apart` until an operator asks them to be equal, as a tracer
        does that knows that they vary; or else equal numbers are one size.  `least` is what first
        dimensions are that vary: with 1, a batch of one does.  What is repeated once `joins` such
        a batch where both stand above each other, or is one unless they must be equal."""
        self.graph, self.fixed, self.among, self.apart = graph, fixed, among, apart
        self.least, self.joins = least, joins
        self.sizes = Sizes(hints)
        self.nodes = graph.nodes()
        self.shapes: dict[Node, Shape] = {}
        self.ops: dict[Node, TensorOp] = {}
        """Operators with other attributes than they had."""
        self.repeated: set[Index] = set()
        """How often elements are repeated, where only a number is known."""
        self.counting = self.guessing = False
        self.numbers = {n: tuple([self.sizes.value(d) for d in n.type.shape]) for n in self.nodes}

    def found(self) -> Generalized | None:
        """The graph, or None."""
        computed = (n for n in self.nodes if not isinstance(n.op, Input))
        if any(0 in self.numbers[n] for n in computed):
            return None
        for step in (self._begin, self._count, self._guess, self.sizes.settle):
            step()
            self._run()
        return self._rebuilt()

    def _begin(self) -> None:
        self.sizes.changed = True

    def _count(self) -> None:
        """From now on positions are as many as the dimension that they count along, unless it is
        known by now how many there are."""
        self.counting = self.sizes.changed = True

    def _guess(self) -> None:
        """From now on what nothing has met may be what only its number tells."""
        self.guessing = self.sizes.changed = True

    def _run(self) -> None:
        """Until no size changes any more."""
        while self.sizes.changed:
            self.sizes.changed = False
            self.ops.clear()
            for node in self.nodes:
                rule = _RULES.get(type(node.op), _fixed)
                self.shapes[node] = tuple(rule(self, node))

    def of(self, node: Node) -> list[Index]:
        """The dimensions of a node as they are known now."""
        return [self.sizes.now(d) for d in self.shapes[node]]

    def set(self, node: Node, **attributes: Any) -> None:
        """Has an operator have other attributes."""
        self.ops[node] = replace(node.op, **attributes)

    def meet(self, shapes: Sequence[Sequence[Index]]) -> list[Index]:
        """Broadcasts: what dimensions that stand above each other are, ones aside.  A size that is
        1 and stands above others is repeated, and hence always 1."""
        rank = max(map(len, shapes), default=0)
        found: list[Index] = [1] * rank
        for shape in shapes:
            for at, d in enumerate(shape, rank - len(shape)):
                if d != 1:
                    found[at] = d if found[at] == 1 else self._met(found[at], d)
        return found

    def _met(self, a: Index, b: Index) -> Index:
        ones = [d for d in (a, b) if self.sizes.value(d) == 1]
        if len(ones) == 1:
            self.sizes.fix(ones[0])
            return b if ones[0] is a else a
        if len(ones) == 2 and not self.joins:
            for one, other in ((a, b), (b, a)):
                if one in self.repeated and self.sizes.is_unknown(one):
                    return other
        return self.sizes.equal(a, b)

    def leading(self, axis: int, least: int) -> int:
        """What a dimension is, at least, that may vary."""
        return least if axis == 0 else 2

    # ---- the graph -------------------------------------------------------------------------------

    def _rebuilt(self) -> Generalized | None:
        names, meant = self._names()
        if len(names) > MOST_SIZES + len(size_names(self.graph)):
            return None

        @cache
        def renamed(e: Index) -> Index:
            return substitute(self.sizes.now(e), names, "size")

        @cache
        def back(e: Index) -> Index:
            return substitute(e, meant, "size")

        new: dict[Node, Node] = {}
        for node in self.nodes:
            op = map_indices(self.ops.get(node, node.op), renamed)
            if isinstance(op, Input):
                op = replace(op, type=TensorType(op.type.dtype, tuple(map(renamed, self.of(node)))))
                new[node] = Node(op, (), op.type, node.origin)
            else:
                inputs = [new[x] for x in node.inputs]
                new[node] = build.apply(op, *inputs, origin=node.origin)
            _check(node, new[node], back)
        ins, outs = (tuple([new[n] for n in s]) for s in (self.graph.inputs, self.graph.outputs))
        facts = tuple(Fact(renamed(f.left), f.relation, renamed(f.right)) for f in self.graph.facts)
        return Generalized(Graph(self.graph.name, ins, outs, facts, self.graph.checks), meant, new)

    def _names(self) -> tuple[dict[str, Index], dict[str, Index]]:
        """New names of the sizes, in order of appearance, and what they were."""
        found: dict[str, Index] = {}
        meant: dict[str, Index] = {}
        old = {*size_names(self.graph)}
        dims = [d for node in self.graph.inputs for d in self.of(node)]
        for d in sorted(dims, key=lambda d: not is_size(d)):  # an expression has its own order
            for name in (n for n in sizes_of(d) if n not in found):
                short = f"n{len(found)}"
                found[name] = size(short)
                meant[short] = size(name) if name in old else self.sizes.values[name]
        return found, meant


def _check(old: Node, new: Node, back: Callable[[Index], Index]) -> None:
    """With its sizes put in, a node is what it was."""
    op = map_indices(new.op, back)
    if isinstance(op, SizeOf) and isinstance(old.op, Constant) and op.expr == old.op.value:
        op = old.op
    if map_type(new.type, back) != old.type or op != old.op:
        raise InternalError(f"{old.op} of {old.type} became {new.op} of {new.type}")


# ---- what operators say of dimensions ------------------------------------------------------------


def _fixed(w: _Walk, node: Node) -> Sequence[Index]:
    """Of an operator of which nothing else is known: all dimensions are numbers."""
    for x in node.inputs:
        for d in w.of(x):
            w.sizes.fix(d)
    return node.type.shape


def _input(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Input)
    fixed = range(node.type.rank) if node.op.constant else w.fixed.get(node, ())
    found: list[Index] = []
    for k, (d, n) in enumerate(zip(node.type.shape, w.numbers[node], strict=True)):
        if k in fixed:
            found.append(d)
            continue
        wide = n >= w.leading(k, w.least) and (w.among is None or n in w.among)
        free = isinstance(d, int) and wide
        where = (node, k) if w.apart else n
        found.append(w.sizes.now(w.sizes.free(where, n)) if free else w.sizes.unknown((node, k), d))
    return found


def _same(w: _Walk, node: Node) -> Sequence[Index]:
    return w.of(node.inputs[0])


def _source(w: _Walk, node: Node) -> Sequence[Index]:
    return node.type.shape


def _map(w: _Walk, node: Node) -> Sequence[Index]:
    if isinstance(node.op, Map) and node.op.row.powers == QUOTIENT:
        mean(w, *node.inputs)
    if is_sum(node):
        ends(w, *node.inputs)
    return w.meet([w.of(x) for x in node.inputs])


def _iota(w: _Walk, node: Node) -> Sequence[Index]:
    return _counted(w, node, node.type.shape)


def _counted(w: _Walk, node: Node, shape: Sequence[Index]) -> list[Index]:
    """Dimensions that a program names by numbers, as those of an operator's attribute `shape`."""
    found = [w.sizes.unknown((node, k), d, w.leading(k, w.least)) for k, d in enumerate(shape)]
    counted = node.op.axis if isinstance(node.op, Iota) else None
    w.repeated |= {d for k, d in enumerate(found) if k != counted and w.sizes.is_unknown(d)}
    w.set(node, shape=tuple(found))
    return found


def _expand(w: _Walk, node: Node) -> Sequence[Index]:
    (x,) = node.inputs
    new = node.type.rank - x.type.rank
    given = [1] * new + w.of(x)
    for k, (d, n) in enumerate(zip(given, w.numbers[node], strict=True)):
        if n != 1 and w.sizes.value(d) == 1:
            given[k] = w.sizes.fix(d)
    found = _counted(w, node, [n if d == 1 else 1 for d, n in zip(given, node.type.shape)])
    found = [n if d == 1 else d for d, n in zip(given, found, strict=True)]
    w.set(node, shape=tuple(found))
    return found


def _reshape(w: _Walk, node: Node) -> Sequence[Index]:
    found = w.sizes.regrouped(node, w.of(node.inputs[0]), node.type.shape)
    w.set(node, shape=tuple(found))
    return found


def _permute(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Permute)
    shape = w.of(node.inputs[0])
    return [shape[p] for p in node.op.perm]


def _slice(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Slice)
    op, x = node.op, w.of(node.inputs[0])
    made = _of_product(node.inputs[0])
    parts = [
        _part(w, (node, k), d, p, whole=made)
        for k, (d, p) in enumerate(zip(x, zip(op.starts, op.sizes, op.steps)))
    ]
    starts, counts = tuple(s for s, _ in parts), tuple(n for _, n in parts)
    w.set(node, starts=starts, sizes=counts)
    return counts


def _of_product(x: Node) -> bool:
    """Whether something is made of a product element by element."""
    while isinstance(x.op, (Map, Cast, Reshape)):
        x = max(x.inputs, key=lambda y: y.type.rank)
    return isinstance(x.op, Contract)


def _part(
    w: _Walk, where: tuple[Node, int], d: Index, part: tuple[Index, Index, int], *, whole: bool
) -> tuple[Index, Index]:
    """Start and count of a slice along a dimension.  What it takes, what it leaves out before that
    and what behind it: the longest of the three varies with the dimension.  One element stays one:
    a program may drop its axis; of two, which one it is tells that they are two.  Of a number, how
    much is taken may vary, as of a table, but where the `whole` is a product it is split."""
    start, count, step = part
    length = w.sizes.traced(d)
    if not isinstance(start, int) or not isinstance(count, int) or not isinstance(length, int):
        return start, w.sizes.unknown(where, count)
    if step != 1 or (count == 1 and length == 2):
        w.sizes.fix(d)
        return start, count
    behind = length - start - count
    if start == behind == 0:
        return 0, d
    if isinstance(d, Expr) and count > max(1, start) and count >= behind:
        return start, sub(d, start + behind)
    if whole and isinstance(d, int):
        return start, count
    some = w.sizes.unknown(where, count)
    if behind == 0 or (isinstance(d, Expr) and start >= behind):
        return sub(d, add(some, behind)), some
    return start, some


def _pad(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Pad)
    x = w.of(node.inputs[0])
    sides = [
        _margins(w, (node, k), d, m)
        for k, (d, m) in enumerate(zip(x, zip(node.op.low, node.op.high)))
    ]
    w.set(node, low=tuple(a for a, _ in sides), high=tuple(b for _, b in sides))
    return [add(add(a, d), b) for d, (a, b) in zip(x, sides, strict=True)]


def _margins(
    w: _Walk, where: tuple[Node, int], d: Index, margins: tuple[Index, Index]
) -> tuple[Index, Index]:
    """Both margins of a dimension.  One that is wider than what it surrounds fills up to a size."""
    low, high = margins
    inner = w.sizes.traced(d)
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(inner, int)):
        return low, high
    if max(low, high) <= inner:
        return low, high
    whole = w.sizes.unknown(where, low + inner + high)
    rest = sub(whole, d)
    return (sub(rest, high), high) if low > high else (low, sub(rest, low))


def _concat(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Concat)
    axis, (found, *others) = node.op.axis, [w.of(x) for x in node.inputs]
    for part in others:  # nothing is repeated here: a one beside others' ones is one of theirs
        found = [
            add(d, e) if a == axis else w.sizes.equal(d, e)
            for a, (d, e) in enumerate(zip(found, part, strict=True))
        ]
    return [w.sizes.now(d) for d in found]


def _window(w: _Walk, node: Node) -> Sequence[Index]:
    """What windows slide along is a number: kernels for them are made for it."""
    assert isinstance(node.op, Window)
    a, shape = node.op.axis, w.of(node.inputs[0])
    w.sizes.fix(shape[a])
    return [*shape[:a], node.type.shape[a], *shape[a + 1 :], node.op.extent]


def _contract(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Contract)
    known: dict[str, Index] = dict(node.op.extents)
    for terms, x in zip((node.op.left, node.op.right), node.inputs, strict=True):
        for term, d in zip(terms, w.of(x), strict=True):
            name = bare_axis(term)
            if name is None:
                w.sizes.fix(d)
            else:
                known[name] = w.sizes.equal(known.get(name, d), d)
    return [w.sizes.now(known[name]) for name in node.op.out]


def _reduce(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Reduce)
    axes = node.op.axes
    return [d for a, d in enumerate(w.of(node.inputs[0])) if a not in axes]


def _gather(w: _Walk, node: Node) -> Sequence[Index]:
    assert isinstance(node.op, Gather)
    x, *index = node.inputs
    shape, first = w.of(x), node.op.first
    for at, d in zip(index, shape[first:]):
        positions(w, at, d)
    return [*shape[:first], *w.meet([w.of(i) for i in index]), *shape[first + len(index) :]]


def _scatter(w: _Walk, node: Node) -> Sequence[Index]:
    x, updates, *index = node.inputs
    shape = w.of(x)
    for at, d in zip(index, shape):
        positions(w, at, d)
    wanted = [*w.meet([w.of(i) for i in index]), *shape[len(index) :]]
    given = [
        w.sizes.fix(d) if n == 1 else d  # updates are repeated, and what they go to is not
        for d, n in zip(reversed(w.of(updates)), reversed(wanted))
    ]
    w.meet([given[::-1], wanted])
    return w.of(x)


_RULES: Mapping[type[TensorOp], Callable[[_Walk, Node], Sequence[Index]]] = {
    Input: _input,
    Constant: _source,
    SizeOf: _source,
    Iota: _iota,
    Map: _map,
    Cast: _same,
    Flip: _same,
    Stop: _same,
    Scan: _same,
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
