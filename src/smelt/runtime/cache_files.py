"""Private directory, checked for owner and mode, accessed through one descriptor.

The checks and all file operations use the same descriptor, so the directory cannot be exchanged
between check and use. It is opened anew for each visit: nothing stays open that a fork, a daemon
closing descriptors or a removed directory could invalidate.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     with Folder(Path(place) / "new").open(create=True) as files:
...         files.publish("a", b"content")
...         files.read("a", 100)
b'content'
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

_TOUCH_AFTER_S: Final = 3600.0
"""Age in seconds of a file's time stamp before `touch` renews it."""
_TEMPORARY: Final = ".tmp-"
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
_NONBLOCK: Final = getattr(os, "O_NONBLOCK", 0)


class Refused(Exception):
    """Directory that must not be used: `reason` says why, `remedy` how to fix it."""

    def __init__(self, path: Path, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.remedy = remedy or "Set SMELT_CACHE_DIR to a directory of your own."


class Item(NamedTuple):
    """File in the directory."""

    name: str
    nbytes: int
    modified: float


class Folder:
    """Directory that only this user may write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def open(self, create: bool) -> Generator[Files, None, None]:
        """Open and check the directory.

        Raises `Refused` for an untrusted one, OSError if there is none.
        """
        descriptor = self._descriptor(create)
        try:
            self._check(os.fstat(descriptor))
            yield Files(descriptor)
        finally:
            _close(descriptor)

    def _descriptor(self, create: bool) -> int:
        flags = os.O_RDONLY | _DIRECTORY | _NOFOLLOW
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            if not create:
                raise
        except OSError as error:
            if self.path.is_symlink() or not self.path.is_dir():
                raise Refused(self.path, "it is not a directory") from error
            raise
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(0o700)
        except OSError as error:
            raise Refused(self.path, f"it cannot be made ({error.strerror})") from error
        return os.open(self.path, flags)

    def _check(self, status: os.stat_result) -> None:
        if status.st_uid != os.geteuid():
            raise Refused(self.path, f"it belongs to user {status.st_uid}, not to you")
        if status.st_mode & 0o022:
            mode = stat.S_IMODE(status.st_mode)
            remedy = f"Run: chmod 700 {self.path}"
            raise Refused(self.path, f"other users may write to it (mode {mode:04o})", remedy)


class Files:
    """File operations relative to an open directory."""

    def __init__(self, descriptor: int) -> None:
        self._at = descriptor

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a regular file of this user.

        Raises ValueError for anything else by that name and for more than `max_bytes`, OSError as
        the system does.
        """
        try:
            # Without O_NONBLOCK, opening a pipe would wait for its writer.
            file = os.open(name, os.O_RDONLY | _NOFOLLOW | _NONBLOCK, dir_fd=self._at)
        except FileNotFoundError:
            raise
        except OSError as error:
            if self._is_link(name):
                raise ValueError("a symbolic link") from error
            raise
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("not a regular file")
            if status.st_uid != os.geteuid():
                raise ValueError(f"belongs to user {status.st_uid}")
            if status.st_size > max_bytes:
                raise ValueError(f"{status.st_size} bytes are too many")
            parts: list[bytes] = []
            remaining = status.st_size + 1
            while remaining > 0 and (part := os.read(file, remaining)):
                parts.append(part)
                remaining -= len(part)
            return b"".join(parts)
        finally:
            _close(file)

    def publish(self, name: str, content: bytes) -> None:
        """Make `content` appear under `name` atomically; raises OSError."""
        temporary = f"{_TEMPORARY}{os.urandom(16).hex()}"
        # The file is made inside: a signal handler may raise as soon as it exists.
        try:
            self._write(temporary, content)
            os.replace(temporary, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except BaseException:
            self.remove(temporary)
            raise

    def _write(self, name: str, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW
        file = os.open(name, flags, 0o600, dir_fd=self._at)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def remove(self, name: str) -> bool:
        """Remove a file or an empty directory; return whether this call removed it."""
        for unlink in (os.unlink, os.rmdir):
            with contextlib.suppress(OSError):
                unlink(name, dir_fd=self._at)
                return True
        return False

    def touch(self, name: str) -> None:
        """Mark a file as used, at most once an hour."""
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=self._at, follow_symlinks=False)
            if time.time() - status.st_mtime > _TOUCH_AFTER_S:
                os.utime(name, dir_fd=self._at, follow_symlinks=False)

    def listing(self) -> list[Item]:
        """Return the regular files of the directory."""
        items: list[Item] = []
        with contextlib.suppress(OSError), os.scandir(self._at) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    items.append(Item(entry.name, status.st_size, status.st_mtime))
        return items

    def is_temporary(self, name: str) -> bool:
        """Return whether a file of this name is unfinished."""
        return name.startswith(_TEMPORARY)

    def _is_link(self, name: str) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=self._at, follow_symlinks=False).st_mode)
        except OSError:
            return False


def _close(descriptor: int) -> None:
    """Close a descriptor, ignoring errors."""
    with contextlib.suppress(OSError):
        os.close(descriptor)
