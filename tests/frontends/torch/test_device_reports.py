"""Models of PyTorch, planned for a GPU: BERT's encoder, GPT-2's decoder and ResNet-18."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.explain.gpu_reports import collect_programs  # noqa: E402
from tests.frontends.torch.models import Encoder, seeded, tokens  # noqa: E402

import smelt.torch  # noqa: E402
from smelt.backend.gpus import gpu  # noqa: E402
from smelt.errors import ArgumentError  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")


class Decoder(torch.nn.Module):
    """GPT-2: pre-norm layers with causal attention, and logits by the embedding."""

    def __init__(self, hidden=64, heads=4, layers=2, vocabulary=99):
        super().__init__()
        self.heads = heads
        self.words = torch.nn.Embedding(vocabulary, hidden)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden) for _ in range(2 * layers))
        self.mixed = torch.nn.ModuleList(torch.nn.Linear(hidden, 3 * hidden) for _ in range(layers))
        self.wide = torch.nn.ModuleList(torch.nn.Linear(hidden, 4 * hidden) for _ in range(layers))
        self.narrow = torch.nn.ModuleList(
            torch.nn.Linear(4 * hidden, hidden) for _ in range(layers)
        )

    def forward(self, ids):
        x = self.words(ids)
        for k, (mixed, wide, narrow) in enumerate(
            zip(self.mixed, self.wide, self.narrow, strict=True)
        ):
            b, n, h = x.shape
            parts = mixed(self.norms[2 * k](x)).split(h, dim=2)
            q, key, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in parts)
            y = F.scaled_dot_product_attention(q, key, v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(b, n, h)
            x = x + narrow(F.gelu(wide(self.norms[2 * k + 1](x)), approximate="tanh"))
        return x @ self.words.weight.T


class Residual(torch.nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = torch.nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(after) for _ in range(2))
        self.short = (
            torch.nn.Conv2d(before, after, 1, stride) if stride > 1 else torch.nn.Identity()
        )

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


class ResNet18(torch.nn.Module):
    """ResNet-18: a stem, eight residual blocks and a head."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        self.blocks = torch.nn.Sequential(
            *(
                Residual(before, after, 1 + (before != after))
                for before, after in zip([width, *widths], widths, strict=False)
            )
        )
        self.head = torch.nn.Linear(8 * width, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


MODELS = {
    "bert": (Encoder, lambda: tokens(2, 16)),
    "bert, long": (lambda: Encoder(64, 4, 1, 50, 256), lambda: tokens(2, 256)),
    "gpt2": (Decoder, lambda: (tokens(2, 16)[0],)),
    "resnet18": (ResNet18, lambda: (torch.zeros(2, 3, 64, 64),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_planned_for_a_device(name):
    make, inputs = MODELS[name]
    with torch.no_grad():
        record = smelt.torch.explain(seeded(make), *inputs())
    (graph,) = record.graphs
    reports = graph.reports("sm_90")
    assert reports and all(r.data.device.arch == "sm_90" for r in reports)
    for report in reports:
        total = report.data.total
        assert total.bytes <= total.bytes_unfused
        assert total.predicted_ns >= len(report.entries) * gpu("sm_90").launch_ns
        programs = [k.data.device for k in report.entries]
        assert [p.refused for p in programs if p.source is None] == []
        assert report.text(1) and report.to_json()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_is_explained_for_gpus(name, monkeypatch):
    """The gradients and the update by AdamW of all parameters are graphs of their own."""
    explain_for_gpus = collect_programs(monkeypatch)
    make, inputs = MODELS[name]
    model = seeded(make).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.compile(model, backend="smelt")(*inputs()).square().mean().backward()
    torch.compile(optimizer.step, backend="smelt")()
    assert explain_for_gpus() >= 3


def test_an_unknown_device_is_an_error():
    record = smelt.torch.explain(torch.nn.Linear(3, 4), torch.zeros(2, 3))
    with pytest.raises(ArgumentError, match="h100"):
        record.graphs[0].reports("sm_12")
