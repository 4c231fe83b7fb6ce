"""Describe the machine this process runs on, from cached detection and measurements.

LLVM reports which instructions the processor has, but importing it is slow, so the answer is
cached under what the operating system reports about the processor. The figures that
`smelt.runtime.probe` measures are stored as JSON next to the cached code, under the machine's
identity.

>>> host_target().triple == Target.host().triple
True
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import llvmlite

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.imports import fork_safe_import
from smelt.processor import (
    Processor,
    permitted_processor,
    processor,
    processor_identity,
    usable_cores,
)
from smelt.runtime.cache import Cache
from smelt.runtime.cache_files import Folder, Refused
from smelt.runtime.quota import cpu_budget
from smelt.target import HostIsa, Target, limit_isa

__all__ = [
    "MAX_TRIES",
    "Attempts",
    "file_name",
    "host",
    "host_processor",
    "host_target",
    "load",
    "machine_id",
    "store",
    "stored_attempts",
    "unsupported_reason",
    "usable_host",
]

FORMAT = 2
"""Version of the stored file and of the way of measuring; other versions are ignored."""

MAX_STORED_BYTES = 1 << 16
"""Largest file of figures that is read."""

MAX_TRIES = 4
"""Number of measurements on a busy machine after which their best figures are trusted."""


@dataclass(frozen=True)
class Attempts:
    """Best figures of `tries` measurements; an undisturbed measurement counts as TRIES."""

    target: Target
    tries: int


def host() -> Target:
    """Return this machine's target, or the one that the knob TARGET selects.

    The cost model's figures are measured once and stored; until then, defaults are used.
    """
    return _host(knobs.TARGET.get(), knobs.HOST_ISA.get())


@lru_cache(maxsize=8)
def _host(choice: Literal["auto", "avx512", "avx2", "portable"], host_isa: HostIsa) -> Target:
    del host_isa  # `host_target` reads it; here it is part of the cache's key
    if choice != "auto":
        return Target.for_isa(choice)
    target = host_target()
    if target.measured or knobs.PROBE.get() == "off":
        return target
    probe: Any = fork_safe_import("smelt.runtime.probe")
    if knobs.PROBE.get() == "now":
        target = probe.measure(target)
        store(target)
    else:
        probe.start_background(done=lambda _: _host.cache_clear())
    return target


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
    key = f"smelt processor {llvmlite.__version__} {platform.machine()} {identity}".encode()
    entry = Cache.default().get(key)
    try:
        if entry is not None:
            return Processor.from_data(entry.meta)
    except (KeyError, TypeError, ValueError):
        pass
    detected = processor()
    Cache.default().put(key, {"what": "processor", **detected.to_data()}, b"")
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


def store(target: Target, directory: Path | None = None, *, tries: int = MAX_TRIES) -> Path | None:
    """Write the figures to a file; return None if the directory cannot be used.

    `directory` defaults to the object cache's, with the same ownership rules. Figures of fewer
    than TRIES measurements only serve the next measurement: `load` ignores them.
    """
    place = directory or Cache.default().path
    if place is None:
        return None
    record = {
        "format": FORMAT,
        "machine": machine_id(target),
        "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tries": tries,
        "target": json.loads(target.to_json()),
    }
    text = json.dumps(record, indent=1, sort_keys=True)
    try:
        with Folder(place).open(create=True) as files:
            files.publish(file_name(target), text.encode())
    except (Refused, OSError):
        return None
    return place / file_name(target)


def load(directory: Path | None = None) -> Target | None:
    """Return stored figures for this machine; None if missing or not to be trusted."""
    stored = stored_attempts(directory)
    return stored.target if stored is not None and stored.tries >= MAX_TRIES else None


def stored_attempts(directory: Path | None = None) -> Attempts | None:
    """Return the stored measurements of this machine, trusted or not."""
    place = directory or Cache.default().path
    host = usable_host()
    if place is None:
        return None
    try:
        with Folder(place).open(create=False) as files:
            record: Any = json.loads(files.read(file_name(host), MAX_STORED_BYTES))
        if record["format"] != FORMAT or record["machine"] != machine_id(host):
            return None
        target, tries = Target.from_json(json.dumps(record["target"])), int(record["tries"])
    except (Refused, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    is_valid = machine_id(target) == machine_id(host) and target.measured
    return Attempts(target, tries) if is_valid else None


def host_target(directory: Path | None = None) -> Target:
    """Return the host with stored figures, else default ones; never measures."""
    return load(directory) or usable_host()
