"""Shared libraries of programs, called as C does: bits, errors, memory, threads, unloading."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.test_chunking import words_back
from tests.saved import library_client as client
from tests.saved.library_client import Library, LibraryFailure, Program
from tests.saved.library_programs import PROGRAMS, SIZES, TABLE, specs, values

import smelt as sm
from smelt.errors import ArgumentError, LibraryError, ProgramMachineError, ProgramTrustError
from smelt.frontends.array.tree import flatten
from smelt.fusion import compose
from smelt.runtime import native_layout as layout
from smelt.runtime.executable_format import Recipe
from smelt.saved import programs
from smelt.saved.file import ProgramFile

QUICK = ("dense", "add", "integers", "embed", "passed", "numbers", "nested", "until")
FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parents[1] / "examples" / "library"

RUN_ALL = """
import sys
import numpy as np
from library_client import Library

library = Library(sys.argv[1], "many")
calls = np.load(sys.argv[2])
results = {}
for threads in (1, 2):
    for key in sorted({name.rpartition("/")[0] for name in calls.files}):
        program = library.open(key.partition("/")[0], threads=threads)
        count = sum(name.rpartition("/")[0] == key for name in calls.files)
        arguments = [calls[f"{key}/{k}"] for k in range(count)]
        for k, x in enumerate(program(*arguments)):
            results[f"{threads}/{key}/{k}"] = x
        program.close()
assert not [name for name in sys.modules if name.partition(".")[0] in ("smelt", "llvmlite")]
np.savez(sys.argv[3], **results)
"""

UNLOAD = """
import os, sys, time
import numpy as np
from library_client import Library, unload

def threads(count):
    # a thread that was joined may still be listed
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/task")) != count and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(os.listdir("/proc/self/task")) == count

x, b = np.ones((4000, 48), np.float32), np.zeros(32, np.float32)
before = len(os.listdir("/proc/self/task"))
for closes in (True, False, True):
    library = Library(sys.argv[1], "many")
    program = library.open("dense", threads=4)
    program(x, b)
    assert threads(before + 3)
    child = os.fork()
    if not child:  # it has no helpers
        program(x, b)
        program.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    if closes:
        program.close()
        assert threads(before)
    unload(library)
    assert "libmany" not in open("/proc/self/maps").read()
    assert threads(before)
"""


def build(folder: Path, names: Iterable[str]) -> Path:
    """Write `many.smelt`, its library and header."""
    programs = {name: (PROGRAMS[name][0], specs(PROGRAMS[name][1])) for name in names}
    sm.save(programs, folder / "many.smelt")
    sm.save_library(folder / "many.smelt", folder / "libmany.so")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `many.smelt`, its library and header."""
    return build(tmp_path_factory.mktemp("library"), QUICK)


@pytest.fixture
def library(folder: Path) -> Library:
    return Library(str(folder / "libmany.so"), "many")


@pytest.fixture
def dense(library: Library) -> Iterator[Program]:
    program = library.open("dense", threads=2)
    yield program
    program.close()


def in_fresh_process(script: str, *arguments: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


# ---- results -------------------------------------------------------------------------------------


def test_results_have_the_bits_of_the_loaded_programs(folder: Path, tmp_path: Path) -> None:
    check_bits(folder, tmp_path)


@pytest.mark.nightly
def test_all_programs_have_the_bits_of_the_loaded_ones(tmp_path: Path) -> None:
    check_bits(build(tmp_path, PROGRAMS), tmp_path)


def check_bits(folder: Path, tmp_path: Path) -> None:
    """Compare in a process without Smelt, for several sizes, on 1 and 2 threads."""
    loaded: Any = sm.load(folder / "many.smelt")
    calls: dict[str, Any] = {}
    wanted: dict[str, np.ndarray[Any, Any]] = {}
    for name in loaded:
        _, arguments = PROGRAMS[name]
        for k, sizes in enumerate(SIZES):
            passed = values(arguments, sizes)
            try:
                results = flatten(loaded[name](*passed))[0]
            except sm.errors.GuardError:  # an empty maximum
                continue
            calls |= {f"{name}/{k}/{i}": x for i, x in enumerate(passed)}
            wanted |= {f"{name}/{k}/{i}": np.asarray(x) for i, x in enumerate(results)}
    np.savez(tmp_path / "calls.npz", **calls)
    in_fresh_process(
        RUN_ALL, folder / "libmany.so", tmp_path / "calls.npz", tmp_path / "results.npz"
    )
    results = np.load(tmp_path / "results.npz")
    assert len(results.files) == 2 * len(wanted) > 0
    for key, want in wanted.items():
        for threads in (1, 2):
            x = results[f"{threads}/{key}"]
            assert (x.dtype, x.shape) == (want.dtype, want.shape), key
            assert x.tobytes() == want.tobytes(), key


def test_programs_say_what_they_take(library: Library, dense: Program) -> None:
    assert dense.text == "dense(x: f32[n,48], b: f32[32]) -> f32[n,32]"
    numbers = library.open("numbers")
    assert numbers.text == "numbers(x: f32[n], k: i64, s: f64) -> f32[n]"
    numbers.close()


def test_threads_call_programs_at_the_same_time(library: Library, dense: Program) -> None:
    other = library.open("add", threads=2)
    x = np.arange(48 * 700, dtype=np.float32).reshape(700, 48) % 7
    b = np.zeros(32, np.float32)
    (want,), (sums,) = dense(x, b), other(x, x)

    def run(k: int) -> bool:
        rows = 700 - k % 3
        (y,) = dense(x[:rows], b) if k % 2 else other(x[:rows], x[:rows])
        return bool(np.array_equal(y, (want if k % 2 else sums)[:rows]))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(200)))
    other.close()


