"""The processor this process runs on, as the system and LLVM tell: instructions, caches, cores.

Only `processor` asks LLVM, whose import takes longer than everything else here: it is the last one
to ask (`smelt.runtime.host` keeps the answer).

>>> usable_cores() >= 1
True
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from smelt.dataclass import dataclass
from smelt.imports import imported

_TUNING_PREFIXES = ("prefer-", "slow-", "fast-", "false-deps-", "tuning-", "idivl-", "idivq-")


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor in LLVM's words: target triple, name, and features it has and has not."""

    triple: str
    cpu: str
    features: tuple[str, ...]
    disabled: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """The fields as JSON data."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Processor:
        """The inverse of `to_data`.  Raises KeyError or TypeError if it is not that."""
        lists = (tuple(map(str, data[name])) for name in ("features", "disabled"))
        return Processor(str(data["triple"]), str(data["cpu"]), *lists)


@dataclass(frozen=True)
class CacheSizes:
    """Data cache sizes in bytes: L1 and L2 of one core, L3 as shared, and the line."""

    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 8 << 20
    line: int = 64


SHARE = 16 << 20
"""Bytes of a third cache for each CPU that the system shows at it, at most.  A virtual machine with
a few CPUs is shown the cache of the whole socket, whose other tenants use it as well: what is
written once and read once is then better stored past it."""

_CPUS = Path("/sys/devices/system/cpu")


def _text(path: Path, most: int = 1 << 12) -> str:
    """Contents of a system file without the line end, up to `most` bytes; empty where there is
    none.  Files of a system may be long (one entry a CPU) and are made up while they are read."""
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
    """Cache sizes of the first CPU from sysfs, with plain defaults for what is not told; of the
    third level what the CPUs that are shown may count on."""
    found: dict[str, int] = {}
    for index in sorted(cpus.glob("cpu0/cache/index*")):
        if _text(index / "type") not in ("Data", "Unified"):
            continue
        size, line = _text(index / "size"), _text(index / "coherency_line_size")
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit() and int(digits) > 0:
            level, sharing = _text(index / "level"), _listed(_text(index / "shared_cpu_list"))
            nbytes = int(digits) * scale
            shared = level == "3" and sharing > 0
            found[f"l{level}"] = min(nbytes, SHARE * sharing) if shared else nbytes
        if line.isdigit() and int(line) > 0:
            found["line"] = int(line)
    sizes = CacheSizes()
    return replace(sizes, **{k: v for k, v in found.items() if hasattr(sizes, k)})


def _listed(text: str) -> int:
    """How many CPUs a list of the system's names.

    >>> _listed("0-3,8"), _listed("0"), _listed("")
    (5, 1, 0)
    """
    ends = [part.split("-") for part in text.split(",") if part]
    if not all(end.isdigit() for part in ends for end in part):
        return 0
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ends)


_CPUINFO = Path("/proc/cpuinfo")


def _cpuinfo(path: Path) -> dict[str, str]:
    """What the system tells of the first processor."""
    pairs: dict[str, str] = {}
    for line in _text(path, 1 << 14).split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        pairs.setdefault(key.strip(), value.strip())
    return pairs


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The CPU's name as the system prints it, with family, model and stepping where known."""
    pairs = _cpuinfo(cpuinfo)
    name = pairs.get("model name") or platform.processor() or platform.machine()
    numbers = [pairs.get(key, "") for key in ("cpu family", "model", "stepping")]
    return f"{name} ({'.'.join(numbers)})" if all(numbers) else name


def processor_identity(cpuinfo: Path = _CPUINFO) -> str:
    """What decides which instructions there are, as the system tells it; empty where it does not.

    The flags are what processor, hypervisor and kernel together allow.
    """
    pairs = _cpuinfo(cpuinfo)
    if "flags" not in pairs:
        return ""
    kept = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    return json.dumps([pairs.get(key, "") for key in kept])


def usable_cores() -> int:
    """Physical cores that this process may run on, hyper-threads counted once.

    A container's quota is not looked at: `runtime.quota` knows it, `runtime.probe` applies it.
    """
    try:
        cpus: list[int] = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return max(1, os.cpu_count() or 1)
    topology = [_CPUS / f"cpu{cpu}/topology" for cpu in cpus]
    cores = {
        (_text(where / "physical_package_id"), _text(where / "core_id") or where.parent.name)
        for where in topology
    }
    return max(1, len(cores))


_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18
"""Linux's call on x86-64, what it is asked, and for which registers."""


@cache
def _may_use_tiles() -> bool:
    """Whether Linux lets this process use AMX's tile registers, for which each process must ask:
    its threads then need room for them where they are interrupted."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    ctypes: Any = imported("ctypes")
    return ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0


def permitted(found: Processor) -> Processor:
    """The processor without what the system does not let this process use."""
    tiles = {name for name in found.features if name.startswith("amx-")}
    if not tiles or _may_use_tiles():
        return found
    kept = tuple(name for name in found.features if name not in tiles)
    return replace(found, features=kept, disabled=tuple(sorted((*found.disabled, *tiles))))


@cache
def processor() -> Processor:
    """This processor, by LLVM's word; the first call imports it."""
    llvm: Any = imported("llvmlite.binding")
    flags = cast("Mapping[str, bool]", llvm.get_host_cpu_features())
    isa_flags = {k: on for k, on in flags.items() if not k.startswith(_TUNING_PREFIXES)}
    return Processor(
        str(llvm.get_process_triple()),
        str(llvm.get_host_cpu_name()),
        tuple(sorted(name for name, present in isa_flags.items() if present)),
        tuple(sorted(name for name, present in isa_flags.items() if not present)),
    )
