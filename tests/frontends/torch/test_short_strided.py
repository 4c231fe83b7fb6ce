"""Short tensors in any memory order: as many elements as registers permute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "stepped": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "repeated": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("shape", [(16,), (4, 4), (2, 16), (32,)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_are_read_where_they_are(layout: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(shape))
    f: Any = torch.compile(lambda x: (x * 2 + 1, x.sum(0)), backend="smelt", dynamic=False)
    torch.testing.assert_close(f(x), (x * 2 + 1, x.sum(0)))
