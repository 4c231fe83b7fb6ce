"""Plans from the cache: a later process runs the same bits, or plans anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.explain.programs import SIZES, TEXTS, arrays
from tests.strategies.comparison import same_bits
from tests.strategies.graphs import Program, graphs

import smelt as sm
from smelt import knobs
from smelt.compiler import driver, warm
from smelt.compiler.warm import CachedProgram
from smelt.errors import SmeltError, UnsupportedError
from smelt.explain.api import report
from smelt.fusion.text import text as plan_text
from smelt.graph.interp import solve_sizes
from smelt.graph.ir import Graph, Node
from smelt.graph.text import parse
from smelt.graph.walk import input_size_names
from smelt.journal.facts import CacheHit, CacheMiss, KernelEmitted, subscribe
from smelt.python.origin import Origin
from smelt.runtime import code
from smelt.runtime.cache import SUFFIX, Cache, decode, encode
from smelt.runtime.executable_format import Recipe

Array = np.ndarray[Any, Any]
RELU = """graph relu(x: f32[n], b: f32[n]) {
  v0 = add(x, b)
  v1 = max(v0, 0.0:f32)
  v2 = log(v1)
  return v2
}"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache of the test's own; what is known of processor and pool belongs to another one."""
    driver.host()
    code.forget()
    with knobs.config(cache_dir=str(tmp_path / "cache"), verify=False):
        yield tmp_path / "cache"


def next_process() -> None:
    """Forget what this process has in memory."""
    code.forget()
    Cache._defaults.clear()  # pyright: ignore[reportPrivateUsage]


def start(source: str | Graph = RELU, donate: tuple[int, ...] = (), **hints: int) -> Any:
    graph = source if isinstance(source, Graph) else parse(source)
    named = {n: hints.get(n, SIZES.get(n, 64)) for n in input_size_names(graph)}
    return warm.compile(graph, hints=named, donate=donate)


def again(source: str | Graph = RELU, donate: tuple[int, ...] = (), **hints: int) -> Any:
    next_process()
    return start(source, donate, **hints)


def run(compiled: Any, inputs: list[Array], graph: Graph) -> list[Array]:
    sizes = solve_sizes(graph, inputs)
    return compiled.run(inputs, tuple(sizes[n] for n in compiled.size_names))


def misses(act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What `act` gives, and why anything was not found in the cache."""
    reasons: list[str] = []
    stop = subscribe(lambda f: reasons.append(f.reason) if isinstance(f, CacheMiss) else None)
    try:
        return act(), reasons
    finally:
        stop()


HEAD = """graph head(x: f32[n,d], w: f32[v,d], g: f32[n,1]) {
  z = contract(x, w) {spec="m,k; n,k -> m,n"}
  a = reduce.max(z) {axes=(1,)}
  b = reshape(a) {shape=(n,1)}
  c = sub(z, b)
  e = exp(c)
  s = reduce.sum(e) {axes=(1,)}
  t = reshape(s) {shape=(n,1)}
  p = div(e, t)
  q = mul(p, g)
  dx = contract(q, w) {spec="m,n; n,k -> m,k"}
  dw = contract(q, x) {spec="m,n; m,k -> n,k"}
  return s, dx, dw
}"""


def test_chunked_plans_load_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their body, without planning; as many rows as there are, whatever the first call had."""
    tiny = replace(driver.host(), l3_bytes=1 << 14)
    monkeypatch.setattr(warm, "host", lambda: tiny)
    graph = parse(HEAD)
    first = start(HEAD, n=150, d=24, v=301)
    assert first.plan.chunked_clusters
    rng = np.random.default_rng(0)
    for rows in (150, 1, 49, 0):
        inputs = [
            rng.standard_normal(s).astype(np.float32) for s in ((rows, 24), (301, 24), (rows, 1))
        ]
        wanted = run(first, inputs, graph)
        actual = again(HEAD, n=150, d=24, v=301)
        assert isinstance(actual, CachedProgram)
        assert all(map(same_bits, run(actual, inputs, graph), wanted))
    assert plan_text(actual.plan) == plan_text(first.plan)


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEXTS)
def test_a_stored_plan_runs_and_explains_as_the_first_one(name: str) -> None:
    graph = parse(TEXTS[name])
    inputs = arrays(graph.inputs, SIZES)
    cold = start(graph)
    second = again(graph)
    assert not isinstance(cold, CachedProgram)
    assert isinstance(second, CachedProgram)
    for a, b in zip(run(cold, inputs, graph), run(second, inputs, graph), strict=True):
        assert same_bits(a, b)
    assert "_recompiled" not in vars(second), "nothing was planned for a run"
    one, other = report(cold, SIZES), report(second, SIZES)
    assert one.to_json(times=False) == other.to_json(times=False)
    assert second.plan is second.plan
    assert plan_text(cold.plan) == plan_text(second.plan)
    kinds = {k.compile.cache for k in other.data.kernels}
    assert kinds <= {"hit-disk", "none"}
    assert not second.journal.of(KernelEmitted)


