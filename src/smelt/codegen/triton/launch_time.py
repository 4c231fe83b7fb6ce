"""Predict how long a launch takes on a device, to compare its schedules.

    work = launch_work(launch, sizes, policy)
    launch_time(work, schedule, {"m": 128, "n": 128, "k": 64}, 8, device).total

Time is that of the slowest of memory, caches and arithmetic, lengthened where the last programs
leave processors idle. Published rates alone enter: nothing is measured. Planner, candidates and
reports ask this function and no other. `lanes` are the positions of a program's tile along each
axis; the rest of the vocabulary (visited, examined, owners, parts) is that of `LaunchWork`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from smelt.backend.gpu import (
    CACHE_LATENCY_NS,
    DESCRIPTOR_NS,
    INSTRUCTIONS,
    MEMORY_LATENCY_NS,
    POINTER_COPIES,
    SECTOR_BYTES,
    THREAD_BYTES,
    TILE,
    KernelTime,
    busy_ns,
    combined_bytes,
    tile_share,
)
from smelt.codegen.triton.device_limits import DeviceLimits, DeviceRates
from smelt.codegen.triton.launch_work import Access, Contraction, LaunchWork
from smelt.codegen.triton.live_values import registers_of
from smelt.codegen.triton.schedule import Schedule
from smelt.kernel.walk import Axes
from smelt.machine.target import CACHE_SHARE

PRODUCT_REGISTERS, ACCUMULATOR_REGISTERS = 28, 1.6
"""Registers of a thread with contractions: those that it needs anyhow, and for each element of its
results and of the terms that a factor is a sum of. Fitted to what ptxas says of products and
attention for sm_90."""
ROW_REGISTERS, ELEMENT_REGISTERS = 16, 1.4
"""The same for rows held in registers, fitted to a softmax."""
VECTOR_RATES = {1: 0.3, 2: 0.5, 4: 0.75, 8: 0.92}
"""Part of the bandwidth by bytes of a thread's access; 1 from 16 on."""
CUT_BLOCKS = 2
"""Blocks of a row of programs that a mask cuts: on both sides of its edge."""
KEPT_REUSE = 4
"""Times as many columns as a tile has of a contraction whose other operand stays in registers.

Each step then loads one operand, and the products of a step wait for nothing else."""
STEP_NS = 150.0
"""A step whose loads are ahead: it waits for a copy, and for products or sums of its threads."""
STORE_INSTRUCTIONS = 6
"""Of a thread for 16 bytes that it stores: an address, a mask, and the store; no product runs."""
LOAD_INSTRUCTIONS = 6
"""Of a thread for a load of less than a vector: an address, a mask, the load, and its place."""
TRANSPOSE_INSTRUCTIONS = 2
"""Of a thread for a byte that changes its order in shared memory: a permutation, and a store."""
VECTOR_BYTES = 16
"""Bytes of the widest load of a thread."""
SPECIALISED_WARPS = 1.01
"""Time of a persistent program with warps for copies and products, in that of one loop for both.

Loads are ahead in both. Warps wait for one another by barriers in memory, and those that copy take
registers from those that compute."""
STORE_BYTES = 1 << 15
"""Maximum shared memory through which a narrow result is stored while blocks are loaded."""


