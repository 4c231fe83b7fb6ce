"""What the namespace does beside values: counts of library calls, ufuncs, errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt as sm
import smelt.numpy as snp
from smelt.errors import DTypeError, TracerError
from smelt.frontends.array.at_once import Account


def test_library_calls_are_counted_by_line_with_a_reason() -> None:
    snp.library_calls(clear=True)
    for _ in range(3):
        snp.unique([2, 1, 2])
    snp.sum([1, 2])
    (only,) = snp.library_calls()
    assert (only.name, only.calls, Path(only.file).name) == ("unique", 3, Path(__file__).name)
    assert "sorting" in only.reason


def test_library_calls_inside_a_recording_say_where_to_call() -> None:
    with pytest.raises(TracerError, match=r"outside sm\.jit"):
        sm.jit(snp.unique)(sm.asarray([1.0, 2.0]))


def test_functions_of_ours_fuse_inside_a_recording() -> None:
    f = sm.jit(lambda x: snp.cbrt(snp.add(x, 1)).sum(axis=0))
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(np.asarray(f(sm.asarray(x))), np.cbrt(x + 1).sum(0))


@pytest.mark.parametrize(
    "name", ["add", "multiply", "maximum", "minimum", "subtract", "bitwise_or"]
)
def test_ufuncs_have_numpys_methods(name: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, (4, 5))
    ours, theirs = getattr(snp, name), getattr(np, name)
    y = sm.asarray(x)
    assert np.array_equal(ours.reduce(y), theirs.reduce(x))
    assert np.array_equal(ours.accumulate(y, axis=1), theirs.accumulate(x, axis=1))
    assert np.array_equal(ours.outer(y[0], y[:, 1]), theirs.outer(x[0], x[:, 1]))
    assert np.array_equal(ours.reduceat(y, [0, 2]), theirs.reduceat(x, [0, 2]))
    mine, expected = sm.asarray(np.zeros(4, int)), np.zeros(4, int)
    ours.at(mine, [1, 1, 2], 5)
    theirs.at(expected, [1, 1, 2], 5)
    assert mine.tolist() == expected.tolist()
    assert (ours.nin, ours.nout, ours.identity) == (2, 1, theirs.identity)
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_out_where_and_dtype() -> None:
    x, out = sm.asarray([1.0, 4.0, 9.0]), snp.full(3, -1.0)
    assert snp.sqrt(x, out=out, where=[True, False, True]) is out
    assert out.tolist() == [1.0, -1.0, 3.0]
    assert snp.add([1, 2], 1, dtype=np.float32).dtype == sm.float32
    buffer = np.zeros(3)
    assert snp.add(x, 1, buffer) is buffer
    assert buffer.tolist() == [2.0, 5.0, 10.0]


def test_dtypes_that_only_numpy_has_go_to_numpy() -> None:
    assert snp.add(True, True).tolist() is True
    z = np.array([3 + 4j])
    assert snp.abs(z).tolist() == [5.0]
    assert snp.conj(z).tolist() == [3 - 4j]
    with pytest.raises(DTypeError):
        snp.bitwise_and(1.5, 2.5)


WRITES = {
    "copyto": ([1, 2, 3, 4],),
    "put": ([0, 2], [9, 8]),
    "place": ([True, False, True, False], [7, 6]),
    "putmask": ([True, False, False, True], [5, 6]),
    "put_along_axis": (np.array([1]), 3, 0),
}


@pytest.mark.parametrize("name", WRITES)
def test_functions_that_write_in_place(name: str) -> None:
    mine, expected = snp.arange(4) * 1, np.arange(4)
    getattr(snp, name)(mine, *WRITES[name])
    getattr(np, name)(expected, *WRITES[name])
    assert mine.tolist() == expected.tolist()


def test_diagonals_are_filled_in_place() -> None:
    mine, expected = snp.zeros((3, 4)), np.zeros((3, 4))
    snp.fill_diagonal(mine, 2.5)
    np.fill_diagonal(expected, 2.5)
    assert mine.tolist() == expected.tolist()


def test_partitions_put_an_element_at_its_sorted_index() -> None:
    x = np.random.default_rng(0).normal(size=50)
    assert snp.partition(x, 9)[9] == np.sort(x)[9]
    assert x[int(snp.argpartition(x, 9)[9])] == np.sort(x)[9]


def test_files_come_back(tmp_path: Path) -> None:
    x = snp.arange(6).reshape(2, 3) * 0.5
    snp.save(tmp_path / "x.npy", x)
    assert snp.load(tmp_path / "x.npy").tolist() == x.tolist()
    snp.savetxt(tmp_path / "x.txt", x)
    assert snp.loadtxt(tmp_path / "x.txt").tolist() == x.tolist()
    snp.savez(tmp_path / "x.npz", a=x)
    assert snp.load(tmp_path / "x.npz")["a"].tolist() == x.tolist()


def test_settings_are_numpys() -> None:
    with snp.printoptions(precision=3), snp.errstate(all="ignore"):
        assert snp.get_printoptions()["precision"] == 3


A = np.random.default_rng(0).normal(size=(4, 4))
S = A @ A.T + 4 * np.eye(4)
LINALG: dict[str, tuple[Any, ...]] = {
    "norm": (A,),
    "matrix_norm": (A,),
    "vector_norm": (A,),
    "multi_dot": ([A, S, A],),
    "solve": (A, A[0]),
    "inv": (A,),
    "det": (A,),
    "slogdet": (A,),
    "cholesky": (S,),
    "eigvalsh": (S,),
    "svdvals": (A,),
    "pinv": (A,),
    "matrix_rank": (A,),
    "matrix_power": (A, 3),
    "matmul": (A, S),
    "matrix_transpose": (A,),
    "diagonal": (A,),
    "trace": (A,),
    "outer": (A[0], A[1]),
    "cross": (A[0, :3], A[1, :3]),
    "tensordot": (A, S),
    "vecdot": (A, S),
    "eigvals": (S,),
    "lstsq": (A, A[0]),
    "cond": (A,),
    "tensorsolve": (A, A[0]),
    "tensorinv": (A, 1),
}


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_gives_numpys_values(name: str) -> None:
    result = getattr(snp.linalg, name)(*LINALG[name])
    expected = getattr(np.linalg, name)(*LINALG[name])
    pairs = (
        zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    )
    for f, e in pairs:
        np.testing.assert_allclose(
            np.sort(np.asarray(f), None), np.sort(np.asarray(e), None), 1e-7, 1e-9
        )


@pytest.mark.parametrize(
    ("name", "rebuild"),
    [
        ("eigh", lambda w, v: (v * w) @ v.T),
        ("eig", lambda w, v: (v * w) @ np.linalg.inv(v)),
        ("qr", lambda q, r: q @ r),
        ("svd", lambda u, s, v: (u * s) @ v),
    ],
)
def test_decompositions_rebuild_their_matrix(name: str, rebuild: Any) -> None:
    parts = map(np.asarray, getattr(snp.linalg, name)(sm.asarray(S)))
    np.testing.assert_allclose(rebuild(*parts), S, atol=1e-9)


def test_norms_by_order_and_axis() -> None:
    for order, axis in (
        (None, None),
        (1, 0),
        (np.inf, 1),
        ("fro", None),
        ("nuc", None),
        (2, (0, 1)),
    ):
        actual = snp.linalg.norm(A, order, axis)
        np.testing.assert_allclose(np.asarray(actual), np.linalg.norm(A, order, axis))


@pytest.mark.parametrize("name", [n for n in dir(np.fft) if n[0] != "_" and n != "test"])
def test_transforms_give_numpys_values(name: str) -> None:
    if name == "helper":
        pytest.skip("a module that NumPy has kept for old programs")
    args = (8,) if "freq" in name else (A,)
    actual = getattr(snp.fft, name)(*args)
    np.testing.assert_allclose(np.asarray(actual), getattr(np.fft, name)(*args), atol=1e-12)


@pytest.mark.parametrize("name", [n for n in dir(np.linalg) if n[0] != "_" and n != "test"])
def test_all_of_linear_algebra_is_there(name: str) -> None:
    if name == "linalg":
        pytest.skip("a module that NumPy has kept for old programs")
    assert hasattr(snp.linalg, name)


@pytest.mark.parametrize("name", ["det", "inv", "slogdet", "solve", "cholesky", "trace", "cross"])
def test_linear_algebra_shows_the_arguments_that_it_takes(name: str) -> None:
    functions = getattr(snp.linalg, name), getattr(np.linalg, name)
    ours, theirs = ([(p.name, p.kind) for p in signature(f).parameters.values()] for f in functions)
    assert ours == theirs


@pytest.mark.parametrize("name", ["trace", "cross"])
def test_options_that_numpy_takes_by_name_are_no_positions(name: str) -> None:
    x, operands = np.eye(3), {"trace": 1, "cross": 2}[name]
    for function in (getattr(snp.linalg, name), sm.jit(getattr(snp.linalg, name))):
        with pytest.raises((TypeError, TracerError)):
            function(*[x] * operands, 1)


def test_helpers_that_build_arrays() -> None:
    assert snp.r_[1:4, 0].tolist() == [1, 2, 3, 0]
    assert snp.c_[sm.asarray([1, 2]), [3, 4]].tolist() == [[1, 3], [2, 4]]
    assert snp.mgrid[0:2, 0:2].tolist() == np.mgrid[0:2, 0:2].tolist()
    assert snp.vectorize(lambda a, b: a * 2 + b)([1, 2], 3).tolist() == [5, 7]
    assert list(snp.ndindex(1, 2)) == [(0, 0), (0, 1)]
    assert [(k, float(v)) for k, v in snp.ndenumerate(sm.asarray([5.0]))] == [((0,), 5.0)]
    assert isinstance(snp.zeros(2), snp.ndarray)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(AttributeError, match="did you mean 'cumsum'"):
        _ = snp.cumsun
    with pytest.raises(AttributeError, match=r"numpy\.f2py"):
        _ = snp.f2py


def test_the_namespace_is_loaded_only_when_imported() -> None:
    code = "import sys, smelt; print('smelt.numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_updates_at_positions_are_kernels_where_dtypes_agree() -> None:
    rng = np.random.default_rng(4)
    at, rows = rng.integers(-3, 3, 40), rng.integers(0, 3, 40)
    snp.library_calls(clear=True)
    for name in ("add", "subtract", "multiply", "maximum", "minimum"):
        for dtype in (np.float64, np.float32, np.int32):
            x, y = (rng.uniform(0, 5, n).astype(dtype) for n in (3, 40))
            for other in (y, snp.array(y), dtype(2), 2):
                mine, expected = snp.array(x), x.copy()
                getattr(snp, name).at(mine, at, other)
                getattr(np, name).at(expected, at, np.asarray(other))
                assert np.array_equal(mine, expected), (name, dtype)
    table, mine = np.zeros((3, 3)), snp.zeros((3, 3))
    np.add.at(table, (rows, at), 1.5)
    snp.add.at(mine, (rows, at), 1.5)
    assert np.array_equal(mine, table)
    assert not [c for c in snp.library_calls() if c.name.endswith(".at")]
    with pytest.raises(IndexError):
        snp.add.at(mine, [7], 1.0)
    snp.add.at(mine, [0], np.float32(2))  # another dtype: NumPy casts
    assert mine.tolist() == np.add(table, [[2], [0], [0]]).tolist()
    assert [c.name for c in snp.library_calls(clear=True)] == ["add.at"]


RANGES: dict[str, Any] = {
    "sum": lambda np: np.sum(range(4)),
    "average": lambda np: np.average([1, 2, 3], weights=range(3)),
    "operator": lambda np: np.arange(3) * range(3),
    "complex": lambda np: np.array([1j, 2, 3]) + range(3),
    "index": lambda np: np.array([1, 2, 3])[range(2)],
    "no index": lambda np: np.array([1, 2, 3])[range(0)],
    "write": lambda np: _written(np.array([1, 2, 3]), range(2)),
    "nested": lambda np: np.concatenate([range(2), range(3)]),
    "repeat": lambda np: np.repeat(range(2), range(2)),
    "percentile": lambda np: np.percentile(range(5), range(0, 100, 50)),
    "take": lambda np: np.take([1, 2, 3], range(2)),
}


def _written(x: Any, key: Any) -> Any:
    x[key] = 7
    return x


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_sequences_of_integers(name: str) -> None:
    expected, result = (np.asarray(RANGES[name](library)) for library in (np, snp))
    assert np.array_equal(result, expected) and result.dtype == expected.dtype


PRINTED = (3, 1.5, True, 2 - 1j, [1, 2], [[1.5, 2], [3, np.nan]], [], [1 + 2j])


@pytest.mark.parametrize("value", PRINTED, ids=str)
def test_arrays_print_as_numpys(value: Any) -> None:
    x = np.asarray(value)
    assert str(snp.asarray(x)) == f"{snp.asarray(x)}" == str(x)
    texts: list[str] = []
    sm.jit(lambda y: (texts.append(str(y)), y * 1)[1])(x)
    assert texts[0].startswith("Array(<")


NAMED: dict[str, Any] = {
    "astype": lambda x, name: x.astype(name),
    "method": lambda x, name: x.sum(dtype=name),
    "view": lambda x, name: x.astype(name).view(name),
    "zeros": lambda x, name: snp.zeros(2, dtype=name),
    "asarray": lambda x, name: snp.asarray([1000], name),
    "sm.full": lambda x, name: sm.full(2, 7, dtype=name),
}


@pytest.mark.parametrize("name", ["i8", "u8", "i4", "<i8", "int", "f4", "d", "int16", "f"])
def test_names_of_dtypes_are_numpys(name: str) -> None:
    expected = np.dtype(name).newbyteorder("=")
    for result in (f(snp.asarray([1000.0]), name) for f in NAMED.values()):
        assert np.asarray(result).dtype == expected
        assert result.dtype == name and result.dtype == expected.name
    with pytest.raises(DTypeError, match="unknown element type 'f9'"):
        snp.ones(3).astype("f9")


def test_dtypes_compare_with_names() -> None:
    x = snp.ones(3, dtype="float32")
    assert x.dtype == "float32" and x.dtype == "f4" and x.dtype == "f32"
    assert x.dtype in ("float16", "float32")
    assert x.dtype != "float64" and x.dtype != "no dtype"
    assert sm.int8 != "i8" and sm.int64 == "i8" and sm.float16 == "f16"


BOUNDS = ((0.5, 2), (None, 1.5), (0, 2), (np.float32(0.5), None), (np.array([0.5, 3.0]), 4), (2, 1))


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "float32", "float64"])
def test_clip_has_the_promoted_dtype(kind: str, bounds: tuple[Any, Any]) -> None:
    x = np.array([1, 7]).astype(kind)
    expected = np.clip(x, *bounds)
    for result in (snp.clip(snp.asarray(x), *bounds), snp.asarray(x).clip(*bounds)):
        assert np.array_equal(np.asarray(result), expected)
        assert isinstance(bounds[0], np.float32) or result.dtype == expected.dtype


@pytest.mark.parametrize("name", ["fmax", "fmin", "add", "maximum", "hypot", "logaddexp"])
def test_a_reduction_of_a_selection_in_a_recording_is_a_typed_error(name: str) -> None:
    x = np.asarray([1.0, -2.0, 3.0])
    reduce = getattr(snp, name).reduce
    assert float(reduce(snp.asarray(x)[x > 0])) == getattr(np, name).reduce(x[x > 0])
    with pytest.raises(TracerError):
        sm.jit(lambda x: reduce(x[x > 0]))(x)


def test_functions_paid_for_leave_to_numpy_what_ours_do_not_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Account, "is_recorded", True)
    x, data = (xp.array(np.arange(9000.0).reshape(90, 100)) for xp in (snp, np))
    calls: list[Callable[[Any, Any], Any]] = [
        lambda xp, x: xp.pad(x, 2, mode="linear_ramp"),
        lambda xp, x: xp.clip(x, 3, 5, casting="same_kind"),
        lambda xp, x: xp.add(x, 1, order="C"),
    ]
    for call in calls:
        assert call(snp, x).tolist() == call(np, data).tolist()
    with pytest.raises(ValueError, match="mode"):
        snp.pad(x, 1, mode="none")


def test_functions_take_views_of_copies_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy in another order waits as a view, where NumPy would copy for `reshape`."""
    monkeypatch.setattr(Account, "is_recorded", True)

    def program(xp: Any) -> Any:
        x = xp.array(np.arange(6000.0).reshape(60, 100)) * 2.0
        row = xp.ascontiguousarray(x.T).ravel()
        assert x[0, 1].item() == 2.0
        return xp.clip(row, 3, 50).tolist()

    for _ in range(2):
        assert program(snp) == program(np)
