"""Per-user cache of object code and reports.

Cached code is executed, so the trust boundary is ownership: the directory must belong to this
user and be writable by nobody else, or it is not used at all and entries live in memory only.
Within it, an entry is one file, published atomically by a rename, and nothing in it is trusted
before its SHA-256 and the echo of its full key were checked; a damaged entry is removed and
counts as a miss. There are no locks: writers never modify a published file, and two writers of
the same entry write the same content. The checks and all file operations use one descriptor of the
directory, so it cannot be exchanged between check and use. It is opened anew for each visit:
nothing stays open that a fork, a daemon closing descriptors or a removed directory could
invalidate.

File: magic, format version, lengths of key, meta and code, SHA-256 of all that with the three
parts, then key, meta (JSON) and code. Name: SHA-256 of the key. `Cache` never raises because of
the file system: what cannot be stored is compiled again next time.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     cache = Cache(place + "/cache")
...     cache.put(b"key", {"kernel": "k"}, b"code")
...     Cache(place + "/cache").get(b"key")
Entry(meta={'kernel': 'k'}, code=b'code')
>>> with tempfile.TemporaryDirectory() as place:
...     with Folder(Path(place) / "new").open(create=True) as files:
...         files.publish("a", b"content")
...         files.read("a", 100)
b'content'
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from smelt import knobs
from smelt.errors import CacheWarning, warn_at_origin
from smelt.python.dataclass import dataclass
from smelt.python.imports import fork_safe_import

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


# ---- entries -------------------------------------------------------------------------------------


MAGIC: Final = b"SMELTobj"
FORMAT: Final = 1
"""Version of the entry file format."""
SUFFIX: Final = ".smelt"
MAX_ENTRY_BYTES: Final = 256 << 20
"""Largest entry file that is written or read."""
MAX_MEMORY_BYTES: Final = 64 << 20
"""Limit of entries kept in memory alone, in bytes: keys, code and reports."""
MAX_COPIED_BYTES: Final = 8 << 20
"""Limit of entries kept in memory and on disk; what is dropped is read again."""
_REPORT_BYTES: Final = 4096
"""Bytes that a report takes in memory, at least; its objects take more than its text."""
MAX_DAMAGE_RECORDS: Final = 64
"""Damaged entries whose defect the cache remembers, for `Cache.miss_reason`."""
STALE_S: Final = 3600.0
"""Age in seconds after which an unfinished file counts as left by a dead process."""

_HEADER: Final = struct.Struct("<8sIIQQ32s")
"""Magic, format version, lengths of key, meta and code, digest."""
_LOG: Final = logging.getLogger("smelt.cache")


@dataclass(frozen=True)
class Entry:
    """Value stored for one key: a JSON object and object code."""

    meta: dict[str, Any]
    code: bytes = field(default=b"")


@dataclass(frozen=True)
class Info:
    """State of a cache: location, content, and counters of this process."""

    path: str | None
    refused: str | None
    """Why the directory is not used; None if it is."""
    entries: int
    nbytes: int
    limit: int
    hits: int
    misses: int
    damaged: int
    failed_writes: int


class Listed(NamedTuple):
    """Entry as `smelt cache list` shows it."""

    name: str
    what: str
    """Kind of the entry: kernel, plan, ..., or damaged."""
    nbytes: int
    about: str


class Damaged(ValueError):
    """Bytes that are not the expected entry; the message says what is wrong."""


def encode(key: bytes, meta: dict[str, Any], code: bytes) -> bytes:
    """Return the content of an entry's file."""
    text = json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()
    digest = _digest(key, text, code)
    return _HEADER.pack(MAGIC, FORMAT, len(key), len(text), len(code), digest) + key + text + code


def decode(content: bytes, key: bytes | None = None) -> tuple[bytes, Entry]:
    """Return key and entry from a file's content.

    Raises `Damaged` unless every byte is as written and, if `key` is given, the key matches.
    """
    if len(content) < _HEADER.size:
        raise Damaged("truncated header")
    magic, version, key_length, meta_length, code_length, digest = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise Damaged("not a cache entry")
    if version != FORMAT:
        raise Damaged(f"format {version}, not {FORMAT}")
    if len(content) != _HEADER.size + key_length + meta_length + code_length:
        raise Damaged("length differs from the header's")
    meta_at = _HEADER.size + key_length
    code_at = meta_at + meta_length
    echo, text, code = content[_HEADER.size : meta_at], content[meta_at:code_at], content[code_at:]
    if _digest(echo, text, code) != digest:
        raise Damaged("digest does not match")
    if key is not None and echo != key:
        raise Damaged("entry of another key")
    meta = json.loads(text)
    if not isinstance(meta, dict):
        raise Damaged("report is not an object")
    return echo, Entry(meta, code)