def launch_time(
    work: LaunchWork,
    schedule: Schedule,
    lanes: Mapping[str, int],
    warps: int,
    device: DeviceRates,
    cached: Collection[str] = (),
) -> KernelTime:
    """Return the predicted time of a launch.

    The arrays of parameters `cached` rest in the cache that all processors share, others in main
    memory. Where no processor holds a program, the time is that of one that spills what it lacks.
    """
    blocks = block_count(schedule, work.extents)
    if not blocks:
        return KernelTime()
    lanes = {a: n for a, n in lanes.items() if a not in work.examined}  # visited one by one
    count = blocks if schedule.programs is None else min(blocks, schedule.programs)
    shared = loop_shared_bytes(work, schedule, lanes, device.limits)
    per_processor, spilling, fits = _occupancy(work, schedule, lanes, warps, shared, device.limits)
    resident = min(per_processor, math.ceil(count / device.processors))
    in_flight = _in_flight(work, resident, warps, count, shared, device)
    vectors = _vectors(work, lanes, warps, device)
    moved = _moved(work, schedule, lanes, resident * device.processors, device.cache_bytes)
    in_memory = sum(n for p, n in moved.items() if p not in cached)
    memory = in_memory / (_memory_rate(schedule, in_flight, count, device) * vectors)
    caches = sum(moved.values()) / (_cache_rate(in_flight, count, device) * vectors)
    busy_processors = min(schedule.programs or device.processors, device.processors)
    cache_rate = device.cache_gbytes_per_second * busy_processors / device.processors
    caches = max(caches, _cache_bytes(work, schedule) / cache_rate)
    waves = blocks / busy_processors
    tail = math.ceil(waves) / waves * device.processors / busy_processors
    computing = _lanes_ns(work, schedule, lanes, device)
    computing += _operand_loads_ns(work, schedule, lanes, device)
    units = _matrix_ns(work, schedule, lanes, device), computing
    arithmetic = max(units) + min(units) / max(resident, 1)
    arithmetic *= tail * _copying(work, schedule, device)
    busy = busy_ns(memory, caches, arithmetic) * spilling
    busy += _waiting_ns(work, schedule)
    in_order = math.prod(work.extents[a] for a in work.steps) * STEP_NS if work.steps else 0.0
    busy = max(busy, math.ceil(count / (per_processor * device.processors)) * in_order)
    if schedule.programs is not None and work.contractions:
        busy = max(busy, math.ceil(waves) * _steps(schedule, work.extents) * STEP_NS)
        busy += 0.0 if schedule.stored else _store_addresses_ns(work, device)
    if schedule.specialised:
        busy *= SPECIALISED_WARPS
    starts = _starts_ns(work, schedule, resident, math.ceil(waves))
    busy = starts + busy * _preference(work, lanes, warps, device)
    return KernelTime(device.launch_ns, max(memory, caches), arithmetic, busy, fits, blocks)


