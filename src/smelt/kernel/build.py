"""Kernels written in Python: typed constructors that fill in what follows.

A `Builder` knows the parameters, axes and names of the kernel at hand, so plain numbers and index
expressions become constants of the right type, folds get their result type, and a mistake is found
where it is made.

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
from smelt.kernel.env import Axes, Bound, Env, axes_of, dtype_of, index_axes
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
from smelt.kernel.text_grammar import Known, bare_type, operand_types
from smelt.kernel.text_print import text
from smelt.kernel.verify import verify
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
"""What stands for a value: numbers and index expressions take the type that their place wants."""


class Builder:
    """A kernel under construction; see the module's example."""

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
        """A parameter to read."""
        self.inputs.append(Param(name, dtype, shape, strides, each))
        self.params[name] = self.inputs[-1]
        return self.inputs[-1]

    def output(self, name: str, dtype: DType, shape: Shape, each: int = 0) -> Param:
        """A parameter to write."""
        return self.in_place(Param(name, dtype, shape, None, each))

    def in_place(self, param: Param) -> Param:
        """An output; with an input for `param`, one that overwrites it."""
        self.outputs.append(param)
        self.params.setdefault(param.name, param)
        return param

    def axis(self, name: str, extent: Index | None = None) -> Expr:
        """An axis as an index; its extent is the size of the same name unless told."""
        self.axes[name] = Axis(name, size(name) if extent is None else extent)
        return self.axes[name].index

    def grid(self, *entries: Block | Split | Each) -> None:
        """The independent blocks."""
        self.entries += entries

    def require(self, *facts: Index) -> None:
        """Expressions over sizes that are >= 0 in every call."""
        self.facts += facts

    # ---- values --------------------------------------------------------------------------------

    def typed(self, operand: Operand, dtype: DType | None = None) -> Value:
        """A number or an index as a value of a type: f32 and i64 if none is given."""
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
        """The element type of a value here."""
        return dtype_of(v, self.env)

    def axes_of(self, v: Value) -> Axes:
        """The axes of a value here."""
        return axes_of(v, self.env)

    def apply(self, op: str, *args: Operand) -> Value:
        """A scalar operator.  Raises DTypeError if the operands' types do not fit."""
        known: list[Known] = [self._known(a) for a in args]
        types = operand_types(op, tuple(known))
        if types is None:
            raise DTypeError(f"{op} does not take {len(args)} operands")
        values = tuple(self.typed(a, t) for a, t in zip(args, types, strict=True))
        SCALARS[op].result(*(self.dtype_of(v) for v in values))
        return Apply(op, values)

    def _known(self, operand: Operand) -> Known:
        if isinstance(operand, bool):
            return bool_
        if isinstance(operand, int | float):
            return "number"
        return "index" if isinstance(operand, Expr) else self.dtype_of(operand)

    def load(self, param: Param, *index: Index, other: float | int | bool | None = None) -> Value:
        """An element; `other` is what positions outside give."""
        if len(index) != len(param.shape):
            raise VerifyError(f"{param.name} has {len(param.shape)} dimensions, not {len(index)}")
        outside = None if other is None else Const(other, param.dtype.compute)
        return Load(param.name, index, outside)

    def cast(self, v: Value, dtype: DType) -> Value:
        """A conversion; the value itself if it has the type."""
        return v if self.dtype_of(v) == dtype else Cast(v, dtype)

    def reduce(self, combine: str, v: Value, *over: str, dtype: DType | None = None) -> Value:
        """A fold over axes."""
        return Reduce(combine, v, over, dtype or self._folded(combine, v))

    def scan(self, combine: str, v: Value, along: str, dtype: DType | None = None) -> Value:
        """A running fold along an axis."""
        return Scan(combine, v, along, dtype or self._folded(combine, v))

    def dot(self, left: Value, right: Value, *over: str, dtype: DType | None = None) -> Value:
        """A sum of products over axes."""
        return Dot(left, right, over, dtype or self._folded("sum", left))

    def _folded(self, combine: str, v: Value) -> DType:
        return COMBINES[combine].result(self.dtype_of(v))

    def choose(self, condition: Value, chosen: Operand, other: Operand) -> Value:
        """`chosen` where the condition holds, else `other`; neither is looked at elsewhere."""
        known = [self._known(a) for a in (chosen, other)]
        dtype = next((k for k in known if isinstance(k, DType)), None)
        return If(condition, self.typed(chosen, dtype), self.typed(other, dtype))

    # ---- statements ----------------------------------------------------------------------------

    def _add(self, statement: Statement) -> None:
        self.env.bind(statement)
        self.body.append(statement)

    def let(self, name: str, v: Operand, origin: int = -1) -> Ref:
        """A name for a value."""
        self._add(Let(name, self.typed(v), origin))
        return Ref(name)

    def position(self, name: str, v: Value, extent: Index) -> Expr:
        """A computed index, clamped into 0 .. extent-1."""
        self._add(Position(name, v, extent))
        return value(name, extent)

    def store(
        self, param: Param, index: Sequence[Index], v: Operand, where: Value | None = None
    ) -> None:
        """Writes elements."""
        self._add(Store(param.name, tuple(index), self.typed(v, param.dtype.compute), where))

    def state(self, name: str, init: Operand, *axes: str, dtype: DType | None = None) -> State:
        """A state for `stream`."""
        first = self.typed(init, dtype)
        return State(name, first, axes, self.dtype_of(first))

    @contextmanager
    def stream(
        self,
        *blocks: Block,
        states: Sequence[State] = (),
        where: Value | None = None,
        sees: Sequence[Block] = (),
    ) -> Generator[None]:
        """The statements inside become a stream's body."""
        outer, body = self.env, self.body
        head = Stream(blocks, tuple(states), ())
        outer.bind(head)
        self.env, self.body = outer.child(), []
        try:
            yield
        finally:
            own, self.env, self.body = self.body, outer, body
        self.body.append(Stream(blocks, tuple(states), tuple(own), where, tuple(sees)))

    def update(self, state: str, v: Operand) -> Ref:
        """The state's new value."""
        self._add(Update(state, self.typed(v, self.env.lookup(state).dtype)))
        return Ref(state, next=True)

    def merge(self, part: str, *states: str) -> None:
        """Joins the states of a split stream."""
        self._add(Merge(part, states))

    def kernel(self, *, check: bool = True) -> Kernel:
        """The kernel.  Raises VerifyError if it breaks a rule, unless not to `check`."""
        found = Kernel(
            self.name,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.axes.values()),
            tuple(self.entries),
            tuple(self.body),
            facts=tuple(self.facts),
        )
        return verify(found) if check else found
