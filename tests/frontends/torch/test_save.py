"""Models saved by `smelt.torch.save` give PyTorch's values as functions of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import smelt as sm  # noqa: E402
import smelt.torch  # noqa: E402
from smelt.errors import GuardError, OutsideError, SaveError  # noqa: E402

F = torch.nn.functional


class Encoder(torch.nn.Module):
    """Embedding, a layer with attention, and results of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.qkv = torch.nn.Linear(32, 96)
        self.norm = torch.nn.LayerNorm(32)
        self.register_buffer("gain", torch.full((32,), 1.5))

    def forward(self, ids: Any, mask: Any = None, flavour: float = 2.0) -> Any:
        x = self.table(ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        h = self.norm(x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)) * self.gain
        return {"rows": h * flavour, "turned": h.transpose(1, 2), "batch": ids.shape[0], "ids": ids}


class Images(torch.nn.Module):
    """Convolutions with weights in another memory order, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=2e-5, atol=2e-5)


def test_a_model_runs_for_all_sizes(tmp_path: Path) -> None:
    model = Encoder().eval()
    path = tmp_path / "encoder.smelt"
    ids, mask = torch.randint(0, 50, (3, 6)), torch.zeros(3, 6, 6)
    smelt.torch.save(model, path, ids, mask=mask)
    loaded: Any = sm.load(path)
    for batch, length in ((3, 6), (1, 4), (2, 1), (1, 1), (5, 70)):
        ids, mask = torch.randint(0, 50, (batch, length)), torch.randn(batch, length, length)
        with torch.no_grad():
            want = model(ids, mask)
        got = loaded(ids.numpy(), mask=mask.numpy())
        _close(got["rows"], want["rows"])
        _close(got["turned"], want["turned"])
        assert got["batch"] == batch
        np.testing.assert_array_equal(np.asarray(got["ids"]), ids.numpy())
    with pytest.raises(OutsideError, match="position 50 of an axis of 50") as caught:
        loaded(np.full((2, 3), 50), np.zeros((2, 3, 3), np.float32))
    assert caught.value.origin.text == "x = self.table(ids)"
    with pytest.raises(GuardError, match=r"ids: i64\[n0,n1\]"):
        loaded(np.zeros((2, 3), np.int64), np.zeros((2, 4, 4), np.float32))


def test_a_model_of_images(tmp_path: Path) -> None:
    model = Images().eval()
    model.norm.running_mean.uniform_(-1, 1)
    path = tmp_path / "images.smelt"
    smelt.torch.save(
        model, path, torch.randn(2, 3, 8, 8), dynamic={"x": {0: torch.export.Dim.AUTO}}
    )
    loaded: Any = sm.load(path)
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        _close(loaded(x.numpy()), model(x))
    with pytest.raises(GuardError):
        loaded(np.zeros((5, 3, 9, 8), np.float32))


def test_half_parameters_and_a_function(tmp_path: Path) -> None:
    w = torch.randn(16, 4, dtype=torch.bfloat16)
    smelt.torch.save(
        lambda x: torch.tanh(x @ w), tmp_path / "f.smelt", torch.randn(8, 16).bfloat16()
    )
    loaded: Any = sm.load(tmp_path / "f.smelt")
    x = torch.randn(3, 16).bfloat16()
    got = np.asarray(loaded(sm.from_dlpack(x))).astype(np.float32)
    np.testing.assert_allclose(got, torch.tanh(x @ w).float().numpy(), rtol=2e-2, atol=2e-2)


def test_conditions_on_sizes_are_guards(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"

    def window(x: Any, y: Any) -> Any:
        return x[:, : y.shape[0]] + y if x.shape[0] > 2 else x * 0

    smelt.torch.save(window, path, torch.randn(3, 10), torch.randn(4))
    loaded: Any = sm.load(path)
    for rows, n in ((3, 4), (5, 9), (4, 1)):
        x, y = torch.randn(rows, 10), torch.randn(n)
        _close(loaded(x.numpy(), y.numpy()), window(x, y))
    for rows, n in ((3, 11), (2, 4)):  # beyond the rows of x, and the other branch
        with pytest.raises(GuardError, match="n2 <= n1"):
            loaded(np.ones((rows, 10), np.float32), np.ones(n, np.float32))


def test_none_and_numbers_as_arguments_and_results(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"

    def f(x: Any, mask: Any, y: Any, k: float = 0.0) -> Any:
        return {"y": y, "mask": mask, "sum": x.to(torch.float64) + y * k}

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    smelt.torch.save(f, path, x, None, y, k=-0.0)
    loaded: Any = sm.load(path)
    result = loaded(x.numpy(), None, y.numpy(), k=-0.0)
    assert result["mask"] is None
    _close(result["y"], y)
    _close(result["sum"], f(x, None, y)["sum"])
    with pytest.raises(GuardError, match=r"k: -0\.0"):
        loaded(x.numpy(), None, y.numpy(), k=0.0)
    with pytest.raises(SaveError, match="mode of type str"):
        smelt.torch.save(lambda x, mode: x, path, x, "mode")


def test_what_needs_torch_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f.smelt"
    with pytest.raises(SaveError, match=r"linalg_eigh"):
        smelt.torch.save(lambda x: torch.linalg.eigvalsh(x) + 1, path, torch.eye(3))
    with pytest.raises(SaveError, match="does not tell its parameters"):
        smelt.torch.save(torch.linalg.eigvalsh, path, torch.eye(3))
    with pytest.raises(SaveError, match="changes its buffer norm"):
        smelt.torch.save(Images().train(), path, torch.randn(2, 3, 8, 8), dynamic=False)
    assert not path.exists()
