"""Load ELF objects without LLVM, to avoid importing it on a warm start.

LLVM's linker can load anything, but importing it costs more than the rest of a process that finds
its kernels in the cache. Kernels are simple objects: a few sections, calls of the C library,
PC-relative addresses. `link` places their sections, applies the relocations that such objects have
(System V ABI, AMD64 supplement, 4.4; ELF for the Arm 64-bit Architecture, 5.7), and raises
`UnsupportedObject` for everything else; the caller then uses LLVM. An architecture is a row of
`_ARCHITECTURES`, and objects of one are placed on any host: tests run those of AArch64 in an
emulator.

Pages are written first, then code becomes executable and read-only, constants read-only: no page
is ever both writable and executable. An Arm core may still hold what was at these addresses in its
instruction cache, which is flushed last.

    image = link(code, ["k0"])
    image.addresses["k0"]
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from smelt.kernel.abi import POLL_SYMBOL
from smelt.packages.c_library import C_LIBRARY, function_address


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

# Section types and flags.
_PROGBITS, _SYMTAB, _STRTAB, _RELA_KIND, _NOBITS = 1, 2, 3, 4, 8
_UNWIND: Final = 0x70000001
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
CODE, CONSTANTS, DATA = _EXEC, 0, _WRITE
"""Groups of sections, which have pages of their own."""

# Special section indices of symbols.
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_FUNCTION_OR_LESS: Final = 4
"""Largest plain symbol type: none, object, function, section, file."""

_STUB_BYTES: Final = 16

Memory: TypeAlias = mmap.mmap | bytearray


class _Relocation(NamedTuple):
    """How an address is written into the bytes that need it."""

    nbytes: int
    encode: Callable[[int, int, int], int]
    """Returns the new bytes, from the old ones, the address referred to, and their own address."""
    via: Literal["", "stub", "slot"] = ""
    """A call goes to functions of the process by a stub; a slot is in the table of addresses."""


class _Architecture(NamedTuple):
    """What the loader knows about an architecture's objects."""

    name: str
    number: int
    relocations: Mapping[int, _Relocation]
    stub: tuple[bytes, bytes]
    """Code before and after the target's address, which jumps there."""


def _absolute(_: int, target: int, __: int) -> int:
    return target


def _relative(_: int, target: int, at: int) -> int:
    return target - at


def _relative32(_: int, target: int, at: int) -> int:
    return _within(target - at, 32) & 0xFFFFFFFF


def _page(word: int, target: int, at: int) -> int:
    """Encode the distance in pages of 4 KiB, in the parts that `adrp` has."""
    pages = _within((target >> 12) - (at >> 12), 21)
    return word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _in_page(scale: int) -> Callable[[int, int, int], int]:
    """Return the encoder of an offset in a page, in units of 2**scale bytes."""

    def encode(word: int, target: int, _: int) -> int:
        if target & (1 << scale) - 1:
            raise MalformedObject(f"an address that is not a multiple of {1 << scale}")
        return word & ~(0xFFF << 10) | (target & 0xFFF) >> scale << 10

    return encode


def _branch(word: int, target: int, at: int) -> int:
    """Encode the distance of a branch, in instructions."""
    return word & 0xFC000000 | _within(target - at, 28) >> 2 & 0x3FFFFFF


def _within(distance: int, bits: int) -> int:
    """Return a distance that fits a signed field; raise UnsupportedObject for a longer one."""
    if not -(1 << bits - 1) <= distance < 1 << bits - 1:
        raise UnsupportedObject(f"a symbol too far away for {bits} bits")
    return distance


