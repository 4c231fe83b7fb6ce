"""Short rows of results: each column is a vector of its own, and they are stored side by side.

Where all of a row needs the same (its sum, the coordinates of a point), or its columns are far from
one another in what is read, a loop over the few columns would compute the same again for each, and
store it in steps.  Written out, vectors run along the rows, and what is stored is whole vectors:

    y[n,j] = x[j,n]    is    y[3*n] = x[0,n], y[3*n + 1] = x[1,n], y[3*n + 2] = x[2,n]

So are the columns of short rows that are read, where results lie along the rows: y[j,n] = x[n,j];
and the few rows of a result that have something dear in common.  What was joined along such an axis
is at each position of it the one part that lies there (`smelt.codegen.llvm.loops.fold_selects`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product as positions
from math import inf, prod
from typing import TYPE_CHECKING

from smelt.blocks import WRITTEN_OUT
from smelt.codegen.llvm.access.interleaved_loads import constant, is_dense
from smelt.codegen.llvm.access.memory import FARTHEST_STEP, element_address, store_interleaved
from smelt.codegen.llvm.instructions.scope import Scope
from smelt.codegen.llvm.loopir.clone import Cloner, join_equal, prune
from smelt.codegen.llvm.loopir.items import Access, Folding, Item, Phase, StoreItem
from smelt.codegen.llvm.loops.collapse_short_rows import MAPS
from smelt.codegen.llvm.loops.fold_selects import side
from smelt.ops.scalar import SCALARS
from smelt.types.affine import coefficient
from smelt.types.dtype import f64
from smelt.types.expr import Index, sub, substitute

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

FEW_ROWS = 128
"""Rows below which vectors may not run along them: two vectors of bytes."""
MOST = 200
"""Items that the columns become at most."""
CHEAP = 5.0
"""Cycles a vector of what columns have in common up to which a row that is one vector computes it
again in each lane: a division, but no function."""

NEARLY_FULL, DEAR = 12, 40.0
"""Columns beyond which rows that are a vector of their own are nearly full, and cycles of what they
have in common up to which they stay so: as many as it takes to pick columns out of rows."""

THIN = 8
"""Rows of so small a part of the lanes are columns also where what is read lies far apart: asking
for elements is less than as many vectors that are nearly empty, and all else is done at once."""


def shares_dear(phase: Phase) -> bool:
    """Whether columns of short rows have in common what a run of all of them (`flatten`) would
    compute again in each lane: a function."""
    short = {a for s in phase.stores for a in _columns(phase, s)}
    if short:
        return _shared(phase, short) > CHEAP
    rows = {_row_of(phase, s) for s in phase.stores}
    return len(rows) == 1 and None not in rows and bool(_lines(phase))


def spread(phase: Phase, lanes: int) -> bool:
    """Writes out the columns of short rows of results; says whether it did."""
    rows = {_row_of(phase, s) for s in phase.stores}
    if len(rows) != 1 or (row := rows.pop()) is None:
        return False
    columns = [_columns(phase, s) for s in phase.stores]
    read = [] if any(columns) else _lines(phase) or _read_columns(phase, row)
    if read:
        columns = [read] * len(phase.stores)
    short = dict.fromkeys(a for own in columns for a in own)
    if any({*short} & s.axes != {*own} for s, own in zip(phase.stores, columns, strict=True)):
        return False
    count = prod(n for a in short if isinstance(n := phase.axes[a], int))
    length = phase.axes[row]
    few = isinstance(length, int) and length < 2 * lanes
    near = _are_near(phase, row, [*short]) or (THIN * count <= lanes and _is_walked(phase, row))
    again = CHEAP if count <= NEARLY_FULL else DEAR
    cheap = _shared(phase, {*short}) <= (again if count <= lanes else 0.0)
    full = count >= (lanes if read else _filled(phase, row, lanes)) and cheap
    kept = not all(_runs_short(i, {*short}) for i in phase.items if i.kind == "scan")
    if not short or few or not near or full or kept or _copies(phase, [*short]) > MOST:
        return False
    phase.stores[:] = [
        x for s, own in zip(phase.stores, columns, strict=True) for x in _apart(phase, s, own)
    ]
    for a in short:
        del phase.axes[a]
    phase.grid = [a for a in phase.grid if a not in short]
    phase.lanes = row
    join_equal(phase)
    prune(phase)
    return True


def _filled(phase: Phase, row: str, lanes: int) -> int:
    """Columns from which on a row is a vector of its own: lanes, or half of them where it is read
    as it lies, for a comb's teeth are picked out of as many vectors as a row has columns."""
    loads = [i.payload.offset for i in phase.items if isinstance(i.payload, Access)]
    steps = [coefficient(e, row) for e in loads]
    combs = any(isinstance(s, int) and s > FARTHEST_STEP for s in steps)
    return lanes // 2 if combs else lanes


