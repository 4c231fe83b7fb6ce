"""Values kept by a training step: less than under PyTorch's cut, with equal gradients."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import smelt.torch  # noqa: E402
from smelt import knobs  # noqa: E402
from smelt.frontends.torch import partition  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("strict"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
F = torch.nn.functional
L = torch.nn


class Block(L.Module):
    """A block of a transformer."""

    def __init__(self, d=16, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.between = L.LayerNorm(d), L.LayerNorm(d)
        self.qkv, self.out = L.Linear(d, 3 * d), L.Linear(d, d)
        self.up, self.down = L.Linear(d, 2 * d), L.Linear(2 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        parts = self.qkv(self.before(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.silu(self.up(self.between(x))) * self.up(x))


class Images(L.Module):
    """Norms over groups and over batches, whose statistics change in place, and pooling."""

    def __init__(self):
        super().__init__()
        self.first, self.second = L.Conv2d(3, 8, 3, padding=1), L.Conv2d(8, 8, 3, padding=1)
        self.group, self.batch = L.GroupNorm(2, 8), L.BatchNorm2d(8)

    def forward(self, x):
        y = F.silu(self.group(self.first(x)))
        y = y + torch.relu(self.batch(self.second(y)))
        return F.max_pool2d(y, 2).mean((2, 3))


class Tower(L.Module):
    """A result that is also kept, a product of what is computed again, a repeated view."""

    def __init__(self, d=12):
        super().__init__()
        self.norm, self.a, self.b = L.RMSNorm(d), L.Linear(d, d), L.Linear(d, d)

    def forward(self, x):
        y = self.norm(x) * 2 + 1
        z = self.a(y).tanh() @ y.transpose(-1, -2)
        return self.b(y.relu()).sum(-1) + z.sum(-1), y


class Drops(L.Module):
    """Random numbers among what is computed again, and an attention that drops."""

    def __init__(self, d=12):
        super().__init__()
        self.norm, self.a, self.b = L.LayerNorm(d), L.Linear(d, d), L.Linear(d, d)

    def forward(self, x):
        y = F.gelu(F.dropout(self.norm(self.a(x)), 0.4)) * torch.rand_like(x)
        y = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], dropout_p=0.3)
        return self.b(F.dropout(F.silu(y[:, 0]), 0.5))


def models():
    torch.manual_seed(0)
    yield "block", Block(), torch.randn(2, 5, 16)
    yield "images", Images(), torch.randn(2, 3, 8, 8)
    yield "tower", Tower(), torch.randn(3, 7, 12)
    yield "drops", Drops(), torch.randn(3, 7, 12)
    yield (
        "norms",
        L.Sequential(
            L.LayerNorm(9), L.Linear(9, 9), L.LayerNorm(9), L.GELU(), L.Linear(9, 4), L.Dropout(0.3)
        ),
        torch.randn(4, 9),
    )


def step(model, call, x):
    torch.manual_seed(3)
    model.zero_grad()
    x = x.clone().requires_grad_()
    result = call(x)
    result = result if isinstance(result, tuple) else (result,)
    sum((y * y).mean() for y in result).backward()
    return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def kept_bytes(model, call, x):
    """Bytes that a call keeps for its backward pass, beyond parameters and arguments."""
    arguments_storage = {
        t.untyped_storage().data_ptr() for t in (x, *model.parameters(), *model.buffers())
    }
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in arguments_storage:
            kept[storage.data_ptr()] = storage, storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = call(x)  # noqa: F841
    return sum(n for _, n in kept.values())


@pytest.mark.parametrize("case", list(models()), ids=lambda c: c[0])
def test_gradients_are_eagers_and_less_is_kept(case, monkeypatch):
    _, model, x = case
    model, x = model.double().train(), x.double()
    ours, theirs = copy.deepcopy(model), copy.deepcopy(model)
    expected = step(model, model, x)
    with smelt.torch.record() as record:
        fast = torch.compile(ours, backend="smelt", fullgraph=True)
        actual = step(ours, fast, x)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    less = kept_bytes(ours, fast, x)
    torch._dynamo.reset()
    monkeypatch.setattr(partition._Cut, "solve", lambda self: None)
    plain = torch.compile(theirs, backend="smelt", fullgraph=True)
    step(theirs, plain, x)
    more = kept_bytes(theirs, plain, x)
    (forward,) = [g for g in record.graphs if g.kind == "forward"]
    again = [k for k in forward.kept if k.again]
    assert again and all(k.bytes > 0 for k in again)
    assert less < more, (less, more)


def test_every_size_of_a_batch_runs_the_same_step():
    model = Block().double()
    other = copy.deepcopy(model)
    fast = torch.compile(other, backend="smelt", fullgraph=True, dynamic=True)
    for batch, length in ((2, 5), (3, 7), (4, 2)):
        x = torch.randn(batch, length, 16).double()
        torch.testing.assert_close(
            step(other, fast, x), step(model, model, x), rtol=1e-9, atol=1e-11
        )


def test_a_norm_is_computed_again_from_its_kept_statistics():
    """Nothing is summed over the rows again, in the backward graph."""
    model = L.Sequential(L.Linear(8, 8), L.LayerNorm(8), L.Linear(8, 8))
    x = torch.randn(4, 8)
    with smelt.torch.record() as record:
        torch.compile(model, backend="smelt")(x).square().sum().backward()
    forward, backward = record.graphs
    assert "aten.native_layer_norm.default" in {k.operator for k in forward.kept if k.again}
    (segment,) = backward.program.segments
    names = {getattr(n.op, "scalar", "") for n in segment.compiled.plan.graph.nodes()}
    assert "mul" in names and "rsqrt" not in names


def test_a_cut_that_fails_leaves_torchs_own(monkeypatch):
    def broken(self):
        raise RuntimeError("no cut")

    monkeypatch.setattr(partition._Cut, "apply", broken)
    torch.manual_seed(0)
    model, x = Tower(), torch.randn(3, 12)
    with knobs.config(strict=False), smelt.torch.record() as record:
        actual = step(model, torch.compile(model, backend="smelt"), x)
    torch.testing.assert_close(actual, step(model, model, x), rtol=1e-4, atol=1e-5)
    assert not record.graphs[0].kept and not any(g.fallback for g in record.graphs)


def test_kept_values_are_reported():
    model = L.Sequential(L.Linear(64, 64), L.LayerNorm(64), L.Linear(64, 64))
    with smelt.torch.record() as record:
        torch.compile(model, backend="smelt")(torch.randn(8, 64)).sum().backward()
    line = next(x for x in str(record).splitlines() if x.startswith("  keeps"))
    assert "for backward" in line and "computed again there" in line


def test_a_checkpoint_keeps_what_its_user_says():
    inner = Block().double()

    def run(x):
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    x = torch.randn(2, 5, 16).double()
    torch.testing.assert_close(
        step(inner, torch.compile(run, backend="smelt"), x),
        step(inner, run, x),
        rtol=1e-9,
        atol=1e-11,
    )


@pytest.mark.parametrize(
    "view",
    [lambda s: s, lambda s: s.t(), lambda s: s[::2], lambda s: s.as_strided((3, 3), (4, 1))],
    ids=["itself", "turned", "part", "strided"],
)
def test_what_changes_in_place_is_not_what_is_kept(view):
    """The backward graph reads what an argument was, not what the program wrote into it."""

    def f(x, s):
        v = view(s)
        y = (x @ v.relu().mul(0.5).sigmoid()).tanh() * (v * 2 + 1).sum()
        s.mul_(3.0).add_(0.25)
        return y.square().sum()

    def run(call):
        torch.manual_seed(1)
        s = torch.randn(6, 6).double()
        x = torch.randn(5, view(s).shape[0]).double().requires_grad_()
        value = call(x, s)
        value.backward()
        return value, x.grad, s

    torch.testing.assert_close(run(torch.compile(f, backend="smelt")), run(f))


def test_a_buffer_that_is_read_and_then_written_is_kept_as_it_was():
    """PyTorch's own cut keeps it itself, which autograd then finds written."""

    def f(x, book, w):
        at = (x.detach() @ book.mT).argmax(-1)
        near = book[at]
        with torch.no_grad():
            book.mul_(0.9).index_add_(0, at, 0.1 * x)
        return F.mse_loss((x + (near - x).detach()) @ w, x) + F.mse_loss(x, near)

    def run(call):
        torch.manual_seed(1)
        x, book, w = (torch.randn(n, 6).double() for n in (40, 9, 6))
        x.requires_grad_(), w.requires_grad_()
        call(x, book, w).backward()
        return x.grad, w.grad, book

    torch.testing.assert_close(run(torch.compile(f, backend="smelt")), run(f))


