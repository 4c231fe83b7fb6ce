"""Models that ship inside packages give ONNX Runtime's results; skipped without the packages."""

from __future__ import annotations

import numpy as np
import pytest
from tests.onnx.models import NIGHTLY, QUICK, Model, path_of

import smelt.onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (make onnx)")


def compare(model: Model) -> None:
    path = path_of(model.file)
    if path is None:
        pytest.skip(f"{model.file} is not installed (make onnx)")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session = smelt.onnx.load(path, fallback="error")
    for size in model.sizes:
        feeds = model.make(*size)
        for ours, theirs in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            gaps = np.abs(ours.astype(np.float64) - theirs)
            gap = gaps.mean() if model.is_chaotic else gaps.max(initial=0)
            assert gap <= model.limit * np.abs(theirs).max(initial=1e-9), size
    assert not session.reasons
    (program,) = session.programs
    recordings = sum(len(traces) for traces in program.traces.values())
    assert recordings <= len({tuple(n == 1 for n in size) for size in model.sizes})


@pytest.mark.parametrize("name", QUICK)
def test_model(name: str) -> None:
    compare(QUICK[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_larger_model(name: str) -> None:
    compare(NIGHTLY[name])
