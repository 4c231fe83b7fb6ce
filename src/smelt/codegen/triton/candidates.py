"""List the schedules of a launch that are worth comparing, the fastest predicted first.

The blocks are where published tuners begin: Inductor's for maps, rows and products, FlexAttention's
for streams with contractions. Which of them fits is known after compiling: `select` asks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.backend.gpu import KernelTime
from smelt.codegen.triton.block_axes import (
    dots_of,
    has_long_axes,
    power_of_two,
)
from smelt.codegen.triton.device_limits import DeviceLimits, DeviceRates
from smelt.codegen.triton.epilogue_halves import divided_launch
from smelt.codegen.triton.flat_grid import flat_grid, flat_rows
from smelt.codegen.triton.launch_time import (
    block_count,
    launch_time,
    loop_shared_bytes,
    reread_bytes,
)
from smelt.codegen.triton.launch_work import LaunchWork, launch_work
from smelt.codegen.triton.matrix_batches import matrix_batches
from smelt.codegen.triton.pack_operands import pack_operands
from smelt.codegen.triton.schedule import (
    MIN_DOT,
    Policy,
    Schedule,
    choose_schedule,
    is_atomic,
    least_dot,
    nested_streams,
    spread_lanes,
    stream_lanes,
)
from smelt.codegen.triton.shared_divisors import share_divisors
from smelt.codegen.triton.source import divide, with_loops
from smelt.codegen.triton.tensor_copies import copied_loads, copied_stores
from smelt.codegen.triton.vector_sums import vector_sums
from smelt.codegen.triton.widen_columns import has_several_rows
from smelt.kernel.ir import Block, Kernel
from smelt.kernel.transform.block import in_blocks
from smelt.kernel.walk import Axes, axes_of_body, axes_of_value, loads, stores
from smelt.machine.target import CACHE_SHARE
from smelt.ops.contract import bare_axis
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, i8, u8
from smelt.types.expr import evaluate

MAX_CANDIDATES = 8
FASTEST_FORMS = 4
"""Forms of the fastest tile of a product among the candidates; other tiles have one."""
LOOPED_ROW = 1 << 12
"""Minimum elements of a value for which loops over the row are a candidate."""
LOOPED_COLUMN = 1 << 9
"""The same for columns: a program that has all of long ones has few neighbours."""
MAP_BLOCKS = ((512, 4), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (256, 4))
"""Positions of a program of a map, and warps."""
TILES = ((64, 64, 8), (32, 64, 4), (32, 64, 8), (32, 32, 4))
"""Positions of two axes that are contiguous in different arrays, and warps: whole sectors each."""
WHOLE_BLOCKS = 2048
"""Positions that all blocks of a map divide."""
ALIGNED_ELEMENTS = 16
"""Elements whose addresses are multiples of 16 bytes in all types."""
MAX_ROW_WARPS = 32
"""Warps of a program that has the threads of a processor, and so enough bytes in flight for it."""
MAX_PASS_WARPS = 16
"""Maximum warps of passes in steps of one."""
PASS_BLOCKS = ((4096, 8), (8192, 16), (16384, 32), (4096, 4), (2048, 4), (1024, 4))
"""Elements of a step of passes over a row, and warps.

