"""Complete user programs: results, gradients and new states are eager code's."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.models import compiled  # noqa: E402

import smelt.torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
nn, F = torch.nn, torch.nn.functional


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold network: B-splines of each input, by their recursion."""

    def __init__(self, inputs=4, outputs=6, cells=5, order=3):
        super().__init__()
        knots = (torch.arange(-order, cells + order + 1) * 2 / cells - 1).expand(inputs, -1)
        self.register_buffer("knots", knots.contiguous())
        self.order, self.heights = order, nn.Parameter(drawn(outputs, inputs, cells + order))
        self.slopes = nn.Parameter(drawn(outputs, inputs))

    def forward(self, x):
        t, u = self.knots, x[..., None]
        b = ((u >= t[:, :-1]) & (u < t[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            rising = (u - t[:, : -(k + 1)]) / (t[:, k:-1] - t[:, : -(k + 1)])
            falling = (t[:, k + 1 :] - u) / (t[:, k + 1 :] - t[:, 1:-k])
            b = rising * b[..., :-1] + falling * b[..., 1:]
        return F.silu(x) @ self.slopes.T + torch.einsum("bik,oik->bo", b, self.heights)


class Hashed(nn.Module):
    """Features of points, interpolated in hashed grids of several widths (Müller et al., 2022)."""

    def __init__(self, levels=2, rows=64):
        super().__init__()
        self.tables, self.head = nn.Parameter(drawn(levels, rows, 2)), nn.Linear(2 * levels, 3)

    def forward(self, x):
        results = []
        for level, table in enumerate(self.tables):
            at = x * (4 << level)
            cell = at.floor().long()
            part = at - cell
            total = 0
            for corner in range(8):
                bits = [corner >> d & 1 for d in range(3)]
                key = cell[:, 0] + bits[0]
                key = key ^ (cell[:, 1] + bits[1]) * 2654435761
                key = key ^ (cell[:, 2] + bits[2]) * 805459861
                weight = 1
                for d, bit in enumerate(bits):
                    weight = weight * (part[:, d] if bit else 1 - part[:, d])
                total = total + table[key % table.shape[0]] * weight[:, None]
            results.append(total)
        return self.head(torch.cat(results, -1))


class Equation(nn.Module):
    """What a network leaves of Burgers' equation, whose derivatives `torch.func` takes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, points):
        slope = torch.func.grad(lambda p: self.net(p)[0])

        def bend(p):
            along = torch.tensor([1.0, 0.0], dtype=p.dtype)
            return torch.func.jvp(lambda q: slope(q)[0], (p,), (along,))[1]

        of_x, of_t = torch.func.vmap(slope)(points).unbind(-1)
        u = self.net(points)[:, 0]
        return of_t + u * of_x - 0.01 * torch.func.vmap(bend)(points)


class Windows(nn.Module):
    """Attention inside shifted windows, with a bias for each distance (Liu et al., 2021)."""

    def __init__(self, width=16, heads=2, side=4):
        super().__init__()
        self.heads, self.side = heads, side
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(drawn((2 * side - 1) ** 2, heads))
        place = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = place[:, None] - place[None] + side - 1
        self.register_buffer("distance", apart[..., 0] * (2 * side - 1) + apart[..., 1])

    def forward(self, x):
        b, h, w, d = x.shape
        s = self.side
        y = torch.roll(x, (-2, -2), (1, 2)).view(b, h // s, s, w // s, s, d).transpose(2, 3)
        qkv = self.project(y.reshape(-1, s * s, d)).view(-1, s * s, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = self.bias[self.distance.view(-1)].view(s * s, s * s, -1).permute(2, 0, 1)
        y = self.out((((q @ k.mT) + bias).softmax(-1) @ v).transpose(1, 2).reshape(-1, s * s, d))
        y = y.view(b, h // s, w // s, s, s, d).transpose(2, 3).reshape(b, h, w, d)
        return x + torch.roll(y, (2, 2), (1, 2))


class Pooled(nn.Module):
    """A small network of images with each kind of pooling in its way back."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(24, 5)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = F.avg_pool2d(F.gelu(self.second(F.pad(x, (1, 1, 1, 1), mode="replicate"))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))


MODELS = {
    "splines": (Splines, lambda: (drawn(9, 4) * 0.4,)),
    "hashed grids": (Hashed, lambda: (drawn(40, 3).sigmoid(),)),
    "an equation": (Equation, lambda: (drawn(12, 2),)),
    "windows": (Windows, lambda: (drawn(2, 8, 8, 16),)),
    "poolings": (Pooled, lambda: (drawn(2, 3, 12, 12),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    model = kind().double()
    other, inputs = copy.deepcopy(model), [x.double() for x in make()]
    fast = compiled(other)
    for result, called in ((model, model), (other, fast)):
        y = called(*inputs)
        (y * torch.arange(y.numel()).reshape(y.shape).cos()).sum().backward()
        result.result = y.detach()
    torch.testing.assert_close(other.result, model.result, rtol=1e-11, atol=1e-11)
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)
    assert all(
        torch.equal(a, b) or torch.allclose(a, b)
        for a, b in zip(other.buffers(), model.buffers(), strict=True)
    )


def lion(weights, gradients, moments):
    for p, g, m in zip(weights, gradients, moments, strict=True):
        p.mul_(1 - 1e-3).add_(torch.sign(m * 0.9 + g * 0.1), alpha=-1e-2)
        m.lerp_(g, 0.01)
    return weights, moments


def adafactor(weights, gradients, moments):
    results = []
    for p, g, m in zip(weights, gradients, moments, strict=True):
        square = g * g + 1e-30
        rows = m.abs().mean(-1) * 0.9 + square.mean(-1) * 0.1
        columns = m.abs().mean(-2) * 0.9 + square.mean(-2) * 0.1
        scale = (rows / rows.mean(-1, keepdim=True)).rsqrt()[..., None]
        step = scale * columns.rsqrt()[..., None, :] * g
        step = step / step.square().mean().sqrt().clamp(min=1.0)
        results.append(p - 1e-2 * step * p.square().mean().sqrt().clamp(min=1e-3))
    return results


def muon(weights, gradients, moments):
    results = []
    for p, g, m in zip(weights, gradients, moments, strict=True):
        x = g + 0.95 * (m * 0.95 + g)
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        results.append(p - 0.02 * max(1, p.shape[0] / p.shape[1]) ** 0.5 * x)
    return results


def clipped(weights, gradients, moments):
    whole = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    scale = (1.0 / (whole + 1e-6)).clamp(max=1.0)
    weights = [p - 0.1 * g * scale for p, g in zip(weights, gradients, strict=True)]
    return weights, [torch.lerp(m, p, 0.01) for m, p in zip(moments, weights, strict=True)], whole


@pytest.mark.parametrize("step", [lion, adafactor, muon, clipped])
def test_steps_of_optimisers(step):
    def run(call):
        inputs = [[drawn(6, 9).double() + k, drawn(5, 4).double() - k] for k in range(3)]
        return call(*inputs), inputs

    with smelt.torch.record() as r:
        actual = run(compiled(step))
    torch.testing.assert_close(actual, run(step), rtol=1e-12, atol=1e-12)
    assert not r.left


def test_boxes_that_are_suppressed():
    """What stands beside a suppression of boxes: order, overlaps of pairs, who is kept by whom."""

    def f(boxes, scores):
        order = scores.argsort(descending=True)
        boxes = boxes[order]
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        over = torch.triu(both / (area[:, None] + area[None] - both) > 0.3, 1)
        kept = torch.ones(len(order), dtype=torch.bool)
        for _ in range(3):
            kept = ~(over & kept[:, None]).any(0)
        return order, kept, scores[order] * kept

    corner = drawn(60, 2).double() * 3
    boxes = torch.cat([corner, corner + drawn(60, 2).double().abs() + 1], 1)
    scores = drawn(60).double()
    torch.testing.assert_close(compiled(f)(boxes, scores), f(boxes, scores), rtol=0, atol=0)


def test_products_with_packed_weights():
    """Weights of 8 bits with a scale for each row, and of 4 bits by twos."""
    bytes_, scale = torch.randint(-127, 128, (12, 10), dtype=torch.int8), drawn(12).abs().double()
    halves = torch.randint(0, 256, (7, 6), dtype=torch.uint8)

    def f(x):
        y = F.relu(x @ (bytes_.to(x.dtype) * scale[:, None]).T)
        four = torch.stack([halves & 15, halves >> 4], -1).flatten(1).to(x.dtype) - 8
        return y @ four.T

    x = drawn(5, 10).double()
    torch.testing.assert_close(compiled(f)(x), f(x), rtol=1e-12, atol=1e-9)
