"""From object code to callable addresses.

Kernels' objects are placed by a small loader of our own (`smelt.runtime.elf`), which spares a warm
process the import of LLVM; what it does not know, and every object on other systems, goes to
LLVM's linker.  Either way pages are written first and made executable afterwards, never both at
once, and dropping the last reference to a `Loaded` unmaps its code again.  Objects are trusted:
LLVM crashes the process on a damaged one, so bytes come here only from the compiler or from a
cache entry whose digest was checked.

>>> from smelt.runtime.jit import compile_ir
>>> code = compile_ir("define i64 @three() { ret i64 3 }")
>>> with_address = load(code, ["three"])
>>> import ctypes
>>> ctypes.CFUNCTYPE(ctypes.c_int64)(with_address.address("three"))()
3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from smelt.errors import CodegenError
from smelt.imports import imported
from smelt.runtime import elf

__all__ = ["Loaded", "load"]


class Loaded:
    """Executable code of one object; the addresses are valid while this object is referenced."""

    __slots__ = ("_addresses", "_owner", "nbytes")

    def __init__(self, owner: Any, addresses: Mapping[str, int], nbytes: int) -> None:
        """`owner` unmaps the code when it goes."""
        self._owner = owner
        self._addresses = dict(addresses)
        self.nbytes = nbytes

    def address(self, symbol: str) -> int:
        """Where `symbol` starts; KeyError if it was not among the symbols given to `load`."""
        return self._addresses[symbol]


def load(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """Link `object_code` (ELF or Mach-O, position independent) and look up `symbols`.

    Undefined symbols resolve to those of the process (the C library's `memcpy`, `memset`, ...).
    Raises `CodegenError` where a symbol is missing. Safe to call from several threads.
    """
    if elf.is_for_us(object_code):
        try:
            image = elf.link(object_code, symbols)
        except elf.Unfamiliar:
            pass
        except elf.Malformed as error:
            raise _unlinked(object_code, error) from error
        else:
            return Loaded(image, image.addresses, len(object_code))
    return load_by_llvm(object_code, symbols)


def load_by_llvm(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """The same by LLVM's linker, whatever the object."""
    try:
        tracker = _jit().link(object_code, symbols)
    except RuntimeError as error:
        raise _unlinked(object_code, error) from error
    return Loaded(tracker, {name: tracker[name] for name in symbols}, len(object_code))


def _unlinked(object_code: bytes, error: Exception) -> CodegenError:
    return CodegenError(f"object code of {len(object_code)} bytes did not link: {error}")


@cache
def _jit() -> Any:
    """LLVM, imported by the first object that needs it."""
    return imported("smelt.runtime.jit")
