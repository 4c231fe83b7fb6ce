"""Arrays outside jit: pending until read, plans shared between sizes, memory of others."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt as sm
import smelt.numpy
from smelt import knobs
from smelt.frontends.array import evaluate_pending, program_cache
from smelt.frontends.array import evaluate_pending as flushing
from smelt.frontends.array.value import STATE

rng = np.random.default_rng(4)
A = rng.standard_normal((4, 5))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every graph that is compiled while the test runs."""
    graphs: list[Any] = []
    flushing.flush()
    plain = flushing.compile_graph

    def noted(graph: Any, *rest: Any) -> Any:
        graphs.append(graph)
        return plain(graph, *rest)

    monkeypatch.setattr(flushing, "compile_graph", noted)
    monkeypatch.setattr(program_cache, "PROGRAMS", {})
    monkeypatch.setattr(flushing, "_FAMILIES", {})
    return graphs


def program(x: Any, w: Any) -> Any:
    h = sm.reshape(x @ w, (x.shape[0], -1, 2))
    h = sm.tanh(h[1:] - h[:-1]) * sm.arange(x.shape[0] - 1)[:, None, None]
    return sm.sum(h, axis=(1, 2))


def reference(x: Any, w: Any) -> Any:
    h = np.reshape(x @ w, (x.shape[0], -1, 2))
    h = np.tanh(h[1:] - h[:-1]) * np.arange(x.shape[0] - 1)[:, None, None]
    return np.sum(h, axis=(1, 2))


def test_equal_programs_share_a_plan(compiled: list[Any]) -> None:
    for n, k, m in ((5, 4, 6), (9, 7, 10), (17, 3, 22), (30, 8, 14)):
        x, w = rng.standard_normal((n, k)), rng.standard_normal((k, m))
        actual = program(sm.asarray(x), sm.asarray(w))
        np.testing.assert_allclose(actual, reference(x, w), rtol=1e-11, atol=1e-12)
    assert len(compiled) <= 2


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(1, 4))
def test_sizes_are_never_mistaken_for_each_other(n: int, k: int, m: int) -> None:
    x, w = rng.standard_normal((n, k)), rng.standard_normal((k, 2 * m))
    actual = program(sm.asarray(x), sm.asarray(w))
    np.testing.assert_allclose(actual, reference(x, w), rtol=1e-11, atol=1e-12)


def test_nothing_runs_before_it_is_read(compiled: list[Any]) -> None:
    y = sm.exp(sm.asarray(np.ones(5))) + 1
    assert not compiled
    assert y.shape == (5,)
    assert not compiled
    assert float(y[0]) == pytest.approx(np.e + 1)
    assert len(compiled) == 1


def test_only_referenced_values_become_outputs(compiled: list[Any]) -> None:
    x = sm.asarray(np.ones(5))
    a = x + 1
    b = a * 2
    del a
    c = b - 3
    np.asarray(c)
    (graph,) = compiled
    assert len(graph.outputs) == 2
    assert [n.op.name for n in graph.outputs] == ["sub", "mul"]
    assert b.tolist() == [4.0] * 5
    assert len(compiled) == 1


def test_what_nobody_holds_is_never_computed(compiled: list[Any]) -> None:
    sm.exp(sm.asarray(np.ones(5)))
    flushing.flush()
    assert not compiled


def test_memory_of_intermediates_is_released() -> None:
    x = sm.asarray(np.ones(5), copy=True)
    data = weakref.ref(x.node)
    y = x + 1
    del x
    y.tolist()
    gc.collect()
    assert data() is None


def test_long_programs_are_cut(compiled: list[Any]) -> None:
    x = sm.asarray(np.ones(3))
    kept = [x]
    for _ in range(1200):
        kept.append(kept[-1] + 1)
    assert kept[-1].tolist() == [1201.0] * 3
    assert len(STATE.pending) < 512
    assert 2 <= len(compiled) <= 4


def test_chains_deeper_than_the_stack() -> None:
    x = sm.asarray(np.ones(3))
    for _ in range(3000):
        x = x + 1
    assert x.tolist() == [3001.0] * 3


def test_a_loop_compiles_once(compiled: list[Any]) -> None:
    x = sm.asarray(np.ones(4))
    for _ in range(6):
        x = sm.sin(x) * 0.5 + 1
        x.tolist()
    assert len(compiled) == 1


def test_changing_numbers_do_not_compile_again(compiled: list[Any]) -> None:
    x = sm.asarray(np.ones(4))
    for step in range(10):
        rate = 0.13 * (step + 2)
        np.testing.assert_allclose(x * rate + 1.0, np.ones(4) * rate + 1.0)
    assert len(compiled) == 2