def _digest(key: bytes, text: bytes, code: bytes) -> bytes:
    """Return a SHA-256 over lengths and parts, so that no byte can move between parts."""
    total = hashlib.sha256(struct.pack("<8sIIQQ", MAGIC, FORMAT, len(key), len(text), len(code)))
    total.update(key)
    total.update(text)
    total.update(code)
    return total.digest()


def _entry_bytes(key: bytes, entry: Entry) -> int:
    """Return the bytes that an entry takes in memory, estimated."""
    return len(key) + len(entry.code) + _REPORT_BYTES


def file_name(key: bytes) -> str:
    """Return the name of the file that holds `key`."""
    return hashlib.sha256(key).hexdigest() + SUFFIX


class Cache:
    """Entries by key, in memory and, if the directory can be trusted, on disk."""

    _defaults: Final[dict[tuple[bool, Path | None, int], Cache]] = {}

    def __init__(self, path: str | os.PathLike[str] | None, limit: int = 1 << 30) -> None:
        """Create a cache; `path` None keeps entries in memory only, `limit` caps bytes on disk.

        Nothing is created on disk before the first `put`.
        """
        self.path = None if path is None else Path(path).absolute()
        self.limit = limit
        self._folder = None if self.path is None else Folder(self.path)
        self._lock = threading.RLock()
        self._memory: OrderedDict[bytes, Entry] = OrderedDict()
        self._memory_bytes = 0
        self._refused: str | None = None
        self._counts = {"hits": 0, "misses": 0, "damaged": 0, "failed": 0}
        self._defects: OrderedDict[str, str] = OrderedDict()
        self._unswept_bytes = 0
        self._puts_to_sweep = _random_puts()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    @classmethod
    def default(cls) -> Cache:
        """Return the user's cache for the knobs in this context; one object for equal settings."""
        settings = (knobs.CACHE.get(), knobs.CACHE_DIR.get(), knobs.CACHE_SIZE.get())
        existing = cls._defaults.get(settings)
        if existing is None:
            enabled, place, limit = settings
            directory = (place or _user_directory()) if enabled else None
            existing = cls._defaults.setdefault(settings, cls(directory, limit))
        return existing

    # Entries --------------------------------------------------------------------------------

    def get(self, key: bytes) -> Entry | None:
        """Return the entry stored for `key`; None if there is none or it is damaged."""
        with self._lock:
            entry = self._memory.get(key)
            if entry is not None:
                self._memory.move_to_end(key)
                self._counts["hits"] += 1
                return entry
        entry = self._read(key)
        if entry is not None:
            self._remember(key, entry)
        with self._lock:
            self._counts["misses" if entry is None else "hits"] += 1
        return entry

    def miss_reason(self, key: bytes) -> str:
        """Return why `get` found nothing for a key."""
        if self._refused is not None:
            return f"the directory is not used: {self._refused}"
        defect = self._defects.get(file_name(key))
        return "no entry" if defect is None else f"damaged: {defect}"

    def put(self, key: bytes, meta: dict[str, Any], code: bytes) -> None:
        """Store an entry: in memory at once, on disk if possible.

        `meta` must be JSON data.
        """
        content = encode(key, meta, code)
        self._remember(key, Entry(meta, code))
        if self._folder is None or len(content) > MAX_ENTRY_BYTES:
            return
        try:
            with self._folder.open(create=True) as files:
                self._refused = None
                files.publish(file_name(key), content)
                self._sweep_occasionally(files, len(content))
        except Refused as refusal:
            self._warn(refusal)
        except (OSError, MemoryError) as error:
            self._counts["failed"] += 1
            _LOG.info("entry not stored: %s", error)

    def _read(self, key: bytes) -> Entry | None:
        if self._folder is None:
            return None
        name = file_name(key)
        try:
            with self._folder.open(create=False) as files:
                try:
                    content = files.read(name, MAX_ENTRY_BYTES)
                    entry = decode(content, key)[1]
                except ValueError as problem:
                    # Damaged, or invalid JSON in spite of a correct digest.
                    self._counts["damaged"] += 1
                    self._defects[name] = str(problem)
                    while len(self._defects) > MAX_DAMAGE_RECORDS:
                        self._defects.popitem(last=False)
                    outcome = "removed" if files.remove(name) else "cannot be removed"
                    _LOG.warning("damaged entry %s %s: %s", name, outcome, problem)
                    return None
                files.touch(name)
                return entry
        except Refused as refusal:
            self._warn(refusal)
        except FileNotFoundError:
            pass
        except (OSError, MemoryError) as error:
            _LOG.info("entry not read: %s", error)
        return None

    def _remember(self, key: bytes, entry: Entry) -> None:
        with self._lock:
            old = self._memory.pop(key, None)
            if old is not None:
                self._memory_bytes -= _entry_bytes(key, old)
            self._memory[key] = entry
            self._memory_bytes += _entry_bytes(key, entry)
            limit = MAX_COPIED_BYTES if self._is_stored() else MAX_MEMORY_BYTES
            while self._memory_bytes > limit and len(self._memory) > 1:
                self._memory_bytes -= _entry_bytes(*self._memory.popitem(last=False))

    def _is_stored(self) -> bool:
        """Return whether entries are on disk too, as far as known."""
        return self._folder is not None and self._refused is None and not self._counts["failed"]

    # Maintenance ----------------------------------------------------------------------------

    def _sweep_occasionally(self, files: Any, nbytes: int) -> None:
        """Sweep the directory after enough puts or bytes.

        Listing it for each write would be too slow: listing tens of thousands of files takes
        about as long as compiling the kernels stored between two sweeps.
        """
        self._unswept_bytes += nbytes
        self._puts_to_sweep -= 1
        if self._puts_to_sweep <= 0 or self._unswept_bytes > self.limit // 16:
            self._unswept_bytes = 0
            self._puts_to_sweep = max(64, self._sweep(files) // 4)

    def _sweep(self, files: Any) -> int:
        """Remove stale and excess files; return the number of entries seen."""
        now = time.time()
        entries: list[tuple[float, int, str]] = []
        for item in files.listing():
            if item.name.endswith(SUFFIX):
                entries.append((item.modified, item.nbytes, item.name))
            elif files.is_temporary(item.name) and now - item.modified > STALE_S:
                files.remove(item.name)
        total = sum(nbytes for _, nbytes, _ in entries)
        if total <= self.limit:
            return len(entries)
        for _, nbytes, name in sorted(entries):
            files.remove(name)
            total -= nbytes
            if total <= self.limit * 9 // 10:
                break
        return len(entries)

    def sweep(self) -> None:
        """Remove stale unfinished files, and the least recently used entries over the limit."""
        with self._open_if_usable() as files:
            if files is not None:
                self._sweep(files)

    def info(self) -> Info:
        """Return the size of the directory and the counters of this process."""
        entries = nbytes = 0
        with self._open_if_usable() as files:
            for item in files.listing() if files is not None else ():
                if item.name.endswith(SUFFIX):
                    entries += 1
                    nbytes += item.nbytes
        path = None if self.path is None else str(self.path)
        counts = self._counts
        return Info(
            *(path, self._refused, entries, nbytes, self.limit),
            *(counts["hits"], counts["misses"], counts["damaged"], counts["failed"]),
        )

    def entries(self) -> list[Listed]:
        """List every entry on disk, most recently used first; removes nothing."""
        entries: list[tuple[float, Listed]] = []
        with self._open_if_usable() as files:
            for item in files.listing() if files is not None else ():
                if item.name.endswith(SUFFIX) and files is not None:
                    with contextlib.suppress(OSError):
                        entries.append((item.modified, _describe(item, files)))
        return [listed for _, listed in sorted(entries, key=lambda pair: -pair[0])]

    def verify(self, remove: bool = True) -> dict[str, str]:
        """Check every entry and return defects by file name; remove damaged ones if `remove`."""
        defects: dict[str, str] = {}
        with self._open_if_usable() as files:
            for item in files.listing() if files is not None else ():
                if not item.name.endswith(SUFFIX) or files is None:
                    continue
                try:
                    key, _ = decode(files.read(item.name, MAX_ENTRY_BYTES))
                    if file_name(key) != item.name:
                        raise Damaged("entry of another key")
                except FileNotFoundError:
                    continue
                except OSError as problem:  # it may be intact
                    defects[item.name] = f"cannot be read: {problem.strerror}"
                except ValueError as problem:
                    defects[item.name] = str(problem)
                    if remove:
                        files.remove(item.name)
        return defects

    def clear(self) -> int:
        """Remove every entry and unfinished file, in memory too; return the number of files."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        removed = 0
        with self._open_if_usable() as files:
            for item in files.listing() if files is not None else ():
                if files is not None and (
                    item.name.endswith(SUFFIX) or files.is_temporary(item.name)
                ):
                    removed += files.remove(item.name)
        return removed

    @contextlib.contextmanager
    def _open_if_usable(self) -> Generator[Any, None, None]:
        """Open the directory, or yield None if missing or not to be used."""
        if self._folder is None:
            yield None
            return
        with contextlib.ExitStack() as stack:
            try:
                files = stack.enter_context(self._folder.open(create=False))
            except Refused as refusal:
                self._warn(refusal)
                files = None
            except OSError:
                files = None
            yield files

    def _warn(self, refusal: Refused) -> None:
        """Warn once that the directory is not used, and how to fix it."""
        if self._refused is None:
            self._refused = refusal.reason
            warning = CacheWarning(path=refusal.path, reason=refusal.reason, hint=refusal.remedy)
            warn_at_origin(warning)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._puts_to_sweep = _random_puts()


def _describe(item: Item, files: Any) -> Listed:
    """Describe an entry from its own report.

    Raises OSError where it cannot be read.
    """
    try:
        meta = decode(files.read(item.name, MAX_ENTRY_BYTES))[1].meta
    except ValueError as problem:
        return Listed(item.name, "damaged", item.nbytes, str(problem))
    recipe = meta.get("recipe")
    if isinstance(recipe, dict):
        steps = cast("dict[str, Any]", recipe).get("steps", ())
        return Listed(item.name, "plan", item.nbytes, f"{len(steps)} steps")
    if "functions" in meta:
        names = ", ".join(str(f[0]) for f in meta["functions"])
        return Listed(item.name, "kernel", item.nbytes, names)
    return Listed(item.name, str(meta.get("what", "")), item.nbytes, "")


def _random_puts() -> int:
    """Return a random number of puts until the next sweep.

    Processes then do not all sweep at once.
    """
    return os.urandom(1)[0] % 64 + 1


def _user_directory() -> Path | None:
    """Return the platform's cache directory; None if the user has no home."""
    try:
        if sys.platform == "linux":  # XDG, without importing platformdirs
            configured = (knobs.foreign("XDG_CACHE_HOME") or "").strip()
            home = Path(configured) if configured.startswith("/") else Path("~/.cache").expanduser()
            return home / "smelt"
        platformdirs: Any = fork_safe_import("platformdirs")
        return Path(platformdirs.user_cache_dir("smelt", appauthor=False))
    except (RuntimeError, OSError, KeyError):
        return None


class ClaimStore(Protocol):
    """Store of claims that is looked up and filled through `get` and `put`."""

    get: Callable[[str], bool | None]
    put: Callable[[str, bool], None]


def persist_claims(shelf: ClaimStore, version: int) -> None:
    """Keep proved claims about formulas in the cache; entries of other versions are ignored."""

    def key(text: str) -> bytes:
        return b"smelt proof " + hashlib.sha256(f"{version} {text}".encode()).digest()

    def get(text: str) -> bool | None:
        entry = Cache.default().get(key(text)) if knobs.CACHE.get() else None
        holds = None if entry is None else entry.meta.get("holds")
        return holds if isinstance(holds, bool) else None

    def put(text: str, holds: bool) -> None:
        if knobs.CACHE.get():
            Cache.default().put(key(text), {"what": "proof", "holds": holds}, b"")

    shelf.get, shelf.put = get, put
