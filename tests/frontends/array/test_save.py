"""Saved programs run in a process without LLVM and PyTorch, with the bits of the saving one."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.programs import finance, images, integers, learning, physics
from tests.programs.rows import PROGRAMS

import smelt as sm
from smelt.errors import (
    ArgumentError,
    GuardError,
    OutsideError,
    ProgramFileError,
    ProgramMachineError,
    ProgramTrustError,
    SaveError,
    SmeltError,
    StructureError,
    UnsupportedError,
)
from smelt.frontends.array import program_files as loading
from smelt.frontends.array.tree import flatten
from smelt.saved import plans
from smelt.saved.file import ProgramFile, Writer

FAMILIES = (finance, images, integers, learning, physics)
BATCH = [name for k, name in enumerate(PROGRAMS) if k % 14 == 0]
RUNNER = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("llvmlite", "torch"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import numpy as np
import smelt as sm
from smelt.frontends.array.tree import flatten

results = {}
for name, count in json.load(open(sys.argv[1])).items():
    arrays = np.load(f"{sys.argv[2]}/{name}.npz")
    program = sm.load(f"{sys.argv[2]}/{name}.smelt")
    leaves = flatten(program(*[arrays[f"x{k}"] for k in range(count)]))[0]
    results[name] = [np.asarray(x).tobytes() == arrays[f"y{k}"].tobytes()
                     for k, x in enumerate(leaves)]
json.dump(results, sys.stdout)
"""


def _f32(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _save_corpus(names: list[str], folder: Path) -> dict[str, int]:
    """Save programs with their arguments and results; return their numbers of arguments."""
    counts: dict[str, int] = {}
    for name in names:
        program = PROGRAMS[name]
        arrays = program.make(np.random.default_rng(0), 20, np.float32)
        f = sm.jit(lambda *xs, program=program: program.run(sm, *xs))
        results = [np.asarray(y) for y in flatten(f(*arrays))[0]]
        sm.save(f, folder / f"{name}.smelt", *arrays)
        named = {f"x{k}": x for k, x in enumerate(arrays)}
        np.savez(folder / f"{name}.npz", **named, **{f"y{k}": y for k, y in enumerate(results)})
        counts[name] = len(arrays)
    return counts


def _check_in_fresh_process(names: list[str], folder: Path) -> None:
    counts = _save_corpus(names, folder)
    (folder / "counts.json").write_text(json.dumps(counts))
    environment = {**os.environ, "SMELT_CACHE_DIR": str(folder / "cache")}
    output = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder / "counts.json"), str(folder)],
        env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stderr
    equal = json.loads(output.stdout)
    assert equal.keys() == counts.keys()
    assert all(all(same) and same for same in equal.values()), equal


def test_programs_load_without_llvm_and_give_equal_bits(tmp_path: Path) -> None:
    _check_in_fresh_process(BATCH, tmp_path)


@pytest.mark.nightly
def test_all_programs_load_without_llvm_and_give_equal_bits(tmp_path: Path) -> None:
    _check_in_fresh_process([*PROGRAMS], tmp_path)


# ---- one program ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights() -> np.ndarray[Any, Any]:
    return _f32(24, 8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, weights: Any) -> Path:
    """A layer whose weights are a constant, for all batches."""
    w = sm.asarray(weights)

    def layer(x: Any, b: Any, *, scale: float = 2.0) -> Any:
        h = sm.maximum(x @ w + b, 0) * scale
        return {"h": h, "sums": (sm.sum(h, axis=1), x.shape[0])}

    path = tmp_path_factory.mktemp("saved") / "layer.smelt"
    sm.save(layer, path, sm.spec("f32[n,24]"), sm.spec("f32[8]"))
    return path


def test_every_size_runs_one_too(saved: Path, weights: Any) -> None:
    layer = sm.load(saved)
    b = _f32(8, seed=1)
    for n in (0, 1, 2, 7, 300):
        x = _f32(n, 24, seed=n)
        result = layer(x, b=b)
        want = np.maximum(x @ weights + b, 0) * np.float32(2)
        np.testing.assert_allclose(np.asarray(result["h"]), want, rtol=1e-5, atol=1e-5)
        assert result["sums"][1] == n
    transposed = np.asfortranarray(_f32(7, 24, seed=7))
    same = layer(transposed, b)["h"]
    assert np.asarray(same).tobytes() == np.asarray(layer(_f32(7, 24, seed=7), b)["h"]).tobytes()


