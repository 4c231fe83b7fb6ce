"""Loops that continue one another: whole groups of iterations first, then the remainder.

>>> from smelt.loop.text import parse
>>> (loop,) = parse("func f(x: out f32[n]; n)\\n  each i in 2 .. n\\n    x[i] = 0.0").funcs[0].body
>>> whole_groups(loop, 4)
(max(0, n - 2)//4)*4 + 2
"""

from __future__ import annotations

from dataclasses import replace

from smelt.loop import ir
from smelt.loop.env import Env, read
from smelt.loop.walk import Names, fresh
from smelt.ops.combine import COMBINES
from smelt.types import expr
from smelt.types.expr import Index


def whole_groups(loop: ir.For, count: int) -> Index:
    """Return where the last whole group of `count` iterations of step 1 ends."""
    size = expr.maximum(expr.sub(loop.high, loop.low), 0)
    return expr.add(loop.low, expr.mul(expr.floordiv(size, count), count))


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
