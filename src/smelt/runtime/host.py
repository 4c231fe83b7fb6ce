"""The machine that this process runs on: what was found out about it once, found again in a file.

Which instructions the processor has is LLVM's word, and asking it means importing it; so the answer
is kept in the cache, under what the kernel tells of the processor.  The figures that
`smelt.runtime.probe` measures are JSON beside the cached code, under the machine's identity.

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
from smelt.imports import imported
from smelt.processor import Processor, permitted, processor, processor_identity, usable_cores
from smelt.runtime.cache import Cache
from smelt.runtime.cache_files import Folder, Refused
from smelt.runtime.quota import cpu_budget
from smelt.target import HostIsa, Target, limited

__all__ = [
    "TRIES",
    "Attempts",
    "attempts",
    "cannot_run",
    "file_name",
    "host",
    "host_processor",
    "host_target",
    "load",
    "machine_id",
    "store",
    "usable_host",
]

FORMAT = 2
"""Raised whenever the stored file or the way of measuring changes: old files are ignored."""

MAX_STORED_BYTES = 1 << 16

TRIES = 4
"""Measurements on a busy machine whose better figures are trusted at last."""


@dataclass(frozen=True)
class Attempts:
    """The better figures of so many measurements; one that nobody disturbed counts as enough."""

    target: Target
    tries: int


def host() -> Target:
    """This machine, or what the knob TARGET asks for.

    The cost model's figures are measured once and stored; until then, sane ones are assumed.
    """
    return _host(knobs.TARGET.get(), knobs.HOST_ISA.get())


@lru_cache(maxsize=8)
def _host(choice: Literal["auto", "avx512", "avx2", "portable"], host_isa: HostIsa) -> Target:
    del host_isa  # `host_target` reads it; here it is part of the cache's key
    if choice != "auto":
        return Target.for_isa(choice)
    found = host_target()
    if found.measured or knobs.PROBE.get() == "off":
        return found
    probe: Any = imported("smelt.runtime.probe")
    if knobs.PROBE.get() == "now":
        found = probe.measure(found)
        store(found)
    else:
        probe.start_background(done=lambda _: _host.cache_clear())
    return found


def cannot_run(target: Target) -> str:
    """Say why code for `target` would stop this process; empty if this processor can run it.

    >>> cannot_run(host_target())
    ''
    >>> cannot_run(replace(Target.for_isa("avx2"), triple="riscv64-linux-gnu"))[:33]
    'its code is for riscv64, this pro'
    """
    return _cannot_run(target.triple, target.features, knobs.HOST_ISA.get())


@lru_cache(maxsize=64)
def _cannot_run(triple: str, features: tuple[str, ...], host_isa: HostIsa) -> str:
    here = limited(permitted(host_processor()), host_isa)
    architecture, own = (
        name.partition("-")[0].replace("arm64", "aarch64") for name in (triple, here.triple)
    )
    if architecture != own:
        return f"its code is for {architecture}, this processor is {own}"
    missing = sorted(set(features) - set(here.features))
    return f"this processor has no {', '.join(missing)}" if missing else ""


# The processor --------------------------------------------------------------------------------


@cache
def host_processor() -> Processor:
    """This processor as LLVM sees it; asked once for a machine, not once a process."""
    known = processor_identity()
    if not known:
        return processor()
    key = f"smelt processor {llvmlite.__version__} {platform.machine()} {known}".encode()
    entry = Cache.default().get(key)
    try:
        if entry is not None:
            return Processor.from_data(entry.meta)
    except (KeyError, TypeError, ValueError):
        pass
    found = processor()
    Cache.default().put(key, {"what": "processor", **found.to_data()}, b"")
    return found


def usable_host() -> Target:
    """The host with no more cores than affinity and the container's quota allow."""
    found = Target.of_processor(host_processor(), usable_cores())
    return replace(found, cores=min(found.cores, cpu_budget().threads))


# Measured figures -----------------------------------------------------------------------------


def machine_id(target: Target) -> str:
    """What must be equal for stored figures to hold: CPU, caches and the cores we may use."""
    identity = [
        FORMAT,
        target.name,
        target.fingerprint(),
        [target.cores, target.l1_bytes, target.l2_bytes, target.l3_bytes],
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def file_name(target: Target) -> str:
    """Name of the file with the figures of `target`'s machine, in the cache directory."""
    return f"machine-{machine_id(target)}.json"


def store(target: Target, directory: Path | None = None, *, tries: int = TRIES) -> Path | None:
    """Write the figures as one file; None where the directory is unsafe or cannot be written.

    `directory` is by default that of the object cache, and the same rules of ownership hold.
    Figures of fewer than TRIES are for the next measurement alone: `load` does not give them.
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
    """Stored figures for this very machine; None if there are none, or they cannot be trusted."""
    found = attempts(directory)
    return found.target if found is not None and found.tries >= TRIES else None


def attempts(directory: Path | None = None) -> Attempts | None:
    """What was measured of this very machine so far, to be trusted or not."""
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
    same = machine_id(target) == machine_id(host) and target.measured
    return Attempts(target, tries) if same else None


def host_target(directory: Path | None = None) -> Target:
    """The host with stored figures if there are any, else with assumed ones. Never measures."""
    return load(directory) or usable_host()
