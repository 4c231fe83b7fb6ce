"""Encoder layers and self-attention of PyTorch's own, which are one operator each in inference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled  # noqa: E402

import smelt.torch  # noqa: E402

L = torch.nn
pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
LENGTHS = torch.tensor([7, 4, 2])[:, None]
PLACES = torch.arange(7)[None]
MASKS = {
    "none": {},
    "padding": {"src_key_padding_mask": LENGTHS <= PLACES},
    "nothing left": {"src_key_padding_mask": LENGTHS % 4 <= PLACES},
    "pairs": {"src_mask": torch.ones(7, 7).triu(1).bool()},
    "numbers": {"src_mask": L.Transformer.generate_square_subsequent_mask(7)},
    "both": {
        "src_key_padding_mask": LENGTHS <= PLACES,
        "src_mask": torch.ones(7, 7).triu(1).bool(),
    },
}


def agrees(call, *args, **options):
    """Check that the result is eager code's in float32 and that torch computes no operator."""
    with torch.no_grad():
        wanted = call(*args, **options)
        with smelt.torch.record() as r:
            actual = compiled(call)(*args, **options)
    assert not r.left and not r.breaks and r.kernels
    torch.testing.assert_close(actual, wanted, rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("mask", MASKS)
def test_a_layer_is_taken_apart(mask):
    torch.manual_seed(0)
    first = [*MASKS].index(mask) % 2 == 0
    act = "gelu" if first else "relu"
    layer = L.TransformerEncoderLayer(16, 4, 24, 0.1, act, batch_first=True, norm_first=first)
    agrees(layer.eval(), torch.randn(3, 7, 16), **MASKS[mask])


@pytest.mark.parametrize(("weights", "mean"), [(True, True), (True, False), (False, True)])
def test_attention_is_taken_apart(weights, mean):
    torch.manual_seed(0)
    block = L.MultiheadAttention(16, 4, batch_first=True).eval()
    agrees(
        lambda x: block(x, x, x, need_weights=weights, average_attn_weights=mean),
        torch.randn(2, 5, 16),
    )


def test_layers_after_each_other():
    torch.manual_seed(0)
    layer = L.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    agrees(L.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(1, 9, 16))
