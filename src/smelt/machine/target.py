"""Machine model: instruction set, caches and rates, as frozen data.

The planner weighs bytes against arithmetic, so it needs a machine's rates; the code generator needs
the instruction set; the object cache needs to know which of the two an artifact depends on.
`fingerprint()` covers the instruction set only, since a new measurement must never discard compiled
code. Nothing is measured in this module (`smelt.runtime.probe` does that): the figures here are
what is published about the processor's class, for an unknown one those of a Zen 5 server core
scaled to the vector width, until a measurement replaces them. Plans are made by `planning`, the
figures of the class alone.

>>> target = Target.for_isa("avx2")
>>> target.vector_bytes, target.registers, target.has("fma")
(32, 16, True)
>>> round(target.transfer_ns(read=2**26, written=2**26, level="dram") / 1e6, 1)  # milliseconds
2.3
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from functools import cache, lru_cache
from typing import Any, Literal, cast, get_args

from smelt import knobs
from smelt.machine.processor import (
    INSTRUCTION_SETS,
    PROCESSORS,
    CacheSizes,
    InstructionSet,
    Isa,
    Processor,
    ProcessorFacts,
    Speeds,
    cache_sizes,
    classify,
    cpu_model,
    permitted_processor,
    processor,
    usable_cores,
)
from smelt.machine.tiling import CPU_TILING, Tiling
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.types.json_data import from_data

HostIsa = Literal["auto", "avx2", "portable"]
TargetChoice = Literal["auto", "avx512", "avx2", "portable", "neon", "neon-bf16"]
Level = Literal["l1", "l2", "l3", "dram"]
Kind = Literal["read", "write", "copy"]

LEVELS: tuple[Level, ...] = get_args(Level)
_USUAL = ProcessorFacts()
CACHE_SHARE = 0.6
"""Share of a cache level that one kernel's working set may use: conflict misses, the stack,
hardware prefetching and other programs take the rest."""


@dataclass(frozen=True)
class Rates:
    """Bandwidth of one memory level in GB/s (bytes per ns); `copy` counts both directions."""

    read: float
    write: float
    copy: float


@dataclass(frozen=True)
class Bandwidth:
    """`Rates` of every memory level, for a number of threads together."""

    l1: Rates
    l2: Rates
    l3: Rates
    dram: Rates

    def at(self, level: Level) -> Rates:
        """Return the rates of one level."""
        return cast(Rates, getattr(self, level))


PAGE = 4096
"""Bytes of a page. An x86 L1 cache has as many pages as ways, so that its set index does not depend
on address translation: lines that are whole pages apart share a set."""

MAX_GEMM_TASKS = 8
"""Maximum tasks that a product is cut into for load balance over cores."""

DEFAULT_OP_NS: dict[str, float] = {
    "add": 0.11,
    "mul": 0.11,
    "fma": 0.11,
    "div": 0.55,
    "sqrt": 1.0,
    "exp": 1.3,
    "gather": 2.8,
}
"""Nanoseconds of a whole-vector float32 operation on one core, until measured."""


@dataclass(frozen=True)
class Target:
    """A machine as the planner and the code generators see it.

    Sizes are bytes, rates GB/s, times nanoseconds. The first block of fields is the instruction set
    and makes the fingerprint; the second is topology; the third is measured or assumed figures.

    * `one_thread`, `all_threads`: bandwidth with one thread, and with `cores` threads together.
    * `nt_store_gbs`, `nt_copy_gbs`: non-temporal stores, and copies with such stores, in main
      memory with all threads (the copy counts bytes read plus bytes written).
    * `fma_gflops`: float32 multiply-adds per core at the full vector width, two flops each.
    * `dispatch_ns`: one native call made from Python; `launch_ns`: fork plus join of the pool.
    * `page_fault_ns_per_byte`, `huge_fault_ns_per_byte`: first touch of fresh memory in small
      and in huge pages.
    * `compile_ns_per_instr`: LLVM's time from text to machine code per instruction.
    * `op_ns`: nanoseconds of one whole-vector operation per core, by name; `op_cost_scale`
      multiplies the operator rows' cost column (1.0: polynomials run at peak rate).
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    isa: Isa
    vector_bytes: int
    registers: int
    disabled: tuple[str, ...] = ()

    cores: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 8 << 20
    line_bytes: int = 64

    measured: bool = False
    one_thread: Bandwidth = field(default_factory=lambda: default_bandwidth(64, 1))
    all_threads: Bandwidth = field(default_factory=lambda: default_bandwidth(64, 1))
    nt_store_gbs: float = 44.0
    nt_copy_gbs: float = 59.0
    fma_gflops: float = 288.0
    dispatch_ns: float = 500.0
    launch_ns: float = 2000.0
    page_fault_ns_per_byte: float = 0.28
    huge_fault_ns_per_byte: float = 0.03
    compile_ns_per_instr: float = 30_000.0
    op_ns: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_OP_NS))
    op_cost_scale: float = 1.0

    def __hash__(self) -> int:
        return hash((self.name, self.cpu, self.isa, self.cores, self.measured))

    # Instruction set ------------------------------------------------------------------------

    def has(self, feature: str) -> bool:
        """Return whether the target has LLVM's `feature` (`"avx512bf16"`, no sign)."""
        return feature in self.features

    @property
    def facts(self) -> InstructionSet:
        """The row of the instruction set."""
        return INSTRUCTION_SETS[self.isa]

    @property
    def _processor(self) -> ProcessorFacts:
        return PROCESSORS.get(self.cpu, _USUAL)

    @property
    def has_fma(self) -> bool:
        """Whether one instruction multiplies and adds; in software that is a call."""
        return self.has("fma") or self.has("fp-armv8")

    @property
    def has_half_conversions(self) -> bool:
        """Whether instructions convert between float16 and float32."""
        return self.has("f16c") or self.has("fp-armv8")

    @property
    def has_fast_bf16_dot(self) -> bool:
        """Whether a bfloat16 dot-product instruction is faster than float32 FMAs."""
        has_dot = self.has("bf16") or (self.has("avx512bf16") and self.has("avx512f"))
        return has_dot and not self._processor.has_slow_bf16_dot

    @property
    def has_word_dot(self) -> bool:
        """Whether one instruction multiplies 16-bit integers and adds them in pairs."""
        return self.has("sse2")

    @property
    def has_byte_dot(self) -> bool:
        """Whether one instruction multiplies bytes and adds them in fours."""
        return any(map(self.has, ("avx512vnni", "avxvnni", "dotprod")))

    @property
    def has_fast_division(self) -> bool:
        """Whether dividing vectors is cheaper than multiplying by an exact reciprocal."""
        return self._processor.has_fast_division

    @property
    def is_issue_bound(self) -> bool:
        """Whether instruction issue, and not the number of FMAs, limits matrix products."""
        return self._processor.is_issue_bound

    @property
    def prefetches_across_pages(self) -> bool:
        """Whether hardware prefetching crosses pages: one stream is as fast as several."""
        return self._processor.prefetches_across_pages

    @property
    def l1_ways(self) -> int:
        """Associativity of the L1 cache, as lines that are whole pages apart."""
        return max(1, self.l1_bytes // PAGE)

    def fits_l1_sets(self, lines: int, distance: int | None) -> bool:
        """Return whether the L1 cache holds `lines` lines at a distance of `distance` bytes.

        With `distance` None the distance is unknown, and the worst case counts.

        >>> target = replace(Target.for_isa("avx512"), l1_bytes=32 << 10)
        >>> [target.fits_l1_sets(12, apart) for apart in (4096, 3072, 2048, None)]
        [False, True, True, False]
        """
        if lines <= self.l1_ways or distance is None:
            return lines <= self.l1_ways
        sets = PAGE // self.line_bytes
        lines_per_set = Counter(i * distance // self.line_bytes % sets for i in range(lines))
        return max(lines_per_set.values()) <= self.l1_ways

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of `itemsize` bytes fill a vector register."""
        return max(1, self.vector_bytes // itemsize)

    @property
    def tiling(self) -> Tiling:
        """Blocks and parts of kernels: the same for every CPU, and so are the results."""
        return CPU_TILING

    # A machine's facts ----------------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Threads that share a kernel: one on each core."""
        return self.cores

    @property
    def architecture(self) -> str:
        """The instruction set."""
        return self.isa

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of memory, from the smallest."""
        return LEVELS

    @property
    def fast_bytes(self) -> int:
        """The second-level cache, which holds the values of one task."""
        return self.l2_bytes

    @property
    def cache_bytes(self) -> int:
        """The last-level cache."""
        return self.l3_bytes

    @property
    def chunk_bytes(self) -> int | None:
        """Bytes above which values between kernels are worth chunks of rows."""
        return self.l3_bytes

    @property
    def peak_gflops(self) -> float:
        """Float32 operations per nanosecond of all cores."""
        return self.fma_gflops * self.cores

    @property
    def planning(self) -> Target:
        """The machine with figures to plan by: those of its class.

        Measured figures differ from machine to machine and from one measurement to the next, and a
        program should get the same plan on all machines of a class, before any measurement and
        after each.

        >>> slow = replace(Target.for_isa("avx2"), measured=True, fma_gflops=20.0)
        >>> slow.planning == Target.for_isa("avx2").planning
        True
        """
        return _class_target(self) if self.measured else self

    def with_cache(self, nbytes: int) -> Target:
        """Return the same machine with a last-level cache of `nbytes`."""
        return replace(self, l3_bytes=nbytes)

    def level_bytes(self, level: Level) -> int | None:
        """Return the bytes of a level; None for main memory."""
        return {"l1": self.l1_bytes, "l2": self.l2_bytes, "l3": self.l3_bytes}.get(level)

    def is_near(self, nbytes: int) -> bool:
        """Return whether a core's own caches keep so many bytes of a task."""
        return self.level(nbytes, 1) in ("l1", "l2")

    @property
    def gemm_tasks(self) -> int:
        """Tasks that a product is cut into before blocks grow.

        Two per core, at most `MAX_GEMM_TASKS`: a late task then costs half of a core's work.
        """
        return min(2 * self.cores, MAX_GEMM_TASKS)

    @property
    def feature_string(self) -> str:
        """LLVM's feature string for `self.cpu`, such as `+avx2,+fma,-avx512f`.

        The minus signs matter: a virtual machine may hide what its CPU's name promises.
        """
        plus = [f"+{name}" for name in self.features]
        return ",".join([*plus, *(f"-{name}" for name in self.disabled)])

    def fingerprint(self) -> str:
        """Return a hash of everything that decides which machine code is valid.

        Tuning figures do not count.
        """
        identity = [
            self.triple,
            self.cpu,
            self.isa,
            sorted(self.features),
            sorted(self.disabled),
            self.vector_bytes,
            self.registers,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    # Rates ----------------------------------------------------------------------------------

    def level(self, footprint: int, threads: int = 1) -> Level:
        """Return the smallest memory level that keeps `footprint` bytes between two uses.

        L1 and L2 belong to a core: `threads` threads share a footprint evenly among theirs.
        """
        share = footprint / max(1, min(threads, self.cores))
        if share <= CACHE_SHARE * self.l1_bytes:
            return "l1"
        if share <= CACHE_SHARE * self.l2_bytes:
            return "l2"
        return "l3" if footprint <= CACHE_SHARE * self.l3_bytes else "dram"

    def bandwidth(self, level: Level, kind: Kind, threads: int | None = None) -> float:
        """Return the GB/s of `threads` threads together (default: all).

        Interpolates between the figures for one thread and for all.
        """
        many = cast(float, getattr(self.all_threads.at(level), kind))
        if threads is None or threads >= self.cores:
            return many
        one = cast(float, getattr(self.one_thread.at(level), kind))
        return one + (many - one) * (max(1, threads) - 1) / max(1, self.cores - 1)

    def transfer_ns(
        self,
        read: int,
        written: int,
        level: Level = "dram",
        threads: int | None = None,
    ) -> float:
        """Return a lower bound in ns for moving `read` and `written` bytes.

        Pairs of read and written bytes run at the copy rate, the rest at the rate of its direction.
        Writes to main memory count as non-temporal where that was measured to be faster.
        """
        paired = min(read, written)
        copy = self.bandwidth(level, "copy", threads)
        write = self.bandwidth(level, "write", threads)
        if level == "dram":
            copy, write = max(copy, self.nt_copy_gbs), max(write, self.nt_store_gbs)
        rest = (read - paired) / self.bandwidth(level, "read", threads)
        return 2 * paired / copy + rest + (written - paired) / write

    @property
    def unit_ns(self) -> float:
        """Nanoseconds of one unit of an operator row's cost: sixteen float32 elements on one core.

        A unit is a cycle in which two multiply-adds of sixteen lanes retire; narrower vectors need
        more cycles for sixteen elements, as their lower `fma_gflops` states.
        """
        return self.op_cost_scale * 16 * 2 * 2 / self.fma_gflops

    def compute_ns(self, cost: float, elements: float, itemsize: int = 4) -> float:
        """Return the ns of operators of total row cost `cost` on `elements`, on one core."""
        return cost * self.unit_ns * elements * itemsize / 64

    # Text -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return all fields as JSON, with sorted keys."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Target:
        """Parse the output of `to_json`; raise ValueError for anything else."""
        data: Any = json.loads(text)
        try:
            target: Target = from_data(cls, {**data, **{f.name: data[f.name] for f in fields(cls)}})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a target description: {error}") from error
        target.check()
        return target

    def check(self) -> None:
        """Raise ValueError if a figure is missing, not a number, or not above zero."""
        if self.isa not in INSTRUCTION_SETS:
            raise ValueError(f"unknown instruction set {self.isa!r}")
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.type in ("int", "float")}
        for side in ("one_thread", "all_threads"):
            for level in LEVELS:
                rates = asdict(getattr(self, side).at(level))
                flat.update({f"{side}.{level}.{kind}": value for kind, value in rates.items()})
        flat.update({f"op_ns.{name}": value for name, value in self.op_ns.items()})
        for name, value in flat.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}, not a number")
            if not 0 < value < 1e15:
                raise ValueError(f"{name} is {value!r}, not a positive finite figure")

    # Makers ---------------------------------------------------------------------------------

    @classmethod
    def host(cls) -> Target:
        """Return the running machine, without measuring anything."""
        return cls.from_processor(processor(), usable_cores())

    @classmethod
    def from_processor(cls, host_processor: Processor, cores: int) -> Target:
        """Return this machine with the given processor and cores, limited by the knob HOST_ISA."""
        return _of_processor(
            limit_isa(permitted_processor(host_processor), knobs.HOST_ISA.get()), cores
        )

    @classmethod
    def for_isa(cls, isa: Isa, cores: int = 2, cpu: str | None = None) -> Target:
        """Return a machine of an instruction set with default figures, for tests.

        `cpu` is LLVM's name of a processor, whose class's figures it has; by default it is generic.
        """
        if isa not in INSTRUCTION_SETS:
            raise ValueError(
                f"unknown instruction set {isa!r}: choose from {', '.join(INSTRUCTION_SETS)}"
            )
        row = INSTRUCTION_SETS[isa]
        sizes = CacheSizes(48 << 10, 1 << 20, 32 << 20, 64)
        target = cls(
            name=isa,
            triple=f"{row.arch}-unknown-linux-gnu",
            cpu=cpu or row.cpu,
            features=row.features,
            isa=isa,
            vector_bytes=row.vector_bytes,
            registers=row.registers,
        )
        return _with_defaults(target, sizes, cores)


def default_bandwidth(vector_bytes: int, threads: int) -> Bandwidth:
    """Return the default bandwidth of `threads` threads together for a vector width.

    Inside L1 and L2 the width of a load is the limit and cores add up; L3 and main memory are
    shared, and one thread nearly saturates the latter.
    """
    width = vector_bytes / 64
    shared = min(threads, 8) ** 0.9
    return _never_rising(
        Rates(580 * width * threads, 290 * width * threads, 580 * width * threads),
        Rates(280.0 * threads, 280.0 * threads, 280.0 * threads),
        Rates(126.0 * shared, 125.0 * shared, 130.0 * shared),
        Rates(38.0, 32.0, 44.0) if threads == 1 else Rates(40.0, 34.0, 46.0),
    )


def _never_rising(*levels: Rates) -> Bandwidth:
    """Return the rates of the levels, none above that of an inner level."""
    rows: list[Rates] = []
    for level in levels:
        above = rows[-1] if rows else level
        rows.append(
            Rates(
                min(level.read, above.read),
                min(level.write, above.write),
                min(level.copy, above.copy),
            )
        )
    return Bandwidth(*rows)


def limit_isa(cpu: Processor, widest: HostIsa) -> Processor:
    """Disable the features that an x86 instruction set lacks; `auto` keeps all.

    Processors of other architectures are returned unchanged.

    >>> mine = Processor("x86_64-linux-gnu", "znver4", ("avx2", "avx512f", "sse2"), ())
    >>> limit_isa(mine, "avx2").features, limit_isa(mine, "portable").disabled
    (('avx2', 'sse2'), ('avx2', 'avx512f'))
    >>> arm = Processor("arm64-apple-darwin", "apple-m1", ("neon",), ())
    >>> limit_isa(arm, "avx2") is arm
    True
    """
    if widest == "auto" or not cpu.triple.startswith(INSTRUCTION_SETS[widest].arch):
        return cpu
    enabled = tuple(name for name in cpu.features if name in INSTRUCTION_SETS[widest].features)
    lost = set(cpu.features) - set(enabled)
    return replace(cpu, features=enabled, disabled=tuple(sorted((*cpu.disabled, *lost))))


@cache
def _of_processor(cpu: Processor, cores: int) -> Target:
    isa = classify(cpu.triple, frozenset(cpu.features))
    row = INSTRUCTION_SETS[isa]
    target = Target(
        name=cpu_model(),
        triple=cpu.triple,
        cpu=cpu.cpu,
        features=cpu.features,
        disabled=cpu.disabled,
        isa=isa,
        vector_bytes=row.vector_bytes,
        registers=row.registers,
    )
    return _with_defaults(target, cache_sizes(), cores)


def _with_defaults(target: Target, sizes: CacheSizes, cores: int) -> Target:
    """Return `target` with its topology and its class's figures."""
    return _with_class_figures(
        replace(
            target,
            cores=cores,
            l1_bytes=sizes.l1,
            l2_bytes=sizes.l2,
            l3_bytes=sizes.l3,
            line_bytes=sizes.line,
        )
    )


_NONTEMPORAL_GAIN = 1.3
"""Rate of non-temporal stores relative to others, which read what they overwrite."""
_DRAM_WRITE_SHARE = 0.85
"""Rate of writes to main memory relative to reads."""


def _with_class_figures(target: Target) -> Target:
    """Return `target` with the figures of its processor's class, or of its instruction set."""
    speeds = PROCESSORS.get(target.cpu, _USUAL).speeds
    if speeds is None:
        return replace(
            target,
            one_thread=default_bandwidth(target.vector_bytes, 1),
            all_threads=default_bandwidth(target.vector_bytes, target.cores),
            fma_gflops=288.0 * target.vector_bytes / 64,
        )
    fma_bytes = min(speeds.fma_bytes, 2 * target.vector_bytes)
    many = _class_bandwidth(speeds, target.vector_bytes, target.cores)
    return replace(
        target,
        one_thread=_class_bandwidth(speeds, target.vector_bytes, 1),
        all_threads=many,
        nt_store_gbs=_NONTEMPORAL_GAIN * many.dram.write,
        nt_copy_gbs=_NONTEMPORAL_GAIN * many.dram.copy,
        fma_gflops=speeds.ghz * fma_bytes / 4 * 2,
        op_cost_scale=speeds.exp_cost,
    )


def _class_bandwidth(speeds: Speeds, vector_bytes: int, threads: int) -> Bandwidth:
    """Return the bandwidth of `threads` threads together on a class of processors.

    Main memory grows with the root of the threads, between a desktop, whose memory one core
    nearly fills, and a server with a channel for each few cores.
    """
    alone = speeds.ghz * threads
    shared = speeds.ghz * min(threads, 8) ** 0.9
    l1_read = min(speeds.l1_read_bytes, 2 * vector_bytes) * alone
    l1_write = min(speeds.l1_write_bytes, vector_bytes) * alone
    l2, l3, dram = speeds.l2_bytes * alone, speeds.l3_bytes * shared, speeds.dram_gbs * threads**0.5
    return _never_rising(
        Rates(l1_read, l1_write, l1_read),
        Rates(l2, l2, l2),
        Rates(l3, l3, l3),
        Rates(dram, dram * _DRAM_WRITE_SHARE, dram),
    )


_IDENTITY = (
    *("name", "triple", "cpu", "features", "isa", "vector_bytes", "registers", "disabled"),
    *("cores", "l1_bytes", "l2_bytes", "l3_bytes", "line_bytes"),
)
"""The fields that nothing measures."""


@lru_cache(maxsize=16)
def _class_target(target: Target) -> Target:
    """Return a measured machine with its class's figures instead."""
    identity: Any = {name: getattr(target, name) for name in _IDENTITY}
    return _with_class_figures(Target(**identity))
