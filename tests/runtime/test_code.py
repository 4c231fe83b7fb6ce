"""Object code becomes callable, quickly, on pages that are never writable and executable."""

from __future__ import annotations

import ctypes
import gc
import time
from pathlib import Path

import pytest
from tests.pace import pace

from smelt.errors import CodegenError
from smelt.runtime.code import load
from smelt.runtime.jit import compile_ir

CONSTANT = "define i64 @value() {{ ret i64 {number} }}"


def call(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64)(address)()


def test_many_objects_with_equal_symbols_live_side_by_side() -> None:
    objects = [load(compile_ir(CONSTANT.format(number=n), 0), ["value"]) for n in range(20)]
    assert [call(each.address("value")) for each in objects] == list(range(20))


@pytest.mark.clock
def test_a_small_object_loads_within_a_millisecond() -> None:
    code = compile_ir(CONSTANT.format(number=7))
    load(code, ["value"])
    start = time.perf_counter()
    objects = [load(code, ["value"]) for _ in range(50)]
    assert (time.perf_counter() - start) / 50 < 1e-3 * pace()
    assert call(objects[-1].address("value")) == 7


def test_symbols_of_the_c_library_resolve() -> None:
    text = """
    declare i64 @strlen(ptr)
    @text = private constant [6 x i8] c"smelt\\00"
    define i64 @length() { %n = call i64 @strlen(ptr @text) ret i64 %n }
    """
    assert call(load(compile_ir(text, 0), ["length"]).address("length")) == 5


def test_a_missing_symbol_is_an_error_and_the_loader_goes_on() -> None:
    code = compile_ir(CONSTANT.format(number=1))
    with pytest.raises(CodegenError, match="did not link"):
        load(code, ["another"])
    unresolved = compile_ir(
        "declare i64 @smelt_no_such()\n"
        "define i64 @value() { %n = call i64 @smelt_no_such() ret i64 %n }"
    )
    with pytest.raises(CodegenError, match="did not link"):
        load(unresolved, ["value"])
    loaded = load(code, ["value"])
    assert call(loaded.address("value")) == 1
    with pytest.raises(KeyError):
        loaded.address("another")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_code_pages_are_not_writable_and_go_with_the_object() -> None:
    def mapping(address: int) -> str | None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, permissions = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= address < end:
                return permissions
        return None

    loaded = load(compile_ir(CONSTANT.format(number=3)), ["value"])
    address = loaded.address("value")
    assert mapping(address) == "r-xp"
    del loaded
    gc.collect()
    assert mapping(address) != "r-xp"


def test_text_that_does_not_parse_is_refused_with_llvms_words() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        compile_ir("define i64 @broken( {")
