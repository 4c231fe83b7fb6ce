"""Arrays in einops, without its `array_api` module and whichever is imported first."""

from __future__ import annotations

import subprocess
import sys

import einops
import numpy as np
import pytest

import smelt as sm

X = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: einops.rearrange(x, "(a b) c -> b (a c)", a=2),
        lambda x: einops.reduce(x, "a (b c) -> a c", "mean", b=3),
        lambda x: einops.reduce(x, "a b -> ", "max"),
        lambda x: einops.repeat(x, "a b -> a 3 b"),
        lambda x: einops.rearrange([x, x + 1], "n a b -> a (n b)"),
        lambda x: einops.einsum(x, x, "a c, b c -> a b"),
        lambda x: einops.pack([x, x], "a *")[0],
    ],
)
def test_results_are_those_of_numpys_arrays(call):
    result = call(sm.asarray(X))
    assert isinstance(result, sm.Array)
    np.testing.assert_array_equal(np.asarray(result), call(X))


def test_a_jitted_function_may_use_it():
    @sm.jit
    def patches(x):
        return sm.sum(einops.rearrange(x, "(a p) b -> a p b", p=2) ** 2, axis=1)

    for rows in (4, 6):
        x = np.arange(rows * 5.0).reshape(rows, 5)
        expected = (x.reshape(-1, 2, 5) ** 2).sum(1)
        np.testing.assert_allclose(np.asarray(patches(x)), expected)


@pytest.mark.parametrize("order", ["import einops, smelt as sm", "import smelt as sm, einops"])
def test_the_order_of_imports_does_not_matter(order):
    program = f"{order}; print(einops.rearrange(sm.ones((2, 3)), 'a b -> b a').shape)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(3, 2)", done.stderr


def test_looking_for_the_module_does_not_use_up_the_registration():
    program = (
        "import smelt as sm, importlib.util; importlib.util.find_spec('einops._backends');"
        " import einops; print(einops.rearrange(sm.ones((2, 3)), 'a b -> b a').shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "(3, 2)", done.stderr


def test_importing_smelt_imports_no_einops():
    program = "import smelt, sys; print('einops' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "False", done.stderr
