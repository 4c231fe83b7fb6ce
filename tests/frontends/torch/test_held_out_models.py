"""Small models of further kinds, in training: results and gradients as eager code's.

Neighbours in a cloud of points, attention along the edges of a graph, routing between capsules, a
recurrence written as a product, two towers and their contrast, noise that is predicted, volumes
along rays, an alignment of unknown places, advantages of a policy.  Eager code in float64 judges;
tolerances are those of `test_held_out_modules`.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.test_held_out_modules import randn, whole  # noqa: E402
from tests.frontends.torch.training_step import worst_error  # noqa: E402

F = torch.nn.functional
L = torch.nn
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Points(L.Module):
    """DGCNN's: the greatest of what each point and its nearest ones make, neighbours found anew."""

    def __init__(self, c=8, near=4):
        super().__init__()
        self.near = near
        self.a = L.Sequential(L.Linear(6, c), L.LayerNorm(c), L.LeakyReLU(0.2), L.Linear(c, c))
        self.b = L.Sequential(L.Linear(2 * c, c), L.GELU())

    def edges(self, x):
        i = torch.cdist(x, x).topk(self.near, dim=-1, largest=False).indices
        y = x[torch.arange(x.shape[0])[:, None, None], i]
        return torch.cat([y - x[:, :, None], x[:, :, None].expand_as(y)], -1)

    def forward(self, x):
        return self.b(self.edges(self.a(self.edges(x)).amax(2))).amax(2).amax(1)