@given(graphs(max_nodes=10))
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
def test_random_programs_run_the_same_from_their_recipe(program: Program) -> None:
    graph, given_arrays = program
    cold = start(graph)
    facts = json.loads(json.dumps(cold.recipe.to_data()))
    assert json.loads(json.dumps(Recipe.from_data(facts).to_data())) == facts
    second = again(graph)
    assert isinstance(second, CachedProgram)
    for a, b in zip(run(cold, given_arrays, graph), run(second, given_arrays, graph), strict=True):
        assert same_bits(a, b)


def test_library_calls_are_stored_as_text() -> None:
    graph = parse(TEXTS["library"])
    cold, second = start(graph), again(graph)
    assert isinstance(second, CachedProgram)
    assert [type(s).__name__ for s in second.recipe.steps].count("CallUse") == 1
    given_arrays = arrays(graph.inputs, SIZES)
    assert same_bits(run(cold, given_arrays, graph)[0], run(second, given_arrays, graph)[0])


def test_donated_inputs_are_written_over_by_a_stored_plan() -> None:
    graph = parse(RELU)
    start(graph, (0,))
    second = again(graph, (0,))
    x = np.ones(500, "f4")
    (y,) = second.run([x, x.copy()], (500,))
    assert y is x
    assert isinstance(again(graph), driver.Compiled), "without the gift it is another plan"


def test_other_sizes_take_other_variants_of_the_code() -> None:
    """Few rows and results beyond all caches have code of their own, also from a stored plan."""
    source = """graph f(x: f32[n,k], w: f32[k,64]) {
  v0 = contract(x, w) {spec="m,k; k,n -> m,n"}
  v1 = tanh(v0)
  return v1
}"""
    graph = parse(source)
    cold = start(graph, n=512, k=64)
    second = again(graph, n=512, k=64)
    rng = np.random.default_rng(0)
    for n in (1, 2, 40):
        x = rng.standard_normal((n, 64)).astype("f4")
        w = rng.standard_normal((64, 64)).astype("f4")
        for c in (cold, second):
            assert np.allclose(c.run([x, w], (n, 64))[0], np.tanh(x @ w), atol=1e-5)
        assert same_bits(cold.run([x, w], (n, 64))[0], second.run([x, w], (n, 64))[0])
    third = again(graph, n=512, k=64)
    x = rng.standard_normal((1, 64)).astype("f4")
    actual, reasons = misses(lambda: third.run([x, w], (1, 64)))
    assert not reasons
    assert same_bits(actual[0], cold.run([x, w], (1, 64))[0])


# ---- what decides --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        {"rounding": "fast"},
        {"fuse": False},
        {"must_fuse": "add+log"},
        {"never_fuse": "add+log"},
        {"max_extra_memory": "1GiB"},
        {"target": "portable"},
        {"opt_level": 1},
        {"strict": True},
    ],
    ids=str,
)
def test_settings_that_decide_are_part_of_the_key(setting: dict[str, Any]) -> None:
    start()
    with knobs.config(**setting):
        other, reasons = misses(again)
        assert not isinstance(other, CachedProgram)
        assert isinstance(again(), CachedProgram)
    assert "settings" in reasons[0] or "processor" in reasons[0]
    assert isinstance(again(), CachedProgram)


@pytest.mark.parametrize("setting", [{"threads": 1}, {"spin_us": 0}, {"quiet": True}], ids=str)
def test_settings_of_a_run_are_not(setting: dict[str, Any]) -> None:
    start()
    with knobs.config(**setting):
        assert isinstance(again(), CachedProgram)


def test_sizes_and_version_decide_and_names_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    start(n=64)
    assert isinstance(again(n=64), CachedProgram)
    assert isinstance(again(RELU.replace("graph relu", "graph other"), n=64), CachedProgram)
    actual, reasons = misses(lambda: again(n=65))
    assert not isinstance(actual, CachedProgram)
    assert reasons[0] == "changed: sizes"
    monkeypatch.setattr(warm, "package_identity", lambda: "0.0.0 other")
    actual, reasons = misses(lambda: again(n=65))
    assert not isinstance(actual, CachedProgram)
    assert reasons[0] == "changed: version"
    _, reasons = misses(lambda: again(RELU.replace("log", "exp")))
    assert reasons[0] == "no entry"


