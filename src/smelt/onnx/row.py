"""Define the table row of an ONNX operator: its name and the rule that computes it.

    Row("Relu", lambda c, x: sm.nn.relu(x))

A rule gets the call (attributes, opset) and the inputs as arrays; inputs at positions `values` come
as `Known`, since they decide shapes. `host` computes the same in NumPy, for inputs that are known
before the call runs, so that integers made of sizes stay expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.errors import UnsupportedError
from smelt.onnx.known import Known
from smelt.onnx.model import Graph, Node
from smelt.onnx.tensors import dtype_of
from smelt.python.dataclass import dataclass
from smelt.types.dtype import COMPUTABLE

if TYPE_CHECKING:
    from smelt.onnx.evaluate import Evaluation

_COMPUTABLE = frozenset(d.numpy for d in COMPUTABLE)


class NeedsHostError(Exception):
    """A rule would compute with a type that arrays do not have."""


class NeedsValueError(Exception):
    """A rule needs elements that are known only when the call runs."""


def computable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of ours have this element type."""
    return dtype in _COMPUTABLE


@dataclass(frozen=True, slots=True)
class Row:
    """A table row: `lower(call, *inputs)` returns a value or a tuple of values."""

    name: str
    lower: Callable[..., Any]
    values: tuple[int, ...] = ()
    """Positions of inputs that are passed as `Known`; -1: all inputs."""
    host: Callable[..., Any] | None = None
    """host(call, *elements) -> elements, for known inputs; NotImplemented where it declines."""
    raw: bool = False
    """Inputs are passed as they are: arrays, known contents, lists, None."""
    domain: str = ""
    since: int = 1
    """First version of the operator with which the rule agrees."""


class Call:
    """A node that is being computed."""

    __slots__ = ("evaluation", "node", "version")

    def __init__(self, evaluation: Evaluation, node: Node, version: int) -> None:
        self.evaluation = evaluation
        self.node = node
        self.version = version
        """The opset of the node's domain."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        value = self.node.attributes.get(name)
        return default if value is None else value

    def graph(self, name: str) -> Graph:
        """Return an attribute that is a graph; raises UnsupportedError if there is none."""
        value = self.get(name)
        if not isinstance(value, Graph):
            raise UnsupportedError(f"{self.node.title} without the graph {name}")
        return value

    def tensor(self, name: str) -> Known | None:
        """Return an attribute that is a tensor; None if there is none."""
        value = self.get(name)
        return None if value is None else self.evaluation.constant(value)

    def dtype(self, name: str, default: Any = None) -> np.dtype[Any]:
        """Return an attribute that names an element type, or the type `default`."""
        number = self.get(name, 0)
        return dtype_of(number) if number else np.dtype(default)

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.node.outputs

    def wants(self, position: int) -> bool:
        """Whether the node names its output at a position."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def array(self, x: Any) -> Any:
        """Return a value as an array; None stays None."""
        return self.evaluation.array(x)

    def known(self, x: Any) -> Known:
        """Return the elements of a value; raises NeedsValueError if they are not known yet."""
        return self.evaluation.known(x)

    def ints(self, x: Any, attribute: str = "", default: Any = None) -> Any:
        """Return integers of an input, or of an attribute of older versions."""
        if x is not None:
            return self.known(x).ints()
        value = self.get(attribute) if attribute else None
        if value is None:
            return default
        return list(value) if isinstance(value, Sequence) else value

    def call(self, op: str, *inputs: Any, version: int = 0, **attributes: Any) -> Any:
        """Compute another operator of ONNX's own domain with a rule."""
        return self.evaluation.apply(op, inputs, attributes, version)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises UnsupportedError for one out of range."""
    if not -rank <= axis < max(rank, 1):
        raise UnsupportedError(f"the axis {axis} of {rank} dimensions")
    return axis % rank if rank else 0
