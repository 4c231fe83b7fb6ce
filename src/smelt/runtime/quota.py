"""Determine usable CPUs and memory from affinity, container limits and environment.

A container sees all CPUs of its host but is throttled beyond its quota, and threads above the
quota slow everything down; so quotas of cgroup versions 1 and 2 are read at every level of the
hierarchy. The paths can be passed, which is how tests imitate containers.

>>> budget = cpu_budget(requested=1)
>>> budget.threads, budget.source
(1, 'SMELT_THREADS')
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
