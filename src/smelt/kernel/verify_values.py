"""Verify values: names, types, reductions, and loads that stay in bounds.

A broken rule raises VerifyError with the reason only; `smelt.kernel.verify` adds the statement.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import field
from typing import NoReturn

import numpy as np

from smelt.errors import SmeltError, VerifyError
from smelt.kernel import ir
from smelt.kernel.bounds import Facts, facts_of, proves_inside
from smelt.kernel.env import Env, axes_of, dtype_of
from smelt.kernel.text_print import index_text
from smelt.kernel.walk import Axes
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.dtype import DType, bool_
from smelt.types.expr import Index


def refuse(reason: str) -> NoReturn:
    """Raise VerifyError."""
    raise VerifyError(reason)


@dataclass
class CheckContext:
    """Context of verification at a point of a kernel."""

    kernel: ir.Kernel
    env: Env
    extents: dict[str, Index]
    """Extent of every axis, part axes included."""
    grid_axes: frozenset[str]
    """Axes of the grid, which a block never sees as a whole."""
    fixed: frozenset[str] = frozenset()
    open_streams: frozenset[str] = frozenset()
    facts: Facts = ()
    lets: dict[str, ir.Value] = field(default_factory=dict)
    """Definitions of names; for a computed position, the value before clamping."""
    states: dict[str, ir.State] = field(default_factory=dict)
    """States of the innermost stream."""
    streams: tuple[ir.Stream, ...] = ()
    """Enclosing streams, outer to inner."""

    @contextmanager
    def assume(self, facts: Facts) -> Generator[None]:
        """Add facts inside a `with` block."""
        outer = self.facts
        self.facts = outer + facts
        try:
            yield
        finally:
            self.facts = outer

    # ---- indices -------------------------------------------------------------------------------

    def check_index(self, e: Index) -> None:
        """Check that axes and positions of an index exist, with equal extents."""
        for atom in expr.atoms(e):
            if atom.kind == "axis":
                if atom.name not in self.extents:
                    refuse(f"{atom.name} is not an axis of the kernel")
                if self.extents[atom.name] != atom.extent:
                    end, other = self.extents[atom.name], atom.extent
                    refuse(
                        f"the axis {atom.name} runs to {end}, an index takes it to run to {other}"
                    )
            elif atom.kind == "value":
                bound = self.env.lookup(atom.name)
                if bound.index is None:
                    refuse(f"{atom.name} is not a position that was checked to be inside an array")
                if bound.index != atom.extent:
                    refuse(f"the position {atom.name} is below {bound.index}, not {atom.extent}")

    def check_inside(self, param: ir.Param, index: tuple[Index, ...]) -> None:
        """Check that every dimension of an index stays inside a parameter."""
        for d, (e, extent) in enumerate(zip(index, param.shape, strict=True)):
            if not proves_inside(e, extent, self.facts):
                shown = index_text((e,))
                refuse(
                    f"the index {shown} can leave dimension {d} of {param.name}, which has"
                    f" {expr.text(extent)} elements"
                )

    def check_rank(self, param: ir.Param, index: tuple[Index, ...]) -> None:
        """Check that there are as many well-formed indices as dimensions."""
        if len(index) != len(param.shape):
            refuse(f"{param.name} has {len(param.shape)} dimensions, not {len(index)}")
        for e in index:
            self.check_index(e)

    # ---- values --------------------------------------------------------------------------------

    def check(self, v: ir.Value) -> DType:
        """Check a value and everything inside it, and return its type."""
        try:
            return self._check(v)
        except VerifyError:
            raise
        except SmeltError as error:
            refuse(error.message)

    def check_scalar(self, v: ir.Value, what: str) -> DType:
        """Check a value that must be one number per block, and return its type."""
        dtype = self.check(v)
        loose = axes_of(v, self.env) - self.fixed
        if loose:
            refuse(f"{what} varies along {', '.join(sorted(loose))}")
        return dtype

    def _check(self, v: ir.Value) -> DType:
        match v:
            case ir.Const():
                _check_number(v)
            case ir.IndexValue(index=index, dtype=dtype):
                self.check_index(index)
                if dtype.kind == "complex":
                    refuse(f"{dtype.name} is not a type to compute in")
            case ir.Load():
                self._load(v)
            case ir.Apply(op=op, args=args):
                row = SCALARS.get(op)
                if row is None:
                    refuse(f"{op} is not a scalar operator")
                return row.result(*[self._check(a) for a in args]).compute
            case ir.Cast(arg=arg, dtype=dtype):
                self._check(arg)
                if dtype.kind == "complex":
                    refuse(f"{dtype.name} is not a type to compute in")
            case ir.Reduce(combine=name, arg=arg, over=over, dtype=dtype):
                self._reduction(name, self._check(arg), over, dtype)
            case ir.Scan(combine=name, arg=arg, along=along, dtype=dtype):
                self._reduction(name, self._check(arg), (along,), dtype)
                if COMBINES[name].prefix is None:
                    refuse(f"{name} has no running form")
            case ir.Rename(arg=arg, old=old, new=new):
                self._renamed(axes_of(arg, self.env), old, new)
                return self._check(arg)
            case ir.Dot(left=left, right=right, over=over, dtype=dtype):
                sides = self._check(left), self._check(right)
                if sides[0] != sides[1]:
                    refuse(f"dot of {sides[0].name} and {sides[1].name}: cast one of them")
                self._reduction("sum", sides[0], over, dtype)
            case ir.Ref(name=name, next=new):
                return self.env.lookup(name, new=new).dtype
            case ir.If():
                return self._if(v)
            case ir.Partial(condition=condition):
                self._bool(condition, "the condition of partial")
            case ir.Extreme(arg=arg):
                if not self._check(arg).is_integer:
                    refuse("the least or most in a block is defined for integers only")
        return dtype_of(v, self.env)

    def _bool(self, v: ir.Value, what: str) -> None:
        dtype = self._check(v)
        if dtype != bool_:
            refuse(f"{what} is {dtype.name}, not bool")

    def _load(self, v: ir.Load) -> None:
        param = next((p for p in self.kernel.inputs if p.name == v.param), None)
        if param is None:
            written = any(p.name == v.param for p in self.kernel.outputs)
            refuse(f"{v.param} is {'only written' if written else 'not a parameter of the kernel'}")
        self.check_rank(param, v.index)
        if v.other is None:
            self.check_inside(param, v.index)
            return
        if self._check(v.other) != param.dtype.compute:
            refuse(f"{v.param} gives {param.dtype.compute.name}, but outside {v.other.dtype.name}")

    def _reduction(self, name: str, arg: DType, over: Iterable[str], dtype: DType) -> None:
        row = COMBINES.get(name)
        if row is None:
            refuse(f"{name} is not a reduction")
        axes = tuple(over)
        if not axes or len(set(axes)) != len(axes):
            refuse(f"{name} reduces each of its axes once, not {', '.join(axes) or 'none'}")
        for a in axes:
            if a not in self.extents:
                refuse(f"{a} is not an axis of the kernel")
            if a in self.grid_axes - self.open_streams:
                refuse(f"{name} over {a} would see one block of it only: {a} is a grid axis")
        result, accumulator = row.result(arg), dtype.compute  # half types accumulate in float32
        if accumulator.kind != result.kind or (accumulator.bits < arg.bits and row.grow == "same"):
            refuse(f"{name} of {arg.name} gives {result.name}, not {dtype.name}")

    def _renamed(self, axes: Axes, old: str, new: str) -> None:
        for a in (old, new):
            if a not in self.extents:
                refuse(f"{a} is not an axis of the kernel")
            if a in self.grid_axes | self.open_streams:
                refuse(f"a value renamed along {a} would have one block of it only")
        if self.extents[old] != self.extents[new] or new in axes:
            refuse(f"{old} cannot be renamed to {new}, which has other positions or is there")

    def _if(self, v: ir.If) -> DType:
        self._bool(v.condition, "a condition")
        with self.assume(facts_of(v.condition, self.lets)):
            first = self._check(v.value)
        with self.assume(facts_of(v.condition, self.lets, holds=False)):
            second = self._check(v.other)
        if first != second:
            refuse(f"the two sides of a condition are {first.name} and {second.name}")
        return first


def _check_number(c: ir.Const) -> None:
    """Check that a constant is representable in its type."""
    v, dtype = c.value, c.dtype
    if dtype.is_float:
        return
    if dtype.kind == "complex":
        refuse(f"{dtype.name} is not a type to compute in")
    if dtype == bool_:
        return
    info = np.iinfo(dtype.numpy)
    if not (math.isfinite(v) and v == int(v) and info.min <= v <= info.max):
        refuse(f"{v} is not {dtype.name}")
