"""A GPU as the planner sees it: published facts, blocks, and the terms of a kernel's time.

    time = launches + max(memory, cache, matrix units + lanes)

Memory and the shared cache run at their rates, arithmetic at that of the unit that does it: vector
lanes, matrix units by type, special functions. How long a kernel takes is a question to its
schedules (`smelt.codegen.triton.launch_time`).

>>> from smelt.backend.gpus import gpu
>>> h100 = gpu("h100")
>>> h100.bandwidth("dram", "read") < h100.memory_gbs < h100.bandwidth("l2", "read")
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from math import ceil, prod
from typing import Self

from smelt.machine.target import CACHE_SHARE, Kind, Level
from smelt.machine.tiling import Tiling
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f32
from smelt.types.expr import Index, floordiv, maximum, minimum

__all__ = [
    "CACHE_LATENCY_NS",
    "DESCRIPTOR_NS",
    "MEMORY_LATENCY_NS",
    "POINTER_COPIES",
    "SCAN_STEP",
    "SECTOR_BYTES",
    "STATE_BYTES",
    "THREAD_BYTES",
    "Gpu",
    "GpuTiling",
    "KernelTime",
    "combined_bytes",
]

STATE_BYTES = 128 << 10
"""Maximum bytes of states that a program of a stream carries in registers and shared memory."""
CHUNK_PARTS = 256
"""Parts of a device's memory of which a value between kernels may take one.

A chunk of a large product reads its weights again: it is to have some hundred rows for them."""
PROGRAMS_PER_PROCESSOR = 2
"""Minimum programs for each processor; with fewer, parallelism is lost in proportion."""
SCATTER_PROGRAMS = 4
"""Programs of each processor that share the rows of a scatter-reduced result.

Each examines all positions, so that more of them read these from the shared cache again, and fewer
wait longer for updates.
"""
TILE_SHARES = ((128 * 256, 1.0), (128 * 128, 0.85), (64 * 128, 0.7), (64 * 64, 0.5), (0, 0.25))
"""Part of that rate by elements of a result's tile, of one matrix among several."""
TILE = (128, 256)
"""Sides of the largest tiles."""
INSTRUCTIONS = 2.0
"""Vector instructions of one unit of an operator row's cost, for one element."""
UNROLLED_TERMS = 8
"""Maximum products of a sum that a thread computes by itself; from 9 on, lanes of a tile do.

Each product that is unrolled has loads and registers of its own, in every thread.
"""
MIN_PART_K = 256
"""Minimum positions of a part of a product's reduction axis."""
MIN_SCAN = 1 << 15
"""Minimum positions of a row for which a second launch takes less time than its blocks in order."""
SCAN_PROGRAMS = 4
"""Programs for each processor that scan parts of rows: they hide the latency of their loads."""
SCAN_STEP = 1 << 12
"""Elements of a block of a scanned row; a part has several."""
MIN_MATRIX_SIDE = 16
"""Minimum positions along each axis of a tile for matrix units."""
PRODUCTS_OF_TERMS = {"bf16": 3, "f16": 5}
"""Products of bfloat16 terms that a float32 beside a half type takes."""
FULL_TILE = 128
"""Minimum positions along each axis of a product's tile for matrix units to reach their share."""
KEPT_ROW_BYTES = 128 << 10
"""Bytes of a row that a program keeps in registers: 32768 float32 elements, by up to 1024 threads.
"""
LAUNCH_NS = 2500.0
"""Nanoseconds between the starts of two kernels of a stream, in driver launches without graphs."""
DISPATCH_NS = 5000.0
"""Nanoseconds of a call from Python."""
MEMORY_LATENCY_NS = 600.0
"""A load from device memory: bytes in flight must cover it."""
CACHE_LATENCY_NS = 200.0
"""A load from the shared cache; measured for an H100's by others, 150 to 200 (QuACK)."""
THREAD_BYTES = 64
"""Bytes that a thread has in flight at most: four accesses of 16."""
SECTOR_BYTES = 32
"""Bytes that memory and caches move at least."""
POINTER_COPIES = 1.05
"""Time of products whose threads compute the addresses of copies, in that of tensor copies.

A step of 128 x 256 x 64 halves takes 12 copies a thread, each of about 4 instructions: a tenth of
the cycles of its products, about half of which they hide."""
DESCRIPTOR_NS = 500.0
"""A program writes a tensor descriptor to memory, and waits until copies may read it."""


