"""Run another nest's iterations inside of those of a nest, under a condition.

>>> from smelt.loop.text import parse, text
>>> module = parse('''
... func f(x: f32[n*m], e: f32[n*m], s: f32[n], y: out f32[n*m]; n, m; from, pending)
...   each i in 0 .. n
...     each j in 0 .. m with a = sum 0.0
...       a <- x[i*m + j]
...   each k in from .. from + n
...     r = s[k - from]
...     each l in 0 .. m
...       y[k*m + l] = e[k*m + l] / r
... ''')
>>> func = module.funcs[0]
>>> condition = ir.Apply("gt", (ir.position(ir.number("pending")), ir.position(0)))
>>> func = fuse_if(with_func_body(func, func.body[:1]), func.body[1:], condition)
>>> print(text(Module("f", (func,))))
func f(x: f32[m*n], e: f32[m*n], s: f32[n], y: out f32[m*n]; n, m; from, pending)
  each i in 0 .. n
    r = s[i]
    each j in 0 .. m with a = sum 0.0
      a <- x[m*i + j]
      if pending > 0
        y[m*i + m*from + j] = e[m*i + m*from + j] / r

Rows that are computed leave memory idle, and rows that are stored wait for it: those of the task
before are stored meanwhile (software pipelining).
"""

from __future__ import annotations

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.ir import Module
from smelt.loop.walk import Body, substitute, with_body, with_func_body
from smelt.types.expr import add, sub

__all__ = ["Module", "fuse_if"]


def fuse_if(func: ir.Func, other: Body, condition: ir.Value, after: int = 0) -> ir.Func:
    """Run other loops, of the same lengths, inside of a function's where a condition holds.

    Their innermost statements stand behind the first `after` ones of these (0: all), of which index
    expressions do not count. What is computed before their innermost loop always is. Raises
    LoopPassError if loops differ.
    """

    def fused(body: Body, other: Body) -> Body:
        loops = [[s for s in part if isinstance(s, ir.For)] for part in (body, other)]
        if not any(loops):
            counted = [k for k, s in enumerate(body, 1) if not _is_index(s)]
            at = counted[after - 1]
            return (*body[:at], ir.If(condition, other), *body[at:])
        if [len(x) for x in loops] != [1, 1] or not isinstance(other[-1], ir.For):
            raise LoopPassError("only nests of one loop inside of another are fused")
        (host,), (loop,) = loops
        if host.kind != "each" or loop.kind != "each" or host.step != loop.step:
            raise LoopPassError(f"the loops over {host.var} and {loop.var} differ")
        at = add(loop.low, sub(ir.variable(host), host.low))
        inner = with_body(host, fused(host.body, substitute(loop.body, {loop.var: at})))
        return (*other[:-1], *(inner if s is host else s for s in body))

    return with_func_body(func, fused(func.body, other))


def _is_index(s: ir.Statement) -> bool:
    return isinstance(s, ir.Let) and ir.as_index(s.value) is not None
