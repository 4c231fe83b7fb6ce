"""Views share elements with their arrays by NumPy's rules, and what stays different is an error."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.frontends.numpy.view_programs import run

import smelt as sm
import smelt.numpy as np
from smelt.errors import DonatedError, TracerError, UnsupportedError
from smelt.frontends.array import evaluate_pending
from smelt.frontends.array.aliasing import kept_order
from smelt.frontends.array.at_once import Account
from smelt.numpy import small


@pytest.mark.parametrize("is_recorded", [False, True])
@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_random_programs_are_those_of_numpy(is_recorded: bool, seed: int) -> None:
    """Operators are computed at once, or wait for their readers."""
    with pytest.MonkeyPatch.context() as patch:
        if is_recorded:
            patch.setattr(Account, "is_recorded", True)
        run(Random(seed))


@pytest.mark.nightly
def test_many_random_programs_are_those_of_numpy() -> None:
    for seed in range(5000):
        run(Random(seed))


Program = Callable[[Any], Any]


def _slices(xp: Any) -> Any:
    a = xp.arange(6.0)
    b, c = a[1:], a[::2]
    before = b * 2
    b[0], c[1] = 5, 7
    return a, b, c, before


def _overlapping(xp: Any) -> Any:
    a = xp.arange(8.0)
    a[1:] += a[:-1]
    a[:-2] = a[2:]
    a[::-1].sort()
    return a


def _filled(xp: Any) -> Any:
    a = xp.zeros((2, 3))
    a.fill(4)
    xp.ravel(a)[0] = 1
    return a


def _rows(xp: Any) -> Any:
    a = xp.zeros((3, 4))
    for k, row in enumerate(a):
        row += k
        row[1:3][0] = 9
    return a


def _functions(xp: Any) -> Any:
    a = xp.arange(24.0).reshape(2, 3, 4)
    a.ravel()[0] = 9
    a.T[1] *= 2
    a.reshape(6, 4)[2, ::2] = 1
    xp.copyto(a[0, 1:], a[1, :2])
    xp.add(a[0], 1, out=a[1])
    a.flat[5] = 70
    a[:, 0].fill(3)
    xp.put(a[1], [0, 5], [8, 9])
    xp.moveaxis(a, 0, -1)[0, 0] = 44
    xp.split(a, 3, axis=1)[1][...] += 100
    xp.fill_diagonal(a[0, :, :3], -1)
    a[1, 1].sort()
    xp.nan_to_num(a[:1], copy=False)
    xp.multiply.at(a[0], 0, 2)
    return a, a.diagonal(), a.sum(axis=0)


def _complex(xp: Any) -> Any:
    z = xp.ones((2, 3), complex)
    z.imag[0] = 7
    z.T[1] += 2j
    xp.real(z)[1] = xp.arange(3.0)
    return z, z.real.base is z, z[1:].base is z, z.reshape(-1).real.base is z


def _orders(xp: Any) -> Any:
    a = xp.arange(6.0).reshape(2, 3)
    copied, kept = (a.T + 1).ravel(), (a + 1).ravel()
    b = xp.exp(a.T) * a.T
    b.ravel()[0], b.T.ravel()[1] = 5, 6
    return copied, kept, b, b.flags.f_contiguous, a.T.reshape(6).base is None


PROGRAMS: dict[str, Program] = {
    f.__name__: f for f in (_slices, _overlapping, _filled, _rows, _functions, _complex, _orders)
}


def plain(x: Any) -> Any:
    return (
        [plain(v) for v in x]
        if isinstance(x, tuple)
        else x.tolist()
        if x.__class__ is not bool
        else x
    )


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_are_views(name: str, is_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_recorded:
        monkeypatch.setattr(Account, "is_recorded", True)
    assert plain(PROGRAMS[name](np)) == plain(PROGRAMS[name](numpy))


def test_modules_that_import_smelt_alone_have_slices_that_are_copies() -> None:
    names: dict[str, Any] = {"__name__": "user"}
    text = "import {} as xp\na = xp.zeros(3)\nb = a[1:]\nb[0] = 5\nc = a.reshape(3, 1)\nc[0] = 7"
    exec(text.format("smelt"), names)
    assert names["a"].tolist() == [0, 0, 0]
    names = {"__name__": "user"}
    exec(text.format("smelt.numpy"), names)
    assert names["a"].tolist() == [7, 5, 0]


def test_what_cannot_be_written_raises_numpys_error() -> None:
    a = np.arange(4.0)
    windows = np.lib.stride_tricks.sliding_window_view(a, 2)
    for view in (np.broadcast_to(a, (2, 4)), np.eye(3).diagonal(), windows, a.imag):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="assignment destination is read-only"):
            view[0] = 1
    a[1] = 50
    assert windows[0].tolist() == [0, 50]
    a.flags.writeable = False
    for change in (lambda: a.fill(1), a.sort, lambda: a[1:].__iadd__(1)):
        with pytest.raises(ValueError, match="read-only"):
            change()
    with pytest.raises(ValueError, match="WRITEABLE"):
        np.broadcast_to(a, (2, 4)).setflags(write=True)
    a.setflags(write=True)
    with pytest.raises(UnsupportedError, match="view"):
        a.view(np.int64)[0] = 1
    with pytest.raises(UnsupportedError, match="as_strided"):
        np.lib.stride_tricks.as_strided(a, (2,), (8,))[0] = 1
    a[0] = 9
    assert a.tolist() == [9, 50, 2, 3]


def test_functions_copy_where_numpy_copies() -> None:
    for xp in (numpy, np):
        a = xp.arange(12.0).reshape(3, 4)
        column, rows, t = a[:, 1], a[1:], a.T
        for y, is_same in (
            (xp.ascontiguousarray(column), False),
            (xp.ascontiguousarray(rows), True),
            (xp.asarray(t, order="C"), False),
            (xp.asfortranarray(t), True),
            (xp.require(rows, requirements="O"), False),
            (xp.require(rows, requirements="C"), True),
            (xp.asarray(column), True),
            (a.astype(float, copy=False), True),
        ):
            assert xp.shares_memory(y, a) == is_same
        fortran = xp.asfortranarray(a)
        assert fortran.flags.f_contiguous and not xp.shares_memory(fortran, a)
        twice = xp.lib.stride_tricks.as_strided(column, (2, 3), (0, 32))
        a[0, 1] = 77
        assert twice.tolist() == [[77, 5, 9], [77, 5, 9]]


def test_memory_of_numpys_arrays_is_written() -> None:
    data = numpy.arange(6.0)
    x = np.asarray(data)
    tail = x[1:]
    x[0], tail[-1] = 5, 4
    x[1:] += x[:-1]
    tail[:2].sort()
    assert data.tolist() == x.tolist() == [5, *tail.tolist()] == [5, 3, 6, 5, 7, 8]
    data[2] = 70
    assert tail.tolist() == [3, 70, 5, 7, 8]
    a = np.arange(4.0)
    seen = numpy.asarray(a[1:])
    seen[0] = 99
    a[2:] *= 2
    assert a.tolist() == [0, *seen.tolist()] == [0, 99, 4, 6]
    data.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(data)[0] = 1


@pytest.mark.parametrize("tiers", ["auto", "fused"])
def test_pending_operators_have_the_elements_of_their_time(
    tiers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever element NumPy's own code writes, in arrays of either side."""
    monkeypatch.setattr(Account, "is_recorded", True)
    source, mine = numpy.arange(6000.0), np.arange(6000.0) * 2
    x, exported = np.asarray(source), numpy.asarray(mine)
    with sm.config(tiers=tiers):
        before = [np.exp(-x) + 1, x[::-1] * 2, x + mine, mine[1:] - 1]
        expected = [numpy.exp(-source) + 1, source[::-1] * 2, source + exported, exported[1:] - 1]
        source[777], exported[778] = numpy.nan, 3
        after = x + mine
        source[777], exported[778] = 5, 4
        for mine_then, theirs in zip(before, expected, strict=True):
            numpy.testing.assert_allclose(numpy.asarray(mine_then), theirs)
        assert numpy.isnan(float(after[777]))
        assert float(after[778]) == 778 + 3
        numpy.testing.assert_array_equal(numpy.asarray(x * 1 + mine), source + exported)


