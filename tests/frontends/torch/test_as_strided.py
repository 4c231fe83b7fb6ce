"""Views by strides: chunks that overlap, diagonals, and parts that stand for all of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import smelt.torch  # noqa: E402

CASES: dict[str, Callable[[Any], Any]] = {
    "windows that share rows": lambda x: (x + 1).as_strided((3, 4, 8), (16, 8, 1)).sum(-1),
    "a diagonal": lambda x: (x + 1).as_strided((8,), (9,)) * 2,
    "transposed": lambda x: (x + 1).as_strided((8, 8), (1, 8)) * 2,
    "all of memory as a matrix of Hankel": lambda x: (x + 1).as_strided((5, 7), (1, 1)).sum(-1),
    "from a place on": lambda x: (x + 1).as_strided((2, 3), (8, 2), 19) * 2,
    "repeated": lambda x: (x + 1).as_strided((3, 8), (0, 1)) * 2,
    "one row": lambda x: (x + 1).as_strided((1, 3), (5, 1)) * 2,
    "of what lies across": lambda x: (x + 1).t().as_strided((5, 3), (8, 2)) * 2,
    "of a part, by its own start": lambda x: (x + 1)[2:4].as_strided((2, 3), (8, 1)) * 2,
    "of a part, by that of memory": lambda x: (x + 1)[2:4].as_strided((2, 3), (8, 1), 0) * 2,
    "beyond a part": lambda x: (x + 1)[2:4].as_strided((3, 3), (16, 1)) * 2,
    "beyond a part of parts": lambda x: (x + 1)[2:6][1].as_strided((3, 3), (8, 1)) * 2,
    "a part of several": lambda x: (x + 1).split(4)[1].as_strided((2, 3), (8, 1), 3) * 2,
}


def test_views_by_strides_show_the_same_elements() -> None:
    """The last is a result itself: a view, as in eager code."""

    def every(x: Any) -> tuple[Any, ...]:
        return (*(f(x) for f in CASES.values()), (x + 2).as_strided((3, 4), (2, 1)))

    torch._dynamo.reset()
    x = torch.arange(64.0).reshape(8, 8)
    with torch.inference_mode(), smelt.torch.record() as record:
        result = torch.compile(every, backend="smelt")(x)
    for name, one, other in zip((*CASES, "a result"), result, every(x), strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride(), name
    assert not [left.reason for graph in record.graphs for left in graph.left]


def test_a_view_from_a_symbolic_offset_is_left_to_torch() -> None:
    """Of a part whose start varies, with strides that count from there: what stands around it is
    ours."""

    def f(x: Any) -> Any:
        part = (x.exp() + 1)[x.shape[0] // 2 :]
        return part.as_strided((2, 3), (8, 1)) * 2

    torch._dynamo.reset()
    fast = torch.compile(f, backend="smelt", dynamic=True)
    with torch.no_grad(), smelt.torch.record() as record:
        for rows in (8, 12, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(fast(x), f(x))
    for graph in record.graphs:
        assert [left.operator for left in graph.left] == ["aten.as_strided.default"]
        assert len(graph.kernels()) == 2 and not graph.fallback


class Chunks(torch.nn.Module):
    """Products of chunks of 32 places, each of which shares half of its own with the next."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        batch, length, width = x.shape
        x = x.view(batch, length // 32, 32, width)
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = 2 * size[1] - 1, stride[1] // 2
        return torch.einsum("bcxd,bcyd->bcxy", x, x.as_strided(size, stride)[:, ::2])


def test_chunks_that_overlap_serve_all_lengths() -> None:
    """The tracer spells a chunk's 32 places n // (n // 32)."""
    torch._dynamo.reset()
    model = Chunks()
    fast = torch.compile(model, backend="smelt")
    with torch.inference_mode(), smelt.torch.record() as record:
        for batch, length in ((2, 64), (3, 96), (5, 160)):
            x = torch.randn(batch, length, 16)
            assert torch.allclose(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(record.graphs) == 2
    assert not [left.reason for graph in record.graphs for left in graph.left]