class Edges(L.Module):
    """Attention along the edges of a graph: softmax over those that end at a node."""

    def __init__(self, c=8, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, L.Linear(c, 3 * c), L.Linear(c, c)
        self.near, self.norm = L.Linear(3, heads, bias=False), L.LayerNorm(c)

    def forward(self, x, ends, inputs):
        n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, self.heads, -1).unbind(1)
        a, b = ends
        score = (q[b] * k[a]).sum(-1) / math.sqrt(c // self.heads) + self.near(inputs)
        low = torch.full((n, self.heads), -1e9, dtype=x.dtype)
        to = b[:, None].expand_as(score)
        p = (score - low.scatter_reduce(0, to, score.detach(), "amax")[b]).exp()
        total = p.new_zeros(n, self.heads).index_add(0, b, p)[b]
        y = torch.zeros_like(v).index_add(0, b, (p / (total + 1e-9))[..., None] * v[a])
        return x + self.out(y.reshape(n, c))


class Capsules(L.Module):
    """What capsules agree on, in three rounds."""

    def __init__(self, parts=12, c=4, wholes=5, d=6):
        super().__init__()
        self.w = L.Parameter(randn(parts, wholes, d, c) / 4)

    def forward(self, x):
        u = torch.einsum("iodk,bik->biod", self.w, _squashed(x))
        weight = u.new_zeros(u.shape[:3])
        for _ in range(2):
            v = _squashed((weight.softmax(2)[..., None] * u.detach()).sum(1))
            weight = weight + (u.detach() * v[:, None]).sum(-1)
        return _squashed((weight.softmax(2)[..., None] * u).sum(1)).norm(dim=-1)


def _squashed(x):
    n = x.square().sum(-1, keepdim=True)
    return n / (1 + n) * x / (n + 1e-8).sqrt()


class Decayed(L.Module):
    """RWKV's mixing of times: each word beside the one before, sums that fade, a norm by heads."""

    def __init__(self, c=8, heads=2):
        super().__init__()
        self.heads, self.mix = heads, L.Parameter(torch.rand(4, c))
        self.maps = L.ModuleList(L.Linear(c, c, bias=False) for _ in range(5))
        self.fade, self.own = L.Parameter(randn(heads)), L.Parameter(randn(heads, c // heads))
        self.norm = L.GroupNorm(heads, c)

    def forward(self, x):
        b, t, c = x.shape
        before = F.pad(x, (0, 0, 1, -1)) - x
        r, k, v, g = (m(x + before * s) for m, s in zip(self.maps, self.mix, strict=False))
        r, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (r, k, v))
        i = torch.arange(t)
        rate = -F.softplus(self.fade)[:, None, None] * (i[:, None] - i - 1).clamp(min=0)
        fade = torch.where(i[:, None] > i, rate.exp(), 0.0)
        y = ((r @ k.mT) * fade) @ v + (r * self.own[:, None] * k).sum(-1, keepdim=True) * v
        y = self.norm(y.transpose(1, 2).reshape(b * t, c)).view(b, t, c)
        return self.maps[4](y * F.silu(g))


class Contrast(L.Module):
    """CLIP's: images and texts beside one another, scaled, each to find its own."""

    def __init__(self, c=6):
        super().__init__()
        self.seen = L.Sequential(L.Conv2d(3, 4, 4, 4), L.GELU(), L.Flatten(), L.Linear(16, c))
        self.read, self.scale = L.Embedding(9, c), L.Parameter(torch.tensor(2.0))

    def forward(self, image, words):
        there = (words != 0)[..., None].to(image.dtype)
        text = (self.read(words) * there).sum(1) / there.sum(1).clamp(min=1)
        seen, text = (F.normalize(y, dim=-1) for y in (self.seen(image), text))
        z = self.scale.exp().clamp(max=100) * seen @ text.T
        diagonal = torch.arange(len(z))
        return (F.cross_entropy(z, diagonal) + F.cross_entropy(z.T, diagonal)) / 2


class Noise(L.Module):
    """A step of a diffusion model: noise that is predicted from what it was added to, weighed by
    time."""

    def __init__(self, c=8):
        super().__init__()
        self.first, self.last = L.Conv2d(3, c, 3, padding=1), L.Conv2d(2 * c, 3, 3, padding=1)
        self.time = L.Sequential(L.Linear(c, c), L.SiLU(), L.Linear(c, 2 * c))
        self.norm, self.down = L.GroupNorm(2, c), L.Conv2d(c, c, 3, 2, 1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-3, 0.2, 20), 0))

    def forward(self, x, t, noise):
        kept = self.kept[t][:, None, None, None]
        half = self.first.out_channels // 2
        rate = t[:, None] * torch.exp(-torch.arange(half, dtype=x.dtype))
        moved = self.time(torch.cat([rate.sin(), rate.cos()], -1))[..., None, None]
        scale, shift = moved.chunk(2, 1)
        y = self.first(kept.sqrt() * x + (1 - kept).sqrt() * noise)
        y = F.silu(self.norm(y) * (1 + scale) + shift)
        z = F.interpolate(F.silu(self.down(y)), scale_factor=2, mode="nearest")
        apart = (self.last(torch.cat([y, z], 1)) - noise).square().flatten(1).mean(1)
        return (torch.minimum(kept / (1 - kept), torch.full_like(kept, 5)).flatten() * apart).mean()


class Rays(L.Module):
    """NeRF's: waves of positions, read again by a later layer; light along rays through what they
    make."""

    def __init__(self, waves=3, c=8):
        super().__init__()
        self.waves, e = waves, 3 + 6 * waves
        self.a, self.b, self.c = L.Linear(e, c), L.Linear(c + e, c), L.Linear(c, 4)

    def forward(self, at, to):
        t = torch.linspace(0.5, 2, 7, dtype=at.dtype)
        p = at[:, None] + to[:, None] * t[:, None]
        x = (p[..., None, :] * 2.0 ** torch.arange(self.waves, dtype=t.dtype)[:, None]).flatten(-2)
        e = torch.cat([p, x.sin(), x.cos()], -1)
        result = self.c(F.relu(self.b(torch.cat([F.relu(self.a(e)), e], -1))))
        step = torch.cat([t[1:] - t[:-1], t.new_full((1,), 10)])
        seen = torch.exp(-F.softplus(result[..., 0]) * step)
        left = torch.cumprod(torch.cat([torch.ones_like(seen[:, :1]), seen], -1), -1)[:, :-1]
        weight = left * (1 - seen)
        return (weight[..., None] * result[..., 1:].sigmoid()).sum(1), (weight * t).sum(1)


