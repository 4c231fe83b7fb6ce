"""Long loop bodies in stages: each stage walks a strip of the row before the next one begins.

A processor looks a few hundred instructions ahead.  A body that is longer than that holds one or
two vectors at a time, and a vector alone is a chain of operations that wait for one another.  Cut
into stages, each a short loop over a strip that the first cache holds, many vectors are in flight
again; what crosses a cut is stored and read again, which costs a cycle.  The operations and their
order for each element stay, and so do all results.

    for strip:                           t = exp(sin(x)) / (1 + erf(x))
        for vector in strip:  s1[..] = exp(sin(x[..]))
        for vector in strip:  t[..] = s1[..] / (1 + erf(x[..]))

Sums in double precision are stages of their own behind anything long: their conversions, which few
units do, would stand at the end of every chain.  A sum of exponentials takes 82 % of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address, load_vector, prefetch, store_vector
from smelt.codegen.llvm.access.prefetch import LINE, RowPrefetch
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.instructions.scope import Lanes, Scope
from smelt.codegen.llvm.loopir.items import Access, Folding, Item, accesses_of
from smelt.codegen.llvm.loops.pipeline_store import PipelinedStoreRow
from smelt.dataclass import dataclass
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.expr import atoms

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter
    from smelt.codegen.llvm.schedule.build_nests import Nest

Value = ir.Value

STRIP = 512
"""Elements of a strip: with what crosses the cuts, a part of the first cache."""
WIDE = 4
"""Vectors that go through a stage's loop together."""
LONG = 10.0
"""Cycles a vector up to which a body keeps the processor busy; beyond, the time grows with the
square of the length (sin, exp and tanh: 29 cycles apart, 50 in one loop)."""
SUMMED = 5.0
"""Cycles a vector of a body behind which sums that convert their elements are apart."""
CUT = 1.0
"""Cycles a vector for each value that crosses a cut."""
TURN = 0.5
"""Cycles a vector for a stage's own loop."""
GAIN = 0.9
"""What the time has to fall to, at least, for stages to be worth their code."""
ONE, SHORT = 5.0, 0.5
"""Cycles up to which an operator is one instruction (a division), and what it counts here: however
long it takes, it keeps one place of those that the processor looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What one of the loops computes, reads from strips and leaves there, and what of the nest's
    saves it makes: those are read again from where they lie for later nests."""

    items: tuple[Item, ...]
    reads: tuple[Item, ...]
    keeps: tuple[Item, ...]
    saves: tuple[Item, ...]


def stages(nest: Nest) -> tuple[Stage, ...]:
    """The stages of a nest's innermost loop; none if it is short, or no plain map of vectors."""
    work = _work(nest)
    length = sum(map(_cost, work))
    apart = length > SUMMED and any(_converts(f, nest) for f in nest.folds)
    usual = ("const", "index", "load", "apply", "cast")
    carried = (i.kind == "state" and nest.vector not in i.axes for i in nest.items)
    plain = all(i.kind in usual or c for i, c in zip(nest.items, carried, strict=True))
    if not (apart or length > LONG) or not plain or nest.turned or nest.packed or nest.settings:
        return ()
    accesses = [*accesses_of(nest.items), *(s.access for s in nest.stores)]
    if any(a.kind == "value" for access in accesses for a in atoms(access.offset)):
        return ()
    roots = {a for f in nest.folds for a in f.args} | set(nest.saves)
    roots |= {i for s in nest.stores for i in (s.value, s.where) if i is not None}
    cuts = _best_cuts(work, _crossing(work, roots)) if length > LONG else []
    cuts += [len(work)] if apart else []
    return _cut(nest, work, roots, cuts) if cuts else ()


def _work(nest: Nest) -> list[Item]:
    return [i for i in nest.items if i.kind in ("apply", "cast") and nest.vector in i.axes]


def _converts(fold: Item, nest: Nest) -> bool:
    """Whether a fold along the vectors is carried in double precision, and its elements are not."""
    assert isinstance(fold.payload, Folding)
    along = nest.vector in fold.payload.over and nest.in_registers(fold)
    element = fold.args[0].dtype
    return along and fold.payload.row.wide and element.is_float and element.bits < 64


