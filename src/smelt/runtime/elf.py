"""Load ELF objects without LLVM, to avoid importing it on a warm start.

LLVM's linker can load anything, but importing it costs more than the rest of a process that finds
its kernels in the cache. Kernels are simple objects: a few sections, calls of the C library,
PC-relative addresses. `link` places their sections, applies the relocations of the x86-64 psABI
(System V ABI, AMD64 supplement, 4.4) that such objects have, and raises `UnsupportedObject` for
everything else; the caller then uses LLVM.

Pages are written first, then code becomes executable and read-only, constants read-only: no page
is ever both writable and executable.

    image = link(code, ["k0"])
    image.addresses["k0"]
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

__all__ = ["Image", "MalformedObject", "UnsupportedObject", "can_link", "link"]


class UnsupportedObject(Exception):
    """Object that looks well-formed but uses features this loader does not support."""


class MalformedObject(Exception):
    """Object that contradicts itself, or refers to a symbol the process does not have."""


PAGE: Final = mmap.PAGESIZE
MAX_SECTION_BYTES: Final = 1 << 28
"""Largest size of a section; kernels contain no large data."""

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QQq")
_IDENT: Final = b"\x7fELF\x02\x01\x01"
"""Magic number, 64 bits, little endian, version 1."""
_RELOCATABLE: Final = 1
_X86_64: Final = 62

# Section types and flags.
_PROGBITS, _SYMTAB, _STRTAB, _RELA_KIND, _NOBITS = 1, 2, 3, 4, 8
_UNWIND: Final = 0x70000001
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400

# Special section indices of symbols.
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_FUNCTION_OR_LESS: Final = 4
"""Largest plain symbol type: none, object, function, section, file."""

# Relocation types.
_ABS64, _PC32, _PLT32, _GOTPCREL, _PC64 = 1, 2, 4, 9, 24
_GOTPCRELX, _REX_GOTPCRELX = 41, 42
_GOT: Final = frozenset({_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX})
_KNOWN: Final = frozenset({_ABS64, _PC32, _PLT32, _PC64}) | _GOT

_STUB: Final = b"\xff\x25\x00\x00\x00\x00" + bytes(8) + b"\xcc\xcc"
"""Stub for calls farther than 2 GiB: jmp *0(%rip), target address, padding."""


class Image:
    """Linked code in memory, unmapped with this object."""

    __slots__ = ("addresses", "memory", "nbytes")

    def __init__(self, addresses: dict[str, int], nbytes: int, memory: mmap.mmap) -> None:
        self.addresses = addresses
        self.nbytes = nbytes
        self.memory = memory


class _Section:
    """Relevant fields of a section header."""

    __slots__ = ("align", "at", "flags", "info", "kind", "link", "offset", "size")

    def __init__(
        self, kind: int, flags: int, offset: int, size: int, link: int, info: int, align: int
    ) -> None:
        self.kind, self.flags, self.offset, self.size = kind, flags, offset, size
        self.link, self.info, self.align = link, info, align
        self.at = -1
        """Offset in the image; -1 if not loaded."""


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


def can_link(code: bytes) -> bool:
    """Return whether `link` may load this object here: x86-64 Linux."""
    return (
        _is_supported_host()
        and code[:7] == _IDENT
        and code[16:20] == struct.pack("<HH", 1, _X86_64)
    )


@cache
def _is_supported_host() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32


def link(code: bytes, symbols: Sequence[str]) -> Image:
    """Place `code` in memory and resolve its defined `symbols`.

    Undefined symbols resolve to those of the process. Raises Unfamiliar for what only a full
    linker can do, Malformed if the object is damaged or a symbol is missing.
    """
    try:
        return _Linker(code).image(symbols)
    except (struct.error, LookupError, ValueError, OverflowError, OSError) as error:
        raise MalformedObject(f"not a whole object: {error}") from error


class _Linker:
    """Object being linked into memory."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()
        self.relocations = self._read_relocations()
        self.stubs: dict[int, int] = {}
        """Offset of the stub that jumps to a symbol of the process, by symbol index."""
        self.slots: dict[int, int] = {}
        """Offset of the GOT slot of a symbol, by symbol index."""
        self._process_addresses: dict[str, int] = {}

    # ---- reading ---------------------------------------------------------------------------------

    def _read_sections(self) -> list[_Section]:
        ident, kind, machine, *rest = _HEADER.unpack_from(self.code)
        if ident[:7] != _IDENT or kind != _RELOCATABLE or machine != _X86_64:
            raise UnsupportedObject("not a relocatable object for x86-64")
        table, entry, count = rest[3], rest[8], rest[9]
        if entry != _SECTION.size or not 0 < count < _RESERVED:
            raise MalformedObject("a section table of an unknown format")
        sections: list[_Section] = []
        for k in range(count):
            row = _SECTION.unpack_from(self.code, table + k * entry)
            _, kind, flags, _, offset, size, link_to, info, align, _ = row
            if kind != _NOBITS and offset + size > len(self.code):
                raise MalformedObject(f"section {k} leaves the file")
            if size > MAX_SECTION_BYTES:
                raise MalformedObject(f"section {k} has {size} bytes")
            if flags & _TLS:
                raise UnsupportedObject("thread-local storage")
            sections.append(_Section(kind, flags, offset, size, link_to, info, max(align, 1)))
        return sections

    def _read_symbols(self) -> list[_Symbol]:
        tables = [s for s in self.sections if s.kind == _SYMTAB]
        if len(tables) != 1:
            raise MalformedObject(f"{len(tables)} symbol tables")
        table = tables[0]
        names = self.sections[table.link]
        if names.kind != _STRTAB:
            raise MalformedObject("symbols without names")
        text = self.code[names.offset : names.offset + names.size]
        symbols: list[_Symbol] = []
        rows = self.code[table.offset : table.offset + table.size]
        for at, info, _, section, value, _ in _SYMBOL.iter_unpack(rows):
            if info & 15 > _FUNCTION_OR_LESS:
                raise UnsupportedObject(f"a symbol of type {info & 15}")
            if section >= _RESERVED and section != _ABSOLUTE:
                raise UnsupportedObject(f"a symbol in section {section:#x}")
            if section < _RESERVED and section >= len(self.sections):
                raise MalformedObject("a symbol in no section")
            if section < _RESERVED and section and value > self.sections[section].size:
                raise MalformedObject("a symbol outside of its section")
            symbols.append(_Symbol(text[at : text.index(b"\0", at)].decode(), section, value))
        return symbols

    def _read_relocations(self) -> list[tuple[_Section, list[tuple[int, int, int, int]]]]:
        """Return the changes to each loaded section: (offset, kind, symbol, addend)."""
        relocations: list[tuple[_Section, list[tuple[int, int, int, int]]]] = []
        for s in self.sections:
            if s.kind != _RELA_KIND:
                continue
            if s.info >= len(self.sections):
                raise MalformedObject("relocations of no section")
            home = self.sections[s.info]
            if not home.flags & _ALLOC or not _is_loaded(home):
                continue
            rows = _RELA.iter_unpack(self.code[s.offset : s.offset + s.size])
            changes = [(at, info & 0xFFFFFFFF, info >> 32, addend) for at, info, addend in rows]
            if any(number >= len(self.symbols) for _, _, number, _ in changes):
                raise MalformedObject("a relocation of no symbol")
            unknown = {kind for _, kind, _, _ in changes} - _KNOWN
            if unknown:
                raise UnsupportedObject(f"relocations of the kinds {sorted(unknown)}")
            relocations.append((home, changes))
        return relocations

    # ---- placing ---------------------------------------------------------------------------------

    def image(self, symbols: Sequence[str]) -> Image:
        """Write everything into memory and set the final page permissions."""
        defined = {s.name: s for s in self.symbols if s.section != _UNDEFINED and s.name}
        missing = [name for name in symbols if name not in defined]
        if missing:
            raise MalformedObject(f"symbols not found: {', '.join(missing)}")
        ends = self._place_sections()
        memory = mmap.mmap(-1, ends[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = _address(memory)
        for s in self.sections:
            if s.at >= 0 and s.kind != _NOBITS:
                memory[s.at : s.at + s.size] = self.code[s.offset : s.offset + s.size]
        for home, changes in self.relocations:
            self._relocate(home, changes, memory, base)
        _protect(base, ends)
        addresses = {name: self._address_of(defined[name], base) for name in symbols}
        return Image(addresses, ends[-1], memory)

    def _place_sections(self) -> list[int]:
        """Assign offsets to all sections; return the page-aligned ends of code, constants, data."""
        changes = [(kind, number) for _, rows in self.relocations for _, kind, number, _ in rows]
        called = {n for kind, n in changes if kind == _PLT32 and self._is_undefined(n)}
        tabled = {n for kind, n in changes if kind in _GOT}
        top, ends = 0, list[int]()
        for group in (_EXEC, 0, _WRITE):
            for s in self.sections:
                if s.flags & _ALLOC and s.flags & (_EXEC | _WRITE) == group and _is_loaded(s):
                    if s.align > PAGE or s.align & (s.align - 1):
                        raise UnsupportedObject(f"alignment of {s.align}")
                    s.at = -(-top // s.align) * s.align
                    top = s.at + s.size
            for number in sorted(called if group == _EXEC else tabled if not group else ()):
                (self.stubs if group else self.slots)[number] = top = -(-top // 16) * 16
                top += 16
            top = -(-top // PAGE) * PAGE
            ends.append(top)
        if any(s.flags & _EXEC and s.flags & _WRITE for s in self.sections):
            raise UnsupportedObject("a section that is writable and executable")
        if not top:
            raise MalformedObject("no code")
        return ends

    def _is_undefined(self, number: int) -> bool:
        return self.symbols[number].section == _UNDEFINED

    # ---- relocations -----------------------------------------------------------------------------

    def _relocate(
        self, home: _Section, changes: list[tuple[int, int, int, int]], memory: mmap.mmap, base: int
    ) -> None:
        for offset, kind, number, addend in changes:
            width = 8 if kind in (_ABS64, _PC64) else 4
            if offset + width > home.size:
                raise MalformedObject("a relocation outside of its section")
            at = home.at + offset
            value = self._target_address(kind, number, memory, base) + addend
            if kind != _ABS64:
                value -= base + at
            if width == 4 and not -(1 << 31) <= value < 1 << 31:
                raise UnsupportedObject("a symbol farther away than 2 GiB")
            memory[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")

    def _target_address(self, kind: int, number: int, memory: mmap.mmap, base: int) -> int:
        """Return the address that a relocation refers to: the symbol, its stub or its slot."""
        symbol = self.symbols[number]
        target = self._address_of(symbol, base)
        if kind in _GOT:
            slot = self.slots[number]
            memory[slot : slot + 8] = target.to_bytes(8, "little")
            return base + slot
        if number in self.stubs and kind == _PLT32:
            stub = self.stubs[number]
            content = _STUB[:6] + target.to_bytes(8, "little") + _STUB[14:]
            memory[stub : stub + len(_STUB)] = content
            return base + stub
        return target

    def _address_of(self, symbol: _Symbol, base: int) -> int:
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section != _UNDEFINED:
            at = self.sections[symbol.section].at
            if at < 0:
                raise MalformedObject(f"{symbol.name} is in no section that is loaded")
            return base + at + symbol.value
        address = self._process_addresses.get(symbol.name)
        if address is None:
            address = self._process_addresses[symbol.name] = _process_symbol(symbol.name)
        return address


def _is_loaded(s: _Section) -> bool:
    """Return whether a section belongs in memory.

    Unwind tables do not: no exception passes through a kernel.
    """
    if s.kind == _UNWIND:
        return False
    if s.kind not in (_PROGBITS, _NOBITS):
        raise UnsupportedObject(f"a loaded section of kind {s.kind:#x}")
    return True


@cache
def _process() -> Any:
    return ctypes.CDLL(None)


def _process_symbol(name: str) -> int:
    """Return the address of a function of the process.

    Raises Malformed where there is none.
    """
    try:
        address = ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except AttributeError:
        address = None
    if not address:
        raise MalformedObject(f"the process has no symbol {name!r}")
    return address


def _address(memory: mmap.mmap) -> int:
    """Return where a mapping begins, without keeping a view that would prevent unmapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _protect(base: int, ends: Sequence[int]) -> None:
    """Make code executable and constants read-only.

    Raises Unfamiliar if the system forbids that.
    """
    code, constants, _ = ends
    rights: Mapping[tuple[int, int], int] = {
        (0, code): mmap.PROT_READ | mmap.PROT_EXEC,
        (code, constants): mmap.PROT_READ,
    }
    for (begin, end), right in rights.items():
        size = end - begin
        start = ctypes.c_void_p(base + begin)
        if size and _process().mprotect(start, ctypes.c_size_t(size), right) != 0:
            raise UnsupportedObject("memory of this process cannot be made executable")