def combined_bytes(elements: float, itemsize: int, neighbours: int) -> float:
    """Return the bytes that atomic operations move in the shared cache: read, and written.

    `neighbours` of them are adjacent in memory; fewer than a sector move all of it.

    >>> combined_bytes(1000, 4, 1), combined_bytes(1000, 4, 1024)
    (64000.0, 8000.0)
    """
    return 2.0 * elements * max(itemsize, SECTOR_BYTES / max(neighbours, 1))


def tile_share(elements: int) -> float:
    """Return the part of the matrix units' rate by the elements of a result's tile.

    >>> tile_share(128 * 256), tile_share(64 * 64), tile_share(16 * 16)
    (1.0, 0.5, 0.25)
    """
    return next(share for least, share in TILE_SHARES if elements >= least)


def scan_parts(rows: int, length: int, processors: int) -> int:
    """Return the parts in which programs scan each of some rows of a length.

    Parts read a row twice, which takes longer than processors without a second row lose.

    >>> scan_parts(1, 10_000_000, 132), scan_parts(100, 1 << 20, 132), scan_parts(100, 1000, 132)
    (528, 5, 1)
    """
    if length < MIN_SCAN or rows >= processors:
        return 1
    return max(min(SCAN_PROGRAMS * processors // max(rows, 1), length // (2 * SCAN_STEP)), 1)


def busy_ns(memory: float, cache: float, arithmetic: float) -> float:
    """Return the time of a kernel at work: the longest of its parts hides the others.

    Arithmetic is the sum of matrix units, lanes and special functions: a program's weights wait for
    its scores, and its epilogue for its products. So does FlashAttention-2, which reaches about a
    third of an H100's rate with 64 positions of a head.
    """
    return max(memory, cache, arithmetic)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Predicted nanoseconds of a kernel or one of its launches by term."""

    launch: float = 0.0
    memory: float = 0.0
    """The longer of main memory and the shared cache."""
    arithmetic: float = 0.0
    """Matrix units, vector lanes and special functions."""
    busy: float = 0.0
    """Nanoseconds at work: the longest of these, lengthened by what a schedule wastes."""
    fits: bool = True
    """Whether a processor holds a program."""
    programs: int = 1
    """Blocks of the grid; the most of several launches."""

    @property
    def total(self) -> float:
        """The predicted time."""
        return self.launch + self.busy

    def __add__(self, other: KernelTime) -> KernelTime:
        """Return the time of two launches, one after the other."""
        return KernelTime(
            self.launch + other.launch,
            self.memory + other.memory,
            self.arithmetic + other.arithmetic,
            self.busy + other.busy,
            self.fits and other.fits,
            max(self.programs, other.programs),
        )


@dataclass(frozen=True)
class GpuTiling(Tiling):
    """Blocks of a GPU's programs: rows one by one, parts for every processor, tiles of products."""

    tile: int = 128
    """Rows and columns of a product per program."""

    def splits_stream(self, grid: Iterable[int], visits: int) -> bool:
        """Return whether to split a stream with contractions: each processor has work for two."""
        return 2 * prod(grid) <= self.min_product_tasks and visits >= self.min_stream_visits

    def stream_block(self, row_bytes: int, *, is_contracted: bool) -> tuple[int, int]:
        """Return rows per program, fewer where their states would not fit, and elements a visit."""
        rows, elements = super().stream_block(row_bytes, is_contracted=is_contracted)
        while rows > MIN_MATRIX_SIDE and rows * row_bytes > STATE_BYTES:
            rows //= 2
        return rows, elements

    def stream_parts(self, blocks: Index, tasks: int) -> Index:
        """Return the parts of a split stream: as many as processors take at a time."""
        return minimum(blocks, max(self.min_product_tasks // max(tasks, 1), 1))

    def reduction_columns(self, sums: int) -> int:
        """Return the neighbouring columns that a program reduces: 16-byte loads of a warp."""
        return 128

    def split_k_parts(self, extent: Index, tasks: int = 1) -> Index:
        """Return the split-K parts of a product: a program for each processor, not too short."""
        most = max(self.min_product_tasks // max(tasks, 1), 2)
        return maximum(1, minimum(most, floordiv(extent, MIN_PART_K)))

    def scatter_parts(self, rows: Index, width: Index, *, in_batches: bool) -> Index:
        """Return the parts of a scatter-reduced result's rows: a program for each.

        Lanes examine positions together; it is the updates that wait for one another.
        """
        return maximum(minimum(rows, self.max_scatter_parts), 1)

    def rows_per_task(self, columns: Index) -> Index:
        """Return the rows that a program of an elementwise kernel takes: one."""
        return 1

    def thin_columns(self, columns: Index) -> Index:
        """Return the columns of a skinny product per program."""
        return self.thin_dot_rows

    def product_rows(self, *_: object, **__: object) -> Index:
        """Return the rows of a product per program."""
        return self.tile

    def splits_gated_product(self, rows: int, columns: int, itemsize: int) -> bool:
        """Return whether a product is computed as several, of `columns` or more each.

        A program of both has as many sums as two of the whole product. Float32 ones have no matrix
        units, so that processors without a program cost more than a result that is not stored.
        """
        if not super().splits_gated_product(rows, columns, itemsize):
            return False
        programs = ceil(rows / FULL_TILE) * ceil(columns / FULL_TILE)
        return itemsize < f32.itemsize or programs >= self.min_tasks

    def window_columns(self, itemsize: int) -> int:
        """Return the columns per program of a product over windows."""
        return self.tile


@dataclass(frozen=True)
class Gpu:
    """A GPU. Sizes are bytes, rates GB/s and Gflop/s (per ns), times nanoseconds.

    `matrix_gflops` are the rates of dense products by the type of their operands; a type that is
    missing has no matrix units, and its products run on the vector lanes.
    """

    key: str
    name: str
    arch: str
    processors: int
    clock_ghz: float
    lanes: int
    """Float32 multiply-adds of one processor per cycle."""
    warp_size: int
    registers_bytes: int
    """Register file of one processor."""
    shared_bytes: int
    """Shared memory of one processor."""
    cache_bytes: int
    """The cache that all processors share: what one kernel leaves in it, the next one finds.

    AMD's second-level caches belong to one of eight dies each, and so to an eighth of the programs.
    """
    cache_gbs: float
    memory_bytes: int
    memory_gbs: float
    vector_gflops: float
    """Float32 operations of the vector lanes, a multiply-add counting as two."""
    double_gflops: float
    matrix_gflops: tuple[tuple[str, float], ...]
    has_tensor_copies: bool = False
    """Whether one thread copies a block of an array to shared memory, by a descriptor."""
    memory_share: float = 0.92
    """Part of the rate of main memory that programs reach.

    NVIDIA's: 3.0 to 3.08 TB/s of an H100's 3.35 (Inductor, QuACK). AMD's state their own."""
    matrix_share: float = 0.7
    """Part of the rates of matrix units that programs with the largest tiles reach.

    An H100's: 674 of 989 Tflop/s by Triton with tensor copies (meta-pytorch/tritonbench#894)."""
    special_per_clock: int = 16
    """Special functions (exponential, reciprocal square root) of one processor per cycle."""
    unconfirmed: tuple[str, ...] = ()
    """Fields that no maker's document states: others measured them, or another card has them."""
    launch_ns: float = LAUNCH_NS
    dispatch_ns: float = DISPATCH_NS

    # ---- the machine's facts -------------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Multiprocessors."""
        return self.processors

    @property
    def vector_bytes(self) -> int:
        """Float32 lanes of a warp, in bytes."""
        return 4 * self.warp_size

    @property
    def architecture(self) -> str:
        """The compute capability, or AMD's name of the instruction set."""
        return self.arch

    @property
    def measured(self) -> bool:
        """False: rates are those that the maker publishes."""
        return False

    @property
    def planning(self) -> Self:
        """The GPU itself: nothing replaces published figures."""
        return self

    @property
    def levels(self) -> tuple[Level, ...]:
        """The shared cache (`l2`) and main memory."""
        return ("l2", "dram")

    @property
    def tiling(self) -> Tiling:
        """Blocks and parts of programs, and how many fill the device."""
        return _tiling(self.processors)

    @property
    def fast_bytes(self) -> int:
        """Registers and shared memory for the values of one program."""
        return min(self.registers_bytes + self.shared_bytes, 2 * KEPT_ROW_BYTES)

    @property
    def chunk_bytes(self) -> int | None:
        """Part of the device's memory, whose chunks still fill every processor."""
        return self.memory_bytes // CHUNK_PARTS

    @property
    def peak_gflops(self) -> float:
        """The rate of the vector lanes."""
        return self.vector_gflops

    def level_bytes(self, level: Level) -> int | None:
        """Return the bytes of the cache; None for main memory."""
        return self.cache_bytes if level == "l2" else None

    def with_cache(self, nbytes: int) -> Self:
        """Return the same GPU with another size of its shared cache."""
        return replace(self, cache_bytes=nbytes)

    def is_near(self, nbytes: int) -> bool:
        """Return whether a program keeps a row of so many bytes."""
        return nbytes <= KEPT_ROW_BYTES

    def level(self, footprint: int, threads: int = 1) -> Level:
        """Return the level that keeps `footprint` bytes of all programs between two uses."""
        return "l2" if footprint <= CACHE_SHARE * self.cache_bytes else "dram"

    def bandwidth(self, level: Level, kind: Kind, threads: int | None = None) -> float:
        """Return the rate of a level; reads and writes have the same."""
        return self.memory_share * self.memory_gbs if level == "dram" else self.cache_gbs

    def transfer_ns(
        self, read: int, written: int, level: Level = "dram", threads: int | None = None
    ) -> float:
        """Return the least time for moving `read` and `written` bytes."""
        return (read + written) / self.bandwidth(level, "copy")

    def fingerprint(self) -> str:
        """Return a hash of the architecture, which decides the code that is valid."""
        return hashlib.sha256(self.arch.encode()).hexdigest()

    def to_json(self) -> str:
        """Return all fields as JSON, with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    # ---- times ---------------------------------------------------------------------------------

    def element_ns(self, instructions: float, dtype: DType) -> float:
        """Return the time of vector instructions for one element, with every lane busy."""
        rate = self.double_gflops if dtype.is_float and dtype.itemsize == 8 else self.vector_gflops
        wide = 2.0 if not dtype.is_float and dtype.itemsize == 8 else 1.0
        return 2.0 * wide * instructions / rate

    @property
    def special_ns(self) -> float:
        """Time of one special function, with every unit busy."""
        return 1.0 / (self.processors * self.special_per_clock * self.clock_ghz)

    def product_ns(self, left: DType, right: DType, *, is_narrow: bool = False) -> float:
        """Return the time of one multiply-add of a product with the largest tiles.

        A narrow one is in the narrower type, or in tf32. Else a float32 beside a half type is a sum
        of terms with 8 bits, which meet in 3 products beside a bfloat16 and in 5 beside a float16.
        Operands without matrix units use the vector lanes.
        """
        rates = dict(self.matrix_gflops)
        usable = [rates[t.name] for t in (left, right) if t.name in rates]
        wide, narrow = sorted((left, right), key=lambda t: -t.itemsize)
        lanes = self.element_ns(1.0, wide)
        terms = PRODUCTS_OF_TERMS.get(narrow.name, 0) if "bf16" in rates else 0
        products = 1 if len(usable) == 2 else terms
        if is_narrow and products != 1 and wide.is_float and wide.itemsize == f32.itemsize:
            products, usable = 1, usable or [rates[n] for n in ("tf32",) if n in rates]
        if not usable or not products or wide.itemsize > f32.itemsize:
            return lanes
        return min(lanes, products * 2.0 / (min(usable) * self.matrix_share))


@lru_cache
def _tiling(processors: int) -> GpuTiling:
    """Return the blocks of a GPU: parts of a split axis give each processor two programs."""
    return GpuTiling(
        min_tasks=PROGRAMS_PER_PROCESSOR * processors,
        split_elements=1 << 17,
        max_parts=PROGRAMS_PER_PROCESSOR * processors,
        min_part_rows=64,
        min_part_elements=1 << 12,
        splits_longest=True,
        min_product_tasks=processors,
        min_split_k=1 << 12,
        map_block=1024,
        unroll_results=1,
        short_row=0,
        few_columns=0,
        stream_columns=128,
        column_rows=32,
        row_elements=4096,
        contracted_block=(128, 64),
        produced_block=(64, 128),
        stream_elements=1 << 14,
        min_stream_rows=16,
        min_stream_visits=8,
        splits_stored_streams=True,
        rounds_factors=True,
        recomputes_products=True,
        thin=8,
        thin_dot_rows=128,
        product_columns=128,
        window_rows=128,
        fuses_depthwise=False,
        recurrence_columns=128,
        min_parallel_carry=128 * processors,
        chunk_multiples=(FULL_TILE, 2 * FULL_TILE),
        short_stream=FULL_TILE,
        short_consumed_stream=FULL_TILE // 2,
        image_costs=None,
        packs_stencils=False,
        max_unrolled_terms=UNROLLED_TERMS,
        min_gated_rows=2 * FULL_TILE,
        min_gated_columns=FULL_TILE,
        max_scatter_parts=SCATTER_PROGRAMS * processors,
        least_late_bytes=1 << 12,  # kernels that start together may share a launch
    )
