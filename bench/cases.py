"""Models of the benchmark, their inputs, and how each peer runs them.

Most are made from configurations of the `transformers` package with seeded weights, in sizes that
take 1 to 300 ms; the sentence model of the demo has its real weights.

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

from bench.diffusion import diffusion_block
from demo import torch_model, weights
from smelt.python.dataclass import dataclass

__all__ = ["CASES", "Case", "inputs", "model_and_inputs", "runner"]

Make = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its inputs."""

    make: Make
    inputs: str
    """A key of `_INPUTS`."""
    shape: tuple[int, ...]
    free: tuple[int, ...] = (0,)
    """Axes of the shape that vary between calls: the batch, and the length of texts. A length that
    a model loops over in Python does not count, as each makes another program."""

    def sizes(self, call: int) -> tuple[int, ...]:
        """Return the shape of call number `call`, which varies along the free axes.

        Number 0 is the first call.
        """
        return tuple(
            n + call * max(n // 4, 1) if a in self.free else n for a, n in enumerate(self.shape)
        )


def _package(
    config: str,
    model: str,
    settings: Mapping[str, Any],
    path: str = "transformers",
) -> Make:
    """Return a function that makes a model of `transformers` from its configuration."""

    def make() -> Any:
        configuration = getattr(import_module("transformers"), config)(**settings)
        return getattr(import_module(path), model)(configuration)

    return make


_SMALL = {
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
_TEXT = {**_SMALL, "vocab_size": 8000}
_STATE = {"hidden_size": 384, "num_hidden_layers": 4, "vocab_size": 8000}
_WHISPER = {
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "max_source_positions": 150,
}

_SPECIAL = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

_BOTH = (0, 1)

CASES: Mapping[str, Case] = {
    "bert": Case(_package("BertConfig", "BertModel", _TEXT), "words", (4, 64), _BOTH),
    "distilbert": Case(_package("DistilBertConfig", "DistilBertModel", {
        "dim": 384, "n_layers": 3, "n_heads": 12, "hidden_dim": 1536, "vocab_size": 8000,
    }), "words", (4, 64), _BOTH),
    "minilm": Case(lambda: torch_model.build(weights.load()), "tokens", (8, 64), _BOTH),
    "modernbert": Case(
        _package("ModernBertConfig", "ModernBertModel", _TEXT | _SPECIAL), "words", (4, 64), _BOTH),
    "gpt2": Case(_package("GPT2Config", "GPT2LMHeadModel", {
        "n_embd": 384, "n_layer": 4, "n_head": 12, "vocab_size": 8000, "bos_token_id": 1,
        "eos_token_id": 2,
    }), "words", (1, 128), _BOTH),
    "llama": Case(_package("LlamaConfig", "LlamaForCausalLM", {**_TEXT, "num_key_value_heads": 4}),
                  "words", (1, 128), _BOTH),
    "t5": Case(_package("T5Config", "T5EncoderModel", {
        "d_model": 384, "d_kv": 32, "d_ff": 1536, "num_layers": 4, "num_heads": 12,
        "vocab_size": 8000,
    }), "words", (4, 64), _BOTH),
    "mamba": Case(_package("MambaConfig", "MambaModel", _STATE), "words", (1, 64)),
    "mamba2": Case(_package("Mamba2Config", "Mamba2Model", {
        **_STATE, "num_heads": 12, "head_dim": 64, "n_groups": 1, "state_size": 64,
        "chunk_size": 64,
    }), "words", (1, 128), _BOTH),
    "vit": Case(_package("ViTConfig", "ViTModel", _SMALL), "image", (1, 3, 224, 224)),
    "convnext": Case(_package("ConvNextConfig", "ConvNextModel", {
        "hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2],
    }), "image", (1, 3, 224, 224)),
    "resnet18": Case(_package("ResNetConfig", "ResNetModel", {
        "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic",
    }), "image", (1, 3, 224, 224)),
    "mobilenet": Case(_package("MobileNetV2Config", "MobileNetV2Model", {}),
                      "image", (1, 3, 224, 224)),
    "diffusion": Case(lambda: diffusion_block(128, 4), "noisy", (1, 128, 32, 32)),
    "whisper": Case(_package("WhisperConfig", "WhisperEncoder", _WHISPER,
                             "transformers.models.whisper.modeling_whisper"),
                    "sound", (1, 80, 300)),
    "splade": Case(_package("BertConfig", "BertForMaskedLM", _TEXT), "words", (2, 64), _BOTH),
}  # fmt: skip
"""The models, by name."""


def model_and_inputs(torch: Any, case: Case) -> tuple[Any, dict[str, Any]]:
    """Return a case's model and its inputs.

    Raises ImportError if the package of a model or of its weights is not installed.
    """
    torch.manual_seed(0)
    model = case.make().eval()
    return model, inputs(torch, case)


def inputs(torch: Any, case: Case, call: int = 0) -> dict[str, Any]:
    """Return the inputs of a case's model, with other sizes in later calls."""
    return _INPUTS[case.inputs](torch, case.sizes(call))


def _words(torch: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    ids = torch.randint(5, 8000, shape)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _tokens(torch: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"ids": torch.randint(1000, 5000, shape), "mask": torch.ones(shape, dtype=torch.bool)}


_INPUTS: Mapping[str, Callable[[Any, tuple[int, ...]], dict[str, Any]]] = {
    "words": _words,
    "tokens": _tokens,
    "image": lambda torch, shape: {"pixel_values": torch.randn(shape)},
    "sound": lambda torch, shape: {"input_features": torch.randn(shape)},
    "noisy": lambda torch, shape: {"x": torch.randn(shape), "t": torch.randn(shape[0], 6)},
}


def runner(torch: Any, peer: str, model: Any, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the model as a peer runs it; compilers compile in the first call.

    `inductor-max` is Inductor with `max_autotune` and `freezing`.
    """
    if peer == "eager":
        return model
    if peer == "inductor-max":
        return torch.compile(model, options={"max_autotune": True, "freezing": True})
    if peer != "onnxruntime":
        return torch.compile(model, backend=peer)
    sessions: list[Any] = []

    def run(**call_arguments: Any) -> Any:
        if not sessions:
            sessions.append(_session(torch, model, arguments))
        input_names = {i.name for i in sessions[0].get_inputs()}
        outputs = sessions[0].run(
            None, {k: v.numpy() for k, v in call_arguments.items() if k in input_names}
        )
        return torch.from_numpy(outputs[0])

    return run


def _session(torch: Any, model: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the model as a session of ONNX Runtime with one thread.

    Without the key-value cache that it may return, which cannot be exported. Raises ImportError
    without its packages.
    """
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        with _without_cache(model):
            program = torch.onnx.export(model, kwargs=dict(arguments), dynamo=True, verbose=False)
        program.save(path)
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextmanager
def _without_cache(model: Any) -> Generator[None]:
    """Disable the model's key-value cache temporarily."""
    settings: Any = getattr(model, "config", None)
    before = getattr(settings, "use_cache", None)
    if before is not None:
        settings.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            settings.use_cache = before
