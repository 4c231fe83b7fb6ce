"""PyTorch back end: models through `torch.compile(model, backend="smelt")`.

PyTorch finds the name through the package's entry point, without importing anything; importing this
module registers it as well, for a source tree that is not installed.

    import torch

    fast = torch.compile(model, backend="smelt")
    fast(x)

`import smelt` does not import this module, and never imports torch.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

from torch._dynamo.backends.registry import list_backends, register_backend

from smelt.frontends.torch.backend import MODES, backend
from smelt.frontends.torch.export import save
from smelt.frontends.torch.record import Record, record
from smelt.frontends.torch.reports import Difference, check, explain

__all__ = ["MODES", "Difference", "Record", "backend", "check", "explain", "record", "save"]

if "smelt" not in list_backends(exclude_tags=()):
    register_backend(backend, name="smelt")
