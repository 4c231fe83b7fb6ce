"""Write relocatable objects and constants as one ELF shared object, without a linker.

Objects that a compiler has made for a program without Python refer to one another, to a few
functions of the C library and to tables that come with them. This module places their sections,
applies their relocations (`smelt.runtime.elf`), and adds what a dynamic linker reads: exported
symbols, imported ones, and the addresses that it fills in before any code runs.

    headers, symbols, constants of the objects     read only
    code, and jumps to imported functions          executable
    `.dynamic`, addresses of imported functions    read only once they are filled in
    variables                                      writable
    tables and arrays                              read only, mapped from the file as they are read

Imported symbols have no versions and name no library: every process has its C library loaded. So
one file serves glibc and musl.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from smelt.runtime import elf
from smelt.runtime.elf import Linker, MalformedObject, UnsupportedObject

__all__ = ["Part", "SharedObject"]

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELA: Final = struct.Struct("<QQq")
_LOAD, _DYNAMIC, _STACK, _RELRO = 1, 2, 0x6474E551, 0x6474E552
_READ, _WRITABLE, _EXECUTABLE = 4, 6, 5
_FUNCTION, _UNTYPED = 0x12, 0x10
"""Global symbols: a function, and one of no type."""


class _Machine(NamedTuple):
    """What the dynamic linker and a jump through an address are on an architecture."""

    imported: int
    """Type of the relocation that writes a symbol's address."""
    relative: int
    stub: Callable[[int, int], bytes]
    """Returns the jump at an address to what is stored at another one."""
    page: int
    """Alignment in bytes of segments: the largest page of a system."""


def _x86_stub(at: int, slot: int) -> bytes:
    return b"\xff\x25" + (slot - at - 6).to_bytes(4, "little", signed=True)


def _arm_stub(at: int, slot: int) -> bytes:
    """adrp x16, slot; ldr x17, [x16, slot]; br x17."""
    pages = (slot >> 12) - (at >> 12) & 0x1FFFFF
    words = (
        0x90000010 | (pages & 3) << 29 | (pages >> 2) << 5,
        0xF9400211 | (slot & 0xFFF) >> 3 << 10,
        0xD61F0220,
    )
    return struct.pack("<3I", *words)


_MACHINES: Final = {
    62: _Machine(6, 8, _x86_stub, 1 << 12),
    183: _Machine(1025, 1027, _arm_stub, 1 << 16),
}
_STUB_BYTES: Final = 16
_GRANTED: Final = frozenset({"memcpy", "memmove", "memset", "memcmp"})
"""Functions of every C library that compilers call."""


class Part(NamedTuple):
    """An object, with other names of symbols that it refers to."""

    code: bytes
    renamed: Mapping[str, str] = {}
    library: str = ""
    """The library of its imports, besides the functions that compilers take for granted."""


class _Placed(Linker):
    """An object in the image, whose addresses are distances from the image's beginning."""

    def __init__(self, part: Part, whole: SharedObject) -> None:
        super().__init__(part.code, whole.address_of)
        self.renamed, self.library, self.whole = part.renamed, part.library, whole

    def name_of(self, number: int) -> str:
        """Return the whole's name of a symbol that this object does not define; else nothing."""
        symbol = self.symbols[number]
        return self.renamed.get(symbol.name, symbol.name) if self._is_undefined(number) else ""

    def _target_address(self, via: str, number: int, memory: elf.Memory, base: int) -> int:
        name = self.name_of(number)
        symbol = self.symbols[number]
        address = self.whole.address_of(name) if name else self.locate(symbol, base)
        if via == "slot":
            return self.whole.slot(name if address < 0 else "", address)
        if address >= 0:
            return address
        if via != "stub":
            raise UnsupportedObject(f"the address of {name} in code")
        return self.whole.stubs[name]


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