def _occupancy(
    work: LaunchWork,
    schedule: Schedule,
    lanes: Mapping[str, int],
    warps: int,
    shared: int,
    limits: DeviceLimits,
) -> tuple[int, float, bool]:
    """Return programs per processor (at least 1), slowdown by spilling, and whether one fits."""
    threads = schedule.groups * warps * limits.lanes
    registers = _registers(work, lanes, threads)
    most = limits.lane_registers
    programs = limits.programs(warps=warps, registers=min(registers, most), shared_bytes=shared)
    programs = min(programs, 1) if schedule.specialised else programs
    available = max(min(most, limits.registers // threads), 1)
    live = ROW_REGISTERS + registers_of(work.live, lanes, threads)
    excess = max(registers / most, live / available, shared / limits.shared_bytes, 1.0)
    return max(programs, 1), excess * excess, programs > 0 and shared <= limits.shared_bytes


def _copying(work: LaunchWork, schedule: Schedule, device: DeviceRates) -> float:
    """Return the time of products by how their operands are copied, in that by descriptors."""
    is_narrow = work.operand_bytes < 4 or work.is_tf32
    by_pointers = device.limits.has_tensor_copies and is_narrow and not schedule.copied
    return POINTER_COPIES if by_pointers else 1.0


def _waiting_ns(work: LaunchWork, schedule: Schedule) -> float:
    """Return the time of visits that wait for one another, and of finding them."""
    if not work.ordered:
        return 0.0
    positions = math.prod(work.extents[a] for a in work.ordered)
    lanes = math.prod(schedule.streams[a] for a in work.examined)
    visits = positions / math.prod(work.extents[a] for a in work.owners)
    return MEMORY_LATENCY_NS * visits + CACHE_LATENCY_NS * positions / lanes * bool(work.examined)


def block_count(schedule: Schedule, extents: Mapping[str, int]) -> int:
    """Return the number of blocks of the grid."""
    return math.prod(
        math.ceil(extents[a] / n) if n > 1 else extents[a] for a, n in schedule.grid.items()
    )


def _steps(schedule: Schedule, extents: Mapping[str, int]) -> int:
    """Return the steps of the loops inside of a block."""
    return math.prod(math.ceil(extents[a] / n) for a, n in schedule.streams.items())


def _starts_ns(work: LaunchWork, schedule: Schedule, resident: int, rounds: int) -> float:
    """Return the time in which matrix units wait for a block to begin.

    A block waits for its first loads, behind which programs beside it on the processor compute,
    or the block before in the flattened loop of a persistent program.
    """
    copied = {x.param for x in (*schedule.copied, *schedule.stored)}
    descriptors = len(copied) * DESCRIPTOR_NS
    if schedule.overlaps_blocks or not work.contractions:
        return descriptors
    return (descriptors + MEMORY_LATENCY_NS * (rounds > 1)) * math.ceil(rounds / resident)


def _store_addresses_ns(work: LaunchWork, device: DeviceRates) -> float:
    """Return the time in which all threads compute addresses and masks of what they store."""
    accesses = sum(x.nbytes * math.prod(work.extents[a] for a in x.axes) for x in work.stored) / 16
    instructions = 1e3 * device.float32_tflops / 2
    return accesses * STORE_INSTRUCTIONS / instructions


def floor_ns(work: LaunchWork, device: DeviceRates, cached: Collection[str] = ()) -> float:
    """Return the time of a launch that only moves its bytes; `cached` as in `launch_time`."""
    in_memory = sum(n for p, n in work.bytes_of.items() if p not in cached)
    rates = device.gbytes_per_second, device.cache_gbytes_per_second
    return device.launch_ns + busy_ns(in_memory / rates[0], work.bytes / rates[1], 0.0)


def _tile(axes: Axes, lanes: Mapping[str, int]) -> int:
    return math.prod(lanes.get(a, 1) for a in axes)


def _registers(work: LaunchWork, lanes: Mapping[str, int], threads: int) -> int:
    """Return the registers of a thread, estimated from the largest values of a program."""
    if work.contractions:
        held = sum(_tile(c.result, lanes) for c in work.contractions)
        sides = zip(work.contractions, work.operands[::2], strict=True)
        held += sum((c.products - 1) * _tile(left.axes, lanes) for c, left in sides)
        return PRODUCT_REGISTERS + int(ACCUMULATOR_REGISTERS * held / threads)
    each = max((_tile(axes, lanes) for axes in work.values), default=1) / threads
    return ROW_REGISTERS + int(ELEMENT_REGISTERS * each)


def loop_shared_bytes(
    work: LaunchWork, schedule: Schedule, lanes: Mapping[str, int], limits: DeviceLimits
) -> int:
    """Return the shared memory of a loop over products and of what it stores.

    A block is loaded behind the products of the one before. These read it until they are done where
    they are asynchronous, else they have it in registers. Where blocks wait in registers, so do
    operands of all steps; elsewhere what a product computes for the next one on matrix units.
    """
    waits = limits.stages_in_registers
    results = {c.result for c in work.contractions}
    stages = max(schedule.stages - (waits or not _is_asynchronous(work, lanes, limits)), 1)
    loaded: dict[tuple[str, Axes], int] = {}
    for k, x in enumerate(work.operands):
        is_computed = not x.param and x.axes in results
        stays = x.axes.isdisjoint(schedule.streams)
        if stays if waits else is_computed and _is_narrow(work.contractions[k // 2]):
            continue
        times = 1 if is_computed or stays else stages
        loaded[x.param, x.axes] = times * x.nbytes * _tile(x.axes, lanes)
    nbytes = sum(loaded.values()) if schedule.streams else 0
    if not schedule.overlaps_blocks:
        return nbytes
    for x in work.stored:
        stored = x.nbytes * _tile(x.axes, lanes) // (1 + (schedule.halved in x.axes))
        is_whole = schedule.stored or x.nbytes >= limits.whole_store_bytes
        nbytes += stored if is_whole else min(stored, STORE_BYTES)
    return nbytes


def _is_asynchronous(work: LaunchWork, lanes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether matrix units read the operands of every product from shared memory."""
    sides = zip(work.contractions, work.operands[::2], work.operands[1::2], strict=True)
    return bool(limits.asynchronous_rows) and all(
        _is_narrow(c)
        and _tile(c.result & (left.axes - right.axes), lanes) >= limits.asynchronous_rows
        for c, left, right in sides
    )


def _is_narrow(c: Contraction) -> bool:
    return c.nbytes < 4 or c.is_tf32


def _in_flight(
    work: LaunchWork, resident: int, warps: int, count: int, shared: int, device: DeviceRates
) -> float:
    """Return the bytes that the programs of a processor load at a time.

    Threads load into registers; a loop over contractions also has the blocks ahead in flight.
    """
    threads = warps * device.limits.lanes
    each = work.bytes / (count * threads)
    return resident * max(threads * min(each, THREAD_BYTES), shared)


def _memory_rate(schedule: Schedule, in_flight: float, count: int, device: DeviceRates) -> float:
    """Return the rate of main memory that loads of `count` programs can use.

    A processor has its part of it. One that takes row after row, where others have no program, has
    its part of the shared cache's rate.
    """
    gbs = device.gbytes_per_second
    most = gbs if schedule.programs is None else device.cache_gbytes_per_second
    return min(_rate(most, MEMORY_LATENCY_NS, in_flight, count, device), gbs)


def _cache_rate(in_flight: float, count: int, device: DeviceRates) -> float:
    """Return the rate of the shared cache that loads of `count` programs can use."""
    return _rate(device.cache_gbytes_per_second, CACHE_LATENCY_NS, in_flight, count, device)


def _rate(gbs: float, latency: float, in_flight: float, count: int, device: DeviceRates) -> float:
    """Return the part of a rate that the bytes in flight of busy processors cover."""
    needed = gbs / device.processors * latency
    busy = min(count / device.processors, 1.0)
    return gbs * max(min(in_flight / needed, 1.0) * busy, 1e-3)


def _accessed(x: Access, work: LaunchWork, schedule: Schedule) -> float:
    """Return the elements that all programs access."""
    repeated = math.prod(
        math.ceil(work.extents[a] / lanes)
        for a, lanes in schedule.grid.items()
        if a not in x.axes
        and not any(a in work.parts.get(s, ()) for s in x.axes)
        and not (x.is_visited and a in work.owners)
    )
    elements = math.prod(work.extents[a] * work.visited.get(a, 1.0) for a in x.axes) * repeated
    return elements * max(x.share, 1 / _tile(x.axes, schedule.grid))


def _operand_loads_ns(
    work: LaunchWork, schedule: Schedule, lanes: Mapping[str, int], device: DeviceRates
) -> float:
    """Return the time of instructions for operands that are loaded in parts of vectors.

    A cache serves a processor as many bytes a clock as it has lanes, which wait for it where each
    element is in a sector of its own. Operands of tf32 in another order than along the sum are
    copied element by element to shared memory, from which matrix units read them; those of bytes
    are read from there, and written again in the other order.
    """
    summed = Axes(a for c in work.contractions for a in c.over)
    is_ordered = work.is_tf32 and _is_asynchronous(work, lanes, device.limits)
    copied = {x.param for x in schedule.copied}
    total = 0.0
    for x in work.accesses:
        if x.is_operand and work.operand_bytes == 1 and not x.last <= summed:
            total += _accessed(x, work, schedule) * TRANSPOSE_INSTRUCTIONS
        if not x.is_operand or x.param in copied:
            continue
        neighbours = _tile(x.last, lanes)
        vector = min(neighbours, x.aligned, max(VECTOR_BYTES // x.nbytes, 1))
        vector = 1 if is_ordered and not x.last <= summed else vector
        if vector * x.nbytes < min(VECTOR_BYTES, neighbours * x.nbytes) or neighbours == 1:
            each = LOAD_INSTRUCTIONS if neighbours > 1 else SECTOR_BYTES
            total += _accessed(x, work, schedule) / vector * each
    return total / (1e3 * device.float32_tflops / 2)


def _cache_bytes(work: LaunchWork, schedule: Schedule) -> float:
    """Return the bytes that all programs load and store through the caches."""
    total = 0.0
    for x in work.accesses:
        elements = _accessed(x, work, schedule)
        if x.is_combined and not work.ordered:
            neighbours = math.prod(work.extents[a] for a in x.last) if x.last else 1
            total += combined_bytes(elements, x.nbytes, neighbours)
        else:
            total += x.nbytes * elements
    return total


def _moved(
    work: LaunchWork, schedule: Schedule, lanes: Mapping[str, int], programs: int, cache: int
) -> dict[str, float]:
    """Return the bytes that are moved by array: those of its access with the most sectors.

    A later pass over rows finds them in a cache that holds those of all `programs` at a time.
    """
    moved = {p: float(n) for p, n in work.bytes_of.items()}
    for x in work.accesses:
        extent = math.prod(work.extents[a] for a in x.last)
        if x.axes and x.last and extent > 1:
            run = x.nbytes * min(_tile(x.last, lanes), extent)
            factor = max(min(SECTOR_BYTES, x.nbytes * extent) / run, x.waste, 1.0)
            accessed = x.nbytes * math.prod(work.extents[a] for a in x.axes) * x.share
            nbytes = factor * min(accessed, work.bytes_of[x.param])
            moved[x.param] = max(moved[x.param], nbytes)
    programs = min(programs, schedule.programs or programs)
    rows = {p: min(n * programs, work.bytes_of[p]) for p, n in reread_bytes(work, schedule).items()}
    if sum(rows.values()) > CACHE_SHARE * cache:
        moved |= {p: moved[p] * work.passes[p] for p in rows}
    return moved


def reread_bytes(work: LaunchWork, schedule: Schedule) -> dict[str, int]:
    """Return the bytes of each array that a program reads before it reads them again."""
    axes_of = {x.param: (x.nbytes, x.axes) for x in work.accesses}
    result: dict[str, int] = {}
    for p, passes in work.passes.items():
        nbytes, axes = axes_of[p]
        for a in axes:
            taken = schedule.streams.get(a, 1) if a in work.around[p] else work.extents[a]
            nbytes *= schedule.grid.get(a, taken)
        if passes > 1:
            result[p] = nbytes
    return result


def _vectors(work: LaunchWork, lanes: Mapping[str, int], warps: int, device: DeviceRates) -> float:
    """Return the part of the bandwidth that accesses of a thread's neighbouring elements have."""
    threads = warps * device.limits.lanes
    widths = [
        x.nbytes * min(max(_tile(x.axes, lanes) // threads, 1), x.aligned)
        for x in work.accesses
        if x.last and len(x.axes) > 0
    ]
    return VECTOR_RATES.get(max(widths, default=16), 1.0)


def _preference(
    work: LaunchWork, lanes: Mapping[str, int], warps: int, device: DeviceRates
) -> float:
    """Return a factor near 1 that orders equals as published tuners do.

    About 16 elements a thread, one warp where no other is needed, and one pass over a row where a
    program's barriers stop all threads of a processor.
    """
    if work.contractions:
        return 1.0
    most = max((_tile(axes, lanes) for axes in work.values), default=1)
    each = most / (warps * device.limits.lanes)
    stops = warps == device.limits.program_warps and any(n > 1 for n in work.passes.values())
    steps = abs(math.log2(max(each, 1 / 64) / 16))
    return 1.0 + 0.01 * steps + 0.02 * ((warps > 1) + stops)


def _positions(work: LaunchWork, axes: Iterable[str], lanes: Mapping[str, int]) -> float:
    """Return the positions of axes in the blocks that programs compute."""
    return math.prod(
        math.ceil(work.extents[a] / lanes.get(a, 1)) * lanes.get(a, 1) * work.visited.get(a, 1.0)
        for a in axes
    )


def _matrix_ns(
    work: LaunchWork, schedule: Schedule, lanes: Mapping[str, int], device: DeviceRates
) -> float:
    """Return the time of contractions, each at the rate of its type and tile.

    Where one operand alone is loaded in each step of a loop, as keys and values in attention, it
    serves all rows of the other one, which stays in registers or shared memory.
    """
    total = 0.0
    sides = zip(work.contractions, work.operands[::2], work.operands[1::2], strict=True)
    for c, left, right in sides:
        tile = _tile(c.result - (left.axes & right.axes), lanes)
        loaded = [bool(x.param) and not x.axes.isdisjoint(schedule.streams) for x in (left, right)]
        if loaded[0] != loaded[1]:
            kept, other = (left, right) if loaded[1] else (right, left)
            columns = _tile(c.result & (other.axes - kept.axes), lanes)
            tile = min(tile * KEPT_REUSE, tile // columns * TILE[1])
        rate = tile_share(tile)
        if c.nbytes < 4:
            rate *= device.matrix_share * device.tensor_tflops * (2 if c.nbytes == 1 else 1)
        elif c.is_tf32 and device.tf32_tflops:
            rate *= device.matrix_share * device.tf32_tflops
        else:
            rate *= device.float32_tflops if c.nbytes == 4 else device.float64_tflops
        total += 2 * c.products * _positions(work, c.result | c.over, lanes) / (rate * 1e3)
    return total


def _lanes_ns(
    work: LaunchWork, schedule: Schedule, lanes: Mapping[str, int], device: DeviceRates
) -> float:
    """Return the time of vector lanes and special functions, in every block that computes them."""
    total = 0.0
    for x in work.lanes:
        steps: list[float] = [
            math.ceil(work.extents[a] / n)
            for a, n in schedule.grid.items()
            if a not in x.axes and not any(a in work.parts.get(s, ()) for s in x.axes)
        ]
        for a in x.around:
            parts = math.prod(work.extents[p] for p in work.parts.get(a, ()))
            steps.append(work.extents[a] * work.visited.get(a, 1.0))
            steps.append(1 / (schedule.streams.get(a, 1) * parts))
        cost = x.cost - x.extreme_cost * device.limits.has_extremes
        instructions = cost / device.float32_tflops + x.double_cost / device.float64_tflops
        if x.masked and schedule.splits_loops:
            # parts of few rows may visit no block at all
            visited = max(work.extents[x.masked] * work.visited.get(x.masked, 1.0), 1.0)
            steps.append(min(CUT_BLOCKS * schedule.streams.get(x.masked, 1) / visited, 1.0))
        each = x.specials * device.special_ns + 2 * INSTRUCTIONS * instructions / 1e3
        parted = Axes().union(*(work.parts.get(a, ()) for a in x.axes))
        total += _positions(work, x.axes - parted, lanes) * math.prod(steps) * each
    return total