def test_complex_arrays_share_what_numpy_reads() -> None:
    z = np.arange(20000) * 1j
    exported = numpy.asarray(z)
    doubled = z * 2
    exported[7] = 3
    z[1:3] = 5
    assert (z[7], doubled[7], exported[2]) == (3, 14j, 5)
    imag = numpy.asarray(z[10:].imag)
    imag[0] = -1
    assert z[10] == exported[10] == -1j


@pytest.mark.parametrize("dtype", [float, complex])
def test_memory_of_any_object_is_shared(dtype: Any) -> None:
    source: Any = numpy.arange(40).astype(dtype)
    writeable = bytearray(source.tobytes())
    arrays = [
        np.asarray(memoryview(source)),
        np.from_dlpack(source),
        np.array(source, copy=None),
        np.asarray(source, order="F"),
        np.require(np.asarray(source), requirements="W"),
    ]
    for k, x in enumerate(arrays):
        doubled = x * 2
        x[k] = -1
        assert (source[k], doubled[k]) == (-1, 2 * k)
        source[k] = k
        assert x[k] == k
    of_bytes, fixed = np.frombuffer(writeable, dtype), np.frombuffer(bytes(writeable), dtype)
    of_bytes[1] = 7
    assert numpy.frombuffer(writeable, dtype)[1] == 7
    assert not fixed.flags.writeable


