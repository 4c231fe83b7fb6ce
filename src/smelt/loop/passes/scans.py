"""Find the carries of a loop that its iterations combine with their elements: scans.

>>> from smelt.loop.text import parse
>>> module = parse('''
... func f(x: f32[n], y: out f32[n]; n)
...   for i in 0 .. n with s = 0.0
...     v = s + x[i]
...     y[i] = v
...     s' = v
... ''')
>>> [(r.carries, r.combine, r.ends) for r in scans(module.funcs[0].body[0])]
[(('s',), 'sum', ('v',))]

Two carries are a sum of doubles and the sum of its rounding errors (`smelt.loop.steps.two_sum`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from smelt.errors import LoopPassError
from smelt.loop import ir
from smelt.loop.steps import two_sum
from smelt.loop.walk import names_in, statements, values
from smelt.ops.combine import COMBINES
from smelt.python.dataclass import dataclass
from smelt.types import expr

_COMBINE_OF = {row.scalar: row.name for row in COMBINES.values() if not row.positional}


@dataclass(frozen=True, slots=True)
class Scan:
    """Carries of one state, combined with an element.

    `lets` are the names that this binds in turn, `ends` the names of the carries' next values.
    """

    carries: tuple[str, ...]
    combine: str
    element: ir.Value
    lets: tuple[str, ...]
    ends: tuple[str, ...]


def scans(loop: ir.For) -> list[Scan]:
    """Return what a loop's carries have next, but for folds.

    Raises LoopPassError if the loop carries anything else.
    """
    nexts = {s.name: _name(s.value) for s in loop.body if isinstance(s, ir.Next)}
    lets = [s for s in loop.body if isinstance(s, ir.Let)]
    out: list[Scan] = []
    for c in loop.carry:
        if c.combine or any(c.name in r.carries for r in out):
            continue
        scan = _sum_with_errors(c.name, lets, nexts) or _plain(c.name, lets, nexts)
        if scan is None:
            _refuse(loop, c.name)
        out.append(scan)
    steps = {name for r in out for name in r.lets}
    carried = {name for r in out for name in r.carries}
    if any(carried & _read(s) for s in statements(loop.body) if _let_name(s) not in steps):
        raise LoopPassError(f"the loop over {loop.var} reads what it carries more than once")
    return out


def _plain(name: str, lets: Sequence[ir.Let], nexts: Mapping[str, str]) -> Scan | None:
    """Return the scan of one carry: a carry combined with an element."""
    value = next((s.value for s in lets if s.name == nexts[name]), None)
    if not isinstance(value, ir.Apply) or value.op not in _COMBINE_OF:
        return None
    carried, element = value.args
    if _name(carried) != name:
        carried, element = element, carried
    if _name(carried) != name or name in names_in(element):
        return None
    return Scan((name,), _COMBINE_OF[value.op], element, (nexts[name],), (nexts[name],))


def _sum_with_errors(name: str, lets: Sequence[ir.Let], nexts: Mapping[str, str]) -> Scan | None:
    """Return the scan of a sum and its errors: the statements of a step, one after the other."""
    at = next((k for k, s in enumerate(lets) if _name(s.value) == name), len(lets))
    step = lets[at : at + 4]
    error = next((c for c, end in nexts.items() if step and end == step[-1].name), "")
    total = step[1].value if len(step) == 4 else None
    if error and isinstance(total, ir.Apply) and total.op == "add":
        rest, element = iter(step), total.args[1]
        ends = two_sum(element, ir.Ref(name), ir.Ref(error), lambda v: _bound_to(next(rest), v))
        names = _name(ends[0]), _name(ends[1])
        if names == (nexts[name], nexts[error]):
            return Scan((name, error), "sum", element, tuple(s.name for s in step), names)
    return None


def _bound_to(s: ir.Let, value: ir.Value) -> ir.Value:
    """Return the name that a statement gives a value; of another value nothing has it."""
    return ir.Ref(s.name if s.value == value else "")


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