A processor holds one program of 32 warps, and the shared cache the rows of so few programs."""
COLUMN_TILES = ((64, 16), (32, 16), (32, 8), (16, 8), (16, 4), (8, 8), (8, 4))
"""Neighbouring columns of a program that has all of each, and warps: sectors are whole."""
PAIR_TILES = ((16, 64), (16, 32), (8, 32), (8, 16), (4, 16))
"""Positions of two axes of a program that reduces something of each pair along another one."""
ROW_BLOCKS = (4, 8, 16)
"""Rows of a program that pass over the same elements."""
PAIR_ELEMENTS = 32
"""Elements of a thread that has all positions along which such pairs are reduced."""
DOUBLE_ELEMENTS = 16
"""Maximum float64 elements of a product's tile in a thread: assemblers take minutes for more."""
SMALL_ARRAYS = 16
"""Arrays of so many in the bytes of a launch decide no tile: caches hold them."""
REGISTER_SHARE = 2
"""A kernel is also compared in launches that need one of so many equal parts of the registers."""
MIN_SPLIT = 4
"""Minimum blocks of an axis for those that no mask cuts to have a loop of their own."""
MIN_STAGES = 2
"""Stages of a loop that loads one block ahead."""
GROUPED_ROWS = 8
"""Blocks of rows that processors take together, as Triton's tutorial of products has."""
GROUP_WARPS = 4
"""Warps that tensor cores of Hopper take an instruction from."""
MIN_GROUPED_ROWS = 128
"""Rows of a block that two groups of warps halve: an instruction has 64."""
WIDE_ELEMENTS = 128
"""Minimum accumulators of a thread whose epilogue is also compared in two halves."""
MAX_HELD_ELEMENTS = 128
"""Elements of a row that a thread has in registers, of 255."""
STEP_ROWS = (16, 32)
"""Rows of a program whose states are the matrices that its steps multiply."""
STATE_COLUMNS = (4, 8, 16, 32, 64, 128)
"""Neighbouring columns whose states, with all of another axis, a program carries over steps."""
STATE_ELEMENTS = 16
"""Elements of such states in a thread: few threads wait for one another in each step."""
SEVERAL_ROWS = 1024
"""Longest row of which a program may have several."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A launch with the loops it has, a schedule of it, and its predicted time.

    `lanes` are those of every axis that has several. The time is that with all arrays in main
    memory.
    """

    launch: Kernel
    schedule: Schedule
    lanes: Mapping[str, int]
    time: KernelTime = KernelTime()
    work: LaunchWork | None = None
    """What its launch computes and moves; None for a table of arrays."""

    @property
    def predicted_ns(self) -> float:
        """The predicted nanoseconds."""
        return self.time.total

    def time_of(self, device: DeviceRates, cached: Collection[str]) -> KernelTime:
        """Return the time with the arrays of parameters `cached` in the shared cache."""
        if not cached or self.work is None:
            return self.time
        return launch_time(self.work, self.schedule, self.lanes, self.warps, device, cached)

    @property
    def blocks(self) -> str:
        """The schedule in words."""
        schedule = self.schedule
        whole = {a: n for a, n in self.lanes.items() if a in schedule.whole}
        parts = [f"{a} {n}" for a, n in self.lanes.items() if a in schedule.grid and n > 1]
        parts += [f"{a} whole in {n}" for a, n in whole.items()]
        parts += [f"{a} looped by {n}" for a, n in self.lanes.items() if a in schedule.streams]
        parts.append(f"{self.warps} warp{'s' * (self.warps > 1)}")
        if schedule.splits_loops:
            parts.append("masks in cut blocks only")
        if schedule.copied:
            parts.append("tensor copies and stores" if schedule.stored else "tensor copies")
        if schedule.programs is not None:
            parts.append(f"{schedule.programs} persistent programs")
        if schedule.halved:
            parts.append("epilogue in halves")
        if schedule.specialised:
            parts.append("specialised warps")
        if schedule.streams:
            parts.append(f"{schedule.stages} stage{'s' * (schedule.stages > 1)}")
        return ", ".join(parts)

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.schedule.warps_of(math.prod(self.lanes.values()))