_GOT_LOAD: Final = _Relocation(4, _relative32, "slot")
_ARCHITECTURES: Final = (
    _Architecture(
        "x86_64",
        62,
        {
            1: _Relocation(8, _absolute),  # 64
            2: _Relocation(4, _relative32),  # PC32
            4: _Relocation(4, _relative32, "stub"),  # PLT32
            **dict.fromkeys((9, 41, 42), _GOT_LOAD),  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
            24: _Relocation(8, _relative),  # PC64
        },
        (b"\xff\x25\x00\x00\x00\x00", b"\xcc\xcc"),  # jmp *0(%rip)
    ),
    _Architecture(
        "aarch64",
        183,
        {
            257: _Relocation(8, _absolute),  # ABS64
            260: _Relocation(8, _relative),  # PREL64
            261: _Relocation(4, _relative32),  # PREL32
            275: _Relocation(4, _page),  # ADR_PREL_PG_HI21
            277: _Relocation(4, _in_page(0)),  # ADD_ABS_LO12_NC
            278: _Relocation(4, _in_page(0)),  # LDST8_ABS_LO12_NC
            282: _Relocation(4, _branch, "stub"),  # JUMP26
            283: _Relocation(4, _branch, "stub"),  # CALL26
            284: _Relocation(4, _in_page(1)),  # LDST16_ABS_LO12_NC
            285: _Relocation(4, _in_page(2)),  # LDST32_ABS_LO12_NC
            286: _Relocation(4, _in_page(3)),  # LDST64_ABS_LO12_NC
            299: _Relocation(4, _in_page(4)),  # LDST128_ABS_LO12_NC
            311: _Relocation(4, _page, "slot"),  # ADR_GOT_PAGE
            312: _Relocation(4, _in_page(3), "slot"),  # LD64_GOT_LO12_NC
        },
        (b"\x50\x00\x00\x58\x00\x02\x1f\xd6", b""),  # ldr x16, #8; br x16
    ),
)


class Image:
    """Linked code in memory, unmapped with this object."""

    __slots__ = ("addresses", "ends", "memory", "nbytes")

    def __init__(self, addresses: dict[str, int], ends: Sequence[int], memory: mmap.mmap) -> None:
        self.addresses = addresses
        self.ends = tuple(ends)
        """Where code, constants and data end, in bytes from the first."""
        self.nbytes = ends[-1]
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
    """Return whether `link` may load this object to be run here: Linux on its architecture."""
    host = _host()
    return (
        host is not None
        and code[:7] == _IDENT
        and code[16:20] == struct.pack("<HH", _RELOCATABLE, host.number)
    )


@cache
def _host() -> _Architecture | None:
    if sys.platform != "linux" or sys.maxsize <= 1 << 32:
        return None
    return next((a for a in _ARCHITECTURES if a.name == platform.machine()), None)


def link(code: bytes, symbols: Sequence[str], resolve: Callable[[str], int] | None = None) -> Image:
    """Place `code` in memory and resolve its defined `symbols`.

    Undefined symbols are given by `resolve`, by default those of the process. Raises
    UnsupportedObject for what only a full linker can do, MalformedObject if the object is damaged
    or a symbol is missing.
    """
    try:
        return Linker(code, resolve or _process_symbol).image(symbols)
    except (struct.error, LookupError, ValueError, OverflowError, OSError) as error:
        raise MalformedObject(f"not a whole object: {error}") from error


