"""Find out whether Inductor's frozen weights run on this machine.

>>> from smelt.bench.frozen import frozen_options
>>> sorted(frozen_options(max_autotune=True))  # doctest: +SKIP
['freezing', 'max_autotune']
"""

from __future__ import annotations

import logging
import subprocess
from functools import cache

from smelt.bench.process import command

__all__ = ["frozen_options"]

_LOG = logging.getLogger("smelt.bench")

_PROGRAM = """
import torch
torch.set_num_threads(1)
linear, conv = torch.nn.Linear(768, 3072), torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)
for network, shape in ((linear, (512, 768)), (conv, (1, 64, 56, 56))):
    network.eval().requires_grad_(False)
    frozen = torch.compile(network, options={"freezing": True})
    with torch.no_grad():
        for _ in range(20):
            frozen(torch.ones(shape))
"""


def frozen_options(**others: bool) -> dict[str, bool]:
    """Return options of `torch.compile`: `freezing` where it does not crash, and `others`."""
    return {**others, "freezing": _survives()}


@cache
def _survives() -> bool:
    """Return whether layers with frozen weights run in a process of their own.

    PyTorch 2.13 with oneDNN corrupts its heap there on some processors with AVX-512.
    """
    line = command(["-c", _PROGRAM], {})
    tried = subprocess.run(line, check=False, capture_output=True)  # noqa: S603 - our own command
    if tried.returncode:
        _LOG.warning("inductor runs without freezing, which crashes on this machine")
    return not tried.returncode
