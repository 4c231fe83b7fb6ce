"""Ten models that `tools.versions` runs under an interpreter.

A script of its own, which imports nothing of the tools. It prints one line of JSON: versions,
whether array code works, and for each model an empty text or what is wrong.
"""

from __future__ import annotations

import copy
import json
import platform
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

import smelt as sm


def array_code_works() -> bool:
    """Return whether a product with a softmax has NumPy's values for two sizes."""

    @sm.jit
    def scores(x: Any, w: Any) -> Any:
        z = x @ w
        e = sm.exp(z - sm.max(z, axis=1, keepdims=True))
        return e / sm.sum(e, axis=1, keepdims=True)

    random = np.random.default_rng(0)
    for rows in (5, 64):
        x, w = random.standard_normal((rows, 32)), random.standard_normal((32, 19))
        e = np.exp(x @ w)
        if not np.allclose(np.asarray(scores(x, w)), e / e.sum(1, keepdims=True), rtol=1e-12):
            return False
    return True


def models() -> dict[str, tuple[Callable[[], Any], tuple[int, ...]]]:
    """Return functions that make modules, and the shape of an input without its batch."""
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    class Attention(nn.Module):
        def __init__(self, causal: bool) -> None:
            super().__init__()
            self.qkv, self.out, self.causal = nn.Linear(32, 96), nn.Linear(32, 32), causal

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = self.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
            attend = nn.functional.scaled_dot_product_attention
            return self.out(attend(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x: Any) -> Any:
            return self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 32)
            self.block = Residual(nn.Sequential(nn.LayerNorm(32), Attention(True)))

        def forward(self, x: Any) -> Any:
            ids = (x.abs() * 20).long() % 50
            logits = self.block(self.words(ids)) @ self.words.weight.T
            return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(16, 16)

        def forward(self, x: Any) -> Any:
            h = x.new_zeros(x.shape[0], 16)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t], h)
            return h

    def norm(m: int) -> Any:
        return nn.Sequential(nn.Conv2d(m, m, 3, padding=1), nn.BatchNorm2d(m), nn.ReLU())

    return {
        "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)), (16,)),
        "norms": (lambda: nn.Sequential(nn.LayerNorm(32), Gated(), nn.Softmax(-1)), (9, 32)),
        "attention": (lambda: Residual(Attention(False)), (7, 32)),
        "causal attention": (lambda: Residual(Attention(True)), (12, 32)),
        "encoder layer": (
            lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True),
            (6, 32),
        ),
        "language model": (Language, (11,)),
        "residual convolutions": (lambda: nn.Sequential(norm(4), Residual(norm(4))), (4, 12, 12)),
        "depthwise convolutions": (
            lambda: nn.Sequential(
                nn.Conv2d(4, 4, 3, 2, 1, groups=4), nn.SiLU(), nn.Conv2d(4, 8, 1), nn.AvgPool2d(3)
            ),
            (4, 13, 13),
        ),
        "upsampling": (
            lambda: nn.Sequential(
                nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4),
                nn.Upsample(scale_factor=2), nn.ConvTranspose2d(4, 2, 2, 2),
            ),
            (4, 8, 8),
        ),
        "recurrent": (Recurrent, (5, 16)),
    }  # fmt: skip


def outcome(make: Callable[[], Any], shape: tuple[int, ...]) -> str:
    """Return an empty text, or how a model differs from eager execution or fails."""
    import torch

    torch.manual_seed(0)
    model = make()
    other, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = torch.compile(other, backend="smelt")

    def results(run: Any, module: Any, x: Any) -> list[Any]:
        module.zero_grad()
        y = run(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad for p in module.parameters())]

    for batch in (2, 3):
        x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        try:
            eager, ours = results(model, model, x), results(fast, other, x)
        except Exception as error:  # noqa: BLE001 - whatever fails is a finding of the table
            return type(error).__name__
        for a, b, c in zip(results(exact, exact, x.double()), eager, ours, strict=True):
            scale = float(a.abs().max()) or 1.0
            error, allowed = (float((v - a).abs().max()) / scale for v in (c, b))
            if not error <= 4 * allowed + 2e-6:
                return f"error {error:.0e}, eager's {allowed:.0e}"
    return ""


def main() -> None:
    """Print the versions and outcomes as JSON."""
    warnings.simplefilter("ignore")
    has_torch = find_spec("torch") is not None
    row: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "llvmlite": metadata.version("llvmlite"),
        "torch": "",
        "array": array_code_works(),
        "models": {},
    }
    if has_torch:
        import torch

        import smelt.torch as _  # noqa: F401 - registers the back end

        row["torch"] = torch.__version__
        row["models"] = {name: outcome(*case) for name, case in models().items()}
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
