"""Masks of `flex_attention` skip blocks on a GPU, in every candidate schedule."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

from tests.codegen.checked_triton import Language, launch  # noqa: E402
from tests.frontends.torch.test_flex_attention import (  # noqa: E402
    DOCUMENTS,
    HEADS,
    LENGTHS,
    MASKS,
    N,
    _given,
    _mask,
)

import smelt as sm  # noqa: E402
import smelt.torch  # noqa: E402
from smelt.backend.gpus import gpu  # noqa: E402
from smelt.codegen.triton.candidates import candidates  # noqa: E402
from smelt.codegen.triton.schedule import EXACT  # noqa: E402
from smelt.codegen.triton.source import print_file, print_stage  # noqa: E402
from smelt.tune.scheduled_gpu import rates_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")

TABLES = {"documents": DOCUMENTS, "lengths": LENGTHS}


def kernel_of(name):
    """The kernel that attention with a mask becomes on an H100."""
    mask = _mask(name)

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return flex.flex_attention(q, k, v, block_mask=mask)

    with sm.config(device_code=False):
        (report,) = smelt.torch.explain(Attention(), *_given()).graphs[0].reports("h100")
    (kernel,) = (k.kernel for k in report.kernels if k.kernel is not None)
    return kernel


def visible_blocks(name, rows, columns):
    """How many blocks of all heads have a weight that the mask leaves."""
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    count = 0
    for b in range(2):
        mask = MASKS[name](b, 0, i, j).expand(N, N).numpy()
        blocks = mask.reshape(N // rows, rows, N // columns, columns).any((1, 3))
        count += HEADS * int(blocks.sum())
    return count


def attention(name, k, v, q):
    """The result in double precision; zero for queries that see nothing."""
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    masks = np.stack([MASKS[name](b, 0, i, j).expand(N, N).numpy() for b in range(2)])[:, None]
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.where(masks, np.exp(scores), 0.0)
    return weights @ v / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "window" else (pytest.mark.nightly,)) for n in MASKS],
)
def test_hidden_blocks_are_skipped_by_every_candidate(name, monkeypatch):
    kernel = kernel_of(name)
    random = np.random.default_rng(0)
    arrays = [
        TABLES[name].numpy() if p.dtype.name == "i64" else random.standard_normal(p.shape)
        for p in kernel.inputs
    ]
    arrays = [a.astype(p.dtype.numpy) for a, p in zip(arrays, kernel.inputs, strict=True)]
    wanted = attention(name, *arrays[:3]).reshape(2 * HEADS, N, -1)
    visits = 0
    dot = Language.dot

    def counted(self, *arguments, **options):
        nonlocal visits
        visits += 1
        return dot(self, *arguments, **options)

    monkeypatch.setattr(Language, "dot", counted)
    streams, merges = candidates(kernel, {}, rates_of(gpu("h100")), EXACT)
    splits = {c.schedule.splits_loops for c in streams}
    assert splits == ({False} if name in TABLES else {False, True})
    for c in [next(c for c in streams if c.schedule.splits_loops == s) for s in splits]:
        visits = 0
        stages = [print_stage(k.launch, k.schedule) for k in (c, merges[0])]
        (y,) = launch(print_file(kernel, stages), arrays)
        np.testing.assert_allclose(y, wanted, 1e-4, 1e-5)
        rows, columns = (c.lanes[a] for a in list(c.lanes) if a != "k")
        every = 2 * HEADS * (N // rows) * (N // columns)
        visible = visible_blocks(name, rows, columns)
        parts = 2 * HEADS * (N // rows) * 9  # a part may begin and end inside of a block
        assert visible <= visits / 2 <= visible + parts
        assert visits / 2 < (every if name != "prefix" else every + parts)
