"""Loop IR: how a kernel runs on a CPU, as loops over contiguous arrays, vectors and scratch.

    from smelt.loop.text import parse

    module = parse('''
    func total(x: f32[r*c], y: out f32[r]; r, c)
      chunk t in 0 .. r
        each i in 0 .. c with s = sum 0.0
          s <- x[t*c + i]
        y[t] = s
    ''')

A loop says by its kind what may be done with it: the iterations of `chunk` are tasks of any thread,
those of `each` are independent, those of `for` run in order and carry values, and `unroll` is a
`for` of constant length that disappears. Names are bound once in a function. Index expressions are
`smelt.types.expr`: a size is an argument of at least 1, an axis a loop's variable, a value a bound
`i64`. `docs/loop.md` explains the language by example.

All nodes are immutable. Values are trees; a value used twice is bound by `Let` and read by `Ref`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from smelt.kernel.ir import Const, IndexValue
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.dtype import DType, i64
from smelt.types.expr import Index

__all__ = ["Const", "IndexValue"]

LoopKind = Literal["chunk", "each", "for", "unroll"]
CACHE_LINE: Final = 64
"""Bytes of a cache line."""
Space = Literal["registers", "task", "thread"]
Mode = Literal["own", "f64", "pairs", "two_sum", "lanes", "places"]
ShufflePattern = Literal["transpose", "interleave", "deinterleave", "permute", "halves"]

# ---- values ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ref:
    """Value of a `Let`, of a carry, or of a result of `If`.

    Scalar i64 values, loop variables and sizes are read by index expressions instead.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """Elements of an array: one, or `lanes` of them `stride` elements apart from `at`.

    `at` may be a value of i64: a position without an index expression, or one for each lane
    (gather, scatter). Elements where `mask` is false are not accessed; it is one bool or `lanes`.
    `group` has the distances, less than a stride, to what else vectors of as many lanes read: all
    of them are read at once, and lanes are picked out.
    """

    buffer: str
    at: Index | Value
    lanes: int = 1
    stride: Index = 1
    mask: Value | None = None
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """Elements of an array; `other` (or 0) where the mask is false.

    Half types are loaded as float32.
    """

    place: Place
    other: Const | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Scalar operator of `smelt.ops.scalar`, in every lane; scalars are broadcast.

    Integers wrap as the program's do, positions among them; those of index expressions may not.
    """

    op: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """Type conversion; a conversion to a half type rounds, and the result continues as float32."""

    arg: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class Lane:
    """The vector 0, 1, 2, .. of i64."""

    lanes: int


AT: Final = "@"
"""The variable of the index expression of lanes."""


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """Vector of i64: an index expression whose variable `@` is `start` + k in lane k.

    Its printing knows how the index moves from lane to lane, other than a tree of operators on
    vectors. `start` is a multiple of `align`.
    """

    index: Index
    start: Index
    lanes: int
    align: int = 1


@dataclass(frozen=True, slots=True)
class Prefix:
    """Mask of the first `count` lanes: none if it is negative, at most all."""

    count: Index
    lanes: int


@dataclass(frozen=True, slots=True)
class Splat:
    """Scalar in every lane."""

    arg: Value
    lanes: int


ANY: Final = "any"
"""Combines lanes of conditions: whether one of them holds."""


@dataclass(frozen=True, slots=True)
class Across:
    """Lanes of a vector combined by halves, until one is left.

    Lane k is combined with lane k + lanes/2. `args` is one vector, or the values and positions of
    `argmax` and `argmin`, whose result is the position. Several vectors of as many lanes give one
    lane each, of `argmax` first all values and then all positions. `scan` gives the prefixes
    instead: lanes are combined with those 1, 2, 4, .. before them, in turn (W. D. Hillis
    and G. L. Steele, "Data parallel algorithms", 1986).
    """

    combine: str
    args: tuple[Value, ...]
    scan: bool = False


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Lanes of several vectors in another order.

    `args` are k vectors of n lanes. The result has the lanes of their concatenation: `transpose`
    as k rows that become columns, `interleave` one lane of each in turn, `deinterleave` its
    inverse, `permute` those that `table` numbers. `halves` joins the upper halves of two float32
    numbers, which are bfloat16, in an int32: the first in the lower half.
    """

    args: tuple[Value, ...]
    pattern: ShufflePattern
    table: tuple[int, ...] = ()


Value: TypeAlias = (
    Const
    | IndexValue
    | Ref
    | Load
    | Apply
    | Cast
    | Lane
    | LaneIndex
    | Prefix
    | Splat
    | Across
    | Shuffle
)

