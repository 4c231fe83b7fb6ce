"""The example's networks against the same ones in torch."""

from __future__ import annotations

import numpy as np
import pytest
from examples.images import NETWORKS
from tools.convolution_peers import torch_names, tree, with_namespace

import smelt as sm


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    network, weights = NETWORKS[name]
    p = weights(classes=10)
    x = np.random.default_rng(1).standard_normal((2, 3, 64, 64)).astype(np.float32)
    run = sm.jit(network)
    actual = np.asarray(run(x, p))
    with torch.no_grad():
        other = with_namespace(network, torch_names(torch))(
            torch.from_numpy(x), tree(p, torch.from_numpy)
        )
    expected = other.numpy()
    scale = np.abs(expected).max()
    assert np.abs(actual - expected).max() <= 1e-4 * scale
    kernels = sm.explain(run, x, p).kernels
    alone = [k for k in kernels if "dot(" in k.text and "max(" not in k.text and "+" not in k.text]
    assert len(alone) <= 1  # the last product; every convolution has its normalisation with it