def test_statistics_that_change_are_not_kept_where_nothing_comes_cheaper_again():
    """Capacities that are not whole numbers once let the cut cross edges of infinite capacity."""
    sizes = (96, 64), (64, 16), (16, 64)
    parts = [(L.Linear(a, b), L.BatchNorm1d(b), L.LeakyReLU(0.1)) for a, b in sizes]
    torch.manual_seed(0)
    model, x = L.Sequential(*sum(parts, ()), L.Linear(64, 96)), torch.randn(128, 96)
    other = copy.deepcopy(model)
    result = step(other, torch.compile(other, backend="smelt"), x)
    wide = step(model.double(), model, x.double())
    for got, want in zip(result, wide, strict=True):
        scale = want.abs().max().item()
        # sums of 128 terms, through four layers; the gradient of a bias before a norm is nothing
        torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=2e-5 * scale + 1e-7)


def test_a_view_of_what_changes_is_not_kept_in_place_of_what_torch_keeps():
    """Here it would be the cheapest value to compute the others from."""

    def f(x, s):
        v = s.view(4, 9)
        one, two, three = v + 1.5, v * 2, v.neg()
        y = (x * one) @ one.t() + (x * two) @ two.t() + (x * three) @ three.t()
        s.zero_()
        return y.square().sum()

    def run(call):
        s = torch.arange(36.0).double() / 36
        x = torch.ones(4, 9).double().requires_grad_()
        call(x, s).backward()
        return x.grad, s

    torch.testing.assert_close(run(torch.compile(f, backend="smelt")), run(f))


