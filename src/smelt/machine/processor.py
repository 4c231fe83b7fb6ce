"""Detection of the host processor, and the table of instruction sets.

Only `processor` needs LLVM, whose import takes longer than everything else here: it is the last
resort (`smelt.runtime.host` caches its result).

>>> usable_cores() >= 1
True
>>> [name for name, row in INSTRUCTION_SETS.items() if row.masked_memory == "every"]
['avx512']
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from smelt.packages.installed import import_compiler
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

_TUNING_PREFIXES = ("prefer-", "slow-", "fast-", "false-deps-", "tuning-", "idivl-", "idivq-")


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor in LLVM's terms: target triple, name, enabled and disabled features."""

    triple: str
    cpu: str
    features: tuple[str, ...]
    disabled: tuple[str, ...]


@dataclass(frozen=True)
class CacheSizes:
    """Data cache sizes in bytes: L1 and L2 per core, shared L3, cache line."""

    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 8 << 20
    line: int = 64


L3_BYTES_PER_CPU = 16 << 20
"""Maximum L3 bytes to count per visible CPU. A virtual machine with a few CPUs sees the L3 of a
whole socket that other tenants use as well; data that is written once and read once is then
better stored with non-temporal stores."""

_CPUS = Path("/sys/devices/system/cpu")


def _read_file(path: Path, most: int = 1 << 12) -> str:
    """Return the first `most` bytes of a system file, stripped; empty if it is missing.

    System files may be long (one entry per CPU) and are generated while they are read.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(file, most).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(file)


def cache_sizes(cpus: Path = _CPUS) -> CacheSizes:
    """Return the first CPU's cache sizes from sysfs, with defaults for missing entries.

    The L3 size is limited to `L3_BYTES_PER_CPU` bytes for each CPU that shares it.
    """
    sizes_by_name: dict[str, int] = {}
    for index in sorted(cpus.glob("cpu0/cache/index*")):
        if _read_file(index / "type") not in ("Data", "Unified"):
            continue
        size, line = _read_file(index / "size"), _read_file(index / "coherency_line_size")
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit() and int(digits) > 0:
            level, sharing = (
                _read_file(index / "level"),
                _count_cpus(_read_file(index / "shared_cpu_list")),
            )
            nbytes = int(digits) * scale
            shared = level == "3" and sharing > 0
            sizes_by_name[f"l{level}"] = (
                min(nbytes, L3_BYTES_PER_CPU * sharing) if shared else nbytes
            )
        if line.isdigit() and int(line) > 0:
            sizes_by_name["line"] = int(line)
    defaults = CacheSizes()
    return replace(defaults, **{k: v for k, v in sizes_by_name.items() if hasattr(defaults, k)})


def _count_cpus(text: str) -> int:
    """Return the number of CPUs in a kernel CPU list.

    >>> _count_cpus("0-3,8"), _count_cpus("0"), _count_cpus("")
    (5, 1, 0)
    """
    ends = [part.split("-") for part in text.split(",") if part]
    if not all(end.isdigit() for part in ends for end in part):
        return 0
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


_CPUINFO = Path("/proc/cpuinfo")


def _cpuinfo(path: Path) -> dict[str, str]:
    """Return the /proc/cpuinfo entries of the first processor."""
    pairs: dict[str, str] = {}
    for line in _read_file(path, 1 << 14).split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        pairs.setdefault(key.strip(), value.strip())
    return pairs


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """Return the CPU's name as the system prints it, with family, model and stepping."""
    pairs = _cpuinfo(cpuinfo)
    name = pairs.get("model name") or platform.processor() or platform.machine()
    numbers = [pairs.get(key, "") for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'.'.join(numbers)})" if all(numbers) else name


def processor_identity(cpuinfo: Path = _CPUINFO) -> str:
    """Return a text that identifies the available instructions; empty if the system gives none.

    The flags are those that processor, hypervisor and kernel together allow.
    """
    pairs = _cpuinfo(cpuinfo)
    keys = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    if "Features" in pairs:  # Arm's Linux
        keys = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")
    elif "flags" not in pairs:
        return ""
    return json.dumps([pairs.get(name, "") for name in keys])


def usable_cores() -> int:
    """Return the physical cores that this process may use; hyper-threads count once.

    Container quotas are not considered here: `runtime.quota` reads them, `runtime.probe` applies
    them.
    """
    try:
        cpus: list[int] = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return max(1, os.cpu_count() or 1)
    topology = [_CPUS / f"cpu{cpu}/topology" for cpu in cpus]
    cores = {
        (
            _read_file(where / "physical_package_id"),
            _read_file(where / "core_id") or where.parent.name,
        )
        for where in topology
    }
    return max(1, len(cores))