def test_repeated_calls_and_out(saved: Path) -> None:
    layer = sm.load(saved)
    x, b = _f32(5, 24), _f32(8)
    first = np.asarray(layer(x, b)["h"]).copy()
    for _ in range(5):
        assert np.asarray(layer(x, b)["h"]).tobytes() == first.tobytes()


def test_constants_lie_in_the_file_and_are_packed_once(saved: Path) -> None:
    file = ProgramFile(saved)
    stored = [e["recording"]["constants"] for e in file.facts["programs"]["layer"]]
    assert stored[0] == stored[1]  # both recordings share them


def test_other_arguments_are_refused_with_what_was_saved(saved: Path) -> None:
    layer = sm.load(saved)
    assert repr(layer).startswith("<smelt.load: layer(x: f32[n,24], b: f32[8]; x: f32[1,24]")
    b = _f32(8)
    with pytest.raises(GuardError, match=r"x: f32\[n,24\].*float64\[2, 24\]"):
        layer(np.ones((2, 24)), b)
    with pytest.raises(GuardError, match=r"float32\[2, 25\]"):
        layer(_f32(2, 25), b)
    with pytest.raises(StructureError, match="nested otherwise"):
        layer([_f32(2, 24)], b)
    with pytest.raises(StructureError, match="nested otherwise"):
        layer(_f32(2, 24), b, scale=3.0)  # the default is a constant of the file
    with pytest.raises(TypeError, match="missing a required argument"):
        layer(_f32(2, 24))


def test_it_explains_itself_where_llvm_is_installed(saved: Path) -> None:
    layer = sm.load(saved)
    report = sm.explain(layer, _f32(64, 24), _f32(8), target="portable")
    assert report.kernels[0].llvm
    assert "layer" in layer.as_text()


