"""Let register tiles store products straight into output buffers.

A product's result is an array in scratch which later nests read.  If one nest does nothing but
store it, the tiles may write the output themselves, provided that columns come in full tiles; this
is decided at the beginning of a task, and the nest is skipped then.  Where column ranges go to
different outputs, all columns of the task must be in one of them.

    direct = DirectStores(env)           what may be stored directly, and whether it is
    direct.row_layout(c)                  address and row stride of a product's tiles
    direct.image_layout(c)                address and strides, for rows which are pixels of an image
    direct.rounded_output(c)              destination of final sums which are rounded when stored
    direct.run_unless_stored(nest, run)   emit a nest unless its outputs are already stored
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.memory import element_address
from smelt.codegen.llvm.instructions.indexing import number
from smelt.codegen.llvm.loopir.items import Item, StoreItem
from smelt.codegen.llvm.loopir.store_ranges import stored_range
from smelt.codegen.llvm.loops.split_store_ranges import range_ends
from smelt.codegen.llvm.nests.environment import DirectStores, Environment
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.nests.product_plan import ProductPlan, TileStores
from smelt.codegen.llvm.products.microkernel import RoundedOutput
from smelt.codegen.llvm.schedule.conv_nhwc import NhwcConvPlan
from smelt.codegen.llvm.scratch.workspace import reads
from smelt.types.dtype import DType
from smelt.types.expr import Index, axes_of, coefficient, substitute

Value = ir.Value
Stores: TypeAlias = dict[Item, tuple[StoreItem, ...]]
"""Products which are stored unchanged, with their stores."""


def find_direct_stores(env: Environment) -> DirectStores:
    """Return the products of a task which tiles may store directly; emit whether they do."""
    frame, enabled = env.frame, ir.IntType(1)(1)
    streamed = frame.streaming or env.row_groups
    stores = {} if streamed else dict(stored_products(env.s, frame.dtypes))
    nests = frozenset(n for n, only_stores in _nests(env.s, stores) if only_stores)
    rounded = frozenset(
        item for item, x in stores.items() if frame.dtypes[x[0].access.buffer] != item.dtype
    )
    for c in env.s.products.values():
        if c.item in stores:
            tiles = c.tile_stores(env.s.local)
            assert tiles is not None
            enabled = env.b.and_(enabled, _is_whole(env, c, tiles))
            if len(stores[c.item]) > 1:
                enabled = env.b.and_(enabled, _is_inside(env, c, stores[c.item]))
    return DirectStores(stores, nests, rounded, enabled)


def _is_whole(env: Environment, c: ProductPlan, stores: TileStores) -> Value:
    """Return whether tiles store this task's part of a product exactly (i1)."""
    b, ranges, conditions = env.b, env.ranges, list[Value]()
    if stores.columns != "masked":
        low, high = ranges[c.n]
        remainder = b.and_(b.sub(high, low), number(c.tile.columns - 1))
        is_full = b.icmp_signed("==", remainder, number(0))
        if stores.columns == "full or one vector":
            is_one_vector = b.icmp_signed("==", remainder, number(c.tile.lanes))
            is_full = b.or_(is_full, is_one_vector)
        conditions.append(is_full)
    if stores.summed:
        conditions.append(b.icmp_signed("<", *ranges[stores.summed]))
    for limit, relation in ((stores.at_least, ">="), (stores.exactly, "==")):
        if limit is not None:
            first, last = ranges[limit[0]]
            conditions.append(b.icmp_signed(relation, b.sub(last, first), number(limit[1])))
    return reduce(b.and_, conditions) if conditions else ir.IntType(1)(1)


def _is_inside(env: Environment, c: ProductPlan, stores: Sequence[StoreItem]) -> Value:
    """Return whether one output range of a product has all of this task's columns (i1)."""
    b, inside = env.b, ir.IntType(1)(0)
    for store in stores:
        inside = b.or_(inside, _holds_all(env, c, store))
    return inside


def _holds_all(env: Environment, c: ProductPlan, store: StoreItem) -> Value:
    """Return whether the range of a store has all of this task's columns (i1)."""
    b, (low, high) = env.b, env.ranges[c.n]
    within = stored_range(store)
    assert within is not None
    first, stop = range_ends(env, within)
    begins = b.icmp_signed("<=", first, low)
    return begins if stop is None else b.and_(begins, b.icmp_signed("<=", high, stop))


