"""`sm.jit` where memory is given or taken: `out=`, `donate=`; and compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm

rng = np.random.default_rng(3)


# out= and donate=


def test_out_is_written() -> None:
    f = sm.jit(lambda x: (x + 1, {"s": sm.sum(x)}))
    x = np.arange(6.0)
    out = (np.zeros(6), {"s": np.zeros(())})
    assert f(x, out=out) is out
    np.testing.assert_array_equal(out[0], x + 1)
    assert out[1]["s"] == 15.0
    strided = np.zeros(12)[::2]
    sm.jit(lambda x: x * 2)(x, out=strided)
    np.testing.assert_array_equal(strided, x * 2)


def test_out_may_be_the_input() -> None:
    x = np.arange(6.0)
    sm.jit(lambda x: sm.flip(x) + x)(x, out=x)
    np.testing.assert_array_equal(x, [5.0] * 6)
    y = np.arange(6.0)
    sm.jit(lambda y: y)(y, out=y)
    np.testing.assert_array_equal(y, np.arange(6.0))


def test_out_takes_what_is_given_back_as_it_is() -> None:
    """Results that turn out to be arguments, or one another, in every call."""
    one: Any = sm.jit(lambda x: x * 1)
    more: Any = sm.jit(lambda x: (x * 1, x * 1.5, x, x * 1.5, sm.reshape(x * 1.5, (4,))))
    for _ in range(4):
        x = rng.random((2, 2))
        out = np.zeros((2, 2))
        np.testing.assert_array_equal(one(x, out=out), x)
        outs = (*(np.zeros((2, 2)) for _ in range(4)), np.zeros(4))
        assert more(x, out=outs) is outs
        for actual, wanted in zip(outs, (x, x * 1.5, x, x * 1.5, x.reshape(4) * 1.5), strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_out_may_swap_the_inputs() -> None:
    x, y = rng.random(3), rng.random(3)
    a, b = x.copy(), y.copy()
    swap: Any = sm.jit(lambda x, y: (y * 1, x * 1))
    swap(x, y, out=(x, y))
    np.testing.assert_array_equal((x, y), (b, a))
    z = np.zeros(3)
    sm.jit(lambda x: (x * 1, x + 1))(x, out=(z, x))
    np.testing.assert_array_equal((z, x), (b, b + 1))


def test_out_may_be_one_of_ours() -> None:
    x = sm.asarray(np.arange(4.0), copy=True)
    pending = x * 10
    f = sm.jit(lambda x: x + 1)
    assert f(x, out=x) is x
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert pending.tolist() == [0.0, 10.0, 20.0, 30.0]


def test_wrong_out() -> None:
    f = sm.jit(lambda x: x + 1)
    x = np.ones(3)
    for out in (np.zeros(4), np.zeros(3, np.float32), 3.0, np.zeros((3, 1))):
        with pytest.raises(sm.errors.OutArgumentError):
            f(x, out=out)
    reported = r"is f64\[3\], out= is f64\[3,1\]"  # types are spelled as everywhere
    with pytest.raises(sm.errors.OutArgumentError, match=reported):
        f(x, out=np.zeros((3, 1)))
    with pytest.raises(sm.errors.OutArgumentError, match=r"f64\[3\] in another order of bytes"):
        f(x, out=np.zeros(3, ">f8"))
    locked = np.zeros(3)
    locked.flags.writeable = False
    with pytest.raises(sm.errors.OutArgumentError, match="read-only"):
        f(x, out=locked)
    with pytest.raises(sm.errors.StructureError):
        f(x, out=(np.zeros(3),))
    buffer = np.zeros(10)
    with pytest.raises(sm.errors.AliasError, match="share"):
        f(buffer[:8], out=buffer[2:])
    with pytest.raises(sm.errors.AliasError):
        sm.jit(lambda x: (x, x + 1))(x, out=(buffer[:3], buffer[1:4]))
    assert not buffer.any()


def test_out_is_nested_as_users_nest() -> None:
    """A named tuple fits a plain one, a dict any key order; errors name the position."""
    x = np.asarray([[3.0, 1.0, 2.0]])
    top = sm.jit(lambda x: sm.top_k(x, 2))
    for built in (
        tuple,
        list,
        lambda actual: sm.top_k(x, 2)._replace(values=actual[0], indices=actual[1]),
    ):
        out = built([np.empty((1, 2)), np.empty((1, 2), np.int64)])
        assert top(x, out=out) is out
        assert (out[0].tolist(), out[1].tolist()) == ([[3, 2]], [[0, 2]])
    split = sm.jit(lambda x: {"a": x + 1, "b": [x * 2, x[:, :1]]})
    one, two, three = np.empty((1, 3)), np.empty((1, 3)), np.empty((1, 1))
    split(x, out={"b": (two, three), "a": one})
    assert (one == x + 1).all() and (two == x * 2).all() and three.tolist() == [[3]]
    reported = r"out=\['b'\] is a list of 1, the result there is a list of 2"
    with pytest.raises(sm.errors.StructureError, match=reported):
        split(x, out={"b": [two], "a": one})
    for wrong in (one, {"a": one}, [one, [two, three]], {"a": [one], "b": [two, three]}):
        with pytest.raises(sm.errors.StructureError, match="out="):
            split(x, out=wrong)


def test_repeated_calls_into_arrays_are_looked_at_as_the_first_one() -> None:
    """Which are answered in a few microseconds, where the array is like one that was right."""
    f = sm.jit(lambda x, y: sm.flip(x) + 2 * y)
    g = sm.jit(lambda d: d["x"] * 2 + d["n"])
    for k in range(4):
        x, y = np.arange(6.0) + k, np.arange(6.0) * k
        right = x[::-1] + 2 * y
        for out in (np.empty(6), np.empty(12)[::2], np.empty(12)[::-2]):
            assert f(x, y, out=out) is out
            assert np.array_equal(out, right)
            assert g({"x": x, "n": k}, out=out) is out
            assert np.array_equal(out, x * 2 + k)
        assert f(x, y, out=x) is x and np.array_equal(x, right)
        buffer = np.arange(8.0)
        with pytest.raises(sm.errors.AliasError):
            f(buffer[:6], y, out=buffer[2:])
        locked = np.zeros(6)
        locked.flags.writeable = False
        with pytest.raises(sm.errors.OutArgumentError):
            f(y, y, out=locked)
        for wrong in (np.empty(7), np.empty(6, "f4"), np.empty(6, ">f8")):
            with pytest.raises(sm.errors.OutArgumentError):
                f(y, y, out=wrong)
        inputs, pending = sm.asarray(np.full(6, 3.0)), np.zeros(6)
        later = sm.asarray(pending) + inputs  # reads what `pending` holds before it is overwritten
        f(y, y, out=pending)
        assert np.array_equal(np.asarray(later), np.full(6, 3.0))


def test_arguments_are_counted_from_both_ends_and_not_beyond() -> None:
    for wrong in (2, -3):
        with pytest.raises(sm.errors.ArgumentError, match="-2 to 1: x, k"):
            sm.jit(lambda x, k: x + k, donate=wrong)
        with pytest.raises(sm.errors.ArgumentError, match="argument number"):
            sm.jit(lambda x, k: x + k, static_argnums=wrong)
    last = sm.jit(lambda x, k: x * len(k), static_argnums=-1)
    assert last(np.ones(2), k="abc").tolist() == [3, 3]  # by name too
    assert last(np.ones(2), "ab").tolist() == [2, 2]
    more = sm.jit(lambda x, *k: x * len(k[1]), static_argnums=2)
    assert more(np.ones(2), 1, "abc").tolist() == [3, 3]


def test_donated_arrays_cannot_be_read() -> None:
    x = sm.asarray(np.ones(8), copy=True)
    alias = x[...]
    _ = (x + 1)[0]  # indexing an array of this type is a recipe by now
    assert sm.jit(lambda x, y: x + y, donate=("x",))(x, 1.0).tolist() == [2.0] * 8
    with pytest.raises(sm.errors.DonatedError):
        x[0]
    for use in (lambda: x, lambda: alias, lambda: x + 1, lambda: float(x[0])):
        with pytest.raises(sm.errors.DonatedError, match="test_jit"):
            np.asarray(use())


def test_what_others_see_is_not_overwritten() -> None:
    g = sm.jit(lambda x, y: x + y, donate=0)
    source = np.ones(4)
    view = sm.asarray(np.ones(4), copy=True)
    seen = np.asarray(view)
    twice = sm.asarray(np.ones(4), copy=True)
    for x, y in ((source[::1], source), (view, np.ones(4)), (twice, twice[...])):
        assert g(x, y).tolist() == [2.0] * 4
    assert seen.tolist() == source.tolist() == [1.0] * 4


def _update(p: Any, g: Any, m: Any) -> tuple[Any, Any]:
    m = 0.9 * m + 0.1 * g
    return p - 0.01 * m, m


def test_results_take_the_memory_of_donated_arrays() -> None:
    f = sm.jit(_update, donate=("p", "m"))
    values = [rng.standard_normal(1000) for _ in range(3)]
    p, g, m = (sm.asarray(x, copy=True) for x in values)
    memory = {x.node.data.ctypes.data for x in (p, m)}
    for _ in range(3):
        p, m = f(p, g, m)
        values[0], values[2] = _update(*values)
    assert {np.asarray(x).ctypes.data for x in (p, m)} == memory
    np.testing.assert_allclose(np.asarray(p), values[0], rtol=1e-12)
    np.testing.assert_allclose(np.asarray(m), values[2], rtol=1e-12)


def test_donated_arrays_are_kept_while_they_are_needed() -> None:
    """Read by a later kernel, at other positions, or returned: then a result has its own memory."""
    n = 70_000
    x, y = rng.standard_normal((2, n))
    for f, expected in (
        (lambda x, y: (x * y, x[::-1] + y), (x * y, x[::-1] + y)),
        (lambda x, y: (x + 1, sm.sum(x) * y), (x + 1, np.sum(x) * y)),
        (lambda x, y: (x, x + y), (x, x + y)),
        (lambda x, y: (sm.cumulative_sum(x), x + y), (np.cumsum(x), x + y)),
        (lambda x, y: (x + y, x - y), (x + y, x - y)),
        (lambda x, y: (x * 2 + y, (x * 2 + y)[1:5]), (x * 2 + y, (x * 2 + y)[1:5])),
    ):
        inputs = sm.asarray(x, copy=True)
        for actual, value in zip(sm.jit(f, donate="x")(inputs, y), expected, strict=True):
            np.testing.assert_allclose(np.asarray(actual), value, rtol=1e-9, atol=1e-9)


def test_out_goes_before_donation_and_a_report_takes_nothing() -> None:
    f = sm.jit(_update, donate=("p", "m"))
    p, g, m = rng.standard_normal((3, 100))
    before = p.copy()
    report = sm.explain(f, p, g, m)
    assert np.array_equal(p, before)
    assert report.data.memory.alias == 1600
    out = (np.empty(100), np.empty(100))
    f(p, g, m, out=out)
    np.testing.assert_allclose(out[0], before - 0.01 * (0.9 * m + 0.1 * g), rtol=1e-12)
    assert np.array_equal(p, before)


# Ahead of time


def test_lower_and_compile() -> None:
    lowered = sm.jit(lambda x, w: sm.exp(x) @ w).lower(
        sm.spec("f32[b,n]"), sm.spec(("n", 4), "float32")
    )
    assert "x: f32[b,n], w: f32[n,4]" in lowered.as_text()
    compiled = lowered.compile()
    x, w = rng.standard_normal((3, 5)).astype(np.float32), np.ones((5, 4), np.float32)
    np.testing.assert_allclose(compiled(x, w), np.exp(x) @ w, rtol=1e-5)
    x, w = rng.standard_normal((2, 7)).astype(np.float32), np.ones((7, 4), np.float32)
    np.testing.assert_allclose(compiled(x, w), np.exp(x) @ w, rtol=1e-5)
    for wrong in (
        (x, w[:6]),
        (x.astype(np.float64), w),
        (x[0], w),
        (x, np.ones((7, 5), np.float32)),
        (x[:1], w),
        (x.T.copy().T, w),
    ):
        with pytest.raises(sm.errors.GuardError):
            compiled(*wrong)
    with pytest.raises(sm.errors.StructureError):
        compiled(x, [w])


def test_lower_with_arrays() -> None:
    compiled = sm.jit(lambda x, s: x * s).lower(np.ones((3, 4)), 2.0).compile()
    assert compiled(np.ones((5, 6)), 3.0).shape == (5, 6)
    with pytest.raises(sm.errors.ArgumentError):
        compiled.as_text("nonsense")


@pytest.mark.parametrize("wrong", [((-1,),), (("a b",),), (("in",),), (("n",), "nonsense")])
def test_wrong_specs(wrong: Any) -> None:
    with pytest.raises(sm.errors.SmeltError):
        sm.spec(*wrong)


def test_specs_with_expressions() -> None:
    compiled = (
        sm.jit(lambda x, y: sm.reshape(x, (-1, 2)) + y)
        .lower(sm.spec("f64[n*2]"), sm.spec("f64[n,2]"))
        .compile()
    )
    x, y = rng.standard_normal(6), rng.standard_normal((3, 2))
    np.testing.assert_array_equal(compiled(x, y), x.reshape(3, 2) + y)
    with pytest.raises(sm.errors.GuardError):
        compiled(np.ones(8), y)
    with pytest.raises(sm.errors.ArgumentError, match="by itself"):
        sm.jit(lambda x: x).lower(sm.spec("f64[n*2]"))
    with pytest.raises(sm.errors.ExprTextError):
        sm.spec("f64[n/2]")


def test_out_whose_elements_share_memory_is_refused():
    f, x = sm.jit(lambda x: x * 2), np.ones((20, 37))
    room = np.zeros(2000)
    for strides in ((0, 8), (8, 8), (37 * 8 - 8, 8), (8, 0)):
        with pytest.raises(sm.errors.OutArgumentError, match="share memory"):
            f(x, out=np.lib.stride_tricks.as_strided(room, (20, 37), strides))
    assert not room.any()
    for strides in ((37 * 8, 8), (8, 20 * 8), (37 * 16, 16)):
        out = np.lib.stride_tricks.as_strided(room, (20, 37), strides)
        assert (np.asarray(f(x, out=out)) == 2).all()
    one = np.lib.stride_tricks.as_strided(room, (1, 37), (0, 8))
    f(np.ones((1, 37)), out=one)
    assert (one == 2).all()
