"""Files that lie, loop, nest or point outside get typed errors, quickly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx.build import field, graph, model, node, port, tensor, varint

import smelt.onnx
from smelt.errors import OnnxExternalError, OnnxFileError, OnnxLimitError, SmeltError

F = np.float32


def small_model() -> bytes:
    body = graph([node("Add", ["x", "w"], ["r"])], [], [port("r")])
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Constant", [], ["c"], value=np.array(True)),
        node("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    return model(nodes, [port("x", F, ["n", 4])], [port("a"), port("y")], {"w": np.ones((4, 4), F)})


def load_error(data: bytes, **options: Any) -> type[Exception] | None:
    """Return the class of the error; anything but ours, or more than a second, fails the test."""
    start = time.perf_counter()
    try:
        smelt.onnx.load(data, fallback="error", **options)
    except SmeltError as error:
        kind: type[Exception] | None = type(error)
    else:
        kind = None
    assert time.perf_counter() - start < 5
    return kind


def test_every_truncation_is_refused() -> None:
    data = small_model()
    assert load_error(data) is None
    optional = 19  # bytes of the last field, operators that the model does not have
    assert load_error(data[:-optional]) is None
    kinds = {load_error(data[:n]) for n in range(len(data) - optional)}
    assert kinds == {OnnxFileError}


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_flipped_bytes_raise_our_errors_only(count: int) -> None:
    data, generator = small_model(), random.Random(7)
    for _ in range(count):
        mutant = bytearray(data)
        for _ in range(generator.randrange(1, 5)):
            mutant[generator.randrange(len(mutant))] = generator.randrange(256)
        load_error(bytes(mutant))


def test_nesting_is_limited() -> None:
    body = graph([], [], [])
    for _ in range(3000):
        body = graph([node("If", [], ["y"], then_branch=body)], [], [])
    assert load_error(field(1, 10) + field(7, body) + field(8, field(2, 21))) is OnnxLimitError


def with_tensor(t: bytes) -> bytes:
    body = field(1, node("Identity", ["w"], ["y"])) + field(5, t) + field(12, port("y"))
    return field(1, 10) + field(7, body) + field(8, field(2, 21))


LYING = {
    "fewer bytes": field(1, 5) + field(2, 1) + field(8, "w") + field(9, b"abcd"),
    "2^62 elements": field(1, 1 << 62) + field(2, 1) + field(8, "w") + field(9, b"abcd"),
    "product overflows": field(1, 1 << 32) * 2 + field(2, 1) + field(8, "w") + field(9, b""),
    "negative": field(1, -3) + field(2, 1) + field(8, "w") + field(9, b""),
    "type 0": field(1, 1) + field(8, "w") + field(9, b"abcd"),
    "type 99": field(1, 1) + field(2, 99) + field(8, "w") + field(9, b"abcd"),
    "stored twice": tensor("w", np.zeros(1, F)) + field(4, 1.0),
    "rank 40": field(1, 1) * 40 + field(2, 1) + field(8, "w") + field(9, b"abcd"),
    "segment": tensor("w", np.zeros(1, F)) + field(3, b""),
}


@pytest.mark.parametrize("name", LYING)
def test_sizes_that_lie(name: str) -> None:
    assert load_error(with_tensor(LYING[name])) is OnnxFileError


def test_cycles_and_double_definitions() -> None:
    x = [port("x", F, ["n"])]
    cycle = [node("Neg", ["b"], ["a"]), node("Neg", ["a"], ["b"])]
    twice = [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["a"])]
    for nodes in (cycle, twice):
        assert load_error(model(nodes, x, [port("a")])) is OnnxFileError
    assert load_error(model([], x, [port("missing")])) is OnnxFileError
    assert load_error(model([], [*x, *x], [port("x")])) is OnnxFileError


def test_no_model_at_all() -> None:
    for data in (b"", b"\x00", b"PK\x03\x04 zip", varint(1 << 63) * 3, bytes(1000)):
        assert load_error(data) is OnnxFileError


def test_huge_results_are_refused_before_memory_is_taken() -> None:
    big = np.array([1 << 31, 1 << 31])
    for nodes in (
        [node("ConstantOfShape", ["s"], ["y"])],
        [node("Range", ["zero", "last", "one"], ["y"])],
    ):
        constants = {"s": big, "zero": np.array(0), "last": np.array(1 << 50), "one": np.array(1)}
        session = smelt.onnx.load(model(nodes, [], [port("y")], constants))
        with pytest.raises(SmeltError):
            session.run(None, {})


# External data


def external(location: str, more: dict[str, str] | None = None, count: int = 4) -> bytes:
    entries = {"location": location, **(more or {})}
    t = field(1, count) + field(2, 1) + field(8, "w")
    t += b"".join(field(13, field(1, k) + field(2, v)) for k, v in entries.items())
    return with_tensor(t + field(14, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    np.arange(4, dtype=F).tofile(inside / "w.bin")
    np.arange(4, dtype=F).tofile(inside / "sub" / "w.bin")
    np.arange(4, dtype=F).tofile(tmp_path / "secret.bin")
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "linked").symlink_to(tmp_path)
    os.link(tmp_path / "secret.bin", inside / "hard.bin")
    os.mkfifo(inside / "fifo")
    return inside


def test_external_data_inside_the_folder_is_read(folder: Path) -> None:
    for location in ("w.bin", "sub/w.bin"):
        path = folder / "m.onnx"
        path.write_bytes(external(location))
        (y,) = smelt.onnx.load(path).run(None, {})
        assert y.tolist() == [0, 1, 2, 3]
    data = external("w.bin", {"offset": "8", "length": "8"}, 2)
    assert smelt.onnx.load(data, data_folder=folder).run(None, {})[0].tolist() == [2, 3]


OUTSIDE = [
    "../secret.bin",
    "sub/../../secret.bin",
    "/etc/passwd",
    "link.bin",
    "linked/secret.bin",
    "hard.bin",
    "fifo",
    "sub",
    "",
    ".",
    "./w.bin",
    "sub//w.bin",
    "w.bin\0",
    "..\\secret.bin",
    "missing.bin",
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_external_data_outside_is_not_opened(folder: Path, location: str) -> None:
    assert load_error(external(location), data_folder=folder) is OnnxExternalError


@pytest.mark.parametrize(
    "more",
    [{"offset": "4"}, {"length": "12"}, {"offset": "-1"}, {"offset": "9" * 30}, {"length": "x"}],
)
def test_external_data_must_fit_the_file(folder: Path, more: dict[str, str]) -> None:
    assert load_error(external("w.bin", more), data_folder=folder) is OnnxExternalError


def test_bytes_have_no_folder() -> None:
    assert load_error(external("w.bin")) is OnnxExternalError


BOMBS: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "Expand": ([node("Expand", ["c", "d"], ["big"])], {"c": np.ones(1, F), "d": [1 << 32]}),
    "Tile": ([node("Tile", ["c", "d"], ["big"])], {"c": np.arange(4000, dtype=F), "d": [1 << 19]}),
    "ConstantOfShape": (
        [node("ConstantOfShape", ["d"], ["z"]), node("EyeLike", ["z"], ["big"])],
        {"d": [1 << 16, 1 << 16]},
    ),
    "OneHot": (
        [node("OneHot", ["i", "d", "c"], ["big"])],
        {"i": np.arange(4000), "d": np.int64(1 << 20), "c": np.array([0, 1], F)},
    ),
    "Mul": (
        [node("Mul", ["a", "b"], ["big"])],
        {"a": np.ones((4000, 1, 1), F), "b": np.ones((1, 4000, 200), F)},
    ),
    "MatMul": (
        [node("MatMul", ["a", "b"], ["big"])],
        {"a": np.ones((60_000, 1), F), "b": np.ones((1, 40_000), F)},
    ),
}
"""Nodes whose constant result `big` has gigabytes, and their constants."""

RUN_BOMB = """
import resource, sys
import numpy as np
import smelt as sm

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = sm.onnx.load(sys.argv[1], fallback="error").run(None, {"x": np.zeros(3, np.float32)})
assert y[0].shape == (3,)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 400 << 10, f"{grown >> 10} MB more"
"""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "Tile" else pytest.mark.nightly) for n in BOMBS]
)
def test_a_constant_of_gigabytes_is_never_in_memory(name: str, tmp_path: Path) -> None:
    """It is computed where it is read, here by a sum."""
    nodes, constants = BOMBS[name]
    nodes = [*nodes, node("ReduceSum", ["big"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    arrays = {k: np.asarray(v) for k, v in constants.items()}
    path = tmp_path / "bomb.onnx"
    path.write_bytes(model(nodes, [port("x", F, ["n"])], [port("y")], arrays))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", RUN_BOMB, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
