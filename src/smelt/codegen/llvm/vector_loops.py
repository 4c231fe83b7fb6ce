"""Turn the loops of a nest into those that are printed: vectors, prefetches, offsets.

    each j in from .. to          each j_1 in from .. mid by 64       y[o1 + j_1 : 64] = ..
      y[n*i + j] = ..             each j_2 in mid .. to by 16         y[o1 + j_2 : 16 | prefix(..)]

A nest is a map, whose arrays are read and written element by element along its vectors, or reduces
along them or across its loops.
Which passes run follows from the schedule, and each of them is a function from loops to loops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd

from smelt.codegen.llvm.access.prefetch import PREFETCH_ROWS, is_run
from smelt.codegen.llvm.instructions.indexing import lane_invariant
from smelt.codegen.llvm.instructions.reductions import PAIRED_VECTORS
from smelt.codegen.llvm.loopir import items as ssa
from smelt.codegen.llvm.loopir.items import Access, accesses_of, visited_axes
from smelt.codegen.llvm.loops.distribute import STRIP_ELEMENTS
from smelt.codegen.llvm.loops.poll import POLL_ELEMENTS, is_polled
from smelt.codegen.llvm.loops.unroll_factor import adds_pairs, is_fully_unrolled
from smelt.codegen.llvm.lower_nest import identifier, mode_of
from smelt.codegen.llvm.nests.environment import PACKED, PackedArray, Storage
from smelt.codegen.llvm.nests.nest import Nest, Schedule
from smelt.codegen.llvm.schedule.task_tiling import transpose_side
from smelt.codegen.llvm.schedule.transposed_strip import strip_rows
from smelt.loop import ir as loop
from smelt.loop.ir import CACHE_LINE
from smelt.loop.passes.accumulate import accumulate
from smelt.loop.passes.align_stores import (
    PIECE,
    align_stores,
    cut_tail,
    store_if_aligned,
    store_tile_if_aligned,
)
from smelt.loop.passes.batch_rows import batch_rows
from smelt.loop.passes.branch_stores import branch_stores
from smelt.loop.passes.distribute import distribute
from smelt.loop.passes.group_loads import group_loads
from smelt.loop.passes.hoist import hoist
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.interleave_stores import interleave_stores
from smelt.loop.passes.poll_strips import poll_strips
from smelt.loop.passes.prefetch import (
    prefetch_block,
    prefetch_farthest,
    prefetch_page,
    prefetch_rows,
    prefetch_share,
    prefetch_strips,
    prefetch_written,
)
from smelt.loop.passes.remainder import split_groups
from smelt.loop.passes.reuse_loads import reuse_loads
from smelt.loop.passes.short_rows import masked_rows, short_rows
from smelt.loop.passes.split_tests import extent_of, split_tests, split_vectors
from smelt.loop.passes.store_whole import store_whole
from smelt.loop.passes.transpose_squares import stage_shared, stage_tiles, transpose_squares
from smelt.loop.passes.unroll import unroll
from smelt.loop.passes.unroll_and_jam import jam
from smelt.loop.passes.vectorize import Tail, vectorize
from smelt.loop.walk import Names, fresh, loop_around, loop_over, replace_loop, statements
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass, replace
from smelt.types.dtype import bool_
from smelt.types.expr import Index, add, coefficient, floordiv, maximum, minimum, mul, product, sub

MAX_ALIGNED_VECTORS = 4
"""Maximum vectors of a loop that computes for no longer than memory moves."""
MIN_ITERATIONS = 8
"""Minimum iterations of a loop that begins at a cache line: getting there costs one."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of an array's next row, from `first` on.

    `share` is its elements for each one of this row, and `before` are the elements of this row
    before those of the loop over vectors.
    """

    buffer: str
    first: Index
    share: Fraction
    before: Index


def _has_quotients(nest: Nest) -> bool:
    """Return whether lanes read positions that are not affine along them, such as j//n."""
    moving = [i for i in nest.items if nest.vector in i.axes and i not in nest.transposed]
    indices = [i.index for i in moving if isinstance(i, ssa.IndexValue)]
    accesses = accesses_of(moving)
    indices += [e for a in accesses for e in (a.offset, *(e for e, _ in a.limits))]
    return any(coefficient(e, nest.vector or "") is None for e in indices)


