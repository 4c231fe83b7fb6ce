"""The cache keeps entries, believes nothing unchecked and never fails its user."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import platformdirs
import pytest
from tests.pace import pace

from smelt import knobs
from smelt.runtime.cache import FORMAT, SUFFIX, Cache, Damaged, Entry, decode, encode, file_name


def fill(folder: Path, count: int = 5, nbytes: int = 1000) -> dict[bytes, bytes]:
    cache, entries = Cache(folder), {}
    for number in range(count):
        key = b"kernel %d" % number
        entries[key] = random.Random(number).randbytes(nbytes)
        cache.put(key, {"number": number}, entries[key])
    return entries


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_entries_survive_the_process(folder: Path) -> None:
    entries = fill(folder)
    later = Cache(folder)
    for number, (key, code) in enumerate(entries.items()):
        entry = later.get(key)
        assert entry is not None
        assert (entry.meta, entry.code) == ({"number": number}, code)
    assert later.get(b"unknown") is None
    info = later.info()
    assert (info.entries, info.hits, info.misses, info.damaged) == (5, 5, 1, 0)
    assert info.path == str(folder)
    assert info.nbytes == sum(file.stat().st_size for file in files(folder))


def test_directory_and_files_are_private(folder: Path) -> None:
    old = os.umask(0)
    try:
        fill(folder)
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files(folder)} == {0o600}


def test_no_directory_is_created_before_the_first_put(folder: Path) -> None:
    cache = Cache(folder)
    assert cache.get(b"key") is None
    assert cache.info().entries == 0
    assert cache.verify() == {}
    assert cache.clear() == 0
    cache.sweep()
    assert not folder.parent.exists()


def test_empty_and_strange_contents(folder: Path) -> None:
    cache = Cache(folder)
    for key, meta, code in (
        (b"", {}, b""),
        (b"\x00" * 100, {"a": [1, None, "ü", {"b": 1.5}]}, b"\x7fELF"),
        (b"k" * 100_000, {}, b""),
    ):
        cache.put(key, meta, code)
        entry = Cache(folder).get(key)
        assert entry is not None
        assert (entry.meta, entry.code) == (meta, code)
    with pytest.raises(TypeError):
        cache.put(b"key", {"not json": object()}, b"")


def test_without_a_directory_entries_live_in_memory() -> None:
    cache = Cache(None)
    cache.put(b"key", {}, b"code")
    entry = cache.get(b"key")
    assert entry is not None
    assert entry.code == b"code"
    assert cache.info().path is None
    assert cache.clear() == 0
    assert cache.get(b"key") is None


def test_the_default_follows_the_knobs(tmp_path: Path) -> None:
    with knobs.config(cache_dir=str(tmp_path / "one"), cache_size="1MiB"):
        one = Cache.default()
        assert one.path == tmp_path / "one"
        assert one.limit == 1 << 20
        assert Cache.default() is one
    with knobs.config(cache_dir=str(tmp_path / "two")):
        assert Cache.default().path == tmp_path / "two"
    with knobs.config(cache=False):
        assert Cache.default().path is None


def mutants(content: bytes, other: bytes, count: int) -> list[tuple[str, bytes]]:
    """Damaged versions of an entry's file."""
    dice, result = random.Random(3), []
    for number in range(count):
        kind = ("cut", "flip", "splice", "zero", "swap", "version", "longer", "bytes")[number % 8]
        data = bytearray(content)
        at = dice.randrange(len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip":
            data[at] ^= 1 << dice.randrange(8)
        elif kind == "splice":
            data = data[:at] + bytearray(other[at:])
        elif kind == "zero":
            data[at:] = bytes(len(data) - at)
        elif kind == "swap":
            data = bytearray(other)
        elif kind == "version":
            data[8:12] = dice.choice([0, FORMAT + 1, 2**32 - 1]).to_bytes(4, "little")
        elif kind == "longer":
            data += dice.randbytes(dice.randrange(1, 50))
        else:
            data[at : at + 16] = dice.randbytes(len(data[at : at + 16]))
        if bytes(data) != content:
            result.append((kind, bytes(data)))
    return result


def test_500_damaged_entries_are_found_removed_and_repaired(folder: Path) -> None:
    entries = fill(folder, 2, 300)
    (key, code), (other_key, _) = entries.items()
    path, other = folder / file_name(key), folder / file_name(other_key)
    good = path.read_bytes()
    damaged = mutants(good, other.read_bytes(), 520)
    assert len(damaged) >= 500
    for kind, content in damaged:
        path.write_bytes(content)
        cache = Cache(folder)
        assert cache.get(key) is None, kind
        assert not path.exists(), kind
        assert cache.info().damaged == 1
        cache.put(key, {"number": 0}, code)
        assert path.read_bytes() == good
        again = Cache(folder).get(key)
        assert again is not None
        assert again.code == code


def test_a_report_that_is_no_json_object_is_damage() -> None:
    content = encode(b"key", {"a": 1}, b"code")
    assert decode(content)[1].meta == {"a": 1}
    for text in (b"[1]", b"{", b"\xff", b"nul"):
        whole = encode(b"key", {}, b"code")
        import hashlib

        from smelt.runtime import cache as module

        digest = module._digest(b"key", text, b"code")
        header = module._HEADER.pack(module.MAGIC, FORMAT, 3, len(text), 4, digest)
        with pytest.raises(ValueError):  # noqa: PT011 - Damaged, or json's own kinds of it
            decode(header + b"key" + text + b"code")
        assert hashlib.sha256(whole).digest() != digest
    with pytest.raises(Damaged, match="another key"):
        decode(content, b"other")


def test_verify_reports_and_removes(folder: Path) -> None:
    fill(folder)
    first, second, third, *_ = files(folder)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(third.read_bytes())
    cache = Cache(folder)
    wrong = cache.verify(remove=False)
    assert set(wrong) == {first.name, second.name}
    assert "length" in wrong[first.name]
    assert "another key" in wrong[second.name]
    assert len(files(folder)) == 5
    assert cache.verify() == wrong
    assert len(files(folder)) == 3
    assert cache.verify() == {}


def test_clear_leaves_foreign_files_alone(folder: Path) -> None:
    fill(folder)
    (folder / ".tmp-0123").write_bytes(b"unfinished")
    (folder / "notes.txt").write_text("mine")
    cache = Cache(folder)
    assert cache.clear() == 6
    assert [file.name for file in files(folder)] == ["notes.txt"]


def test_the_limit_evicts_what_was_not_used_for_longest(folder: Path) -> None:
    entries = fill(folder, 20, 10_000)
    keys = list(entries)
    now = time.time()
    for age, key in enumerate(reversed(keys)):
        os.utime(folder / file_name(key), (now - 7200 * age, now - 7200 * age))
    assert Cache(folder).get(keys[0]) is not None  # the oldest becomes the youngest
    cache = Cache(folder, limit=105_000)
    cache.sweep()
    kept = {file.name for file in files(folder)}
    assert kept == {file_name(key) for key in (keys[0], *keys[-8:])}
    assert cache.info().nbytes <= 105_000 * 9 // 10


def test_puts_keep_near_the_limit_by_themselves(folder: Path) -> None:
    cache = Cache(folder, limit=200_000)
    for number in range(200):
        cache.put(b"%d" % number, {}, os.urandom(5000))
    assert Cache(folder).info().nbytes < 230_000


def test_only_stale_unfinished_files_are_swept(folder: Path) -> None:
    fill(folder, 1)
    young, old = folder / ".tmp-young", folder / ".tmp-old"
    young.write_bytes(b"")
    old.write_bytes(b"")
    os.utime(old, (time.time() - 7200,) * 2)
    Cache(folder).sweep()
    assert young.exists()
    assert not old.exists()


def test_the_directory_may_vanish_and_come_back(folder: Path) -> None:
    cache = Cache(folder)
    cache.put(b"key", {}, b"code")
    for file in files(folder):
        file.unlink()
    folder.rmdir()
    cache.put(b"key", {}, b"code")
    assert len(files(folder)) == 1
    assert files(folder)[0].name.endswith(SUFFIX)


def test_memory_holds_a_bounded_amount() -> None:
    cache = Cache(None)
    for number in range(100):
        cache.put(b"%d" % number, {}, bytes(1 << 20))
    held = sum(cache.get(b"%d" % number) is not None for number in range(100))
    assert 60 <= held <= 64
    assert cache.get(b"99") is not None


@pytest.mark.clock
def test_a_warm_read_of_50_kb_takes_less_than_half_a_millisecond(folder: Path) -> None:
    fill(folder, 1, 50_000)
    best = 1.0
    for _ in range(20):
        cache = Cache(folder)
        start = time.perf_counter()
        entry = cache.get(b"kernel 0")
        best = min(best, time.perf_counter() - start)
        assert entry is not None
    assert best < 5e-4 * pace()


def test_the_default_folder_is_the_platform_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Worked out without the library, whose import costs more, and equal to what it says."""
    for inputs in (None, "", "  ", str(tmp_path / "xdg")):
        if inputs is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", inputs)
        expected = platformdirs.user_cache_dir("smelt", appauthor=False)
        Cache._defaults.clear()
        with knobs.config(cache=True, cache_dir=None):
            assert str(Cache.default().path) == expected
    Cache._defaults.clear()


def test_entries_without_code_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.runtime.cache.MAX_MEMORY_BYTES", 1 << 20)
    cache = Cache(None)
    for k in range(2000):
        cache.put(b"key %d" % k, {"report": k}, b"")
    assert len(cache._memory) <= 256 and cache._memory_bytes <= 1 << 20
    assert cache.get(b"key 0") is None and cache.get(b"key 1999") is not None


def test_entries_that_are_on_disk_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smelt.runtime.cache.MAX_COPIED_BYTES", 64 << 10)
    cache = Cache(tmp_path / "cache")
    for k in range(50):
        cache.put(b"key %d" % k, {"report": k}, b"code")
    assert len(cache._memory) <= 16
    assert cache.get(b"key 0") == Entry({"report": 0}, b"code")


def test_entries_that_cannot_be_stored_have_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.runtime.cache.MAX_COPIED_BYTES", 64 << 10)
    cache = Cache(None)
    for k in range(50):
        cache.put(b"key %d" % k, {"report": k}, b"code")
    assert cache.get(b"key 0") is not None