class Aligned(L.Module):
    """The loss of an alignment: all ways to say a word in so many times (CTC), one by one."""

    def __init__(self, c=6, letters=5):
        super().__init__()
        self.said = L.Linear(c, letters)

    def forward(self, x, word):
        b, n = len(x), 2 * word.shape[1] + 1
        said = torch.zeros(b, n, dtype=torch.long)
        said[:, 1::2] = word
        each = self.said(x).log_softmax(-1).gather(2, said[:, None].expand(b, x.shape[1], n))
        over = torch.zeros(b, n, dtype=torch.bool)
        over[:, 2:] = (said[:, 2:] != 0) & (said[:, 2:] != said[:, :-2])
        a = torch.where(torch.arange(n) < 2, each[:, 0], -1e5)
        for k in range(1, x.shape[1]):
            one = F.pad(a, (1, -1), value=-1e5)
            two = torch.where(over, F.pad(a, (2, -2), value=-1e5), -1e5)
            a = torch.logsumexp(torch.stack([a, one, two]), 0) + each[:, k]
        return -torch.logaddexp(a[:, -1], a[:, -2]).mean()


class Policy(L.Module):
    """PPO's loss: advantages by a loop back in time, ratios that are clipped, an entropy."""

    def __init__(self, c=4, h=8, choices=3):
        super().__init__()
        self.body = L.Sequential(L.Linear(c, h), L.Tanh())
        self.choice, self.worth = L.Linear(h, choices), L.Linear(h, 1)

    def forward(self, seen, did, reward, ended, before, worth):
        gains, g = [], torch.zeros_like(reward[0])
        for t in range(len(seen) - 2, -1, -1):
            on = 1 - ended[t]
            g = reward[t] + 0.99 * worth[t + 1] * on - worth[t] + 0.94 * on * g
            gains.append(g)
        gain = torch.stack(gains[::-1])
        back, gain = gain + worth[:-1], (gain - gain.mean()) / (gain.std() + 1e-8)
        h = self.body(seen[:-1])
        p = torch.distributions.Categorical(logits=self.choice(h), validate_args=False)
        ratio = (p.log_prob(did[:-1]) - before[:-1]).exp()
        won = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        v = self.worth(h).squeeze(-1)
        near = worth[:-1] + (v - worth[:-1]).clamp(-0.2, 0.2)
        lost = torch.max((v - back).square(), (near - back).square()).mean()
        return lost / 2 - won - 0.01 * p.entropy().mean()


CASES = {
    "points": lambda: (Points(), randn(2, 12, 3)),
    "edges": lambda: (Edges(), randn(9, 8), whole(9, 2, 40), randn(40, 3)),
    "capsules": lambda: (Capsules(), randn(3, 12, 4)),
    "decayed": lambda: (Decayed(), randn(2, 7, 8)),
    "contrast": lambda: (Contrast(), randn(5, 3, 8, 8), whole(9, 5, 4)),
    "noise": lambda: (Noise(), randn(3, 3, 8, 6), whole(20, 3), randn(3, 3, 8, 6)),
    "rays": lambda: (Rays(), randn(5, 3), randn(5, 3)),
    "aligned": lambda: (Aligned(), randn(3, 9, 6), 1 + whole(4, 3, 3)),
    "policy": lambda: (
        Policy(),
        randn(9, 5, 4),
        whole(3, 9, 5),
        randn(9, 5),
        whole(2, 9, 5).float(),
        randn(9, 5) / 9 - 1.1,
        randn(9, 5),
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_as_eagers(name):
    torch.manual_seed(0)
    model, *inputs = CASES[name]()
    assert worst_error(model, inputs) <= 1
