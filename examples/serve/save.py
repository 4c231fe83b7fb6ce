"""Save an ONNX encoder as a program file, once, where Smelt's compiler is installed.

    python examples/serve/save.py model.onnx encoder.smelt

The file has plans for one short text and for a batch, and code for three generations of processors.
"""

from __future__ import annotations

import sys

import smelt as sm

SETS = ("avx512", "avx2", "portable")


def save(model: str, path: str, isa: str | tuple[str, ...] = SETS) -> None:
    """Compile an encoder and write it to a file.

    Its inputs are integers of [batch, length], where the model names both sizes.
    """
    encoder = sm.onnx.load(model)
    batch, length = map(str, encoder.inputs[0].shape or ())
    hints = [{batch: 1, length: 16}, {batch: 8, length: 128}]
    encoder.save(path, isa=isa, hints=hints)


if __name__ == "__main__":
    save(*sys.argv[1:3])
