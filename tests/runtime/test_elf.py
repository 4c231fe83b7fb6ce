"""Objects placed by our own loader compute the bits that LLVM's linker gives; damage is refused."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.test_golden import FOLDER, inputs, read
from tests.strategies.comparison import same_bits

import smelt as sm
from smelt import driver, knobs
from smelt.graph.text import parse
from smelt.graph.walk import all_size_names
from smelt.runtime import code, elf
from smelt.runtime.jit import compile_ir
from smelt.runtime.loader import Loaded, load, load_by_llvm

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
