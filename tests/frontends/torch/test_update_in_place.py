"""Writes into parts of an argument write those parts, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.written_pages import untouched, written_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("smelt.torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts pages by /proc")

SHAPE = (2, 4, 512, 64)
AT = torch.tensor([3, 400, 101])


def rows(k: Any) -> Any:
    return k[:, :, None].expand(-1, -1, 3, -1)


WRITES = """
c[0, :, p] = k[0]
c[:, :, p] = k
c[:, :, p : p + 1] = k[:, :, None]
c[1, :, -5] = k[0]
c[:, :, AT] = k[:, :, None]
c[0, :, AT] = k[0][:, None]
c[0, 1, AT, 3] = 1.0
c[1, :, AT, :32] = 2.0
c[:, :, AT] += k[:, :, None]
c[:, :, 5] += k
c[:, :, 5:50:10] = k[:, :, None]
c[0, :, 5:9].mul_(2.0)
c[0].select(1, 7).add_(k[0])
c[0][:, 7][1:3].fill_(2.0)
c[0, :, 5:7] = c[0, :, 6:8].clone()
c[0, 1:3, 5] = c[0, 1:3, 6] + c[0, 1:3, 5]
c[:, :, 5].copy_(k); c[0, :, 6].copy_(k[0])
c.index_copy_(2, AT, rows(k))
c.index_add_(2, AT, rows(k).contiguous(), alpha=2)
c.index_fill_(2, AT, 1.0)
c.index_reduce_(2, AT, rows(k).contiguous(), "amax")
c.scatter_(2, AT[None, None, :, None].expand(2, 4, 3, 64), rows(k))
c.index_put_((torch.tensor([0]), torch.tensor([1]), AT[:1]), k[0, :1])
c.narrow(2, 7, 2).zero_()
""".strip().splitlines()


def program(line: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch, "AT": AT, "rows": rows}
    exec(f"def f(c, k, p):\n    {line}\n    return k * 2", namespace)
    return namespace["f"]


@pytest.mark.parametrize("line", WRITES[::3])
def test_a_cache_is_written_in_place(line: str) -> None:
    check(line)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("line", WRITES)
def test_any_part_is_written_in_place(line: str) -> None:
    check(line)


def check(line: str) -> None:
    """Compare elements and written pages with eager's."""
    f = program(line)
    k = torch.rand(2, 4, 64)
    caches = []
    torch._dynamo.reset()
    for g in (f, torch.compile(f, backend="smelt")):
        cache = untouched(SHAPE, "f4")
        g(torch.from_numpy(cache), k, 7)
        caches.append(cache)
    eager, compiled = caches
    assert np.array_equal(eager, compiled)
    assert written_bytes(compiled) <= written_bytes(eager)


def test_a_part_that_is_read_later_has_its_new_value() -> None:
    def f(c: Any, k: Any) -> Any:
        c[0, :, 5] = k[0]
        c[1, :, 5] = c[0, :, 5] * 2
        return c[0, :, 5] + k[1], c[1].sum()

    k, results = torch.rand(2, 4, 64), []
    torch._dynamo.reset()
    for g in (f, torch.compile(f, backend="smelt")):
        c = torch.zeros(SHAPE)
        results.append((*g(c, k), c))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b)
