"""Gradients of large heads computed in forward: what crosses the cut, with equal numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import smelt.torch
from smelt import knobs
from smelt.compiler import driver, warm
from smelt.frontends.torch import backend, partition

N, V, D = 150, 301, 24


@pytest.fixture(autouse=True)
def hardly_any_cache(monkeypatch):
    """A machine for which the logits of small tests are large."""
    tiny = replace(driver.host(), l3_bytes=1 << 14)
    monkeypatch.setattr(backend, "host", lambda: tiny)
    monkeypatch.setattr(warm, "host", lambda: tiny)
    torch._dynamo.reset()


def plain(h, w, y):
    return functional.cross_entropy(functional.linear(h, w), y)


def smoothed(h, w, y):
    return functional.cross_entropy(functional.linear(h, w), y, label_smoothing=0.1)


def summed(h, w, y):
    return functional.cross_entropy(functional.linear(h, w), y, reduction="sum") * 0.01


def behind_a_layer(h, w, y):
    return functional.cross_entropy(functional.linear(torch.tanh(h) * 2.0, w), y)


def behind_a_norm(h, w, y):
    z = functional.silu(functional.layer_norm(h, (D,)) * 1.5)
    return functional.cross_entropy(functional.linear(z, w), y)


def with_z(h, w, y):
    z = functional.linear(h, w)
    return functional.cross_entropy(z, y) + 1e-2 * torch.logsumexp(z, -1).square().mean()


def weighted(h, w, y):
    c = torch.linspace(0.5, 1.5, V, dtype=h.dtype)
    return functional.cross_entropy(functional.linear(h, w), y, weight=c)


def weighted_and_smoothed(h, w, y):
    c = torch.linspace(0.5, 1.5, V, dtype=h.dtype)
    return functional.cross_entropy(functional.linear(h, w), y, weight=c, label_smoothing=0.1)


def capped(h, w, y):
    return functional.cross_entropy(5 * torch.tanh(functional.linear(h, w) / 5), y)


def gathered(h, w, y):
    """Log-probabilities of labels, as a policy's loss takes them."""
    p = torch.log_softmax(functional.linear(h, w), -1)
    return -(p.gather(-1, y.clamp(min=0)[:, None])[:, 0] * (y >= 0)).mean()


def preferred(h, w, y):
    """Sums over rows go through another function: all rows are needed before any gradient."""
    p = torch.log_softmax(functional.linear(h, w).view(2, -1, V), -1)
    totals = p.gather(-1, y.clamp(min=0).view(2, -1, 1)).sum((1, 2))
    return -functional.logsigmoid(0.01 * (totals[1:] - totals[:1])).mean()


def focal(h, w, y):
    p = functional.cross_entropy(functional.linear(h, w), y, reduction="none")
    return ((1 - torch.exp(-p)) ** 2 * p).mean()


def each(h, w, y):
    return functional.cross_entropy(functional.linear(h, w), y, reduction="none").square().sum()


def both_ways(h, w, y):
    z = functional.normalize(h, dim=-1) @ functional.normalize(w[:N], dim=-1).T * 10
    at = torch.arange(N)
    return functional.cross_entropy(z, at) + functional.cross_entropy(z.T, at)


def arguments(holes=False):
    g = torch.Generator().manual_seed(3)
    h, w = (torch.randn(s, generator=g, requires_grad=True) for s in ((N, D), (V, D)))
    y = torch.randint(0, V, (N,), generator=g)
    return h, w, torch.where(y % 3 == 0, -100, y) if holes else y


def stepped(f, h, w, y, factor):
    h.grad = w.grad = None
    value = f(h, w, y)
    (value * factor).backward()
    return value.detach(), h.grad, w.grad


def compare(f, inputs, factor=1.0):
    wide = [a.detach().double().requires_grad_() if a.is_floating_point() else a for a in inputs]
    wanted = stepped(f, *wide, factor)
    with smelt.torch.record() as r:
        result = stepped(torch.compile(f, backend="smelt"), *inputs, factor)
    for got, want in zip(result, wanted, strict=True):
        torch.testing.assert_close(
            got.double(), want, rtol=1e-4, atol=2e-5 * want.abs().max().item()
        )
    return r.graphs


def shapes_read(graph):
    return [x.type.shape for s in graph.program.segments for x in s.compiled.graph.inputs]


def in_chunks(graphs):
    return [
        s.compiled.plan.chunked_clusters
        for g in graphs
        for s in g.program.segments
        if s.compiled.plan.chunked_clusters
    ]


def read_by_chunks(graph):
    return [
        x
        for s in graph.program.segments
        for k, _ in s.compiled.plan.chunked_clusters
        for x in s.compiled.plan.clusters[k].inputs
    ]


@pytest.mark.parametrize(
    ("f", "holes"),
    [
        (plain, True),
        (summed, False),
        (behind_a_layer, False),
        (behind_a_norm, True),
        (smoothed, True),
        (weighted, True),
        (weighted_and_smoothed, True),
        (capped, True),
        (gathered, True),
        (with_z, False),
        (focal, True),
    ],
)
def test_no_logits_cross_the_cut(f, holes):
    forward, backward = compare(f, arguments(holes), factor=3.0)
    assert in_chunks([forward]) and not in_chunks([backward])
    assert (N, V) not in shapes_read(backward) and (V, N) not in shapes_read(backward)
    assert (N, V) not in [x.type.shape for x in read_by_chunks(forward)]