def _shared(phase: Phase, short: set[str]) -> float:
    """Cycles a vector of what columns have in common: without bound where each has what all before
    it fold to."""
    if any(i.kind == "scan" for i in phase.items):
        return inf
    common = (i.payload for i in phase.items if i.kind == "apply" and not i.axes & short)
    return sum(SCALARS[op].cost for op in common if isinstance(op, str))


def _runs_short(scan: Item, short: set[str]) -> bool:
    """Whether a running fold runs along columns, and may be written out: sums of doubles, which
    carry their errors along, are not."""
    assert isinstance(scan.payload, Folding)
    careful = scan.payload.row.compensated and scan.dtype == f64
    return {*scan.payload.over} <= short and not careful


def short_row(phase: Phase) -> str | None:
    """The axis of short rows which a phase folds and stores, where vectors run along the rows once
    the folds are written out: nothing else keeps its columns from being spread."""
    folds = [i.payload for i in phase.items if isinstance(i.payload, Folding)]
    over = {f.over for f in folds}
    rows = {_row_of(phase, s) for s in phase.stores}
    columns = {tuple(_columns(phase, s)) for s in phase.stores}
    kinds = {i.kind for i in phase.items}
    if len(rows) != 1 or len(over) != 1 or columns != over or not kinds <= {*MAPS, "fold"}:
        return None
    (row,), (own,) = rows, over
    plain = not (phase.regions() or phase.cut or phase.places or phase.settings)
    if len(own) != 1 or row is None or not plain:
        return None
    n, length = phase.axes[own[0]], phase.axes[row]
    varying = sum(own[0] in i.axes for i in phase.items)
    few = isinstance(length, int) and length < FEW_ROWS
    if few or not isinstance(n, int) or n * varying > MOST or not _are_near(phase, row, own):
        return None
    return own[0]


def _are_near(phase: Phase, row: str, short: Sequence[str]) -> bool:
    """Whether what is read lies in steps along a row that are short, or dense combs
    (`smelt.codegen.llvm.access.interleaved_loads`) once the columns of short rows are written
    out."""
    combs: dict[tuple[str, int], set[int]] = {}
    for access in [i.payload for i in phase.items if isinstance(i.payload, Access)]:
        step, *others = (coefficient(access.offset, a) for a in (row, *short))
        if not isinstance(step, int):
            return False
        if abs(step) <= FARTHEST_STEP:
            continue
        counts = [phase.axes[a] for a in short]
        known = [
            (k, n)
            for k, n in zip(others, counts, strict=True)
            if isinstance(k, int) and isinstance(n, int)
        ]
        if step < 0 or access.limits or len(known) < len(counts):
            return False
        teeth = combs.setdefault((access.buffer, step), set())
        for at in positions(*(range(n) for _, n in known)):
            here = sum(k * x for (k, _), x in zip(known, at, strict=True))
            teeth.add((here + constant(access.offset)) % step)
    return all(is_dense(step, len(teeth)) for (_, step), teeth in combs.items())


def _is_walked(phase: Phase, row: str) -> bool:
    """Whether everything is read in steps along a row, however long."""
    loads = (i.payload.offset for i in phase.items if isinstance(i.payload, Access))
    return all(coefficient(e, row) is not None for e in loads)


def _columns(phase: Phase, s: StoreItem) -> list[str]:
    """The axes of a store's short rows, outer to inner."""
    found: list[str] = []
    length = 1
    while True:
        following = [
            a
            for a in s.axes
            if coefficient(s.access.offset, a) == length and a not in found and phase.axes[a] != 1
        ]
        n = phase.axes[following[0]] if len(following) == 1 else None
        if not isinstance(n, int) or length * n > WRITTEN_OUT or n == 0:
            return found
        found = [*following, *found]
        length *= n


