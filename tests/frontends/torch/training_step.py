"""Run a training step of a model, and measure its error against float64."""

from __future__ import annotations

import copy

import torch

import smelt.torch


def step(model, call, inputs):
    """Results, gradients of parameters and of the first argument, buffers."""
    first, *rest = inputs
    first = first.clone().requires_grad_()
    result = torch.utils._pytree.tree_leaves(call(first, *rest))
    scales = [torch.linspace(1, 2, r.numel(), dtype=r.dtype).view(r.shape) for r in result]
    sum((r.cos() * s).sum() for r, s in zip(result, scales, strict=True)).backward()
    return [*result, first.grad, *(p.grad for p in model.parameters()), *model.buffers()]


def worst_error(model, inputs):
    """The largest error of a compiled step as a part of what float32 is allowed: 1e-4 of a number,
    and something for those that are small among the others.  All of it is one graph."""
    wide, plain = copy.deepcopy(model).double(), copy.deepcopy(model)
    eager = step(plain, plain, inputs)
    want = step(wide, wide, [x.double() if x.is_floating_point() else x for x in inputs])
    with smelt.torch.record() as r:
        result = step(model, torch.compile(model, backend="smelt"), inputs)
    assert not any(g.fallback for g in r.graphs) and not r.breaks
    most, worst = max(x.abs().max().item() for x in want), 0.0
    for got, same, exact in zip(result, eager, want, strict=True):
        assert got.dtype == same.dtype and got.shape == same.shape
        wide = exact.double()
        least = 2e-5 * wide.abs().max().item() + 2e-6 * most
        parts = (got.double() - wide).abs() / (1e-4 * wide.abs() + least)
        worst = max(worst, parts.max().item() if not parts.isnan().any() else float("inf"))
    return worst
