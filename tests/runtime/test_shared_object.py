"""Shared objects without a linker: symbols, imports, jumps, and what is refused."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from smelt.runtime import native
from smelt.runtime.elf import MalformedObject, UnsupportedObject
from smelt.runtime.jit import compile_ir
from smelt.runtime.native import native_source
from smelt.runtime.shared_object import Part, SharedObject

ONE = compile_ir("""
declare i64 @two(i64)
declare double @fmod(double, double)
@smelt_tables = external hidden global i64
@calls = global i64 0
define i64 @one(i64 %x) {
  %n = load i64, ptr @calls
  %more = add i64 %n, 1
  store i64 %more, ptr @calls
  %word = load i64, ptr @smelt_tables
  %y = call i64 @two(i64 %x)
  %z = add i64 %y, %word
  %sum = add i64 %z, %n
  ret i64 %sum
}
define double @rest(double %x, double %y) {
  %z = call double @fmod(double %x, double %y)
  ret double %z
}
define void @end() { ret void }
""")
TWO = compile_ir("define i64 @second(i64 %x) { %y = mul i64 %x, 2 ret i64 %y }")
EXPORTS = {"x_one": "one", "x_rest": "rest"}


def write(path: Path, *parts: Part) -> ctypes.CDLL:
    shared = SharedObject(parts, EXPORTS, "end", path.name)
    words = struct.pack("<8q", 100, *[0] * 7)
    image = shared.finish(len(words))
    path.write_bytes(bytes(image) + words + shared.section_table(len(image) + len(words)))
    return ctypes.CDLL(str(path))


def test_objects_find_one_another_tables_and_the_system(tmp_path: Path) -> None:
    """A call into another object by another name, one of libm, a variable, and the tables."""
    library = write(tmp_path / "libx.so", Part(ONE, {"two": "second"}, "libm.so.6"), Part(TWO))
    assert [library.x_one(ctypes.c_int64(5)) for _ in range(3)] == [110, 111, 112]
    library.x_rest.argtypes, library.x_rest.restype = (ctypes.c_double,) * 2, ctypes.c_double
    assert library.x_rest(7.5, 2.0) == 1.5
    assert not hasattr(library, "second")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    shared = SharedObject([Part(ONE), Part(TWO)], {"x": "nothing"}, "end", "libx.so")
    with pytest.raises(MalformedObject, match="symbols not found: nothing"):
        shared.finish(0)
    with pytest.raises(MalformedObject, match="symbols not found: k"):
        shared.symbol(1, "k")
    with pytest.raises(OSError, match="undefined symbol: two"):
        write(tmp_path / "libx.so", Part(ONE), Part(TWO))


def test_an_absolute_address_in_code_is_refused() -> None:
    table = compile_ir(
        "@table = constant ptr @far\n@far = external global i64\ndefine void @end() { ret void }"
    )
    with pytest.raises(UnsupportedObject, match="the address of far in code"):
        SharedObject([Part(table)], {}, "end", "libx.so").finish(0)


def test_the_run_time_links_for_arm() -> None:
    """Jumps to imported functions read the word that the dynamic linker fills in."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="small")

    def part(text: str) -> Part:
        module = llvm.parse_assembly(text)
        module.triple = triple
        return Part(machine.emit_object(module))

    parts = [part(native.ir(triple)), part(native_source("library"))]
    shared = SharedObject(parts, {"x_run": "smelt_library_run"}, "smelt_library_unload", "libx.so")
    image = shared.finish(64)
    for name, at in shared.stubs.items():
        page, load, jump = struct.unpack_from("<3I", image, at)
        assert (page & 0x9F00001F, load & 0xFFC003FF, jump) == (0x90000010, 0xF9400211, 0xD61F0220)
        pages = (page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3
        slot = (at >> 12 << 12) + (pages << 12) + (load >> 10 & 0xFFF) * 8
        assert slot == shared.slot(name, -1)
