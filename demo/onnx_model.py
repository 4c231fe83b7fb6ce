"""The demo's PyTorch module exported to ONNX and run by ONNX Runtime.

Batch and length stay symbolic in the export, so that one session serves every batch. The packages
`onnxruntime` and `onnxscript` are imported only when a session is created.
"""

# PyTorch and ONNX Runtime are optional, and types must check without them.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def session(
    model: Any,
) -> Callable[[NDArray[np.int64], NDArray[np.bool_]], NDArray[np.float32]]:
    """Return a function that encodes a batch with ONNX Runtime.

    It maps (ids [batch, length], mask [batch, length]) to float32 [batch, hidden].

    Args:
        model: the module of `torch_model.build`.

    Raises:
        ImportError: a package is not installed.
    """
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(model, path)
        running: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    first, second = (parameter.name for parameter in running.get_inputs())

    def encode(ids: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        return running.run(None, {first: ids, second: mask})[0]

    return encode


def export(model: Any, path: Path) -> None:
    """Write the module of `torch_model.build` as an ONNX file.

    Raises:
        ImportError: a package is not installed.
    """
    import torch

    ids = torch.ones((2, 4), dtype=torch.int64)
    mask = torch.ones((2, 4), dtype=torch.bool)
    open_sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = (open_sizes, open_sizes)
        program = torch.onnx.export(
            model, (ids, mask), dynamic_shapes=shapes, dynamo=True, verbose=False
        )
        assert program is not None
        program.save(path)
