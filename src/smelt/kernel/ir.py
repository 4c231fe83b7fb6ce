"""Kernel IR: how a cluster is computed, as a tile program over named axes.

    from smelt.kernel.text import parse

    kernel = parse('''
    kernel log_relu(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
      grid r, c/4096
      y[r,c] = log(max(x[r,c] + b[c], 0))
    ''')

Axes under `grid` run as independent blocks; a `Stream` visits blocks of an axis in order and
carries state; every other axis is a tile axis, whose whole extent is present at once. A value has
the union of its operands' axes, and broadcasting is by axis name. `docs/kernels.md` explains the
language by example.

All nodes are immutable. Values are trees; a value used twice is bound by `Let` and read by `Ref`.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TypeAlias

from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, axis
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Axis:
    """Named axis running over 0 .. extent-1; the extent is an expression over sizes."""

    name: str
    extent: Index

    @property
    def index(self) -> Expr:
        """The axis as an index expression."""
        return axis(self.name, self.extent)


@dataclass(frozen=True, slots=True)
class Param:
    """Buffer parameter of a kernel.

    `strides` None means contiguous in row-major order. Otherwise it has one entry per dimension:
    an int known at compile time (0, 1) or None for a stride passed at the call, in elements.
    """

    name: str
    dtype: DType
    shape: Shape
    strides: tuple[int | None, ...] | None = None
    each: int = 0
    """Number of arrays in a family; 0: one array.

    Grid entry `Each` takes one array of each family at a time. Sizes that occur only in families
    may differ from member to member.
    """


# ---- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """Constant of a type.

    Constants are equal if no operator can distinguish them: 0.0 is not -0.0, and NaN equals
    NaN of its sign.
    """

    value: float | int | bool
    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _python_number(self.value, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[DType, float | int | bool, bool]:
        negative = isinstance(self.value, float) and math.copysign(1.0, self.value) < 0
        return self.dtype, math.nan if self.value != self.value else self.value, negative


def _python_number(value: float | int | bool, dtype: DType) -> float | int | bool:
    """Convert to the Python number type of `dtype`, if that is lossless."""
    if dtype.is_float:
        return float(value)
    if dtype.kind == "bool":
        return bool(value)
    return int(value) if math.isfinite(value) and int(value) == value else value


NO_EXPONENT = -(1 << 30)
"""Initial value of a running exponent (i32), written `none`: no element was seen yet.

