"""Models behind `torch.compile`: Smelt, eager code and Inductor on the same modules.

Models are made from configurations of the `transformers` package with seeded weights, in sizes that
take 1 to 300 ms.  All run in one process with one thread, in turns, and CPU time is measured: that
is what other load on the machine does not change.  Needs PyTorch and `transformers`.

>>> sorted(CASES)[:2]
['bert', 'convnext']
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smelt import knobs
from smelt.bench.peak import eager_peak, smelt_peak
from smelt.runtime.memory import STOCK

__all__ = ["CASES", "HEAD", "PEERS", "Case", "Row", "page", "run"]

ROUNDS = 7
PEERS = ("eager", "inductor", "onnxruntime", "smelt")


HEAD = """\
# Models

Models behind `torch.compile`, made from configurations of the `transformers` package with seeded
weights. All run in one process with one thread, in turns; the times are CPU milliseconds of a call,
the least of several. Peak memory is what a call holds at once beyond parameters and inputs, eager
code first, with what Smelt keeps of packed parameters counted as its own. The table is written by
`smelt bench --models --write-docs`.

"""


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


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one model."""

    name: str
    ms: Mapping[str, float]
    """CPU milliseconds of a call, by peer; NaN for one that failed."""
    compile_seconds: Mapping[str, float]
    peak: Mapping[str, float]
    """MiB that a call holds at once beyond parameters and inputs: eager code and Smelt."""
    error: float
    """Largest distance from eager code."""
    kernels: int
    left: int
    """Calls of torch."""

    def gain(self, peer: str) -> float:
        """How many times faster Smelt is."""
        return self.ms[peer] / self.ms["smelt"]


def run(
    names: Iterable[str] = (), peers: Sequence[str] = PEERS,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:  # fmt: skip
    """Measure the named models, or all; a peer that is not installed is left out.

    Raises KeyError for an unknown model, ImportError without PyTorch or `transformers`.
    """
    torch = import_module("torch")
    if not all(map(find_spec, ("onnxruntime", "onnxscript"))):
        peers = [p for p in peers if p != "onnxruntime"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows: list[Row] = []
        for name in names or CASES:
            say(name)
            with warnings.catch_warnings(), torch.no_grad(), knobs.config(threads=1):
                warnings.simplefilter("ignore")
                rows.append(_measure(torch, name, CASES[name], peers))
        return rows
    finally:
        torch.set_num_threads(threads)


def _measure(torch: Any, name: str, case: Case, peers: Sequence[str]) -> Row:
    face = import_module("smelt.torch")
    torch.manual_seed(0)
    package = import_module("transformers")
    settings = getattr(package, case.config)(**case.settings)
    model = getattr(import_module(case.path), case.model)(settings).eval()
    given = _inputs(torch, case)
    calls: dict[str, Callable[[], Any]] = {}
    seconds: dict[str, float] = {}
    expected = _first(torch, model(**given))
    error = math.nan
    record: Any = None
    torch._dynamo.reset()
    gc.collect()  # what the model before has kept
    before = STOCK.usage().asked
    for peer in peers:
        compiled = _runner(torch, peer, model, given)
        start = time.perf_counter()
        try:
            with face.record() as record_of_peer:
                found = _first(torch, compiled(**given))
        except Exception:  # a peer's failure is its row's, not ours
            if peer == "smelt":
                raise
            seconds[peer] = math.nan
            continue
        seconds[peer] = time.perf_counter() - start
        if peer == "smelt":
            error, record = (found - expected).abs().max().item(), record_of_peer
        calls[peer] = lambda f=compiled: f(**given)
        del found  # a result that is still held would count as the next call's memory
    times = {**dict.fromkeys(peers, math.nan), **_times(calls)}
    peak = {"smelt": smelt_peak(calls["smelt"], before) / 2**20}
    if "eager" in calls:
        peak["eager"] = eager_peak(calls["eager"]) / 2**20
    kernels, left = (0, 0) if record is None else (len(record.kernels), len(record.left))
    return Row(name, times, seconds, peak, error, kernels, left)


def _runner(torch: Any, peer: str, model: Any, given: Mapping[str, Any]) -> Callable[..., Any]:
    """The model as a peer runs it; those that compile do so in the first call."""
    if peer == "eager":
        return model
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


def _times(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The least CPU time of each call, in turns."""
    least = dict.fromkeys(calls, math.inf)
    for _ in range(ROUNDS):
        for peer, call in calls.items():
            call()  # warms the caches that the peer before has filled
            start = time.process_time()
            call()
            least[peer] = min(least[peer], time.process_time() - start)
    return {peer: t * 1e3 for peer, t in least.items()}


def _inputs(torch: Any, case: Case) -> dict[str, Any]:
    if case.inputs == "words":
        ids = torch.randint(5, 8000, case.shape)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    name = "pixel_values" if case.inputs == "image" else "input_features"
    return {name: torch.randn(case.shape)}


def _first(torch: Any, result: Any) -> Any:
    """The first tensor of a result."""
    leaves = torch.utils._pytree.tree_leaves(result)
    return next(x for x in leaves if isinstance(x, torch.Tensor))


def page(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    peers = [p for p in PEERS if p != "smelt" and p in rows[0].ms]
    head = ["model", *(f"{p} ms" for p in peers), "smelt ms", *(f"over {p}" for p in peers),
            "compile s", "kernels", "calls of torch", "peak MiB"]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    for r in rows:
        compile_s = " / ".join(_number(r.compile_seconds[p], 1) for p in (*peers[1:], "smelt"))
        cells = [r.name, *(_number(r.ms[p]) for p in peers), _number(r.ms["smelt"])]
        cells += [_number(r.gain(p), suffix="x") for p in peers]
        memory = " / ".join(f"{r.peak[p]:.1f}" for p in ("eager", "smelt") if p in r.peak)
        cells += [compile_s, str(r.kernels), str(r.left), memory]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{p} {_mean([r.gain(p) for r in rows]):.2f}x" for p in peers]
    lines += ["", f"Geometric mean of the gain: {', '.join(means)}."]
    return "\n".join(lines) + "\n"


def _number(value: float, digits: int = 2, suffix: str = "") -> str:
    """A cell; a dash for a peer that failed."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}{suffix}"


def _mean(values: Sequence[float]) -> float:
    values = [v for v in values if not math.isnan(v)] or [math.nan]
    return math.exp(sum(map(math.log, values)) / len(values))
