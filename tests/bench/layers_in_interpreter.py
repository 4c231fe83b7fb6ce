"""Run the printed layer of a GPU's measurements in Triton's interpreter; fail on other numbers.

`python -m tests.bench.layers_in_interpreter [NAME ...]` runs programs of `bench.gpu_layers` at
their small shapes, in a process of its own: Triton decides when it is imported whether it
interprets.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from tests.codegen.triton_interpreter import repair

from bench import gpu_layers


def check(name: str) -> None:
    """Compare a program's printed files with the CPU's results; raise AssertionError."""
    program = gpu_layers.LAYERED[name]
    work = gpu_layers._printed(program, program.small, torch.device("cpu"))
    row = gpu_layers._error(program, work)
    assert row["ok"], (name, row)


if __name__ == "__main__":
    repair()
    for program_name in sys.argv[1:] or gpu_layers.LAYERED:
        check(program_name)
        print(program_name, "is right", flush=True)
