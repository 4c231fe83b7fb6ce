"""Open external data of a model: the only place that opens files whose names a model holds.

Names stay in the model's folder: no absolute paths, no `..`, no links in any part of a name, one
regular file with one name. Offsets and lengths are checked against the file's size.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from smelt.errors import OnnxExternalError
from smelt.onnx.model import StoredTensor


class ExternalData:
    """Bytes of tensors that are stored in other files of a model's folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._files: dict[str, memoryview] = {}

    def __call__(self, tensor: StoredTensor, size: int) -> memoryview:
        """Return the `size` bytes of a tensor.

        Raises OnnxExternalError for a name that may not be opened, and for a file that is too
        short.
        """
        entries = {e.get("key", ""): e.get("value", "") for e in tensor.fields.get("external", ())}
        name = entries.get("location", "")
        data = self._files.get(name)
        if data is None:
            data = self._files[name] = self._open(name)
        offset = _number(entries, "offset", 0, name)
        length = _number(entries, "length", size, name)
        if length != size:
            raise _refusal(name, f"{length} bytes for a tensor of {size}")
        if offset + length > len(data):
            raise _refusal(name, f"bytes {offset} to {offset + length} of {len(data)}")
        return data[offset : offset + length]

    def _open(self, name: str) -> memoryview:
        if self.folder is None:
            raise _refusal(name, "a model in memory has no folder; pass data_folder=")
        parts = name.split("/")
        if not name or "\0" in name or "\\" in name or name.startswith("/"):
            raise _refusal(name, "it is not a relative path")
        if any(part in ("", ".", "..") for part in parts):
            raise _refusal(name, "it has an empty part, or leaves the folder")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened: list[int] = []
        try:
            opened.append(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for part in parts[:-1]:
                opened.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=opened[-1]))
            opened.append(os.open(parts[-1], flags, dir_fd=opened[-1]))
            facts = os.fstat(opened[-1])
            if not stat.S_ISREG(facts.st_mode):
                raise _refusal(name, "it is not a regular file")
            if facts.st_nlink != 1:
                raise _refusal(name, "it has several names (hard links)")
            if not facts.st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(opened[-1], 0, access=mmap.ACCESS_READ))
        except OSError as error:
            if isinstance(error, OnnxExternalError):
                raise
            raise _refusal(name, error.strerror or "it cannot be opened") from None
        finally:
            for descriptor in opened:
                with suppress(OSError):
                    os.close(descriptor)


def _number(entries: Mapping[str, Any], key: str, default: int, name: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise _refusal(name, f"{key} is {text[:40]!r}, no number of bytes")
    return int(text)


def _refusal(name: str, reason: str) -> OnnxExternalError:
    return OnnxExternalError(name=repr(name[:200]), reason=reason)
