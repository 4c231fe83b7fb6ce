"""Write ONNX files without the package onnx: protobuf's wire format by hand.

>>> len(model([node("Relu", ["x"], ["y"])], [port("x", np.float32, ["n"])], [port("y")])) > 20
True
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.onnx.tensors import type_number

__all__ = ["field", "graph", "model", "node", "port", "tensor", "varint"]


def varint(n: int) -> bytes:
    """Encode an integer."""
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number: int, value: Any) -> bytes:
    """Encode a field: an integer, a float, text or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor(name: str, array: Any) -> bytes:
    """Encode a tensor with raw data."""
    a = np.asarray(array)
    dims = b"".join(field(1, n) for n in a.shape)
    return dims + field(2, type_number(a.dtype)) + field(8, name) + field(9, a.tobytes())


def port(name: str, dtype: Any = None, dims: Sequence[Any] | None = None) -> bytes:
    """Encode an input or output; dimensions are numbers or names."""
    out = field(1, name)
    if dtype is None:
        return out
    kind = field(1, type_number(dtype))
    if dims is not None:
        each = (field(1, field(1, d) if isinstance(d, int) else field(2, d)) for d in dims)
        kind += field(2, b"".join(each))
    return out + field(2, field(1, kind))


def _attribute(name: str, value: Any) -> bytes:
    out = field(1, name)
    if isinstance(value, np.ndarray):
        return out + field(5, tensor("", value)) + field(20, 4)
    if isinstance(value, bytes):
        return out + field(6, value) + field(20, 5)
    if isinstance(value, str):
        return out + field(4, value) + field(20, 3)
    if isinstance(value, float):
        return out + field(2, value) + field(20, 1)
    if isinstance(value, int):
        return out + field(3, value) + field(20, 2)
    return out + b"".join(field(8, n) for n in value) + field(20, 7)


def node(
    op: str, inputs: Iterable[str], outputs: Iterable[str], domain: str = "", **attributes: Any
) -> bytes:
    """Encode a node; bytes among the attributes are graphs."""
    out = b"".join(field(1, n) for n in inputs) + b"".join(field(2, n) for n in outputs)
    out += field(4, op)
    out += b"".join(field(5, _attribute(k, v)) for k, v in attributes.items())
    return out + (field(7, domain) if domain else b"")


def graph(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    constants: Mapping[str, Any] | None = None,
) -> bytes:
    """Encode a graph."""
    out = b"".join(field(1, n) for n in nodes)
    out += b"".join(field(5, tensor(k, v)) for k, v in (constants or {}).items())
    out += b"".join(field(11, p) for p in inputs)
    return out + b"".join(field(12, p) for p in outputs)


def model(
    nodes: Iterable[bytes],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
) -> bytes:
    """Encode a model."""
    body = graph(nodes, inputs, outputs, constants)
    microsoft = field(8, field(1, "com.microsoft") + field(2, 1))
    return field(1, 10) + field(7, body) + field(8, field(2, opset)) + microsoft