def test_code_for_several_sets_and_plans_for_several_sizes(tmp_path: Path) -> None:
    """The first set that the processor has, and the plan of the nearest sizes."""
    f, arguments = PROGRAMS["dense"]
    hints = [{"n": 2}, {"n": 4000}]
    sm.save(f, tmp_path / "f.smelt", *specs(arguments), isa=("avx512", "avx2"), hints=hints)
    sm.save_library(tmp_path / "f.smelt", tmp_path / "libf.so", header=tmp_path / "other.h")
    assert "int f_run(" in (tmp_path / "other.h").read_text()
    loaded, program = sm.load(tmp_path / "f.smelt"), Library(str(tmp_path / "libf.so"), "f").open()
    for n in (3, 80, 3000):
        x, b = values(arguments, {"n": n})
        (y,) = program(x, b)
        assert y.tobytes() == np.asarray(loaded(x, b)).tobytes()
    program.close()


def test_blocks_of_rows_have_the_bits_of_the_loaded_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over rows and slices along either axis, of whole blocks, a shorter one and none."""
    targets: Any = vars(programs)["_targets"]
    monkeypatch.setattr(compose, "MAX_SLOWER", 9.0)
    monkeypatch.setattr(compose, "IO_TIME_FACTOR", 0.01)
    small = lambda isa: [replace(t, l3_bytes=1 << 14) for t in targets(isa)]  # noqa: E731
    monkeypatch.setattr(programs, "_targets", small)
    arguments = ["f32[2,50,24]", "f32[n,24]", "f32[n]", "bool[2,50]", "f32[2,n]"]
    sm.save(words_back, tmp_path / "f.smelt", *specs(arguments), hints={"n": 301})
    sm.save_library(tmp_path / "f.smelt", tmp_path / "libf.so")
    loaded, program = sm.load(tmp_path / "f.smelt"), Library(str(tmp_path / "libf.so"), "f").open()
    assert "ChunkedUse" in repr(recipe_of(tmp_path / "f.smelt").steps)
    for n in (301, 97, 2, 0):
        passed = values(arguments, {"n": n})
        for x, want in zip(program(*passed), loaded(*passed), strict=True):
            assert x.tobytes() == np.asarray(want).tobytes()
    program.close()


@pytest.fixture(scope="module")
def rotate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Program]]:
    """A program on complex arrays, loaded and as a library."""
    folder = tmp_path_factory.mktemp("complex")

    def f(z: Any, x: Any) -> Any:
        return z * sm.exp(1j * x), sm.conj(z), sm.abs(z), z

    sm.save(f, folder / "f.smelt", np.ones(5, np.complex128), np.ones(5))
    sm.save_library(folder / "f.smelt", folder / "libf.so")
    program = Library(str(folder / "libf.so"), "f").open()
    yield sm.load(folder / "f.smelt"), program
    program.close()


def test_complex_arrays_are_pairs(rotate: tuple[Any, Program]) -> None:
    """Results that are computed, partly an argument, beside real ones, and an argument."""
    loaded, program = rotate
    assert program.text.endswith("-> c128[n0]; c128[n0]; f64[n0]; c128[n0]")
    assert "f(z: c128[n0], x: f64[n0])" in program.text
    random = np.random.default_rng(3)
    for n in (5, 300):
        z, x = random.standard_normal(n) + 1j * random.standard_normal(n), random.random(n)
        for got, want in zip(program(z, x), loaded(z, x), strict=True):
            assert (got.dtype, got.tobytes()) == (
                np.asarray(want).dtype,
                np.asarray(want).tobytes(),
            )


def test_mistakes_with_complex_arrays_are_named(rotate: tuple[Any, Program]) -> None:
    _, program = rotate
    z, x = np.ones(5, np.complex128), np.ones(5)
    code, text = failure(lambda: program(x, x))
    assert (code, text.endswith("was called with f64[5], f64[5]")) == (
        layout.SMELT_ERROR_TYPE,
        True,
    )
    code, text = failure(lambda: program(z, x[:4]))
    assert (code, text.endswith("with c128[5], f64[4]")) == (layout.SMELT_ERROR_SIZE, True)
    with pytest.raises(LibraryFailure, match="takes 2 arguments and 4 results, not 1 and 4"):
        program(z)
    inputs, outputs = [client.tensor(z), client.tensor(x)], (client.Tensor * 4)()
    program.call("shapes", inputs, outputs)
    results = [np.empty(5, client.TYPES[y.dtype]) for y in outputs]
    for y, result in zip(outputs, results, strict=True):
        y.data = result.ctypes.data
    for tensor, k in [(inputs[0], 0), (outputs[1], 2)]:
        for address, error in [(None, "null pointer"), (tensor.data + 1, "not aligned")]:
            data, tensor.data = tensor.data, address
            code, text = failure(lambda: program.call("run", inputs, outputs))
            assert (code, error in text, f" {k} " in text) == (
                layout.SMELT_ERROR_ARGUMENT,
                True,
                True,
            )
            tensor.data = data
    for n, error in [(1 << 60, layout.SMELT_ERROR_ARGUMENT), (-2, layout.SMELT_ERROR_SIZE)]:
        wide = [client.tensor(z), client.tensor(x)]
        wide[0].shape[0] = wide[1].shape[0] = n
        assert failure(lambda w=wide: program.call("run", w, outputs))[0] == error
    strange = [client.tensor(z), client.tensor(x)]
    strange[0].rank = 99
    assert failure(lambda: program.call("run", strange, outputs))[0] == layout.SMELT_ERROR_TYPE


def recipe_of(path: Path) -> Recipe:
    """Return the first plan of a file."""
    file = ProgramFile(path)
    ((entry, *_),) = file.facts["programs"].values()
    return Recipe.from_data(json.loads(file.read(entry["plans"][0]["recipe"])))


# ---- errors --------------------------------------------------------------------------------------


def failure(call: Any) -> tuple[int, str]:
    with pytest.raises(LibraryFailure) as caught:
        call()
    return caught.value.code, str(caught.value)


def test_other_arguments_are_refused_with_what_was_saved(dense: Program) -> None:
    b = np.zeros(32, np.float32)
    calls: dict[str, tuple[int, Any]] = {
        "f32[3,4,48]": (layout.SMELT_ERROR_TYPE, np.ones((3, 4, 48), np.float32)),
        "f64[3,48]": (layout.SMELT_ERROR_TYPE, np.ones((3, 48))),
        "f32[3,47]": (layout.SMELT_ERROR_SIZE, np.ones((3, 47), np.float32)),
    }
    for text, (code, x) in calls.items():
        wanted = f"dense(x: f32[n,48], b: f32[32]) -> f32[n,32] was called with {text}, f32[32]"
        assert failure(lambda x=x: dense(x, b)) == (code, wanted)
    strange = client.tensor(b)
    strange.dtype, strange.rank = 77, 99
    code, text = failure(lambda: dense.call("shapes", [strange] * 2, (client.Tensor * 1)()))
    assert (code, "an unknown type[rank 99]" in text) == (layout.SMELT_ERROR_TYPE, True)


def test_null_pointers_counts_and_memory_are_checked(library: Library, dense: Program) -> None:
    x, b = np.ones((3, 48), np.float32), np.zeros(32, np.float32)
    y = np.ones((3, 32), np.float32)

    def run(*inputs: Any, output: Any = y, **changes: Any) -> str:
        tensors = [client.tensor(z) for z in inputs]
        results = (client.Tensor * 1)(client.tensor(output))
        for name, value in changes.items():
            setattr(tensors[0] if name.startswith("x_") else results[0], name[2:], value)
        code, text = failure(lambda: dense.call("run", tensors, results))
        assert code == layout.SMELT_ERROR_ARGUMENT
        return text

    assert run(x, b, x_data=None) == "argument 0 has no data: a null pointer"
    assert run(x, b, y_data=None) == "result 0 has no data: a null pointer"
    assert run(x, b, x_data=x.ctypes.data + 1) == "argument 0 is not aligned to its elements"
    assert "takes 2 arguments and 1 results, not 1 and 1" in run(x)
    short = "result 0 is f32[3,32], and memory was passed for f32[2,32]"
    assert run(x, b, output=y[:2]) == short
    overlapping = "memory of result 0 overlaps an argument or another result"
    assert run(x, b, y_data=x.ctypes.data) == overlapping
    error = client.Error()
    for arguments in [(None, None, 2, None, 1), (dense.handle, None, 2, None, 1)]:
        assert library.function("run")(*arguments, ctypes.byref(error)) == error.code == 1
        assert b"a null pointer" in error.text
        assert library.function("run")(*arguments, None) == layout.SMELT_ERROR_ARGUMENT
    library.function("close")(None)


def test_sizes_of_no_array_are_refused(dense: Program) -> None:
    inputs = [client.tensor(np.ones((3, 48), np.float32)), client.tensor(np.zeros(32, "f4"))]
    inputs[0].shape[0] = 1 << 60
    outputs = (client.Tensor * 1)()
    dense.call("shapes", inputs, outputs)
    outputs[0].data = inputs[0].data
    code, text = failure(lambda: dense.call("run", inputs, outputs))
    assert (code, text) == (layout.SMELT_ERROR_ARGUMENT, "argument 0 is too large")
    inputs[0].shape[0] = -1
    code, text = failure(lambda: dense.call("shapes", inputs, outputs))
    assert (code, "f32[-1,48]" in text) == (layout.SMELT_ERROR_SIZE, True)


def test_sizes_of_no_memory_are_refused_before_a_loop_runs(library: Library) -> None:
    program = library.open("nested")
    inputs = [client.tensor(np.ones((3, 4, 48), "f4")), client.tensor(np.ones((4, 32), "f4"))]
    outputs = (client.Tensor * 3)()
    for n, text in [(1 << 60, "argument 0 is too large"), (-3, "was called with f32[-3,4,48]")]:
        inputs[0].shape[0] = n
        if n > 0:
            program.call("shapes", inputs, outputs)
            assert [tuple(x.shape[: x.rank]) for x in outputs][-1] == (n, 4, 32)
        code, message = failure(lambda: program.call("run", inputs, outputs))
        wanted = layout.SMELT_ERROR_ARGUMENT if n > 0 else layout.SMELT_ERROR_SIZE
        assert (code, text in message) == (wanted, True)
    program.close()


def test_an_index_out_of_bounds_is_an_error(library: Library) -> None:
    program = library.open("embed")
    ids = np.array([[0, 3], [len(TABLE), 1]])
    assert failure(lambda: program(ids))[0] == layout.SMELT_ERROR_BOUNDS
    ids[1, 0] = -1  # as in Python: the last row
    np.testing.assert_allclose(program(ids)[0][1], TABLE[-1] + TABLE[1], rtol=1e-6)
    program.close()


def test_what_cannot_be_opened_is_named(library: Library) -> None:
    code, text = failure(lambda: library.open("other"))
    assert (code, text[:38]) == (layout.SMELT_ERROR_NAME, "no program other: there is dense, add,")
    assert failure(lambda: library.open("dense", threads=65))[0] == layout.SMELT_ERROR_ARGUMENT
    never = client.ALLOC(lambda *_: None)
    release = client.RELEASE(print)
    code, text = failure(lambda: library.open("dense", alloc=never, release=release))
    assert (code, text.startswith("no memory for ")) == (layout.SMELT_ERROR_MEMORY, True)


def test_a_processor_without_the_instructions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, arguments = PROGRAMS["add"]
    sm.save(f, tmp_path / "f.smelt", *specs(arguments))
    names = {"x": ("no_such_feature", "nor_this")}
    monkeypatch.setattr("smelt.saved.library_tables.linux_names", lambda _: names)
    sm.save_library(tmp_path / "f.smelt", tmp_path / "libf.so")
    code, _ = failure(lambda: Library(str(tmp_path / "libf.so"), "f").open())
    assert code == layout.SMELT_ERROR_MACHINE


# ---- memory --------------------------------------------------------------------------------------


class Counting:
    """Callbacks that allocate with Python, and count."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.calls = 0
        self.room = -1
        """Allocations that are still given; below 0: all."""
        self.alloc = client.ALLOC(self._alloc)
        self.release = client.RELEASE(self._release)

    def _alloc(self, nbytes: int, alignment: int, _: Any) -> int | None:
        if self.room == 0:
            return None
        self.room -= 1
        self.calls += 1
        memory = ctypes.create_string_buffer(nbytes + alignment)
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        self.held[address] = memory
        return address

    def _release(self, memory: int, _: Any) -> None:
        del self.held[memory]