_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18
"""Linux x86-64 system call arch_prctl, its code ARCH_REQ_XCOMP_PERM, and the AMX tile data
component."""


@cache
def _amx_permitted() -> bool:
    """Request AMX tile registers from Linux; return whether the process may use them.

    Each process has to request them, because signal frames of its threads then need room for them.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    ctypes: Any = fork_safe_import("ctypes")
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0


def permitted_processor(cpu: Processor) -> Processor:
    """Return the processor without features that the system denies to this process."""
    tiles = {name for name in cpu.features if name.startswith("amx-")}
    if not tiles or _amx_permitted():
        return cpu
    allowed = tuple(name for name in cpu.features if name not in tiles)
    return replace(cpu, features=allowed, disabled=tuple(sorted((*cpu.disabled, *tiles))))


_ARM_FEATURES: Mapping[str, str] = {"asimddp": "dotprod", "asimdrdm": "rdm", "atomics": "lse"} | {
    name: name for name in ("bf16", "i8mm")
}
"""LLVM's names of features by those of Linux, which LLVM itself leaves out."""


def arm_features(cpuinfo: Path = _CPUINFO) -> dict[str, bool]:
    """Return the features of Arm processors that Linux reports; empty on others."""
    reported = set(_cpuinfo(cpuinfo).get("Features", "").split())
    return {llvm_name: True for name, llvm_name in _ARM_FEATURES.items() if name in reported}


_LINUX_NAMES: Mapping[str, str] = {
    "64bit": "lm",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "sahf": "lahf_lm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "neon": "asimd",
    "fp-armv8": "fp",
    **{llvm_name: linux_name for linux_name, llvm_name in _ARM_FEATURES.items()},
}
"""Linux's names of features by those of LLVM, where no rule gives them."""
_NEVER_EMITTED = frozenset(
    {
        *("aes", "cldemote", "clflushopt", "clwb", "clzero", "enqcmd", "fsgsbase", "fxsr"),
        *("hreset", "invlpgb", "invpcid", "kl", "lwp", "mmx", "movdir64b", "movdiri", "mwaitx"),
        *("pclmul", "pconfig", "pku", "prfchw", "ptwrite", "rdpid", "rdpru", "rdrnd", "rdseed"),
        *("rtm", "serialize", "sgx", "sha", "shstk", "tsxldtrk", "uintr", "vaes", "vpclmulqdq"),
        *("waitpkg", "wbnoinvd", "widekl", "xsave", "xsavec", "xsaveopt", "xsaves"),
    }
)
"""Features whose instructions LLVM emits only where a program names them; ours name none."""


def linux_names(features: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return Linux's names of the features that code may use, by LLVM's names."""
    names = {f: _LINUX_NAMES.get(f, f.replace("-", "_")) for f in {*features} - _NEVER_EMITTED}
    return {f: tuple(dict.fromkeys((n, n.replace("512", "512_")))) for f, n in names.items()}


def missing_features(features: Iterable[str], cpuinfo: Path = _CPUINFO) -> list[str]:
    """Return the features that code may use and Linux does not report; needs no LLVM.

    `features` have LLVM's names. A feature that Linux names otherwise counts as missing.
    """
    pairs = _cpuinfo(cpuinfo)
    reported = set(f"{pairs.get('flags', '')} {pairs.get('Features', '')}".split())
    return sorted(f for f, names in linux_names(features).items() if reported.isdisjoint(names))


def system_triple() -> str:
    """Return LLVM's triple of this system where it is known without LLVM; else empty."""
    is_known = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
    return f"{platform.machine()}-unknown-linux-gnu" if is_known else ""


@cache
def processor() -> Processor:
    """Detect this processor with LLVM, which the first call imports."""
    llvm: Any = import_compiler("smelt.packages.llvm").llvm  # which guards LLVM against forks
    flags = {**cast("Mapping[str, bool]", llvm.get_host_cpu_features()), **arm_features()}
    isa_flags = {k: on for k, on in flags.items() if not k.startswith(_TUNING_PREFIXES)}
    return Processor(
        str(llvm.get_process_triple()),
        str(llvm.get_host_cpu_name()),
        tuple(sorted(name for name, present in isa_flags.items() if present)),
        tuple(sorted(name for name, present in isa_flags.items() if not present)),
    )


# ---- instruction sets ---------------------------------------------------------------------------
#
# A decision of the planner or of the code generator asks for a fact; only this table knows which
# set has it, so that a new set is a new row.

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