def test_heads_in_bfloat16():
    """Arguments of rounds are read as arrays: NumPy knows no bfloat16, nor an order in memory."""
    torch.manual_seed(0)
    h = torch.randn(24, 8 * N, dtype=torch.bfloat16).T.requires_grad_()
    w = (torch.randn(V, 24) / 3).bfloat16().requires_grad_()
    y = torch.randint(0, V, (8 * N,))
    step = torch.compile(plain, backend="smelt")
    with smelt.torch.record() as r:
        for _ in range(3):  # the later calls are native
            result = torch.autograd.grad(step(h, w, y), (h, w))
    assert in_chunks(r.graphs)
    wide = [x.detach().double().requires_grad_() for x in (h, w)]
    for got, want in zip(result, torch.autograd.grad(plain(*wide, y), wide), strict=True):
        assert (got.double() - want).norm() <= 2 * 2**-8 * want.norm()


@pytest.mark.parametrize("f", [preferred, each, both_ways])
def test_other_losses_stay_right(f):
    compare(f, arguments(), factor=0.5)


def test_a_loss_of_each_row_has_factors_of_its_own():
    """A sum over rows cannot be formed before they are known."""
    h, w, y = arguments()
    factors = torch.linspace(-1, 2, N)
    f = torch.compile(
        lambda h, w, y: functional.cross_entropy(functional.linear(h, w), y, reduction="none"),
        backend="smelt",
    )
    result = torch.autograd.grad(f(h, w, y), (h, w), factors)
    wide = [a.detach().double().requires_grad_() for a in (h, w)]
    loss = functional.cross_entropy(functional.linear(*wide), y, reduction="none")
    for got, want in zip(result, torch.autograd.grad(loss, wide, factors.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_a_wide_loss_of_half_values_stays_behind():
    """The loss is float32, and its scale is what keeps float16 gradients from vanishing."""
    h, w, y = arguments()
    half = [a.detach().half().requires_grad_() for a in (h, w)]

    def f(h, w, y):
        return functional.cross_entropy(functional.linear(h, w).float(), y) * 1e-6

    with smelt.torch.record() as r:
        value = torch.compile(f, backend="smelt")(*half, y)
        (value * 2.0**30).backward()
    assert not in_chunks([g for g in r.graphs if g.kind == "forward"])
    wide = [a.detach().double().requires_grad_() for a in half]
    (f(*wide, y) * 2.0**30).backward()
    for got, want in zip(half, wide, strict=True):
        most = want.grad.abs().max().item()  # logits of half precision: 1e-3 of about 10
        torch.testing.assert_close(got.grad.double(), want.grad, rtol=2e-2, atol=5e-3 * most)


def test_small_losses_in_half_types_stay_behind():
    """From one, gradients of float16 may be too small: a scaled loss is computed from its scale."""
    h, w, y = arguments()
    half = [a.detach().half().requires_grad_() for a in (h, w)]
    with smelt.torch.record() as r:
        value = torch.compile(plain, backend="smelt")(*half, y)
        (value * 1024).backward()
    assert not in_chunks([g for g in r.graphs if g.kind == "forward"])
    wide = [a.detach().double().requires_grad_() for a in half]
    (plain(*wide, y) * 1024).backward()
    for got, want in zip(half, wide, strict=True):
        torch.testing.assert_close(got.grad.double(), want.grad, rtol=2e-2, atol=2e-2)


def test_exact_rounding_keeps_the_order_of_products():
    f = torch.compile(plain, backend="smelt", options={"rounding": "exact"})
    h, w, y = arguments()
    with smelt.torch.record() as r:
        f(h, w, y).backward()
    assert (N, V) in shapes_read(r.graphs[1])


def test_a_graph_that_is_kept_gives_the_same_twice():
    h, w, y = arguments()
    value = torch.compile(plain, backend="smelt")(h, w, y)
    first = torch.autograd.grad(value, (h, w), retain_graph=True)
    kept = [g.clone() for g in first]
    for g in first:
        g.mul_(7.0)  # a caller's own tensor
    for got, want in zip(torch.autograd.grad(value, (h, w)), kept, strict=True):
        assert torch.equal(got, want)


def test_what_else_is_kept_is_still_decided():
    """What moved is kept; values in front of it are computed again."""
    forward, _ = compare(behind_a_norm, arguments())
    assert in_chunks([forward])
    assert any(k.again for k in forward.kept)


@pytest.mark.parametrize("method", ["solve", "apply"])
def test_what_moved_stays_where_deciding_fails(method, monkeypatch):
    def broken(self):
        raise RuntimeError("no cut")

    monkeypatch.setattr(partition._Cut, method, broken)
    with knobs.config(strict=False):
        forward, backward = compare(behind_a_norm, arguments(), factor=3.0)
    assert in_chunks([forward]) and (N, V) not in shapes_read(backward)
    assert not forward.kept and not forward.fallback and not backward.fallback
