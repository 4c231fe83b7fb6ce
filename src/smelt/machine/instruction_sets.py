"""Facts about instruction sets and processors, as tables.

A decision of the planner or of the code generator asks for a fact; only this table knows which set
has it, so that a new set is a new row.

>>> [name for name, row in INSTRUCTION_SETS.items() if row.masked_memory == "every"]
['avx512']
"""

from __future__ import annotations

from typing import Literal

from smelt.python.dataclass import dataclass

Isa = Literal["avx512", "avx2", "portable", "neon", "neon-bf16"]
Permutes = Literal["fixed", "one register", "two registers"]


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set: what code may use, LLVM's generic CPU for it, and facts for decisions."""

    cpu: str
    arch: str
    features: tuple[str, ...]
    """LLVM's features that every processor of the set has."""
    vector_bytes: int
    registers: int
    """Vector registers."""
    masked_memory: Literal["none", "words", "every"]
    """Elements that one instruction loads or stores under a mask: `words` have 32 or 64 bits."""
    has_mask_registers: bool = False
    """Whether comparisons of any width give a bit a lane, in registers of their own."""
    has_float_parts: bool = False
    """Whether one instruction scales by a power of two, or gives exponent, fraction or extreme."""
    has_vector_floor: bool = True
    """Whether one instruction rounds the lanes of a vector to integers."""
    has_slow_division: bool = False
    """Whether most processors multiply by an exact reciprocal faster than they divide."""
    permutes: Permutes = "fixed"
    """Whether lanes are picked by positions in a register, from one or two others."""
    register_constraint: str = ""
    """Letter of a vector register in assembly, by which values are kept in order; none if empty."""
    store_fence: str = ""
    """Intrinsic after which non-temporal stores are visible; a full fence if empty."""

    @property
    def summary(self) -> str:
        """The facts in words."""
        masks = {"none": "no masked memory", "words": "masked words", "every": "masked memory"}
        parts = [
            f"{self.vector_bytes * 8}-bit vectors",
            f"{self.registers} registers",
            masks[self.masked_memory],
            *(["mask registers"] if self.has_mask_registers else []),
            *([f"{self.permutes.replace(' ', '-')} permutes"] if self.permutes != "fixed" else []),
        ]
        return ", ".join(parts)


