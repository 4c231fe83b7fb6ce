"""Per-user cache of object code and reports.

Cached code is executed, so the trust boundary is ownership: the directory must belong to this
user and be writable by nobody else, or it is not used at all and entries live in memory only.
Within it, an entry is one file, published atomically by a rename, and nothing in it is trusted
before its SHA-256 and the echo of its full key were checked; a damaged entry is removed and
counts as a miss. There are no locks: writers never modify a published file, and two writers of
the same entry write the same content.

File: magic, format version, lengths of key, meta and code, SHA-256 of all that with the three
parts, then key, meta (JSON) and code. Name: SHA-256 of the key. `Cache` never raises because of
the file system: what cannot be stored is compiled again next time.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     cache = Cache(place + "/cache")
...     cache.put(b"key", {"kernel": "k"}, b"code")
...     Cache(place + "/cache").get(b"key")
Entry(meta={'kernel': 'k'}, code=b'code')
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
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
from smelt.runtime.cache_files import Folder, Item, Refused

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
