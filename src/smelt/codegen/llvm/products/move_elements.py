"""Clear and copy elements by loops over vectors.

clear_elements(env, to, count, lanes, dtype)        sums of nothing, padding
clear_panel_tail(env, c, panels, ..)                columns past the last one of a panel
copy_elements(env, to, source, count, lanes, ..)    rows that are converted on the way
"""

from __future__ import annotations

from functools import cache

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.nests.environment import Environment
from smelt.codegen.llvm.nests.product_plan import ProductPlan
from smelt.codegen.llvm.print_loops import print_func
from smelt.loop.ir import Func
from smelt.loop.passes.hoist_offsets import hoist_offsets
from smelt.loop.passes.vectorize import vectorize
from smelt.loop.text import parse
from smelt.types.dtype import DType

Value = ir.Value


def clear_elements(env: Environment, to: Value, count: Value, lanes: int, dtype: DType) -> None:
    """Store zeros in full vectors, the last one past the end."""
    print_func(env.b, env.frame.target, clear(lanes, dtype), [to], [count])


def clear_panel_tail(
    env: Environment, c: ProductPlan, panels: Value, columns: Value, units: Value, lines: Value
) -> None:
    """Clear the lanes past the last column, in the last of some panels.

    Each is as wide as a tile and has room for `units` positions, of which `lines` are cleared.
    """
    func = panel_tail(c.tile.lanes, c.tile.columns, c.item.dtype)
    print_func(env.b, env.frame.target, func, [panels], [columns, units, lines])


def copy_elements(
    env: Environment, to: Value, source: Value, count: Value, lanes: int, *types: DType
) -> None:
    """Copy elements by vectors, converted from type to type on the way."""
    print_func(env.b, env.frame.target, copy(lanes, *types), [to, source], [count])


@cache
def clear(lanes: int, dtype: DType) -> Func:
    """Return the loop that stores zeros."""
    (func,) = parse(f"""tile clear(p: out {dtype.name}[]; n)
  each i in 0 .. n by {lanes}
    p[i : {lanes}] = {dtype.compute.name}(0)""").funcs
    return func


@cache
def panel_tail(lanes: int, width: int, dtype: DType) -> Func:
    """Return the loops that clear the lanes past the last column of panels."""
    (func,) = parse(f"""tile tail(p: out {dtype.name}[]; columns, units, lines)
  last = columns % {width}
  if last != 0
    each k in 0 .. lines
      each i in last//{lanes}*{lanes} .. {width} by {lanes}
        p[(columns - last)*units + k*{width} + i : {lanes}] = {dtype.compute.name}(0)""").funcs
    return hoist_offsets(func)


@cache
def copy(lanes: int, stored: DType, *types: DType) -> Func:
    """Return the loops that copy elements; the last type is that of the copy."""
    *inner, last = (t.name for t in types)
    value = "x[i]"
    for dtype in inner:
        value = f"{dtype}({value})"
    (func,) = parse(f"""tile copy(p: out {last}[], x: {stored.name}[]; n)
  each i in 0 .. n
    p[i] = {value}""").funcs
    return vectorize(func, "i", lanes, "mask")