def test_threads_keep_to_themselves() -> None:
    shared = sm.asarray(np.arange(50.0)) * 2
    results: dict[int, Any] = {}

    def work(k: int) -> None:
        y = shared + k
        for _ in range(20):
            y = y + 1
        results[k] = np.asarray(y)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, actual in results.items():
        np.testing.assert_array_equal(actual, np.arange(50.0) * 2 + k + 20)
    np.testing.assert_array_equal(shared, np.arange(50.0) * 2)


# Memory of others


LAYOUTS = {
    "strided": lambda: rng.standard_normal((6, 8))[::2, 1::3],
    "reversed": lambda: rng.standard_normal((4, 5))[::-1, ::-1],
    "transposed": lambda: rng.standard_normal((4, 5)).T,
    "broadcast": lambda: np.broadcast_to(rng.standard_normal(5), (4, 5)),
    "byte-swapped": lambda: rng.standard_normal((4, 5)).astype(">f8"),
    "unaligned": lambda: np.frombuffer(b"x" + A.tobytes(), np.float64, offset=1),
    "odd strides": lambda: np.zeros(4, np.dtype([("a", "i1"), ("b", "f8")]))["b"],
    "read-only": lambda: np.frombuffer(rng.standard_normal(6).tobytes()),
    "fortran": lambda: np.asfortranarray(rng.standard_normal((4, 5))),
    "rank 0": lambda: np.asarray(3.0),
    "empty": lambda: np.zeros((0, 3)),
    "half": lambda: rng.standard_normal(7).astype(np.float16),
    "swapped ints": lambda: np.arange(5).astype(">i4"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read_right(name: str) -> None:
    x = LAYOUTS[name]()
    native = x.astype(x.dtype.newbyteorder("="))
    np.testing.assert_array_equal(sm.asarray(x) * 2, native * 2)
    np.testing.assert_array_equal(sm.jit(lambda x: x * 2)(x), native * 2)
    np.testing.assert_array_equal(sm.asarray(x), native)


def test_no_copies() -> None:
    x = rng.standard_normal((100, 100))
    y = sm.asarray(x)
    assert np.asarray(y) is x
    assert np.shares_memory(np.from_dlpack(y), x)
    assert np.shares_memory(np.asarray(sm.from_dlpack(x)), x)
    assert np.asarray(sm.asarray(y)) is x
    z = y + 1
    assert np.asarray(z) is np.asarray(z)
    assert z.__dlpack_device__() == (1, 0)


def test_copies_where_requested_and_refused() -> None:
    x = rng.standard_normal(3000)
    for y in (sm.asarray(x, copy=True), sm.asarray(sm.asarray(x), copy=True)):
        assert not np.shares_memory(np.asarray(y), x)
    assert sm.asarray(x, copy=False).shape == (3000,)
    for wrong in (x.astype(">f8"), [1.0], 3.0):
        with pytest.raises((ValueError, BufferError)):
            sm.asarray(wrong, copy=False)
    with pytest.raises(ValueError, match="copy"):
        sm.asarray(x, dtype=sm.float32, copy=False)
    assert not np.shares_memory(np.array(sm.asarray(x), copy=True), x)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(sm.asarray(x), dtype=np.float32, copy=False)


def test_bfloat16_passes_without_a_copy_which_numpy_refuses() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(12.0, dtype=torch.bfloat16).reshape(3, 4)
    for part in (t, t.T, t[::2, 1:], t[1, 2], t[:0]):
        x = sm.asarray(part)
        assert (x.dtype, x.shape) == (sm.bfloat16, tuple(part.shape))
        assert torch.equal(torch.from_dlpack(x + 1), part + 1)
        assert torch.equal(torch.from_dlpack(sm.jit(lambda x: x * 2)(part)), part * 2)
    sm.jit(lambda x: x + 1)(t, out=t)
    assert t.sum() == 78
    back = torch.from_dlpack(sm.asarray(t))
    assert back.data_ptr() == t.data_ptr()
    with pytest.raises(sm.errors.DLPackError, match="Unsupported dtype"):
        sm.asarray(torch.ones(3, dtype=torch.float8_e4m3fn))


def test_a_tensor_whose_signs_torch_keeps_apart_is_refused() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    with pytest.raises(sm.errors.DLPackError, match=r"negated elements: pass x.resolve_neg\(\)"):
        sm.asarray(x)
    assert sm.asarray(x.resolve_neg()).tolist() == [-2.0, 4.0]


class Protocol:
    """Offers memory through one protocol only."""

    def __init__(self, data: np.ndarray, name: str) -> None:
        self.data = data
        if name == "__array_interface__":
            self.__array_interface__ = data.__array_interface__

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class OverDLPack:
    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def test_other_libraries() -> None:
    data = rng.standard_normal((3, 4))
    for x in (Protocol(data, "__array_interface__"), OverDLPack(data)):
        np.testing.assert_array_equal(sm.asarray(x) + 1, data + 1)
        np.testing.assert_array_equal(sm.jit(lambda x: x + 1)(x), data + 1)
    with pytest.raises(sm.errors.ArgumentError):
        sm.from_dlpack(3.0)


def test_small_memory_may_change_while_pending() -> None:
    source = np.arange(4.0)
    y = sm.asarray(source) + 1
    source[:] = 100.0
    assert y.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_large_memory_that_changes_while_pending_is_noticed() -> None:
    for change in (lambda s: s.fill(7.0), lambda s: s.__iadd__(1)):
        source = rng.standard_normal((40, 50))
        y = sm.asarray(source) + 1
        change(source)
        with pytest.raises(sm.errors.ChangedError, match="written"):
            np.asarray(y)
    source = np.ones(8192)
    y = sm.asarray(source, copy=False) + 1
    source.resize((0,), refcheck=False)
    with pytest.raises(sm.errors.ChangedError, match="resized"):
        np.asarray(y)


def test_writing_through_numpy_after_reading() -> None:
    for n in (4, 4000):
        x = sm.asarray(np.zeros(n), copy=True)
        before = x + 1
        view = np.asarray(x)
        view[:] = 5.0
        assert float(before[0]) == 1.0
        assert float(x[0]) == 5.0


# Python's protocols


def test_numbers() -> None:
    assert bool(sm.asarray(2) > 1) is True
    assert int(sm.asarray(3.7)) == 3
    assert float(sm.asarray(2)) == 2.0
    assert complex(sm.asarray(1.5)) == 1.5
    assert [10, 20, 30][sm.asarray(1)] == 20
    assert f"{sm.asarray(1.234):.1f}" == "1.2"
    assert sm.asarray([[5]]).item() == 5
    for wrong in (lambda: bool(sm.ones(2)), lambda: float(sm.ones(1)), lambda: sm.ones(2).item()):
        with pytest.raises(sm.errors.ArgumentError):
            wrong()
    with pytest.raises(sm.errors.DTypeError):
        [1][sm.asarray(0.0)]


def test_iteration_and_length() -> None:
    x = sm.asarray([[1, 2], [3, 4]])
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert len(x) == 2
    assert 3 in x
    assert 9 not in x
    for wrong in (len, iter):
        with pytest.raises(TypeError):
            wrong(sm.asarray(1))


def test_repr() -> None:
    assert repr(sm.asarray([1.5, 2.0])) == "Array([1.5, 2. ])"
    assert repr(sm.asarray([1], dtype=sm.int8)) == "Array([1], dtype=int8)"
    assert repr(sm.zeros((0, 2), dtype=sm.float32)) == "Array([], dtype=float32)"
    assert repr(sm.asarray(True)) == "Array(True)"
    assert "bfloat16" in repr(sm.ones(2, dtype="bfloat16"))


def test_copies_and_pickles() -> None:
    x = sm.asarray([1.0, 2.0]) + 1
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.tolist() == [2.0, 3.0]
        y += 1
        assert x.tolist() == [2.0, 3.0]


def test_attributes() -> None:
    x = sm.ones((2, 3), dtype=sm.float32)
    assert (x.shape, x.ndim, x.size, x.device, x.dtype) == ((2, 3), 2, 6, "cpu", sm.float32)
    assert x.T.shape == x.mT.shape == (3, 2)
    assert x.to_device("cpu") is x
    assert x.__array_namespace__() is sm
    with pytest.raises(TypeError):
        hash(x)
    with pytest.raises(sm.errors.ShapeError):
        sm.ones(3).mT  # noqa: B018
    with pytest.raises(sm.errors.DeviceError):
        x.to_device("abacus")
    for namespace, name in product((sm, sm.numpy), ("zeros", "ones", "asarray", "eye")):
        if (namespace, name) != (sm, "asarray"):  # which makes an array on the device
            with pytest.raises(sm.errors.DeviceError, match='device="cuda:0"'):
                getattr(namespace, name)(3, device="cuda")
    with pytest.raises(sm.errors.ArgumentError):
        x.__array_namespace__(api_version="1999.01")


def test_numpy_on_either_side() -> None:
    x, n = sm.asarray([1.0, 2.0]), np.asarray([10.0, 20.0])
    for y in (x + n, n + x, x * np.float64(2), np.float64(2) * x, n @ x, x @ n, n > x, n - x):
        assert isinstance(y, sm.Array)
    assert (n - x).tolist() == [9.0, 18.0]
    assert float(n @ x) == 50.0
    assert isinstance(np.exp(x), np.ndarray)
    assert (x + [1, 2]).tolist() == ([1, 2] + x).tolist() == [2.0, 4.0]  # noqa: RUF005
    with pytest.raises(TypeError):
        x + "a"


def test_in_place() -> None:
    x = sm.asarray([1, 2, 3])
    same = x
    x += 1
    x *= sm.asarray([2, 2, 2])
    x -= np.asarray([1, 1, 1])
    x //= 2
    assert same is x
    assert x.tolist() == [1, 2, 3]
    assert x.dtype == sm.int64
    y = sm.ones(2, dtype=sm.float32)
    y += np.ones(2)
    assert y.dtype == sm.float32
    m = sm.eye(2)
    m @= sm.ones((2, 2))
    assert m.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    with pytest.raises(sm.errors.DTypeError):
        x += 0.5
    with pytest.raises(sm.errors.ShapeError):
        x += sm.ones((2, 3), dtype=sm.int64)


# Sizes that cannot be


def test_impossible_sizes() -> None:
    for wrong in (
        lambda: sm.zeros((2**40, 2**40)),
        lambda: sm.zeros((-1,)),
        lambda: sm.ones((3, -2)),
        lambda: sm.ones((2**40, 1)) + sm.ones((1, 2**40)),
    ):
        with pytest.raises(sm.errors.SmeltError):
            wrong()
    with pytest.raises(sm.errors.OverflowSizeError):
        sm.zeros((2**40, 2**40))
    with pytest.raises(sm.errors.OverflowSizeError):
        sm.zeros((-1,))


# Work outside the compiler


def test_a_failing_library_call_is_reported_as_such() -> None:
    with pytest.raises(sm.errors.ExternError, match="ingular"):
        np.asarray(sm.linalg.inv(sm.zeros((2, 2))))


def test_strictness_refuses_library_calls() -> None:
    x = sm.asarray([2.0, 1.0])
    with sm.config(strict=True):
        for wrong in (
            sm.sort,
            sm.nonzero,
            sm.unique_values,
            lambda x: sm.linalg.inv(x[:, None] * x),
        ):
            with pytest.raises(sm.errors.UnsupportedError, match="STRICT"):
                wrong(x)
    assert sm.sort(x).tolist() == [1.0, 2.0]


LOOPS: dict[str, Any] = {
    "window": lambda m, x, k: m.sum(x[k : k + 5], axis=0),
    "prefix": lambda m, x, k: m.sum(x[:k], axis=0),
    "rest": lambda m, x, k: x[k:] * 2,
    "all but the last": lambda m, x, k: x[:-k] * 2,
    "lag": lambda m, x, k: x[k:] - x[: x.shape[0] - k],
    "batches": lambda m, x, k: x[k * 6 : (k + 1) * 6] @ x.T,
    "backwards": lambda m, x, k: x[k::-1] + 1,
    "turned round": lambda m, x, k: m.roll(x, k, axis=0),
    "swapped": lambda m, x, k: getattr(m, "concat", np.concatenate)([x[k:], x[:k]]),
    "made": lambda m, x, k: m.reshape(m.arange(k * 4), (4, k)) + m.zeros((4, 1)) + m.ones((k,)),
    "row of many": lambda m, x, k: x[k] * 2 + x[k + 1],
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_positions_compiles_a_few_times(name: str, compiled: list[Any]) -> None:
    x = rng.standard_normal((200, 900))
    lazy = sm.asarray(x)
    for k in range(2, 32):
        np.testing.assert_allclose(LOOPS[name](sm, lazy, k), LOOPS[name](np, x, k), atol=1e-12)
    assert len(compiled) <= 6


def test_unread_inputs_imply_sizes_of_no_leaf(compiled: list[Any]) -> None:
    for k in (3, 5, 9):
        np.testing.assert_array_equal(sm.zeros((k, 2)) + 1, np.ones((k, 2)))
    reported = compiled[-1].inputs[-1]
    assert reported.type.dtype.name == "bool"
    assert all(reported not in x.inputs for x in compiled[-1].nodes())


def test_a_few_elements_of_a_known_array_are_copied_at_once(compiled: list[Any]) -> None:
    x = np.arange(12.0).reshape(3, 4)
    lazy = sm.asarray(x)
    row, corner = lazy[1], lazy[2, -1]
    assert not compiled
    x[:] = -1
    np.testing.assert_array_equal(row, [4, 5, 6, 7])
    assert float(corner) == 11
    assert not compiled
    assert [float(v) for v in sm.asarray([1.0, 2.0])] == [1.0, 2.0]
    half = sm.asarray(x[0], dtype=sm.bfloat16)
    np.asarray(half)
    assert half[2].dtype == sm.bfloat16


def test_a_loop_that_writes_is_computed_in_parts(compiled: list[Any]) -> None:
    x = rng.standard_normal((300, 3))
    y, expected = sm.asarray(x, copy=True), x.copy()
    for k in range(1, 300):
        y[k] = y[k - 1] * 0.5 + y[k]
        expected[k] = expected[k - 1] * 0.5 + expected[k]
    np.testing.assert_allclose(y, expected, rtol=1e-13)
    assert max(len(graph.nodes()) for graph in compiled) < 300


def test_masked_elements_are_refused() -> None:
    x = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])
    with pytest.raises(sm.errors.UnsupportedError, match="masked"):
        sm.jit(lambda x: x * 2)(x)
    with pytest.raises(sm.errors.UnsupportedError, match="masked"):
        sm.asarray(x)
    np.testing.assert_array_equal(sm.asarray(np.ma.masked_array([1.0, 2.0])), [1.0, 2.0])


@pytest.mark.parametrize("operators", [3, 7, 22, 70])
def test_a_long_lazy_loop_compiles_few_programs(
    monkeypatch: pytest.MonkeyPatch, operators: int
) -> None:
    """Its parts are cut after the same instruction, so that they are one program."""
    compiled: list[Any] = []
    compile_graph = evaluate_pending.compile_graph

    def count(graph: Any, hints: Any) -> Any:
        compiled.append(graph)
        return compile_graph(graph, hints)

    monkeypatch.setattr(evaluate_pending, "compile_graph", count)
    body = "\n".join("    x = x * 0.75 + 1.0" for _ in range(operators // 2))
    program = f"for _ in range({400 // operators + 10}):\n{body}"
    ours, plain = {"x": sm.ones((5, operators))}, {"x": np.ones((5, operators))}
    exec(program, ours)
    exec(program, plain)
    np.testing.assert_allclose(np.asarray(ours["x"]), plain["x"], rtol=1e-12)
    assert 1 <= len(compiled) <= 4


def test_a_long_lazy_loop_is_reported_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    x = sm.asarray(np.full(5, 0.5), copy=True)
    with knobs.config(log="trace"), caplog.at_level("INFO", logger="smelt.trace"):
        for _ in range(500):
            x = sm.sin(x) * 0.5 + x
        np.asarray(x)
    matches = [r for r in caplog.records if r.getMessage().startswith("loop of 3 operators a step")]
    assert matches and "compiled once" in matches[0].getMessage()
    assert matches[0].pathname == __file__ and matches[0].lineno > 0


LONG_LOOPS = {
    "setup": ("y = sm.zeros(5)\nx = x + sm.sum(y)", "x = sm.sin(x) * 0.5 + x", 60),
    "long body": ("", "\n".join("x = x * 0.75 + 1.0" for _ in range(20)), 12),
    "inner loop": (
        "",
        "s = x * 0.1\nfor k in range(6):\n    s = s + sm.roll(x, k - 3) * 0.1\nx = sm.tanh(s)",
        12,
    ),
    "in place": ("v = sm.zeros(5)", "v += x * 0.01\nx -= v * 0.1\nr = x * 2", 40),
    "several results": ("", "a = x + 1\nb = a * 2\nc = sm.exp(-b)\nx = x + c * 0.01", 40),
}
"""What precedes a loop, its body, and how often that runs."""


@pytest.mark.parametrize("name", LONG_LOOPS)
def test_parts_of_a_loop_are_whole_iterations(compiled: list[Any], name: str) -> None:
    """A loop has a program for what precedes it, its parts, and its end."""
    setup, body, count = LONG_LOOPS[name]
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    program = f"{setup}\nfor _ in range({count}):\n{lines}"
    ours, plain = {"sm": sm, "x": sm.asarray(np.ones(5), copy=True)}, {"sm": np, "x": np.ones(5)}
    exec(program, ours)
    exec(program, plain)
    np.testing.assert_allclose(np.asarray(ours["x"]), plain["x"], rtol=1e-12)
    assert len(compiled) <= 3
