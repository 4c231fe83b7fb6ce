"""`sm.fuse` and the arguments of `sm.jit` that steer fusion."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import smelt as sm
from smelt.errors import ArgumentError, FusionError, KnobError, OutOfMemory, SteeringWarning
from smelt.knobs import REQUIRE_FUSED, values

ROWS = np.linspace(-1, 1, 64 * 512, dtype=np.float32).reshape(64, 512)


def softmax(x):
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def sorted_between(x):
    return sm.sort(sm.exp(x), axis=1) + 1


def kernels(f, *args) -> int:
    return len(sm.explain(f, *args).kernels)


# ---- must --------------------------------------------------------------------------------------


def test_what_is_one_kernel_may_be_demanded():
    with sm.fuse(must=True):
        actual = sm.jit(softmax)(ROWS)
    expected = np.exp(ROWS) / np.exp(ROWS).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5)


def test_what_is_none_is_refused_with_the_reason_and_the_line():
    with sm.fuse(must=True), pytest.raises(FusionError) as caught:
        sm.jit(sorted_between)(ROWS)
    message = str(caught.value)
    assert "F004 extern-barrier" in message and "extern.sort runs outside the compiler" in message
    assert "test_steering.py" in message and "sm.sort(sm.exp(x), axis=1)" in message


def test_a_pair_is_demanded_by_names():
    with sm.fuse(must=[("exp", "add")]), pytest.raises(FusionError, match="exp v0 and add"):
        sm.jit(sorted_between)(ROWS)
    with sm.fuse(must="reduce.max+sub+exp"):
        sm.jit(softmax)(ROWS)


@pytest.mark.parametrize("code", [lambda x: x + 1, lambda x: sm.sort(sm.exp(x), axis=1) + 1])
def test_names_that_a_program_lacks_demand_nothing(code):
    with sm.fuse(must=[("tanh", "log")]):
        assert sm.jit(code)(ROWS).shape == ROWS.shape


@pytest.mark.parametrize("never", ["exp+sum", "exp#2+reduce.sum#3", "v2+v3"])
def test_names_are_those_of_why(never):
    def f(x):
        return sm.sum(sm.exp(sm.square(x) * 3), axis=1)

    assert kernels(f, ROWS) == 1
    with sm.fuse(never=never):
        assert kernels(f, ROWS) == 2
        with sm.fuse(must=never), pytest.raises(FusionError, match="never-fuse"):
            sm.jit(f)(ROWS)


def test_a_demand_overrules_the_cost():
    def f(x, b):
        return x * sm.tanh(b)  # computed once a column, or once an element

    wide, columns = np.ones((4096, 1024), np.float32), np.ones(1024, np.float32)
    assert kernels(f, wide, columns) == 2
    with sm.fuse(must=True):
        assert kernels(f, wide, columns) == 1


@pytest.mark.parametrize("columns", [8, 64, 512])
def test_siblings_that_share_little_are_joined_on_demand(columns):
    """Both read all of x, which is less than half of what they read."""
    x, w = np.ones((16, 64), np.float32), np.ones((64, columns), np.float32)
    assert kernels(sm.jit(lambda x, a, b: (x @ a, x @ b), must=True), x, w, w) == 1


def test_a_function_is_compiled_again_under_another_demand():
    f = sm.jit(sorted_between)
    f(ROWS)
    with sm.fuse(must=True), pytest.raises(FusionError):
        f(ROWS)
    f(ROWS)


# ---- never, memory, rounding -------------------------------------------------------------------


def test_never_keeps_apart():
    def f(x):
        return sm.log(sm.exp(x) + 1)

    assert kernels(f, ROWS) == 1
    with sm.fuse(never=[("exp", "add")]):
        assert kernels(f, ROWS) == 2
    with sm.fuse(never=True):
        assert kernels(f, ROWS) == 3


def test_never_and_must_together_are_refused():
    with sm.fuse(must=True, never="exp+add"), pytest.raises(FusionError, match="never-fuse"):
        sm.jit(lambda x: sm.log(sm.exp(x) + 1))(ROWS)


def test_memory_beyond_the_limit_is_refused():
    with sm.fuse(max_extra_memory="1KiB"), pytest.raises(OutOfMemory):
        sm.jit(sorted_between)(ROWS)


def test_rounding_is_set():
    with sm.fuse(rounding="exact"):
        assert sm.config is not None and "rounding" in sm.fuse(rounding="exact").checked_settings


def masked_attention(x):
    s = x @ sm.matrix_transpose(x)
    seen = sm.where(sm.arange(s.shape[1]) < s.shape[1] // 2, s, -sm.inf)
    return softmax(seen) @ x


def test_exact_sums_have_the_bits_of_one_kernel_per_operator():
    """A NaN under a mask is seen as well: no block is passed over."""
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    x[-1, 3] = np.nan
    results = []
    for fuse in (True, False):
        with sm.config(rounding="exact", fuse=fuse):
            results.append(np.asarray(sm.jit(masked_attention)(x)))
    np.testing.assert_array_equal(*results)
    assert np.isnan(results[0]).all(axis=0).tolist() == [k == 3 for k in range(8)]


ROWS_LONG = np.random.default_rng(2).standard_normal((2, 70_000)).astype("f4")


def half(x):
    return sm.astype(x, sm.float16)


EVEN = np.random.default_rng(1).standard_normal((194, 194)).astype("f4")[::2, ::2]
ORDERS = {
    "view times vector": (lambda x, v: (x * 2) @ v, EVEN, EVEN[0]),
    "few rows over a long axis": (lambda a, b: (a * 2) @ (b + 1), ROWS_LONG, ROWS_LONG.T),
    "half types": (lambda h: sm.exp(half(h) @ half(h)), EVEN * 0.1),
    "product times mean": (lambda x: (x.T @ x) * sm.mean(x / (abs(x) + 0.25)), EVEN.astype("f8")),
    "moments of sums": (lambda x: sm.std(sm.sum(x, axis=1)), EVEN.astype("f8")),
    "products of elements": (lambda x: sm.prod(x * 0.1 + 1, axis=1) * 3, EVEN.astype("f8")),
    "running sums": (lambda x: sm.cumulative_sum(x * 3, axis=1) + 1, EVEN),
    "softmax": (lambda x: softmax(x * 3) * 2, EVEN),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_sum_does_not_depend_on_its_neighbours(name):
    function, *arrays = ORDERS[name]
    results = []
    for fuse in (True, False):
        with sm.config(rounding="exact", fuse=fuse):
            results.append(np.asarray(sm.jit(function)(*arrays)).tobytes())
    assert results[0] == results[1]


# ---- faces -------------------------------------------------------------------------------------


def test_arguments_of_jit():
    f = sm.jit(sorted_between, must=True)
    for _ in range(2):
        with pytest.raises(FusionError):
            f(ROWS)
    with pytest.raises(FusionError):
        f.lower(ROWS).compile()
    assert f.lower(ROWS).as_text("graph").startswith("graph")
    assert REQUIRE_FUSED.get() == ()
    g = sm.jit(never="exp+add")(lambda x: sm.log(sm.exp(x) + 1))
    assert kernels(g, ROWS) == 2
    assert g(ROWS).shape == ROWS.shape


def test_a_steered_function_inside_another_is_recorded_with_it():
    inner = sm.jit(lambda x: sm.log(sm.exp(x) + 1), never="exp+add")
    assert kernels(lambda x: inner(x) * 2, ROWS) == 1


def test_a_block_inside_a_recorded_function_says_that_it_is_too_late():
    def late(x):
        with sm.fuse(never=True):
            return softmax(x)

    with pytest.warns(SteeringWarning, match="has no effect .fuse"):
        assert kernels(sm.jit(late), ROWS) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        late(sm.asarray(ROWS))
        sm.jit(sm.jit(softmax, never=True))(ROWS)


NESTED = {
    "static_argnums": (1, 1, None),
    "static_argnames": ("n", "n", None),
    "donate": ("x", 0, "n"),
    "must": (True, True, "exp+sum"),
    "never": ("exp+sum", "exp+sum", "exp+max"),
    "max_extra_memory": (1 << 24, 1 << 24, 1 << 23),
    "rounding": ("exact", "exact", "fast"),
}
"""Option of `jit` -> a value, an equal one, and one that contradicts it."""


def test_every_option_of_jit_is_swept() -> None:
    options = {
        p.name for p in inspect.signature(sm.jit).parameters.values() if p.kind == p.KEYWORD_ONLY
    }
    assert set(NESTED) == options


@pytest.mark.parametrize("option", NESTED)
def test_a_function_that_is_jitted_again_keeps_its_options(option: str) -> None:
    def scaled(x, n=2):
        return x * n

    def facts(jitted: Any) -> Any:
        settings = getattr(jitted, "settings", None)
        return jitted.options.static, jitted.options.donate, settings and settings.checked_settings

    value, equal, other = NESTED[option]
    once = sm.jit(scaled, **{option: value})
    again = (
        sm.jit(once),
        sm.jit(sm.jit(scaled), **{option: value}),
        sm.jit(once, **{option: equal}),
    )
    assert {str(facts(f)) for f in again} == {str(facts(once))}
    both = sm.jit(
        once, static_argnames="n", **({} if option == "rounding" else {"rounding": "eager"})
    )
    assert "n" in both.options.static
    assert both.settings.checked_settings["rounding"] == (
        "exact" if option == "rounding" else "eager"
    )
    if option not in ("static_argnums", "static_argnames", "donate"):
        with pytest.raises(ArgumentError, match=f"jit: {option}|{option}"):
            sm.jit(once, **{option: other})
        assert facts(sm.jit(functools.partial(once)))[2] == facts(once)[2]


def test_options_of_both_calls_that_exclude_each_other_are_refused() -> None:
    def scaled(x, n=2):
        return x * n

    for inner, outer in (
        ({"static_argnames": "n"}, {"donate": "n"}),
        ({"donate": 1}, {"static_argnums": 1}),
    ):
        with pytest.raises(ArgumentError, match="donate"):
            sm.jit(sm.jit(scaled, **inner), **outer)


def test_a_requirement_holds_for_a_function_that_is_jitted_again() -> None:
    for f in (
        sm.jit(sm.jit(sorted_between, must=True)),
        sm.jit(functools.partial(sm.jit(sorted_between, must=True))),
    ):
        with pytest.raises(FusionError):
            f(ROWS)


def test_as_a_decorator():
    @sm.fuse(must=True)
    def run(x):
        return sm.jit(sorted_between)(x)

    with pytest.raises(FusionError):
        run(ROWS)


@pytest.mark.parametrize(
    "settings",
    [
        {"must": "exp"},
        {"must": [("a",)]},
        {"must": [("a", 1)]},
        {"never": "a+b+c"},
        {"rounding": "sloppy"},
        {"max_extra_memory": "much"},
        {"must": 7},
    ],
)
def test_wrong_values_are_refused_at_once(settings):
    with pytest.raises(KnobError):
        sm.fuse(**settings)
    with pytest.raises(KnobError):
        sm.jit(softmax, **settings)


def test_groups_read_back():
    for inputs in ("a+b+c,d+e", [("a", "b", "c"), ("d", "e")]):
        assert values.groups(inputs) == (("a", "b"), ("b", "c"), ("d", "e"))
        assert values.groups(values.show_pairs(values.groups(inputs))) == values.groups(inputs)
    assert values.groups(values.show_pairs(values.groups("all"))) == values.EVERYTHING
