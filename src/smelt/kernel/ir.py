"""The Kernel: *how* a cluster is computed, as a tile program over named axes.

    from smelt.kernel.text import parse

    kernel = parse('''
    kernel log_relu(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
      grid r, c/4096
      y[r,c] = log(max(x[r,c] + b[c], 0))
    ''')

A kernel names its axes once.  Axes under `grid` run as independent blocks; a `Stream` visits blocks
of an axis in order and carries state; every other axis is a tile axis: its whole extent is there at
once.  A value has the axes that its operands have, and broadcasting is by name.  Read
`docs/kernels.md` for the language by example.

All nodes are frozen.  Values are trees; what is used twice is bound by `Let` and read by `Ref`.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import TypeAlias

from smelt.dataclass import dataclass
from smelt.types.dtype import DType
from smelt.types.expr import Expr, Index, axis
from smelt.types.tensor import Shape


@dataclass(frozen=True, slots=True)
class Axis:
    """A named axis running over 0 .. extent-1; the extent is an expression over sizes."""

    name: str
    extent: Index

    @property
    def index(self) -> Expr:
        """The axis as an index expression."""
        return axis(self.name, self.extent)


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer.  `strides` None means contiguous in row-major order; else one entry a dimension:
    an int known now (0, 1) or None for a stride passed at the call (in elements)."""

    name: str
    dtype: DType
    shape: Shape
    strides: tuple[int | None, ...] | None = None
    each: int = 0
    """A family of that many arrays, of which grid entry `Each` takes one at a time; 0: one array.

    Sizes that occur in families alone differ from member to member."""


# ---- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A number.  Equal are numbers of one type that no operator can tell apart: 0.0 is not -0.0,
    and all NaN are one."""

    value: float | int | bool
    dtype: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _plain(self.value, self.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[DType, float | int | bool, bool]:
        negative = isinstance(self.value, float) and math.copysign(1.0, self.value) < 0
        return self.dtype, self.value, negative


def _plain(value: float | int | bool, dtype: DType) -> float | int | bool:
    """The Python number of the type's own kind, if that loses nothing."""
    if dtype.is_float:
        return math.nan if math.isnan(value) else float(value)
    if dtype.kind == "bool":
        return bool(value)
    return int(value) if math.isfinite(value) and int(value) == value else value


NO_EXPONENT = -(1 << 30)
"""`none`: the exponent, as an i32, before any element.  It lies below the exponent of every finite
number, and its distance to any of them neither wraps nor scales a number to anything but zero."""


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index expression (over axes, sizes and computed positions) as an integer value."""

    index: Index
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a parameter.  With `other`, positions outside the array give that value;
    without, the verifier must be able to see that every position is inside.

    Half types arrive as float32."""

    param: str
    index: tuple[Index, ...]
    other: Const | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operator of `smelt.ops.scalar` on values of one type."""

    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion.  To a half type it rounds, and the value goes on as float32."""

    arg: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduce:
    """Folds axes of a value with a row of `smelt.ops.combine`; only existing elements count.

    An arg kind gives the row-major position over `over` as i64."""

    combine: str
    arg: Value
    over: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scan:
    """The inclusive running fold of a value along an axis; has that axis too."""

    combine: str
    arg: Value
    along: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Dot:
    """Sum of products of two values over axes, accumulated in `dtype`."""

    left: Value
    right: Value
    over: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ref:
    """A value bound by `Let`, or a carried state (`next` reads the new one, s')."""

    name: str
    next: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """`value` where `condition` holds, else `other`, element by element.

    Unlike the scalar operator `select`, neither side is looked at where it is not chosen, so loads
    in `value` may rely on the condition."""

    condition: Value
    value: Value
    other: Value


@dataclass(frozen=True, slots=True)
class Partial:
    """Whether a condition fails somewhere in the present block: one bool for the whole block.

    Tells a back end that work is only wanted in blocks that a mask cuts."""

    condition: Value


