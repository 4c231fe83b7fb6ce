"""Describe the machine this process runs on, from cached detection and measurements.

LLVM reports which instructions the processor has, but importing it is slow, so the answer is
cached under what the operating system reports about the processor. The figures that
`smelt.runtime.probe` measures are stored as JSON next to the cached code, under the machine's
identity: the samples taken so far, and the figures in force once all were settled. They are
measured again after `figures.EXPIRY_S`, or when calls contradict them (`renew`).

>>> host_target().triple == Target.host().triple
True
>>> budget = cpu_budget(requested=1)
>>> budget.threads, budget.source
(1, 'SMELT_THREADS')
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from smelt import knobs
from smelt.machine.processor import (
    Processor,
    permitted_processor,
    processor,
    processor_identity,
    usable_cores,
)
from smelt.machine.target import HostIsa, Target, TargetChoice, limit_isa
from smelt.packages.installed import llvm_version
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import
from smelt.runtime import figures
from smelt.runtime.cache import Cache, Folder, Refused
from smelt.runtime.figures import Samples
from smelt.types.json_data import from_data, to_data

FORMAT = 3
"""Version of the stored file and of the way of measuring; other versions are ignored."""

MAX_STORED_BYTES = 1 << 16
"""Largest file of figures that is read."""


@dataclass(frozen=True)
class Record:
    """What is stored about this machine: the figures in force, if any, and the samples so far."""

    target: Target | None
    samples: Samples
    until: float
    """Time, in seconds since the epoch, before which the figures are not measured again."""


def host() -> Target:
    """Return this machine's target, or the one that the knob TARGET selects.

    The cost model's figures are measured once and stored; until then, defaults are used.
    """
    return _host(knobs.TARGET.get(), knobs.HOST_ISA.get())


@lru_cache(maxsize=8)
def _host(choice: TargetChoice, host_isa: HostIsa) -> Target:
    del host_isa  # `host_target` reads it; here it is part of the cache's key
    if choice != "auto":
        return Target.for_isa(choice)
    assumed = usable_host()
    record = load_record(host=assumed)
    target = assumed if record is None or record.target is None else record.target
    is_current = record is not None and target.measured and time.time() < record.until
    if is_current or knobs.PROBE.get() == "off":
        return target
    probe: Any = fork_safe_import("smelt.runtime.probe")
    if knobs.PROBE.get() == "now":
        target = probe.measure(assumed)
        store(target)
    else:
        probe.start_background(done=_use_new_figures)
    return target


def _use_new_figures(_: Target) -> None:
    _host.cache_clear()


def measure_again() -> None:
    """Measure this machine again in the background, since calls contradict its figures."""
    if knobs.PROBE.get() == "off" or knobs.TARGET.get() != "auto":
        return
    renew()
    probe: Any = fork_safe_import("smelt.runtime.probe")
    probe.start_background(done=_use_new_figures, again=True)


def unsupported_reason(target: Target) -> str:
    """Return why this processor cannot run code for `target`; empty if it can.

    >>> unsupported_reason(host_target())
    ''
    >>> unsupported_reason(replace(Target.for_isa("avx2"), triple="riscv64-linux-gnu"))[:33]
    'its code is for riscv64, this pro'
    """
    return _cannot_run(target.triple, target.features, knobs.HOST_ISA.get())


@lru_cache(maxsize=64)
def _cannot_run(triple: str, features: tuple[str, ...], host_isa: HostIsa) -> str:
    this_processor = limit_isa(permitted_processor(host_processor()), host_isa)
    architecture, own_architecture = (
        name.partition("-")[0].replace("arm64", "aarch64")
        for name in (triple, this_processor.triple)
    )
    if architecture != own_architecture:
        return f"its code is for {architecture}, this processor is {own_architecture}"
    missing = sorted(set(features) - set(this_processor.features))
    return f"this processor has no {', '.join(missing)}" if missing else ""


# The processor --------------------------------------------------------------------------------


@cache
def host_processor() -> Processor:
    """Return this processor as LLVM describes it, cached per machine."""
    identity = processor_identity()
    if not identity:
        return processor()
    key = f"smelt processor {llvm_version()} {platform.machine()} {identity}".encode()
    entry = Cache.default().get(key)
    try:
        if entry is not None:
            cached: Processor = from_data(Processor, entry.meta["is"])
            return cached
    except (KeyError, TypeError, ValueError):
        pass
    detected = processor()
    Cache.default().put(key, {"what": "processor", "is": to_data(detected)}, b"")
    return detected


def usable_host() -> Target:
    """Return the host with no more cores than affinity and container quota allow."""
    target = Target.from_processor(host_processor(), usable_cores())
    return replace(target, cores=min(target.cores, cpu_budget().threads))


# Measured figures -----------------------------------------------------------------------------


def machine_id(target: Target) -> str:
    """Return a digest of everything that stored figures depend on: CPU, caches, usable cores."""
    identity = [
        FORMAT,
        target.name,
        target.fingerprint(),
        [target.cores, target.l1_bytes, target.l2_bytes, target.l3_bytes],
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def file_name(target: Target) -> str:
    """Return the name of the file with the figures of `target`'s machine."""
    return f"machine-{machine_id(target)}.json"