def _permutes(nest: Nest, lanes: int, align: int) -> bool:
    """Return whether lanes of a nest's vectors have no fixed stride: best without masks."""
    v = nest.vector or ""
    offsets = [a.offset for a in accesses_of(nest.items)] + [x.access.offset for x in nest.stores]
    if align % lanes == 0:
        offsets = [lane_invariant(e, v, lanes) for e in offsets]
    return any(coefficient(e, v) is None for e in offsets)


def _scans(nest: Nest) -> list[ssa.Scan]:
    """Return the scans of a nest."""
    return [i for i in nest.items if isinstance(i, ssa.Scan)]


def _step(access: Access, vector: str | None) -> Index | None:
    return coefficient(access.offset, vector or "")


def _past_caches(
    func: loop.Func, s: Schedule, nest: Nest, var: str, wide: int, align: int
) -> loop.Func:
    """Run a nest in vectors that are stored past the caches, in lines or pieces.

    What lanes read that have quotients follows from where vectors begin: they stay there.
    """
    arrays = {identifier(x.access.buffer): x.access.buffer for x in nest.stores}
    sizes = {s.phase.dtypes[name].itemsize for name in arrays.values()}
    if _is_long(nest) or len(sizes) > 1 or _scans(nest) or _has_quotients(nest):
        func, tail = cut_tail(func, var, wide)
        func, main = store_if_aligned(func, var, arrays, PIECE if _is_long(nest) else CACHE_LINE)
    else:
        func, loops = align_stores(func, var, arrays, (wide, s.lanes), MIN_ITERATIONS)
        func = vectorize(func, loops.head, s.lanes, "masked")
        func = vectorize(func, loops.lines, wide, "whole")
        func = vectorize(func, loops.singles, s.lanes, "whole")
        main, tail = (loops.other,), loops.tail
        if len(arrays) > 1:
            func, main = store_if_aligned(func, loops.other, arrays, PIECE)
    for name in main:
        func = vectorize(func, name, wide, "whole", align=align)
    rest: Tail = "mask" if _permutes(nest, s.lanes, align) and wide > s.lanes else "masked"
    return vectorize(func, tail, s.lanes, rest, align=gcd(align, wide))


def _fills_lines(s: Schedule, nest: Nest) -> bool:
    """Return whether a nest stores nothing but full cache lines."""
    if any(x.where is not None or _step(x.access, nest.vector) != 1 for x in nest.stores):
        return False
    sizes = (s.phase.dtypes[x.access.buffer].itemsize for x in nest.stores)
    return all(s.lanes * nest.unroll * size % CACHE_LINE == 0 for size in sizes)


def _is_long(nest: Nest) -> bool:
    """Return whether a body computes for longer than memory moves."""
    return bool(nest.stages) or nest.unroll > MAX_ALIGNED_VECTORS