def test_lines_decide_where_a_setting_names_one() -> None:
    def placed(line: int) -> Graph:
        graph = parse(RELU)
        for node in graph.nodes():
            node.origin = Origin("/model.py", line)
        return graph

    start(placed(1))
    assert isinstance(again(placed(2)), CachedProgram)
    with knobs.config(never_fuse="model.py:1+model.py:1"):
        start(placed(1))
        assert isinstance(again(placed(1)), CachedProgram)
        assert not isinstance(again(placed(2)), CachedProgram)


def test_with_verification_everything_is_rebuilt() -> None:
    start()
    next_process()
    with knobs.config(verify=True):
        assert not isinstance(start(), CachedProgram)


def test_strict_refuses_as_ever() -> None:
    start(TEXTS["library"])
    with knobs.config(strict=True), pytest.raises(UnsupportedError):
        again(TEXTS["library"])


# ---- damage --------------------------------------------------------------------------------------


def stored(folder: Path, what: str) -> list[Path]:
    """The files of entries of a kind."""
    results: list[Path] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        meta = decode(path.read_bytes())[1].meta
        if (meta.get("what") or ("kernel" if "functions" in meta else "")) == what:
            results.append(path)
    return results


def flip(content: bytes) -> bytes:
    middle = len(content) * 2 // 3
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": flip,
    "old format": lambda content: content[:8] + b"\x00\x00\x00\x00" + content[12:],
    "zeroed tail": lambda content: content[: len(content) // 2] + bytes(len(content) // 2),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("what", ["plan", "kernel"])
def test_a_damaged_entry_is_reported_replaced_and_never_used(
    folder: Path, what: str, damage: str
) -> None:
    graph = parse(RELU)
    cold = start(graph)
    given_arrays = arrays(graph.inputs, {"n": 50})
    (path,) = stored(folder, what)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    actual, reasons = misses(lambda: again(graph))
    assert not isinstance(actual, CachedProgram)
    assert any(reason.startswith("damaged: ") for reason in reasons)
    for a, b in zip(run(cold, given_arrays, graph), run(actual, given_arrays, graph), strict=True):
        assert same_bits(a, b)
    assert isinstance(again(graph), CachedProgram), "repaired"
    if what == "plan":
        assert path.read_bytes() == whole


MEANT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing": lambda recipe: {},
    "another form": lambda recipe: recipe | {"format": 99},
    "no list": lambda recipe: recipe | {"values": 3},
    "no expression": lambda recipe: recipe | {"arena": ["import os"]},
    "unknown type": lambda recipe: recipe | {"values": [["f7", [], "input", 0, "0", -1]]},
    "no graph": lambda recipe: (
        recipe | {"steps": [{"call": "k", "graph": "graph (", "inputs": [], "outputs": []}]}
    ),
}


@pytest.mark.parametrize("meaning", MEANT)
def test_a_whole_entry_that_is_no_plan_is_not_used(folder: Path, meaning: str) -> None:
    start()
    (path,) = stored(folder, "plan")
    key, entry = decode(path.read_bytes())
    meta = entry.meta | {"recipe": MEANT[meaning](entry.meta["recipe"])}
    path.write_bytes(encode(key, meta, b""))
    actual, reasons = misses(again)
    assert not isinstance(actual, CachedProgram)
    assert "a plan of another form" in reasons
    assert isinstance(again(), CachedProgram)


def test_swapped_entries_are_of_another_key(folder: Path) -> None:
    start(RELU)
    start(TEXTS["softmax"])
    one, other = stored(folder, "plan")
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    actual, reasons = misses(lambda: again(RELU))
    assert not isinstance(actual, CachedProgram)
    assert "damaged: entry of another key" in reasons


def test_a_plan_whose_code_is_gone_is_rebuilt(folder: Path) -> None:
    start(TEXTS["apart"])
    for path in stored(folder, "kernel"):
        path.unlink()
    assert not isinstance(again(TEXTS["apart"]), CachedProgram)
    assert isinstance(again(TEXTS["apart"]), CachedProgram)


