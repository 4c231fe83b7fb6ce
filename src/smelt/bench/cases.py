"""The models of the bench, what they are called with, and how each peer runs them.

They are made from configurations of the `transformers` package with seeded weights, in sizes that
take 1 to 300 ms.

>>> sorted(CASES)[:2]
['bert', 'convnext']
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from smelt.dataclass import dataclass

__all__ = ["CASES", "Case", "given_model", "runner"]


@dataclass(frozen=True, slots=True)
class Case:
    """A model: its configuration class, its class, their settings, and what it is called with."""

    config: str
    model: str
    settings: Mapping[str, Any]
    inputs: str
    """words, image or sound"""
    shape: tuple[int, ...]
    path: str = "transformers"


_SMALL = {
    "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 12,
    "intermediate_size": 1536,
}  # fmt: skip
_TEXT = {**_SMALL, "vocab_size": 8000}
_WHISPER = {
    "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "max_source_positions": 150,
}  # fmt: skip

CASES: Mapping[str, Case] = {
    "bert": Case("BertConfig", "BertModel", _TEXT, "words", (4, 64)),
    "distilbert": Case("DistilBertConfig", "DistilBertModel", {
        "dim": 384, "n_layers": 3, "n_heads": 12, "hidden_dim": 1536, "vocab_size": 8000,
    }, "words", (4, 64)),
    "modernbert": Case("ModernBertConfig", "ModernBertModel", {
        **_TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
        "sep_token_id": 2,
    }, "words", (4, 64)),
    "gpt2": Case("GPT2Config", "GPT2LMHeadModel", {
        "n_embd": 384, "n_layer": 4, "n_head": 12, "vocab_size": 8000, "bos_token_id": 1,
        "eos_token_id": 2,
    }, "words", (1, 128)),
    "llama": Case("LlamaConfig", "LlamaForCausalLM", {**_TEXT, "num_key_value_heads": 4},
                  "words", (1, 128)),
    "t5": Case("T5Config", "T5EncoderModel", {
        "d_model": 384, "d_kv": 32, "d_ff": 1536, "num_layers": 4, "num_heads": 12,
        "vocab_size": 8000,
    }, "words", (4, 64)),
    "vit": Case("ViTConfig", "ViTModel", _SMALL, "image", (1, 3, 224, 224)),
    "convnext": Case("ConvNextConfig", "ConvNextModel", {
        "hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2],
    }, "image", (1, 3, 224, 224)),
    "resnet18": Case("ResNetConfig", "ResNetModel", {
        "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic",
    }, "image", (1, 3, 224, 224)),
    "mobilenet": Case("MobileNetV2Config", "MobileNetV2Model", {}, "image", (1, 3, 224, 224)),
    "whisper": Case("WhisperConfig", "WhisperEncoder", _WHISPER, "sound", (1, 80, 300),
                    "transformers.models.whisper.modeling_whisper"),
    "splade": Case("BertConfig", "BertForMaskedLM", _TEXT, "words", (2, 64)),
}  # fmt: skip
"""The models, by name."""


def given_model(torch: Any, case: Case) -> tuple[Any, dict[str, Any]]:
    """A case's model, and what it is called with."""
    torch.manual_seed(0)
    package = import_module("transformers")
    settings = getattr(package, case.config)(**case.settings)
    model = getattr(import_module(case.path), case.model)(settings).eval()
    return model, _inputs(torch, case)


def _inputs(torch: Any, case: Case) -> dict[str, Any]:
    if case.inputs == "words":
        ids = torch.randint(5, 8000, case.shape)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    name = "pixel_values" if case.inputs == "image" else "input_features"
    return {name: torch.randn(case.shape)}


def runner(torch: Any, peer: str, model: Any, given: Mapping[str, Any]) -> Callable[..., Any]:
    """The model as a peer runs it; those that compile do so in the first call.  `inductor-max` is
    Inductor told to try all that it has and to fold parameters."""
    if peer == "eager":
        return model
    if peer == "inductor-max":
        return torch.compile(model, options={"max_autotune": True, "freezing": True})
    if peer != "onnxruntime":
        return torch.compile(model, backend=peer)
    kept: list[Any] = []

    def run(**arguments: Any) -> Any:
        if not kept:
            kept.append(_session(torch, model, given))
        named = {i.name for i in kept[0].get_inputs()}
        found = kept[0].run(None, {k: v.numpy() for k, v in arguments.items() if k in named})
        return torch.from_numpy(found[0])

    return run


def _session(torch: Any, model: Any, given: Mapping[str, Any]) -> Any:
    """The model in ONNX Runtime with one thread, without the cache of earlier words that it may
    return: those cannot be exported.  Raises ImportError without its packages."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with _without_cache(model):
            program = torch.onnx.export(model, kwargs=dict(given), dynamo=True, verbose=False)
        program.save(path)
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextmanager
def _without_cache(model: Any) -> Generator[None]:
    """The model returns no cache of earlier words for a while."""
    settings = model.config
    before = getattr(settings, "use_cache", None)
    if before is not None:
        settings.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            settings.use_cache = before
