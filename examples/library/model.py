"""Write a small model as a shared library for C: `libmodel.so` and `model.h` in a folder.

python examples/library/model.py .
cc -o main examples/library/main.c -I. -L. -lmodel -Wl,-rpath,. && ./main
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import smelt as sm


def save(folder: Path) -> None:
    """Make a library of a layer of ten classes, for any number of rows."""
    random = np.random.default_rng(0)
    weights = sm.asarray(random.standard_normal((16, 10)).astype(np.float32))

    def classify(x: sm.Array) -> tuple[sm.Array, sm.Array]:
        scores = sm.nn.softmax(x @ weights, axis=-1)
        return scores, sm.argmax(scores, axis=-1)

    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "model.smelt"
        sm.save(classify, program, sm.spec("f32[n,16]"))
        sm.save_library(program, folder / "libmodel.so")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