def candidates(
    kernel: Kernel,
    sizes: Mapping[str, int],
    device: DeviceRates,
    policy: Policy,
    of_call: Mapping[str, int] | None = None,
) -> tuple[tuple[Candidate, ...], ...]:
    """Return at most 8 candidates for every launch of a kernel, the fastest predicted first.

    They are compared at `sizes`; `of_call`, the same without other ones, decides whether rows are
    aligned. Raises DeviceKernelError for a kernel that is not printed.
    """
    of_call = sizes if of_call is None else of_call
    policy = replace(policy, has_matrix_units=device.has_matrix_units)
    kernel = share_divisors(kernel) if policy.math == "fast" else kernel
    registers = device.limits.registers
    whole = dict.fromkeys(
        divide(kernel, sizes, policy, n, device.processors)
        for n in (registers, registers // REGISTER_SHARE)
    )
    takes_tf32 = device.tf32_tflops > 0 and device.limits.has_tensor_copies
    ordered = (i8, u8, f32) if policy.products == "narrow" and takes_tf32 else (i8, u8)
    packed = (
        tuple(x for k in launches for x in pack_operands(k, sizes, transposed))
        for launches in whole
        for transposed in ((), ordered)
    )
    divisions = dict.fromkeys((*whole, *packed))
    every = (
        tuple(
            _of_launch(_forms(k, sizes, of_call, policy), sizes, of_call, device, policy)
            for k in launches
        )
        for launches in divisions
    )
    return min(every, key=_total_ns)


def _forms(
    launch: Kernel, sizes: Mapping[str, int], of_call: Mapping[str, int], policy: Policy
) -> Iterable[Kernel]:
    """Return a launch with the loops and lanes that are worth comparing."""
    whole = with_loops(launch, sizes)
    lanes = LOOPED_COLUMN if _reads_columns(whole) else LOOPED_ROW
    row = with_loops(launch, sizes, lanes) if has_long_axes(launch, sizes, lanes) else whole
    forms = (
        vector_sums(whole),
        *_with_flat(whole, of_call),
        _with_matrices(whole, sizes, policy),
        flat_rows(whole, sizes),
        _with_rows(whole, sizes, policy),
        *(_with_flat(row, of_call) if row is not whole else ()),
    )
    return dict.fromkeys(f for f in forms if f is not None)


def _reads_columns(launch: Kernel) -> bool:
    """Return whether a launch reduces or scans columns of an array."""
    grid = [b.axis for b in launch.grid if isinstance(b, Block)]
    if not grid or len(launch.axes) == len(grid) or dots_of(launch.body):
        return False
    last = grid[-1]
    return any(len(x.index) > 1 and bare_axis(x.index[-1]) == last for x in loads(launch))


def _total_ns(every: Iterable[Sequence[Candidate]]) -> float:
    """Return the time of the best candidates of all launches."""
    return sum(of_launch[0].predicted_ns for of_launch in every)


def _with_flat(launch: Kernel, of_call: Mapping[str, int]) -> tuple[Kernel, ...]:
    """Return a launch, and the same with its grid merged into one axis.

    Only the launch where blocks end with its last axis. Of equals the first one is chosen: rows of
    odd lengths begin anywhere, a merged axis begins with its array.
    """
    flat = flat_grid(launch)
    if flat is None:
        return (launch,)
    last = launch.grid[-1]
    assert isinstance(last, Block)
    extent = evaluate(launch.axis(last.axis).extent, of_call)
    if extent and extent % WHOLE_BLOCKS == 0:
        return (launch,)
    return (flat, launch) if extent % ALIGNED_ELEMENTS else (launch, flat)


def _with_matrices(launch: Kernel, sizes: Mapping[str, int], policy: Policy) -> Kernel:
    """Return a launch with one index along grid axes that keep its contractions from matrices.

    An unchanged launch if its contractions are of matrices, or never are.
    """
    result = launch
    if not dots_of(launch.body):
        return launch
    for block in launch.grid:
        if choose_schedule(result, sizes, policy).has_matrices:
            return result
        grid = tuple(replace(b, size=1) if b == block else b for b in result.grid)
        result = replace(result, grid=grid)
    return result if choose_schedule(result, sizes, policy).has_matrices else launch


def _with_rows(launch: Kernel, sizes: Mapping[str, int], policy: Policy) -> Kernel:
    """Return a launch with lanes along a grid axis that make its contractions matrices.

    Its operands have one index along this axis, and states that vary along it are declared with
    it. An unchanged launch if there is no such axis.
    """
    dots, names = dots_of(launch.body), axes_of_body(launch.body)
    if not dots or choose_schedule(launch, sizes, policy).has_matrices:
        return launch
    factors = [axes_of_value(v, names) for d in dots for v in (d.left, d.right)]
    for block in launch.grid:
        if not isinstance(block, Block) or block.size != 1:
            continue
        if not any(block.axis in axes for axes in factors):
            continue
        wide = in_blocks(launch, {block.axis: MIN_DOT})
        is_possible = has_several_rows(wide, block.axis)
        if is_possible and choose_schedule(wide, sizes, policy).has_matrices:
            return wide
    return launch


def _of_launch(
    forms: Iterable[Kernel],
    sizes: Mapping[str, int],
    of_call: Mapping[str, int],
    device: DeviceRates,
    policy: Policy,
) -> tuple[Candidate, ...]:
    """Return the candidates of one launch, whose forms loop over other axes.

    A schedule of which no processor holds a program is none, unless there is no other. Specialised
    warps come last: a race is to compare their results and times first. The sizes
    of a family's members are known to its launch alone: it has one schedule.
    """
    result: list[Candidate] = []
    seen: set[str] = set()
    for launch in forms:
        if any(p.each for p in (*launch.inputs, *launch.outputs)):
            return (Candidate(launch, choose_schedule(launch, None, policy), {}),)
        base = choose_schedule(launch, sizes, policy)
        extents = {a.name: int(evaluate(a.extent, sizes)) for a in launch.axes}
        work = launch_work(launch, sizes, policy)
        every = (
            (launch, v)
            for s in _schedules(launch, base, extents, device, work)
            for v in _product_forms(launch, s, extents, of_call, device, work)
        )
        batches = matrix_batches(launch, base, extents, work, device.limits.lanes)
        for printed, wished in (*every, *batches, (launch, base)):
            lanes = wished.lanes(extents)
            schedule = _with_stages_that_fit(wished, work, lanes, device.limits)
            one = Candidate(printed, schedule, lanes, work=work)
            if one.blocks in seen:
                continue
            seen.add(one.blocks)
            time = launch_time(work, schedule, lanes, one.warps, device)
            result.append(replace(one, time=time))
    result = [c for c in result if c.time.fits] or result[-1:]
    result.sort(key=lambda c: c.predicted_ns)
    chosen = tuple(_varied(result))[:MAX_CANDIDATES]
    return tuple(sorted(chosen, key=lambda c: bool(c.schedule.specialised)))


def _with_stages_that_fit(
    schedule: Schedule, work: LaunchWork, lanes: Mapping[str, int], limits: DeviceLimits
) -> Schedule:
    """Return a schedule that loads as far ahead as shared memory allows.

    Where the block ahead waits in registers, two stages load it behind the arithmetic; elsewhere
    fewer stages than the tile's would not, and the tile is not a candidate.
    """
    least = MIN_STAGES if limits.stages_in_registers else schedule.stages
    while (
        schedule.stages > least
        and loop_shared_bytes(work, schedule, lanes, limits) > limits.shared_bytes
    ):
        schedule = replace(schedule, stages=schedule.stages - 1)
    return schedule


def _varied(every: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield candidates with one form of a tile, for small tiles among the first.

    Where a long epilogue spills the registers of a tile, it does so in most forms.
    """
    forms: dict[object, int] = {}
    for c in every:
        schedule = c.schedule
        tile = (*c.lanes.items(), schedule.splits_loops, schedule.halved)
        if c.work is None or not _is_product(c.work, schedule):
            tile = (*tile, c.warps, schedule.stages, schedule.programs)
        count = forms.setdefault(tile, 0)
        if count < (FASTEST_FORMS if tile == next(iter(forms)) else 1):
            forms[tile] += 1
            yield c


def _schedules(
    launch: Kernel,
    base: Schedule,
    extents: Mapping[str, int],
    device: DeviceRates,
    work: LaunchWork,
) -> Iterator[Schedule]:
    """Yield schedules of a launch with its loops, without the one by fixed rules."""
    if base.has_matrices:
        yield from _tiles(launch, base, extents, device, work)
    elif dots_of(launch.body) or (any(s.join for s in stores(launch)) and not is_atomic(launch)):
        return
    elif base.streams:
        for schedule in _passes(launch, base, extents, work):
            yield schedule
            yield from _with_cached_rows(schedule, extents, device, work)
    elif base.whole:
        yield from _rows(base, extents, work)
    elif base.grid:
        yield from _maps(base, extents, work)


# ---- maps ----------------------------------------------------------------------------------------


def _maps(base: Schedule, extents: Mapping[str, int], work: LaunchWork) -> Iterator[Schedule]:
    """Yield schedules of maps: blocks of neighbours, and tiles of two axes that are contiguous.

    A transposed array is contiguous along another axis than the result.
    """
    last = list(base.grid)[-1]
    blocks: list[tuple[dict[str, int], int]] = [
        (spread_lanes(base.grid, extents, block), warps) for block, warps in MAP_BLOCKS
    ]
    for axis in (a for a in base.grid if a in _contiguous(work) - {last}):
        blocks += [
            (spread_lanes(base.grid, extents, m * n, {last: n, axis: m}), warps)
            for m, n, warps in TILES
        ]
    for grid, warps in blocks:
        each = max(math.prod(grid.values()) // (32 * warps), 1)
        yield replace(base, grid=grid, warps=warps, reason=f"{each} elements a thread")


def _contiguous(work: LaunchWork) -> Axes:
    """Return the axes along which large arrays are contiguous."""
    large = (x for x in work.accesses if work.bytes_of[x.param] * SMALL_ARRAYS > work.bytes)
    return Axes().union(*(x.last for x in large))


# ---- rows and passes over rows -------------------------------------------------------------------


def _rows(base: Schedule, extents: Mapping[str, int], work: LaunchWork) -> Iterator[Schedule]:
    """Yield schedules of whole rows: several short ones a program, many warps for a long one."""
    row = 1
    for axis, least in base.whole.items():
        row *= power_of_two(max(extents[axis], least))
    if base.grid and row <= SEVERAL_ROWS:
        for rows in dict.fromkeys((max(min(SEVERAL_ROWS // row, 8), 1), 4, 2)):
            if rows * row <= SEVERAL_ROWS:
                grid = spread_lanes(base.grid, extents, rows) if rows > 1 else base.grid
                shared = f"{rows} short rows" if rows > 1 else "one short row"
                reason = f"{shared} a program, no barriers"
                yield replace(base, grid=grid, warps=1, reason=reason)
        for rows, warps in ((SEVERAL_ROWS // row, 4), (SEVERAL_ROWS // row // 2, 4)):
            if rows > 8:
                grid = spread_lanes(base.grid, extents, rows)
                yield replace(base, grid=grid, warps=warps, reason=f"{rows} short rows a program")
    if base.grid and _contiguous(work) & {list(base.grid)[-1]}:
        for columns, warps in COLUMN_TILES:
            if 4 <= columns * row // (32 * warps) <= 64:
                grid = spread_lanes(base.grid, extents, columns)
                yield replace(base, grid=grid, warps=warps, reason=f"{columns} columns a program")
    if len(base.whole) == 1:
        for tile in _pair_tiles(base, extents, work, *base.whole):
            lanes = math.prod(tile.values()) * row
            warps = max(min(lanes // PAIR_ELEMENTS // 32, 16), 1)
            if lanes <= 64 * 32 * warps:
                reason = f"pairs of {' x '.join(str(n) for n in tile.values() if n > 1)}"
                yield replace(base, grid=tile, warps=warps, reason=reason)
    grid = dict.fromkeys(base.grid, 1)
    for warps in (1, 2, 4, 8, 16, 32):
        each = row // (32 * warps)
        if 4 <= each <= 64 or (warps == 1 and each < 4):
            reason = f"the row in registers, {max(each, 1)} elements a thread"
            yield replace(base, grid=grid, warps=warps, reason=reason)


def _passes(
    launch: Kernel, base: Schedule, extents: Mapping[str, int], work: LaunchWork
) -> Iterator[Schedule]:
    """Yield schedules of loops over a row's blocks, or over those of neighbouring columns.

    A loop around them takes its rows one by one.
    """
    axes = [a for a, n in stream_lanes(launch).items() if n > 1]
    around = [a for a, inside in nested_streams(launch).items() if axes and axes[-1] in inside]
    parts = math.prod(extents[p] for a in axes[-1:] for p in work.parts.get(a, ()))
    visited = math.ceil(extents[axes[-1]] / max(parts, 1)) if axes else 1
    if base.whole and not axes:
        row = math.prod(replace(base, grid={}).lanes(extents).values())
        for warps in (4, 8, 16):
            reason = f"one row after another in registers, {row // (32 * warps)} elements a thread"
            if 4 <= row // (32 * warps) <= MAX_HELD_ELEMENTS:
                yield replace(base, grid=dict.fromkeys(base.grid, 1), warps=warps, reason=reason)
    free = {a for a in base.grid if axes and has_several_rows(launch, a)}
    tiles = (
        t
        for looped in axes[-1:]
        for t in (*_pair_tiles(base, extents, work, looped), *_row_blocks(base, work, looped))
        if free.issuperset(a for a, n in t.items() if n > 1)
    )
    for grid in (*_pass_grids(base, has_blocks=bool(axes)), *tiles):
        if not axes:
            lanes = math.prod(replace(base, grid=grid).lanes(extents).values())
            for warps in dict.fromkeys((min(lanes // 32, 4), lanes // STATE_ELEMENTS // 32)):
                if warps <= MAX_PASS_WARPS:
                    reason = f"passes in steps of one, {lanes} columns at a time"
                    yield replace(base, grid=grid, warps=max(warps, 1), reason=reason)
            continue
        held = replace(base, grid=grid, streams={}).lanes(extents)
        looped = [axes_of for axes_of in work.values if axes[-1] in axes_of]
        rest = max((math.prod(held.get(a, 1) for a in axes_of) for axes_of in looped), default=1)
        for block, warps in PASS_BLOCKS:
            lanes = max(block // rest, 1)
            if lanes <= power_of_two(visited):
                each = max(lanes * rest // (32 * warps), 1)
                streams = {**base.streams, **dict.fromkeys(around, 1), axes[-1]: lanes}
                reason = f"passes over blocks, {each} elements a thread"
                yield replace(base, grid=grid, streams=streams, warps=warps, reason=reason)


def _with_cached_rows(
    schedule: Schedule, extents: Mapping[str, int], device: DeviceRates, work: LaunchWork
) -> Iterator[Schedule]:
    """Yield passes in as few programs as the shared cache holds rows for.

    The first pass reads a row from main memory, which some of the processors keep busy.
    """
    rows = block_count(schedule, extents)
    nbytes = sum(reread_bytes(work, schedule).values())
    if schedule.warps != MAX_ROW_WARPS or schedule.blocked or not nbytes * rows:
        return
    most = int(CACHE_SHARE * device.cache_bytes / nbytes)
    if 0 < most < min(device.processors, rows):
        programs = math.ceil(rows / math.ceil(rows / most))
        reason = f"{schedule.reason}, one row after another, so that a cache holds them"
        yield replace(schedule, programs=programs, reason=reason)


def _pair_tiles(
    base: Schedule, extents: Mapping[str, int], work: LaunchWork, reduced: str
) -> Iterator[dict[str, int]]:
    """Yield tiles of two axes of the grid whose pairs are reduced together.

    Each of both sides is read without the axis of the other, so that a tile reads it once.
    """
    last = list(base.grid)[-1] if base.grid else ""
    sides = [x.axes for x in work.accesses if reduced in x.axes]
    for axis in base.grid:
        if any(axis in s and last not in s for s in sides) and any(
            last in s and axis not in s for s in sides
        ):
            for rows, columns in PAIR_TILES:
                tile = {axis: rows, last: columns}
                fitting = {a: min(n, power_of_two(extents[a])) for a, n in tile.items()}
                yield {**dict.fromkeys(base.grid, 1), **fitting}


def _row_blocks(base: Schedule, work: LaunchWork, looped: str) -> Iterator[dict[str, int]]:
    """Yield blocks of rows that pass over the same elements, read once for all."""
    last = list(base.grid)[-1] if base.grid else ""
    passed = [x.axes for x in work.accesses if looped in x.axes]
    if last and any(last not in axes for axes in passed):
        for rows in ROW_BLOCKS:
            yield {**dict.fromkeys(base.grid, 1), last: rows}


def _pass_grids(base: Schedule, *, has_blocks: bool) -> Iterator[dict[str, int]]:
    """Yield the lanes of the grid: one row a program, or a few columns."""
    if has_blocks:
        yield dict.fromkeys(base.grid, 1)
    last = list(base.grid)[-1] if base.grid else None
    if last is not None and base.grid[last] > 1:
        for columns in (32, 64, 128) if has_blocks or not base.whole else STATE_COLUMNS:
            yield {**base.grid, last: columns}


# ---- contractions --------------------------------------------------------------------------------

Tile = tuple[int, int, int, int, int]
"""Rows, columns, summed elements of a step, warps, stages."""

NARROW_TILES: Sequence[Tile] = (
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 64, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (16, 64, 128, 4, 4),
)
"""Tiles of operands with 8 or 16 bits, which tensor cores multiply."""
FLOAT32_TILES: Sequence[Tile] = (
    (128, 128, 16, 8, 3),
    (128, 64, 32, 8, 3),
    (64, 128, 32, 8, 3),
    (64, 64, 32, 8, 3),
    (64, 64, 32, 4, 3),
    (64, 64, 16, 8, 2),
    (32, 64, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (16, 64, 32, 4, 3),
)
ROW_TILE_ELEMENTS = 64
"""Maximum elements of a result of a thread whose program has whole rows, which it reads again."""
NARROW_STREAMS: Sequence[Tile] = (
    (128, 64, 64, 8, 3),
    (128, 64, 64, 8, 2),
    (128, 128, 64, 8, 2),
    (128, 64, 64, 4, 3),
    (128, 128, 64, 4, 2),
    (64, 64, 64, 4, 3),
    (128, 32, 64, 8, 2),
    (64, 64, 64, 8, 2),
    (64, 128, 64, 4, 2),
    (64, 32, 64, 4, 3),
    (64, 16, 64, 8, 2),
    (32, 16, 64, 4, 2),
    (16, 64, 64, 4, 3),
)
"""Rows in the grid, columns of a step of the stream; as FlexAttention begins."""
FLOAT32_STREAMS: Sequence[Tile] = (
    (64, 32, 32, 4, 2),
    (64, 64, 32, 8, 2),
    (128, 32, 32, 8, 2),
    (32, 64, 32, 4, 2),
    (32, 32, 32, 4, 2),
    (32, 16, 32, 4, 2),
    (16, 32, 32, 4, 2),
    (16, 16, 16, 4, 2),
)


def _tiles(
    launch: Kernel,
    base: Schedule,
    extents: Mapping[str, int],
    device: DeviceRates,
    work: LaunchWork,
) -> Iterator[Schedule]:
    """Yield the tiles of a launch whose contractions are of matrices.

    Matrix units take steps of 128 bytes along the summed axis: half as many elements of tf32.
    """
    rows = base.blocked
    summed, columns = _streamed(work, base)
    is_product = _is_product(work, base)
    least = {a: least_dot(launch) for c in work.contractions if c.is_dot for a in c.over}
    if not is_product and (len(rows), len(columns)) != (1, 1):
        for n in STEP_ROWS if work.steps and len(rows) == 1 else ():
            yield from _warps(replace(base, grid={**base.grid, rows[0]: n}), extents)
        yield from _warps(base, extents)
        return
    axes = rows if is_product else (*rows, *columns)
    lists = (FLOAT32_TILES, NARROW_TILES) if is_product else (FLOAT32_STREAMS, NARROW_STREAMS)
    is_tf32 = is_product and device.tf32_tflops > 0 and work.is_tf32
    tiles = lists[work.operand_bytes < 4 or is_tf32]
    if is_product and len(rows) == 1:
        tiles = tuple(
            _row_tiles(math.prod(replace(base, grid={}, streams={}).lanes(extents).values()))
        )
    for m, n, k, warps, stages in tiles:
        if not work.has_dots:
            if m * n > DOUBLE_ELEMENTS * 32 * warps:
                continue
            k = MIN_DOT
        k = k * 2 if work.operand_bytes == 1 else k // 2 if is_tf32 else k
        wanted = {**dict(zip(axes, (m, n)[-len(axes) :], strict=True)), **dict.fromkeys(summed, k)}
        lanes = {
            a: max(min(b, power_of_two(extents[a])), least.get(a, MIN_DOT))
            for a, b in wanted.items()
        }
        kind = "product" if is_product else "stream of products"
        tile = replace(
            base,
            grid={a: lanes.get(a, b) for a, b in base.grid.items()},
            streams={a: lanes.get(a, b) for a, b in base.streams.items()},
            warps=warps,
            stages=stages,
            reason=f"{kind}, {' x '.join(str(lanes[a]) for a in axes)} a program",
        )
        if any(extents[a] >= MIN_SPLIT * lanes.get(a, extents[a]) for a in work.masked):
            yield replace(tile, splits_loops=True, reason=f"{tile.reason}, no masks in full blocks")
        yield tile


def _row_tiles(columns: int) -> Iterator[Tile]:
    """Yield tiles with all columns of a result, of about 64 elements a thread."""
    for rows in (128, 64, 32, 16):
        for warps in (16, 8, 4):
            if ROW_TILE_ELEMENTS // 4 <= rows * columns // (32 * warps) <= ROW_TILE_ELEMENTS:
                yield columns, rows, 32, warps, 3
                yield columns, rows, MIN_DOT, warps, 2


def _warps(base: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    """Yield numbers of warps, with blocks no larger than the axes or a contraction's least."""

    def fitting(lanes: Mapping[str, int]) -> dict[str, int]:
        return {a: min(n, max(power_of_two(extents[a]), MIN_DOT)) for a, n in lanes.items()}

    base = replace(base, grid=fitting(base.grid), streams=fitting(base.streams))
    for warps in (1, 4, 8):
        yield replace(
            base, warps=warps, stages=2, reason=f"contractions in {warps} warp{'s' * (warps > 1)}"
        )


def _streamed(work: LaunchWork, schedule: Schedule) -> tuple[list[str], list[str]]:
    """Return the axes with lanes that contractions sum, and the others, of those in streams."""
    looped = [a for a, n in schedule.streams.items() if n > 1]
    summed = [a for a in looped if all(a not in c.result for c in work.contractions)]
    return summed, [a for a in looped if a not in summed]


def _is_product(work: LaunchWork, schedule: Schedule) -> bool:
    """Return whether every stream only sums contractions of blocks of the grid."""
    summed, columns = _streamed(work, schedule)
    return bool(summed) and len(schedule.blocked) in (1, 2) and not columns


def _product_forms(
    launch: Kernel,
    schedule: Schedule,
    extents: Mapping[str, int],
    of_call: Mapping[str, int],
    device: DeviceRates,
    work: LaunchWork,
) -> Iterator[Schedule]:
    """Yield a schedule in the forms of products: by descriptors, and in persistent programs.

    Persistent programs with descriptors load a block behind the arithmetic and the stores of the
    one before. Where a processor has one block at most, there is none before.
    """
    if not schedule.has_matrices or not _is_product(work, schedule):
        yield schedule
        return
    count = block_count(schedule, extents)
    waves = math.ceil(count / device.processors)
    if waves > 1 and len(schedule.blocked) == 2:
        schedule = replace(schedule, group=GROUPED_ROWS)
    plain = replace(schedule, reason=f"{schedule.reason}, {_rounds(waves)}")
    lanes = schedule.lanes(extents)
    takes_tf32 = schedule.policy.products == "narrow" and work.is_tf32
    copied = (
        copied_loads(launch, of_call, lanes, takes_tf32=takes_tf32)
        if device.limits.has_tensor_copies
        else {}
    )
    yield plain
    walk = f"{schedule.reason}, {count} blocks one after another"
    walking = replace(schedule, programs=device.processors, reason=f"{walk}, nothing overlaps")
    if waves > 1:
        yield walking
    if not copied:
        return
    yield replace(plain, copied=copied)
    if waves <= 1:
        return
    behind = replace(walking, copied=copied, reason=f"{walk}, loads of the next one behind stores")
    stored = copied_stores(launch, of_call, lanes)
    yield behind
    if _has_wide_tiles(schedule, lanes, work) and divided_launch(launch, schedule.blocked[1]):
        reason = f"{behind.reason}, registers for half of an epilogue"
        yield replace(behind, halved=schedule.blocked[1], reason=reason)
    if stored:
        behind = replace(behind, stored=stored)
        yield behind
    specialised = _specialised(launch, behind, device)
    if specialised is not None:
        yield specialised


def _has_wide_tiles(schedule: Schedule, lanes: Mapping[str, int], work: LaunchWork) -> bool:
    """Return whether accumulators take half of the registers of a program's threads."""
    if len(schedule.blocked) != 2 or not schedule.warps:
        return False
    elements = sum(math.prod(lanes.get(a, 1) for a in c.result) for c in work.contractions)
    return elements >= WIDE_ELEMENTS * 32 * schedule.warps


def _specialised(launch: Kernel, schedule: Schedule, device: DeviceRates) -> Schedule | None:
    """Return a persistent schedule with warps of their own for copies and products.

    None where the compiler has none. A nested loop has two groups of warps for halves of the rows
    of one contraction.
    """
    loop = device.limits.specialised
    if not loop or (loop == "nested" and len(dots_of(launch.body)) > 1):
        return None
    warps = schedule.warps
    if loop == "nested":
        rows = schedule.grid[schedule.blocked[0]]
        if warps != 2 * GROUP_WARPS or rows < MIN_GROUPED_ROWS:
            return None
        warps = GROUP_WARPS
    reason = f"{schedule.reason}, in warps of their own"
    return replace(schedule, warps=warps, specialised=loop, reason=reason)


def _rounds(waves: int) -> str:
    return "one round of processors" if waves <= 1 else f"{waves} rounds of processors"