class SharedObject:
    """Shared object whose layout is complete once it is made; `finish` writes it."""

    def __init__(
        self, parts: Sequence[Part], exports: Mapping[str, str], unload: str, soname: str
    ) -> None:
        """Place the objects.

        `exports` are names of their symbols by exported ones.

        `unload` is the function that runs when the object is unloaded. `smelt_image` is the
        beginning of the image, `smelt_tables` the end of its variables, where `finish` puts tables.

        Raises UnsupportedObject and MalformedObject for objects that cannot be linked.
        """
        self._parts = [_Placed(part, self) for part in parts]
        self._exports, self._soname = exports, soname
        self._number = self._parts[0].architecture.number
        self._machine = _MACHINES[self._number]
        self._defined: dict[str, int] = {}
        self._slots: dict[tuple[str, int], int] = {}
        self._bounds: list[int] = []
        self.stubs: dict[str, int] = {}
        """Address of the jump to each imported function."""
        self._imports, self._libraries = self._imported()
        self._names = self._strings()
        self._place()
        self._unload = self.address_of(unload)

    # ---- symbols ---------------------------------------------------------------------------------

    def address_of(self, name: str) -> int:
        """Return the address of a symbol that some object defines; -1 if none does."""
        return self._defined.get(name, -1)

    def symbol(self, part: int, name: str) -> int:
        """Return the address of a symbol of one object; raises MalformedObject."""
        placed = self._parts[part]
        if name not in placed.defined:
            raise MalformedObject(f"symbols not found: {name}")
        return placed.locate(placed.defined[name], 0)

    def slot(self, name: str, address: int) -> int:
        """Return where the address of an imported symbol, or of a local one, is stored."""
        key = name, 0 if name else address
        if key not in self._slots:
            self._slots[key] = self._slots_at + 8 * len(self._slots)
        return self._slots[key]

    def _imported(self) -> tuple[list[str], list[str]]:
        """Return the symbols that no object defines, and the libraries to load for them."""
        defined = {"smelt_image", "smelt_tables"}
        for p in self._parts:
            defined.update(p.defined)
        imports, libraries = set[str](), set[str]()
        for p in self._parts:
            used = {p.name_of(n) for _, changes in p.relocations for _, _, n, _ in changes}
            used -= {"", *defined}
            imports |= used
            libraries |= {p.library} if used - _GRANTED else set()
        return sorted(imports), sorted(libraries - {""})

    def _strings(self) -> bytes:
        names = [*self._exports, *self._imports, self._soname, *self._libraries]
        return b"\0" + b"".join(name.encode() + b"\0" for name in names)

    # ---- layout ----------------------------------------------------------------------------------

    def _place(self) -> None:
        """Assign addresses to everything but tables and arrays."""
        page = self._machine.page
        count = 1 + len(self._exports) + len(self._imports)
        most_slots = sum(len(p.uses("slot")) for p in self._parts) + len(self._imports)
        self._hash_at = _HEADER.size + 8 * _SEGMENT.size
        self._symbols_at = _up(self._hash_at + 4 * (3 + count), 8)
        self._names_at = self._symbols_at + _SYMBOL.size * count
        self._rela_at = _up(self._names_at + len(self._names), 8)
        top = self._place_group(elf.CONSTANTS, self._rela_at + _RELA.size * most_slots)
        self._code_at = top = _up(top, page)
        top = _up(self._place_group(elf.CODE, top), 16)
        for name in self._imports:
            self.stubs[name], top = top, top + _STUB_BYTES
        self._code_end, self._dynamic_at = top, _up(top, page)
        self._slots_at = self._dynamic_at + 16 * (12 + len(self._libraries))
        self._slots_end = self._slots_at + 8 * most_slots
        self._data_at = _up(self._slots_end, page)
        self._data_end = self._place_group(elf.DATA, self._data_at)
        self.tables_at = _up(self._data_end, page)
        self._defined = {"smelt_image": 0, "smelt_tables": self.tables_at}
        for p in self._parts[::-1]:  # the first object that defines a symbol is meant
            self._defined.update({n: p.locate(s, 0) for n, s in p.defined.items()})

    def _place_group(self, group: int, top: int) -> int:
        for p in self._parts:
            top = p.place(group, top)
        return top

    # ---- contents --------------------------------------------------------------------------------

    def finish(self, nbytes: int) -> bytearray:
        """Return the image up to the tables; `nbytes` is the length of all that follows."""
        image = bytearray(self.tables_at)
        for p in self._parts:
            p.write(image, 0)
        for name, at in self.stubs.items():
            code = self._machine.stub(at, self.slot(name, -1))
            image[at : at + len(code)] = code
        self._write_symbols(image)
        relocations = self._relocations()
        image[self._rela_at : self._rela_at + len(relocations)] = relocations
        dynamic = self._dynamic(len(relocations))
        image[self._dynamic_at : self._dynamic_at + len(dynamic)] = dynamic
        self._write_headers(image, nbytes)
        return image

    def _symbol_number(self, name: str) -> int:
        return 1 + len(self._exports) + self._imports.index(name)

    def _name_at(self, name: str) -> int:
        return self._names.index(b"\0" + name.encode() + b"\0") + 1

    def _relocations(self) -> bytes:
        rows: list[bytes] = []
        for (name, address), at in self._slots.items():
            if name:
                info = self._symbol_number(name) << 32 | self._machine.imported
                rows.append(_RELA.pack(at, info, 0))
            else:
                rows.append(_RELA.pack(at, self._machine.relative, address))
        return b"".join(rows)

    def _write_symbols(self, image: bytearray) -> None:
        at = self._symbols_at + _SYMBOL.size
        for name, target in self._exports.items():
            if self.address_of(target) < 0:
                raise MalformedObject(f"symbols not found: {target}")
            row = self._name_at(name), _FUNCTION, 0, 1, self.address_of(target), 0
            _SYMBOL.pack_into(image, at, *row)
            at += _SYMBOL.size
        for name in self._imports:
            _SYMBOL.pack_into(image, at, self._name_at(name), _UNTYPED, 0, 0, 0, 0)
            at += _SYMBOL.size
        # One bucket: a chain of all symbols.
        count = 1 + len(self._exports) + len(self._imports)
        chain = [0, *(k + 1 if k + 1 < count else 0 for k in range(1, count))]
        struct.pack_into(f"<{3 + count}I", image, self._hash_at, 1, count, 1, *chain)
        image[self._names_at : self._names_at + len(self._names)] = self._names

    def _dynamic(self, relocation_bytes: int) -> bytes:
        entries = (
            *((1, self._name_at(name)) for name in self._libraries),  # NEEDED
            (14, self._name_at(self._soname)),  # SONAME
            (4, self._hash_at),
            (5, self._names_at),
            (6, self._symbols_at),
            (10, len(self._names)),
            (11, _SYMBOL.size),
            (7, self._rela_at),
            (8, relocation_bytes),
            (9, _RELA.size),
            (13, self._unload),  # FINI
            (24, 0),  # BIND_NOW
            (0, 0),
        )
        return b"".join(struct.pack("<QQ", *entry) for entry in entries)

    def _write_headers(self, image: bytearray, nbytes: int) -> None:
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        end, page = self.tables_at + nbytes, self._machine.page
        head = (3, self._number, 1, 0, _HEADER.size, end, 0, 64, 56, 8, 64, 8, 7)
        _HEADER.pack_into(image, 0, ident, *head)
        segments = (
            (_LOAD, _READ, 0, self._code_at, page),
            (_LOAD, _EXECUTABLE, self._code_at, self._code_end, page),
            (_LOAD, _WRITABLE, self._dynamic_at, self._slots_end, page),
            (_LOAD, _WRITABLE, self._data_at, self._data_end, page),
            (_LOAD, _READ, self.tables_at, end, page),
            (_DYNAMIC, _WRITABLE, self._dynamic_at, self._slots_at, 8),
            (_RELRO, _READ, self._dynamic_at, _up(self._slots_end, 1 << 12), 1),
            (_STACK, _WRITABLE, 0, 0, 16),
        )
        for k, (kind, flags, begin, stop, align) in enumerate(segments):
            place = _HEADER.size + _SEGMENT.size * k
            size = stop - begin
            _SEGMENT.pack_into(image, place, kind, flags, begin, begin, begin, size, size, align)

    def section_table(self, end: int) -> bytes:
        """Return the section headers, which stand at `end`: linkers read symbols by them."""
        titles = b"\0.hash\0.dynsym\0.dynstr\0.rela.dyn\0.text\0.dynamic\0.shstrtab\0"
        count = 1 + len(self._exports) + len(self._imports)
        relocation_bytes = _RELA.size * len(self._slots)
        rows = (
            (".hash", 5, 2, self._hash_at, 4 * (3 + count), 2, 0, 8, 4),
            (".dynsym", 11, 2, self._symbols_at, _SYMBOL.size * count, 3, 1, 8, _SYMBOL.size),
            (".dynstr", 3, 2, self._names_at, len(self._names), 0, 0, 1, 0),
            (".rela.dyn", 4, 2, self._rela_at, relocation_bytes, 2, 0, 8, _RELA.size),
            (".text", 1, 6, self._code_at, self._code_end - self._code_at, 0, 0, 64, 0),
            (".dynamic", 6, 3, self._dynamic_at, self._slots_at - self._dynamic_at, 3, 0, 8, 16),
        )
        table = bytearray(_SECTION.size)
        for name, kind, flags, at, size, *rest in rows:
            title = titles.index(name.encode() + b"\0")
            table += _SECTION.pack(title, kind, flags, at, at, size, *rest)
        here = end + len(table) + _SECTION.size
        title = titles.index(b".shstrtab\0")
        table += _SECTION.pack(title, 3, 0, 0, here, len(titles), 0, 0, 1, 0)
        return bytes(table) + titles
