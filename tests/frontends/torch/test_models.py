"""Models of the `transformers` package agree with eager code at eight sizes.

They are made from configurations and take no graph break and at most two traces.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
T = pytest.importorskip("transformers")

from tests.frontends.torch.models import seeded  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import smelt.torch  # noqa: E402, F401
from smelt import knobs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = SMALL | {"vocab_size": 99}
STATES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "state_size": 8,
    "vocab_size": 99,
    "use_cache": False,
}
SPECIAL = {f"{name}_token_id": k for k, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}


def words(batch, length):
    ids = torch.randint(5, 99, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def image(batch, _length):
    return {"pixel_values": torch.randn(batch, 3, 32, 32)}


def steps(batch, _length):
    """Words of one length: tracing sees how a scan is taken apart, which depends on it."""
    return {"input_ids": torch.randint(5, 99, (batch, 6))}


def sound(batch, _length):
    return {"input_features": torch.randn(batch, 8, 40)}


def whisper():
    config = T.WhisperConfig(
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=4,
        encoder_ffn_dim=64,
        max_source_positions=20,
        num_mel_bins=8,
    )
    return T.models.whisper.modeling_whisper.WhisperEncoder(config)


MODELS = {
    "bert": (lambda: T.BertModel(T.BertConfig(**TEXT)), words),
    "gpt2": (lambda: T.GPT2LMHeadModel(T.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=99)),
             words),
    "llama": (lambda: T.LlamaForCausalLM(T.LlamaConfig(**TEXT, num_key_value_heads=2)), words),
    "resnet": (lambda: T.ResNetModel(T.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")), image),
    "distilbert": (lambda: T.DistilBertModel(T.DistilBertConfig(
        dim=32, n_layers=1, n_heads=4, hidden_dim=64, vocab_size=99)), words),
    "modernbert": (lambda: T.ModernBertModel(T.ModernBertConfig(**TEXT, **SPECIAL)), words),
    "t5": (lambda: T.T5EncoderModel(T.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, vocab_size=99)), words),
    "vit": (lambda: T.ViTModel(T.ViTConfig(**SMALL, image_size=32, patch_size=8)), image),
    "convnext": (lambda: T.ConvNextModel(T.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])), image),
    "mobilenet": (lambda: T.MobileNetV2Model(T.MobileNetV2Config(
        depth_multiplier=0.35, image_size=32)), image),
    "whisper": (whisper, sound),
    "mamba": (lambda: T.MambaModel(T.MambaConfig(**STATES)), steps),
    "mamba2": (lambda: T.Mamba2Model(T.Mamba2Config(
        **STATES, num_heads=4, head_dim=16, n_groups=1, chunk_size=4)), steps),
    "splade": (lambda: T.BertForMaskedLM(T.BertConfig(**TEXT)), words),
}  # fmt: skip
QUICK = ("bert", "gpt2", "llama", "resnet")
SIZES = ((2, 5), (3, 7), (4, 9), (2, 12), (5, 11), (3, 8), (6, 4), (2, 3))


def tensors(result):
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.nightly) for n in MODELS],
)
def test_a_model_answers_as_eager_for_eight_sizes(name):
    torch._dynamo.reset()
    make, inputs = MODELS[name]
    model = seeded(make)
    counter = CompileCounterWithBackend("smelt")
    fast = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad(), knobs.config(strict=True):
        for size in SIZES:
            arguments = inputs(*size)
            for a, b in zip(tensors(fast(**arguments)), tensors(model(**arguments)), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= 3