def test_upkeep_knows_plans(folder: Path) -> None:
    start()
    cache = Cache.default()
    assert cache.info().entries == len(list(folder.glob(f"*{SUFFIX}")))
    assert not cache.verify()
    (path,) = stored(folder, "plan")
    path.write_bytes(path.read_bytes()[:-1])
    assert list(cache.verify()) == [path.name]
    assert cache.clear() == len(list(folder.glob("*"))) or not list(folder.glob(f"*{SUFFIX}"))
    assert not isinstance(again(), CachedProgram)


def test_without_a_cache_nothing_is_stored(folder: Path) -> None:
    with knobs.config(cache=False):
        start()
    assert not folder.exists()


def test_a_graph_without_a_text_is_compiled_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_text(*_: Any, **__: Any) -> str:
        raise SmeltError("no text")

    monkeypatch.setattr(warm, "text", no_text)
    assert not isinstance(start(), CachedProgram)


def test_threads_that_start_together_agree() -> None:
    graph = parse(TEXTS["softmax"])
    start(graph)
    next_process()
    given_arrays = arrays(graph.inputs, SIZES)
    results: list[Array] = []

    def work() -> None:
        results.append(run(start(graph), given_arrays, graph)[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8
    assert all(same_bits(r, results[0]) for r in results)


# ---- real processes ------------------------------------------------------------------------------

SCRIPT = """
import hashlib, json, sys
import numpy as np
import smelt as sm

rng = np.random.default_rng(0)
x, w, b = (rng.standard_normal(s).astype("f4") for s in ((40, 96), (96, 32), (32,)))
programs = {
    "chain": (lambda x, b: sm.log(sm.maximum(x + b[0], 1)), (x, b)),
    "softmax": (lambda x: sm.nn.softmax(x, axis=-1), (x,)),
    "layer": (lambda x, w, b: sm.nn.gelu(x @ w + b), (x, w, b)),
    "attention": (lambda q, k, v: sm.nn.softmax(q @ k.T / 8, axis=-1) @ v, (x, x, x)),
    "sort": (lambda x: sm.sort(x * 2, axis=-1) + 1, (x,)),
}
found = {name: hashlib.sha256(np.asarray(sm.jit(f)(*a)).tobytes()).hexdigest()
         for name, (f, a) in programs.items()}
lazy = sm.asarray(x) * 2 + 1
found["lazy"] = hashlib.sha256(np.asarray(lazy).tobytes()).hexdigest()
heavy = [m for m in ("llvmlite.binding", "smelt.compiler.driver", "smelt.fusion", "smelt.lower",
                     "smelt.passes", "smelt.codegen") if m in sys.modules]
told = json.loads(sm.explain(*[programs["layer"][0], *programs["layer"][1]]).to_json(times=False))
print(json.dumps({"found": found, "heavy": heavy, "told": told["plan"]}))
"""


def process(folder: Path) -> dict[str, Any]:
    settings = {"SMELT_CACHE_DIR": str(folder), "SMELT_PROBE": "off", "SMELT_VERIFY": "0"}
    settings["PYTHONPATH"] = str(Path(warm.__file__).parents[2])
    settings["PYTHONDONTWRITEBYTECODE"] = ""  # as users run it
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_second_process_imports_no_compiler_and_gives_the_same_bits(tmp_path: Path) -> None:
    first, second = process(tmp_path / "own"), process(tmp_path / "own")
    assert "smelt.compiler.driver" in first["heavy"]
    assert second["heavy"] == []
    assert second["found"] == first["found"]
    assert second["told"] == first["told"]


def test_the_front_end_s_functions_explain_from_a_stored_plan() -> None:
    x = np.linspace(0, 1, 5000, dtype="f4").reshape(50, 100)

    def norm(x: Any) -> Any:
        return sm.nn.rms_norm(x, sm.ones(100))

    first = sm.jit(norm)
    first(x)
    next_process()
    second = sm.jit(norm)
    second(x)
    (trace,) = next(iter(second.traces.values()))
    assert isinstance(trace.executable, CachedProgram)
    text = sm.explain(second, x)
    assert "norm" in str(text)
    assert str(text.why("square", "sum"))
    assert {f.place for f in trace.executable.journal.of(CacheHit)} == {"disk"}


def test_nodes_keep_their_lines(folder: Path) -> None:
    graph = parse(RELU)
    start(graph)
    next_process()
    marked = parse(RELU)
    for node in marked.nodes():
        node.origin = Origin("/other.py", 7)
    nodes: list[Node] = [n for c in start(marked).plan.clusters for n in c.nodes]
    assert nodes
    assert all(n.origin is not None and n.origin.place[1] == 7 for n in nodes)