def test_the_report_is_in_the_file(saved: Path, tmp_path: Path) -> None:
    """Whoever loads it reads decisions, without planning: a process without LLVM does."""
    script = f"""
import sys
sys.modules["llvmlite"] = None
import numpy as np
import smelt as sm
layer = sm.load({str(saved)!r})
assert "kernel k0(" in str(layer) and "became" in str(layer)
for arguments in [(), (np.ones((64, 24), np.float32), np.ones(8, np.float32))]:
    report = sm.explain(layer, *arguments)
    answer = report.why("maximum", "sum")
    assert answer.reasons and report.decisions[0].code in report.text(4)
    assert all("/" not in (n.place.file if n.place else "") for n in report.data.nodes)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_graph_alone_is_compiled_for_strangers(saved: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.smelt"
    stranger.write_bytes(saved.read_bytes())
    stranger.chmod(0o666)
    with pytest.raises(ProgramTrustError):
        sm.load(stranger)
    x, b = _f32(5, 24), _f32(8)
    want = np.asarray(sm.load(saved)(x, b)["h"])
    assert np.asarray(sm.load(stranger, trust="graph")(x, b)["h"]).tobytes() == want.tobytes()


def test_a_machine_without_the_instructions_takes_the_next_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.smelt"
    sets = ("avx2", "portable")
    sm.save(lambda x: sm.exp(x) * 2, path, sm.spec("f32[n]"), isa=sets)
    x = _f32(100)
    want = np.exp(x) * 2
    np.testing.assert_allclose(np.asarray(sm.load(path)(x)), want, rtol=1e-6)
    for missing, isa in (([], "avx2"), (["avx2"], "portable")):
        monkeypatch.setattr(
            plans, "missing_features", lambda f, gone=missing: sorted({*gone} & {*f})
        )
        loaded: Any = sm.load(path)
        assert loaded.calls[0].traces[0].compiled.target.isa == isa
        np.testing.assert_allclose(np.asarray(loaded(x)), want, rtol=1e-6)
    monkeypatch.setattr(plans, "missing_features", lambda f: ["sse2"])
    with pytest.raises(ProgramMachineError, match=r"avx2, portable.*lacks sse2"):
        sm.load(path)
    np.testing.assert_allclose(np.asarray(sm.load(path, compile=True)(x)), want, rtol=1e-6)


def test_several_programs_and_plans(tmp_path: Path) -> None:
    path = tmp_path / "both.smelt"
    programs = {
        "double": (lambda x: x * 2, [sm.spec("f32[n]")]),
        "total": (sm.sum, [sm.spec("f32[n]")]),
    }
    sm.save(programs, path, hints=[{"n": 8}, {"n": 1 << 20}])
    both: Any = sm.load(path)
    assert list(both) == ["double", "total"]
    assert [t.hints["n"] for t in both.double.calls[0].traces] == [8, 1 << 20]
    assert both.double.calls[0].trace_for((10,)).hints["n"] == 8
    assert both.double.calls[0].trace_for((10**6,)).hints["n"] == 1 << 20
    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(both.double(x)), x * 2)
    assert float(both["total"](x)) == 45
    with pytest.raises(UnsupportedError, match="2 programs: double, total"):
        both(x)
    with pytest.raises(AttributeError, match="double, total"):
        _ = both.nothing


class Pair(NamedTuple):
    """Two results by name."""

    left: Any
    right: Any


def test_containers_numbers_and_errors_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"

    def f(p: Pair, k: float, rows: Any) -> Any:
        return Pair(p.left * k, {"at": p.right[rows], "pair": (None, 3, 1 + 2j)})

    x, rows = _f32(6, 4), np.array([0, 5])
    sm.save(f, path, Pair(x, x), 2.5, rows)
    loaded: Any = sm.load(path)
    result = loaded(Pair(x, x), 4.0, rows)
    assert type(result).__name__ == "Pair"
    np.testing.assert_array_equal(np.asarray(result.left), x * 4)
    np.testing.assert_array_equal(np.asarray(result.right["at"]), x[rows])
    assert result.right["pair"] == (None, 3, 1 + 2j)
    with pytest.raises(OutsideError, match="position 6 of an axis of 6") as caught:
        loaded(Pair(x, x), 4.0, np.array([0, 6]))
    assert caught.value.origin.file == Path(__file__).name
    assert "p.right[rows]" in caught.value.origin.text


@dataclasses.dataclass
class Hidden:
    """A result whose field no named tuple can have."""

    _left: Any
    right: Any


def test_dataclasses_with_hidden_fields(tmp_path: Path) -> None:
    sm.save(lambda x: Hidden(x, x * 2), tmp_path / "f.smelt", sm.spec("f32[n]"))
    loaded: Any = sm.load(tmp_path / "f.smelt")
    result = loaded(_f32(3))
    assert np.array_equal(np.asarray(result.right), 2 * np.asarray(result._left))


def test_static_arguments_are_constants_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"

    @sm.jit(static_argnames=("mode", "limit"))
    def f(x: Any, mode: str = "double", *, limit: float = 0.0) -> Any:
        return sm.copysign(x * 2 if mode == "double" else x * 3, limit)

    x = np.arange(1, 4, dtype=np.float32)
    sm.save(f, path, sm.spec("f32[n]"), mode="triple", limit=-1.0)
    loaded: Any = sm.load(path)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(loaded(x, "triple", limit=-1.0)), -3 * x)
    for mode, limit in (("double", -1.0), ("triple", 1.0)):
        with pytest.raises(StructureError, match="static ones have other values"):
            loaded(x, mode, limit=limit)
    with pytest.raises(SaveError, match="static argument 1 of type tuple"):
        sm.save(f, path, x, ("triple",))


def test_numbers_are_accepted_where_arrays_without_axes_were_saved(tmp_path: Path) -> None:
    """Floats are rounded as operators round them; what does not fit is refused."""
    specs = [sm.spec(t) for t in ("f32[n]", "f32[]", "i8[]", "bool[]")]
    sm.save(lambda x, s, i, b: (x * s + i, b), tmp_path / "f.smelt", *specs)
    loaded: Any = sm.load(tmp_path / "f.smelt")
    x = np.arange(5, dtype=np.float32)
    for k in range(6):  # repeated calls too, of several numbers
        y, b = loaded(x, 0.1 * k, i=k, b=k > 2)
        np.testing.assert_array_equal(np.asarray(y), x * np.float32(0.1 * k) + k)
        assert bool(b) == (k > 2)
    np.testing.assert_array_equal(np.asarray(loaded(x, 2, np.int8(1), True)[0]), x * 2 + 1)
    for numbers in [(1e300, 1, True), (2**24 + 1, 1, True), (0.1, 128, True), (0.1, 1.0, True)]:
        with pytest.raises(GuardError):
            loaded(x, *numbers)
    for b in (0, 1.0):
        with pytest.raises(GuardError):
            loaded(x, 0.1, 1, b)


def test_a_refusal_lists_the_nearest_recordings(tmp_path: Path) -> None:
    """Of three sizes there are eleven recordings; the nearest one is the first."""
    sm.save(lambda x: x + 1, tmp_path / "f.smelt", sm.spec("f32[n,m,4,k]"))
    loaded: Any = sm.load(tmp_path / "f.smelt")
    near = r"^E203 guard failed: x: f32\[1,m,4,1\]; or .*; or 8 more, see print\(loaded\) does"
    with pytest.raises(GuardError, match=near) as caught:
        loaded(_f32(1, 3, 3, 1))
    assert len(caught.value.message) < 200
    with pytest.raises(GuardError, match=r"x: f32\[n,m,4,k\]; or"):
        loaded(np.ones((2, 3, 4, 5)))


def test_a_size_of_one_that_the_function_does_not_take(tmp_path: Path) -> None:
    sm.save(lambda x: x[0] + x[1], tmp_path / "f.smelt", sm.spec("f32[n]"))
    loaded: Any = sm.load(tmp_path / "f.smelt")
    assert float(loaded(np.ones(5, np.float32))) == 2
    with pytest.raises(GuardError):
        loaded(np.ones(1, np.float32))


def test_results_may_replace_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sm.save(lambda x, y: (y[::-1] + x, x * 2), tmp_path / "f.smelt", *[sm.spec("f32[n]")] * 2)
    loaded: Any = sm.load(tmp_path / "f.smelt")
    monkeypatch.delattr("smelt.frontends.array.engine.compile_graph")
    for _ in range(3):
        x, y = _f32(9), _f32(9, seed=1)
        want = y[::-1] + x, x * 2
        loaded(x, y, out=(y, x))
        np.testing.assert_array_equal(np.asarray([y, x]), want)


def test_executables_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"
    x = _f32(33)
    compiled = sm.jit(lambda x: sm.tanh(x) + 1, must=True).lower(x).compile()
    compiled.save(path)
    loaded: Any = sm.load(path)
    assert np.asarray(loaded(x)).tobytes() == np.asarray(compiled(x)).tobytes()


def test_what_cannot_be_saved_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"
    with pytest.raises(ArgumentError, match="isa"):
        sm.save(sm.sum, path, _f32(3), isa="avx1024")
    with pytest.raises(ArgumentError, match=r"hints = m, expected of k, n"):
        sm.save(sm.sum, path, sm.spec("f32[n,k]"), hints={"n": 3, "m": 4})
    with pytest.raises(ArgumentError, match="function"):
        sm.save(3, path)  # type: ignore[arg-type]
    static = sm.jit(lambda x, t: x, static_argnames="t")
    with pytest.raises(SaveError, match="static argument"):
        sm.save(static, path, _f32(3), Path())
    with pytest.raises(SaveError, match="keys"):
        sm.save(lambda x: {(1, 2): x + 1}, path, _f32(3))
    assert not path.exists()


# ---- hostile files -------------------------------------------------------------------------------

ODD = (None, -1, 2**62, "", "x", "n" * 5000, [], {}, 1.5, True, [[]], "__import__('os')", "n.real")


def _mutated(data: Any, rng: random.Random) -> Any:
    """Return data with one part replaced."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(sorted(data))
        return data | {key: _mutated(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.9:
        k = rng.randrange(len(data))
        return [*data[:k], _mutated(data[k], rng), *data[k + 1 :]]
    return rng.choice(ODD)


def _copied(file: ProgramFile, facts: Any, path: Path, texts: dict[int, bytes]) -> None:
    writer = Writer()
    for number, section in enumerate(file.sections):
        data = file.read(number)
        # Distinct contents keep their numbers.
        assert writer.add(texts.get(number, data) + b"") == number or section.length == 0
    writer.write(path, facts)


def _try_mutants(saved: Path, tmp_path: Path, count: int) -> None:
    file, path = ProgramFile(saved), tmp_path / "mutant.smelt"
    graph = file.facts["programs"]["layer"][0]["recording"]["graph"]
    refused = 0
    for seed in range(count):
        rng = random.Random(seed)
        texts: dict[int, bytes] = {}
        facts = file.facts
        if seed % 3 == 0:  # a graph that says something else
            text = bytearray(file.read(graph))
            for _ in range(rng.randint(1, 4)):
                text[rng.randrange(len(text))] = rng.choice(b"0123456789nx(){},[]:=%\xff ")
            texts[graph] = bytes(text)
        else:
            facts = facts | {"programs": _mutated(facts["programs"], rng)}
        _copied(file, facts, path, texts)
        try:
            loaded: Any = sm.load(path, trust="graph")
            if isinstance(loaded, loading.LoadedFunction):
                loaded.calls[0].fits([])
        except (SmeltError, ValueError):
            refused += 1
    assert refused > count // 3


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    """A formula of a stranger may not make kernels read past an argument."""
    path, x = tmp_path / "f.smelt", _f32(4)
    sm.save(lambda x: x * 2, path, sm.spec("f32[n]"))
    file = ProgramFile(path)
    (entries,) = file.facts["programs"].values()
    parameter, _ = entries[0]["recording"]["match"]
    for lie in (f"({parameter} * 3,)", f"(-{parameter},)", f"({parameter}, 2)", "()"):
        entries[0]["recording"]["match"] = [parameter, lie]
        _copied(file, file.facts, tmp_path / "lie.smelt", {})
        loaded: Any = sm.load(tmp_path / "lie.smelt", trust="graph")
        with pytest.raises(ProgramFileError, match="sizes"):
            loaded(x)


def _chain(x: Any, y: Any) -> Any:
    """Products with values in memory between them, which live one after another."""
    a = sm.tanh(x @ y)
    b = sm.exp(a @ sm.matrix_transpose(y)) + a.sum()
    return sm.tanh(b @ y) @ sm.matrix_transpose(b @ y), a.sum(axis=0)


LIES: dict[str, tuple[list[Any], Any]] = {
    "a value of": (["steps", 0, "values", "x"], 99),
    "an input of another type": (["values", 0, "shape"], ["n", 7]),
    "launches": (["launches", 0], [0, 0]),
    "a result numbered": (["outputs", 0], -1),
    "3 results, not 2": (["outputs"], [0, 0, 0]),
    "a size that is not one of": (["arena", 0], "q*4"),
    "inputs that are not": (["values", 1, "number"], 5),
    "a value in 'nowhere'": (["values", 0, "place"], "nowhere"),
    "outside of its memory": (["arena", slice(None)], "n*4"),
    "in the same memory": (["values", slice(None), "offset"], 0),
}


@pytest.mark.parametrize("reason", LIES)
def test_a_recipe_that_lies_is_refused(reason: str, tmp_path: Path) -> None:
    """Before an address is made of it: at the load, or at the first call of the sizes."""
    path, x, y = tmp_path / "f.smelt", _f32(300, 64), _f32(64, 48)
    sm.save(_chain, path, sm.spec("f32[n,64]"), sm.spec("f32[64,48]"), hints={"n": 300})
    file = ProgramFile(path)
    plan = file.facts["programs"]["_chain"][0]["plans"][0]
    recipe = json.loads(file.read(plan["recipe"]))
    (*way, last), lie = LIES[reason]
    places: list[Any] = [recipe]
    for key in way:
        places = [y for x in places for y in (x[key] if isinstance(key, slice) else [x[key]])]
    for place in places:
        for key in range(len(place)) if isinstance(last, slice) else [last]:
            if reason != "in the same memory" or place["place"] == "arena":
                place[key] = lie
    _copied(file, file.facts, tmp_path / "lie.smelt", {plan["recipe"]: json.dumps(recipe).encode()})

    def call() -> Any:
        loaded: Any = sm.load(tmp_path / "lie.smelt")
        return loaded(x, y)

    with pytest.raises(ProgramFileError, match=reason):
        call()


def test_facts_that_lie_are_typed_errors(saved: Path, tmp_path: Path) -> None:
    _try_mutants(saved, tmp_path, 60)


@pytest.mark.nightly
def test_many_facts_that_lie_are_typed_errors(saved: Path, tmp_path: Path) -> None:
    _try_mutants(saved, tmp_path, 2000)
