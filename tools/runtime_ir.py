"""Compile the C of the native run time to LLVM IR: `make runtime-ir`, after a change of it.

`src/smelt/runtime/c` holds the sources and what comes of them: a text for each `.c`, the same for
all systems and architectures. Offsets of the headers' structs and their enumerators go to
`native_layout.py`. With `--check` nothing is written, and a file that differs is an error.
Runs without other packages than ziglang, whose version (and so clang's) is pinned: its LLVM must
not be newer than that of the oldest llvmlite in `pyproject.toml`.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src/smelt/runtime/c"
LAYOUT = ROOT / "src/smelt/runtime/native_layout.py"

VERSION = "0.14.1"
"""Of ziglang: clang 19."""
FLAGS = (
    # structs are laid out alike on all 64-bit systems; `_clean` removes what names this one
    *("-target", "x86_64-linux-gnu", "-std=c11", "-O2", "-g0", "-S", "-emit-llvm"),
    *("-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fvisibility=hidden"),
    # no call of memcpy, no table of addresses, no assumption on overflow, types or loops' ends
    *("-fno-builtin", "-fno-jump-tables", "-fno-strict-aliasing", "-fwrapv", "-fno-finite-loops"),
    *("-fno-vectorize", "-fno-slp-vectorize", "-fno-unroll-loops", "-fomit-frame-pointer"),
    *("-fno-asynchronous-unwind-tables", "-fno-unwind-tables"),
    *("-fno-stack-protector", "-fno-sanitize=undefined"),
)
IN_C_ALONE = (
    *("chunk", "argument", "captured", "nest", "result_nest", "ring_entry", "result", "patch"),
    *("arena_patch", "device_patch", "smelt_tensor", "smelt_error", "smelt_options", "launch"),
    *("poll_words", "phase", "pool_limits"),
)
"""Structs and enums that no Python reads."""
KEPT_ATTRIBUTES = ('"no-builtins"', '"no-jump-tables"="true"')

_HEAD = re.compile(r"^(; ModuleID|source_filename|target |!).*\n", re.MULTILINE)
_METADATA = re.compile(r", ![\w.]+ !\d+")
_COMMENT = re.compile(r" *;.*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r' "[^"]*"(="[^"]*")?')
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_ENUM = re.compile(r"^enum (\w+) \{(.*?)\};", re.MULTILINE | re.DOTALL)
# a field's name is before the arguments of a function, before a length, or last
_FIELD = re.compile(r"(\w+)(?:\)\(.*\)|\[\w*\])?;\s*$", re.MULTILINE)
_CONSTANT = re.compile(r"^@(\w+) = .*constant i64 (-?\d+)", re.MULTILINE)


def digest(folder: Path = FOLDER) -> str:
    """Return what identifies compiler, flags, sources and texts."""
    total = hashlib.sha256(f"{(VERSION, FLAGS, KEPT_ATTRIBUTES)}".encode())
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".c", ".h", ".ll")):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def texts() -> Iterator[tuple[str, str]]:
    """Compile the sources; yield names of files in the folder, and their texts."""
    for source in sorted(FOLDER.glob("*.c")):
        yield f"{source.stem}.ll", _clean(_compile(source))


def _compile(source: Path) -> str:
    """Return clang's LLVM IR of a source."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "out.ll"
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), scratch)
        command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-I", str(FOLDER)]
        subprocess.run(
            [*command, "-o", str(target), str(source)], env=os.environ | caches, check=True
        )
        return target.read_text(encoding="utf-8")


def _clean(text: str) -> str:
    """Remove what names the machine compiled for, and metadata."""
    text = _METADATA.sub("", _HEAD.sub("", _COMMENT.sub("", text)))

    def keep(match: re.Match[str]) -> str:
        return match[0] if match[0].strip() in KEPT_ATTRIBUTES else ""

    return re.sub(r"\n{3,}", "\n\n", _ATTRIBUTE.sub(keep, text)).strip() + "\n"


def _fields() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the headers' structs and enums: kind, name, names of fields or enumerators."""
    for header in sorted(FOLDER.glob("*.h")):
        source = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
        structs = (("struct", m[1], _FIELD.findall(m[2])) for m in _STRUCT.finditer(source))
        enums = (
            ("enum", m[1], re.findall(r"(\w+)(?: = [^,}]*)?(?:,|\s*$)", m[2]))
            for m in _ENUM.finditer(source)
        )
        yield from (group for group in (*structs, *enums) if group[1] not in IN_C_ALONE)


def layout(digested: str) -> str:
    """Return the module of offsets and constants, which the compiler computes."""
    lines = [f'#include "{header.name}"' for header in sorted(FOLDER.glob("*.h"))]
    groups = list(_fields())
    for kind, name, members in groups:
        for member in members:
            value = f"offsetof(struct {name}, {member})" if kind == "struct" else member
            lines.append(f"const long long {name}__{member} = {value};")
        if kind == "struct":
            lines.append(f"const long long {name}__sizeof = sizeof(struct {name});")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "layout.c"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        values = {m[1]: int(m[2]) for m in _CONSTANT.finditer(_compile(source))}
    return "\n".join(_module(groups, values, digested)) + "\n"


def _module(
    groups: list[tuple[str, str, list[str]]], values: Mapping[str, int], digested: str
) -> Iterator[str]:
    yield '"""Offsets and constants of the native code, which `make runtime-ir` writes.'
    yield ""
    yield "The headers in `c` say what the fields are."
    yield '"""'
    yield "\nfrom __future__ import annotations\n\nfrom typing import Final\n"
    yield f'DIGEST: Final = "{digested}"'
    yield '"""Compiler, sources and texts that this was made from."""'
    for kind, name, members in groups:
        yield ""
        if kind == "enum":
            yield from (f"{m}: Final = {values[f'{name}__{m}']}" for m in members)
            continue
        yield f"{name.upper()}: Final = {{"
        for m in members:  # a name that C reserves ends in _
            yield f'    "{m.rstrip("_").upper()}": {values[f"{name}__{m}"]},'
        yield "}"
    yield "\nSIZES: Final = {"
    for name in (name for kind, name, _ in groups if kind == "struct"):
        yield f'    "{name.upper()}": {values[f"{name}__sizeof"]},'
    yield '}\n"""Bytes of the structs."""'


def main(arguments: list[str]) -> int:
    """Write the texts and the layout, or compare them."""
    check, stale = "--check" in arguments, list[str]()

    def put(path: Path, text: str) -> None:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")

    for name, text in texts():
        put(FOLDER / name, text)
    put(LAYOUT, layout(digest()))
    print("\n".join(stale) or "all is as compiled")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