class Linker:
    """Object being linked into memory."""

    def __init__(self, code: bytes, resolve: Callable[[str], int]) -> None:
        self.code = code
        self.resolve = cache(resolve)
        self.architecture = self._read_architecture()
        self.sections = self._read_sections()
        self.symbols = self._read_symbols()
        self.relocations = self._read_relocations()
        self.defined = {s.name: s for s in self.symbols if s.section != _UNDEFINED and s.name}
        self.stubs: dict[int, int] = {}
        """Offset of the stub that jumps to a symbol of the process, by symbol index."""
        self.slots: dict[int, int] = {}
        """Offset of the GOT slot of a symbol, by symbol index."""

    # ---- reading ---------------------------------------------------------------------------------

    def _read_architecture(self) -> _Architecture:
        ident, kind, machine, *_ = _HEADER.unpack_from(self.code)
        if ident[:7] == _IDENT and kind == _RELOCATABLE:
            for architecture in _ARCHITECTURES:
                if architecture.number == machine:
                    return architecture
        names = " or ".join(a.name for a in _ARCHITECTURES)
        raise UnsupportedObject(f"not a relocatable object for {names}")

    def _read_sections(self) -> list[_Section]:
        rest = _HEADER.unpack_from(self.code)[3:]
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
            unknown = {kind for _, kind, _, _ in changes}.difference(self.architecture.relocations)
            if unknown:
                kinds = ", ".join(map(str, sorted(unknown)))
                raise UnsupportedObject(f"relocations of kind {kinds} of {self.architecture.name}")
            relocations.append((home, changes))
        return relocations

    # ---- placing ---------------------------------------------------------------------------------

    def image(self, symbols: Sequence[str]) -> Image:
        """Write everything into memory and set the final page permissions."""
        missing = [name for name in symbols if name not in self.defined]
        if missing:
            raise MalformedObject(f"symbols not found: {', '.join(missing)}")
        ends = self._place_sections()
        memory = mmap.mmap(-1, ends[-1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = _address(memory)
        self.write(memory, base)
        _protect(base, ends)
        if self.architecture is _host():
            _flush_instructions(base, ends[0])
        addresses = {name: self.locate(self.defined[name], base) for name in symbols}
        return Image(addresses, ends, memory)

    def _place_sections(self) -> list[int]:
        """Assign offsets to all sections; return the page-aligned ends of code, constants, data."""
        called = {n for n in self.uses("stub") if self._is_undefined(n)}
        top, ends = 0, list[int]()
        for group in (CODE, CONSTANTS, DATA):
            top = self.place(group, top)
            for number in sorted(
                called if group == CODE else self.uses("slot") if group == CONSTANTS else ()
            ):
                (self.stubs if group else self.slots)[number] = top = -(-top // 16) * 16
                top += _STUB_BYTES
            top = -(-top // PAGE) * PAGE
            ends.append(top)
        if not top:
            raise MalformedObject("no code")
        return ends

    def uses(self, via: str) -> set[int]:
        """Return the symbols that relocations reach by a stub or a slot."""
        rows = self.architecture.relocations
        return {
            n for _, uses in self.relocations for _, kind, n, _ in uses if rows[kind].via == via
        }

    def place(self, group: int, top: int) -> int:
        """Assign offsets from `top` to the sections of a group; return their end."""
        for s in self.sections:
            if s.flags & _EXEC and s.flags & _WRITE:
                raise UnsupportedObject("a section that is writable and executable")
            if s.flags & _ALLOC and s.flags & (_EXEC | _WRITE) == group and _is_loaded(s):
                if s.align > PAGE or s.align & (s.align - 1):
                    raise UnsupportedObject(f"alignment of {s.align}")
                s.at = -(-top // s.align) * s.align
                top = s.at + s.size
        return top

    def write(self, memory: Memory, base: int) -> None:
        """Write the placed sections for an image at address `base`."""
        for s in self.sections:
            if s.at >= 0 and s.kind != _NOBITS:
                memory[s.at : s.at + s.size] = self.code[s.offset : s.offset + s.size]
        for home, changes in self.relocations:
            self._relocate(home, changes, memory, base)

    def _is_undefined(self, number: int) -> bool:
        return self.symbols[number].section == _UNDEFINED

    # ---- relocations -----------------------------------------------------------------------------

    def _relocate(
        self, home: _Section, changes: list[tuple[int, int, int, int]], memory: Memory, base: int
    ) -> None:
        for offset, kind, number, addend in changes:
            row = self.architecture.relocations[kind]
            if offset + row.nbytes > home.size:
                raise MalformedObject("a relocation outside of its section")
            at, end = home.at + offset, home.at + offset + row.nbytes
            target = self._target_address(row.via, number, memory, base) + addend
            before = int.from_bytes(memory[at:end], "little")
            bits = row.encode(before, target, base + at) & (1 << 8 * row.nbytes) - 1
            memory[at:end] = bits.to_bytes(row.nbytes, "little")

    def _target_address(self, via: str, number: int, memory: Memory, base: int) -> int:
        """Return the address that a relocation refers to: the symbol, its stub or its slot."""
        symbol = self.symbols[number]
        target = self.locate(symbol, base)
        if via == "slot":
            slot = self.slots[number]
            memory[slot : slot + 8] = target.to_bytes(8, "little")
            return base + slot
        if number in self.stubs and via == "stub":
            stub = self.stubs[number]
            content = target.to_bytes(8, "little").join(self.architecture.stub)
            memory[stub : stub + len(content)] = content
            return base + stub
        return target

    def locate(self, symbol: _Symbol, base: int) -> int:
        """Return the address of a symbol in an image at address `base`."""
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section != _UNDEFINED:
            at = self.sections[symbol.section].at
            if at < 0:
                raise MalformedObject(f"{symbol.name} is in no section that is loaded")
            return base + at + symbol.value
        return self.resolve(symbol.name)


def _is_loaded(s: _Section) -> bool:
    """Return whether a section belongs in memory.

    Unwind tables do not: no exception passes through a kernel.
    """
    if s.kind == _UNWIND:
        return False
    if s.kind not in (_PROGBITS, _NOBITS):
        raise UnsupportedObject(f"a loaded section of kind {s.kind:#x}")
    return True


def _process_symbol(name: str) -> int:
    """Return the address of a function, or of the words that kernels poll.

    Raises MalformedObject where there is none.
    """
    address = poll_address() if name == POLL_SYMBOL else function_address(name)
    if not address:
        raise MalformedObject(f"the process has no symbol {name!r}")
    return address


def _address(memory: mmap.mmap) -> int:
    """Return where a mapping begins, without keeping a view that would prevent unmapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _protect(base: int, ends: Sequence[int]) -> None:
    """Make code executable and constants read-only.

    Raises UnsupportedObject if the system forbids that.
    """
    code, constants, _ = ends
    rights: Mapping[tuple[int, int], int] = {
        (0, code): mmap.PROT_READ | mmap.PROT_EXEC,
        (code, constants): mmap.PROT_READ,
    }
    for (begin, end), right in rights.items():
        size = end - begin
        start = ctypes.c_void_p(base + begin)
        if size and C_LIBRARY.mprotect(start, ctypes.c_size_t(size), right) != 0:
            raise UnsupportedObject("memory of this process cannot be made executable")


def _flush_instructions(base: int, nbytes: int) -> None:
    """Make new code visible to instruction fetch, which x86 does by itself.

    `__clear_cache` is in libgcc, whose shared library exports it on AArch64.
    """
    if platform.machine() == "x86_64":
        return
    try:
        flush = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (OSError, AttributeError) as error:
        raise UnsupportedObject("no way to flush the instruction cache") from error
    flush(ctypes.c_void_p(base), ctypes.c_void_p(base + nbytes))


# ---- the words that kernels poll ----------------------------------------------------------------
#
# A kernel that may compute for long in one task refers to `smelt.kernel.abi.POLL_SYMBOL`, which
# loaders resolve to the address of these words. So code is linked before there is a pool, and runs
# without one.

_WORDS: Final = (ctypes.c_int64 * 3)()
"""The function to call with them (0 until a thread pool exists), the key of the value that it reads
of its thread, and the function that reads it. Never freed."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_WORDS))


def poll_address() -> int:
    """Return the address of the words, the same in the whole process."""
    return ctypes.addressof(_WORDS)


def bind_poll(function: int) -> None:
    """Let kernels call the function at an address."""
    _WORDS[1], _WORDS[2] = thread_key(), function_address("pthread_getspecific")
    _WORDS[0] = function  # last: from now on kernels call it


@cache
def thread_key() -> int:
    """Return the key of a value that each thread has, 0 in a new thread."""
    key = ctypes.c_int64(0)
    if C_LIBRARY.pthread_key_create(ctypes.byref(key), None):
        raise OSError("the process has no thread-specific keys left")
    return key.value