def store(
    target: Target, directory: Path | None = None, *, samples: Samples | None = None
) -> Path | None:
    """Write figures to use from now on; return None if the directory cannot be used.

    `directory` defaults to the object cache's, with the same ownership rules.
    """
    return _write(Record(target, samples or {}, time.time() + figures.EXPIRY_S), directory)


def store_samples(samples: Samples, directory: Path | None = None) -> Path | None:
    """Write samples; the figures in force change once all are settled and they differ clearly."""
    before = load_record(directory)
    if not figures.all_settled(samples):
        return _write(Record(before.target if before else None, samples, 0.0), directory)
    target = figures.target_of(usable_host(), samples)
    assert target is not None
    if before is not None and before.target is not None and figures.agree(before.target, target):
        target = before.target
    return _write(Record(target, samples, time.time() + figures.EXPIRY_S), directory)


def renew(directory: Path | None = None) -> None:
    """Forget the samples, so that figures are measured again; until then they stay in force."""
    record = load_record(directory)
    if record is not None:
        _write(Record(record.target, {}, 0.0), directory)


def _write(record: Record, directory: Path | None) -> Path | None:
    place = directory or Cache.default().path
    if place is None:
        return None
    identity = usable_host() if record.target is None else record.target
    data = {
        "format": FORMAT,
        "machine": machine_id(identity),
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "until": record.until,
        "target": None if record.target is None else json.loads(record.target.to_json()),
        "samples": figures.to_data(record.samples),
    }
    text = json.dumps(data, indent=1, sort_keys=True)
    try:
        with Folder(place).open(create=True) as files:
            files.publish(file_name(identity), text.encode())
    except (Refused, OSError):
        return None
    return place / file_name(identity)


def load(directory: Path | None = None) -> Target | None:
    """Return the figures in force for this machine; None if missing or not settled yet."""
    record = load_record(directory)
    return None if record is None else record.target


def stored_samples(directory: Path | None = None) -> Samples:
    """Return the stored samples of this machine that have not expired."""
    record = load_record(directory)
    return {} if record is None else figures.without_expired(record.samples, time.time())


