"""Compute single nodes by onnx's reference evaluator; imports the package onnx."""

# The package onnx is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from smelt.errors import UnsupportedError
from smelt.onnx.external import ExternalData
from smelt.onnx.model import Graph, Node, StoredTensor
from smelt.onnx.tensors import decode

_NO_FILES = ExternalData(None)


def compute(node: Node, version: int, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of a node for inputs in NumPy; raises UnsupportedError if it cannot."""
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    outputs = [f"y{k}" if name else "" for k, name in enumerate(node.outputs)]
    attributes = {k: _attribute(v) for k, v in node.attributes.items()}
    proto = helper.make_node(node.op, names, outputs, domain=node.domain, **attributes)
    wanted = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs if n]
    arguments = [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in names if n]
    graph = helper.make_graph([proto], "node", arguments, wanted)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if n}
    try:
        results = iter(ReferenceEvaluator(model).run(None, feeds))
    except Exception as error:
        raise UnsupportedError(f"{node.title} by the reference evaluator: {error}") from error
    return [_plain(next(results)) if name else None for name in outputs]


def _plain(x: Any) -> Any:
    return [_plain(e) for e in x] if isinstance(x, list) else x if x is None else np.asarray(x)


def _attribute(value: Any) -> Any:
    if isinstance(value, StoredTensor):
        return numpy_helper.from_array(decode(value, _NO_FILES))
    if isinstance(value, Graph):
        raise UnsupportedError("a graph by the reference evaluator")
    return list(value) if isinstance(value, tuple) else value