def in_vectors(
    func: loop.Func,
    s: Schedule,
    nest: Nest,
    var: str,
    shares: Collection[Share] = (),
    cuts: Sequence[int] = (),
    blocks: Mapping[str, Index] | None = None,
    pairs: Collection[str] = (),
    *,
    align: int = 1,
    storage: Storage,
    vector_bytes: int,
    streaming: bool,
    packed: PackedArray | None = None,
    group: int = 0,
    fills: Sequence[Fill] = (),
) -> loop.Func:
    """Run a nest in vectors along its loop over `var`, with prefetches.

    `shares` are parts of the next row that are prefetched meanwhile, `cuts` where stages begin,
    `blocks` the distances from what a stream's block reads of arrays to the next one's, and `pairs`
    arrays of sums that some elements may be added for before they are widened. `group` are the
    lanes of whole vectors before masked ones: rows end at multiples of them, or 0. `align` divides
    the position at which the loop begins.
    """
    row, walk = loop_around(func.body, var), loop_over(func.body, var)
    if packed is not None and packed.row_vectors and row is not None:
        return _in_short_rows(func, s.lanes, row, walk, packed.row_vectors)
    is_short = (walk.low, walk.high) == (0, s.phase.axes[nest.order[-1]]) and is_fully_unrolled(
        s, nest, nest.items
    )
    wide, rest = _widths(s, nest, walk.high if is_short else 0)
    together = jammed_rows(nest) if row is not None else 0
    if together:
        is_short, wide, rest = False, s.lanes, s.lanes
    inner = [t for t in _loops(func) if t not in func.body]
    by_rows = row is not None and _prefetches_rows(s, nest, row, packed)
    before = {t.var for t in _loops(func)} - {var}
    streaming &= bool(nest.stores) and not nest.reductions and not is_short
    streaming &= _fills_lines(s, nest)
    parts: dict[str, int | None] = {t.var: None for t in _loops(func) if t.var == var}
    if not (cuts or is_short or _keeps_starts(nest, packed)):
        func, parts = split_tests(func, var)
    group = group if group < wide else 0
    func = _widen_parts(func, s, nest, parts, (wide, rest, group), align, streaming)
    short = [t.var for t in _loops(func) if t.var not in before] if is_short else []
    full = [t.var for t in _loops(func) if t.step == wide > 1 and t.var not in before]
    for name in full if nest.reductions and not (cuts or is_short) else ():
        func = split_vectors(func, name, extent_of(walk))
    for name in full if cuts and not is_short else ():
        func = distribute(func, name, cuts, STRIP_ELEMENTS)
    if row is not None and (count := _batch(s, nest, storage, vector_bytes)):
        func = batch_rows(func, row.var, count)
    jammed = ""
    if row is not None and together:
        func, jammed = split_groups(func, row.var, together)
    if row is not None and by_rows:
        func = _prefetch_later_rows(func, s, nest, row.var, {jammed: together} if jammed else {})
    if packed is not None and packed.stores_whole:
        func = store_whole(func, PACKED, _zero(packed))
    if packed is not None and packed.prefetch_rows and row is not None:
        func = prefetch_rows(func, row.var, packed.prefetch_rows, level=packed.level)
    if blocks:
        func = prefetch_block(func, blocks)
    if cuts and not is_short and not shares:
        func = prefetch_strips(func, STRIP_ELEMENTS, {*_streamed(nest)})
    if shares and not is_short:
        for x in shares:
            for name, done in _walks(func, wide, walk.low):
                func = prefetch_share(func, name, x.buffer, x.first, x.share, add(x.before, done))
    if nest.reductions and not (shares or by_rows):
        func = _prefetch_pages(func, s, nest)
    if streaming and not _is_long(nest):
        func = prefetch_written(func, {identifier(x.access.buffer) for x in nest.stores})
    func = accumulate(func) if nest.reductions else func
    for name in short:
        func = replace_loop(func, name, lambda t: (replace(t, kind="unroll"),))
    func = unroll(func) if short else func
    func = interleave_stores(group_loads(func))
    for item, loops, whole in fills:
        func = _across(func, s, nest, item, loops, whole=whole)
    if jammed:
        func = jam(hoist_offsets(func), jammed, together, pairs)
    if is_polled(s, nest):
        func = _with_polls(func, inner, wide)
    return func if jammed else hoist_offsets(func)


def _keeps_starts(nest: Nest, packed: PackedArray | None) -> bool:
    """Return whether a loop has to run in vectors from its beginning on.

    The last vector of an operand in groups has the zeros behind the last factor.
    """
    if packed is not None and (packed.width or packed.group is not None):
        return True
    return bool(nest.reductions or nest.state_updates or _scans(nest))


def _prefetches_rows(s: Schedule, nest: Nest, row: loop.For, packed: PackedArray | None) -> bool:
    """Return whether rows that follow are prefetched, element by element."""
    if nest.vector not in s.block or (packed is not None and packed.prefetch_rows):
        return False
    return row.kind == "each" or bool(nest.reductions)


def _zero(packed: PackedArray) -> loop.Const | None:
    """Return what is packed past the last element: zero in the factors of an instruction."""
    if packed.group is None:
        return None
    return loop.Const(-128 if packed.group.left_offset else 0, packed.dtype)


def _widen_parts(
    func: loop.Func,
    s: Schedule,
    nest: Nest,
    parts: Mapping[str, int | None],
    widths: tuple[int, int, int],
    align: int,
    streaming: bool,
) -> loop.Func:
    """Run the parts of a loop in vectors.

    A part with a number has at most so many positions. `widths` are the lanes of whole vectors, of
    those for the remainder, and of whole ones before these, if any.
    """
    wide, rest, group = widths
    lows = {t.var: t.low for t in _loops(func)}
    first = lows[next(iter(parts))]
    for name, most in parts.items():
        start = align if lows[name] == first else 1
        if most is not None and most <= s.lanes:
            func = vectorize(func, name, s.lanes, "masked", align=start)
        elif streaming:
            func = _past_caches(func, s, nest, name, wide, start)
        elif whole := group or _whole_lanes(s, nest, wide, rest, start):
            func = vectorize(func, name, wide, "mask", rest, whole, start)
        elif len(parts) > 1 and wide > s.lanes:
            func = vectorize(func, name, wide, "scalar", align=start)
            func = vectorize(func, name, s.lanes, "mask", align=gcd(start, wide))
        else:
            tail = "mask" if rest > 1 else "scalar"
            func = vectorize(func, name, wide, tail, rest, align=start)
    return func


