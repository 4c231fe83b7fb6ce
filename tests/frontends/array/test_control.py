"""Loops and branches that are recorded once: results, sizes, errors, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt import knobs
from smelt.frontends.array import evaluate_pending
from smelt.frontends.array.jit import Jit
from smelt.graph.loop import Loop

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
WAYS = pytest.mark.parametrize("way", [lambda f: f, sm.jit], ids=["lazy", "jit"])


def recordings(f: Any) -> int:
    assert isinstance(f, Jit)
    return sum(map(len, f.traces.values()))


def kernels(f: Any, *args: Any) -> list[str]:
    return [k.data.kind for k in sm.explain(f, *args).kernels]


def ema(c: Any, xs: Any) -> Any:
    return sm.scan(lambda c, x: (c * 0.5 + x, c - x), c, xs)


def ema_reference(c: Array, xs: Array) -> tuple[Array, Array]:
    ys = []
    for x in xs:
        ys.append(c - x)
        c = c * 0.5 + x
    return c, np.stack(ys) if ys else np.empty((0, *c.shape), c.dtype)


def rnn(w: Any, c: Any, xs: Any) -> Any:
    return sm.scan(lambda c, x: (sm.tanh(w @ c + x), sm.sum(c)), c, xs)


def rnn_reference(w: Array, c: Array, xs: Array) -> tuple[Array, Array]:
    ys = []
    for x in xs:
        ys.append(c.sum())
        c = np.tanh(w @ c + x)
    return c, np.asarray(ys, c.dtype)


# ---- scan ----------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_scan_of_elements_and_of_a_product(way: Any, length: int) -> None:
    c, xs, w = RNG.normal(size=5), RNG.normal(size=(length, 5)), RNG.normal(size=(5, 5))
    for results, expected in (
        (way(ema)(c, xs), ema_reference(c, xs)),
        (way(rnn)(w, c, xs), rnn_reference(w, c, xs)),
    ):
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(np.asarray(result), reference, rtol=1e-12)
            assert np.asarray(result).dtype == reference.dtype


def test_a_new_length_or_width_is_not_recorded_or_compiled_again() -> None:
    f, g = sm.jit(ema), sm.jit(rnn)
    f(np.ones(4), np.ones((3, 4)))
    g(np.eye(4), np.ones(4), np.ones((3, 4)))
    with knobs.config(strict=True):
        for n, t in ((4, 50), (7, 2), (100, 33)):
            c, xs, w = RNG.normal(size=n), RNG.normal(size=(t, n)), RNG.normal(size=(n, n)) / n
            np.testing.assert_allclose(f(c, xs)[1], ema_reference(c, xs)[1], rtol=1e-12)
    for n, t in ((4, 50), (7, 2), (100, 33)):
        c, xs, w = RNG.normal(size=n), RNG.normal(size=(t, n)), RNG.normal(size=(n, n)) / n
        np.testing.assert_allclose(g(w, c, xs)[0], rnn_reference(w, c, xs)[0], rtol=1e-10)
    assert recordings(f) == recordings(g) == 1


def test_a_recurrence_is_one_kernel_and_any_other_step_runs_again_and_again() -> None:
    c, xs = np.ones(6), np.ones((8, 6))
    assert kernels(sm.jit(ema), c, xs) == ["kernel"]
    (first, *_), text = (
        kernels(sm.jit(rnn), np.eye(6), c, xs),
        str(sm.explain(sm.jit(rnn), np.eye(6), c, xs)),
    )
    assert first == "loop" and "loop of 8 steps: body compiled once" in text


def test_a_lazy_loop_is_compiled_once_for_all_lengths() -> None:
    families: dict[Any, Any] = vars(evaluate_pending)["_FAMILIES"]

    def run(t: int) -> None:
        c, xs = RNG.normal(size=3), RNG.normal(size=(t, 3))
        last, ys = sm.scan(lambda c, x: (c * 0.25 + x, c - x), sm.asarray(c), sm.asarray(xs))
        assert np.asarray(last).shape == (3,) and np.asarray(ys).shape == (t, 3)

    for t in (4, 5, 6):
        run(t)
    before = sum(len(family.plans) for family in families.values())
    for t in (7, 20, 31):
        run(t)
    assert sum(len(family.plans) for family in families.values()) == before


@pytest.mark.parametrize("step", ["elementwise", "product"])
def test_a_lazy_loop_over_captured_arrays_is_compiled_once_for_all_widths(step: str) -> None:
    families: dict[Any, Any] = vars(evaluate_pending)["_FAMILIES"]

    def run(t: int, n: int) -> None:
        decay, w, xs = RNG.normal(size=n), RNG.normal(size=(n, n)) / n, RNG.normal(size=(t, n))
        by, matrix = sm.asarray(decay), sm.asarray(w)
        if step == "product":
            last, _ = sm.scan(lambda c, x: (matrix @ c + x, c), sm.zeros(n), sm.asarray(xs))
        else:
            last, _ = sm.scan(lambda c, x: (by * c + x, c), sm.zeros(n), sm.asarray(xs))
        expected = np.zeros(n)
        for x in xs:
            expected = (w @ expected if step == "product" else decay * expected) + x
        np.testing.assert_allclose(last, expected, rtol=1e-10)

    for t, n in ((4, 3), (5, 3), (5, 4)):
        run(t, n)
    before = sum(len(family.plans) for family in families.values())
    for t, n in ((7, 9), (20, 5), (3, 31), (6, 6)):
        run(t, n)
    assert sum(len(family.plans) for family in families.values()) == before


@WAYS
def test_nests_numbers_and_reverse(way: Any) -> None:
    def f(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            return {"sum": carry["sum"] + x["a"], "n": carry["n"] + 1}, (x["b"] * carry["n"], None)

        return sm.scan(step, {"sum": 0.0, "n": 0}, xs, reverse=True)

    xs = {"a": RNG.normal(size=5).astype("f"), "b": RNG.normal(size=(5, 2))}
    carry, (ys, nothing) = way(f)({k: sm.asarray(v) for k, v in xs.items()})
    assert nothing is None and carry["sum"].dtype == sm.float32 and int(carry["n"]) == 5
    np.testing.assert_allclose(carry["sum"], xs["a"].sum(), rtol=1e-6)
    np.testing.assert_allclose(ys, xs["b"] * np.arange(4, -1, -1)[:, None])


@WAYS
def test_captured_values_and_sizes(way: Any) -> None:
    """The step reads values, numbers and sizes from around the loop."""

    def f(w: Any, xs: Any, scale: Any) -> Any:
        twice = w * 2
        return sm.scan(
            lambda c, x: (c + twice * x * scale + w.shape[0], sm.zeros(w.shape[0])), w * 0, xs
        )[0]

    w, xs = RNG.normal(size=4), RNG.normal(size=(3, 4))
    result = way(f)(sm.asarray(w), sm.asarray(xs), 1.5)
    np.testing.assert_allclose(result, (2 * w * xs * 1.5 + 4).sum(0))


@WAYS
def test_loops_inside_loops(way: Any) -> None:
    def f(w: Any, xs: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            inner, ys = sm.scan(lambda s, x: (s + w @ (c * x), sm.sum(s)), sm.zeros(3), row)
            return inner, ys

        return sm.scan(outer, sm.ones(3), xs)

    w, xs = RNG.normal(size=(3, 3)), RNG.normal(size=(4, 5))
    c, results = np.ones(3), []
    for row in xs:
        s, ys = np.zeros(3), []
        for x in row:
            ys.append(s.sum())
            s = s + w @ (c * x)
        c = s
        results.append(ys)
    last, ys = way(f)(sm.asarray(w), sm.asarray(xs))
    np.testing.assert_allclose(last, c)
    np.testing.assert_allclose(ys, results, rtol=1e-9, atol=1e-12)


@WAYS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "int64", "bool"])
def test_dtypes_of_carries(way: Any, dtype: str) -> None:
    kind = getattr(sm, dtype)
    xs = sm.astype(sm.asarray(RNG.integers(0, 2, (6, 3))), kind)
    step = (
        (lambda c, x: (sm.logical_xor(c, x), c))
        if dtype == "bool"
        else (lambda c, x: (sm.astype(c + x, kind), c))
    )
    last, ys = way(lambda xs: sm.scan(step, xs[0], xs))(xs)
    assert last.dtype == ys.dtype == kind
    plain = np.asarray(sm.astype(xs, sm.float32))
    sums = np.concatenate([plain[:1], plain[0] + np.cumsum(plain, 0)])
    expected = sums % 2 if dtype == "bool" else sums
    np.testing.assert_array_equal(np.asarray(sm.astype(ys, sm.float32)), expected[:-1])


def test_a_step_with_a_product_of_no_rows() -> None:
    w = sm.asarray(np.ones((3, 4), np.float32))
    f = sm.jit(lambda c, xs: sm.scan(lambda c, x: (sm.tanh(c @ w.mT @ w + x @ w),) * 2, c, xs))
    c, ys = f(np.ones((0, 4), np.float32), np.ones((5, 0, 3), np.float32))
    assert (c.shape, ys.shape) == ((0, 4), (5, 0, 4))


def test_one_array_in_several_places() -> None:
    x = sm.asarray(RNG.normal(size=(3, 3)))
    last, _ys = sm.jit(lambda x: sm.scan(lambda c, r: (c + r * sm.sum(x), c), x[0], x))(x)
    a = np.asarray(x)
    np.testing.assert_allclose(last, a[0] + a.sum(0) * a.sum())
    swapped, _ = sm.jit(lambda x: sm.scan(lambda c, r: ((c[1], c[0]), r), (x[0], x[1]), x))(x)
    np.testing.assert_array_equal(swapped[0], a[1])
    np.testing.assert_array_equal(swapped[1], a[0])


# ---- the other loops, and branches ---------------------------------------------------------------


@WAYS
def test_fori_and_while_loops(way: Any) -> None:
    w = RNG.normal(size=(3, 3))

    def f(w: Any, n: Any) -> Any:
        fixed = sm.fori_loop(1, 4, lambda i, c: c @ w + i, w)
        traced = sm.fori_loop(n - 1, n + 2, lambda i, c: c * 2 + i, sm.zeros(2))
        count, value = sm.while_loop(
            lambda c: sm.sum(c[1]) < 100, lambda c: (c[0] + 1, c[1] * 2), (0, sm.ones(3))
        )
        return fixed, traced, count, value

    fixed, traced, count, value = way(f)(sm.asarray(w), sm.asarray(5))
    c = w
    for i in range(1, 4):
        c = c @ w + i
    np.testing.assert_allclose(fixed, c)
    np.testing.assert_array_equal(traced, np.full(2, (4 * 2 + 5) * 2 + 6.0))
    assert int(count) == 6
    np.testing.assert_array_equal(value, np.full(3, 64.0))


def test_a_while_loop_is_not_recorded_again_for_another_count() -> None:
    f = sm.jit(lambda n, x: sm.fori_loop(0, n, lambda i, c: c + i, x))
    for n in (0, 1, 7, 40):
        assert float(f(np.int64(n), np.float64(1.0))) == 1 + n * (n - 1) / 2
    assert recordings(f) == 1


@pytest.mark.parametrize("heavy", [False, True])
def test_cond(heavy: bool) -> None:
    def yes(x: Any) -> Any:
        return {"y": (x @ x if heavy else x * 2), "z": sm.sum(x) if heavy else x[0, 0]}

    def no(x: Any) -> Any:
        return {"y": x - 1, "z": x[0, 1]}

    f = sm.jit(lambda p, x: sm.cond(p, yes, no, x))
    x = RNG.normal(size=(3, 3))
    for p, expected in ((True, yes), (False, no)):
        result, wanted = f(np.bool_(p), x), expected(x)
        np.testing.assert_allclose(result["y"], wanted["y"])
        np.testing.assert_allclose(result["z"], np.sum(x) if p and heavy else wanted["z"])
    assert ("loop" in kernels(f, sm.asarray(True), x)) == heavy
    assert sm.cond(sm.asarray(True), lambda: 1, lambda: 2) == 1


def test_branches_read_arrays_from_outside_of_the_recording() -> None:
    """Also those that are recorded again, as 8-bit weights that are widened."""
    weights = sm.asarray(RNG.integers(-9, 9, (3, 3)).astype(np.int8))
    wide = sm.astype(weights, sm.float64) * 0.5

    @sm.jit
    def f(p: Any, x: Any) -> Any:
        return sm.cond(p, lambda: x @ wide, lambda: sm.cumulative_sum(x) + wide[0]), x @ wide

    x, w = RNG.normal(size=3), np.asarray(weights) * 0.5
    for p, expected in ((True, x @ w), (False, np.cumsum(x) + w[0])):
        result, product = f(np.asarray(p), x)
        np.testing.assert_allclose(result, expected)
        np.testing.assert_allclose(product, x @ w)


def test_steps_read_widened_weights_with_their_short_elements() -> None:
    """A cast around the loop or inside it is computed in each step; nothing long is stored."""
    data = RNG.integers(-9, 9, (24, 24)).astype(np.int8)
    weights = sm.asarray(data, copy=True)

    @sm.jit
    def f(x: Any, before: Any) -> Any:
        wide = sm.astype(before, sm.float64)

        def step(carry: Any, row: Any) -> Any:
            y = (carry @ sm.astype(weights, sm.float64) + row @ wide) * 0.01
            return y, y

        return sm.scan(step, sm.zeros(24, dtype=sm.float64), x)[1]

    x, carry, rows = RNG.normal(size=(5, 24)), np.zeros(24), []
    for row in x:
        carry = (carry @ data + row @ data) * 0.01
        rows.append(carry)
    np.testing.assert_allclose(f(x, weights), np.stack(rows))
    (loop,) = {n.op for n in f.lower(x, weights).trace.graph.nodes() if isinstance(n.op, Loop)}
    types = [i.type.dtype.name for i in loop.body.graph.inputs if len(i.type.shape) == 2]
    assert types == ["i8", "i8"]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (lambda x: sm.scan(lambda c, r: (sm.astype(c, sm.float32), r), x[0], x), "E206", "f32[3]"),
        (lambda x: sm.scan(lambda c, r: (c[:2], r), x[0], x), "E206", "f64[2], not f64[3]"),
        (lambda x: sm.scan(lambda c, r: ((c, c), r), x[0], x), "E206", "2 arrays"),
        (lambda x: sm.scan(lambda c, r: c, x[0], x), "E204", "not the pair"),
        (lambda x: sm.scan(lambda c, r: (c, c), x[0], (x, x[1:])), "E207", "says 4 steps"),
        (lambda x: sm.scan(lambda c, r: (c, c), x[0], x, length=3), "E207", "length says 3"),
        (lambda x: sm.scan(lambda c, r: (c, c), x[0]), "E207", "neither"),
        (lambda x: sm.scan(lambda c, r: (c, c), x[0], None, sm.sum(x)), "E207", "fori_loop"),
        (lambda x: sm.scan(lambda c, r: (c if r > 0 else -c, c), 0.0, x[0]), "E201", "values"),
        (lambda x: sm.while_loop(lambda c: c, lambda c: c, x), "E107", "one bool"),
        (lambda x: sm.while_loop(lambda c: sm.sum(c) > 0, lambda c: c[1:], x), "E206", "carry"),
        (lambda x: sm.fori_loop(0, x, lambda i, c: c, x), "E107", "one integer"),
        (lambda x: sm.cond(sm.sum(x) > 0, lambda: x, lambda: (x, x)), "E206", "nested"),
        (lambda x: sm.cond(sm.sum(x) > 0, lambda: x, lambda: x[1:]), "E206", "false branch"),
        (
            sm.grad(lambda x: sm.sum(sm.while_loop(lambda c: sm.sum(c) < 9, lambda c: c * 2, x))),
            "E109",
            "fori_loop",
        ),
    ],
)
def test_mistakes_name_what_to_do(f: Any, error: str, text: str) -> None:
    with pytest.raises(sm.errors.SmeltError) as caught:
        sm.jit(f)(np.ones((4, 3)))
    assert caught.value.code == error
    assert text in str(caught.value)
    assert caught.value.origin.known


def test_values_of_a_step_do_not_leave_it() -> None:
    kept: list[Any] = []
    sm.scan(lambda c, x: (kept.append(x) or c, x), 0.0, sm.ones(3))
    with pytest.raises(sm.errors.LeakError):
        _ = kept[0] + 1


@WAYS
def test_positions_in_a_step_are_checked(way: Any) -> None:
    def f(table: Any, tokens: Any) -> Any:
        return sm.scan(lambda c, i: (c + table[i], c), sm.zeros(table.shape[1]), tokens)[0]

    table = RNG.normal(size=(10, 3))
    run = way(f)
    np.testing.assert_allclose(
        run(sm.asarray(table), sm.asarray([1, -1, 9])), table[[1, -1, 9]].sum(0)
    )
    for tokens in ([1, 10, 2], [1, -11, 2]):
        with pytest.raises(sm.errors.OutsideError):
            np.asarray(run(sm.asarray(table), sm.asarray(tokens)))


# ---- gradients -----------------------------------------------------------------------------------


def _loss(w: Any, c: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        h, n = carry
        new = sm.tanh(w @ h + x * h)
        return (new, n + 1), (new * n, sm.sum(h))

    (last, _), (ys, zs) = sm.scan(step, (c, 0), xs)
    return sm.sum(last**2) + sm.sum(ys**2) + sm.sum(sm.sin(zs))


@WAYS
def test_gradient_against_finite_differences(way: Any) -> None:
    args = [RNG.normal(size=s) * 0.5 for s in ((3, 3), (3,), (4, 3))]
    slopes = way(sm.grad(_loss, (0, 1, 2)))(*map(sm.asarray, args))
    for k, slope in enumerate(slopes):
        direction = RNG.normal(size=args[k].shape)

        def at(h: float, k: int = k, direction: Array = direction) -> float:
            moved = [a + h * direction if j == k else a for j, a in enumerate(args)]
            return float(_loss(*map(sm.asarray, moved)))

        numeric = (at(1e-6) - at(-1e-6)) / 2e-6
        np.testing.assert_allclose(np.sum(np.asarray(slope) * direction), numeric, rtol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_against_pytorch(reverse: bool) -> None:
    torch = pytest.importorskip("torch")
    a, b, xs = RNG.uniform(size=4), RNG.normal(size=4), RNG.normal(size=(6, 4))

    def f(a: Any, b: Any, xs: Any) -> Any:
        last, ys = sm.scan(lambda c, x: (a * c + sm.sin(x) * b, c * x), b * 2, xs, reverse=reverse)
        return sm.sum(last**3) + sm.sum(ys**2)

    leaves = [torch.tensor(x, requires_grad=True) for x in (a, b, xs)]
    ta, tb, txs = leaves
    c, total = tb * 2, 0
    for x in txs.flip(0) if reverse else txs:
        total = total + ((c * x) ** 2).sum()
        c = ta * c + torch.sin(x) * tb
    (total + (c**3).sum()).backward()
    for slope, leaf in zip(sm.jit(sm.grad(f, (0, 1, 2)))(a, b, xs), leaves, strict=True):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-10)


@WAYS
@pytest.mark.parametrize("copies", [1, 2])
def test_carries_before_each_step_as_results_and_for_the_gradient(way: Any, copies: int) -> None:
    """Results that are a carry before the step, and what the gradient saves, are one array."""
    torch = pytest.importorskip("torch")
    w, xs = RNG.normal(size=(4, 4)) / 2, RNG.normal(size=(5, 4))

    def f(w: Any, xs: Any) -> Any:
        _, ys = sm.scan(lambda h, x: (sm.tanh(w @ h + x), (h,) * copies), sm.zeros(4), xs)
        return sum(sm.sum(y**2) * (k + 1) for k, y in enumerate(ys))

    leaves = [torch.tensor(x, requires_grad=True) for x in (w, xs)]
    h, total = torch.zeros(4, dtype=torch.float64), 0
    for x in leaves[1]:
        total = total + (h**2).sum() * (copies * (copies + 1) // 2)
        h = torch.tanh(leaves[0] @ h + x)
    total.backward()
    arguments = sm.asarray(w), sm.asarray(xs)
    np.testing.assert_allclose(way(f)(*arguments), total.item(), rtol=1e-10)
    for slope, leaf in zip(way(sm.grad(f, (0, 1)))(*arguments), leaves, strict=True):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-10)


@WAYS
def test_a_step_may_not_write_to_an_array_from_outside(way: Any) -> None:
    """The step is recorded once, so a write would happen once and not in every step."""

    def counting(z: Any, loop: Any) -> Any:
        y = sm.zeros(3)

        def step(c: Any) -> Any:
            y[0] = y[0] + 1
            return c + y

        return loop(step, z)

    loops = (
        lambda step, z: sm.fori_loop(0, 3, lambda _, c: step(c), z),
        lambda step, z: sm.while_loop(lambda c: c[0] < 9, step, z),
    )
    for loop in loops:
        with pytest.raises(sm.errors.TracerError, match="written inside a step of a loop"):
            way(lambda z, loop=loop: counting(z, loop))(sm.zeros(3))

    def own(_: Any, c: Any) -> Any:
        y = sm.zeros(3)
        y[1] = c[0]
        y += 1
        return y

    np.testing.assert_array_equal(way(lambda z: sm.fori_loop(0, 3, own, z))(sm.ones(3)), [1, 2, 1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_number_carried_through_nested_loops_gets_the_dtype_of_the_inner_one(dtype: str) -> None:
    def f(x: Any) -> Any:
        def outer(_: Any, c: Any) -> Any:
            return sm.fori_loop(0, 4, lambda i, d: d + i * x, c)

        return sm.fori_loop(0, 3, outer, 0.0)

    result = np.asarray(sm.jit(f)(np.ones((), dtype)))
    assert result == 18 and result.dtype == dtype


def test_second_gradient_and_branches() -> None:
    torch = pytest.importorskip("torch")
    w, x = RNG.normal(size=(3, 3)), RNG.normal(size=3)

    def f(x: Any) -> Any:
        y = sm.fori_loop(0, 3, lambda i, c: sm.tanh(w @ c) * (i + 1), x)
        return sm.sum(
            sm.cond(sm.sum(x) < 1e9, lambda v: w @ v, lambda v: v @ sm.asarray(w), y) ** 2
        )

    def g(x: Any) -> Any:
        y, m = x, torch.tensor(w)
        for i in range(3):
            y = torch.tanh(m @ y) * (i + 1)
        return ((m @ y) ** 2).sum()

    leaf = torch.tensor(x, requires_grad=True)
    (first,) = torch.autograd.grad(g(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), leaf)
    twice = sm.grad(lambda x: sm.sum(sm.grad(f)(x) ** 2))
    np.testing.assert_allclose(sm.jit(sm.grad(f))(x), first.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(twice(sm.asarray(x)), second.numpy(), rtol=1e-10)


def test_rows_of_a_loop_stay_in_the_gradient_of_what_reads_them() -> None:
    """One forward run serves value and gradient: the stacked carries are results of it."""
    f = sm.jit(sm.value_and_grad(_loss, (0, 1, 2)))
    report = sm.explain(f, np.eye(3), np.ones(3), np.ones((4, 3)))
    assert sum(k.data.kind == "loop" for k in report.kernels) == 2


def test_the_gradient_of_a_recurrence_is_a_recurrence() -> None:
    """Also by constants that a step broadcasts, whose cotangents are summed after the loop."""
    torch = pytest.importorskip("torch")
    a, b, xs = RNG.uniform(size=3), RNG.uniform(size=()), RNG.normal(size=(5, 2, 3))

    def f(a: Any, b: Any, xs: Any) -> Any:
        return sm.sum(sm.scan(lambda c, x: (a * c + b * x, c), xs[0] * 0, xs)[0] ** 2)

    leaves = [torch.tensor(x, requires_grad=True) for x in (a, b, xs)]
    c = 0 * leaves[2][0]
    for x in leaves[2]:
        c = leaves[0] * c + leaves[1] * x
    (c**2).sum().backward()
    slope = sm.jit(sm.grad(f, (0, 1, 2)))
    for result, leaf in zip(slope(a, b, xs), leaves, strict=True):
        np.testing.assert_allclose(result, leaf.grad.numpy(), rtol=1e-10)
    assert "loop" not in kernels(slope, a, b, xs)
