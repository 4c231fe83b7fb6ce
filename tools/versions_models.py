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
        from versions_modules import MODELS

        import smelt.torch as _  # noqa: F401 - registers the back end

        row["torch"] = torch.__version__
        row["models"] = {name: outcome(*case) for name, case in MODELS.items()}
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