def test_ten_thousand_calls_leak_nothing(library: Library) -> None:
    counting = Counting()
    program = library.open("dense", threads=2, alloc=counting.alloc, release=counting.release)
    b, y = np.zeros(32, np.float32), (client.Tensor * 1)()
    x, out = np.ones((40, 48), np.float32), np.empty((40, 32), np.float32)
    inputs = [[client.tensor(x[:n]), client.tensor(b)] for n in (40, 40, 40, 7)]
    program.call("shapes", inputs[0], y)
    y[0].data = out.ctypes.data
    for k in range(10_000):
        y[0].shape[0] = inputs[k % 4][0].shape[0]
        program.call("run", inputs[k % 4], y)
    assert len(counting.held) <= 3  # the program, a workspace, and its memory
    assert counting.calls < 20  # other sizes reuse the memory
    program.close()
    assert not counting.held


def test_memory_that_is_refused_is_an_error_and_the_next_call_works(library: Library) -> None:
    counting = Counting()
    program = library.open("dense", alloc=counting.alloc, release=counting.release)
    x, b = np.ones((40, 48), np.float32), np.zeros(32, np.float32)
    for room in (0, 1):
        counting.room = room
        assert failure(lambda: program(x, b))[0] == layout.SMELT_ERROR_MEMORY
    counting.room = -1
    assert program(x, b)[0].shape == (40, 32)
    program.close()
    assert not counting.held


