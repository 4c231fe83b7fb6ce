"""Construct graph nodes; result types are inferred by the operators.

>>> x = input("x", TensorType(f32, (4,)))
>>> map("add", x, constant(1.0, f32)).type
TensorType(dtype=f32, shape=(4,))
"""

from __future__ import annotations

from smelt.graph.ir import Node
from smelt.ops.create import Constant, Input
from smelt.ops.elementwise import Cast, Map
from smelt.ops.spec import TensorOp
from smelt.ops.view import Expand, Reshape
from smelt.python.origin import Origin
from smelt.types.dtype import DType, f32
from smelt.types.tensor import Shape, TensorType, check_bytes

__all__ = [
    "MISTAKES",
    "apply",
    "cast",
    "constant",
    "expand",
    "f32",
    "identity",
    "input",
    "map",
    "splat",
]

MISTAKES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What an operator's type rule raises, besides our errors, for operands that it does not take."""


def apply(op: TensorOp, *inputs: Node, origin: Origin | None = None) -> Node:
    """Apply `op` to `inputs`.

    Raises ShapeError, DTypeError or OverflowSizeError if they do not fit.
    """
    return Node(op, inputs, check_bytes(op.infer(*(x.type for x in inputs))), origin)


def input(
    label: str,
    type: TensorType,
    strides: tuple[int | None, ...] | None = None,
    origin: Origin | None = None,
    *,
    constant: bool = False,
) -> Node:
    """Declare a tensor from the caller; `strides` and `constant` as in `smelt.ops.create.Input`."""
    return Node(Input(label, check_bytes(type), strides, constant), (), type, origin)


def constant(value: float | int | bool, dtype: DType, origin: Origin | None = None) -> Node:
    """Return a number as a tensor of rank 0."""
    return Node(Constant(value, dtype), (), TensorType(dtype), origin)


def cast(x: Node, dtype: DType, origin: Origin | None = None) -> Node:
    """Convert `x` to another element type; return `x` itself if it has it already."""
    return x if x.type.dtype == dtype else apply(Cast(dtype), x, origin=origin)


def identity(x: Node) -> Node:
    """Return a node of its own with the value of `x`."""
    return apply(Reshape(x.type.shape), x, origin=x.origin)


def expand(x: Node, shape: Shape) -> Node:
    """Broadcast `x` to a shape."""
    return x if x.type.shape == shape else apply(Expand(shape), x, origin=x.origin)


def map(scalar: str, *inputs: Node, origin: Origin | None = None) -> Node:
    """Apply a scalar operator to every element, operands broadcast."""
    return apply(Map(scalar), *inputs, origin=origin)


def splat(node: Node) -> Node | None:
    """Return the constant that every element of `node` equals, or None if unknown."""
    if isinstance(node.op, Expand):
        node = node.inputs[0]
    return node if isinstance(node.op, Constant) else None
