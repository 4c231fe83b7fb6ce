"""The cache among failing system calls, foreign directories, killed and competing processes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from smelt.errors import CacheWarning
from smelt.runtime import cache as cache_files
from smelt.runtime.cache import Cache, file_name

ROOT = Path(__file__).parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# System calls that fail --------------------------------------------------------------------------


class FailingOs:
    """The os module, whose n-th call of those that can fail raises."""

    CALLS = ("open", "fstat", "read", "write", "close", "replace", "unlink", "stat", "utime")

    def __init__(self, fail_at: int, number: int) -> None:
        self.left, self.number, self.failed = fail_at, number, ""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in (*self.CALLS, "scandir"):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.failed = name
                if name == "close":  # a failing close has closed
                    real(*arguments, **named)
                raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **named)

        return call


NUMBERS = (
    *(errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EIO, errno.EDQUOT),
    *(errno.ENOENT, errno.ESTALE, errno.ENOMEM, errno.EINTR, errno.EPERM),
)


def open_files(folder: Path) -> int:
    """How many descriptors of this process lead into the folder; others come and go beside it."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith(str(folder))
        except FileNotFoundError:  # the listing's own
            continue
    return count


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: errno.errorcode[number])
def test_every_single_call_may_fail(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(folder).put(b"old", {}, b"old code")
    seen = set()
    for fail_at in range(1, 60):
        shim = FailingOs(fail_at, number)
        monkeypatch.setattr(cache_files, "os", shim)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = Cache(folder)
            old = cache.get(b"old")
            cache.put(b"new", {"n": fail_at}, b"new code")
            new = cache.get(b"new")
            cache.sweep()
            cache.info()
            cache.verify(remove=False)
        monkeypatch.undo()
        # An entry is right or missing, and what was put is there at least in memory.
        assert old is None or old.code == b"old code"
        assert new is not None
        assert new.code == b"new code"
        assert len(caught) <= 1
        later = Cache(folder).get(b"new")
        assert later is None or later.code == b"new code"
        Cache(folder).put(b"old", {}, b"old code")
        seen.add(shim.failed)
        if not shim.failed:
            break
    assert seen >= {"open", "fstat", "read", "write", "close", "replace", ""}
    assert open_files(folder) == 0
    leftovers = [file for file in folder.iterdir() if file.name.startswith(".tmp-")]
    # Only where removing the unfinished file was the call that failed may one stay.
    assert len(leftovers) <= 1
    assert Cache(folder).verify() == {}


def test_an_interrupt_in_the_middle_of_a_write_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(folder)
    cache.put(b"one", {}, b"1")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("write", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(cache_files.os, name, stop)
            with pytest.raises(KeyboardInterrupt):
                cache.put(b"two", {}, b"2")
        assert [file.name for file in folder.iterdir()] == [file_name(b"one")]


def test_an_interrupt_at_any_instruction_of_a_write_leaves_nothing(folder: Path) -> None:
    """A signal handler may raise before each of them, once."""
    methods = vars(cache_files.Files)
    codes = [methods[name].__code__ for name in ("publish", "_write")]
    left, before = -1, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    interrupted = 0
    with cache_files.Folder(folder).open(create=True) as files:
        while True:
            left = at = interrupted + 1
            sys.settrace(trace)
            try:
                files.publish("entry", b"content")
            except KeyboardInterrupt:
                interrupted = at
            finally:
                sys.settrace(before)
            assert not [file.name for file in folder.iterdir() if files.is_temporary(file.name)], at
            if interrupted < at:
                break
    assert interrupted > 50  # it came everywhere


@pytest.mark.parametrize("empty", [True, False])
def test_a_directory_instead_of_an_entry(
    folder: Path, empty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty directory is removed, one with files stays; both are listed as directories."""
    Cache(folder).put(b"good", {}, b"code")
    there = folder / file_name(b"key")
    there.mkdir()
    if not empty:
        (there / "file").touch()
    kinds = {e.name: e.what for e in Cache(folder).entries()}
    assert kinds[there.name] == "damaged"
    assert len(kinds) == 2
    with caplog.at_level("WARNING", logger="smelt.cache"):
        cache = Cache(folder)
        assert cache.get(b"key") is None
    assert ("cannot be removed" in caplog.text) != empty
    assert there.exists() != empty
    cache.put(b"key", {}, b"code")  # in memory, if there is no room for a file
    assert cache.get(b"key") is not None
    assert cache.clear() == (2 if empty else 1)


# Directories and files of others -----------------------------------------------------------------


def refused(folder: Path, reason: str) -> Cache:
    """A cache at `place` works in memory, says once why, and touches nothing there."""
    cache = Cache(folder)
    with pytest.warns(CacheWarning, match=reason):
        cache.put(b"key", {}, b"code")
    # No second warning: any would be an error here.
    assert cache.get(b"other") is None
    cache.put(b"more", {}, b"code")
    entry = cache.get(b"key")
    assert entry is not None
    assert entry.code == b"code"
    actual = cache.info()
    assert actual.refused
    assert actual.entries == 0
    return cache


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to(folder: Path, mode: int) -> None:
    Cache(folder).put(b"key", {}, b"planted")
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    cache = refused(folder, "other users may write")
    assert sorted(folder.iterdir()) == before
    # The remedy of the message works at once.
    folder.chmod(0o700)
    cache.put(b"third", {}, b"code")
    assert len(list(folder.iterdir())) == 2
    assert cache.info().refused is None


def test_readable_for_others_is_fine(folder: Path) -> None:
    Cache(folder).put(b"key", {}, b"code")
    folder.chmod(0o755)
    assert Cache(folder).get(b"key") is not None


def test_a_symbolic_link_instead_of_the_directory(folder: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    Cache(real).put(b"key", {}, b"code")
    folder.symlink_to(real)
    refused(folder, "not a directory")
    assert len(list(real.iterdir())) == 1


def test_a_file_instead_of_the_directory_or_its_parent(folder: Path) -> None:
    folder.write_text("a file")
    refused(folder, "not a directory")
    refused(folder / "below", "cannot be made|not a directory")


def test_what_is_no_file_of_ours_is_never_read(folder: Path, tmp_path: Path) -> None:
    cache = Cache(folder)
    cache.put(b"key", {}, b"code")
    entry = folder / file_name(b"key")
    secret = tmp_path / "secret"
    secret.write_bytes(entry.read_bytes())

    def link() -> None:
        entry.symlink_to(secret)

    def pipe() -> None:
        os.mkfifo(entry)

    def directory() -> None:
        entry.mkdir()
        (entry / "file").touch()

    makers: list[Callable[[], None]] = [link, pipe, directory]
    for maker in makers:
        entry.unlink()
        maker()
        fresh = Cache(folder)
        assert fresh.get(b"key") is None
        assert file_name(b"key") in Cache(folder).verify() or not os.path.lexists(entry)
        if maker is directory:
            fresh.put(b"key", {}, b"code")  # cannot be stored, still works
            assert fresh.get(b"key") is not None
            (entry / "file").unlink()
            entry.rmdir()
        fresh.put(b"key", {}, b"code")
        assert entry.is_file()
    assert secret.exists()


@as_root
def test_a_foreign_owner(folder: Path) -> None:
    Cache(folder).put(b"key", {}, b"code")
    entry = folder / file_name(b"key")
    os.chown(entry, 65534, 65534)
    assert Cache(folder).get(b"key") is None
    assert not entry.exists()
    os.chown(folder, 65534, 65534)
    refused(folder, "belongs to user 65534")


def python(code: str, timeout: float = 100) -> Any:
    prelude = """
        import json, os, signal, sys, time, random, warnings, resource
        from smelt.runtime.cache import Cache
    """
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


BECOME_NOBODY = """
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def attempt(place):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = Cache(place)
        cache.put(b"key", {}, b"code")
        right = cache.get(b"key").code == b"code" and cache.get(b"foreign") is None
    return [right, len(caught), cache.info().failed_writes, cache.info().refused]
"""


@as_root
def test_as_another_user(tmp_path: Path) -> None:
    """Root passes every permission check, so these cases need a real other user."""
    foreign, locked, owned = tmp_path / "foreign", tmp_path / "locked", tmp_path / "own"
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent not in (Path("/"), Path("/tmp")):
            parent.chmod(0o755)
    Cache(foreign).put(b"foreign", {}, b"code")
    foreign.chmod(0o755)
    locked.mkdir(mode=0o500)
    owned.mkdir(mode=0o700)
    os.chown(locked, 65534, 65534)
    os.chown(owned, 65534, 65534)
    places = [foreign, locked, owned, tmp_path / "cannot" / "be", owned / "deep" / "er"]
    places_text = json.dumps([str(each) for each in places])
    output = python(
        BECOME_NOBODY + f"print(json.dumps([attempt(place) for place in {places_text}]))"
    )
    assert [each[0] for each in output] == [True] * 5
    assert output[0][1] == 1
    assert "belongs to user 0" in output[0][3]
    assert output[1][1:] == [0, 1, None]
    assert output[2][1:] == [0, 0, None]
    assert output[3][1] == 1
    assert "cannot be made" in output[3][3]
    assert output[4][1:] == [0, 0, None]


def test_a_full_disk(folder: Path) -> None:
    output = python(f"""
        cache = Cache({str(folder)!r})
        cache.put(b"small", {{}}, b"code")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        cache.put(b"large", {{}}, bytes(100_000))
        right = cache.get(b"large").code == bytes(100_000)
        print(json.dumps([right, cache.info().failed_writes, os.listdir({str(folder)!r})]))
    """)
    assert output == [True, 1, [file_name(b"small")]]


def test_no_descriptors_left(folder: Path) -> None:
    output = python(f"""
        cache = Cache({str(folder)!r})
        cache.put(b"key", {{}}, b"code")
        other = Cache({str(folder)!r})
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 100))
        missed = other.get(b"key") is None
        other.put(b"more", {{}}, b"code")
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        print(json.dumps([missed, other.get(b"key").code == b"code"]))
    """)
    assert output == [True, True]


def test_no_home(folder: Path) -> None:
    code = """
from smelt.runtime.cache import Cache
cache = Cache.default()
cache.put(b"key", {}, b"code")
print(cache.get(b"key").code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "HOME": "/dev/null/nowhere"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'code'\n"
    assert done.stderr.count("CacheWarning") <= 1


# Many processes ----------------------------------------------------------------------------------


def test_writers_killed_at_any_moment(folder: Path) -> None:
    output = python(f"""
        place = {str(folder)!r}
        dice = random.Random(9)
        bad = 0
        for kill in range(100):
            child = os.fork()
            if child == 0:
                cache = Cache(place)
                for number in range(kill, 10**9):  # each entry is the first of some writers
                    cache.put(b"%d" % (number % 7), {{}}, b"%d" % (number % 7) * 20_000)
            time.sleep(dice.uniform(0.0002, 0.006))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            cache = Cache(place)
            for number in range(7):
                entry = cache.get(b"%d" % number)
                bad += entry is not None and entry.code != b"%d" % number * 20_000
            bad += cache.info().damaged
        cache = Cache(place)
        print(json.dumps([bad, cache.verify(), cache.info().entries]))
    """)
    assert output == [0, {}, 7]
    # What the killed left behind goes when it is old.
    for file in folder.iterdir():
        if file.name.startswith(".tmp-"):
            os.utime(file, (1, 1))
    Cache(folder).sweep()
    assert not [file for file in folder.iterdir() if file.name.startswith(".tmp-")]


def test_sixteen_processes_on_a_cold_cache_with_eviction(folder: Path) -> None:
    output = python(f"""
        place = {str(folder)!r}
        def worker(seed):
            dice = random.Random(seed)
            cache = Cache(place, limit=150_000)
            for _ in range(3):
                for number in dice.sample(range(20), 20):
                    key, code = b"%d" % number, b"%d" % number * 4000
                    entry = Cache(place, limit=150_000).get(key)
                    if entry is None:
                        cache.put(key, {{"by": seed}}, code)
                    elif entry.code != code:
                        return 1
                cache.sweep()
            return cache.info().damaged
        errors = 0
        for round in range(3):
            children = []
            for seed in range(16):
                child = os.fork()
                if child == 0:
                    try:
                        os._exit(worker(seed))
                    except BaseException:
                        os._exit(2)
                children.append(child)
            errors += sum(os.waitpid(child, 0)[1] != 0 for child in children)
            Cache(place).clear()
        print(json.dumps(errors))
    """)
    assert output == 0
