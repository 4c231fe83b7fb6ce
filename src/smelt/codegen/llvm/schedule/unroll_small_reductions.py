"""Folds over small windows are written out: a pooling becomes an elementwise operator.

A window is walked by two axes that move along one dimension, the results' and the fold's.  Looped
over, its few steps would have lanes and masks of their own; written out, vectors run along the
results and every step is one load.

    max over u, v of x[2*i + u, 2*j + v]    is    max(max(x[2*i, 2*j], x[2*i, 2*j + 1]), ..)

A short sum of products of which no axis is one factor's own, with which nothing else can be done,
becomes that many operators too:

    dot(x[i + u], w[u] over u)    is    x[i]*w[0] + x[i + 1]*w[1] + ..

Sums are carried in double precision, as they are where they are looped over; of doubles, which
would have to carry their errors along, none are written out.
"""

from __future__ import annotations

from functools import partial
from itertools import product as positions
from math import prod

from smelt.blocks import SHORT_SUM, SHORT_TERMS
from smelt.codegen.llvm.loopir.clone import Cloner, folds, prune, put_before, reached, renumber
from smelt.codegen.llvm.loopir.items import (
    Access,
    Converting,
    Folding,
    Item,
    Phase,
    cut_axes,
)
from smelt.codegen.llvm.loops.unroll_columns import short_row
from smelt.codegen.llvm.schedule.tall_skinny import LONGEST, readers
from smelt.ops.combine import AS_GOOD, CHOICE, COMBINES, SUM_OF_PRODUCTS, Combine
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import DType, bool_, f32, f64, i32
from smelt.types.expr import Index, mul

STEPS = 25
"""Elements of a window that is written out at most: 5 by 5."""
SHORT_ROWS, SHORT_PAIRS = 10, 8
"""Elements of a short row that is written out, where nothing but what it folds to is stored, and
the same where rows of several arrays are read: each is picked out of as many vectors as a row has
elements, and longer ones are vectors of their own (`smelt.codegen.llvm.loops.batched_reduce`)."""
MOST = 200
"""Items that a fold becomes at most."""
MOST_PRODUCTS = 1024
"""The same of a short sum of products: sums of sums would become their product."""
LANES = 64
"""Positions that a product of a batch may have for vectors to hold several of them."""
TINY = 8
"""Products of a sum of theirs at most, each of which has lanes of its own to be found."""
SLIM, ROWS = 4, 128
"""Columns at most and rows at least of a product whose vectors run along its rows, where columns
are stored side by side; where they are summed again (in a small network), `TINY` of them."""
NEAREST = 3
"""Steps between neighbouring windows at most, so that loads share lines."""


def written_out(phase: Phase) -> Phase:
    """Folds over small windows become trees of their scalar operator."""
    row = short_row(phase)
    for fold in [i for i in phase.items if i.kind == "fold"]:
        if isinstance(fold.payload, Folding) and _is_small_window(phase, fold, fold.payload, row):
            _write_out(phase, fold, fold.payload)
    renumber(phase)
    return phase


def _is_small_window(phase: Phase, fold: Item, folding: Folding, row: str | None) -> bool:
    """Whether a fold is written out; `row` is the axis of short rows that are spread then."""
    over, (arg, *edges) = set(folding.over), fold.args
    bound = cut_axes(phase.segments[fold.time]) | phase.cut.keys()
    if edges or over & bound or not _is_free(fold, folding):
        return False
    count = 1
    for a in over:
        extent = phase.axes[a]
        count *= extent if isinstance(extent, int) else STEPS + 1
    varying = list(reached(arg, over))
    if not 1 <= count <= STEPS or count * len(varying) > MOST or folds(arg, over):
        return False
    differ = (i for i in varying if i.axes & fold.axes)  # what all results share is no row
    loads = [i.payload.offset for i in differ if isinstance(i.payload, Access)]
    if any(i.kind == "peek" for i in varying):  # beside which other loads count for little
        return True
    written = frozenset[str]().union(*(s.axes for s in phase.stores))
    gone = over == {row} or not over & written or bool(set(fold.axes) - written)
    most = SHORT_ROWS if len(loads) == 1 else SHORT_PAIRS
    return bool(loads) and all(
        _slides(x, over, set(fold.axes)) or (gone and _follow(x, phase, folding.over, most))
        for x in loads
    )


