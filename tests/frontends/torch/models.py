"""Small models, as users write them, with seeded weights, and how tests compile them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


def compiled(model, **options):
    """The model or function as `torch.compile` has Smelt compile it, without breaks."""
    return torch.compile(model, backend="smelt", fullgraph=True, **options)


class Encoder(torch.nn.Module):
    """BERT's encoder: embeddings, post-norm layers with attention, GELU."""

    def __init__(self, hidden=32, heads=4, layers=2, vocabulary=50, positions=64):
        super().__init__()
        self.heads = heads
        self.words = torch.nn.Embedding(vocabulary, hidden)
        self.places = torch.nn.Embedding(positions, hidden)
        self.norm = torch.nn.LayerNorm(hidden)
        self.layers = torch.nn.ModuleList(Layer(hidden, heads) for _ in range(layers))

    def forward(self, ids, mask):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask[:, None, None, :])
        return x


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query = torch.nn.Linear(hidden, hidden)
        self.key = torch.nn.Linear(hidden, hidden)
        self.value = torch.nn.Linear(hidden, hidden)
        self.out = torch.nn.Linear(hidden, hidden)
        self.first = torch.nn.LayerNorm(hidden)
        self.wide = torch.nn.Linear(hidden, 4 * hidden)
        self.narrow = torch.nn.Linear(4 * hidden, hidden)
        self.second = torch.nn.LayerNorm(hidden)

    def forward(self, x, mask):
        b, n, h = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.first(x + self.out(y.transpose(1, 2).reshape(b, n, h)))
        return self.second(x + self.narrow(F.gelu(self.wide(x))))


def seeded(make, *args, **options):
    """A model in evaluation mode whose weights do not depend on what ran before."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*args, **options).eval()


def tokens(batch, length, vocabulary=50, seed=0):
    """Ids and a mask whose last column is padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[:, -1] = False
    return ids, mask
