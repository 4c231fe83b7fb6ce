"""Loops that continue one another: whole groups of iterations first, then the remainder.

>>> from smelt.loop.text import parse
>>> (loop,) = parse("func f(x: out f32[n]; n)\\n  each i in 2 .. n\\n    x[i] = 0.0").funcs[0].body
>>> whole_groups(loop, 4)
(max(0, n - 2)//4)*4 + 2
"""

from __future__ import annotations

from smelt.loop import ir
from smelt.loop.env import Env, read, types_in
from smelt.loop.walk import Body, Names, fresh, replace_loop
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import replace
from smelt.types import expr
from smelt.types.expr import Index


def whole_groups(loop: ir.For, count: int) -> Index:
    """Return where the last whole group of `count` iterations of step 1 ends."""
    size = expr.maximum(expr.sub(loop.high, loop.low), 0)
    return expr.add(loop.low, expr.mul(expr.floordiv(size, count), count))


def split_groups(func: ir.Func, var: str, count: int) -> tuple[ir.Func, str]:
    """Cut a loop behind its last whole group of iterations; return the first part's variable."""
    env, names = types_in(func), Names(func)
    whole = var

    def change(loop: ir.For) -> Body:
        nonlocal whole
        if (mid := whole_groups(loop, count)) == loop.high:
            return (loop,)
        first = copy_loop(replace(loop, high=mid), names)
        whole = first.var
        return first, replace(loop, low=mid, carry=continued(loop, first, env))

    return replace_loop(func, var, change), whole


def halves(vector: ir.Value, lanes: int, combine: str) -> ir.Value:
    """Combine the halves of a vector of twice as many lanes."""
    tables = tuple(range(lanes)), tuple(range(lanes, 2 * lanes))
    parts = [ir.Shuffle((vector,), "permute", table) for table in tables]
    return ir.apply(COMBINES[combine].scalar, *parts)


def copy_loop(loop: ir.For, names: Names, *, last: bool = False) -> ir.For:
    """Copy a loop with new names; the last copy keeps the names of carries."""
    keep = [n for c in loop.carry for n in (c.name, c.position)] if last else []
    (copy,) = fresh([loop], names, keep=keep)
    assert isinstance(copy, ir.For)
    return copy


def continued(loop: ir.For, before: ir.For, env: Env) -> tuple[ir.Carry, ...]:
    """Return the carries of a loop, starting from where those of a copy ended."""
    out: list[ir.Carry] = []
    for c, b in zip(loop.carry, before.carry, strict=True):
        env.values[b.name] = env.values[c.name]
        if c.start is None:
            out.append(replace(c, init=read(b.name, env)))
        else:
            env.values[b.position] = env.values[c.position]
            out.append(replace(c, init=read(b.name, env), start=read(b.position, env)))
    return tuple(out)
