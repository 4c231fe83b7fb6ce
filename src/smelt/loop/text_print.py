"""Print loops as text that `smelt.loop.text_parse` reads back to an equal module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from smelt.kernel.text_print import LEVELS, UNARY, fact_text
from smelt.loop import ir
from smelt.ops.scalar import SCALARS
from smelt.types import expr
from smelt.types.dtype import bool_, f32, number_text
from smelt.types.expr import Index

_ATOM: Final = LEVELS["atom"]
_PREFIX: Final = {name: symbol for symbol, name in UNARY.items()}
_INFIX: Final = {row.name: row.infix for row in SCALARS.values() if row.infix in LEVELS}


def text(module: ir.Module) -> str:
    """Return the module as text, without a final newline."""
    lines: list[str] = []
    if module.facts or module.name != module.funcs[-1].name:
        lines.append(f"module {module.name}")
        lines += [f"  require {fact_text(fact)}" for fact in module.facts]
    for func in module.funcs:
        lines += [head_text(func), *body_lines(func.body)]
    return "\n".join(lines)


def head_text(func: ir.Func) -> str:
    """Return the first line of a function."""
    lists = [map(param_text, func.params), func.sizes, func.numbers]
    if func.kind == "tile":
        del lists[1]
    parts = [", ".join(names) for names in lists]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return f"{func.kind} {func.name}({'; '.join(parts)})"


def param_text(param: ir.Param) -> str:
    """Return the text of a parameter: `y: out f32[n]`."""
    elements = "" if param.elements is None else expr.text(param.elements)
    aligned = f" align {param.alignment}" if param.alignment > 1 else ""
    written = "out " if param.written else ""
    return f"{param.name}: {written}{param.dtype.name}[{elements}]{aligned}"


def body_lines(body: Iterable[ir.Statement], indent: str = "  ") -> Iterator[str]:
    """Yield the lines of statements."""
    for s in body:
        yield indent + statement_text(s)
        if isinstance(s, ir.For):
            yield from body_lines(s.body, indent + "  ")
        elif isinstance(s, ir.If):
            yield from body_lines(s.then, indent + "  ")
            if s.other:
                yield f"{indent}else"
                yield from body_lines(s.other, indent + "  ")


def statement_text(s: ir.Statement) -> str:
    """Return the text of one statement, of a loop only its first line."""
    match s:
        case ir.Let(name, value):
            return f"{name} = {value_text(value)}"
        case ir.Fold(name, value, position):
            at = "" if position is None else f" @ {value_text(position)}"
            return f"{name} <- {value_text(value)}{at}"
        case ir.Next(name, value):
            return f"{name}' = {value_text(value)}"
        case ir.Store(place, value, join, nontemporal):
            past = "nt " if nontemporal == ir.CACHE_LINE else f"nt {nontemporal} "
            word = f"{join} " if join else past if nontemporal else ""
            return f"{place_text(place)} {word}= {value_text(value)}"
        case ir.For():
            return _for_text(s)
        case ir.If(cond, results=results):
            held = f" with {', '.join(results)}" if results else ""
            return f"if {value_text(cond)}{held}"
        case ir.Alloc(name, dtype, elements, space, pad):
            padded = f" pad {pad}" if pad else ""
            return f"alloc {name}: {dtype.name}[{expr.text(elements)}]{padded} in {space}"
        case ir.Prefetch(place, level, write):
            where = f" level {level}" if level > 1 else ""
            return f"prefetch {place_text(place)}{where}{' for write' if write else ''}"
        case ir.Poll():
            return "poll"
        case ir.Call(func, windows, numbers):
            starts = ", ".join(f"{w.buffer} @ {_at_text(w.at)}" for w in windows)
            last = f"; {', '.join(map(expr.text, numbers))}" if numbers else ""
            return f"call {func}({starts}{last})"


def _for_text(loop: ir.For) -> str:
    by = f" by {expr.text(loop.step)}" if loop.step != 1 else ""
    held = ", ".join(map(carry_text, loop.carry))
    carried = f" with {held}" if held else ""
    low, high = expr.text(loop.low), expr.text(loop.high)
    return f"{loop.kind} {loop.var} in {low} .. {high}{by}{carried}"


def carry_text(c: ir.Carry) -> str:
    """Return the text of a carry: `s = sum:f64 0.0`."""
    mode = f":{c.mode}" if c.mode != "own" else ""
    combine = f"{c.combine}{mode} " if c.combine else ""
    name = f"{c.name} @ {c.position}" if c.position else c.name
    start = f" from {value_text(c.start)}" if c.start is not None else ""
    return f"{name} = {combine}{value_text(c.init)}{start}"


def place_text(place: ir.Place, other: ir.Const | None = None) -> str:
    """Return the text of a place: `x[i : 16 * 3 | mask : 0.0]`."""
    shown = f"{place.buffer}[{_at_text(place.at)}"
    if place.lanes > 1:
        shown += f" : {place.lanes}"
        if place.stride != 1:
            shown += f" * {_at(*_index(place.stride), _ATOM)}"
        if place.group:
            shown += f" with {', '.join(map(str, place.group))}"
    if place.mask is not None:
        shown += f" | {value_text(place.mask)}"
        if other is not None:
            shown += f" : {_const(other)[0]}"
    return shown + "]"


def _at_text(at: Index | ir.Value) -> str:
    piece = _index(at) if isinstance(at, int | expr.Expr) else _value(at)
    return _at(*piece, LEVELS["|"] + 1)


def value_text(value: ir.Value) -> str:
    """Return the text of a value."""
    return _value(value)[0]


def _at(shown: str, level: int, wanted: int) -> str:
    """Return a text for a context that needs a binding strength."""
    return shown if level >= wanted else f"({shown})"


def _index(e: Index) -> tuple[str, int]:
    shown = expr.text(e)
    terms = expr.terms_of(e)
    if len(terms) > 1 or shown.startswith("-"):
        return shown, LEVELS["+"]
    (monomial, factor) = terms[0] if terms else ((), 0)
    if not monomial or (len(monomial) == 1 and factor == 1 and monomial[0].kind not in "//%"):
        return shown, _ATOM
    return shown, LEVELS["*"]


def _const(c: ir.Const) -> tuple[str, int]:
    if c.dtype == bool_:
        return str(c.value).lower(), _ATOM
    shown = number_text(c.value)
    if c.dtype != f32:
        return f"{c.dtype.name}({shown})", _ATOM
    return shown, LEVELS["unary"] if shown.startswith("-") else _ATOM


def _value(v: ir.Value) -> tuple[str, int]:
    """Return the text of a value and its binding strength."""
    match v:
        case ir.Const():
            return _const(v)
        case ir.IndexValue(index, dtype):
            if ir.as_index(v) is None:
                return f"{dtype.name}({expr.text(index)})", _ATOM
            return _index(index)
        case ir.Ref(name):
            return name, _ATOM
        case ir.Load(place, other):
            return place_text(place, other), _ATOM
        case ir.Apply(op, args):
            return _apply(op, args)
        case ir.Cast(arg, dtype):
            shown = value_text(arg)
            literal = isinstance(arg, ir.Const) and arg.dtype == f32
            return f"{dtype.name}({f'f32({shown})' if literal else shown})", _ATOM
        case ir.Lane(lanes):
            return f"lane({lanes})", _ATOM
        case ir.LaneIndex(index, start, lanes, align):
            aligned = f" align {align}" if align > 1 else ""
            return f"lanes({expr.text(start)}, {lanes}{aligned}; {expr.text(index)})", _ATOM
        case ir.Prefix(count, lanes):
            return f"prefix({expr.text(count)}, {lanes})", _ATOM
        case ir.Splat(arg, lanes):
            return f"splat({value_text(arg)}, {lanes})", _ATOM
        case ir.Across(combine, args, scan):
            word = "scan" if scan else "across"
            return f"{word}({', '.join([combine, *map(value_text, args)])})", _ATOM
        case ir.Shuffle(args, pattern, table):
            last = f"; {', '.join(map(str, table))}" if table else ""
            return f"shuffle({', '.join([pattern, *map(value_text, args)])}{last})", _ATOM


def _apply(op: str, args: tuple[ir.Value, ...]) -> tuple[str, int]:
    symbol, mark = _INFIX.get(op), "!" if ir.is_marked(op, args) else ""
    if symbol is not None and len(args) == 2:
        level = LEVELS[symbol]
        tight = level + (level == LEVELS["<"])
        left, right = _at(*_value(args[0]), tight), _at(*_value(args[1]), level + 1)
        return f"{left} {symbol}{mark} {right}", level
    if op in _PREFIX and not isinstance(args[0], ir.Const):
        level = LEVELS["unary"]
        return _PREFIX[op] + mark + _at(*_value(args[0]), level + 1), level
    return f"{op}{mark}({', '.join(map(value_text, args))})", _ATOM
