"""Libraries that import onnxruntime run on Smelt after `as_onnxruntime`."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.onnx.build import model, node, port

from smelt.errors import ArgumentError, OnnxTypeError, UnsupportedError
from smelt.onnx import onnxruntime as names

F = np.float32
X = np.arange(12, dtype=F).reshape(3, 4)
DATA = model(
    [node("Mul", ["x", "k"], ["y"]), node("Exp", ["y"], ["z"])],
    [port("x", F, ["rows", 4])],
    [port("y"), port("z")],
    {"k": np.array(2, F)},
)


def session(**options: Any) -> names.InferenceSession:
    settings = names.SessionOptions()
    for name, value in options.items():
        setattr(settings, name, value)
    return names.InferenceSession(DATA, settings, ["CUDAExecutionProvider"])


def test_a_session_runs_and_describes_itself() -> None:
    s = session(intra_op_num_threads=1, inter_op_num_threads=1, log_severity_level=4)
    y, z = s.run([], {"x": X.tolist()}, names.RunOptions())
    assert np.array_equal(y, 2 * X) and np.allclose(z, np.exp(2 * X))
    assert y.flags.writeable
    (again,) = s.run(["y"], {"x": names.OrtValue.ortvalue_from_numpy(X)})
    assert np.array_equal(again, y)
    assert [(a.name, a.type) for a in s.get_inputs()] == [("x", "tensor(float)")]
    assert s.get_providers() == names.get_available_providers() == ["CPUExecutionProvider"]
    assert s.get_modelmeta().custom_metadata_map == {}
    with pytest.raises(OnnxTypeError):
        s.run(None, {"x": X.astype(np.int64)})


def test_a_binding_holds_inputs_and_outputs() -> None:
    s, target = session(), np.zeros((3, 4), F)
    binding = s.io_binding()
    binding.bind_input("x", "cpu", 0, F, X.shape, X.ctypes.data)
    binding.bind_output("y", "cpu", 0, F, target.shape, target.ctypes.data)
    binding.bind_output("z")
    s.run_with_iobinding(binding)
    y, z = binding.copy_outputs_to_cpu()
    assert np.array_equal(target, 2 * X) and np.array_equal(y, target)
    assert np.allclose(z, np.exp(2 * X))
    assert [v.data_type() for v in binding.get_outputs()] == ["tensor(float)"] * 2
    binding.bind_ortvalue_output("y", names.OrtValue(np.zeros((2, 2), F)))
    with pytest.raises(OnnxTypeError, match="bound output"):
        s.run_with_iobinding(binding)
    with pytest.raises(UnsupportedError, match="cuda"):
        binding.bind_output("y", "cuda")


def test_options_that_would_change_results_are_refused(tmp_path: Path) -> None:
    settings = names.SessionOptions()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(ArgumentError, match="no entry"):
        settings.get_session_config_entry("other")
    with pytest.raises(AttributeError, match="intra_threads"):
        settings.intra_threads = 1
    with pytest.raises(UnsupportedError, match="enable_profiling"):
        settings.enable_profiling = True
    with pytest.raises(UnsupportedError, match=r"lib\.so"):
        settings.register_custom_ops_library("lib.so")
    path = tmp_path / "model.onnx"
    path.write_bytes(DATA)
    copied = pickle.loads(pickle.dumps(names.InferenceSession(path)))
    assert np.array_equal(copied.run(["y"], {"x": X})[0], 2 * X)


def test_names_and_defaults_are_those_of_the_package() -> None:
    peer = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (make onnx)")
    ours = {"as_onnxruntime", "enable_telemetry_events", "disable_telemetry_events"}
    assert {n for n in names.__all__ if not hasattr(peer, n)} <= ours
    for cls in ("SessionOptions", "RunOptions"):
        mine, theirs = getattr(names, cls)(), getattr(peer, cls)()
        wanted = {n for n in dir(theirs) if not n.startswith("_")}
        assert {n for n in vars(mine) if not n.startswith("_")} <= wanted
        for name in wanted & set(vars(mine)):
            default = getattr(theirs, name)
            assert getattr(mine, name) == getattr(default, "value", default), name
    for cls in ("InferenceSession", "IOBinding", "OrtValue"):
        methods = {n for n in vars(getattr(names, cls)) if not n.startswith("_")} - {"run"}
        assert methods <= set(dir(getattr(peer, cls))), cls
    for cls in ("GraphOptimizationLevel", "ExecutionMode"):
        for member in getattr(names, cls):
            assert getattr(peer, cls).__members__[member.name].value == member.value


LIBRARY = """
import sys, importlib.util
import smelt as sm
with sm.onnx.as_onnxruntime():
    assert importlib.util.find_spec("onnxruntime") is not None
    from onnxruntime import InferenceSession, SessionOptions
    import onnxruntime as ort
    assert ort.InferenceSession is InferenceSession and ort.__version__
assert "onnxruntime" not in sys.modules
sm.onnx.as_onnxruntime()
if importlib.util.find_spec("magika"):
    import magika
    text = b"import os\\ndef f(x):\\n    return x + 1\\n\\nclass A:\\n    pass\\n"
    assert magika.Magika().identify_bytes(text).output.label == "python"
assert "onnxruntime.capi" not in sys.modules
"""
LATE = """
import onnxruntime, types, sys
import smelt as sm
library = types.ModuleType("library"); library.ort = onnxruntime
sys.modules["library"] = library
try:
    sm.onnx.as_onnxruntime()
except sm.errors.ArgumentError as error:
    assert "library" in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.parametrize("program", [LIBRARY, LATE], ids=["before", "after"])
def test_imports_of_libraries_give_smelt(program: str) -> None:
    if program is LATE and importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed (make onnx)")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