def _whole_lanes(s: Schedule, nest: Nest, wide: int, rest: int, align: int) -> int:
    """Return the lanes of whole vectors before masked ones, where masks cost permutations."""
    is_map = not nest.reductions and wide > s.lanes == rest
    return s.lanes if is_map and _permutes(nest, wide, align) else 0


def _prefetch_later_rows(
    func: loop.Func, s: Schedule, nest: Nest, row: str, groups: Mapping[str, int]
) -> loop.Func:
    """Prefetch rows that follow; `groups` are loops over so many rows at once."""
    # A task of a single row prefetches none: others come much later.
    few = mul(PREFETCH_ROWS, minimum(sub(s.block.get(nest.order[-2], 2), 1), 1))
    some = {row: few} | {name: max(PREFETCH_ROWS, rows) for name, rows in groups.items()}
    for name, rows in some.items():
        func = prefetch_rows(func, name, rows, _length(s, nest))
    return func


def _prefetch_pages(func: loop.Func, s: Schedule, nest: Nest) -> loop.Func:
    """Prefetch pages of what whole vectors, or masked ones, read as one run."""
    full, masked = (
        {identifier(a.buffer) for a in accesses_of(nest.items) if is_run(s, nest, a, masked=m)}
        for m in (False, True)
    )
    return prefetch_page(func, full, masked)


def without_vectors(func: loop.Func, s: Schedule, nest: Nest) -> loop.Func:
    """Run a nest position by position: all of its loops run in order."""
    inner = [t for t in _loops(func) if t not in func.body]
    func = accumulate(func) if nest.reductions else func
    return hoist_offsets(_with_polls(func, inner, 1) if is_polled(s, nest) else func)


PREFETCH_VECTORS = 4
"""Vectors between what is packed column by column and what is prefetched.

More rows are read side by side than hardware prefetchers follow.
"""


def in_columns(
    func: loop.Func, var: str, lanes: int, packed: PackedArray, tasks: Mapping[str, Index]
) -> loop.Func:
    """Pack in vectors along the outer loop: the inner one shares what they test and gather.

    Two at a time, unless panels are narrower.  `tasks` are the distances to what the next task
    reads of arrays.
    """
    wide = min(packed.width or 2 * lanes, 2 * lanes)
    func = vectorize(func, var, wide, "mask", lanes)
    func = prefetch_farthest(func, {p.name: PREFETCH_VECTORS * wide for p in func.params})
    func = prefetch_farthest(func, tasks)
    return reuse_loads(hoist_offsets(hoist(func)))


def in_rows(
    func: loop.Func, nest: Nest, var: str, lanes: int, align: int, stores_whole: Collection[str]
) -> loop.Func:
    """Run a nest in whole vectors and a masked one.

    Vectors begin at multiples of `align`; those of the arrays `stores_whole` are stored whole.
    """
    func = vectorize(func, var, lanes, "mask", align=align)
    for name in stores_whole:
        func = store_whole(func, name)
    if any(s.where is not None for s in nest.stores):
        *_, tail = _loops(func)
        on = tail.body[0]
        assert isinstance(on, loop.Let), on
        func = branch_stores(func, on.name)
    return hoist_offsets(interleave_stores(group_loads(func)))


def _in_short_rows(
    func: loop.Func, lanes: int, row: loop.For, walk: loop.For, counts: Sequence[int]
) -> loop.Func:
    """Pack rows in masked vectors that are stored whole: so many of them, or any number.

    Rows of constant length have one version.
    """
    func = group_loads(store_whole(masked_rows(func, row.var, lanes), PACKED))
    shorts = [hoist_offsets(hoist(short_rows(func, lanes, n))) for n in counts]
    body = hoist_offsets(func).body if len(counts) > 1 else shorts[0].body
    for n, short in zip(counts[::-1], shorts[::-1], strict=True) if len(counts) > 1 else ():
        fits = loop.Apply("le", (loop.position(sub(walk.high, walk.low)), loop.position(n * lanes)))
        names = Names(replace(short, body=(*short.body, *body)))
        body = (loop.If(fits, short.body, fresh(body, names)),)
    return replace(func, body=body)