def test_unloading_ends_the_threads_and_unmaps_the_code(folder: Path) -> None:
    in_fresh_process(UNLOAD, folder / "libmany.so")


# ---- making one ----------------------------------------------------------------------------------


def test_programs_with_parts_in_python_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"
    sm.save(sm.sort, path, sm.spec("f32[n]"))
    with pytest.raises(LibraryError, match="operators that NumPy computes"):
        sm.save_library(path, tmp_path / "libf.so")
    assert not (tmp_path / "libf.so").exists()
    with pytest.raises(ArgumentError, match=r"libmodel\.so"):
        sm.save_library(path, tmp_path / "1.so")
    path.chmod(0o666)
    with pytest.raises(ProgramTrustError):
        sm.save_library(path, tmp_path / "libf.so")


def test_code_for_another_architecture_is_refused(tmp_path: Path) -> None:
    f, arguments = PROGRAMS["add"]
    other = "neon" if os.uname().machine == "x86_64" else "avx2"
    sm.save(f, tmp_path / "f.smelt", *specs(arguments), isa=other)
    with pytest.raises(ProgramMachineError, match="a library is made for"):
        sm.save_library(tmp_path / "f.smelt", tmp_path / "libf.so")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_example_in_c_compiles_without_warnings(tmp_path: Path) -> None:
    """The header is C and C++, a linker takes the library, and both print the same."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, EXAMPLE / "model.py", tmp_path], check=True, env=environment)
    flags = ["-Wall", "-Wextra", "-Werror", "-I.", "-L.", "-lmodel", "-Wl,-rpath,."]
    subprocess.run(["cc", "-o", "main", EXAMPLE / "main.c", *flags], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "classify(x: f32[n,16]) -> f32[n,10]; i64[n]"
    assert lines[1] == "row 0: class 1, 0.4407"
    (tmp_path / "header.cpp").write_text(
        '#include "model.h"\nint main() { return model_version() == 0; }'
    )
    subprocess.run(["cc", "-c", "header.cpp", "-Wall", "-Werror"], cwd=tmp_path, check=True)
