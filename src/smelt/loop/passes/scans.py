"""Find the carries of a loop that its iterations combine with their elements: scans.

>>> from smelt.loop.text import parse
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   for i in 0 .. n with s = 0.0
...     v = s + x[i]
...     y[i] = v
...     s' = v
... ''')
>>> [(name, r.carry, r.combine) for name, r in scans(module.funcs[0].body[0]).items()]
[('v', 's', 'sum')]
"""

from __future__ import annotations

from typing import NoReturn

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.walk import names_in, statements, values
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass
from smelt.types import expr

_COMBINE_OF = {row.scalar: row.name for row in COMBINES.values() if not row.positional}


@dataclass(frozen=True, slots=True)
class Scan:
    """Value that a carry has next: the carry, combined with an element."""

    carry: str
    combine: str
    element: ir.Value


def scans(loop: ir.For) -> dict[str, Scan]:
    """Return what a loop's carries have next, by the names of these values.

    Raises LoopPassError if the loop carries anything else.
    """
    nexts = {s.name: s.value for s in loop.body if isinstance(s, ir.Next)}
    lets = {s.name: s.value for s in loop.body if isinstance(s, ir.Let)}
    out: dict[str, Scan] = {}
    for c in loop.carry:
        name = "" if c.combine else _name(nexts[c.name])
        value = lets.get(name)
        if not isinstance(value, ir.Apply) or value.op not in _COMBINE_OF:
            _refuse(loop, c.name)
        carried, element = value.args
        if _name(carried) != c.name:
            carried, element = element, carried
        if _name(carried) != c.name or c.name in names_in(element):
            _refuse(loop, c.name)
        out[name] = Scan(c.name, _COMBINE_OF[value.op], element)
    carried = {r.carry for r in out.values()}
    if any(carried & _read(s) for s in statements(loop.body) if _let_name(s) not in out):
        raise LoopPassError(f"the loop over {loop.var} reads what it carries more than once")
    return out


def _refuse(loop: ir.For, name: str) -> NoReturn:
    raise LoopPassError(f"the loop over {loop.var} carries {name}, which is not a scan")


def _name(v: ir.Value) -> str:
    """Return the name that a value is; empty for others."""
    match v:
        case ir.Ref(name):
            return name
        case ir.IndexValue(expr.Expr(terms=(((atom,), 1),))):
            return atom.name
        case _:
            return ""


def _let_name(s: ir.Statement) -> str:
    return s.name if isinstance(s, ir.Let) else ""


def _read(s: ir.Statement) -> set[str]:
    return {n for v in values(s) for n in names_in(v)}
