"""Rows of the benchmark as an experienced user of NumPy or PyTorch would write them.

The shared formula is not always what such a user writes: PyTorch has fused operators for norms,
softmax and losses, both libraries work in place, and an optimiser's step allocates no arrays. So a
peer runs the shared text and its idiom, and the faster of the two counts. Each idiom's result is
checked like any other.

>>> sorted(numpy_idioms())
['a1', 'a2', 'adam', 'chain_1kib', 'chain_1mib', 'chain_64kib', 'chain_64mib']
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.formulas import ADAM, ADAM_STEP, GROUPS

Idioms = dict[str, Callable[..., Any]]

_CHAINS = ("chain_64mib", "chain_1mib", "chain_64kib", "chain_1kib")


def numpy_idioms() -> Idioms:
    """Return NumPy forms with one new array per row, then `out=` and augmented assignments."""

    def a1(x: Any, b: Any) -> Any:
        h = x + b
        np.maximum(h, 0.0, out=h)
        return np.log(h, out=h)

    def a2(x: Any) -> Any:
        h = x * 2.0
        np.maximum(h, 0.0, out=h)
        h += 1.0
        return h

    def chain(x: Any, y: Any) -> Any:
        h = x * y
        h += x
        np.maximum(h, 0.0, out=h)
        h *= 0.5
        return h

    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        rate, decay1, decay2, tiny = ADAM
        m *= decay1
        m += (1.0 - decay1) * g
        v *= decay2
        v += (1.0 - decay2) * (g * g)
        root = np.sqrt(v / (1.0 - decay2**ADAM_STEP))
        root += tiny
        p -= rate / (1.0 - decay1**ADAM_STEP) * m / root
        return p, m, v

    return {"a1": a1, "a2": a2, "adam": adam, **dict.fromkeys(_CHAINS, chain)}


def torch_idioms() -> Idioms:
    """Return PyTorch forms: `torch.nn.functional` for full rows, else in-place methods."""
    torch = importlib.import_module("torch")
    nn = importlib.import_module("torch.nn.functional")

    def residual_layer_norm(x: Any, residual: Any, bias: Any, gain: Any, shift: Any) -> Any:
        return nn.layer_norm(x + bias + residual, (x.shape[-1],), gain, shift)

    def group_norm_silu(x: Any, gain: Any, shift: Any) -> Any:
        return nn.silu(nn.group_norm(x, min(GROUPS, x.shape[1]), gain, shift), inplace=True)

    def column_statistics(x: Any) -> Any:
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        return mean, variance

    def softmax(x: Any) -> Any:
        return torch.softmax(x, dim=-1)

    def chain(x: Any, y: Any) -> Any:
        return torch.addcmul(x, x, y).relu_().mul_(0.5)

    return {
        "a1": lambda x, b: (x + b).relu_().log_(),
        "a2": lambda x: (x * 2.0).relu_().add_(1.0),
        "bias_gelu": lambda x, b: nn.gelu(x + b),
        "residual_layer_norm": residual_layer_norm,
        "rms_norm": lambda x, gain: nn.rms_norm(x, (x.shape[-1],), gain, 1e-6),
        "softmax_128": softmax,
        "softmax_4096": softmax,
        "softmax_65536": softmax,
        "cross_entropy": nn.cross_entropy,
        "group_norm_silu": group_norm_silu,
        "column_statistics": column_statistics,
        **dict.fromkeys(_CHAINS, chain),
    }


def torch_adam(p: Any, g: Any, m: Any, v: Any) -> Callable[[], Any]:
    """Return a step of `torch.optim.Adam(fused=True)`, its state set to the row's inputs."""
    torch = importlib.import_module("torch")
    rate, decay1, decay2, tiny = ADAM
    p.grad = g
    optimiser = torch.optim.Adam([p], lr=rate, betas=(decay1, decay2), eps=tiny, fused=True)
    step = torch.tensor(float(ADAM_STEP - 1))
    optimiser.state[p] = {"step": step, "exp_avg": m, "exp_avg_sq": v}

    def run() -> Any:
        optimiser.step()
        return p, m, v

    return run
