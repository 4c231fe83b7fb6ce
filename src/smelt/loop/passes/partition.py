"""Cut a loop where a condition flips, or branch on it around the loop.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(a: f32[n], b: f32[n], y: out f32[n]; n; k)
...   each i in 0 .. n
...     y[i] = select(i < k, a[i], b[i])
... ''')
>>> (func,) = module.funcs
>>> (cond,) = conditions(func.body[0])
>>> print(text(Module("f", (partition(func, "i", cond),))))
func f(a: f32[n], b: f32[n], y: out f32[n]; n; k)
  each i_1 in 0 .. min(max(0, k), n)
    y[i_1] = a[i_1]
  each i_2 in min(max(0, k), n) .. n
    y[i_2] = b[i_2]

The order of iterations is kept, and so are the bits of folds. With `lanes`, cuts are rounded to
whole vectors from the loop's start, so that every position keeps its lane; the vector in which the
condition flips has a loop of its own, which still tests it.
"""

from __future__ import annotations

from dataclasses import replace

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.env import Env, types_in
from smelt.loop.ir import Module
from smelt.loop.passes.decide import decide
from smelt.loop.passes.remainder import continued, copy_loop, whole_groups
from smelt.loop.walk import Body, Names, bound, names_in, replace_loop, statements, values, visit
from smelt.types import expr
from smelt.types.affine import coefficient
from smelt.types.expr import Index

__all__ = ["Module", "conditions", "find_cut", "partition", "unswitch"]

_ORDERED = {"lt": (True, 0), "le": (True, 1), "gt": (False, 1), "ge": (False, 0)}
"""For a rising a - b: whether a comparison holds first, and where from a = b on it flips."""
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def conditions(loop: ir.For) -> tuple[ir.Value, ...]:
    """Return comparisons of index expressions that select, mask or branch inside a loop."""
    out: dict[ir.Value, None] = {}
    for s in statements(loop.body):
        for v in (x for root in values(s) for x in visit(root)):
            if isinstance(v, ir.Apply) and v.op in (*_ORDERED, "eq", "ne"):
                if all(ir.as_index(a) is not None for a in v.args):
                    out[v] = None
    return tuple(out)


def partition(func: ir.Func, var: str, cond: ir.Value, lanes: int = 1) -> ir.Func:
    """Cut the loop over `var` where an affine comparison flips.

    Raises LoopPassError unless the coefficient of the variable is 1 or -1, and the step is 1.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        cut, first = find_cut(loop, cond)
        end = expr.maximum(loop.high, loop.low)
        cuts = [expr.minimum(expr.maximum(cut, loop.low), end)]
        sides: list[bool | None] = [first, not first]
        if lanes > 1:
            (exact,) = cuts
            groups = [replace(loop, high=e) for e in (exact, expr.add(exact, lanes - 1))]
            below, above = (whole_groups(g, lanes) for g in groups)
            cuts = [below, expr.minimum(above, end)]
            sides = [first, None, not first]
        return _parts(loop, cond, cuts, sides, env, names)

    return replace_loop(func, var, change)


def find_cut(loop: ir.For, cond: ir.Value) -> tuple[Index, bool]:
    """Return where a condition flips, and what it is before."""
    if not isinstance(cond, ir.Apply) or cond.op not in _ORDERED:
        raise LoopPassError("a loop is cut at a comparison of order")
    left, right = map(ir.as_index, cond.args)
    if left is None or right is None or loop.step != 1 or loop.kind == "chunk":
        raise LoopPassError(f"the loop over {loop.var} is not cut at values, nor in steps")
    gap, op = expr.sub(left, right), cond.op
    slope = coefficient(gap, loop.var)
    if slope not in (1, -1) or _names(gap) & {*bound(loop.body)}:
        raise LoopPassError(f"{expr.text(gap)} does not rise or fall by 1 along {loop.var}")
    if slope == -1:
        gap, op = expr.mul(gap, -1), _MIRRORED[op]
    first, shift = _ORDERED[op]
    return expr.sub(expr.add(ir.variable(loop), shift), gap), first


def _names(e: Index) -> set[str]:
    return {a.name for a in expr.atoms(e)}


def _parts(
    loop: ir.For,
    cond: ir.Value,
    cuts: list[Index],
    sides: list[bool | None],
    env: Env,
    names: Names,
) -> Body:
    """Return copies of a loop for the ranges between cuts, with the condition decided."""
    out: list[ir.Statement] = []
    carry = loop.carry
    for k, side in enumerate(sides):
        low = cuts[k - 1] if k else loop.low
        high = cuts[k] if k < len(cuts) else loop.high
        body = loop.body if side is None else decide(loop.body, cond, env, value=side)
        part = replace(loop, low=low, high=high, carry=carry, body=body)
        part = copy_loop(part, names, last=k == len(sides) - 1)
        out.append(part)
        carry = continued(loop, part, env)
    return tuple(out)


def unswitch(func: ir.Func, var: str, cond: ir.Value) -> ir.Func:
    """Branch on a condition around the loop over `var`, which it does not depend on.

    Raises LoopPassError if the condition reads what the loop binds, or an array.
    """
    env, names = types_in(func), Names(func)

    def change(loop: ir.For) -> Body:
        inner, arrays = {loop.var, *bound((loop,))}, set(env.arrays)
        if loop.kind == "chunk" or names_in(cond) & (inner | arrays):
            raise LoopPassError(f"the condition varies along {loop.var}")
        results = tuple(n for c in loop.carry for n in (c.name, c.position) if n)
        sides: list[Body] = []
        for side in (True, False):
            part = replace(loop, body=decide(loop.body, cond, env, value=side))
            part = copy_loop(part, names)
            pairs = zip(continued(loop, part, env), loop.carry, strict=True)
            nexts = [ir.Next(c.name, new.init) for new, c in pairs]
            pairs = zip(continued(loop, part, env), loop.carry, strict=True)
            nexts += [ir.Next(c.position, new.start) for new, c in pairs if new.start is not None]
            sides.append((part, *nexts))
        return (ir.If(cond, sides[0], sides[1], results),)

    return replace_loop(func, var, change)
