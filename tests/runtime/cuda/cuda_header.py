"""Read NVIDIA's header of the driver's interface, which Triton's package contains.

    header = read_header(path)
    header.functions["cuMemFreeAsync"]      # "address", "address": CUdeviceptr and CUstream
    header.constants["CU_EVENT_DISABLE_TIMING"]
    header.structures["CUDA_MEMCPY2D_v2"]   # the kinds of its fields, in order

The header is regular, so that this is not a parser of C: comments and old versions are removed,
what is left are prototypes, enumerations, and structures of plain fields. A function is known by
the name that a program links: the header's macros add the version.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, NamedTuple

KINDS: dict[str, Any] = {
    "address": ctypes.c_uint64,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned char": ctypes.c_ubyte,
    "unsigned short": ctypes.c_ushort,
    "float": ctypes.c_float,
    "int8_t": ctypes.c_int8,
    "int16_t": ctypes.c_int16,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "unsigned long long": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
}
"""Kinds of parameters and fields, with their types."""


class Header(NamedTuple):
    """What a header declares."""

    functions: dict[str, tuple[str, ...]]
    constants: dict[str, int]
    structures: dict[str, tuple[str, ...]]
    comments: dict[str, str]
    """The text before a constant."""


def read_header(path: Path) -> Header:
    """Return what a header declares, in the version that programs link today."""
    text = path.read_text(encoding="latin-1")
    text = text.partition("#if defined(__CUDA_API_VERSION_INTERNAL)\n    #undef")[0]
    described = re.findall(r"/\*\*((?:(?!\*/).)*?)\*/\s*(\w+)\s*=", text, re.DOTALL)
    code = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    names = dict(re.findall(r"#define (\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?(\w+)", code))
    types = _types(code)
    functions = {
        names.get(name, name): tuple(_kind(p, types) for p in parameters.split(","))
        for name, parameters in re.findall(r"CUresult CUDAAPI (\w+)\(([^)]*)\);", code)
        if parameters != "void"
    }
    constants: dict[str, int] = {}
    for body in re.findall(r"typedef enum \w*\s*\{([^{}]*)\}", code):
        constants |= _enumerated(body)
    structures: dict[str, tuple[str, ...]] = {}
    for body, name in re.findall(r"typedef struct \w*\s*\{([^{}]*)\}\s*(\w+)\s*;", code):
        fields = [f.strip() for f in body.split(";") if f.strip()]
        structures[name] = tuple(_kind(f, types) for f in fields)
    return Header(functions, constants, structures, {n: t for t, n in described})


def _enumerated(body: str) -> dict[str, int]:
    """Return the constants of an enumeration; what has no value follows the one before."""
    values: dict[str, int] = {}
    last = -1
    for item in re.sub(r"^\s*#.*$", "", body, flags=re.MULTILINE).split(","):
        name, _, text = (part.strip() for part in item.partition("="))
        text = text.rstrip("Uu")
        if name:
            last = last + 1 if not text else values[text] if text in values else _number(text)
            values[name] = last
    return values


def _number(text: str) -> int:
    return int(text, 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text) else -1


def _types(code: str) -> dict[str, str]:
    """Return what names of types stand for."""
    types = dict(re.findall(r"typedef (?!struct|enum|union)([\w ]+?)\s+(\w+);", code))
    types = {name: old for old, name in types.items()}
    types |= dict.fromkeys(re.findall(r"typedef (?:const )?struct \w+\s*\*\s*(\w+);", code), "*")
    types |= dict.fromkeys(re.findall(r"typedef enum \w*\s*\{[^}]*\}\s*(\w+)\s*;", code), "int")
    return types


def _kind(declared: str, types: dict[str, str]) -> str:
    """Return the kind of a parameter or field; a structure by value is its name."""
    if "*" in declared:
        return "address"
    words = [w for w in declared.split() if w not in ("const", "struct")]
    name = " ".join(words[:-1])
    while name in types and name not in KINDS:
        name = types[name]
    return "address" if name == "*" or words[:-1] == ["CUdeviceptr"] else name


def layout(kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return offset and size of each field of a structure, and then the size of all."""

    class Structure(ctypes.Structure):
        _fields_ = [(f"f{k}", KINDS[kind]) for k, kind in enumerate(kinds)]

    return layout_of(Structure)


def layout_of(structure: Any) -> list[tuple[int, int]]:
    """Return the layout of a structure of ctypes, as `layout` does."""
    fields = [getattr(structure, name) for name, *_ in structure._fields_]
    return [*((f.offset, f.size) for f in fields), (ctypes.sizeof(structure), 0)]
