"""The container of a program file: sections of bytes and a manifest, checked before use.

    0     magic, format, offset, length and SHA-256 of the manifest      (`HEADER_BYTES`)
    ..    sections: raw bytes; constants on page boundaries, so that they can be mapped
    end   the manifest, as JSON: a table of the sections (offset, length, SHA-256), and facts

Code and texts are read and compared with their digests when they are asked for. Constants are
mapped and not read; `ProgramFile.verify` compares their digests too. Nothing in a file is
evaluated: all is JSON, graph text, machine code and arrays.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     writer = Writer()
...     number = writer.add(b"bytes")
...     writer.write(Path(folder) / "f.smelt", {"what": "a test"})
...     file = ProgramFile(Path(folder) / "f.smelt")
...     file.facts, file.read(number)
({'what': 'a test'}, b'bytes')
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from smelt.errors import (
    Coded,
    ProgramFileError,
    ProgramTrustError,
    ProgramVersionError,
    TextError,
)
from smelt.packages.version import __version__
from smelt.types.dtype import DTYPES

__all__ = ["FORMAT", "ProgramFile", "Writer", "is_program"]

Array = np.ndarray[Any, Any]

MAGIC: Final = b"SMELTPRG"
FORMAT: Final = 1
"""Version of the container and of the facts in its manifest."""
MAX_MANIFEST_BYTES: Final = 64 << 20
PAGE: Final = 4096
"""Alignment in bytes of a constant in the file."""
_ALIGNMENT: Final = 64
_ELEMENT_TYPES: Final = {d.numpy.name: d.numpy for d in DTYPES}
"""Types of constants by name; others, such as objects and records, are damage."""
_MALFORMED: Final = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError),
    *(RecursionError, ArithmeticError, AssertionError),
)
_HEADER: Final = struct.Struct("<8sIIQQ32s")
HEADER_BYTES: Final = _HEADER.size


def is_program(path: Path) -> bool:
    """Return whether a file begins as a program file does."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


class Section(NamedTuple):
    """Bytes of a file, with their digest."""

    offset: int
    length: int
    digest: str


# ---- writing -------------------------------------------------------------------------------------