It is below the exponent of every finite number, and its distance to any of them neither wraps nor
scales a number to anything but zero.
"""


@dataclass(frozen=True, slots=True)
class IndexValue:
    """Index expression over axes, sizes and computed positions, as an integer value."""

    index: Index
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """Element of a parameter.

    With `other`, positions out of bounds yield that constant; without, the verifier must be able
    to prove every position in bounds. Half types are loaded as float32.
    """

    param: str
    index: tuple[Index, ...]
    other: Const | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Scalar operator of `smelt.ops.scalar` applied to values."""

    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """Type conversion; a conversion to a half type rounds, and the result continues as float32."""

    arg: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduce:
    """Reduction of a value over axes with an operator of `smelt.ops.combine`.

    A positional operator (argmax, argmin) yields the row-major position over `over` as i64.
    """

    combine: str
    arg: Value
    over: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive scan of a value along an axis; the result has that axis too."""

    combine: str
    arg: Value
    along: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Rename:
    """Value along axis `new` in place of `old`, which has the same positions.

    Both are tile axes. A step of a recurrence so reads what the one before it wrote.
    """

    arg: Value
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Dot:
    """Contraction: sum of products of two values over axes, accumulated in `dtype`."""

    left: Value
    right: Value
    over: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ref:
    """Value bound by `Let`, or a carried state (`next` reads the new one, s')."""

    name: str
    next: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """`value` where `condition` holds, else `other`, element by element.

    Unlike the scalar operator `select`, the side that is not selected is not evaluated, so loads
    in `value` may rely on the condition.
    """

    condition: Value
    value: Value
    other: Value


@dataclass(frozen=True, slots=True)
class Partial:
    """Whether a condition fails somewhere in the current block: one bool per block.

    A back end can restrict masking work to blocks that a mask cuts.
    """

    condition: Value


@dataclass(frozen=True, slots=True)
class Extreme:
    """Largest (or smallest) element of a value in the current block: one number per block.

    For an axis these are its last and first index in the block. With both, a condition can be
    decided for a whole block without evaluating its elements.
    """

    arg: Value
    largest: bool


Value: TypeAlias = (
    Const
    | IndexValue
    | Load
    | Apply
    | Cast
    | Reduce
    | Scan
    | Rename
    | Dot
    | Ref
    | If
    | Partial
    | Extreme
)

# ---- statements ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let:
    """Binding: name = value.

    A name is bound once in its scope, except for `s = If(Partial(..), .., s)`.
    """

    name: str
    value: Value
    origin: int = field(default=-1, compare=False)
    """Number of the graph node it came from, for the report; -1 for none."""


@dataclass(frozen=True, slots=True)
class Position:
    """Computed index: name = value clamped into 0 .. extent-1, for index expressions."""

    name: str
    value: Value
    extent: Index


PUT = "put"
"""Join operator that overwrites: the last value stored wins."""


@dataclass(frozen=True, slots=True)
class Store:
    """Store: param[index] = value, where `where` (a bool value) holds.

    With `join` (a scalar operator, or `put` to keep the last value) the store is a
    scatter-reduce: param[index] = join(param[index], value). Several visits may then write one
    element, in the order of the enclosing streams.
    """

    param: str
    index: tuple[Index, ...]
    value: Value
    where: Value | None = None
    join: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Carried value of a stream: its initial value and its axes.

    Fixed axes may be omitted. `dtype` caches the type of `init`.
    """

    name: str
    init: Value
    axes: tuple[str, ...] = ()
    dtype: DType | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Update:
    """Assignment of a state's new value at the end of a visit: state' = value."""

    state: str
    value: Value


@dataclass(frozen=True, slots=True)
class Block:
    """Blocking of an axis: blocks of `size` (None: all) from `start` up to `stop`.

    The defaults of `start` and `stop` are 0 and the extent; values out of that range are clamped.
    Both are integers that vary along fixed axes only. An axis in blocks of one is *fixed* inside:
    values there need not name it. `part` names the grid axis that numbers the parts of a split
    stream.
    """

    axis: str
    size: int | None = None
    stop: Value | None = None
    part: str | None = None
    start: Value | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """Ordered loop over blocks with carried states.

    Blocks where `where` (one bool per block) is false are skipped. Inside, a state reads its old
    value; afterwards its final one.

    For each axis in `bounds`, a block computes only positions from `start` up to `stop`,
    re-evaluated for each block; states keep their old values elsewhere. Outside that range only
    identity elements are reduced, so a back end may safely compute more.
    """

    blocks: tuple[Block, ...]
    states: tuple[State, ...]
    body: tuple[Statement, ...]
    where: Value | None = None
    bounds: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge of the states of a split axis' parts, in increasing order of the part."""

    part: str
    states: tuple[str, ...]


Statement: TypeAlias = Let | Position | Store | Update | Stream | Merge


@dataclass(frozen=True, slots=True)
class Split:
    """Grid axis `name` that numbers the parts of another axis: `p in split(n, parts)`.

    `parts` is an expression over sizes, at least 1. All parts have the same number of whole
    stream blocks, counted from the start of the axis, except the last ones, which may be shorter
    or empty.
    """

    name: str
    axis: str
    parts: Index


@dataclass(frozen=True, slots=True)
class Each:
    """Grid entry that takes one array of every parameter family at a time."""

    count: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """Single launch: parameters, axes, the grid of independent blocks, and statements.

    `axes` holds every axis; `grid` the blocks that run independently.
    """

    name: str
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    axes: tuple[Axis, ...]
    grid: tuple[Block | Split | Each, ...]
    body: tuple[Statement, ...]
    comments: tuple[str, ...] = field(default=(), compare=False)
    facts: tuple[Index, ...] = ()
    """Expressions over sizes that are >= 0 whenever the kernel is called."""

    def axis(self, name: str) -> Axis:
        """Return the axis of that name.

        Raises KeyError if there is none.
        """
        for a in self.axes:
            if a.name == name:
                return a
        raise KeyError(name)

    def param(self, name: str) -> Param:
        """Return the parameter of that name.

        Raises KeyError if there is none.
        """
        for p in (*self.inputs, *self.outputs):
            if p.name == name:
                return p
        raise KeyError(name)