# ---- statements ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Let:
    """Binding: name = value; a scalar i64 may then occur in index expressions."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Carry:
    """Value that a loop carries between iterations, and that is read after it.

    With `combine` (a row of `smelt.ops.combine`) it is only folded. `mode` says how sums round:
    `own` in their type, `f64` in float64, `pairs` the same after sums of lane k and lane k +
    lanes/2 of each folded vector in their own type, once or twice, `two_sum` as (sum, error) pairs
    whose result is float64. For `argmax` and `argmin`, `position` names the position of the best
    value, at first `start`. With `lanes`, each lane of a vector keeps its own, and meets positions
    in order; with `places` in any order.
    """

    name: str
    init: Value
    combine: str = ""
    mode: Mode = "own"
    position: str = ""
    start: Value | None = None


@dataclass(frozen=True, slots=True)
class For:
    """Loop: var = low, low + step, .. below high.

    chunk: tasks of any thread, outermost; carries nothing. each: independent iterations, which only
    fold. for: in order. unroll: in order, of constant length; copied before printing.
    """

    kind: LoopKind
    var: str
    low: Index
    high: Index
    body: tuple[Statement, ...]
    step: Index = 1
    carry: tuple[Carry, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Fold: carry = combine(carry, value), of a loop around it.

    Fewer lanes fold into the first ones. `position` belongs to `argmax` and `argmin`, whose carries
    of one lane take each lane of a vector.
    """

    name: str
    value: Value
    position: Value | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """Next value of a carry without `combine`, or a result of one side of `If`."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Store:
    """Store of elements; `join` (a reduction's scalar operator) combines them with the old ones.

    `nontemporal` is the known alignment in bytes of vectors that are stored past the caches, or 0.
    """

    place: Place
    value: Value
    join: str = ""
    nontemporal: int = 0


@dataclass(frozen=True, slots=True)
class If:
    """Branch on one bool. Each side sets every result by `Next`."""

    cond: Value
    then: tuple[Statement, ...]
    other: tuple[Statement, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Alloc:
    """Array for the rest of the block, undefined at first.

    registers: of constant size, promoted before printing. task: scratch of a task. thread: scratch
    that keeps its elements from task to task of a thread. `pad` elements behind the end may be read
    where no result depends on them.
    """

    name: str
    dtype: DType
    elements: Index
    space: Space
    pad: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Hint that a place is accessed soon; out of bounds it does nothing."""

    place: Place
    level: Literal[1, 2, 3] = 1
    write: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a `tile`: its parameters begin at the windows, its numbers are given."""

    func: str
    windows: tuple[Place, ...]
    numbers: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Poll:
    """Question to whoever runs the function: it returns at once if it was given up."""


Statement: TypeAlias = Let | For | Fold | Next | Store | If | Alloc | Prefetch | Call | Poll


@dataclass(frozen=True, slots=True)
class Param:
    """Contiguous array of a function; two are equal or do not overlap.

    `elements` None: a window of unknown length, of a tile. `alignment` is in bytes.
    """

    name: str
    dtype: DType
    elements: Index | None
    written: bool = False
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class Func:
    """Function: `func` is an entry, whose chunks are distributed; `tile` a kernel that it calls.

    `sizes` are arguments of at least 1, `numbers` any i64 (strides, all arguments of a tile).
    """

    kind: Literal["func", "tile"]
    name: str
    params: tuple[Param, ...]
    sizes: tuple[str, ...]
    numbers: tuple[str, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """Loops of one kernel: its entries run in order, tiles stand before their callers.

    `facts` are expressions over sizes that are >= 0 whenever the kernel is called.
    """

    name: str
    funcs: tuple[Func, ...]
    facts: tuple[Index, ...] = ()


# ---- construction ----------------------------------------------------------------------------

UNREACHED: Final = 1 << 62
"""Extent of a variable that no position reaches."""
UNKNOWN: Final = expr.UNKNOWN
"""Extent of a variable that may be any integer."""

_ARITHMETIC: Final = {
    "add": expr.add,
    "sub": expr.sub,
    "mul": expr.mul,
    "floordiv": expr.floordiv,
    "mod": expr.mod,
    "min": expr.minimum,
    "max": expr.maximum,
}
DIVISIONS: Final = frozenset(("floordiv", "mod"))
UNWRAPPED: Final = frozenset(("min", "max")) | DIVISIONS
"""Arithmetic that index expressions do as integers which wrap only as long as nothing wraps."""


def variable(loop: For, name: str = "") -> Index:
    """Return the loop's variable, or one of that name, in an index expression."""
    extent = loop.high if expr.nonnegative(loop.low) else UNKNOWN
    return expr.axis(name or loop.var, extent)


def number(name: str) -> Index:
    """Return a bound i64, or a number of a function, in an index expression."""
    return expr.value(name, UNKNOWN)


def position(index: Index) -> IndexValue:
    """Return an index expression as a value."""
    return IndexValue(index, i64)


def lane_variable(start: Index) -> Index:
    """Return the variable of an index expression in lanes that begin at a position."""
    return expr.axis(AT, UNREACHED if expr.nonnegative(start) else UNKNOWN)


def as_index(value: Value) -> Index | None:
    """Return the index expression that a value is, else None."""
    return value.index if isinstance(value, IndexValue) and value.dtype is i64 else None


def is_marked(op: str, args: tuple[Value, ...]) -> bool:
    """Return whether an operator of positions needs a mark, or its text is index arithmetic."""
    return (op in _ARITHMETIC or op == "neg") and None not in map(as_index, args)


def apply(op: str, *args: Value) -> Value:
    """Apply a scalar operator; index arithmetic becomes an index expression."""
    if len(args) != 2 or op not in _ARITHMETIC:
        return Apply(op, args)
    left, right = as_index(args[0]), as_index(args[1])
    if left is None or right is None or (right == 0 and op in ("floordiv", "mod")):
        return Apply(op, args)
    return position(_ARITHMETIC[op](left, right))


def cast(arg: Value, dtype: DType) -> Value:
    """Convert a value; an index expression stays one of that integer type."""
    index = as_index(arg)
    if index is None or dtype == i64:
        return arg if index is not None else Cast(arg, dtype)
    if isinstance(index, int):
        return Const(index, dtype)
    return IndexValue(index, dtype) if dtype.is_integer else Cast(arg, dtype)


def identity(combine: str, dtype: DType) -> Const:
    """Return the value that a fold starts from."""
    return Const(COMBINES[combine].identity(dtype), dtype)