@pytest.mark.parametrize("dtype", [float, complex])
def test_numpys_functions_write_to_arrays_of_ours(dtype: Any) -> None:
    mine, theirs = np.arange(40).astype(dtype), numpy.arange(40).astype(dtype)
    for x in (mine, theirs):
        part = x[10:]
        assert numpy.add(part, x[:30], out=part) is part
        numpy.negative(x[:5], x[:5])
        numpy.add.at(x, [0, 0, 39], 100)
    for xp, x in ((np, mine), (numpy, theirs)):
        for element in xp.nditer(x[::3], op_flags=["readwrite"]):
            element[...] = element * 2
        xp.putmask(x, numpy.arange(40) > 30, True)
    numpy.testing.assert_array_equal(numpy.asarray(mine), theirs)


def test_results_of_numpys_functions_have_its_order() -> None:
    x, y = np.arange(40).reshape(5, 8), numpy.arange(40).reshape(5, 8)
    assert numpy.negative(x.T).strides == numpy.negative(y.T).strides


def test_numpys_complex_operands_have_the_elements_of_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Account, "is_recorded", True)
    former = small.set_limit(8)
    try:
        source, x = numpy.arange(900) * 1j, np.arange(900) + 1j
        late = source - x * 2, np.where(source != 0, source, x)
        source[...] = 5
        assert [complex(y[3]) for y in late] == [3j - 6 - 2j, 3j]
    finally:
        small.set_limit(former)


def test_bits_of_complex_arrays_are_views() -> None:
    z = np.arange(40) + 0j
    numbers = z.view(float)
    z += 1j
    numbers[2] = 7
    assert (numbers[1], z[1]) == (1, 7 + 1j)


@pytest.mark.parametrize("tiers", ["auto", "fused"])
def test_exported_memory_is_that_of_one_array(tiers: str) -> None:
    with sm.config(tiers=tiers):
        x = np.arange(40.0) * 2
        same = np.positive(x)
        source = numpy.arange(12.0).reshape(3, 4).T
        columns = np.ascontiguousarray(source)
        numpy.asarray(x)[3] = -1
        source[0, 0] = -1
        assert (float(same[3]), float(x[3]), float(columns[0, 0])) == (6, -1, 0)


