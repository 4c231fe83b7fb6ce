"""Training and loops behind `torch.compile`, whose graphs run on the fake device.

A model on the CPU is compiled. Each graph that the back end gets is moved to "cuda" before it is
compiled, and its arguments and results cross between torch's memory and the fake device's, so that
all of torch's own machinery (the split in two graphs, what is saved between them) is in the test.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tests.runtime.cuda.fake_torch import Tensor, fake_torch, put  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402

from smelt.frontends.torch import backend  # noqa: E402

scan = pytest.importorskip("torch._higher_order_ops.scan").scan
while_loop = pytest.importorskip("torch._higher_order_ops.while_loop").while_loop

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`"),
]


def move(graph):
    """Move a traced graph to "cuda": what its values are, and where its constants are made."""
    for node in graph.nodes:
        for key in ("val", "example_value"):
            if key in node.meta:
                node.meta[key] = torch.utils._pytree.tree_map(moved, node.meta[key])
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}


def moved(x):
    if not isinstance(x, FakeTensor):
        return x
    with x.fake_mode:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")


def to_device(x):
    if not isinstance(x, torch.Tensor):
        return x
    span = (
        1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    )
    whole = put(x.detach().as_strided((span,), (1,)).numpy())
    return Tensor(replace(whole.buffer, shape=tuple(x.shape), strides=x.stride()))


def from_device(x):
    return torch.from_numpy(x.numpy()) if isinstance(x, Tensor) else x


@pytest.fixture(autouse=True)
def on_the_fake_device(fake, monkeypatch):
    """Programs of the back end run on the fake device; `kinds` lists those that did."""
    compile_traced = backend.compile_traced
    kinds = []

    def compile_there(traced, settings, kind, *more):
        move(traced.graph)
        program = compile_traced(traced, {**settings, "strict": True}, kind, *more)

        def run(arguments):
            there = [to_device(x) for x in arguments]
            arguments.clear()
            kinds.append(kind)
            return [from_device(x) for x in program(there)]

        run._boxed_call = True
        return run

    monkeypatch.setattr(backend, "compile_traced", compile_there)
    torch._dynamo.reset()
    Tensor.operators.clear()
    with fake_torch(monkeypatch):
        yield kinds
    torch._dynamo.reset()


class Block(nn.Module):
    """Attention with a residual and a norm, then an MLP."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 12), nn.Linear(12, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5, 4),
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4)), (5, 8)),
    "transformer": (Block, (2, 5, 8)),
    "conv": (conv, (2, 3, 6, 6)),
}


def train(model, compiled, x, steps=2):
    """Losses, gradients and buffers of some steps of gradient descent."""
    seen = []
    for _ in range(steps):
        model.zero_grad()
        y = compiled(x)
        loss = y.square().mean() + y.sum() * 0.01
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        seen += [loss.detach(), *gradients, *(b.clone() for b in model.buffers())]
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_training_steps_give_torch_s_losses_and_gradients(fake, on_the_fake_device, name):
    make, shape = MODELS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    results = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = make()
        results.append(
            train(model, torch.compile(model, backend="smelt") if compiles else model, x)
        )
    torch.testing.assert_close(*results[::-1], rtol=2e-4, atol=2e-5)
    assert on_the_fake_device == ["forward", "backward"] * 2
    # Gradients of weights of several channels are torch's on the CPU, too.
    assert {*Tensor.operators} <= {"aten.convolution_backward.default"}
    assert bool(Tensor.operators) == (name == "conv")


def recurrent(w, xs):
    def step(h, x):
        h = torch.tanh(h @ w + x)
        return h, h * 2

    return scan(step, torch.zeros_like(xs[0]), xs, dim=0)


def doubled(w, xs):
    """A loop whose steps are decided by what they compute."""

    def goes_on(n, h):
        return (h.sum() < 100) & (n < 3)

    def step(n, h):
        return n + 1, h @ w + 1

    return while_loop(goes_on, step, ((w.sum() * 0).long(), xs[0]))


def branched(w, xs):
    first = xs[0]

    def yes(x):
        return torch.softmax(x @ w, 1)

    def no(x):
        return (x @ w) @ w

    return torch.cond(first.sum() > 0, yes, no, (first,)), torch.cond(
        first.sum() < 0, yes, no, (first,)
    )


@pytest.mark.parametrize("function", [recurrent, doubled, branched])
def test_loops_and_branches_run_on_the_device(fake, on_the_fake_device, function):
    generator = torch.Generator().manual_seed(3)
    w, xs = (torch.randn(s, generator=generator) for s in ((4, 4), (5, 3, 4)))
    trains = function is recurrent
    results = []
    for compiles in (False, True):
        leaf = w.clone().requires_grad_(trains)
        code = torch.compile(function, backend="smelt", fullgraph=True) if compiles else function
        outputs = code(leaf, xs)
        if trains:
            sum(y.square().sum() for y in outputs).backward()
        results.append([*(y.detach() for y in outputs), *([leaf.grad] if trains else [])])
    torch.testing.assert_close(*results[::-1], rtol=1e-4, atol=1e-5)
    assert on_the_fake_device == (["forward", "backward"] if trains else ["inference"])
    assert not Tensor.operators