class Writer:
    """Sections of a file to be written; equal ones are stored once."""

    def __init__(self) -> None:
        self._parts: list[tuple[memoryview, int]] = []
        self._digests: list[str] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def add(self, data: bytes) -> int:
        """Add bytes; return the number of their section."""
        return self._add(memoryview(data), _ALIGNMENT)

    def add_array(self, array: Array) -> dict[str, Any]:
        """Add an array's elements in row-major order; return what `ProgramFile.array` takes."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        number = self._add(flat.data, PAGE)
        return {"section": number, "dtype": array.dtype.name, "shape": list(array.shape)}

    def _add(self, data: memoryview, alignment: int) -> int:
        digest = hashlib.sha256(data).hexdigest()
        number = self._numbers.setdefault((digest, alignment), len(self._parts))
        if number == len(self._parts):
            self._parts.append((data, alignment))
            self._digests.append(digest)
        return number

    def write(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write the file so that it appears whole or not at all; raises OSError."""
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            with os.fdopen(os.open(temporary, flags, 0o644), "wb") as file:
                self._write(file, facts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    def _write(self, file: Any, facts: Mapping[str, Any]) -> None:
        at, table = HEADER_BYTES, list[Section]()
        file.write(bytes(HEADER_BYTES))
        for (data, alignment), digest in zip(self._parts, self._digests, strict=True):
            file.write(bytes(-at % alignment))
            at += -at % alignment
            file.write(data)
            table.append(Section(at, len(data), digest))
            at += len(data)
        manifest = json.dumps({"sections": table, "facts": facts}, separators=(",", ":")).encode()
        file.write(manifest)
        file.seek(0)
        digest = hashlib.sha256(manifest).digest()
        file.write(_HEADER.pack(MAGIC, FORMAT, 0, at, len(manifest), digest))


# ---- reading -------------------------------------------------------------------------------------


class ProgramFile:
    """An open program file: checked facts, and sections that are read or mapped on demand."""

    def __init__(self, path: Path, *, mapped: bool = True) -> None:
        """Open a file and check its manifest; constants are read unless `mapped`.

        Raises ProgramFileError for damage, ProgramVersionError for a newer format, and what the
        system raises for a file that cannot be opened.
        """
        self.path = path
        # Opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC)
        try:
            self._status = os.fstat(descriptor)
            if not stat.S_ISREG(self._status.st_mode):
                raise self._damage("it is not a regular file")
            if not self._status.st_size:
                raise self._damage("it is empty")
            self._bytes = self._content(descriptor, mapped)
        finally:
            os.close(descriptor)
        self.sections, self.facts = self._read_manifest()

    def _content(self, descriptor: int, mapped: bool) -> memoryview:
        # Memory of a mapped file that its writer cuts off raises a signal: only files that nobody
        # else may write to are mapped.
        if mapped and not self.distrust():
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        with open(descriptor, "rb", closefd=False) as file:
            return memoryview(file.read())

    def _damage(self, reason: str) -> ProgramFileError:
        return ProgramFileError(path=self.path.name, reason=reason)

    def _other(self) -> ProgramFileError:
        begin = bytes(self._bytes[: len(MAGIC)])
        return ProgramFileError(
            path=self.path.name,
            reason=f"not a program file: it begins with {begin!r}, not {MAGIC!r}",
            hint="sm.save, or smelt save in the shell, makes one of a function or a model.",
        )

    def _read_manifest(self) -> tuple[tuple[Section, ...], dict[str, Any]]:
        size = len(self._bytes)
        if bytes(self._bytes[: len(MAGIC)]) != MAGIC[:size]:
            raise self._other()
        if size < HEADER_BYTES:
            raise self._damage(f"it ends after {size} of {HEADER_BYTES} bytes")
        _, version, flags, offset, length, digest = _HEADER.unpack_from(self._bytes)
        if version > FORMAT or flags:
            raise ProgramVersionError(
                path=self.path.name, reason=f"format {version}, this version reads up to {FORMAT}"
            )
        if length > MAX_MANIFEST_BYTES or not HEADER_BYTES <= offset <= size - length:
            raise self._damage("its manifest lies outside of it")
        manifest = bytes(self._bytes[offset : offset + length])
        if hashlib.sha256(manifest).digest() != digest:
            raise self._damage("its manifest does not have its checksum")
        try:
            data: Any = json.loads(manifest)
            sections = tuple(Section(int(a), int(n), str(d)) for a, n, d in data["sections"])
            facts = dict(data["facts"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._damage("its manifest is not one") from error
        if any(not HEADER_BYTES <= s.offset <= s.offset + s.length <= offset for s in sections):
            raise self._damage("a section lies outside of it")
        return sections, facts

    # ---- trust -----------------------------------------------------------------------------------

    def distrust(self) -> str:
        """Return why others may have written the file; empty if they cannot."""
        owner, mode = self._status.st_uid, stat.S_IMODE(self._status.st_mode)
        if owner not in (os.geteuid(), 0):
            return f"it belongs to user {owner}"
        return f"other users may write to it (mode {mode:04o})" if mode & 0o022 else ""

    def check_trust(self, sha256: str = "") -> None:
        """Raise ProgramTrustError unless the file has this digest or is only the user's."""
        if sha256:
            if hashlib.sha256(self._bytes).hexdigest() != sha256.lower():
                raise ProgramTrustError(path=self.path.name, reason="it has another SHA-256")
        elif reason := self.distrust():
            raise ProgramTrustError(path=self.path.name, reason=reason)

    # ---- sections --------------------------------------------------------------------------------

    def read(self, number: Any) -> bytes:
        """Return the bytes of a section; raises ProgramFileError if they are not as written."""
        section = self._section(number)
        data = bytes(self._bytes[section.offset : section.offset + section.length])
        if hashlib.sha256(data).hexdigest() != section.digest:
            raise self._damage(f"section {number} does not have its checksum")
        return data

    def array(self, described: Mapping[str, Any]) -> Array:
        """Return a constant as a read-only array on the file's memory; it is not read."""
        try:
            dtype = _ELEMENT_TYPES[described["dtype"]]
            shape = tuple(map(int, described["shape"]))
            section = self._section(described["section"])
            elements = np.frombuffer(self._bytes, np.uint8, section.length, section.offset)
            if min(shape, default=0) < 0:
                raise ValueError("a negative dimension")
            return elements.view(dtype).reshape(shape)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damage("a constant has another size than its section") from error

    def _section(self, number: Any) -> Section:
        if not isinstance(number, int) or not 0 <= number < len(self.sections):
            raise self._damage(f"there is no section {number!r}")
        return self.sections[number]

    def reading(self) -> Reading:
        """Return a context that reports malformed facts as damage, or as another version's.

        They are data of a file, and may say anything.
        """
        return Reading(self.path.name, str(self.facts.get("smelt", ""))[:40])

    def verify(self) -> None:
        """Compare all sections, constants too, with their digests; raises ProgramFileError."""
        for number in range(len(self.sections)):
            self.read(number)


class Reading:
    """Context in which what malformed facts raise becomes an error about the file."""

    def __init__(self, name: str, writer: str) -> None:
        self._name, self._writer = name, writer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Coded) and not isinstance(error, TextError):
            return
        if isinstance(error, _MALFORMED):
            reason = f"its facts are malformed: {type(error).__name__} {error}"
            if self._writer in ("", __version__):
                raise ProgramFileError(path=self._name, reason=reason) from error
            reason = f"Smelt {self._writer!r} wrote it, this is {__version__}, and {reason}"
            raise ProgramVersionError(path=self._name, reason=reason) from error
