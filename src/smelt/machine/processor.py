"""Detection of the host processor: instruction set, caches and cores.

Only `processor` needs LLVM, whose import takes longer than everything else here: it is the last
resort (`smelt.runtime.host` caches its result).

>>> usable_cores() >= 1
True
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

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
