"""Tighten the column range of each row group under causal and window masks.

Where a stream starts and stops is computed for all rows of a task: from the first column that the
mask leaves to any of them to the last one.  With more rows, blocks are packed less often, but more
is computed that the mask excludes.  So a task takes many rows, and what is done row by row with the
positions of a block (contractions, reductions, exponentials) is done for a *row group* at a time,
over the columns that the same bounds give for these rows alone:

    stream n/512 from first(m) - 255 to last(m) + 1        # m: 192 rows
      pack k[n,d], v[n,d]
      for 24 rows:  scores, their maximum, weights, weights times values  of  n in their range

Columns outside of that range are skipped, as those outside of the stream's visits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.instructions.indexing import I64, number
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Item, Phase, Region, Visit, enclosing_regions
from smelt.codegen.llvm.nests.contraction import Contraction
from smelt.codegen.llvm.nests.environment import Environment, Scope
from smelt.codegen.llvm.nests.nest import Nest, RowGroupRanges, RowGroups, Schedule
from smelt.ops.combine import EXTREMES

Value = ir.Value
ROW_GROUP = 24
"""Rows of a row group: whole register tiles, whether of 4, 6, 8 or 12 rows."""
FINE_ROW_GROUP = 12
"""Rows whose range is exact, for sums over it; a row group has the union of these ranges."""
MATRIX_ROW_GROUP, MATRIX_FINE_ROW_GROUP = 32, 16
"""Both where matrix instructions are used: two tiles of rows, and one."""


# ---- analysis ------------------------------------------------------------------------------------


def depends_on_rows(bound: Item | None, rows: Collection[str]) -> bool:
    """Return whether a bound of a stream depends on which rows a task has."""
    return any(_reads_rows(i, rows) for i in _dependencies(bound))


def is_searched(bound: Item | None, columns: str) -> bool:
    """Return whether a bound of a stream is computed by a reduction over its columns."""
    reductions = (i for i in _dependencies(bound) if isinstance(i, ssa.Reduction))
    return any(columns in f.over for f in reductions)


def _reads_rows(item: Item, rows: Collection[str]) -> bool:
    match item:
        case ssa.BlockEdge(axis=name):
            return name in rows
        case ssa.Reduction(over=over):
            return not set(over).isdisjoint(rows)
        case _:
            return False


def _dependencies(item: Item | None) -> set[Item]:
    pending = [] if item is None else [item]
    seen = set(pending)
    while pending:
        new_args = [a for a in pending.pop().args if a not in seen]
        seen.update(new_args)
        pending += new_args
    return seen


def row_group_streams(
    phase: Phase, products: Iterable[Contraction]
) -> Iterator[tuple[Region, str]]:
    """Yield the streams whose blocks may be taken in row groups, with the row axis."""
    all_products = list(products)
    for region in phase.regions():
        if not region.visits:
            continue
        v = region.visits[-1]
        inside = [
            c for c in all_products if region in enclosing_regions(phase.segments[c.item.time])
        ]
        blocked = [c for c in inside if v.axis in (c.n, c.k)]
        rows = {c.m for c in blocked}
        if len(rows) != 1 or v.part is not None or v.size in (None, 1):
            continue
        (m,) = rows
        plain = all(
            not (c.is_gemv or c.outer or c.prepacked or c.m_contiguous)
            and not (c.group is not None and c.group.left_offset)
            for c in blocked
        )
        bounds = _dependencies(v.start) | _dependencies(v.stop)
        if (
            m in phase.grid
            and plain
            and any(_reads_rows(i, [m]) for i in bounds)
            and _can_be_tightened(bounds)
        ):
            yield region, m


def _can_be_tightened(items: set[Item]) -> bool:
    """Return whether bounds may be computed for fewer rows than a task has.

    They must follow from positions and extremes of arrays, not from states.
    """
    reductions = (i for i in items if isinstance(i, ssa.Reduction))
    return all(not isinstance(i, ssa.StateRead) for i in items) and all(
        f.row.name in EXTREMES for f in reductions
    )


def find_row_groups(s: Schedule) -> list[RowGroups]:
    """Return the row groups of a schedule's streams."""
    row_groups: list[RowGroups] = []
    for region, m in row_group_streams(s.phase, s.blocked):
        n, max_rows = region.visits[-1].axis, s.block.get(m)
        inside = [
            x
            for nest in s.nests
            for x in (nest, *nest.packs)
            if region in enclosing_regions(s.phase.segments[nest.time])
        ]
        candidates = [x for x in inside if {m, n} <= set(x.order)]
        group_nests = frozenset(x for x in candidates if _is_row_by_row(x, m, n, s))
        if not isinstance(max_rows, int) or any(
            _reads_skipped(x, m, n, s) for x in candidates if x not in group_nests
        ):
            continue
        group = max(c.tile.columns for c in s.blocked)
        visit = region.visits[-1]
        guides = _bound_nests(s, visit)
        if guides is None:
            continue
        products = tuple(
            c
            for c in s.blocked
            if region in enclosing_regions(s.region(c.item)) and n in (c.n, c.k)
        )
        size, fine = row_group_sizes(products)
        row_groups.append(
            RowGroups(
                region, m, n, group, size, fine, -(-max_rows // size), group_nests, products, guides
            )
        )
    return row_groups


def row_group_sizes(products: Iterable[Contraction]) -> tuple[int, int]:
    """Return the rows of a row group, and the rows whose range is exact."""
    matrices = any(c.group is not None and c.group.matrix for c in products)
    return (MATRIX_ROW_GROUP, MATRIX_FINE_ROW_GROUP) if matrices else (ROW_GROUP, FINE_ROW_GROUP)


def _is_row_by_row(nest: Nest, m: str, n: str, s: Schedule) -> bool:
    """Return whether a nest computes along the columns separately for each row."""
    if nest.stores or nest.state_updates or nest.scalars or nest.product is not None:
        return False
    if nest.transposed and not nest.strips:
        return False
    if nest.order.index(m) > nest.order.index(n) or any(
        isinstance(i, ssa.Scan) for i in nest.items
    ):
        return False
    return all(
        m in f.axes and f in s.materialised and nest.in_registers(f) for f in nest.reductions
    )


def _reads_skipped(nest: Nest, m: str, n: str, s: Schedule) -> bool:
    """Return whether a nest reads what row groups have skipped."""
    operands = {a for i in (*nest.items, *nest.reductions) for a in i.args} | {
        *nest.saves,
        *nest.scalars,
    }
    operands |= {x for t in nest.stores for x in (t.value, t.where) if x is not None}
    return any({m, n} <= set(s.materialised.get(i, ())) for i in operands)


def _bound_nests(s: Schedule, visit: Visit) -> tuple[Nest, ...] | None:
    """Return the nests that compute a visit's bounds; None if they do more than that."""
    ends = {e for e in (visit.start, visit.stop) if e is not None}
    dependencies = _dependencies(visit.start) | _dependencies(visit.stop)
    nests = [
        x
        for x in s.nests
        if not (ends.isdisjoint(x.scalars) and dependencies.isdisjoint(x.reductions))
    ]
    for nest in nests:  # saves are allowed: they store the same values again
        if (
            nest.stores
            or nest.state_updates
            or nest.packs
            or any(f in s.materialised for f in nest.reductions)
        ):
            return None
    return tuple(nests)


# ---- emission ------------------------------------------------------------------------------------


def allocate_ranges(env: Environment, groups: RowGroups) -> RowGroupRanges:
    """Emit memory for the column ranges of a task's row groups."""
    size, fine = groups.size, groups.fine
    with env.b.goto_entry_block():
        tables = {
            (rows, exact): env.b.alloca(I64, number(2 * groups.most * size // rows))
            for rows, exact in ((size, False), (fine, True))
        }
    return RowGroupRanges(groups, tables)


def emit_ranges(env: Environment, row_groups: RowGroupRanges) -> None:
    """Emit the column ranges of all row groups in the current block: rounded, and exact."""
    b, groups = env.b, row_groups.groups
    top, ranges = env.top, env.ranges
    low, high = ranges[groups.columns]
    stale = _dependencies(groups.visit.start) | _dependencies(groups.visit.stop)

    def fine(k: Value) -> None:
        band = _band_range(b, k, ranges[groups.rows], groups.fine)
        inner = _without_stale(top, stale)
        with env.narrowed({groups.rows: band}), env.within(top=inner):
            for nest in groups.guides:
                env.run(nest)
        start, stop = low, high
        if groups.visit.start is not None:
            start = b.maximum(inner.value(groups.visit.start), low)
        if groups.visit.stop is not None:
            stop = b.minimum(inner.value(groups.visit.stop), high)
        none = b.icmp_signed(">=", start, stop)
        start, stop = b.select(none, high, start), b.select(none, low, stop)
        _store_range(b, row_groups, k, groups.fine, start, stop, exact=True)

    def whole(k: Value) -> None:
        start, stop, first = high, low, b.mul(k, number(groups.size // groups.fine))
        for n in range(groups.size // groups.fine):
            part = b.minimum(b.add(first, number(n)), last)
            start = b.minimum(start, _load_bound(b, row_groups, part, groups.fine, 0, exact=True))
            stop = b.maximum(stop, _load_bound(b, row_groups, part, groups.fine, 1, exact=True))
        start = b.add(low, b.and_(b.sub(start, low), number(-groups.group)))
        covering = b.add(b.sub(stop, low), number(groups.group - 1))
        stop = b.minimum(b.add(low, b.and_(covering, number(-groups.group))), high)
        _store_range(b, row_groups, k, groups.size, start, stop)

    count = _count(b, ranges[groups.rows], groups.fine)
    env.loop(number(0), count, 1, fine)
    last = b.sub(count, number(1))
    env.loop(number(0), _count(b, ranges[groups.rows], groups.size), 1, whole)


def over_row_groups(
    env: Environment,
    row_groups: RowGroupRanges,
    rows: Value,
    columns: tuple[Value, Value],
    exact: bool,
    inside: Callable[[tuple[Value, Value], tuple[Value, Value], Value], None],
) -> None:
    """Emit `inside` for each row group of `rows` rows.

    It gets the first row and the one after the last, the range of `columns` (rounded, or
    exact), and whether the mask excludes all columns before these.
    """
    b, groups = env.b, row_groups.groups
    size = groups.fine if exact else groups.size

    def run_group(k: Value) -> None:
        begins = _load_bound(b, row_groups, k, size, 0, exact=exact)
        inside(
            _band_range(b, k, (number(0), rows), size),
            _columns_of(b, row_groups, k, size, columns, exact=exact),
            b.icmp_signed(">=", begins, columns[0]),
        )

    env.loop(number(0), _count(b, (number(0), rows), size), 1, run_group)


def _columns_of(
    b: ir.IRBuilder,
    row_groups: RowGroupRanges,
    k: Value,
    rows: int,
    columns: tuple[Value, Value],
    *,
    exact: bool = False,
) -> tuple[Value, Value]:
    """Return the part of a column range that the mask leaves to a row group.

    An empty one ends where it begins.
    """
    low, high = columns
    start, stop = (_load_bound(b, row_groups, k, rows, side, exact=exact) for side in (0, 1))
    start = b.minimum(b.maximum(start, low), high)
    return start, b.maximum(b.minimum(stop, high), start)


def _store_range(
    b: ir.IRBuilder,
    row_groups: RowGroupRanges,
    k: Value,
    rows: int,
    start: Value,
    stop: Value,
    *,
    exact: bool = False,
) -> None:
    for side, end in enumerate((start, stop)):
        b.store(end, _bound_address(b, row_groups, k, rows, side, exact))


def _load_bound(
    b: ir.IRBuilder, row_groups: RowGroupRanges, k: Value, rows: int, side: int, *, exact: bool
) -> Value:
    return b.load(_bound_address(b, row_groups, k, rows, side, exact), typ=I64)


def _bound_address(
    b: ir.IRBuilder, row_groups: RowGroupRanges, k: Value, rows: int, side: int, exact: bool
) -> Value:
    at = b.add(b.mul(k, number(2)), number(side))
    return b.gep(row_groups.tables[rows, exact], [at], source_etype=I64)


def _count(b: ir.IRBuilder, rows: tuple[Value, Value], size: int) -> Value:
    return b.sdiv(b.add(b.sub(rows[1], rows[0]), number(size - 1)), number(size))


def _band_range(
    b: ir.IRBuilder, k: Value, rows: tuple[Value, Value], size: int
) -> tuple[Value, Value]:
    first = b.add(rows[0], b.mul(k, number(size)))
    return first, b.minimum(b.add(first, number(size)), rows[1])


def for_each_row_group(env: Environment, nest: Nest, inside: Callable[[], None]) -> None:
    """Run a nest for each of its row groups, or once if it has none.

    The rows of a group and the columns that the mask leaves to them, maybe none, are the ranges.
    """
    row_groups = next((x for x in env.row_groups if nest in x.groups.nests), None)
    if row_groups is None:
        inside()
        return
    groups, ranges = row_groups.groups, env.ranges

    def run_group(k: Value) -> None:
        band = _band_range(env.b, k, ranges[groups.rows], groups.size)
        seen = _columns_of(env.b, row_groups, k, groups.size, ranges[groups.columns])
        with env.narrowed({groups.rows: band, groups.columns: seen}):
            inside()

    env.loop(number(0), _count(env.b, ranges[groups.rows], groups.size), 1, run_group)


def _without_stale(scope: Scope | None, stale: set[Item]) -> Scope:
    """Return a flat copy of a scope and the enclosing ones without some items."""
    axes, values = dict[str, Value](), dict[Item, Value]()
    while scope is not None:
        axes = scope.axes | axes
        values = {i: v for i, v in scope.values.items() if i not in stale} | values
        scope = scope.parent
    return Scope(axes=axes, values=values)