def _read_columns(phase: Phase, row: str) -> list[str]:
    """The axis of short rows that are read while results lie along `row`: their columns are the
    teeth of a comb (`smelt.codegen.llvm.access.interleaved_loads`), which are read together."""
    loads = [i.payload.offset for i in phase.items if isinstance(i.payload, Access)]
    for a in phase.grid:
        n = phase.axes[a]
        if (
            a != row
            and isinstance(n, int)
            and 1 < n <= WRITTEN_OUT
            and any(coefficient(e, a) == 1 and coefficient(e, row) == n for e in loads)
        ):
            return [a]
    return []


def _lines(phase: Phase) -> list[str]:
    """The axis of few rows of all results that have something dear in common: computed once for all
    of them instead of once for each."""
    common = set(phase.grid).intersection(*(s.axes for s in phase.stores))
    for a in phase.grid:
        n = phase.axes[a]
        few = a in common and isinstance(n, int) and 1 < n <= WRITTEN_OUT
        if few and CHEAP < _shared(phase, {a}) < inf:
            return [a]
    return []


def _row_of(phase: Phase, s: StoreItem) -> str | None:
    """The axis along which the short rows of a store follow one another."""
    short = _columns(phase, s)
    length = prod(n for a in short if isinstance(n := phase.axes[a], int))
    found = [
        a
        for a in phase.grid
        if a in s.axes and a not in short and coefficient(s.access.offset, a) == length
    ]
    return found[0] if len(found) == 1 and not s.where else None


def _apart(phase: Phase, s: StoreItem, short: Sequence[str]) -> list[StoreItem]:
    """A store for each column."""
    found: list[StoreItem] = []
    for here in _places(phase, short):
        value = _Column(phase, s.value, here).of(s.value)
        access = Access(s.access.buffer, substitute(s.access.offset, here))
        found.append(StoreItem(access, value, None, s.axes - {*short}, s.time))
    return found


class _Column(Cloner):
    """Copies of what a column needs: of selections by position the side that it takes."""

    def of(self, item: Item) -> Item:
        return super().of(side(item, self.at))


def _places(phase: Phase, short: Sequence[str]) -> list[dict[str, Index]]:
    """All positions of some axes."""
    counts = [range(n) for a in short if isinstance(n := phase.axes[a], int)]
    return [dict(zip(short, at, strict=True)) for at in positions(*counts)]


def _copies(phase: Phase, short: Sequence[str]) -> int:
    """Items that the columns become; counted no further than there may be."""
    found = 0
    for here in _places(phase, short):
        found += len({i for s in phase.stores for i in _reached(s.value, here)})
        if found > MOST:
            break
    return found


def _reached(root: Item, at: Mapping[str, Index]) -> Iterator[Item]:
    """What a value is computed from at some positions, as far as it varies along their axes."""
    root = side(root, at)
    pending, seen = [root], {root}
    while pending:
        item = pending.pop()
        if item.axes & at.keys():
            yield item
            fresh = [a for a in (side(a, at) for a in item.args) if a not in seen]
            seen.update(fresh)
            pending += fresh


def interleaved(home: NestEmitter, scope: Scope) -> Sequence[StoreItem]:
    """Stores the columns that lie side by side; gives the stores that are left."""
    lanes, stores = scope.lanes, list(home.nest.stores)
    left: list[StoreItem] = []
    while stores:
        first = stores.pop(0)
        step = coefficient(first.access.offset, lanes.axis) if lanes is not None else None
        group = [first]
        if isinstance(step, int) and 1 < step <= WRITTEN_OUT:
            group += [s for s in stores if s.access.buffer == first.access.buffer]
        if lanes is None or not isinstance(step, int) or not _side_by_side(group, step):
            left.append(first)
            continue
        stores = [s for s in stores if s not in group]
        m, dtype = home.machine(scope, True), home.home.dtypes[first.access.buffer]
        base = home.home.buffers[first.access.buffer]
        address = element_address(home.b, base, scope.offset(group[0].access), dtype)
        values = [home.get(s.value, scope, True) for s in group]
        width = home.home.target.vector_bytes
        store_interleaved(m, address, values, dtype, lanes.mask, width)
    return left


def _side_by_side(group: list[StoreItem], step: int) -> bool:
    first = group[0].access.offset
    apart = [sub(s.access.offset, first) for s in group]
    return step > 1 and apart == [*range(step)] and not any(s.where for s in group)


__all__ = ["interleaved", "shares_dear", "short_row", "spread"]
