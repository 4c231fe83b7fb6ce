"""The memory that eager code holds, and what it leaves for constants."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402 - torch may be missing

from smelt.frontends.torch.fake_facts import Budget, eager_peak_bytes  # noqa: E402
from smelt.runtime import prelude  # noqa: E402


def test_what_eager_code_holds_is_known_within_vmap():
    seen = []
    f = torch.compile(
        torch.vmap(lambda row: row.exp() + row.sin()),
        backend=lambda m, inputs: seen.append(eager_peak_bytes(m)) or m,
    )
    f(torch.ones(4, 256))
    assert seen == [3 * 4 * 256 * 4]


def test_results_that_nobody_reads_leave_no_room():
    def f(x):
        torch.cat([x] * 64)
        return x.exp() + 1

    held = []

    def seen(module, inputs):
        held.append(eager_peak_bytes(module))
        return module

    torch.compile(f, backend=seen)(torch.ones(256))
    traced = make_fx(lambda x: x.exp() + 1)(torch.ones(256))
    assert held == [64 * 1024]
    assert Budget(held[0], traced).allowance(alone=True) == prelude.Allowance(2048, 2048)
