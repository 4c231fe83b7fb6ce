"""Run ONNX's own tests: a back end with the interface of `onnx.backend.base`.

import onnx.backend.test, smelt.onnx.backend

tests = onnx.backend.test.BackendTest(smelt.onnx.backend, __name__)
"""

# The package onnx is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUntypedBaseClass=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from smelt.onnx.session import Session, load


class Prepared(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def run(self, inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Return all outputs for inputs by position or by name."""
        if not isinstance(inputs, dict):
            names = [a.name for a in self.session.inputs]
            inputs = dict(zip(names, inputs, strict=False))
        return tuple(self.session.run(None, inputs))


class SmeltBackend(Backend):
    """Back end for `onnx.backend.test`."""

    fallback = "error"

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **options: Any) -> bool:
        """Whether all operators of a model have rules; loading decides."""
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """Load a model; raises what `smelt.onnx.load` raises."""
        return Prepared(load(model.SerializeToString(), fallback=cls.fallback))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device can run models: the CPU."""
        return device.startswith("CPU")


prepare = SmeltBackend.prepare
run_model = SmeltBackend.run_model
supports_device = SmeltBackend.supports_device
