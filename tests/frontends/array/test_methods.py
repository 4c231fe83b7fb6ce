"""Methods and attributes of arrays, and calls as NumPy's people write them, against NumPy."""

from __future__ import annotations

import pickle
from inspect import isfunction
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ArgumentError, TracerError, UnsupportedError
from smelt.frontends.array.methods import METHODS, PROPERTIES
from smelt.frontends.array.operators import Operators

CALLS = """
x.all(); x.all(0); x.any(axis=1, keepdims=True); x.argmax(); x.argmax(1); x.argmin(axis=0)
x.argsort(); x.argsort(0); x.argsort(axis=None); x.argpartition(2)[..., 2:3]
x.astype(int); x.astype("float32"); x.astype(np.float32); x.astype(bool); x.clip(0, 1)
x.clip(min=0); x.clip(None, 1); x.compress([True, False, True], axis=0); x.conj(); x.conjugate()
x.copy(); x.cumprod(); x.cumprod(1); x.cumsum(); x.cumsum(axis=0, dtype="float32")
x.diagonal(); x.diagonal(1); x.dot(x.T); x.dot([1, 2, 3, 4]); x.flatten(); x.item(5); x.item(1, 2)
x.max(); x.max(0); x.max(initial=9); x.max(where=x < 0, initial=-5); x.mean(); x.mean(1)
x.mean(axis=(0, 1)); x.mean(dtype="float32"); x.mean(where=x > 0); x.mean(0, where=x > 0)
x.min(); x.min(1, keepdims=True); (x - x).nonzero(); x.nonzero(); x.prod(); x.prod(1)
x.prod(where=x > 0); x.ptp() if hasattr(x, "ptp") else x.max() - x.min()
x.ravel(); x.ravel(order="C"); x.repeat(2); x.repeat(2, 0); x.repeat([1, 0, 2], axis=0)
x.reshape(4, 3); x.reshape((2, -1)); x.reshape(-1); x.round(); x.round(1); x.round(-1)
abs(x[0]).cumsum().searchsorted([0.5]); x[None].squeeze(); x[None].squeeze(0)
x.std(); x.std(0); x.std(ddof=1)
x.std(axis=1, ddof=1, keepdims=True); x.std(where=x > 0); x.sum(); x.sum(0); x.sum(1, "float32")
x.sum(axis=-1, keepdims=True); x.sum(initial=10); x.sum(where=x > 0); x.swapaxes(0, 1)
x.swapaxes(0, -1); x.take([1, 5]); x.take([0, 2], axis=1); x.take([[0, 9]], mode="wrap")
x.take([[0, 99]], mode="clip"); x.take(3); x.trace(); x.trace(1); x.transpose(); x.transpose(1, 0)
x.transpose((1, 0)); x[None].transpose(2, 0, 1); x.var(); x.var(0); x.var(ddof=1)
x.var(1, where=x > 0); x.view("int64"); x.tobytes(); x.tolist(); x.T; x[0].T; x[None].T; x.real
x.imag; x.nbytes; x.itemsize; x.strides; x.flat[5]; [float(v) for v in x.flat]; len(x.flat)
f"{x[0, 1]:.3f}"; round(float(x[0, 1]), 2); divmod(x, 2); x.sum().item(); list(x.shape)
x + [1, 2, 3, 4]; [1, 2, 3, 4] * x; x == [[1.0]]; [float(v) for v in x[0]]; x.ndim; x.size
"""


def calls() -> list[str]:
    return [c for line in CALLS.strip().splitlines() for c in line.split("; ")]


def same(actual: Any, wanted: Any) -> None:
    """Compare values, shapes and dtypes; containers item by item."""
    if isinstance(wanted, (tuple, list)) and not np.isscalar(wanted):
        assert len(actual) == len(wanted)
        for a, b in zip(actual, wanted, strict=True):
            same(a, b)
        return
    a, b = np.asarray(actual), np.asarray(wanted)
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if b.dtype.kind == "f":
        np.testing.assert_allclose(a, b, rtol=1e-6 if b.dtype.itemsize < 8 else 1e-12)
    else:
        np.testing.assert_array_equal(a, b)


DATA = np.random.default_rng(1).standard_normal((3, 4)) * 3


@pytest.mark.parametrize("call", calls())
def test_methods_are_numpys(call: str) -> None:
    wanted = eval(call, {"x": DATA.copy(), "np": np})
    same(eval(call, {"x": sm.asarray(DATA.copy()), "np": np}), wanted)


IN_PLACE = """
x.sort(); x.sort(0); x.sort(axis=-1); x.fill(3); x.fill(2.5); x.partition(1); x += [1, 2, 3, 4]
x.flat[3] = 7; x.flat = 5; x[0] = [1, 2, 3, 4]; x[x < 0] = 0; x[:, 1] *= 2; x **= 2
"""


@pytest.mark.parametrize("call", IN_PLACE.replace("\n", "; ").strip("; ").split("; "))
def test_in_place_methods_are_numpys(call: str) -> None:
    ours: Any = {"x": sm.asarray(DATA.copy()), "np": np}
    plain: Any = {"x": DATA.copy(), "np": np}
    exec(call, ours)
    exec(call, plain)
    if "partition" in call:
        ours["x"], plain["x"] = ours["x"][:, 1], plain["x"][:, 1]
    same(ours["x"], plain["x"])