def _cost(item: Item) -> float:
    own = SCALARS[item.payload].cost if isinstance(item.payload, str) else SHORT
    return own if own > ONE else SHORT


def _crossing(work: Sequence[Item], roots: set[Item]) -> list[int]:
    """How many values are computed before each place and read behind it."""
    place = {item: k for k, item in enumerate(work)}
    last = dict(place)
    for k, item in enumerate(work):
        for a in item.args:
            if a in place:
                last[a] = k
    last |= {item: len(work) for item in work if item in roots}
    alive = [0] * (len(work) + 1)
    for item, k in place.items():
        for cut in range(k + 1, last[item] + 1):
            alive[cut] += 1
    return alive


def _best_cuts(work: Sequence[Item], alive: Sequence[int]) -> list[int]:
    """Places of `work` to cut at, for the least time: shortest paths over the places."""
    places = [0, *(k + 1 for k, i in enumerate(work[:-1]) if _cost(i) > ONE), len(work)]
    upto = [0.0]
    for item in work:
        upto.append(upto[-1] + _cost(item))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for n, end in enumerate(places[1:], 1):

        def total(k: int, end: int = end) -> float:
            length = upto[end] - upto[places[k]]
            crossing = CUT * alive[places[k]] if k else 0.0
            return best[k][0] + max(length, length * length / LONG) + TURN + crossing

        best.append(min((total(k), k) for k in range(n)))
    whole = upto[-1] * upto[-1] / LONG + TURN
    if best[-1][0] > GAIN * whole:
        return []
    cuts: list[int] = []
    k = best[-1][1]
    while k:
        cuts.append(places[k])
        k = best[k][1]
    return cuts[::-1]


def _cut(
    nest: Nest, work: Sequence[Item], roots: set[Item], cuts: Sequence[int]
) -> tuple[Stage, ...]:
    """The stages: loads and numbers are had again wherever they are needed."""
    stage_of = {item: sum(k >= cut for cut in cuts) for k, item in enumerate(work)}
    final = len(cuts)
    wanted: list[set[Item]] = [set() for _ in range(final + 1)]
    reads: list[set[Item]] = [set() for _ in range(final + 1)]

    def need(item: Item, at: int) -> None:
        if stage_of.get(item, at) != at:
            reads[at].add(item)
        elif item not in wanted[at]:
            wanted[at].add(item)
            for a in item.args:
                need(a, at)

    for item in roots:
        need(item, final)
    for item in nest.items:
        if item not in stage_of and item.kind != "load":
            wanted[final].add(item)
    for at in range(final, 0, -1):
        for item in sorted(reads[at], key=lambda i: i.number):
            need(item, stage_of[item])
    kept = set[Item]().union(*reads) - set(nest.saves)
    return tuple(
        Stage(
            tuple(i for i in nest.items if i in wanted[at]),
            tuple(i for i in nest.items if i in reads[at]),
            tuple(i for i in nest.items if i in kept and stage_of[i] == at),
            tuple(i for i in nest.saves if stage_of.get(i, final) == at),
        )
        for at in range(final + 1)
    )


# ---- emission ------------------------------------------------------------------------------------


STAGE_PART = 400
"""The number under which scratch memory knows an item's strip."""


def run_stages(
    home: NestEmitter,
    low: Value,
    high: Value,
    at: tuple[Scope, int],
    ahead: RowPrefetch,
    behind: PipelinedStoreRow,
) -> None:
    """The main loop of a nest, from `low` to `high`, which are whole wide vectors apart, in the
    loops of a scope and so deep."""
    scope, depth = at
    b, nest = home.b, home.nest
    wide = home.s.lanes * nest.wide
    asked = (
        []
        if home.home.shares
        else [
            a
            for a in dict.fromkeys(accesses_of(home.items))
            if nest.vector is not None and coefficient(a.offset, nest.vector) == 1
        ]
    )

    shares = _shares(home, asked)

    def strip(start: Value) -> None:
        end = b.add(start, number(STRIP))
        end = b.select(b.icmp_signed("<", end, high), end, high)
        heads = _heads(home, asked, Scope(scope, {nest.order[depth]: start}), depth)
        for k, (stage, own) in enumerate(zip(nest.stages, shares, strict=True)):

            def ask(position: Value, k: int = k, own: Sequence[Share] = own) -> None:
                if not home.home.shares:
                    _ask(home, own, heads, b.sub(position, start))
                elif k == 0:
                    ahead.emit(b.sub(position, low))
                if k == 0:
                    behind.emit(Lanes(nest.order[depth], position, wide, None))

            home.loop(start, end, wide, _inside(home, stage, start, (scope, depth), ask))

    home.loop(low, high, STRIP, strip)


