"""The public API: what `import smelt` loads, and the compiler's answers through it."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import pytest

import smelt as sm
from demo import minilm


def test_importing_loads_no_compiler() -> None:
    program = (
        "import sys, numpy; before = {*sys.modules}; import smelt; print(*{*sys.modules} - before)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(out.stdout.split())
    assert not loaded & {
        "click",
        "rich",
        "torch",
        "jax",
        "llvmlite",
        "scipy",
        # Loaded by the first compiled call, or by what few programs do.
        *("hashlib", "importlib.metadata", "json", "logging", "pathlib", "socket"),
        *("smelt.compiler", "smelt.kernel", "smelt.machine", "smelt.runtime.memory", "smelt.saved"),
        *(f"smelt.frontends.array.{name}" for name in ("complex_functions", "fft", "nn")),
    }


def test_names_that_are_imported_on_first_use() -> None:
    program = "import smelt as sm\nfor n in sm.__all__: getattr(sm, n)\nprint(sm.nn, sm.fft.fft)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    public = {name for names in sm._LATE.values() for name in names.split()}
    assert public <= {*sm.__all__}
    for module, names in sm._LATE.items():
        home = import_module(f"smelt.frontends.array.{module}".removesuffix("."))
        for name in names.split():
            assert getattr(sm, name) is getattr(home, name)


def test_explain_stays_a_function() -> None:
    report = sm.explain(lambda x, b: sm.log(sm.maximum(x + b, 1)), np.ones((30, 40)), np.ones(40))
    assert callable(sm.explain)
    assert len(report.kernels) == 1
    assert "log" in report.kernels[0].text
    assert "add" in str(report)
    jitted = sm.jit(lambda x: sm.exp(x) + 1)
    assert len(sm.explain(jitted, np.ones(5)).kernels) == 1
    assert sum(map(len, jitted.traces.values())) == 1
    assert len(sm.explain(jitted, sm.spec("f32[n]")).kernels) == 1
    with pytest.raises(sm.errors.ArgumentError):
        sm.explain(3)  # type: ignore[arg-type]


def test_tests_may_replace_explain() -> None:
    explain = sm.explain
    with mock.patch.object(sm, "explain", abs):
        assert sm.explain is abs
    import_module("smelt.explain")
    assert sm.explain is explain


def test_every_text_of_a_compiled_function() -> None:
    compiled = sm.jit(lambda x: sm.exp(x) + 1).lower(sm.spec("f32[n]")).compile()
    for form, word in (
        ("graph", "exp"),
        ("plan", "k0"),
        ("kernel", "exp"),
        ("llvm", "define"),
        ("asm", "ret"),
    ):
        assert word in compiled.as_text(form)
    assert (
        compiled.cost_analysis()["bytes accessed"]
        < compiled.cost_analysis()["bytes accessed unfused"]
    )
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes == memory.output_size_in_bytes > 0


@pytest.mark.parametrize("lazy", [True, False])
def test_the_same_encoder_with_numpy_and_smelt(lazy: bool) -> None:
    weights = minilm.random_weights(hidden=24, layers=2, vocabulary=50, positions=40, seed=1)
    program: Any = partial(minilm.encode, sm, heads=3)
    ours = {name: sm.asarray(w) for name, w in weights.items()}
    jitted = program if lazy else sm.jit(program)
    for batch, length in ((2, 5), (3, 9), (4, 12)):
        ids = np.random.default_rng(length).integers(0, 50, (batch, length))
        mask = np.arange(length) < np.arange(1, batch + 1)[:, None] + length // 2
        wanted = minilm.encode(np, weights, ids, mask, heads=3)
        actual = jitted(ours, sm.asarray(ids), sm.asarray(mask))
        np.testing.assert_allclose(actual, wanted, atol=2e-6)
    if not lazy:
        assert sum(map(len, jitted.traces.values())) == 1


def test_elements_that_numpy_gave_are_arrays():
    x = np.linspace(0.5, 2.0, 4)
    assert sm.exp(x[1]).dtype == sm.float64  # a Python float too, and yet an array's element
    np.testing.assert_array_equal(sm.stack([x[2], x[0]]), [x[2], x[0]])
    assert sm.exp(2.0).dtype == sm.float64
