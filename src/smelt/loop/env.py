"""Types of names, arrays and values while a function is read from its top.

>>> from smelt.loop.ir import Load, Place, Prefix
>>> from smelt.types.dtype import f16
>>> env = Env()
>>> env.arrays["x"] = Array(f16, 100)
>>> type_of(Load(Place("x", 0, 8)), env), type_of(Prefix(5, 16), env)
(Type(dtype=f32, lanes=8), Type(dtype=bool, lanes=16))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple, NoReturn

from smelt.errors import DTypeError, VerifyError
from smelt.loop import ir
from smelt.loop.walk import statements
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.dtype import DType, bool_, f64, i32, i64
from smelt.types.expr import Index

__all__ = [
    "INDEX",
    "Array",
    "Env",
    "Type",
    "check_index",
    "place_type",
    "read",
    "type_of",
    "types_in",
]


class Type(NamedTuple):
    """Type of a value: its element type, and its number of lanes (1: a scalar)."""

    dtype: DType
    lanes: int

    def __str__(self) -> str:
        return self.dtype.name if self.lanes == 1 else f"{self.lanes} lanes of {self.dtype.name}"


INDEX = Type(i64, 1)
"""Type of values that index expressions may read."""


@dataclass(frozen=True, slots=True)
class Array:
    """Array in scope: a parameter (`space` is empty) or scratch."""

    dtype: DType
    elements: Index | None
    written: bool = True
    space: str = ""
    pad: int = 0


@dataclass(slots=True)
class Env:
    """Names in scope: types of values, and arrays."""

    values: dict[str, Type] = field(default_factory=dict[str, Type])
    arrays: dict[str, Array] = field(default_factory=dict[str, Array])

    @staticmethod
    def of(func: ir.Func) -> Env:
        """Return what is in scope at the beginning of a function."""
        arrays = {p.name: Array(p.dtype, p.elements, p.written) for p in func.params}
        return Env(dict.fromkeys((*func.sizes, *func.numbers), INDEX), arrays)

    def child(self) -> Env:
        """Return a copy for a block inside."""
        return Env(dict(self.values), dict(self.arrays))

    def carries(self, loop: ir.For) -> dict[str, Type]:
        """Return the types of what a loop carries, positions included."""
        types: dict[str, Type] = {}
        for c in loop.carry:
            dtype, lanes = type_of(c.init, self)
            types[c.name] = Type(dtype if c.mode == "own" or c.position else f64, lanes)
            if c.start is not None:
                types[c.position] = type_of(c.start, self)
        return types


def types_in(func: ir.Func) -> Env:
    """Return the types of all names of a function, each of which is bound once."""
    env = Env.of(func)
    for s in statements(func.body):
        match s:
            case ir.Let(name, value):
                env.values[name] = type_of(value, env)
            case ir.For(var=var):
                env.values |= {var: INDEX, **env.carries(s)}
            case ir.Alloc(name, dtype, elements, space, pad):
                env.arrays[name] = Array(dtype, elements, True, space, pad)
            case ir.Next(name, value) if name not in env.values:  # a result of a branch
                env.values[name] = type_of(value, env)
            case _:
                pass
    return env


def read(name: str, env: Env) -> ir.Value:
    """Return the value of a name: scalars of i64 are index expressions."""
    return ir.position(ir.number(name)) if env.values[name] == INDEX else ir.Ref(name)


def _wrong(reason: str) -> NoReturn:
    raise VerifyError(reason)


def type_of(value: ir.Value, env: Env) -> Type:
    """Return the type of a value; raises VerifyError if it has none."""
    match value:
        case ir.Const(dtype=dtype):
            return Type(dtype.compute, 1)
        case ir.IndexValue(index=index, dtype=dtype):
            check_index(index, env)
            return Type(dtype.compute, 1)
        case ir.Ref(name):
            if name not in env.values:
                _wrong(f"{name} is not bound here")
            return env.values[name]
        case ir.Load(place, other):
            return _load(place, other, env)
        case ir.Apply(op, args):
            return _apply(op, [type_of(a, env) for a in args])
        case ir.Cast(arg, dtype):
            return Type(dtype.compute, type_of(arg, env).lanes)
        case ir.Lane(lanes):
            return Type(i64, lanes)
        case ir.LaneIndex(index, start, lanes):
            check_index(start, env)
            check_index(index, Env({**env.values, ir.AT: INDEX}))
            return Type(i64, lanes)
        case ir.Prefix(count, lanes):
            check_index(count, env)
            return Type(bool_, lanes)
        case ir.Splat(arg, lanes):
            dtype, inner = type_of(arg, env)
            if inner != 1:
                _wrong(f"only a scalar is splat, not {inner} lanes")
            return Type(dtype, lanes)
        case ir.Across(combine, args, scan):
            return _across(combine, [type_of(a, env) for a in args], scan)
        case ir.Shuffle():
            return _shuffle(value, [type_of(a, env) for a in value.args])


def check_index(index: Index, env: Env) -> None:
    """Raise VerifyError if an index expression reads anything but scalars of i64."""
    for atom in expr.atoms(index):
        if atom.name and env.values.get(atom.name) != INDEX:
            bound = env.values.get(atom.name)
            reason = "is not bound here" if bound is None else f"is {bound}, not an i64"
            _wrong(f"{atom.name} {reason}")


def _is_within(group: Sequence[int], stride: Index) -> bool:
    return isinstance(stride, int) and max(group) - min(group) < stride


def place_type(place: ir.Place, env: Env) -> Type:
    """Return the type of what a place holds, in arithmetic; raises VerifyError."""
    array = env.arrays.get(place.buffer)
    if array is None:
        _wrong(f"{place.buffer} is not an array here")
    check_index(place.stride, env)
    group = place.group
    if group and (0 not in group or not _is_within(group, place.stride)):
        _wrong("a group within a stride expected, with the load itself")
    if isinstance(place.at, int | expr.Expr):
        check_index(place.at, env)
    else:
        at = type_of(place.at, env)
        if at.dtype != i64 or at.lanes not in (1, place.lanes):
            _wrong(f"{at} is not a position of {place.lanes} lanes")
    if place.mask is not None:
        mask = type_of(place.mask, env)
        if mask.dtype != bool_ or mask.lanes not in (1, place.lanes):
            _wrong(f"a mask of {place.lanes} lanes expected, found {mask}")
    return Type(array.dtype.compute, place.lanes)


def _load(place: ir.Place, other: ir.Const | None, env: Env) -> Type:
    loaded = place_type(place, env)
    if other is not None and (other.dtype.compute != loaded.dtype or place.mask is None):
        _wrong(f"{other.dtype.name} stands for masked elements of {loaded.dtype.name}")
    return loaded


def _apply(op: str, args: list[Type]) -> Type:
    row = SCALARS.get(op)
    if row is None:
        _wrong(f"{op!r} is not a scalar operator")
    try:
        dtype = row.result(*[a.dtype for a in args])
    except DTypeError as error:
        _wrong(error.message)
    lanes = {a.lanes for a in args} - {1}
    if len(lanes) > 1:
        _wrong(f"operands of {op} have {' and '.join(map(str, sorted(lanes)))} lanes")
    return Type(dtype, lanes.pop() if lanes else 1)


def _across(combine: str, args: list[Type], scan: bool) -> Type:
    row = COMBINES.get(combine)
    if row is None:
        _wrong(f"{combine!r} does not combine lanes")
    lanes = {a.lanes for a in args}
    if len(lanes) != 1 or 1 in lanes:
        _wrong("across needs vectors of as many lanes")
    if row.positional:
        rows = len(args) // 2
        if len(args) != 2 * rows or not args[-1].dtype.is_integer or scan:
            _wrong(f"{combine} across lanes takes values and their positions")
        return Type(args[-1].dtype, rows)
    if scan:
        return args[0]
    if len({a.dtype for a in args}) > 1:
        _wrong("across needs vectors of one type")
    return Type(args[0].dtype, len(args))


def _shuffle(value: ir.Shuffle, args: list[Type]) -> Type:
    if len(set(args)) != 1:
        _wrong("a shuffle needs vectors of one type")
    if value.pattern == "halves":
        return Type(i32, args[0].lanes)
    total = args[0].lanes * len(args)
    if value.pattern != "permute":
        return Type(args[0].dtype, total)
    if not value.table or not all(0 <= k < total for k in value.table):
        _wrong(f"a permutation needs a table of lanes below {total}")
    return Type(args[0].dtype, len(value.table))
