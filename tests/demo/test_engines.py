"""The table of engines, and how Smelt's is plugged into a namespace called `smelt`."""

import types
from functools import partial

import numpy as np
import pytest

from demo import engines, facts, minilm, torch_model

WEIGHTS = minilm.random_weights(hidden=24, layers=2, vocabulary=9, positions=4, seed=1)
IDS = np.asarray([[1, 2, 3], [4, 0, 0]])


def stand_in(log):
    """NumPy dressed as Smelt: `jit` and `explain` note what they are given."""
    namespace = types.SimpleNamespace(**{name: getattr(np, name) for name in np.__all__})
    namespace.erf = lambda x: minilm.erf(np, x)

    def jit(program):
        log.append("jit")

        def compiled(*arguments):
            log.append("call")
            return program(*arguments).tolist()  # something that is no NumPy array yet

        return compiled

    def explain(program, *arguments):
        program(*arguments)
        return types.SimpleNamespace(to_json=lambda: '{"total": {"kernels": 1, "operators": 7}}')

    namespace.jit, namespace.explain = jit, explain
    return namespace


def test_the_reference_comes_first():
    assert engines.ENGINES[0].name == "numpy"
    assert engines.ENGINES[0].absent() is None


def test_an_unknown_engine_lists_those_there_are():
    names = ", ".join(engine.name for engine in engines.ENGINES)
    with pytest.raises(KeyError, match=f"no engine is called 'jax'; there are: {names}"):
        engines.by_name("jax")


def test_smelt_is_compiled_once_and_called_with_each_batch(monkeypatch):
    log = []
    monkeypatch.setattr(engines, "_smelt", lambda: stand_in(log))
    smelt = engines.by_name("smelt")
    assert smelt.absent() is None
    running = smelt.start(WEIGHTS)
    for length in (3, 2, 1):
        got = running.encode(IDS[:, :length], IDS[:, :length] > 0)
        expected = minilm.encode(np, WEIGHTS, IDS[:, :length], IDS[:, :length] > 0)
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, expected, atol=1e-6)
    assert log == ["jit", "call", "call", "call"]
    assert running.describe(IDS, IDS > 0) == facts.Facts(kernels=1, operators=7)


def test_an_unfinished_smelt_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(engines, "_smelt", lambda: types.SimpleNamespace(take=1, matmul=2))
    said = engines.by_name("smelt").absent()
    assert said == "this Smelt has no jit, erf, permute_dims, explain yet"


def test_a_missing_torch_is_said(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.by_name("torch").absent() == "PyTorch is not installed"


def test_inductor_without_a_compiler_is_said(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engines.shutil, "which", lambda name: None)
    assert "needs a C++ compiler" in engines.by_name("inductor").absent()
    assert engines.by_name("smelt-torch").absent() is None


def test_a_missing_onnx_runtime_is_said(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.by_name("onnx").absent() == "the package onnxruntime is not installed"


@pytest.mark.peer
@pytest.mark.parametrize("name", ["torch", "smelt-torch", "onnx"])
def test_torch_takes_and_gives_numpy(name):
    if why := engines.by_name(name).absent():
        pytest.skip(why)
    running = engines.by_name(name).start(WEIGHTS)
    got = running.encode(IDS, IDS > 0)
    assert isinstance(got, np.ndarray)
    ours = partial(minilm.encode, np, WEIGHTS)(IDS, IDS > 0)
    np.testing.assert_allclose(got, ours, atol=1e-5)
    assert torch_model.build(WEIGHTS).layers == 2


def test_facts_subtract_only_what_is_known():
    assert facts.Facts(bytes_fused=3, bytes_unfused=10).bytes_avoided == 7
    assert facts.Facts(bytes_fused=3).bytes_avoided is None
