"""Each library gives the right answer on each row, in each way of writing it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import peers
from bench.peers import PEERS, TITLES, Unavailable, open_peer, version
from bench.process import Worker
from bench.worker import save_reference
from bench.workloads import WORKLOADS


@pytest.fixture(autouse=True)
def _no_warnings() -> Any:
    with np.errstate(all="ignore"):
        yield


def _right(name: str, row_id: str) -> list[str]:
    row = WORKLOADS[row_id]
    arrays = row.arrays(small=True)
    want = row.reference(arrays)
    labels: list[str] = []
    for variant in open_peer(name, threads=1).variants(row, arrays):
        assert row.check(variant.fetch(variant.call()), want) <= 1.0, variant.label
        variant.call()
        labels.append(variant.label)
    return labels


@pytest.mark.parametrize("row", WORKLOADS)
def test_numpy_is_right(row: str) -> None:
    before = [a.copy() for a in WORKLOADS[row].arrays(small=True)]
    assert _right("numpy", row)[0] == "array API"
    after = WORKLOADS[row].arrays(small=True)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_updates_are_fed_back() -> None:
    row = WORKLOADS["adam"]
    arrays = row.arrays(small=True)
    for variant in open_peer("numpy", threads=1).variants(row, arrays):
        variant.call()
        second = variant.fetch(variant.call())
        want = arrays
        for _ in range(2):
            new = row.reference(want)
            want = (new[0], arrays[1], new[1], new[2])
        assert row.check(second, (want[0], want[2], want[3])) <= 2.0, variant.label


def test_all_peers_have_titles_and_unknown_ones_are_refused() -> None:
    assert set(TITLES) == set(PEERS)
    with pytest.raises(ValueError, match="numpy, torch"):
        open_peer("matlab", threads=1)


def test_a_library_that_is_not_installed_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in ("torch", "inductor", "jax"):
        with pytest.raises(Unavailable, match="not installed"):
            open_peer(name, threads=1)


def test_version_names_packages_without_importing_them() -> None:
    assert version("numpy") == f"numpy {np.__version__}"


class _Fake(ModuleType):
    """A stand-in for Smelt's front end: NumPy behind `jit` with `out=` and `donate=`."""

    def __init__(self) -> None:
        super().__init__("smelt")
        self.calls: list[str] = []
        self.nn = SimpleNamespace(erf=np.tanh)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "erf":
            raise AttributeError(name)
        return getattr(np, name)

    def jit(self, function: Any, donate: Any = ()) -> Any:
        def compiled(*inputs: Any, out: Any = None) -> Any:
            self.calls.append(f"out={out is not None} donate={donate}")
            result = function(*inputs)
            if out is not None:
                out[...] = result
                return out
            return result

        return compiled


def test_smelt_is_called_as_users_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _Fake()
    monkeypatch.setattr(peers, "_require", lambda name: fake)
    peer = open_peer("smelt", threads=1)
    row = WORKLOADS["chain_1mib"]
    arrays = row.arrays(small=True)
    variants = peer.variants(row, arrays)
    assert [v.label for v in variants] == ["array API", "out="]
    for variant in variants:
        for _ in range(2):
            assert row.check(variant.fetch(variant.call()), row.reference(arrays)) <= 1.0
    assert fake.calls.count("out=True donate=()") == 2
    adam = WORKLOADS["adam"]
    (only,) = peer.variants(adam, adam.arrays(small=True))
    only.call()
    assert fake.calls[-1] == "out=False donate=(0, 2, 3)"
    assert peer.record_ns() is not None


def test_smelt_without_jit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_require", lambda name: ModuleType("smelt"))
    with pytest.raises(Unavailable, match="jit"):
        open_peer("smelt", threads=1)


def test_recording_chain_has_the_length_it_claims() -> None:
    class Counted:
        count = 0

        def __mul__(self, other: object) -> Counted:
            Counted.count += 1
            return self

        __add__ = __mul__

    peers.record_chain(Counted(), Counted())
    assert Counted.count == peers.CHAIN_LENGTH


# With the libraries themselves, in processes of their own ---------------------------------------


@pytest.mark.peer
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_installed_library_is_right_on_every_row(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    with Worker(name, threads=1, small=True) as worker:
        for row in WORKLOADS.values():
            _ask_to_load(worker, row.id, tmp_path / row.id)


@pytest.mark.nightly  # compiles C++ for half a minute
@pytest.mark.peer
def test_inductor_is_right(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or shutil.which("g++") is None:
        pytest.skip("needs torch and g++")
    with Worker("inductor", threads=1, small=True, cache=tmp_path / "cache") as worker:
        _ask_to_load(worker, "cross_entropy", tmp_path / "cross_entropy")


def _ask_to_load(worker: Worker, name: str, folder: Path) -> None:
    save_reference(WORKLOADS[name], folder, small=True)
    reply = worker.request({"do": "load", "row": name, "reference": str(folder)}, 120)
    assert reply.get("failures") == {}, (name, reply)
    assert max(reply["errors"].values()) <= 1.0, (name, reply)
    assert reply["ns"] > 0