def test_a_graph_that_is_kept_runs_back_twice():
    model, x = Block().double(), torch.randn(2, 5, 16).double().requires_grad_()
    value = torch.compile(model, backend="smelt")(x).square().sum()
    wanted = [x, *model.parameters()]
    first = [g.clone() for g in torch.autograd.grad(value, wanted, retain_graph=True)]
    for got, want in zip(torch.autograd.grad(value, wanted), first, strict=True):
        assert torch.equal(got, want)


def test_gradients_of_gradients_are_refused_as_by_torch():
    model, x = Tower(), torch.randn(3, 12, requires_grad=True)
    y = torch.compile(model, backend="smelt")(x)[0].sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_of_autocast_are_restored(dtype):
    """A step with values computed again is as near to the wide step as eager's narrow one."""
    model, x = Block(), torch.randn(2, 5, 16)

    def narrow(call):
        def run(x):
            with torch.autocast("cpu", dtype=dtype):
                return call(x)

        return run

    wide = copy.deepcopy(model).double()
    want = step(wide, wide, x.double())
    with smelt.torch.record() as record:
        result = step(model, narrow(torch.compile(model, backend="smelt")), x)
    eager = step(model, narrow(model), x)
    assert any(k.again for g in record.graphs for k in g.kept)
    for got, plain, exact in zip(result, eager, want, strict=True):
        least = torch.finfo(dtype).eps * exact.norm()
        assert (got - exact).norm() <= 2 * (plain - exact).norm() + least
        assert got.dtype == plain.dtype


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_values_that_a_function_keeps_unchecked_stay_last():
    """A function of the user's that stores a value itself, beside values that come again."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.sigmoid()
            ctx.y = y
            return y * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.y * (1 - ctx.y)

    model, x = Tower().double(), torch.randn(3, 12).double()

    def run(x):
        return Twice.apply(model(x)[0] * 3).exp()

    torch.testing.assert_close(
        step(model, torch.compile(run, backend="smelt"), x), step(model, run, x)
    )
