"""Compile printed programs for a GPU that need not be here.

    compiler = TritonCompiler()
    program = compiler.program(source.text, source.entries[0], "sm_90")
    program.resources.registers, program.resources.shared_bytes, program.assembly

Triton runs in a process of its own. The same text, constants and versions give the same code, and
a store with the rules of the object cache keeps it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from smelt.codegen.triton.device_source import CompiledEntry, Entry
from smelt.codegen.triton.resources import Resources
from smelt.codegen.triton.worker_process import MAX_COMPILERS, Worker, WorkerFailure, Workers
from smelt.errors import DeviceCompileError
from smelt.machine.processor import usable_cores
from smelt.packages.installed import MIN_VERSION, is_too_old, triton_version
from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass

_VERSION: Final = 4
"""Version of the stored form and of the options that programs are compiled with."""
_WORKERS: Final = Workers(min(usable_cores(), MAX_COMPILERS))
_SCRATCH_ARGUMENTS: Final = 2
"""Addresses that Triton adds behind an entry's arguments: scratch memory, and a profiler's."""
_MAX_PARAMETER_BYTES: Final = 4096
"""Maximum bytes of parameters that every driver takes."""


class Stored(Protocol):
    """What a store returns for a key: facts as JSON data, and code."""

    @property
    def meta(self) -> dict[str, Any]:
        """The facts."""
        ...

    @property
    def code(self) -> bytes:
        """The code."""
        ...


class Store(Protocol):
    """A cache of compiled programs, such as the object cache."""

    def get(self, key: bytes) -> Stored | None:
        """Return the entry of a key, or None."""
        ...

    def put(self, key: bytes, meta: dict[str, Any], code: bytes) -> None:
        """Store an entry."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadProgram:
    """A compiled entry: its code, what it needs, and its texts.

    `assembly` is PTX, or the assembly of an AMD device. `static_shared_bytes` are in the image,
    the rest of the shared memory is passed at the launch. `scratch_bytes` of global memory are
    needed by every program.
    """

    image: bytes
    symbol: str
    resources: Resources
    static_shared_bytes: int
    dynamic_shared_bytes: int
    scratch_bytes: int
    assembly: str
    ttir: str
    lanes: int
    """Threads of a warp."""
    parameters: tuple[int, ...] | None = None
    """Bytes of each parameter; None: not known."""


class TritonCompiler:
    """Compiles entries by Triton; `store` keeps the results."""

    def __init__(self, store: Store | None = None, worker: Worker | Workers = _WORKERS) -> None:
        self.store, self.worker = store, worker

    @cached_property
    def identity(self) -> str:
        """The compiler with its version, for cache keys."""
        return f"triton {triton_version()} {_VERSION}"

    def __call__(self, text: str, entry: Entry, arch: str) -> CompiledEntry:
        """Compile an entry; raise DeviceCompileError as `program` does."""
        return self.entry_of(self.program(text, entry, arch), entry, arch)

    def entry_of(self, program: AheadProgram, entry: Entry, arch: str) -> CompiledEntry:
        """Return a program as the runtime launches it.

        Raises DeviceCompileError for a program with other parameters than a launch passes.
        """
        needs = program.resources
        facts = {
            "registers": needs.registers,
            "spills": needs.spills,
            "shared": needs.shared_bytes,
            "compiler": self.identity,
        }
        return CompiledEntry(
            program.image,
            program.symbol,
            program.lanes * needs.warps,
            program.dynamic_shared_bytes,
            _scratch_arguments(program.parameters, entry, arch),
            facts,
            program.scratch_bytes,
        )

    def program(self, text: str, entry: Entry, arch: str) -> AheadProgram:
        """Compile an entry of a text for an architecture.

        Raises DeviceCompileError if Triton is too old, fails, ends or does not answer in time.
        """
        if is_too_old(triton_version()):
            reason = f"Triton {triton_version()} is installed, {MIN_VERSION} or later is needed"
            raise DeviceCompileError(kernel=entry.symbol, arch=arch, reason=reason)
        request = {
            "text": text,
            "symbol": entry.symbol,
            "arch": arch,
            "constants": dict(entry.constants),
            "signature": dict(entry.signature),
            "divisible": [*entry.aligned, *entry.divisible],
            "near": list(entry.near),
            "warps": entry.warps,
            "stages": entry.stages,
        }
        key = hashlib.sha256(f"{self.identity}\0{json.dumps(request)}".encode()).digest()
        stored = None if self.store is None else self.store.get(key)
        if stored is not None:
            try:
                return _program(stored.meta, stored.code)
            except (KeyError, TypeError, ValueError):
                stored = None
        try:
            answer = self.worker.request(request)
        except WorkerFailure as failure:
            reason = str(failure).strip()
            raise DeviceCompileError(kernel=entry.symbol, arch=arch, reason=reason) from failure
        image = base64.b64decode(answer.pop("image"))
        meta = {**answer, "lanes": 64 if arch.startswith("gfx") else 32}
        if self.store is not None:
            self.store.put(key, meta, image)
        return _program(meta, image)


def _scratch_arguments(parameters: tuple[int, ...] | None, entry: Entry, arch: str) -> int:
    """Return how many addresses the compiler has added behind an entry's arguments."""
    if parameters is None:
        return _SCRATCH_ARGUMENTS
    passed = tuple(4 if kind == "i32" else 8 for kind in entry.signature.values())
    added = parameters[len(passed) :]
    if parameters != passed + (8,) * len(added) or sum(parameters) > _MAX_PARAMETER_BYTES:
        reason = f"its parameters have {parameters} bytes, {passed} and addresses are passed"
        raise DeviceCompileError(kernel=entry.symbol, arch=arch, reason=reason)
    return len(added)


def _program(facts: Mapping[str, Any], image: bytes) -> AheadProgram:
    """Return a program from the worker's facts; raise KeyError or ValueError for others."""
    static, dynamic = int(facts["static_shared"]), int(facts["shared"])
    return AheadProgram(
        image=image,
        symbol=str(facts["symbol"]),
        resources=Resources(
            registers=int(facts["registers"]),
            spills=int(facts["spills"]),
            loops_spill=bool(facts["loops_spill"]),
            shared_bytes=static + dynamic,
            warps=int(facts["warps"]),
            instructions={str(m): int(n) for m, n in facts["instructions"].items()},
        ),
        static_shared_bytes=static,
        dynamic_shared_bytes=dynamic,
        scratch_bytes=int(facts["scratch"]),
        assembly=str(facts["assembly"]),
        ttir=str(facts["ttir"]),
        lanes=int(facts["lanes"]),
        parameters=tuple(map(int, facts["parameters"])) if "parameters" in facts else None,
    )