def _inside(
    home: NestEmitter,
    stage: Stage,
    start: Value,
    at: tuple[Scope, int],
    ask: Callable[[Value], None],
) -> Callable[[Value], None]:
    """One wide vector of one stage, in the loops of a scope and so deep; `ask` asks memory for what
    comes next."""
    b, nest, wide, (scope, depth) = home.b, home.nest, home.s.lanes * home.nest.wide, at
    name = nest.order[depth]

    def address(item: Item, position: Value) -> Value:
        base = home.storage.at[item, STAGE_PART]
        return element_address(b, base, b.sub(position, start), item.dtype.compute)

    def inside(position: Value) -> None:
        inner = Scope(scope, {name: position}, lanes=Lanes(name, position, wide, None))
        m = home.machine(inner, True)
        for item in stage.reads:
            inner.values[item] = (
                home.scratch.reload(item, inner)
                if item in nest.saves
                else load_vector(m, address(item, position), item.dtype.compute, None)
            )
        before = home.items, home.saves, home.accesses, home.combs
        last = stage is nest.stages[-1]
        home.accesses = accesses_of(stage.items)
        home.accesses += [s.access for s in nest.stores] if last else []
        home.items, home.saves = list(stage.items), list(stage.saves)
        home.combs = home.combs_now()
        home.enter(inner, depth + 1)
        ask(position)
        if last:
            home.body(inner)
        else:
            home.save(inner)
        for item in stage.keeps:
            found = home.get(item, inner, True)
            store_vector(m, address(item, position), found, item.dtype.compute, None)
        home.items, home.saves, home.accesses, home.combs = before

    return inside


class Share(NamedTuple):
    """What a stage asks memory for: one of so many parts of the strip of an access."""

    access: Access
    part: int
    parts: int


def _shares(home: NestEmitter, asked: Sequence[Access]) -> list[list[Share]]:
    """What each stage asks for of the next strip, so that memory works while all stages compute.
    No more stages share an access than it has lines in a wide vector: where there are many, each
    has some of the accesses, and its loop stays as short as it was cut."""
    many, wide = len(home.nest.stages), home.s.lanes * home.nest.wide
    found: list[list[Share]] = [[] for _ in range(many)]
    at = 0
    for access in asked:
        lines = wide * home.home.dtypes[access.buffer].itemsize // LINE
        parts = min(many, max(lines, 1))
        for part in range(parts):
            found[(at + part) % many].append(Share(access, part, parts))
        at += parts
    return found


def _heads(
    home: NestEmitter, asked: Sequence[Access], scope: Scope, depth: int
) -> dict[Access, Value]:
    """Where a strip begins in each access.  Addresses are found once for all stages: had each loop
    its own, LLVM would look through their steps for longer than through all the rest."""
    before = home.items, home.accesses
    home.items, home.accesses = [], list(asked)
    home.enter(scope, depth + 1)
    home.items, home.accesses = before
    return {
        a: element_address(
            home.b, home.home.buffers[a.buffer], scope.offset(a), home.home.dtypes[a.buffer]
        )
        for a in asked
    }


def _ask(
    home: NestEmitter, shares: Sequence[Share], heads: Mapping[Access, Value], done: Value
) -> None:
    """Asks for a stage's shares of the next strip, `done` elements of this one being behind it."""
    b, wide = home.b, home.s.lanes * home.nest.wide
    moved: dict[tuple[int, int], Value] = {}
    for access, part, parts in shares:
        size = home.home.dtypes[access.buffer].itemsize
        if (size, parts) not in moved:
            moved[size, parts] = b.udiv(b.mul(done, number(size)), number(parts))
        first = STRIP * size * (parts + part) // parts
        for line in range(first, first + wide * size // parts, LINE):
            at = b.add(moved[size, parts], number(line))
            prefetch(b, b.gep(heads[access], [at], source_etype=ir.IntType(8)))
