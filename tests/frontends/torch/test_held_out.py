"""Small modules as users write them: values, gradients, types and strides against eager code.

Tolerances are those of a few hundred float32 operations in another order, of the largest element.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("fresh")
G = torch.Generator().manual_seed(0)


def randn(*shape, scale=1.0):
    return (torch.randn(*shape, generator=G) * scale).requires_grad_()


def whole(high, *shape):
    return torch.randint(0, high, shape, generator=G)


SOURCE, TARGET, LABELS = whole(20, 60), whole(20, 60), whole(9, 4, 5)
NOISE = torch.rand(6, 10, generator=G) * 0.98 + 0.01


def gated(x, a, b):
    return (F.silu(x @ a) * torch.sigmoid(x @ b)) @ a.T


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + w)


def rotary_pairs(x):
    n, d = x.shape[-2:]
    at = torch.arange(n)[:, None] / 100 ** (torch.arange(0, d, 2) / d)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * at.cos() - b * at.sin(), a * at.sin() + b * at.cos()], -1).flatten(-2)


def gru(x, w, u):
    h, result = x.new_zeros(x.shape[0], 6), []
    for t in range(x.shape[1]):
        (r, z, n), (hr, hz, hn) = (x[:, t] @ w).chunk(3, -1), (h @ u).chunk(3, -1)
        z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
        h = (1 - z) * n + z * h
        result.append(h)
    return torch.stack(result, 1), h


def depthwise_glu(x, w, p):
    return x + F.silu(F.conv1d(F.glu(F.conv1d(x, p), 1), w, padding=2, groups=4))


def squeeze_excite(x, a, b):
    return x * torch.sigmoid(F.relu(x.mean((2, 3)) @ a) @ b)[:, :, None, None]


def pyramid(x, y):
    up = F.interpolate(y, scale_factor=2, mode="nearest")
    return x + up, F.pixel_shuffle(up, 2), F.interpolate(x, scale_factor=2, mode="bilinear")


def windows(x):
    b, h, w, c = x.shape
    y = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
    return torch.roll(F.layer_norm(y, (c,)).view(b, h // 2, w // 2, 2, 2, c), (1, -1), (1, 2))


def messages(x, w):
    m = F.relu(torch.cat([x[SOURCE], x[TARGET]], -1) @ w)
    total = torch.zeros(20, m.shape[1]).index_add(0, TARGET, m)
    count = torch.zeros(20).scatter_add(0, TARGET, torch.ones(60))
    return total / count.clamp(min=1)[:, None]


def experts(x, r, w):
    v, i = torch.softmax(x @ r, -1).topk(2, -1)
    gate = torch.zeros(x.shape[0], r.shape[1]).scatter(-1, i, v / v.sum(-1, keepdim=True))
    return torch.einsum("ne,end->nd", gate, F.gelu(torch.einsum("nd,edh->enh", x, w)))


def codes(x, e):
    apart = x.pow(2).sum(-1, keepdim=True) - 2 * x @ e.T + e.pow(2).sum(-1)
    i = apart.argmin(-1)
    q = F.embedding(i, e)
    return x + (q - x).detach(), F.mse_loss(q, x.detach()) + F.mse_loss(q.detach(), x) / 4, i


def gumbel(x):
    y = torch.softmax((x - torch.log(-torch.log(NOISE))) / 0.7, -1)
    return torch.zeros_like(y).scatter(-1, y.argmax(-1, keepdim=True), 1.0) - y.detach() + y


def spectral(w, u, x):
    v = u
    for _ in range(2):
        v = F.normalize(w @ u, dim=0)
        u = F.normalize(w.T @ v, dim=0)
    return x @ (w / (v @ (w @ u))).T, u.detach()


def alibi(q, k, v):
    p = torch.arange(q.shape[-2])
    slope = 2.0 ** -torch.arange(1, q.shape[1] + 1)
    s = q @ k.mT - (p[:, None] - p).abs() * slope[:, None, None]
    return s.masked_fill(p[:, None] < p, float("-inf")).softmax(-1) @ v


def latents(x, q):
    q = q.expand(x.shape[0], -1, -1)
    return q + F.scaled_dot_product_attention(F.layer_norm(q, q.shape[-1:]), x, x)


def kalman(x, p, a, h, z):
    x, p = x @ a.T, a @ p @ a.T + 0.1 * torch.eye(4)
    gain = torch.linalg.solve(h @ p @ h.T + torch.eye(2), h @ p.mT).mT
    return x + (gain @ (z - x @ h.T)[..., None])[..., 0], (torch.eye(4) - gain @ h) @ p


def sinkhorn(c):
    c = c.square()
    x = -c
    for _ in range(3):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return (x.exp() * c).sum((-1, -2))


def rendered(x, w):
    e = x[..., None] * 2.0 ** torch.arange(3)
    o = torch.cat([e.sin(), e.cos()], -1).flatten(-2) @ w
    thin = torch.exp(-F.softplus(o[..., 0]) * 0.1)
    light = torch.cumprod(torch.cat([torch.ones_like(thin[..., :1]), thin], -1), -1)[..., :-1]
    return ((light * (1 - thin))[..., None] * torch.sigmoid(o[..., 1:])).sum(-2)


def paths(x):
    p = F.log_softmax(x, -1)
    a = F.pad(p[0].gather(1, LABELS[:, :1]), (0, 4), value=-1e9)
    for t in range(1, x.shape[0]):
        a = torch.logaddexp(a, F.pad(a[:, :-1], (1, 0), value=-1e9)) + p[t].gather(1, LABELS)
    return -a[:, -1].mean()


def boxes(b, s):
    x1, y1, x2, y2 = b[s.argsort(descending=True)].unbind(-1)
    w, h = (
        (torch.minimum(hi[:, None], hi) - torch.maximum(lo[:, None], lo)).clamp(min=0)
        for lo, hi in ((x1, x2), (y1, y2))
    )
    area = (x2 - x1) * (y2 - y1)
    result = w * h / (area[:, None] + area - w * h)
    return ~((result > 0.5).triu(1).any(0)), result.triu(1).amax(0)


def beams(x, s):
    v, i = (s[..., None] + F.log_softmax(x, -1)).flatten(1).topk(3, -1)
    return v, i // x.shape[-1], i % x.shape[-1]


def views(x):
    return x.transpose(0, 1), x[1:], (x * 2).t(), (x + 1)[:, ::2], x.mT * 1


CASES = {
    gated: ((3, 5, 8), (8, 12), (8, 12)),
    rms_norm: ((3, 7, 16), (16,)),
    rotary_pairs: ((2, 3, 6, 8),),
    gru: ((3, 2, 5), (5, 18), (6, 18)),
    depthwise_glu: ((2, 4, 11), (4, 1, 5), (8, 4, 1)),
    squeeze_excite: ((2, 6, 5, 4), (6, 3), (3, 6)),
    pyramid: ((2, 4, 6, 8), (2, 4, 3, 4)),
    windows: ((2, 4, 6, 5),),
    messages: ((20, 6), (12, 7)),
    experts: ((10, 6), (6, 4), (4, 6, 5)),
    codes: ((15, 6), (7, 6)),
    gumbel: ((6, 10),),
    spectral: ((12, 16), (16,), (5, 16)),
    alibi: ((2, 3, 6, 4),) * 3,
    latents: ((2, 7, 8), (1, 3, 8)),
    kalman: ((6, 4), (6, 4, 4), (4, 4), (2, 4), (6, 2)),
    sinkhorn: ((2, 5, 6),),
    rendered: ((4, 7, 3), (18, 4)),
    paths: ((6, 4, 9),),
    boxes: ((12, 4), (12,)),
    beams: ((2, 3, 11), (2, 3)),
    views: ((6, 5),),
}


def flat(actual):
    return list(actual) if isinstance(actual, tuple) else [actual]


def slopes(results, inputs):
    """Gradients of a sum that tells all elements apart."""
    floats = [r for r in results if r.requires_grad]
    if not floats:
        return []
    total = sum((r.cos() * torch.linspace(1, 2, r.numel()).view(r.shape)).sum() for r in floats)
    return list(torch.autograd.grad(total, inputs, allow_unused=True))


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_as_eager(case):
    inputs = [randn(*shape, scale=0.5) for shape in CASES[case]]
    call = torch.compile(case, backend="smelt", fullgraph=True)
    with smelt.torch.record() as r:
        result = flat(call(*inputs))
        results = len(result)
        result += slopes(result, inputs)
    assert not any(g.fallback for g in r.graphs)
    want = flat(case(*inputs))
    want += slopes(want, inputs)
    for k, (got, eager) in enumerate(zip(result, want, strict=True)):
        assert (got is None) == (eager is None)
        if eager is None:
            continue
        assert got.dtype == eager.dtype
        assert k >= results or got.stride() == eager.stride()  # a gradient's are its maker's
        most = eager.abs().max().item() if eager.dtype.is_floating_point else 0
        torch.testing.assert_close(got, eager, rtol=1e-4, atol=2e-5 * most)
    with torch.no_grad():
        for got, eager in zip(flat(call(*inputs)), want, strict=False):
            torch.testing.assert_close(got, eager.detach(), rtol=1e-4, atol=1e-5)