def load_record(directory: Path | None = None, host: Target | None = None) -> Record | None:
    """Return what is stored about this machine; None if missing or damaged."""
    place = directory or Cache.default().path
    host = usable_host() if host is None else host
    if place is None:
        return None
    try:
        with Folder(place).open(create=False) as files:
            data: Any = json.loads(files.read(file_name(host), MAX_STORED_BYTES))
        if data["format"] != FORMAT or data["machine"] != machine_id(host):
            return None
        stored = data["target"]
        target = None if stored is None else Target.from_json(json.dumps(stored))
        record = Record(target, figures.from_data(data["samples"]), float(data["until"]))
    except (Refused, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    is_valid = target is None or (machine_id(target) == machine_id(host) and target.measured)
    return record if is_valid else None


def host_target(directory: Path | None = None) -> Target:
    """Return the host with stored figures, else default ones; never measures."""
    return load(directory) or usable_host()


# ---- processors and memory that this process may use --------------------------------------------
#
# A container sees all CPUs of its host but is throttled beyond its quota, and threads above the
# quota slow everything down; so quotas of cgroup versions 1 and 2 are read at every level of the
# hierarchy. The paths can be passed, which is how tests imitate containers.

MAX_POOL_THREADS: Final = 64
"""Maximum threads of one pool; beyond that, contention for the claim word is too high."""

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUPS: Final = Path("/proc/self/cgroup")
MEMINFO: Final = Path("/proc/meminfo")


class Budget(NamedTuple):
    """Number of threads to use, and the limit that determined it."""

    threads: int
    source: str


def cpu_budget(
    requested: int | None = None,
    requested_by: str = "SMELT_THREADS",
    root: Path = CGROUPS,
    membership: Path = OWN_CGROUPS,
    affinity: int | None = None,
) -> Budget:
    """Return the least of CPU affinity, container quota (rounded up), user setting and 64.

    `requested` is the user's number, `requested_by` the name it came under. `affinity` overrides
    the number of CPUs that the system allows. `root` is the cgroup file system, `membership` the
    file that lists this process's groups. At least one thread.
    """
    limits = [(affinity or _affinity(), "CPU affinity")]
    quota = cpu_quota(root, membership)
    if quota is not None:
        limits.append((math.ceil(quota), "container quota"))
    if requested is not None:
        limits.append((requested, requested_by))
    limits.append((MAX_POOL_THREADS, "limit of the pool"))
    threads, source = min(limits, key=lambda limit: limit[0])
    return Budget(max(1, threads), source)


def cpu_quota(root: Path = CGROUPS, membership: Path = OWN_CGROUPS) -> float | None:
    """Return the CPUs a container may use on average; None if unlimited.

    Reads cgroup versions 1 and 2.
    """
    shares: list[float] = []
    for folder in _group_folders(root, membership, "cpu"):
        limit, _, period = _read_text(folder / "cpu.max").partition(" ")
        if not limit:
            limit = _read_text(folder / "cpu.cfs_quota_us")
            period = _read_text(folder / "cpu.cfs_period_us")
        if limit.isdigit() and period.isdigit() and int(period) > 0 and int(limit) > 0:
            shares.append(int(limit) / int(period))
    return min(shares, default=None)


def total_memory(
    root: Path = CGROUPS, membership: Path = OWN_CGROUPS, meminfo: Path = MEMINFO
) -> int:
    """Return the memory of this machine or container, whichever is less; 0 if unknown."""
    limits = [limit for limit, _ in _memory_groups(root, membership)]
    fields = _meminfo(meminfo)
    if "MemTotal" in fields:
        limits.append(fields["MemTotal"])
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=0)


def available_memory(
    root: Path = CGROUPS, membership: Path = OWN_CGROUPS, meminfo: Path = MEMINFO
) -> int | None:
    """Return the bytes that can be touched before the system starts killing; None if unknown.

    The smaller of the machine's free and reclaimable memory plus swap, and what the container's
    limit leaves.
    """
    fields = _meminfo(meminfo)
    rooms: list[int] = []
    if "MemAvailable" in fields:
        rooms.append(fields["MemAvailable"] + fields.get("SwapFree", 0))
    rooms.extend(max(0, limit - used) for limit, used in _memory_groups(root, membership))
    return min(rooms, default=None)


def _memory_groups(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, unreclaimable bytes in use) of each enclosing group with a limit."""
    for folder in _group_folders(root, membership, "memory"):
        for limit_name, used_name, cached in (
            ("memory.max", "memory.current", "file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
        ):
            limit, used = _read_text(folder / limit_name), _read_text(folder / used_name)
            # Version 1 reports "unlimited" as a number close to 2^63.
            if limit.isdigit() and int(limit) < 1 << 60:
                stat = dict(
                    line.split(" ", 1)
                    for line in _read_text(folder / "memory.stat").splitlines()
                    if " " in line
                )
                cache = stat.get(cached, "0")
                used_bytes = int(used) if used.isdigit() else 0
                yield int(limit), max(0, used_bytes - (int(cache) if cache.isdigit() else 0))


def _group_folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Yield the group folders of this process for a controller, each with its parents.

    Version 2 mounts one tree at `root`; version 1 a tree per controller, with the path of the
    process in the line that names the controller. In a container the path reported by the kernel
    may not exist below the mount; then only the mount's own root counts.
    """
    for line in _read_text(membership).splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if not names:
            mounts = [root, root / "unified"]
        elif controller in names.split(","):
            mounts = [root / names, root / controller]
        else:
            continue
        for mount in mounts:
            folder = mount / path.lstrip("/")
            while folder != mount and mount in folder.parents:
                yield folder
                folder = folder.parent
            yield mount


def _meminfo(path: Path) -> dict[str, int]:
    """Return the fields of /proc/meminfo in bytes."""
    fields: dict[str, int] = {}
    for line in _read_text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return fields


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_text(path: Path) -> str:
    """Return the content of a system file without the line end; empty if unreadable."""
    try:
        # Not read_text: it may import a codec, and a thread that imports while another one forks
        # leaves the child with a locked import lock.
        return path.read_bytes().decode(errors="replace").strip()
    except OSError:
        return ""