def row_layout(env: Environment, c: ProductPlan) -> tuple[Value, Value]:
    """Return the address of a task's first element of a product, and the row stride."""
    stride = env.extent(c.item, c.n)
    base, strides = _destination(env, c, c.row_axes, [stride])
    return base, strides[0]


def image_layout(env: Environment, c: ProductPlan, sums: int = 0) -> tuple[Value, list[Value]]:
    """Return the address of a task's first element, and strides along the row axes.

    With `sums`, in that part of its scratch memory, from where they are transposed.
    """
    strides = list[Value]()
    step = env.extent(c.item, c.n)
    for a in c.row_axes[::-1]:
        strides.insert(0, step)
        step = env.b.mul(step, env.extent(c.item, a))
    if sums:
        return env.storage.at[c.item, sums], strides
    return _destination(env, c, c.row_axes, strides)


def transposed_layout(env: Environment, c: NhwcConvPlan) -> tuple[Value, dict[str, Value]]:
    """Return where transposed tiles of sums go, and the stride along each axis."""
    strides, step = dict[str, Value](), number(1)
    for a in reversed(c.axes):
        strides[a], step = step, env.b.mul(step, env.extent(c.item, a))
    order = [*c.row_axes, c.n]
    base, steps = _destination(env, c, c.row_axes, [strides[a] for a in order[:-1]])
    if c.item in env.direct.stores:
        (access,) = (s.access for s in env.direct.stores[c.item])
        output_stride = env.frame.index(coefficient(access.offset, c.n) or 0)
        strides[c.n] = env.b.select(env.direct.enabled, output_stride, strides[c.n])
    return base, strides | dict(zip(order[:-1], steps, strict=True))


def rows_are_contiguous(env: Environment, c: NhwcConvPlan) -> bool:
    """Return whether consecutive rows of a product's output are contiguous."""
    if c.item not in env.direct.stores or len(c.columns) < 2:
        return len(c.columns) > 1
    offset, (outer, inner) = env.direct.stores[c.item][0].access.offset, c.axes[-2:]
    return coefficient(offset, outer) == env.s.local[inner]


def rounded_output(env: Environment, c: ProductPlan) -> RoundedOutput | None:
    """Return the destination of final sums which are rounded as they are stored, or None."""
    if c.item not in env.direct.rounded:
        return None
    return RoundedOutput(*_output_address(env, c, c.row_axes), _dtype(env, c), env.direct.enabled)


def _destination(
    env: Environment, c: ProductPlan, rows: Sequence[str], strides: list[Value]
) -> tuple[Value, list[Value]]:
    """Return address and strides of a product, whose strides in scratch are given."""
    b, base = env.b, env.storage.at[c.item, 0]
    if c.item not in env.direct.stores or c.item in env.direct.rounded:
        return base, strides
    output, output_strides = _output_address(env, c, rows)
    both, enabled = zip(output_strides, strides, strict=True), env.direct.enabled
    return b.select(enabled, output, base), [b.select(enabled, x, y) for x, y in both]


def _output_address(
    env: Environment, c: ProductPlan, rows: Sequence[str]
) -> tuple[Value, list[Value]]:
    """Return the address of a task's first output, and its row strides.

    Of several ranges, the one with the task's columns counts.
    """
    b, (first_store, *other_stores) = env.b, env.direct.stores[c.item]
    base, strides = _store_address(env, c, rows, first_store)
    for store in other_stores:
        in_range = _holds_all(env, c, store)
        address, steps = _store_address(env, c, rows, store)
        base = b.select(in_range, address, base)
        strides = [b.select(in_range, x, y) for x, y in zip(steps, strides, strict=True)]
    return base, strides


def _store_address(
    env: Environment, c: ProductPlan, rows: Sequence[str], store: StoreItem
) -> tuple[Value, list[Value]]:
    """Return the address of a store's first output, and its row strides."""
    b, access = env.b, store.access
    origin = env.index(substitute(access.offset, dict.fromkeys((*rows, c.n), 0)), env.top)
    strides = [env.index(coefficient(access.offset, a) or 0, env.top) for a in rows]
    for a, step in zip(rows, strides, strict=True):
        origin = b.add(origin, b.mul(env.start(c.item, a), step))
    column, start = coefficient(access.offset, c.n), env.start(c.item, c.n)
    if column != 1:
        start = b.mul(start, env.index(column or 0, env.top))
    origin = b.add(origin, start)
    return element_address(b, env.frame.buffers[access.buffer], origin, _dtype(env, c)), strides


