"""Construct kernels from Python with typed, checked helpers.

A `Builder` tracks the parameters, axes and names of the kernel under construction: plain numbers
and index expressions become constants of the right type, reductions get their result type, and a
mistake is reported where it is made.

>>> b = Builder("log_relu")
>>> r, c = b.axis("r"), b.axis("c")
>>> x, bias = b.input("x", f32, (size("r"), size("c"))), b.input("b", f32, (size("c"),))
>>> y = b.output("y", f32, (size("r"), size("c")))
>>> b.grid(Block("r", 1), Block("c", 4096))
>>> total = b.apply("add", b.load(x, r, c), b.load(bias, c))
>>> b.store(y, (r, c), b.apply("log", b.apply("max", total, 0)))
>>> print(text(b.kernel()))
kernel log_relu(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
  grid r, c/4096
  y[r,c] = log(max(x[r,c] + b[c], 0))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from smelt.errors import DTypeError, VerifyError
from smelt.kernel.env import Bound, Env, axes_of, dtype_of, index_axes
from smelt.kernel.ir import (
    Apply,
    Axis,
    Block,
    Cast,
    Const,
    Dot,
    Each,
    If,
    IndexValue,
    Kernel,
    Let,
    Load,
    Merge,
    Param,
    Position,
    Reduce,
    Ref,
    Scan,
    Split,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.text_print import OperandType, bare_type, operand_types, text
from smelt.kernel.verify import verify
from smelt.kernel.walk import Axes
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_, f32
from smelt.types.expr import Expr, Index, size, value
from smelt.types.tensor import Shape

__all__ = [
    "Axes",
    "Block",
    "Bound",
    "Builder",
    "Env",
    "Operand",
    "axes_of",
    "dtype_of",
    "f32",
    "index_axes",
    "size",
    "text",
]

Operand: TypeAlias = Value | Expr | float | int | bool
"""A value, or a number or index expression that takes the type its context expects."""


class Builder:
    """Kernel under construction; see the module's example."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Param] = []
        self.outputs: list[Param] = []
        self.axes: dict[str, Axis] = {}
        self.entries: list[Block | Split | Each] = []
        self.facts: list[Index] = []
        self.body: list[Statement] = []
        self.params: dict[str, Param] = {}
        self.env = Env(self.params)

    # ---- the header ----------------------------------------------------------------------------

    def input(
        self,
        name: str,
        dtype: DType,
        shape: Shape,
        strides: tuple[int | None, ...] | None = None,
        each: int = 0,
    ) -> Param:
        """Add an input parameter."""
        self.inputs.append(Param(name, dtype, shape, strides, each))
        self.params[name] = self.inputs[-1]
        return self.inputs[-1]

    def output(self, name: str, dtype: DType, shape: Shape, each: int = 0) -> Param:
        """Add an output parameter."""
        return self.in_place(Param(name, dtype, shape, None, each))

    def in_place(self, param: Param) -> Param:
        """Add an output; if `param` is also an input, the output overwrites it."""
        self.outputs.append(param)
        self.params.setdefault(param.name, param)
        return param

    def axis(self, name: str, extent: Index | None = None) -> Expr:
        """Add an axis, by default as long as the size of the same name."""
        self.axes[name] = Axis(name, size(name) if extent is None else extent)
        return self.axes[name].index

    def grid(self, *entries: Block | Split | Each) -> None:
        """Add independent blocks to the grid."""
        self.entries += entries

    def require(self, *facts: Index) -> None:
        """Add expressions over sizes that are >= 0 in every call."""
        self.facts += facts

    # ---- values --------------------------------------------------------------------------------

    def as_value(self, operand: Operand, dtype: DType | None = None) -> Value:
        """Return a number or index as a value of `dtype`.

        The default is f32 for a number and i64 for an index; other values are returned unchanged.
        """
        match operand:
            case bool():
                return Const(operand, bool_)
            case int() | float():
                return Const(operand, bare_type("number", dtype))
            case Expr():
                return IndexValue(operand, bare_type("index", dtype))
            case _:
                return operand

    def dtype_of(self, v: Value) -> DType:
        """Return the element type of a value in the current scope."""
        return dtype_of(v, self.env)

    def axes_of(self, v: Value) -> Axes:
        """Return the axes of a value in the current scope."""
        return axes_of(v, self.env)

    def apply(self, op: str, *args: Operand) -> Value:
        """Apply a scalar operator.

        Raises DTypeError if the operands' types do not fit.
        """
        operand_dtypes: list[OperandType] = [self._operand_type(a) for a in args]
        types = operand_types(op, tuple(operand_dtypes))
        if types is None:
            raise DTypeError(f"{op} does not take {len(args)} operands")
        values = tuple(self.as_value(a, t) for a, t in zip(args, types, strict=True))
        SCALARS[op].result(*(self.dtype_of(v) for v in values))
        return Apply(op, values)

    def _operand_type(self, operand: Operand) -> OperandType:
        if isinstance(operand, bool):
            return bool_
        if isinstance(operand, int | float):
            return "number"
        return "index" if isinstance(operand, Expr) else self.dtype_of(operand)

    def load(self, param: Param, *index: Index, other: float | int | bool | None = None) -> Value:
        """Load an element; `other` is the value of positions out of bounds."""
        if len(index) != len(param.shape):
            raise VerifyError(f"{param.name} has {len(param.shape)} dimensions, not {len(index)}")
        fallback = None if other is None else Const(other, param.dtype.compute)
        return Load(param.name, index, fallback)

    def cast(self, v: Value, dtype: DType) -> Value:
        """Convert a value, or return it unchanged if it already has the type."""
        return v if self.dtype_of(v) == dtype else Cast(v, dtype)

    def reduce(self, combine: str, v: Value, *over: str, dtype: DType | None = None) -> Value:
        """Reduce a value over axes."""
        return Reduce(combine, v, over, dtype or self._reduced_dtype(combine, v))

    def scan(self, combine: str, v: Value, along: str, dtype: DType | None = None) -> Value:
        """Compute the inclusive scan of a value along an axis."""
        return Scan(combine, v, along, dtype or self._reduced_dtype(combine, v))

    def dot(self, left: Value, right: Value, *over: str, dtype: DType | None = None) -> Value:
        """Contract two values: sum their products over axes."""
        return Dot(left, right, over, dtype or self._reduced_dtype("sum", left))

    def _reduced_dtype(self, combine: str, v: Value) -> DType:
        return COMBINES[combine].result(self.dtype_of(v))

    def choose(self, condition: Value, chosen: Operand, other: Operand) -> Value:
        """Return `chosen` where the condition holds, else `other`.

        Neither side is evaluated where it is not selected.
        """
        operand_dtypes = [self._operand_type(a) for a in (chosen, other)]
        dtype = next((k for k in operand_dtypes if isinstance(k, DType)), None)
        return If(condition, self.as_value(chosen, dtype), self.as_value(other, dtype))

    # ---- statements ----------------------------------------------------------------------------

    def _add(self, statement: Statement) -> None:
        self.env.bind(statement)
        self.body.append(statement)

    def let(self, name: str, v: Operand, origin: int = -1) -> Ref:
        """Bind a name to a value."""
        self._add(Let(name, self.as_value(v), origin))
        return Ref(name)

    def position(self, name: str, v: Value, extent: Index) -> Expr:
        """Add a computed index, clamped into 0 .. extent-1."""
        self._add(Position(name, v, extent))
        return value(name, extent)

    def store(
        self, param: Param, index: Sequence[Index], v: Operand, where: Value | None = None
    ) -> None:
        """Add a store."""
        self._add(Store(param.name, tuple(index), self.as_value(v, param.dtype.compute), where))

    def state(self, name: str, init: Operand, *axes: str, dtype: DType | None = None) -> State:
        """Return a state for `stream`."""
        first = self.as_value(init, dtype)
        return State(name, first, axes, self.dtype_of(first))

    @contextmanager
    def stream(
        self,
        *blocks: Block,
        states: Sequence[State] = (),
        where: Value | None = None,
        sees: Sequence[Block] = (),
    ) -> Generator[None]:
        """Open a stream; statements added inside the `with` block become its body."""
        outer, body = self.env, self.body
        head = Stream(blocks, tuple(states), ())
        outer.bind(head)
        self.env, self.body = outer.child(), []
        try:
            yield
        finally:
            statements, self.env, self.body = self.body, outer, body
        self.body.append(Stream(blocks, tuple(states), tuple(statements), where, tuple(sees)))

    def update(self, state: str, v: Operand) -> Ref:
        """Set the state's new value."""
        self._add(Update(state, self.as_value(v, self.env.lookup(state).dtype)))
        return Ref(state, next=True)

    def merge(self, part: str, *states: str) -> None:
        """Merge the states of a split stream."""
        self._add(Merge(part, states))

    def kernel(self, *, check: bool = True) -> Kernel:
        """Return the finished kernel.

        Raises VerifyError if it breaks a rule, unless `check` is false.
        """
        kernel = Kernel(
            self.name,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.axes.values()),
            tuple(self.entries),
            tuple(self.body),
            facts=tuple(self.facts),
        )
        return verify(kernel) if check else kernel