def test_every_method_of_numpy_is_there_or_not_meant_to_be() -> None:
    """What is missing has to do with memory, which arrays of ours do not show."""
    memory = {"ctypes", "data", "dumps", "getfield", "setfield"}
    other = {"choose", "put"}  # functions of `smelt.numpy`
    names = {n for n in dir(np.ndarray) if not n.startswith("_")}
    missing = {n for n in names if not hasattr(sm.Array, n)}
    assert missing == memory | other
    assert not set(METHODS) & set(PROPERTIES)


def test_refused_methods_say_what_to_do() -> None:
    x: Any = sm.ones(3)
    for name in ("resize", "byteswap", "tofile", "dump"):
        with pytest.raises(UnsupportedError, match=name) as caught:
            getattr(x, name)()
        assert caught.value.help
    for wrong in (lambda: x.reshape(3, order="F"), lambda: x.astype(int, order="F")):
        with pytest.raises(UnsupportedError, match="order='F'"):
            wrong()


def test_out_gets_the_result() -> None:
    x: Any = sm.asarray(DATA)
    out: Any = sm.zeros(4, dtype=sm.float32)
    assert x.sum(0, out=out) is out
    np.testing.assert_allclose(np.asarray(out), DATA.sum(0), rtol=1e-6)
    buffer = np.zeros(3)
    assert x.max(1, out=buffer) is buffer
    assert buffer.tolist() == DATA.max(1).tolist()
    with pytest.raises(ArgumentError, match="shape"):
        x.sum(1, out=out)
    with pytest.raises(sm.errors.DTypeError):
        x.sum(0, out=sm.zeros(4, dtype=sm.int64))


def test_methods_are_recorded_and_differentiated() -> None:
    def f(x: Any) -> Any:
        return (x.reshape(-1, 2).sum(0) * x.mean()).sum() + x.T.ravel().max()

    x = sm.asarray(DATA)
    assert np.isclose(float(sm.jit(f)(x)), float(f(DATA)))
    slope = np.asarray(sm.grad(f)(x))
    step = 1e-6 * np.eye(12)[5].reshape(3, 4)
    assert np.isclose((f(DATA + step) - f(DATA - step)) / 2e-6, slope.ravel()[5], rtol=1e-5)
    with pytest.raises(TracerError):
        sm.jit(lambda x: x.item(0))(x)


def test_pickles_and_notebooks() -> None:
    x: Any = sm.asarray(DATA)
    assert pickle.loads(pickle.dumps(x)).tolist() == DATA.tolist()
    page = x._repr_html_()
    assert page.count("<tr>") == 3
    assert "Array 3 × 4, float64" in page
    assert sm.ones(3)._repr_html_() == "<pre>Array([1., 1., 1.])</pre>"


CORE = """
sum(x, 0); mean(x, 1); max(x, -1); std(x, 0, ddof=1); var(x, ddof=1); argmax(x, 1); sort(x, 0)
argsort(x, 0); concat([x, x], 1) if hasattr(np, "concat") else x; stack([x, x], 1); flip(x, 0)
roll(x, 1, 0); repeat(x, 2, 1); squeeze(x[None]); take(x, [1, 2], 1); zeros((2, 3), int)
ones(3, "float32"); full(3, 1, float); eye(3, 4, 1, int); tril(x, -1); triu(x, 1); round(x, 2)
exp(-0.03); sqrt(2); maximum(1, 2.5); sum([1, 2, 3]); mean([[1.0, 2.0], [3.0, 5.0]], 0)
concat([[1, 2], [3]]); add([1, 2], 3); sin([0.0, 1.0]); abs(-3); where([True, False], 1, 0)
"""


@pytest.mark.parametrize("call", CORE.replace("\n", "; ").strip("; ").split("; "))
def test_functions_take_numpys_positions_numbers_and_lists(call: str) -> None:
    wanted = eval(f"np.{call}", {"np": np, "x": DATA})
    actual = eval(f"np.{call}", {"np": sm, "x": sm.asarray(DATA)})
    same(actual, wanted)


def test_axes_of_swapaxes_are_checked() -> None:
    x = sm.asarray([[1.0, 2.0, 3.0]])
    assert x.swapaxes(0, -1).shape == (3, 1)
    for axes in ((0, 5), (-3, 0), (0.5, 1)):
        with pytest.raises(sm.errors.SmeltError):
            x.swapaxes(*axes)


def test_a_table_for_notebooks_shows_integers_in_full() -> None:
    assert "<td>1234567</td>" in sm.asarray([[1234567, 2]])._repr_html_()
    assert "<td>0.333333</td>" in sm.asarray([[1 / 3]])._repr_html_()


def test_methods_of_operators_have_their_names() -> None:
    x = sm.asarray(DATA)
    for name, method in vars(Operators).items():
        if name.startswith("__") and isfunction(method):
            assert method.__qualname__ == f"Operators.{name}"
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x.__rsub__))(1.0), 1.0 - DATA)
