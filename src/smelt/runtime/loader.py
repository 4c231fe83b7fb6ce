"""Load object code and return callable addresses.

Kernels' objects are placed by the small loader `smelt.runtime.elf`, which saves a warm process
the import of LLVM; objects with unsupported features, and all objects on other systems, go to
LLVM's linker. Either way pages are written first and made executable afterwards, never both at
once, and dropping the last reference to a `Loaded` unmaps its code. Objects are trusted: LLVM
crashes the process on a damaged one, so bytes come only from the compiler or from a cache entry
whose digest was checked.

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
from smelt.python.imports import fork_safe_import
from smelt.runtime import elf


class Loaded:
    """Executable code of one object; addresses are valid while this object is referenced."""

    __slots__ = ("_addresses", "_owner", "nbytes")

    def __init__(self, owner: Any, addresses: Mapping[str, int], nbytes: int) -> None:
        """Wrap addresses; `owner` unmaps the code when it is freed."""
        self._owner = owner
        self._addresses = dict(addresses)
        self.nbytes = nbytes

    def address(self, symbol: str) -> int:
        """Return where `symbol` starts; KeyError if it was not passed to `load`."""
        return self._addresses[symbol]


def load(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """Link `object_code` (ELF or Mach-O, position independent) and look up `symbols`.

    Undefined symbols resolve to those of the process (the C library's `memcpy`, `memset`, ...).
    Raises `CodegenError` if a symbol is missing. Safe to call from several threads.
    """
    if elf.can_link(object_code):
        try:
            image = elf.link(object_code, symbols)
        except elf.UnsupportedObject:
            pass
        except elf.MalformedObject as error:
            raise _link_error(object_code, error) from error
        else:
            return Loaded(image, image.addresses, image.nbytes)
    return load_by_llvm(object_code, symbols)


def load_by_llvm(object_code: bytes, symbols: Sequence[str]) -> Loaded:
    """Link any object with LLVM's linker; otherwise like `load`."""
    try:
        tracker = _jit().link(object_code, symbols)
    except RuntimeError as error:
        raise _link_error(object_code, error) from error
    return Loaded(tracker, {name: tracker[name] for name in symbols}, len(object_code))


def _link_error(object_code: bytes, error: Exception) -> CodegenError:
    return CodegenError(f"object code of {len(object_code)} bytes did not link: {error}")


@cache
def _jit() -> Any:
    """Import LLVM's linker on first use."""
    return fork_safe_import("smelt.runtime.jit")
