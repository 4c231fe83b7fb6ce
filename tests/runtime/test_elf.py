"""Objects placed by our own loader compute the bits that LLVM's linker gives; damage is refused."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codegen.llvm import emulate
from tests.golden.test_golden import FOLDER, inputs, read
from tests.strategies.comparison import same_bits

import smelt as sm
from smelt import knobs
from smelt.codegen.build import object_code
from smelt.compiler import driver
from smelt.graph.text import parse
from smelt.graph.walk import all_size_names
from smelt.machine.target import Target
from smelt.runtime import code, elf
from smelt.runtime.code import Loaded, load, load_by_llvm
from smelt.runtime.jit import compile_ir

PROBE = compile_ir("define i64 @value() { ret i64 3 }")
pytestmark = pytest.mark.skipif(not elf.can_link(PROBE), reason="this system's objects are LLVM's")

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "trigonometry calls the C library": (lambda x: sm.sin(x) + sm.cos(x * 1e6), ((33,),)),
    "row kernel": (lambda x: sm.nn.softmax(x, axis=-1), ((5, 77),)),
    "norm": (lambda x, g: sm.nn.layer_norm(x, g, g), ((9, 40), (40,))),
    "product": (lambda x, y: sm.nn.gelu(x @ y), ((37, 41), (41, 53))),
    "thin product": (lambda x, y: x @ y, ((1, 300), (300, 65))),
    "attention": (
        lambda q, k, v: sm.nn.softmax(q @ sm.matrix_transpose(k), axis=-1) @ v,
        ((2, 40, 16), (2, 50, 16), (2, 50, 24)),
    ),
    "columns": (lambda x: (sm.mean(x, axis=0), sm.var(x, axis=0)), ((70, 13),)),
    "scan and search": (lambda x: (sm.cumulative_sum(x, axis=1), sm.argmax(x, axis=1)), ((6, 90),)),
    "transposed": (lambda x: sm.permute_dims(x * 2, (1, 0)) + 1, ((19, 34),)),
}


def with_loader(
    monkeypatch: pytest.MonkeyPatch, loader: Callable[..., Loaded], run: Callable[[], Any]
) -> tuple[Any, int]:
    """What `run` gives when kernels are loaded so, and how many were."""
    used: list[Loaded] = []

    def loading(*arguments: Any) -> Loaded:
        used.append(loader(*arguments))
        return used[-1]

    code.forget()
    monkeypatch.setattr(code, "load", loading)
    return run(), len(used)


def by_us(code: bytes, symbols: list[str]) -> Loaded:
    """`load`, without the way out."""
    image = elf.link(code, symbols)
    return Loaded(image, image.addresses, len(code))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compute_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes = PROGRAMS[name]
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]

    def run() -> list[np.ndarray]:
        result = sm.jit(function)(*arrays)
        return [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]

    (ours, count), (llvms, again) = (
        with_loader(monkeypatch, loader, run) for loader in (by_us, load_by_llvm)
    )
    assert count == again > 0
    assert all(same_bits(a, b) for a, b in zip(ours, llvms, strict=True))


CASES = [case for path in sorted(FOLDER.glob("*.case")) for case in read(path)][::3]


def test_the_golden_corpus_computes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = 0
    for case in CASES:
        graph = parse(case.source)
        arrays = inputs(graph, (8, 9), "normal")
        if arrays is None:
            continue
        sizes = dict(zip(all_size_names(graph), (8, 9, 5, 3, 4, 2), strict=False))

        def run(graph: Any = graph, arrays: Any = arrays, sizes: Any = sizes) -> Any:
            with knobs.config(verify=False):
                program = driver.compile(graph)
            return program.run(arrays, tuple(sizes[n] for n in program.size_names))

        ours, count = with_loader(monkeypatch, by_us, run)
        llvms, _ = with_loader(monkeypatch, load_by_llvm, run)
        assert all(same_bits(a, b) for a, b in zip(ours, llvms, strict=True)), case.name
        ran += count > 0
    assert ran > 15


EVERYTHING = """
@number = global i64 40
@zeros = internal global [9 x i64] zeroinitializer
@table = internal constant [2 x ptr] [ptr @two, ptr @three]
@bytes = private constant [6 x i8] c"smelt\\00"
@wide = private constant <4 x i64> <i64 1, i64 2, i64 3, i64 4>, align 64
declare i64 @strlen(ptr)
declare ptr @memset(ptr, i32, i64)
define internal i64 @two() noinline { ret i64 2 }
define internal i64 @three() noinline { ret i64 3 }
define i64 @through_table(i64 %k) {
  %at = getelementptr ptr, ptr @table, i64 %k
  %f = load volatile ptr, ptr %at
  %n = call i64 %f()
  ret i64 %n
}
define i64 @through_slot() {
  %n = load volatile i64, ptr @number
  %next = add i64 %n, 1
  store volatile i64 %next, ptr @number
  ret i64 %next
}
define i64 @outside() { %n = call i64 @strlen(ptr @bytes) ret i64 %n }
define i64 @cleared() {
  %p = call ptr @memset(ptr @zeros, i32 1, i64 72)
  %n = load i64, ptr @zeros
  ret i64 %n
}
define i64 @lanes(i64 %k) {
  %v = load volatile <4 x i64>, ptr @wide, align 64
  %n = extractelement <4 x i64> %v, i64 %k
  ret i64 %n
}
"""
NAMES = ["through_table", "through_slot", "outside", "cleared", "lanes", "number"]


def call(address: int, *arguments: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(address)(*arguments)


@pytest.fixture(scope="module")
def everything() -> bytes:
    return compile_ir(EVERYTHING, 1)


@pytest.mark.parametrize("loader", [by_us, load_by_llvm], ids=["ours", "llvm"])
def test_tables_slots_constants_data_and_calls(loader: Any, everything: bytes) -> None:
    at = loader(everything, NAMES).address
    loaded = loader(everything, NAMES)  # another one: data of its own
    assert [call(at("through_table"), k) for k in (0, 1)] == [2, 3]
    assert [call(at("through_slot")) for _ in range(3)] == [41, 42, 43]
    assert call(loaded.address("through_slot")) == 41
    assert call(at("outside")) == 5
    assert call(at("cleared")) == 0x0101010101010101
    assert [call(at("lanes"), k) for k in range(4)] == [1, 2, 3, 4]
    assert at("number") % 8 == 0


def rights(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end:
            return permissions
    return "none"


def test_no_page_is_writable_and_executable(everything: bytes) -> None:
    image = elf.link(everything, NAMES)
    code, data = image.addresses["outside"], image.addresses["number"]
    assert (rights(code), rights(data)) == ("r-xp", "rw-p")
    del image
    assert rights(code) != "r-xp"


@pytest.mark.parametrize(
    "text",
    [
        "@a = thread_local global i64 7\ndefine ptr @f() { ret ptr @a }",
        "@a = common global i64 0\ndefine ptr @f() { ret ptr @a }",
        "@a = private global i64 7, align 8192\ndefine ptr @f() { ret ptr @a }",
    ],
)
def test_what_it_does_not_know_is_left_to_llvm(text: str) -> None:
    with pytest.raises(elf.UnsupportedObject):
        elf.link(compile_ir(text), ["f"])


def test_an_alignment_beyond_pages_works_through_llvm() -> None:
    text = "@a = private global i64 7, align 8192\n"
    text += "define i64 @f() { %n = load i64, ptr @a ret i64 %n }"
    assert call(load(compile_ir(text, 0), ["f"]).address("f")) == 7


def test_foreign_objects_are_not_for_us() -> None:
    assert not elf.can_link(b"")
    assert not elf.can_link(b"\xcf\xfa\xed\xfe" + PROBE[4:])  # Mach-O
    assert not elf.can_link(PROBE[:18] + b"\xb7\x00" + PROBE[20:])  # aarch64
    assert not elf.can_link(PROBE[:16] + b"\x03\x00" + PROBE[18:])  # a shared library


def mutants(code: bytes, count: int) -> list[bytes]:
    rng = random.Random(5)
    built: list[bytes] = []
    for _ in range(count):
        kind, bad = rng.randrange(3), bytearray(code)
        if kind == 0:
            del bad[rng.randrange(len(bad)) :]
        elif kind == 1:
            for _ in range(rng.randrange(1, 5)):
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        else:
            at = rng.randrange(len(bad))
            bad[at : at + 16] = rng.randbytes(16)
        built.append(bytes(bad))
    return built


def test_linking_a_damaged_object_never_kills_the_process(everything: bytes) -> None:
    """The digest is checked before; should it fail to, linking alone must still be harmless."""
    refused = 0
    for bad in mutants(everything, 3000):
        try:
            elf.link(bad, NAMES)
        except (elf.MalformedObject, elf.UnsupportedObject):
            refused += 1
    assert refused > 1000


# ---- AArch64 -------------------------------------------------------------------------------------

NEON = Target.for_isa("neon")


def arm_object(text: str) -> bytes:
    """A module for AArch64 as machine code that nothing was folded in."""
    return object_code(text, NEON, 0)


@emulate.needed
def test_objects_for_arm_run_in_an_emulator() -> None:
    """Addresses in pages, slots, tables, calls of what is near and of what is not."""
    machine = emulate.Machine(arm_object(EVERYTHING), NAMES)
    at = machine.address

    def run(name: str, *arguments: int) -> int:
        return machine.call(at(name), *arguments)

    assert [run("through_table", k) for k in (0, 1)] == [2, 3]
    assert [run("through_slot") for _ in range(3)] == [41, 42, 43]
    assert run("cleared") == 0x0101010101010101
    assert [run("lanes", k) for k in range(4)] == [1, 2, 3, 4]
    assert at("number") % 8 == 0


def test_an_unknown_relocation_is_named() -> None:
    """Thread-local storage through descriptors, and a kind that does not exist."""
    code = bytearray(arm_object(EVERYTHING))
    at = code.index(struct.pack("<I", 283), 0)  # CALL26, in the lower half of `info`
    code[at : at + 4] = struct.pack("<I", 999)
    with pytest.raises(elf.UnsupportedObject, match="kind 999 of aarch64"):
        elf.link(bytes(code), NAMES)


RELOCATIONS = next(a for a in elf._ARCHITECTURES if a.name == "aarch64").relocations  # type: ignore[attr-defined]
BASE = 0x7F0000001000


@pytest.mark.parametrize(
    ("kind", "word", "target", "wanted"),
    [
        (275, 0x90000000, BASE + 0x5123, 0xB0000020),  # adrp x0, 5 pages on
        (275, 0x90000000, BASE - 0x1000, 0xF0FFFFE0),  # adrp x0, one page back
        (277, 0x91000000, BASE + 0x123, 0x91048C00),  # add x0, x0, #0x123
        (286, 0xF9400000, BASE + 0x128, 0xF9409400),  # ldr x0, [x0, #0x128]
        (299, 0x3DC00000, BASE + 0x130, 0x3DC04C00),  # ldr q0, [x0, #0x130]
        (283, 0x94000000, BASE + 0x40, 0x94000010),  # bl, 16 instructions on
        (283, 0x94000000, BASE - 4, 0x97FFFFFF),  # bl, one back
        (261, 0, BASE - 8, 0xFFFFFFF8),
        (257, 0, BASE + 8, BASE + 8),
    ],
)
def test_addresses_are_encoded_as_the_manual_says(
    kind: int, word: int, target: int, wanted: int
) -> None:
    assert RELOCATIONS[kind].encode(word, target, BASE) == wanted


@pytest.mark.parametrize(("kind", "distance"), [(283, 1 << 27), (282, 1 << 30), (275, 1 << 33)])
def test_what_is_too_far_away_is_left_to_llvm(kind: int, distance: int) -> None:
    encode = RELOCATIONS[kind].encode
    with pytest.raises(elf.UnsupportedObject, match="too far"):
        encode(0, BASE + distance, BASE)
    with pytest.raises(elf.UnsupportedObject, match="too far"):
        encode(0, BASE - distance - (1 << 12), BASE)


def test_a_misaligned_access_is_refused() -> None:
    with pytest.raises(elf.MalformedObject, match="multiple of 16"):
        RELOCATIONS[299].encode(0, BASE + 8, BASE)


def test_damaged_objects_for_arm_are_harmless() -> None:
    for bad in mutants(arm_object(EVERYTHING), 1000):
        with suppress(elf.MalformedObject, elf.UnsupportedObject):
            elf.link(bad, NAMES)