def _is_free(fold: Item, folding: Folding) -> bool:
    """Whether terms may be joined in any order: nothing rounds, or it does in double precision."""
    row, source = folding.row, fold.args[0].dtype
    return row.idempotent or (row.wide and (source == f32 or source.is_integer))


def _slides(offset: Index, over: set[str], kept: set[str]) -> bool:
    """Whether neighbouring results read neighbouring elements, with steps of the fold between: of
    their own, or whole rows of results' elements where these lie side by side."""
    steps = [coefficient(offset, a) for a in kept]
    near = any(isinstance(s, int) and 1 <= s <= NEAREST for s in steps)
    if near and any(coefficient(offset, a) == 1 for a in over):
        return True
    between = [coefficient(offset, a) for a in over]
    return 1 in steps and all(
        t is not None and any(mul(t, k) in steps for k in range(1, NEAREST + 1)) for t in between
    )


def _follow(offset: Index, phase: Phase, over: tuple[str, ...], most: int) -> bool:
    """Whether what is folded lies in short rows that follow one another, whose elements are a comb
    (`smelt.codegen.llvm.access.interleaved_loads`): vectors run along the rows."""
    length, inside = 1, set[str]()
    while True:
        following = [
            a for a, n in phase.axes.items() if n != 1 and coefficient(offset, a) == length
        ]
        if len(following) != 1:
            return False
        n = phase.axes[following[0]]
        if {*over} <= inside:
            return length <= most
        if not isinstance(n, int) or not 0 < length * n <= most:
            return False
        inside.add(following[0])
        length *= n


def _write_out(phase: Phase, fold: Item, folding: Folding) -> None:
    (arg,) = fold.args
    counts = [n for a in folding.over if isinstance(n := phase.axes[a], int)]
    terms = [
        Cloner(phase, fold, dict(zip(folding.over, at, strict=True))).of(arg)
        for at in positions(*map(range, counts))
    ]
    row = folding.row
    if row.positional:
        place = _place_of_best(phase, fold, row, terms)
        fold.kind, fold.payload, fold.args = "cast", Converting(fold.dtype), (place,)
        return
    if row.idempotent:
        fold.kind, fold.payload = "apply", row.scalar
        fold.args = _in_pairs(phase, fold, row.scalar, terms, fold.dtype)
        if len(terms) == 1:
            fold.args *= 2  # what is folded once more stays the same
        return
    wide = f64 if arg.dtype == f32 else fold.dtype
    if wide != arg.dtype:
        terms = [put_before(phase, fold, "cast", Converting(wide), (t,), wide) for t in terms]
    if len(terms) > 1:
        pair = _in_pairs(phase, fold, row.scalar, terms, wide)
        terms = [_apply(phase, fold, row.scalar, pair, wide)]
    fold.kind, fold.payload, fold.args = "cast", Converting(fold.dtype), tuple(terms)


def _place_of_best(phase: Phase, fold: Item, row: Combine, terms: list[Item]) -> Item:
    """Where the best term stands, the first of equals, or the first that is NaN: of two it is the
    later one if it is better than the other."""
    make = partial(_apply, phase, fold)
    _, equal, differs = AS_GOOD
    found = [(t, put_before(phase, fold, "const", k, (), i32)) for k, t in enumerate(terms)]
    while len(found) > 1:
        pairs: list[tuple[Item, Item]] = []
        for (a, at_a), (b, at_b) in zip(found[::2], found[1::2], strict=False):
            better = make(row.scalar, (b, a), bool_)
            if a.dtype.is_float:
                nan, known = make(differs, (b, b), bool_), make(equal, (a, a), bool_)
                better = make(CHOICE, (nan, known, better), bool_)
            pairs.append(
                (make(CHOICE, (better, b, a), a.dtype), make(CHOICE, (better, at_b, at_a), i32))
            )
        found = [*pairs, *found[2 * len(pairs) :]]
    return found[0][1]


def short_products(phase: Phase) -> None:
    """Short sums of products become trees of scalar operators.  What they were written out of goes:
    its axes are no longer anybody's."""
    for dot in [i for i in phase.items if i.kind == "dot"]:
        if _is_short_sum(phase, dot):
            _write_products(phase, dot)
    prune(phase)