@dataclass(frozen=True, slots=True)
class Extreme:
    """The `largest` (else the smallest) that a value is in the present block: one number for the
    whole block.  Of an axis these are its first and its last index there.

    With both, what a condition says of a whole block is known without looking at its elements."""

    arg: Value
    largest: bool


Value: TypeAlias = (
    Const | IndexValue | Load | Apply | Cast | Reduce | Scan | Dot | Ref | If | Partial | Extreme
)

# ---- statements ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let:
    """name = value

    A name is bound once in its scope, but for `s = If(Partial(..), .., s)`."""

    name: str
    value: Value
    origin: int = field(default=-1, compare=False)
    """Number of the graph node it came from, for the report; -1 for none."""


@dataclass(frozen=True, slots=True)
class Position:
    """name = value, clamped into 0 .. extent-1, for use inside index expressions."""

    name: str
    value: Value
    extent: Index


LAST = "put"
"""The way to join that keeps the last value, and does not look at what stood there."""


@dataclass(frozen=True, slots=True)
class Store:
    """param[index] = value, where `where` (a bool value) holds.

    With `join`, a scalar operator, or `put` for what comes last, the value joins what stands there
    in the order of the streams around, so that several visits may write one element:
    param[index] = join(param[index], value)."""

    param: str
    index: tuple[Index, ...]
    value: Value
    where: Value | None = None
    join: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A carried value: its first value and the axes it has (fixed ones may go unsaid).

    `dtype` is the type of `init`, for whoever wants it at hand."""

    name: str
    init: Value
    axes: tuple[str, ...] = ()
    dtype: DType | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Update:
    """state' = value, at the end of a visit to a block."""

    state: str
    value: Value


@dataclass(frozen=True, slots=True)
class Block:
    """How an axis is cut: blocks of `size` (None: whole) from `start` (None: 0) up to `stop` (None:
    the extent).

    An axis cut into blocks of one is *fixed* inside: values there need not name it.  `start` and
    `stop` are integers without axes but fixed ones; beyond the extent, or below 0, they count as
    that.  `part` names the grid axis over whose parts a split stream is spread."""

    axis: str
    size: int | None = None
    stop: Value | None = None
    part: str | None = None
    start: Value | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """Visits blocks in order, but for those where `where` (one bool for a block) does not hold.
    Inside, a state is its old value; afterwards its final one.

    Of the axes in `sees` a block sees a part, from `start` up to `stop`, which are told anew for
    each block: what lies outside is as if it were not there, and of states it stays.  Outside
    nothing is folded but identities, so that a back end may let a block see more."""

    blocks: tuple[Block, ...]
    states: tuple[State, ...]
    body: tuple[Statement, ...]
    where: Value | None = None
    sees: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """Joins the states of the parts of a split axis, in increasing order of the part."""

    part: str
    states: tuple[str, ...]


Statement: TypeAlias = Let | Position | Store | Update | Stream | Merge


@dataclass(frozen=True, slots=True)
class Split:
    """A grid axis `name` that numbers the parts of another axis: `p in split(n, parts)`, where
    `parts` is an expression over sizes of at least 1.

    All parts but the last ones, which may be shorter or empty, have as many whole blocks of the
    stream through them, counted from the beginning of the axis."""

    name: str
    axis: str
    parts: Index


@dataclass(frozen=True, slots=True)
class Each:
    """A grid entry: one array of every family of parameters at a time."""

    count: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch.  `axes` holds every axis; `grid` the blocks that run independently."""

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
        """The axis of that name.  Raises KeyError if there is none."""
        for a in self.axes:
            if a.name == name:
                return a
        raise KeyError(name)

    def param(self, name: str) -> Param:
        """The parameter of that name.  Raises KeyError if there is none."""
        for p in (*self.inputs, *self.outputs):
            if p.name == name:
                return p
        raise KeyError(name)
