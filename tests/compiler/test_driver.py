"""The compiler on one page: caches, settings, and that compilation repeats itself exactly."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from tests.strategies.graphs import Program, graphs
from tests.texts import SOFTMAX

import smelt
from smelt import knobs
from smelt.compiler import driver
from smelt.compiler.driver import Compiled
from smelt.errors import UnsupportedError
from smelt.graph.interp import run as interpret
from smelt.graph.interp import solve_sizes
from smelt.graph.ir import Graph
from smelt.graph.text import parse
from smelt.journal.facts import (
    CacheHit,
    CacheMiss,
    CacheStored,
    Journal,
    KernelEmitted,
    KernelLowered,
)
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text
from smelt.machine.target import Target
from smelt.runtime import code
from smelt.runtime.cache import Cache

Array = np.ndarray[Any, Any]
MAP = "graph f(x: f32[n,m]) {\n a = exp(x)\n b = mul(a, x)\n c = add(b, 1.0:f32)\n return c\n}"
SUMS = """graph f(x: f32[n,m], y: f32[m,n]) {
  t = permute(y) {perm=(1,0)}
  z = mul(x, t)
  s = reduce.sum(z) {axes=(0,1)}
  u = reduce.sum(z) {axes=(0,)}
  v = reduce.max(z) {axes=(1,)}
  return s, u, v
}"""
PRODUCT = """graph f(x: f32[n,m]) {
  a = contract(x, x) {spec="i,k; j,k -> i,j"}
  b = tanh(a)
  return b
}"""
SOURCES = {"softmax": SOFTMAX, "map": MAP, "sums": SUMS, "product": PRODUCT}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of the test's own, as a new process finds it."""
    driver.host(), code.generator_identity()  # what these keep belongs to another cache
    code.forget()
    with knobs.config(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has in memory."""
    code.forget()
    monkeypatch.setattr(Cache, "_defaults", {})


def facts(journal: Journal) -> Counter[str]:
    return Counter(type(fact).__name__ for fact in journal)


def compiled(source: str | Graph, **options: Any) -> Compiled:
    graph = source if isinstance(source, Graph) else parse(source)
    options.setdefault("journal", Journal())
    return driver.compile(graph, **options)


def call(c: Compiled, *arrays: Array) -> list[Array]:
    named = solve_sizes(c.graph, arrays)
    return c.run(list(arrays), tuple(named[n] for n in c.size_names))


def inputs(c: Compiled, n: int = 33, m: int = 70) -> list[Array]:
    rng = np.random.default_rng(n)
    sizes = {"n": n, "m": m}
    return [
        (rng.standard_normal([sizes[str(d)] for d in node.type.shape]) / 2).astype("f4")
        for node in c.graph.inputs
    ]


# ---- caches --------------------------------------------------------------------------------------


def test_a_cold_start_emits_and_stores_every_kernel(fresh: Path) -> None:
    c = compiled(SOFTMAX, journal=Journal(full=True))
    recorded = facts(c.journal)
    assert recorded["KernelLowered"] == recorded["KernelEmitted"] == len(c.kernels)
    assert recorded["CacheMiss"] == recorded["CacheStored"] == len(c.kernels)
    assert recorded["CacheHit"] == 0
    assert len(list(fresh.iterdir())) == len(c.kernels)
    assert {f.text for f in c.journal.of(KernelEmitted)} == {text(k) for k in c.kernels if k}


def test_a_second_compilation_loads_from_memory(fresh: Path) -> None:
    compiled(SOFTMAX)
    again = compiled(SOFTMAX)
    assert facts(again.journal)["KernelEmitted"] == 0
    assert {hit.place for hit in again.journal.of(CacheHit)} == {"memory"}


def test_a_later_process_loads_from_disk(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {name: compiled(source) for name, source in SOURCES.items()}
    next_process(monkeypatch)
    for name, source in SOURCES.items():
        again = compiled(source)
        recorded = facts(again.journal)
        assert recorded["KernelEmitted"] == recorded["CacheMiss"] == recorded["CacheStored"] == 0
        assert recorded["CacheHit"] >= 1
        arrays = inputs(again)
        for a, b in zip(call(first[name], *arrays), call(again, *arrays), strict=True):
            assert a.tobytes() == b.tobytes()


def test_equal_kernels_of_different_programs_are_one(fresh: Path) -> None:
    """The name of a kernel, of a program and of its place in it decide nothing."""
    compiled(MAP)
    again = compiled(MAP.replace("graph f", "graph other"))
    assert facts(again.journal)["KernelEmitted"] == 0


@pytest.mark.parametrize("place", [0, 9, 30, 60, 200, -1])
def test_a_damaged_entry_is_rebuilt(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    first = compiled(SOFTMAX)
    for path in fresh.iterdir():
        content = bytearray(path.read_bytes())
        content[place] ^= 0x40
        path.write_bytes(content)
    next_process(monkeypatch)
    again = compiled(SOFTMAX)
    assert facts(again.journal)["KernelEmitted"] == len(again.kernels)
    arrays = inputs(again)
    assert call(first, *arrays)[0].tobytes() == call(again, *arrays)[0].tobytes()
    next_process(monkeypatch)
    assert facts(compiled(SOFTMAX).journal)["KernelEmitted"] == 0


@pytest.mark.parametrize("content", [b"", b"SMELTobj", bytes(100)])
def test_a_truncated_entry_is_rebuilt(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    compiled(MAP)
    for path in fresh.iterdir():
        path.write_bytes(content)
    next_process(monkeypatch)
    again = compiled(MAP)
    assert facts(again.journal)["KernelEmitted"] == 1
    arrays = inputs(again)
    assert np.allclose(call(again, *arrays)[0], interpret(again.graph, arrays)[0], rtol=1e-6)


def test_without_a_cache_nothing_is_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with knobs.config(cache=False):
        recorded = facts(compiled(SOFTMAX).journal)
        assert recorded["CacheStored"] == 0
        next_process(monkeypatch)
        assert facts(compiled(SOFTMAX).journal)["KernelEmitted"] == recorded["KernelEmitted"] > 0
    assert not fresh.exists()


def test_a_directory_of_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "open"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    next_process(monkeypatch)
    with knobs.config(cache_dir=str(place)):
        with pytest.warns(UserWarning, match="open"):
            c = compiled(MAP)
        arrays = inputs(c)
        assert np.allclose(call(c, *arrays)[0], interpret(c.graph, arrays)[0], rtol=1e-6)
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        {"target": "avx2"},
        {"opt_level": 1},
        {"rounding": "exact"},
        {"generator": "another"},
        {"text": MAP.replace("1.0", "2.0")},
        {"llvm": "0"},
    ],
)
def test_what_changes_code_changes_the_key(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    compiled(MAP)
    if "generator" in change:
        monkeypatch.setattr(driver, "generator_identity", lambda: "another")
    if "llvm" in change:
        monkeypatch.setattr(driver.llvmlite, "__version__", "0")
    arguments = {k: v for k, v in change.items() if k in knobs.KNOBS}
    with knobs.config(**arguments):
        assert facts(compiled(change.get("text", MAP)).journal)["KernelEmitted"] == 1


def test_what_does_not_change_code_does_not(fresh: Path) -> None:
    compiled(MAP, hints={"n": 10, "m": 10})
    with knobs.config(threads=2, verify=False, quiet=True, never_fuse="sin+cos"):
        again = compiled(MAP, hints={"n": 1000, "m": 3})
    assert facts(again.journal)["KernelEmitted"] == 0


def test_a_change_to_a_module_gives_another_identity(tmp_path: Path) -> None:
    """Editing any module gives another name: nothing made before is used.  Code that a kernel's
    text becomes depends on what the code generator imports only, and on no time of change."""
    sources = {
        "fusion/a.py": "from smelt.codegen.a import emit\n",
        "codegen/a.py": "from smelt.machine import target\nimport smelt.ops.a as ops\n",
        "kernel/a.py": "from smelt.types import (  # both\n    b,\n    c,\n)\n",
        "machine/__init__.py": "",
        "machine/target.py": "",
        "ops/windows.py": "",
        "ops/__init__.py": "from smelt.ops.windows import gap\n",
        "ops/a.py": "",
        "types/b.py": "",
        "types/c.py": "",
    }
    decisive = {*sources} - {"fusion/a.py"}

    def digests(where: str, changed: str = "") -> code.Digests:
        package = tmp_path / where / "smelt"
        for name, source in sources.items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(source + "x = 1\n" * (name == changed))
        return code.digests(str(package))

    plain = digests("plain")
    assert digests("again") == plain
    edited = {name: digests(name.replace("/", "-"), name) for name in sources}
    assert len({plain.all, *(d.all for d in edited.values())}) == 1 + len(sources)
    assert {name for name, d in edited.items() if d.code != plain.code} == decisive
    assert code.digests(str(tmp_path / "plain" / "smelt" / "ops" / "a.py")).all == "packed"
    (tmp_path / "plain" / "smelt" / "fusion" / "a.py").write_text("x = 1 # edited\n")
    later = code.digests.__wrapped__(str(tmp_path / "plain" / "smelt"))
    assert later.all not in (plain.all, edited["fusion/a.py"].all)


def test_code_identity_covers_what_the_code_generator_imports() -> None:
    """Import-linter's graph of the package reaches no module that the digest leaves out."""
    root = Path(smelt.__file__).parent
    texts = {f"/{p.relative_to(root).as_posix()}": p.read_bytes() for p in root.rglob("*.py")}
    covered = set(code.codegen_modules(texts))
    graph = grimp.build_graph("smelt")
    back_end = {m for m in graph.modules if m.startswith(("smelt.codegen", "smelt.kernel"))}
    needed = back_end.union(*map(graph.find_upstream_modules, back_end)) - {"smelt"}
    files = {m: m.removeprefix("smelt").replace(".", "/") for m in needed}
    missing = {m for m, f in files.items() if not {f"{f}.py", f"{f}/__init__.py"} & covered}
    assert not missing
    assert {
        "/machine/target.py",
        "/ops/windows.py",
        "/machine/blocks.py",
        "/packages/llvm.py",
        "/ops/spec.py",
    } <= covered
    assert not any(f.startswith(("/fusion/", "/frontends/", "/explain/")) for f in covered)


# ---- processes -----------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, sys
import numpy as np
sys.path[:0] = json.loads(sys.argv[1])
from tests.compiler.test_driver import SOURCES, compiled, facts, call, inputs
from smelt.kernel.ir import Kernel
from smelt.kernel.text import text
emitted, texts, bits = 0, hashlib.sha256(), hashlib.sha256()
for source in SOURCES.values():
    for hints in ({}, {"n": 4096, "m": 4096}):
        c = compiled(source, hints=hints)
        emitted += facts(c.journal)["KernelEmitted"]
        texts.update("".join(text(k) for k in c.kernels if k is not None).encode())
        for a in call(c, *inputs(c)):
            bits.update(a.tobytes())
print(json.dumps([emitted, texts.hexdigest(), bits.hexdigest()]))
"""


def test_a_second_process_compiles_nothing_and_gives_the_same_bits(tmp_path: Path) -> None:
    """Neither the process nor its hash seed shows in kernels or results."""
    root = Path(__file__).parents[2]
    results = []
    for hash_seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "SMELT_CACHE_DIR": str(tmp_path / "cache"),
        }
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, json.dumps([str(root), str(root / "src")])],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    (cold, texts, bits), (warm, same_texts, same_bits) = results
    assert cold > 0
    assert warm == 0
    assert texts == same_texts
    assert bits == same_bits


# ---- settings ------------------------------------------------------------------------------------


def test_fuse_off_gives_every_operator_a_kernel() -> None:
    for source in (SOFTMAX, MAP, PRODUCT, SUMS):
        with knobs.config(fuse=False, rounding="eager"):
            c = compiled(source)
        work = [n for n in c.graph.nodes() if not n.op.is_source and not n.op.is_view]
        assert len(c.kernels) == len(work), source
        computed = [
            n.op.name
            for cluster in c.plan.clusters
            for n in cluster.nodes
            if not n.op.is_view and not n.op.is_source
        ]
        assert sorted(computed) == sorted(n.op.name for n in work)
        arrays = inputs(c)
        for a, b in zip(call(c, *arrays), interpret(c.graph, arrays), strict=True):
            assert np.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_elementwise_programs_have_the_same_bits_fused_or_not() -> None:
    @seed(11)
    @settings(max_examples=25, deadline=None, database=None)
    @given(graphs(max_nodes=8, steps=["unary", "binary", "compare", "select"]))
    def judge(program: Program) -> None:
        graph, arrays = program
        results = []
        for fuse in (True, False):
            with knobs.config(fuse=fuse, rounding="eager"):
                c = compiled(graph)
                results.append(call(c, *arrays))
        for a, b in zip(*results, strict=True):
            assert bits_of(a) == bits_of(b)

    judge()


def bits_of(a: Array) -> bytes:
    """The bits; every NaN counts as one."""
    if a.dtype.kind in "biu":
        return a.tobytes()
    nan = np.isnan(a.astype("f8"))
    return np.where(nan, np.zeros((), a.dtype), a).tobytes() + nan.tobytes()


def test_every_instruction_set_agrees_with_the_interpreter() -> None:
    for isa in ("avx512", "avx2", "portable"):
        if Target.host().lanes(1) < Target.for_isa(isa).lanes(1):
            continue  # this processor cannot run it
        for name, source in SOURCES.items():
            with knobs.config(target=isa):
                c = compiled(source)
            assert c.target.isa == isa
            arrays = inputs(c)
            for a, b in zip(call(c, *arrays), interpret(c.graph, arrays), strict=True):
                assert np.allclose(a, b, rtol=1e-5, atol=1e-5), (isa, name)


def test_threads_may_compile_at_once(fresh: Path) -> None:
    collected: dict[str, list[Array]] = {}

    def work(name: str, source: str) -> None:
        c = compiled(source)
        collected[name] = call(c, *inputs(c))

    twice = (*SOURCES.items(), *((f"{name} again", source) for name, source in SOURCES.items()))
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(work, *item))
        for item in twice
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name, source in SOURCES.items():
        c = compiled(source)
        for results in (collected[name], collected[f"{name} again"]):
            for a, b in zip(results, call(c, *inputs(c)), strict=True):
                assert a.tobytes() == b.tobytes()


def test_strict_refuses_library_calls() -> None:
    options = "{axis=0, descending=false, stable=true}"
    source = f"graph f(x: f32[n]) {{\n a = extern.sort(x) {options}\n return a\n}}"
    with knobs.config(strict=True), pytest.raises(UnsupportedError):
        compiled(source)


def test_hints_are_only_hints() -> None:
    """A plan made for one size is right for all."""
    for hints in ({"n": 1, "m": 1}, {"n": 1 << 20, "m": 1 << 20}, {"n": 1 << 20}, {}):
        for source in SOURCES.values():
            c = compiled(source, hints=hints)
            for n, m in ((1, 1), (50, 300), (300, 2)):
                arrays = inputs(c, n, m)
                for a, b in zip(call(c, *arrays), interpret(c.graph, arrays), strict=True):
                    assert np.allclose(a, b, rtol=1e-4, atol=1e-4), (hints, n, m)


def test_the_journal_records_what_was_lowered_and_emitted(fresh: Path) -> None:
    c = compiled(SOFTMAX, journal=Journal(full=True))
    lowered, emitted = c.journal.of(KernelLowered), c.journal.of(KernelEmitted)
    assert [f.name for f in lowered] == [k.name for k in c.kernels if k]
    assert [f.text for f in lowered] == [text(k) for k in c.kernels if k]
    assert all(f.seconds > 0 for f in (*lowered, *emitted))
    misses, stored = c.journal.of(CacheMiss), c.journal.of(CacheStored)
    assert [f.key for f in misses] == [f.key for f in stored]


def test_texts_are_written_for_a_full_journal_only(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing a kernel down takes as long as a tenth of lowering and generating it."""
    written: list[str] = []

    def write(kernel: Kernel) -> str:
        written.append(kernel.name)
        return text(kernel)

    monkeypatch.setattr(driver, "kernel_text", write)
    compiled(SOFTMAX)
    assert not written
    c = compiled(SOFTMAX, journal=Journal(full=True))
    assert written == [k.name for k in c.kernels if k]