def _dtype(env: Environment, c: ProductPlan) -> DType:
    """Return the element type of a product's output."""
    return env.frame.dtypes[env.direct.stores[c.item][0].access.buffer]


def run_unless_stored(env: Environment, nest: Nest, run: Callable[[], None]) -> None:
    """Emit a nest, to be skipped where its outputs are already stored."""
    if nest not in env.direct.nests:
        run()
        return
    with env.b.if_then(env.b.not_(env.direct.enabled)):
        run()


def _nests(s: Schedule, stores: Stores) -> Iterator[tuple[Nest, bool]]:
    """Yield every nest, and whether it does nothing but store such products."""
    for nest in s.nests:
        others = nest.saves, nest.reductions, nest.state_updates, nest.scalars, nest.product
        is_only = bool(nest.stores) and not any(others)
        yield nest, is_only and all(_is_among(x, stores.get(x.value, ())) for x in nest.stores)


def _is_among(store: StoreItem, stores: Sequence[StoreItem]) -> bool:
    """Return whether a nest's store is one of a product's stores."""
    return any(x.access == store.access for x in stores)


def stored_products(
    s: Schedule, dtypes: Mapping[str, DType]
) -> Iterator[tuple[Item, tuple[StoreItem, ...]]]:
    """Yield products whose only readers are nests which store them unchanged, with these stores.

    There are several stores where ranges of the columns are separate outputs.
    """
    candidates: Stores = {}
    for c in s.products.values():
        users = [x for x in s.phase.stores if x.value is c.item]
        tiles = c.tile_stores(s.local) if users else None
        if tiles is None or s.region(c.item) is not None:
            continue
        types = {dtypes[x.access.buffer] for x in users}
        if (
            len(types) == 1
            and _are_one_or_ranges(users, c.n, tiles)
            and all(_writes_rows(x, c) and _is_written(c, tiles, *types) for x in users)
        ):
            candidates[c.item] = tuple(users)
    while True:
        store_nests = [n for n, alone in _nests(s, candidates) if alone]
        rejected = [i for i in candidates if not _has_no_other_reader(s, i, store_nests)]
        if not rejected:
            break
        for item in rejected:
            del candidates[item]
    yield from candidates.items()


def _are_one_or_ranges(stores: Sequence[StoreItem], n: str, tiles: TileStores) -> bool:
    """Return whether there is one store, or disjoint column ranges which cover all columns."""
    if len(stores) == 1:
        return stores[0].where is None
    ranges = [stored_range(x) for x in stores]
    if not tiles.in_ranges or any(r is None or r.axis != n for r in ranges):
        return False
    by_end = sorted((r for r in ranges if r is not None), key=lambda r: r.stop is None)
    starts = {r.first for r in by_end}
    # One begins at 0, one has no end, and each of the others begins where one stops.
    stops = {r.stop for r in by_end if r.stop is not None}
    return len(starts) == len(stores) and starts == stops | {0} and by_end[-1].stop is None


def _is_written(c: ProductPlan, tiles: TileStores, dtype: DType) -> bool:
    """Return whether tiles can store sums as a type: their own, or by rounding."""
    rounds = tiles.rounds and dtype.is_float and dtype.compute == c.item.dtype
    return dtype == c.item.dtype or rounds


def _has_no_other_reader(s: Schedule, item: Item, storing: list[Nest]) -> bool:
    """Return whether only these nests read an item, and compute nothing of it."""
    readers = [n for n in s.nests if reads(n, item)]
    if not readers or not all(any(n is h for h in storing) for n in readers):
        return False
    return not any(item in i.args for n in readers for i in n.items)


def _writes_rows(store: StoreItem, c: ProductPlan) -> bool:
    """Return whether a store writes rows in unit steps, at a uniform stride, each once."""
    offset: Index = store.access.offset
    is_broadcast = not c.item.axes.issuperset(axes_of(offset))
    if store.access.limits or is_broadcast:
        return False
    steps = [coefficient(offset, a) for a in (*c.row_axes, c.n)]
    return coefficient(offset, c.result_axis) == 1 and None not in steps