JAM_ROWS = 8
"""Rows taken together for a single reduction: their code is unrolled."""
MAX_JAM_CYCLES = 8.0
"""Maximum cycles for one vector of an element whose latency matters."""


def jammed_rows(nest: Nest) -> int:
    """Return how many rows states in arrays take at once; 0 for one.

    A row's step reads what the previous row's step wrote some cycles ago: store-to-load latency. So
    cheap elements of some rows, in their order, are combined with a state that is read once.
    """
    others = nest.saves or nest.stores or nest.state_updates or nest.scalars or nest.transposed
    if others or nest.stages or nest.packed or not nest.reductions or len(nest.order) < 2:
        return 0
    row, vector = nest.order[-2:]
    if any(row in f.axes or vector not in f.axes for f in nest.reductions):
        return 0
    if any(isinstance(i, (ssa.Scan, ssa.StateRead)) for i in nest.items):
        return 0
    if sum(SCALARS[i.op].cost for i in nest.items if isinstance(i, ssa.Operation)) > MAX_JAM_CYCLES:
        return 0
    return 1 << max(JAM_ROWS // len(nest.reductions), 2).bit_length() - 1


def _length(s: Schedule, nest: Nest) -> Index:
    """Return the elements between rows of arrays, if masked vectors of them follow one another."""
    return loop.UNKNOWN if s.products else s.phase.axes[nest.order[-1]]


def _with_polls(func: loop.Func, inner: Sequence[loop.For], wide: int) -> loop.Func:
    """Poll in the outermost loops; `inner` were those inside before vectors."""
    elements = product(sub(t.high, t.low) for t in inner)
    for t in [*_outermost(func.body)]:
        if inner or (isinstance(t.step, int) and t.step >= wide):
            steps = floordiv(POLL_ELEMENTS, add(mul(elements, t.step), 1))
            func = poll_strips(func, t.var, mul(t.step, maximum(steps, 1)))
    return func


def _outermost(body: Sequence[loop.Statement]) -> Iterator[loop.For]:
    for s in body:
        if isinstance(s, loop.For):
            yield s
        elif isinstance(s, loop.If):
            yield from _outermost((*s.then, *s.other))


def _loops(func: loop.Func) -> Iterator[loop.For]:
    return (t for t in statements(func.body) if isinstance(t, loop.For))


def _streamed(nest: Nest) -> Iterator[str]:
    """Yield the arrays that a nest loads element by element along its vectors."""
    return (identifier(a.buffer) for a in accesses_of(nest.items) if _step(a, nest.vector) == 1)


def _walks(func: loop.Func, wide: int, low: Index) -> list[tuple[str, Index]]:
    """Return the loops over full vectors, and how far from `low` each begins.

    Of the stages of a strip only the first.
    """
    strips = [t for t in _loops(func) if t.step == STRIP_ELEMENTS]
    stages = [[s for s in t.body if isinstance(s, loop.For)] for t in strips]
    others = {s.var for x in stages for s in x[1:]}
    full = (t for t in _loops(func) if t.step == wide and t.var not in others)
    return [(t.var, sub(t.low, low)) for t in full]


def _widths(s: Schedule, nest: Nest, extent: Index) -> tuple[int, int]:
    """Return the lanes of full vectors and of those behind them.

    `extent` is that of rows of a few vectors. The last one of a row that is not reduced has as few
    lanes as hold the rest. Where a stream continues a sum, all vectors have as many lanes: the
    order of additions then does not change if positions before or after add nothing.
    """
    lanes, wide = s.lanes, s.lanes * nest.unroll
    if extent == 0:
        visited = visited_axes(s.phase.segments[nest.time])
        continued = nest.vector in visited and any(f.row.wide for f in nest.reductions)
        return wide, wide if continued else lanes
    assert isinstance(extent, int)
    if nest.reductions:
        pairs = nest.unroll % PAIRED_VECTORS == 0 and all(
            adds_pairs(f, nest) for f in nest.reductions
        )
        return lanes * PAIRED_VECTORS if pairs else lanes, lanes
    return lanes, 1 << ((extent % lanes or lanes) - 1).bit_length()


def _rows_together(s: Schedule, nest: Nest, storage: Storage, item: ssa.Reduction) -> int:
    """Return how many rows of results wait in scratch; 0 if that varies."""
    if len(nest.order) < 2 or s.materialised.get(item) != (nest.order[-2],):
        return 0
    extent = storage.extent(item, nest.order[-2])
    return extent if isinstance(extent, int) else 0


def _batch(s: Schedule, nest: Nest, storage: Storage, vector_bytes: int) -> int:
    """Return of how many rows the reductions end together; 0 if each row ends alone."""
    counts: list[int] = []
    for item in nest.reductions:
        accumulator = storage.accumulator_of(item)
        parts = accumulator.parts
        rows = min(s.lanes, vector_bytes // max(d.itemsize for d in parts))
        single = item.row.positional and mode_of(s, nest, item, accumulator) == "own"
        if single or bool_ in parts or not 2 <= rows <= _rows_together(s, nest, storage, item):
            return 0
        counts.append(rows)
    return min(counts, default=0)


@dataclass(frozen=True, slots=True)
class Tile:
    """The array that a load is transposed in, and the loops around it.

    `at` is the index that is loaded, `pitch` the elements between rows.
    """

    name: str
    loops: tuple[str, str]
    at: Index
    pitch: Index


PREFETCH_SQUARES = 4
"""Squares between what is transposed and what is prefetched, where a stream's rows are walked.

These are read only a few times; the distance covers the latency of L3.
"""
MAX_WORK = 16
"""Maximum instructions per vector: the body is unrolled for each column of a square."""


Fill = tuple[ssa.Load, tuple[str, str], bool]
"""A load that is transposed, the loops that move what it reads, and whether in whole squares."""


def in_tiles(
    func: loop.Func, s: Schedule, nest: Nest, tiles: Mapping[ssa.Load, Tile], *, streaming: bool
) -> tuple[loop.Func, list[Fill]]:
    """Copy what some loads of a nest read into tiles before its two innermost loops.

    Returns the loops that copy too.  What is computed of a single array is stored past the caches
    as it is transposed, where that pays and lines are whole.
    """
    (row, column), *_ = (t.loops for t in tiles.values())
    arrays = {(identifier(i.access.buffer), t.at): (t.name, t.pitch) for i, t in tiles.items()}
    fills: list[Fill] = []
    if streaming and _is_plain(s, nest):
        written = {identifier(x.access.buffer) for x in nest.stores}
        func, aligned = store_tile_if_aligned(func, row, column, s.lanes, written)
        fills.append((nest.transposed[0], aligned, True))
    func, copies = stage_tiles(func, row, column, arrays)
    fills += [(i, copies[t.name], False) for i, t in tiles.items() if t.name in copies]
    if not nest.strips:
        func, walks = stage_shared(func, row, column, transpose_side(s.lanes))
        for walk in walks:
            func = vectorize(func, walk, s.lanes, "mask")
    return func, fills


def in_squares(func: loop.Func, s: Schedule, nest: Nest, tile: Tile) -> loop.Func:
    """Pack a single array as it is transposed, in squares that are stored whole."""
    streamed = s.phase.segments[nest.time] is not None
    ahead = PREFETCH_SQUARES if streamed else 0
    return hoist_offsets(transpose_squares(func, *tile.loops, s.lanes, ahead=ahead))


def _across(
    func: loop.Func,
    s: Schedule,
    nest: Nest,
    item: ssa.Load,
    loops: tuple[str, str],
    *,
    whole: bool,
) -> loop.Func:
    """Transpose a tile, whole cache lines of all columns after one another."""
    line = CACHE_LINE // s.phase.dtypes[item.access.buffer].itemsize
    run, tile = max(line, s.lanes), transpose_side(s.lanes)
    if nest.strips:
        tile = max(strip_rows(item.dtype, s.lanes), line)
    return transpose_squares(func, *loops, s.lanes, run=run, tile=tile, whole=whole)


def _is_plain(s: Schedule, nest: Nest) -> bool:
    """Return whether to store a single array's results as it is transposed.

    Little is computed, and vectors fill cache lines, which are stored past the caches.
    """
    if nest.strips or len(nest.transposed) != 1 or nest.stages or nest.reductions or nest.saves:
        return False
    inner = [i for i in nest.items if nest.vector in i.axes]
    work = sum(SCALARS[i.op].cost if isinstance(i, ssa.Operation) else 1 for i in inner)
    # Stores are checked at two rows, which determine the alignment of all.
    full_lines = all(
        x.where is None
        and coefficient(x.access.offset, nest.vector or "") == 1
        and coefficient(x.access.offset, nest.order[-2]) is not None
        and s.phase.dtypes[x.access.buffer].itemsize * s.lanes == CACHE_LINE
        for x in nest.stores
    )
    return full_lines and not nest.transposed[0].access.limits and work <= MAX_WORK