_V1 = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V3 = (
    *_V1,
    *("avx", "avx2", "bmi", "bmi2", "crc32", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt"),
    *("sahf", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave"),
)
_AVX512 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_NEON = ("dotprod", "fp-armv8", "lse", "neon", "rdm")
_X86_FENCE = "llvm.x86.sse.sfence"

INSTRUCTION_SETS: dict[Isa, InstructionSet] = {
    "avx512": InstructionSet(
        cpu="x86-64-v4",
        arch="x86_64",
        features=tuple(sorted((*_V3, *_AVX512))),
        vector_bytes=64,
        registers=32,
        masked_memory="every",
        has_mask_registers=True,
        has_float_parts=True,
        has_slow_division=True,
        permutes="two registers",
        register_constraint="v",
        store_fence=_X86_FENCE,
    ),
    "avx2": InstructionSet(
        cpu="x86-64-v3",
        arch="x86_64",
        features=tuple(sorted(_V3)),
        vector_bytes=32,
        registers=16,
        masked_memory="words",
        permutes="one register",
        register_constraint="v",
        store_fence=_X86_FENCE,
    ),
    # Armv8.2 with dot products: Graviton2, Apple M1 and later.
    "neon": InstructionSet(
        cpu="generic",
        arch="aarch64",
        features=_NEON,
        vector_bytes=16,
        registers=32,
        masked_memory="none",
    ),
    # Armv8.6: Graviton3, Apple M2 and later.
    "neon-bf16": InstructionSet(
        cpu="generic",
        arch="aarch64",
        features=tuple(sorted((*_NEON, "bf16", "i8mm"))),
        vector_bytes=16,
        registers=32,
        masked_memory="none",
    ),
    "portable": InstructionSet(
        cpu="x86-64",
        arch="x86_64",
        features=_V1,
        vector_bytes=16,
        registers=16,
        masked_memory="none",
        has_vector_floor=False,
        store_fence=_X86_FENCE,
    ),
}


def classify(triple: str, features: frozenset[str]) -> Isa:
    """Return the widest instruction set of `Isa` for these LLVM features."""
    if triple.startswith(("aarch64", "arm64")):
        return "neon-bf16" if "bf16" in features else "neon"
    if features.issuperset({"avx2", "fma", *_AVX512}):
        return "avx512"
    return "avx2" if features.issuperset({"avx2", "fma", "f16c"}) else "portable"


@dataclass(frozen=True)
class Speeds:
    """Published speeds of a class of processors: a core's bytes per cycle at each unit.

    `dram_gbs` is what one core draws from main memory, and `exp_cost` the time of an operator
    row's unit of cost relative to a multiply-add: below 1 where other operations have ports of
    their own. Sources: AMD's software optimization guides (families 17h, 19h, 1Ah), Intel's
    optimization reference manual, Arm's optimization guides for Neoverse, and Agner Fog's tables.
    """

    ghz: float
    """Clock of a server while all cores use vectors of the full width."""
    fma_bytes: int
    l1_read_bytes: int
    l1_write_bytes: int
    l2_bytes: int
    l3_bytes: float
    """Sustained, while the other cores use their share of the ring or mesh."""
    dram_gbs: float
    exp_cost: float = 1.0


@dataclass(frozen=True)
class ProcessorFacts:
    """Facts about processors that have no name among features."""

    has_slow_bf16_dot: bool = False
    """Whether one vdpbf16ps issues every other cycle but two FMAs per cycle: bfloat16 dot products
    are no faster than float32. The fast bfloat16 path is AMX, which a virtual machine may hide."""
    has_fast_division: bool = False
    """Whether vector division is cheaper than the ten or more instructions of an exact
    multiplication by a reciprocal. Elsewhere a division has a much lower throughput, above all with
    subnormal operands."""
    is_issue_bound: bool = False
    """Whether four instructions issue per cycle, two of which may be FMAs of the full width: others
    in a microkernel, such as prefetches of lines that are in L2 already, displace FMAs."""
    prefetches_across_pages: bool = True
    """Whether hardware prefetching crosses pages; else a single stream stalls at each."""
    speeds: Speeds | None = None
    """Speeds to plan by until they are measured; those of the instruction set if None."""


# fmt: off
_HASWELL_SPEEDS  = Speeds(2.8,  64,  64, 32, 32, 10, 12)
_SKYLAKE_SPEEDS  = Speeds(2.8, 128, 128, 64, 48,  9, 12)
_ICE_LAKE_SPEEDS = Speeds(3.0, 128, 128, 64, 48,  9, 13)
_ZEN2_SPEEDS     = Speeds(3.2,  64,  64, 32, 32, 24, 20, 0.75)
_ZEN3_SPEEDS     = Speeds(3.4,  64,  64, 32, 32, 26, 25, 0.75)
_ZEN4_SPEEDS     = Speeds(3.7,  64,  64, 32, 32, 26, 30, 0.75)
_ZEN5_SPEEDS     = Speeds(4.1, 128, 128, 64, 64, 31, 38, 0.85)
_NEOVERSE_SPEEDS = Speeds(2.6,  32,  32, 16, 24, 10, 18)
_NEOVERSE_V_SPEEDS = Speeds(2.7, 64, 48, 32, 32, 12, 25)
# fmt: on
_SKYLAKE = ProcessorFacts(
    is_issue_bound=True, prefetches_across_pages=False, speeds=_SKYLAKE_SPEEDS
)
PROCESSORS: dict[str, ProcessorFacts] = {
    **dict.fromkeys(("haswell", "broadwell", "skylake"), ProcessorFacts(speeds=_HASWELL_SPEEDS)),
    "skylake-avx512": _SKYLAKE,
    "cascadelake": _SKYLAKE,
    "cooperlake": ProcessorFacts(
        has_slow_bf16_dot=True,
        is_issue_bound=True,
        prefetches_across_pages=False,
        speeds=_SKYLAKE_SPEEDS,
    ),
    "icelake-server": ProcessorFacts(speeds=_ICE_LAKE_SPEEDS),
    **dict.fromkeys(
        ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"),
        ProcessorFacts(has_slow_bf16_dot=True, speeds=_ICE_LAKE_SPEEDS),
    ),
    "znver2": ProcessorFacts(speeds=_ZEN2_SPEEDS),
    "znver3": ProcessorFacts(speeds=_ZEN3_SPEEDS),
    "znver4": ProcessorFacts(speeds=_ZEN4_SPEEDS),
    "znver5": ProcessorFacts(has_fast_division=True, speeds=_ZEN5_SPEEDS),
    **dict.fromkeys(("neoverse-n1", "neoverse-n2"), ProcessorFacts(speeds=_NEOVERSE_SPEEDS)),
    **dict.fromkeys(("neoverse-v1", "neoverse-v2"), ProcessorFacts(speeds=_NEOVERSE_V_SPEEDS)),
}
"""Facts by LLVM's name of the processor; the defaults hold for others."""