def _is_short_sum(phase: Phase, dot: Item) -> bool:
    assert isinstance(dot.payload, Folding)
    over = {*dot.payload.over}
    left, right = (a.axes - over for a in dot.args)
    sizes = [n for a in over if isinstance(n := phase.axes[a], int)]
    bound = cut_axes(phase.segments[dot.time]) | phase.cut.keys() | {*phase.grid}
    if len(sizes) < len(over) or over & bound or any(folds(a, over) for a in dot.args):
        return False
    if not 0 < prod(sizes) <= SHORT_SUM or not (
        left <= right
        or right <= left
        or _is_tiny(phase, dot, prod(sizes), left ^ right)
        or _is_slim(phase, dot, prod(sizes), (left - right, right - left))
    ):
        return False
    terms, read = prod(sizes), [i for a in dot.args for i in reached(a, over)]
    return terms * len(read) <= MOST_PRODUCTS and (
        terms <= SHORT_TERMS or not any(_is_comb(i, dot.axes - over) for i in read)
    )


def _is_comb(item: Item, kept: frozenset[str]) -> bool:
    """Whether a load that differs between results has no axis of theirs to read vectors along."""
    if not isinstance(item.payload, Access):
        return False
    steps = [coefficient(item.payload.offset, a) for a in item.axes & kept]
    return bool(steps) and 1 not in steps


def _is_tiny(phase: Phase, dot: Item, terms: int, own: frozenset[str]) -> bool:
    """Whether a batch of products is so small that vectors hold several of them: what neither
    operand shares has few positions, all told, and no tile would be filled."""
    extents = [phase.axes[a] for a in own]
    known = [n for n in extents if isinstance(n, int)]
    batch = dot.axes - own
    return len(known) == len(extents) and prod(known) <= LANES and terms <= TINY and bool(batch)


def _is_slim(
    phase: Phase, dot: Item, terms: int, own: tuple[frozenset[str], frozenset[str]]
) -> bool:
    """Whether many rows meet few columns of few elements (colours, points in space), and rows are
    computed, or a function reads the results: vectors along a row are nearly empty, those along the
    rows hold one column each.  Rows that are multiplied as they lie have tiles of their own."""
    if terms > TINY or dot.dtype.itemsize > f32.itemsize:
        return False
    stored = frozenset[str]().union(*(s.axes for s in phase.stores))
    after = (i.payload for i in readers(phase, [dot]) if i.kind == "apply")
    dear = sum(SCALARS[op].cost for op in after if isinstance(op, str)) > LONGEST
    for (few, many), rows in zip((own, own[::-1]), dot.args[::-1], strict=True):
        most = TINY if few.isdisjoint(stored) else SLIM
        columns = prod(n if isinstance(n := phase.axes[a], int) else most + 1 for a in few)
        known = [n for a in many if isinstance(n := phase.axes[a], int)]
        whole = len(known) < len(many) or prod(known) >= ROWS
        if columns <= most and many and whole and (dear or rows.kind != "load"):
            return True
    return False


def _write_products(phase: Phase, dot: Item) -> None:
    """The sum as its products, added in pairs."""
    assert isinstance(dot.payload, Folding)
    times, plus = SUM_OF_PRODUCTS[1], COMBINES[SUM_OF_PRODUCTS[0]].scalar
    over = dot.payload.over
    terms: list[Item] = []
    for at in positions(*(range(n) for a in over if isinstance(n := phase.axes[a], int))):
        clone = Cloner(phase, dot, dict(zip(over, at, strict=True)))
        terms.append(_apply(phase, dot, times, tuple(map(clone.of, dot.args)), dot.dtype))
    dot.kind, dot.payload = "apply", plus
    dot.args = _in_pairs(phase, dot, plus, terms, dot.dtype)
    if len(terms) == 1:
        dot.payload, dot.args = times, terms[0].args


def _in_pairs(
    phase: Phase, user: Item, scalar: str, terms: list[Item], dtype: DType
) -> tuple[Item, ...]:
    """Terms joined in pairs until two are left, or the only one."""
    while len(terms) > 2:
        pairs = [
            _apply(phase, user, scalar, two, dtype)
            for two in zip(terms[::2], terms[1::2], strict=False)
        ]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return tuple(terms)


def _apply(phase: Phase, user: Item, name: str, args: tuple[Item, ...], dtype: DType) -> Item:
    return put_before(phase, user, "apply", name, args, dtype)
