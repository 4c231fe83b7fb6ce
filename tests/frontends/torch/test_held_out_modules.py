"""Modules with state of their own, in training: results, gradients and buffers as eager code's.

Eager code in float64 judges.  Tolerances are those of a few thousand float32 operations, of the
largest element; what is nothing but rounding (the gradient of a bias in front of a norm) is so of
sums as large as the largest element of all.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.training_step import worst_error  # noqa: E402

F = torch.nn.functional
L = torch.nn
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
G = torch.Generator().manual_seed(0)
AHEAD = torch.arange(7)[None] >= torch.tensor([7, 4, 2])[:, None]


def randn(*shape):
    return torch.randn(*shape, generator=G)


def whole(high, *shape):
    return torch.randint(0, high, shape, generator=G)


class Inverted(L.Module):
    """EfficientNet's block: expansion, depthwise windows, squeeze and excitation."""

    def __init__(self, c=6, e=12):
        super().__init__()
        self.up, self.deep = L.Conv2d(c, e, 1, bias=False), L.Conv2d(e, e, 5, padding=2, groups=e)
        self.down, self.a, self.b = L.Conv2d(e, c, 1), L.Conv2d(e, 3, 1), L.Conv2d(3, e, 1)
        self.n1, self.n2, self.n3 = L.BatchNorm2d(e), L.BatchNorm2d(e), L.BatchNorm2d(c)

    def forward(self, x):
        y = F.silu(self.n2(self.deep(F.silu(self.n1(self.up(x))))))
        y = y * torch.sigmoid(self.b(F.silu(self.a(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.n3(self.down(y))


class Window(L.Module):
    """Swin's: attention within windows, with a bias looked up by relative position."""

    def __init__(self, c=8, heads=2, w=2):
        super().__init__()
        self.heads, self.w = heads, w
        self.norm, self.qkv = L.LayerNorm(c), L.Linear(c, 3 * c)
        self.table = L.Parameter(randn((2 * w - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij"))
        apart = (at.flatten(1)[:, :, None] - at.flatten(1)[:, None]).permute(1, 2, 0) + w - 1
        self.register_buffer("places", apart[..., 0] * (2 * w - 1) + apart[..., 1])

    def forward(self, x):
        b, h, v, c = x.shape
        w, n = self.w, self.w**2
        y = torch.roll(self.norm(x), (-1, -1), (1, 2)).view(b, h // w, w, v // w, w, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, n, c)
        parts = self.qkv(y).view(-1, n, 3, self.heads, c // self.heads)
        q, k, y = parts.permute(2, 0, 3, 1, 4)
        bias = self.table[self.places.view(-1)].view(n, n, -1).permute(2, 0, 1)
        y = ((q @ k.mT * 0.5 + bias).softmax(-1) @ y).transpose(1, 2)
        y = y.reshape(b, h // w, v // w, w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, v, c)
        return x + torch.roll(y, (1, 1), (1, 2))


class Waves(L.Module):
    """WaveNet's: gated windows that look back further and further."""

    def __init__(self, c=4, depth=3):
        super().__init__()
        self.gates = L.ModuleList(L.Conv1d(c, 2 * c, 2, dilation=2**k) for k in range(depth))
        self.outs = L.ModuleList(L.Conv1d(c, c, 1) for _ in range(depth))

    def forward(self, x):
        total = 0
        for k, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            a, b = gate(F.pad(x, (2**k, 0))).chunk(2, 1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total, x = total + z, x + out(z)
        return F.relu(total), x


class Translator(L.Module):
    """An encoder and a decoder of PyTorch's own, with masks of both kinds."""

    def __init__(self):
        super().__init__()
        self.whole = L.Transformer(8, 2, 1, 1, 12, 0.0, batch_first=True, norm_first=True)

    def forward(self, x, y, mask):
        ahead = self.whole.generate_square_subsequent_mask(y.shape[1], dtype=y.dtype)
        return self.whole(
            x,
            y,
            tgt_mask=ahead,
            tgt_is_causal=True,
            src_key_padding_mask=mask,
            memory_key_padding_mask=mask,
        )


class Average(L.Module):
    """Weights that follow others slowly, updated without gradients in every call."""

    def __init__(self):
        super().__init__()
        self.own = L.Linear(6, 6)
        self.register_buffer("slow", self.own.weight.detach().clone())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        with torch.no_grad():
            self.slow.mul_(0.9).add_(self.own.weight, alpha=0.1)
            self.calls += 1
        return (self.own(x) - F.linear(x, self.slow)).square().mean(-1)


class Clicks(L.Module):
    """DLRM's: bags of embeddings, and all products of two of them."""

    def __init__(self):
        super().__init__()
        self.bags = L.ModuleList(L.EmbeddingBag(9, 5, mode=m) for m in ("sum", "mean"))
        self.dense, self.top = L.Linear(4, 5), L.Linear(8, 1)

    def forward(self, x, i):
        d = torch.relu(self.dense(x))
        t = torch.stack([d, *(bag(i[:, k]) for k, bag in enumerate(self.bags))], 1)
        a, b = torch.tril_indices(3, 3, -1)
        return torch.sigmoid(self.top(torch.cat([d, (t @ t.mT)[:, a, b]], 1)))


class Routed(L.Module):
    """Experts with room for so many rows each, filled and read by position."""

    def __init__(self):
        super().__init__()
        self.route, self.room = L.Linear(6, 3), 4
        self.a, self.b = L.Parameter(randn(3, 6, 8)), L.Parameter(randn(3, 8, 6))

    def forward(self, x):
        share, i = self.route(x).softmax(-1).topk(2, -1)
        order = i.flatten().argsort(stable=True)
        row, e = order // 2, i.flatten()[order]
        place = torch.arange(e.numel()) - torch.searchsorted(e, e)
        fits = place < self.room
        slot = torch.where(fits, place, self.room)
        rows = x.new_zeros(3, self.room + 1, 6).index_put((e, slot), x[row] * fits[:, None])
        y = (F.silu(rows @ self.a) @ self.b)[e, slot]
        y = y * (share.flatten()[order] * fits)[:, None]
        return torch.zeros_like(x).index_add(0, row, y)


class ComplexRotary(L.Module):
    """Rotary positions as products of complex numbers, beside a spectrum."""

    def __init__(self):
        super().__init__()
        self.w = L.Parameter(randn(5, 4))

    def forward(self, x):
        at = torch.outer(torch.arange(x.shape[1]), 1 / 10.0 ** torch.arange(2)).to(x.dtype)
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], 2, 2))
        y = torch.view_as_real(z * torch.polar(torch.ones_like(at), at)[None]).flatten(2)
        return y * 2, torch.fft.irfft(torch.fft.rfft(y, dim=1) * self.w, n=y.shape[1], dim=1)


class Again(L.Module):
    """Parts that are computed again on the way back because the user says so."""

    def __init__(self):
        super().__init__()
        part = [L.LayerNorm(6), L.Linear(6, 9), L.GELU(), L.Linear(9, 6)]
        self.parts = L.ModuleList(L.Sequential(*copy.deepcopy(part)) for _ in range(2))

    def forward(self, x):
        for part in self.parts:
            x = x + torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
        return x


class Learner(L.Module):
    """A step of gradient descent inside, and gradients of every row."""

    def __init__(self):
        super().__init__()
        self.net = L.Sequential(L.Linear(4, 5), L.Tanh(), L.Linear(5, 1))

    def forward(self, x, y):
        def loss(p, x, y):
            return F.mse_loss(torch.func.functional_call(self.net, p, (x,)), y)

        p = dict(self.net.named_parameters())
        g = torch.func.grad(loss)(p, x, y)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(p, x, y)
        moved = {k: p[k] - 0.1 * g[k] for k in p}
        return loss(moved, x, y), each["0.weight"].square().sum((1, 2))


class Codes(L.Module):
    """VQ-VAE's: the nearest row of a table stands for each place, gradients pass by it."""

    def __init__(self):
        super().__init__()
        self.down, self.up = L.Conv2d(3, 4, 4, 2, 1), L.ConvTranspose2d(4, 3, 4, 2, 1)
        self.table = L.Embedding(8, 4)

    def forward(self, x):
        z = self.down(x).permute(0, 2, 3, 1)
        apart = z.square().sum(-1, keepdim=True) - 2 * z @ self.table.weight.T
        q = self.table((apart + self.table.weight.square().sum(1)).argmin(-1))
        loss = F.mse_loss(q.detach(), z) + F.mse_loss(q, z.detach()) / 4
        return self.up((z + (q - z).detach()).permute(0, 3, 1, 2)), loss


class Dense(L.Module):
    """DenseNet's: every layer reads what all before it have made; a product, then its mean over
    windows, between two blocks."""

    def __init__(self, c=8, g=4, depth=3):
        super().__init__()
        self.first, c = self.block(c, g, depth)
        self.between, c = L.Sequential(L.BatchNorm2d(c), L.ReLU(), L.Conv2d(c, c // 2, 1)), c // 2
        self.second, c = self.block(c, g, depth)
        self.last = L.Linear(c, 3)

    @staticmethod
    def block(c, g, depth):
        layers = [
            L.Sequential(
                L.BatchNorm2d(c + g * k),
                L.ReLU(),
                L.Conv2d(c + g * k, 2 * g, 1),
                L.BatchNorm2d(2 * g),
                L.ReLU(),
                L.Conv2d(2 * g, g, 3, padding=1),
            )
            for k in range(depth)
        ]
        return L.ModuleList(layers), c + g * depth

    def forward(self, x):
        for layer in self.first:
            x = torch.cat([x, layer(x)], 1)
        x = F.avg_pool2d(self.between(x), 2)
        for layer in self.second:
            x = torch.cat([x, layer(x)], 1)
        return self.last(x.mean((2, 3)))


class Mixture(L.Module):
    """A density as a mixture of normal ones, whose parts are columns of three products."""

    def __init__(self, d=12, parts=5, width=8):
        super().__init__()
        self.body, self.width = L.Sequential(L.Linear(d, 16), L.Tanh()), width
        self.share = L.Linear(16, parts)
        self.mean, self.log_scale = L.Linear(16, parts * width), L.Linear(16, parts * width)

    def forward(self, x, y):
        h = self.body(x)
        mean, scale = (f(h).unflatten(-1, (-1, self.width)) for f in (self.mean, self.log_scale))
        apart = (y[:, None] - mean) * torch.exp(-scale.clamp(-7, 7))
        each = (-0.5 * apart.square() - scale.clamp(-7, 7)).sum(-1)
        return -torch.logsumexp(F.log_softmax(self.share(h), -1) + each, -1)


def autoencoder():
    parts = [(L.Linear(a, b), L.BatchNorm1d(b), L.LeakyReLU(0.1)) for a, b in ((12, 8), (8, 3))]
    return L.Sequential(*sum(parts, ()), L.Linear(3, 12))


CASES = {
    "inverted": lambda: (Inverted(), randn(2, 6, 7, 5)),
    "channels last": lambda: (
        Inverted().to(memory_format=torch.channels_last),
        randn(2, 6, 7, 5).contiguous(memory_format=torch.channels_last),
    ),
    "window": lambda: (Window(), randn(2, 4, 6, 8)),
    "waves": lambda: (Waves(), randn(2, 4, 11)),
    "translator": lambda: (Translator(), randn(3, 7, 8), randn(3, 5, 8), AHEAD),
    "average": lambda: (Average(), randn(5, 6)),
    "clicks": lambda: (Clicks(), randn(7, 4), whole(9, 7, 2, 3)),
    "routed": lambda: (Routed(), randn(10, 6)),
    "turned": lambda: (ComplexRotary(), randn(2, 8, 4)),
    "again": lambda: (Again(), randn(3, 4, 6)),
    "learner": lambda: (Learner(), randn(6, 4), randn(6, 1)),
    "codes": lambda: (Codes(), randn(2, 3, 8, 6)),
    "autoencoder": lambda: (autoencoder(), randn(16, 12)),
    "dense": lambda: (Dense(), randn(1, 8, 12, 10)),
    "mixture": lambda: (Mixture(), randn(33, 12), randn(33, 8)),
    "recurrent": lambda: (L.LSTM(5, 4, 2, batch_first=True, bidirectional=True), randn(3, 6, 5)),
    "upsampled": lambda: (
        L.Sequential(
            L.Conv2d(2, 9, 3, padding=1),
            L.PixelShuffle(3),
            L.PReLU(),
            L.Upsample(scale_factor=2, mode="bilinear"),
        ),
        randn(2, 2, 5, 4),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_as_eagers(name):
    torch.manual_seed(0)
    model, *inputs = CASES[name]()
    assert worst_error(model, inputs) <= 1
