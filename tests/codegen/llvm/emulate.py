"""Run code for AArch64 in an emulator, on memory of this process.

Buffers are mapped at their own addresses, and nothing else is: an access outside of them ends the
run with an error, as a forbidden page would.  The emulator is QEMU's as a library (unicorn).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from smelt.runtime import elf
from smelt.target import Target

_STUBS = 0x10000
"""Address of the functions of the C library, of which each is one instruction."""
_RETURN, _STACK, _STACK_BYTES = 0x8000, 0x100000, 1 << 20
_RET = b"\xc0\x03\x5f\xd6"
_FPEN = 3 << 20
"""Bits of CPACR_EL1 that let vector instructions run."""


def available() -> str:
    """Empty, or why the emulator cannot be had."""
    try:
        _unicorn()
    except ImportError as error:
        return f"AArch64 is emulated by unicorn: {error}"
    return ""


def is_foreign(target: Target) -> bool:
    """Whether code for a target is AArch64's and this processor is not."""
    return target.triple.startswith("aarch64") and platform.machine() not in ("aarch64", "arm64")


@cache
def _unicorn() -> Any:
    import unicorn
    import unicorn.arm64_const

    return unicorn


class Machine:
    """An emulated processor, with one linked object."""

    def __init__(self, code: bytes, symbols: Sequence[str]) -> None:
        if reason := available():
            pytest.skip(reason)
        u = _unicorn()
        self.arm = u.arm64_const
        self.names: list[str] = []
        self.image = elf.link(code, symbols, self._resolve)
        self.emulator = u.Uc(u.UC_ARCH_ARM64, u.UC_MODE_ARM)
        self.emulator.ctl_set_cpu_model(self.arm.UC_CPU_ARM64_MAX)
        self.emulator.reg_write(self.arm.UC_ARM64_REG_CPACR_EL1, _FPEN)
        self.emulator.mem_map(_RETURN, 0x1000, u.UC_PROT_READ | u.UC_PROT_EXEC)
        self.emulator.mem_map(_STUBS, 0x1000, u.UC_PROT_READ | u.UC_PROT_EXEC)
        self.emulator.mem_write(_STUBS, _RET * 1024)
        self.emulator.mem_map(_STACK, _STACK_BYTES)
        self.emulator.hook_add(u.UC_HOOK_CODE, self._library, begin=_STUBS, end=_STUBS + 0xFFF)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.image.memory))
        rights = (u.UC_PROT_READ | u.UC_PROT_EXEC, u.UC_PROT_READ, u.UC_PROT_ALL & ~u.UC_PROT_EXEC)
        for begin, end, right in zip((0, *self.image.ends), self.image.ends, rights, strict=False):
            if begin < end:
                self.emulator.mem_map_ptr(base + begin, end - begin, right, base + begin)
        self.mapped: list[tuple[int, int]] = []

    def _resolve(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return _STUBS + 4 * self.names.index(name)

    def map(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Replace the memory that code may read and write, by address and size in pages."""
        for address, nbytes in self.mapped:
            self.emulator.mem_unmap(address, nbytes)
        self.mapped = list(blocks)
        u = _unicorn()
        for address, nbytes in self.mapped:
            right = u.UC_PROT_READ | u.UC_PROT_WRITE
            self.emulator.mem_map_ptr(address, nbytes, right, address)

    def call(self, symbol: str, *arguments: int) -> int:
        """Call a function of integers, and return what it leaves in the first register."""
        arm = self.arm
        for k, value in enumerate(arguments):
            self.emulator.reg_write(arm.UC_ARM64_REG_X0 + k, value)
        self.emulator.reg_write(arm.UC_ARM64_REG_LR, _RETURN)
        self.emulator.reg_write(arm.UC_ARM64_REG_SP, _STACK + _STACK_BYTES)
        self.emulator.emu_start(self.image.addresses[symbol], _RETURN)
        assert self.emulator.reg_read(arm.UC_ARM64_REG_SP) == _STACK + _STACK_BYTES
        return int(self.emulator.reg_read(arm.UC_ARM64_REG_X0))

    def _library(self, emulator: Any, address: int, _: int, __: Any) -> None:
        """Do what a function of the C library does, before its `ret`."""
        arm, name = self.arm, self.names[(address - _STUBS) // 4]
        if name in ("memset", "memcpy", "memmove"):
            first, second, count = (
                emulator.reg_read(arm.UC_ARM64_REG_X0 + k) for k in range(3)
            )
            getattr(ctypes, "memset" if name == "memset" else "memmove")(first, second, count)
            return
        is_short = name.endswith("f")
        bank = arm.UC_ARM64_REG_S0 if is_short else arm.UC_ARM64_REG_D0
        kinds: tuple[Any, Any] = (ctypes.c_float, ctypes.c_uint32)
        kind, bits = kinds if is_short else (ctypes.c_double, ctypes.c_uint64)
        function = getattr(_libm(), name)
        arity = 2 if name.rstrip("f") in ("pow", "atan2", "fmod", "hypot", "remainder") else 1
        function.restype, function.argtypes = kind, [kind] * arity
        numbers = [
            kind.from_buffer(bits(emulator.reg_read(bank + k))).value for k in range(arity)
        ]
        result = kind(function(*numbers))
        emulator.reg_write(bank, bits.from_buffer(result).value)


@cache
def _libm() -> Any:
    return ctypes.CDLL("libm.so.6")


def pages(blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The accessible pages of `Guarded` blocks, which have a forbidden one on either side."""
    return [(base + mmap.PAGESIZE, length - 2 * mmap.PAGESIZE) for base, length in blocks]


__all__ = ["Machine", "available", "is_foreign", "pages"]
