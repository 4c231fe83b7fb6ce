"""Run code for AArch64 in an emulator, on memory of this process.

An address means the same to both.  Pages are lent to the emulator when code first touches them, if
this process may read them, so that a forbidden page ends a run with an error.  The emulator is
QEMU's as a library (unicorn).

    with programs():                      # everything that is compiled for AArch64 meanwhile runs
        program.run(arrays, sizes)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import pytest
from tests.codegen.llvm.arm_instructions import execute

from smelt.kernel.abi import POLL_SYMBOL
from smelt.machine.target import Target
from smelt.runtime import code, elf, executable
from smelt.runtime.code import load as load_native
from smelt.runtime.threads import Pool

_STUBS = 0x10000
"""Address of the functions of the C library, of which each is one instruction."""
_RETURN, _STACK, _STACK_BYTES = 0x8000, 0x100000, 1 << 20
_RET = b"\xc0\x03\x5f\xd6"
_FPEN = 3 << 20
"""Bits of CPACR_EL1 that let vector instructions run."""
_PAGE, _MAX_LENT = mmap.PAGESIZE, 1 << 20
"""Bytes that are lent at once, at most: each range slows the next one down."""
_NO_POLL = ctypes.c_int64(0)
"""What kernels find in place of a function to poll, which would be this processor's."""
_ENGINES = 8
"""Emulators that exist at once: each reserves a gigabyte of addresses."""


def unavailable() -> str:
    """Empty, or why the emulator cannot be had."""
    try:
        _unicorn()
    except ImportError as error:
        return f"AArch64 is emulated by unicorn, which is missing: {error}"
    return ""


def is_foreign(target: Target) -> bool:
    """Whether code for a target is AArch64's and this processor is not."""
    return target.triple.startswith("aarch64") and platform.machine() not in ("aarch64", "arm64")


@cache
def _unicorn() -> Any:
    import unicorn  # pyright: ignore[reportMissingImports]
    import unicorn.arm64_const  # pyright: ignore[reportMissingImports]

    return unicorn