def test_large_results_of_small_arrays_have_their_order() -> None:
    former = small.set_limit(16)
    try:
        columns = numpy.asfortranarray(numpy.arange(12.0).reshape(4, 3))
        x = np.concatenate([columns, columns])
        x.ravel()[0] = 7  # of a copy
        x.T.ravel()[1] = 8
        assert (x.flags.f_contiguous, float(x[0, 0]), float(x[1, 0])) == (True, 0, 8)
    finally:
        small.set_limit(former)


def test_complex_operators_in_place_write_to_shared_memory() -> None:
    source = numpy.arange(40) * 1j
    x = np.asarray(source)
    before, imag = x * 2, x.imag
    x += 1
    x[::2] *= numpy.float64(2)
    assert (source[2], before[2], imag[2]) == (2 + 4j, 4j, 4)
    with pytest.raises(TypeError):
        x.real += 1j


def test_results_that_numpy_makes_read_only_are_read_only() -> None:
    x = np.arange(40.0)
    for y in (np.broadcast_to(x, x.shape), np.imag(x), (x > 3).imag):
        assert not y.flags.writeable


def test_memory_that_nobody_else_refers_to_is_not_copied() -> None:
    source = numpy.arange(20000.0)
    x = np.asarray(source)
    with sm.config(tiers="fused"):
        copied = x * 2
        assert copied.node.inputs[0] is not x.node
        del source
        assert (x * 3).node.inputs[0] is x.node
        assert float(copied[3]) == 6


def test_results_that_have_their_operands_elements_are_copies() -> None:
    source = numpy.arange(20000)
    x = np.asarray(source)
    results = np.positive(x), np.round(x), x.astype(int), np.concatenate([x]), x[::2].ravel()
    source[8] = 1
    assert [int(y[8]) for y in results] == [8, 8, 8, 8, 16]
    assert int(x.ravel()[8]) == 1


def test_in_a_recording_views_of_what_it_makes_are_exact() -> None:
    def step(x: Any) -> Any:
        y = np.zeros((3, 4)) + x
        for row in y:
            row += 1
        part = y[1:, ::2]
        part *= 2
        y.T[0] = 7
        y.reshape(-1)[5] = 9
        y[2].sort()
        return y

    assert sm.jit(step)(np.ones(4)).tolist() == step(np.ones(4)).tolist()


def test_in_a_recording_views_of_arguments_cannot_be_written() -> None:
    kept = np.zeros(3)

    def of_argument(x: Any) -> Any:
        x[1:][0] = 5
        return x

    def from_outside(x: Any) -> Any:
        kept[1:][0] = x[0]
        return x

    with pytest.raises(TracerError, match="view of an argument of of_argument"):
        sm.jit(of_argument)(np.ones(4))
    with pytest.raises(TracerError, match="from outside"):
        sm.jit(from_outside)(np.ones(4))


def test_views_of_donated_arrays_are_errors() -> None:
    x = np.arange(5000.0) + 1
    tail = x[1:]
    doubled = tail * 2
    sm.jit(lambda s: s + 1, donate=0)(x)
    assert doubled[:2].tolist() == [4, 6]
    with pytest.raises(DonatedError):
        tail[0] = 1
    with pytest.raises(DonatedError):
        tail[3:].tolist()


def test_copies_of_views_are_independent() -> None:
    a = np.arange(4.0)
    for other in (
        copy.copy(a[1:]),
        copy.deepcopy(a[1:]),
        pickle.loads(pickle.dumps(a[1:])),
        +a[1:],
    ):
        other[0] = 9
        assert other.base is None
    assert a.tolist() == [0, 1, 2, 3]


