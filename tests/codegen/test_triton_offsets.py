"""Offsets have 64 bits where an array may have 2^31 elements, and 32 elsewhere."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from tests.codegen.checked_triton import Function, Language, Value, binary

from smelt.codegen.triton.source import triton_source
from smelt.kernel.text import parse

DOUBLE = """
kernel double(x: f32[r,c]) -> y: f32[r,c]
  grid r, c/1024
  y[r,c] = x[r,c] * 2
"""
TURNED = """
kernel turned(x: f32[c,r]) -> y: f32[r,c]
  grid r
  y[r,c] = x[c,r] - max(x[c,r] over c)
"""
GATHERED = """
kernel gathered(x: f32[r,c], i: i64[r]) -> y: f32[r,c]
  grid r, c/1024
  at = position(i[r], size(r))
  y[r,c] = x[at,c] * 2
"""
LAST = 69_999


class Recorded:
    """A pointer that remembers the offsets that a program reads and writes."""

    def __init__(self, offset=0) -> None:
        self.offset = offset

    def __add__(self, other):
        if not isinstance(self.offset, Value) and not isinstance(other, Value):
            return Recorded(self.offset + other)
        return Recorded(binary(self.offset, other, np.add))


class Recorder(Language):
    """A stand-in whose memory has no elements: loads give the number of the last row."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = []

    def load(self, pointer, mask=None, other=None):
        offset = pointer.offset if isinstance(pointer.offset, Value) else Value(pointer.offset)
        self.offsets.append(offset.data)
        dtype = np.float32 if offset.data.ndim else np.int64
        return Value(np.full(offset.data.shape, LAST, dtype))

    def store(self, pointer, value, mask=None):
        self.offsets.append(pointer.offset.data)


def offsets(text: str, program: int, index: str) -> list[np.ndarray]:
    """The offsets of one program for arrays of 70000 x 40000."""
    language = Recorder()
    language.program = program
    source = triton_source(parse(text.strip()))
    body = source.partition("import triton.language as tl")[2].partition("def _span")[0]
    triton = SimpleNamespace(jit=lambda f: Function(f, language))
    space = {"triton": triton, "tl": language}
    exec(compile(body, "<printed>", "exec"), space)
    (kernel,) = (v for n, v in space.items() if n.startswith("kernel_"))
    names = re.search(r"def kernel_\w+\((.*)\):", body)[1].split(", ")
    sizes = {"size_r": 70_000, "size_c": 40_000}
    arguments = []
    for name in (n.partition(":")[0] for n in names):
        if name.startswith("ptr_"):
            arguments.append(Recorded())
        elif name == "INDEX":
            arguments.append(getattr(language, index))
        elif name == "BLOCK_c":
            arguments.append(65536 if "whole" not in text and "c/1024" not in text else 1024)
        else:
            arguments.append(Value(np.int32(sizes[name])))
    with np.errstate(over="ignore"):
        kernel.function(*arguments)
    return language.offsets


@pytest.mark.parametrize(
    ("text", "program", "largest"),
    [
        (DOUBLE, LAST * 40, LAST * 40_000 + 1023),
        (TURNED, LAST, LAST * 40_000 + 65535),
        (GATHERED, LAST * 40, LAST * 40_000 + 1023),
    ],
)
def test_offsets_of_the_last_row_do_not_wrap(text, program, largest):
    accessed = offsets(text, program, "int64")
    assert max(o.max() for o in accessed) >= largest
    assert min(o.min() for o in accessed) >= 0


@pytest.mark.filterwarnings("ignore")
def test_offsets_of_32_bits_would_wrap():
    assert min(o.min() for o in offsets(DOUBLE, LAST * 40, "int32")) < 0


def test_launch_chooses_by_the_last_element():
    source = triton_source(parse(DOUBLE.strip()))
    assert "INDEX=tl.int64 if elements >= 2**31 else tl.int32" in source
    text = source[source.index("def _span") : source.index("def launch")]
    space = {}
    exec(text, space)
    tensor = SimpleNamespace(shape=(70_000, 40_000), stride=lambda: (40_000, 1))
    assert space["_span"](tensor) == 2_800_000_000
    broadcast = SimpleNamespace(shape=(70_000, 40_000), stride=lambda: (0, 1))
    assert space["_span"](broadcast) == 40_000


def test_known_small_arrays_have_no_variant():
    source = triton_source(
        parse(
            DOUBLE.strip()
            .replace("[r,c]", "[64,512]", 2)
            .replace("grid", "axis r in 64, c in 512\n  grid", 1)
        )
    )
    assert "INDEX" not in source