class Machine:
    """An emulated processor, with one linked object; it takes the place of `Loaded`."""

    def __init__(self, object_code: bytes, symbols: Sequence[str]) -> None:
        self.names: list[str] = []
        self.image = elf.link(object_code, symbols, self._resolve)
        self.nbytes = self.image.nbytes
        self.engine: Any = None
        self.unknown = ""
        """An instruction that stopped the last call."""
        self.lent: dict[int, int] = {}
        """Runs of pages that the emulator may use during a call: address to bytes."""
        self.pages: list[int] = []
        """Where pages of the object begin, which may follow memory that a call touches."""
        for address in self.image.addresses.values():
            _FUNCTIONS[address] = self

    def address(self, symbol: str) -> int:
        """Where a function starts."""
        return self.image.addresses[symbol]

    def call(self, address: int, *arguments: int) -> int:
        """Call a function of integers, and return what it leaves in the first register."""
        arm, engine = _unicorn().arm64_const, self._engine()
        top = _STACK + _STACK_BYTES
        for k, value in enumerate(arguments):
            engine.reg_write(arm.UC_ARM64_REG_X0 + k, value)
        engine.reg_write(arm.UC_ARM64_REG_LR, _RETURN)
        engine.reg_write(arm.UC_ARM64_REG_SP, top)
        try:
            engine.emu_start(address, _RETURN)
            assert not self.unknown, self.unknown
        finally:
            for page, nbytes in self.lent.items():
                engine.mem_unmap(page, nbytes)
            self.lent.clear()
        assert engine.reg_read(arm.UC_ARM64_REG_SP) == top, "the stack is as it was"
        return int(engine.reg_read(arm.UC_ARM64_REG_X0))

    def _engine(self) -> Any:
        """The emulator, with the object's pages and their rights."""
        if self.engine is not None:
            return self.engine
        u = _unicorn()
        run, read, both = u.UC_PROT_READ | u.UC_PROT_EXEC, u.UC_PROT_READ, 3
        engine = self.engine = u.Uc(u.UC_ARCH_ARM64, u.UC_MODE_ARM)
        engine.ctl_set_cpu_model(u.arm64_const.UC_CPU_ARM64_MAX)
        engine.reg_write(u.arm64_const.UC_ARM64_REG_CPACR_EL1, _FPEN)
        engine.mem_map(_RETURN, 0x1000, run)
        engine.mem_map(_STUBS, 0x1000, run)
        engine.mem_write(_STUBS, _RET * 1024)
        engine.mem_map(_STACK, _STACK_BYTES, both)
        engine.hook_add(u.UC_HOOK_CODE, self._library, begin=_STUBS, end=_STUBS + 0xFFF)
        unmapped = u.UC_HOOK_MEM_READ_UNMAPPED | u.UC_HOOK_MEM_WRITE_UNMAPPED
        engine.hook_add(unmapped, self.lend)
        engine.hook_add(u.UC_HOOK_INTR, self._execute)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.image.memory))
        for first, last, right in zip(
            (0, *self.image.ends), self.image.ends, (run, read, both), strict=False
        ):
            if first < last:
                engine.mem_map_ptr(base + first, last - first, right, base + first)
                self.pages.append(base + first)
        _ALIVE.append(self)
        if len(_ALIVE) > _ENGINES:
            _ALIVE.popleft().engine = None
        return engine

    def _execute(self, engine: Any, _: int, __: Any) -> None:
        """Do what an instruction does that the emulator does not know."""
        arm = _unicorn().arm64_const
        at = engine.reg_read(arm.UC_ARM64_REG_PC)
        word = int.from_bytes(engine.mem_read(at, 4), "little")
        done = execute(word, lambda n: engine.reg_read(arm.UC_ARM64_REG_Q0 + n))
        if done is None:
            self.unknown = f"instruction {word:#x} at {at:#x}"
            engine.emu_stop()
            return
        engine.reg_write(arm.UC_ARM64_REG_Q0 + done[0], done[1])
        engine.reg_write(arm.UC_ARM64_REG_PC, at + 4)

    def lend(self, engine: Any, _: int, address: int, size: int, __: int, ___: Any) -> bool:
        """Map the pages of an access and those behind it, if this process may read them."""
        for page in sorted({x // _PAGE * _PAGE for x in (address, address + size - 1)}):
            if any(start <= page < start + nbytes for start, nbytes in self.lent.items()):
                continue
            mapped = (x for x in (*self.lent, *self.pages) if x > page)
            limit, end = min(mapped, default=page + _MAX_LENT), page
            while end < min(limit, page + _MAX_LENT) and _is_readable(end):
                end += _PAGE
            if end == page:
                return False
            engine.mem_map_ptr(page, end - page, 3, page)
            self.lent[page] = end - page
        return True

    def _resolve(self, name: str) -> int:
        if name == POLL_SYMBOL:
            return ctypes.addressof(_NO_POLL)
        if name not in self.names:
            self.names.append(name)
        return _STUBS + 4 * self.names.index(name)

    def _library(self, engine: Any, address: int, _: int, __: Any) -> None:
        """Do what a function of the C library does, before its `ret`."""
        arm, name = _unicorn().arm64_const, self.names[(address - _STUBS) // 4]
        if name in ("memset", "memcpy", "memmove"):
            words = [engine.reg_read(arm.UC_ARM64_REG_X0 + k) for k in range(3)]
            getattr(ctypes, "memset" if name == "memset" else "memmove")(*words)
            return
        kind, bits, bank = ctypes.c_double, ctypes.c_uint64, arm.UC_ARM64_REG_D0
        function = getattr(_libm(), name)
        if name.endswith("f"):
            kind, bits, bank = ctypes.c_float, ctypes.c_uint32, arm.UC_ARM64_REG_S0
        arity = 2 if name.rstrip("f") in ("pow", "atan2", "mod", "hypot", "remainder") else 1
        function.restype, function.argtypes = kind, [kind] * arity
        numbers = [kind.from_buffer(bits(engine.reg_read(bank + k))).value for k in range(arity)]
        engine.reg_write(bank, bits.from_buffer(kind(function(*numbers))).value)


_FUNCTIONS: WeakValueDictionary[int, Machine] = WeakValueDictionary()
"""The machine that runs the function at an address."""
_ALIVE: deque[Machine] = deque()


@cache
def _libm() -> Any:
    return ctypes.CDLL("libm.so.6")


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def _is_readable(page: int) -> bool:
    """Whether the process may read a page; the system answers, and no signal is raised."""
    byte = ctypes.c_char()
    here, there = _Range(ctypes.addressof(byte), 1), _Range(page, 1)
    read = _process().process_vm_readv
    return bool(read(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0) == 1)


@cache
def _process() -> Any:
    return ctypes.CDLL(None)


def load(object_code: bytes, symbols: Sequence[str]) -> Any:
    """Like the loader's, with a machine for code that this processor does not run."""
    if object_code[18:20] == (183).to_bytes(2, "little") and platform.machine() == "x86_64":
        return Machine(object_code, symbols)
    return load_native(object_code, symbols)


def function(address: int, native: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """What calls the function at an address, which `native` makes where it is not a machine's."""
    machine = _FUNCTIONS.get(address)
    return native(address) if machine is None else partial(machine.call, address)


@contextmanager
def programs() -> Generator[None]:
    """Load code for AArch64 into machines meanwhile, and run launches in this thread."""
    native = Pool.run_addresses

    def run(
        pool: Pool, chunks: int, launches: int, count: int, frame: int, scratch: int = 0
    ) -> None:
        groups = (ctypes.c_int64 * (4 * count)).from_address(launches)
        room = ctypes.create_string_buffer(scratch + 64)
        place = -(-ctypes.addressof(room) // 64) * 64
        for first, many in zip(groups[::4], groups[1::4], strict=True):
            rows = (ctypes.c_int64 * (4 * many)).from_address(chunks + 32 * first)
            for c in reversed(range(many)):
                address, offset, begin, end = rows[4 * c : 4 * c + 4]
                if address not in _FUNCTIONS:
                    native(pool, chunks, launches, count, frame, scratch)
                    return
                _FUNCTIONS[address].call(address, frame + offset, begin, end, place)

    with (
        patch.object(code, "load", load),
        patch.object(executable, "unsupported_reason", lambda target: ""),
        patch.object(Pool, "run_addresses", run),
    ):
        yield


needed = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "AArch64 is emulated")
"""Mark of tests that are skipped without the emulator."""

__all__ = ["Machine", "function", "is_foreign", "load", "needed", "programs", "unavailable"]