def test_updates_of_parts_store_what_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are updated in place: neither they nor the sums are outputs of a program."""
    outputs: list[int] = []
    compute: Any = vars(evaluate_pending)["_compute_each"]
    monkeypatch.setattr(
        evaluate_pending,
        "_compute_each",
        lambda values, *rest: [outputs.append(len(values)), compute(values, *rest)],
    )
    monkeypatch.setattr(Account, "is_recorded", True)

    def run() -> tuple[Any, Any]:
        u = np.array(numpy.arange(8.0) ** 2)
        v, memory = u * 1, id(u.node.data)
        v[2:] += u[2:]
        change = u[2:] - u[:-2]
        u[1:-1] += 0.5 * change
        assert id(u.node.data) == memory
        return u, v

    run()  # types of operators are known in the second turn
    outputs.clear()
    u, v = run()
    assert outputs == [1, 2]
    assert u.tolist() == [0, 3, 8, 15, 24, 35, 48, 49]
    assert v.tolist() == [0, 1, 8, 18, 32, 50, 72, 98]


def test_in_place_results_fit_by_numpys_rule() -> None:
    short, other = np.array(numpy.arange(3, dtype="uint8")), np.array(numpy.arange(3, dtype="i2"))
    with pytest.raises(TypeError, match="does not fit"):
        short += other
    other += short
    assert other.tolist() == [0, 2, 4]


def test_integers_take_floats_by_numpys_rule() -> None:
    """A write casts as NumPy's does; a function with a rule for casts checks it."""

    def write(xp: Any) -> list[Any]:
        x, y = xp.array(numpy.arange(12)), xp.array(numpy.arange(12.0) * 0.75)
        x[:3] = y[4:7]
        x.reshape(3, 4)[:, 3] = y[:3] - 4
        x[numpy.array([4, 5])] = y[8:10]
        x[x > 9] = y[2]
        xp.copyto(x[8:], y[8:], casting="unsafe")
        return [x.tolist(), (x > 2).tolist()]

    assert write(np) == write(numpy)
    x = np.array(numpy.arange(12))
    for value, casting in ((x * 0.5, "same_kind"), (2.5, "same_kind"), (x > 3, "no")):
        with pytest.raises(TypeError, match="cannot be cast"):
            np.copyto(x, value, casting)
    np.copyto(x, 3)
    assert x.tolist() == [3] * 12


def test_an_update_of_a_slice_records_what_it_did_without_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One select for each write, and no output but the arrays that are held."""
    programs: list[tuple[int, int]] = []
    compute = evaluate_pending._run  # pyright: ignore[reportPrivateUsage]

    def counted(outputs: Any, *rest: Any) -> None:
        nodes = evaluate_pending._upstream(outputs[-1])  # pyright: ignore[reportPrivateUsage]
        programs.append((len(outputs), sum(getattr(x.op, "scalar", "") == "select" for x in nodes)))
        compute(outputs, *rest)

    monkeypatch.setattr(evaluate_pending, "_run", counted)
    with sm.config(tiers="fused"):
        a = np.zeros(5000) + 1
        a[1:] += 2
        a[:-1] *= a[1:]
        part = a[2:]
        part += 1
        del part
        a.tolist()
    assert programs == [(1, 3)]


@given(st.integers(0, 10**6))
def test_orders_of_results_are_those_of_numpys_iterator(seed: int) -> None:
    r = Random(seed)
    rank = r.choice([2, 3, 4])
    shape = [r.choice([1, 2, 3]) for _ in range(rank)]
    operands: list[Any] = []
    for _ in range(r.choice([1, 2, 3])):
        count = r.choice([rank, rank - 1])
        sizes = [d if r.random() < 0.8 else 1 for d in shape[rank - count :]]
        axes = r.sample(range(count), count)
        operands.append(numpy.zeros([sizes[a] for a in axes]).transpose(numpy.argsort(axes)))
    flags: Any = [["readonly"]] * len(operands) + [["writeonly", "allocate"]]
    out = numpy.nditer([*operands, None], op_flags=flags).operands[-1]
    table = [
        [0] * (out.ndim - x.ndim) + [0 if n == 1 else s for n, s in zip(x.shape, x.strides)]
        for x in operands
    ]
    strides, step = [0] * out.ndim, 8
    for axis in reversed(kept_order(table, out.ndim)):
        strides[axis] = step
        step *= out.shape[axis]
    longer = [axis for axis, n in enumerate(out.shape) if n > 1]
    assert [strides[axis] for axis in longer] == [out.strides[axis] for axis in longer]
