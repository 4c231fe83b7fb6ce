"""Print kernels as text that `smelt.kernel.text_parse` reads back to an equal kernel.

The parser takes the grammar from here: levels of operators, keywords, types of bare literals.

print(text(kernel))
kernel log_relu(x: f32[r,c], b: f32[c]) -> y: f32[r,c]
  grid r, c/4096
  y[r,c] = log(max(x[r,c] + b[c], 0))

>>> operand_types("lt", ("index", i64)), operand_types("add", ("number", None, "number"))
((i64, i64), None)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from smelt.errors import SmeltError
from smelt.kernel import ir, walk
from smelt.kernel.env import Env, axes_of, dtype_of
from smelt.kernel.ir import NO_EXPONENT, Const, Extreme, IndexValue, Value
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.dtype import DType, bool_, f32, i32, i64, number_text
from smelt.types.expr import Expr, Index
from smelt.types.tensor import shape_text

_LEVELS: Final = (
    ("if",),
    ("else",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("|",),
    ("^",),
    ("&",),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "//", "%"),
    ("unary",),
    ("atom",),
)
LEVELS: Final = MappingProxyType(
    {symbol: level for level, symbols in enumerate(_LEVELS) for symbol in symbols}
)
"""Binding strength by symbol, loosest first; as in Python, but comparisons do not chain."""

BINARY: Final = MappingProxyType(
    {row.infix: row.name for row in SCALARS.values() if row.arity == 2 and row.infix in LEVELS}
)
"""Infix scalar operators by symbol."""

UNARY: Final = MappingProxyType({"-": "neg", "~": "not"})
"""Prefix scalar operators by symbol."""

RENAME: Final = "rename"
"""The function that gives a value another axis."""
RESERVED: Final = frozenset(
    {"if", "else", "where", "over", "along", "as", "in", "of", "from", "to", "with", "for", "each"}
) | {"seeing", "inf", "nan", "none", "true", "false"}
"""Words that cannot name an axis, a position, a value or a state."""

Flexible: TypeAlias = Literal["number", "index"]
OperandType: TypeAlias = DType | Flexible | None
"""Knowledge of an operand's type: the type, the kind of untyped literal, or None."""


def flexible(value: Value) -> Flexible | None:
    """Return the literal kind of a value that takes its type from context, else None."""
    if isinstance(value, Const):
        is_keyword = value.dtype == i32 and value.value == NO_EXPONENT
        return None if value.dtype == bool_ or is_keyword else "number"
    return "index" if isinstance(value, IndexValue) else None


def bare_type(kind: Flexible, expected: DType | None) -> DType:
    """Return the type of an untyped number or index where `expected` is wanted."""
    return expected or (f32 if kind == "number" else i64)


def operand_types(op: str, operands: tuple[OperandType, ...]) -> tuple[DType | None, ...] | None:
    """Infer the types of a scalar operator's operands, untyped ones included.

    Returns None if there is no such operator with that many operands.
    """
    row = SCALARS.get(op)
    if row is None or row.arity != len(operands):
        return None
    lead = row.rule.accepts[row.rule.lead]
    shares_lead = [
        kinds == lead and place not in row.rule.free for place, kinds in enumerate(row.rule.accepts)
    ]
    shared: DType | None = None
    if any(k is None for k, same in zip(operands, shares_lead, strict=True) if same):
        return tuple(k if isinstance(k, DType) else None for k in operands)
    for k, same in zip(operands, shares_lead, strict=True):
        if same and isinstance(k, DType):
            shared = k
            break
    if shared is None:
        kinds = {k for k, same in zip(operands, shares_lead, strict=True) if same}
        shared = _default_type("index" in kinds, lead)
    fixed = dict(row.rule.fixed)
    return tuple(
        k
        if isinstance(k, DType)
        else shared
        if same
        else fixed.get(place) or _default_type(k == "index", row.rule.accepts[place])
        for place, (k, same) in enumerate(zip(operands, shares_lead, strict=True))
    )


def _default_type(index: bool, accepts: Collection[str]) -> DType:
    """Return the type of untyped operands that no other operand determines."""
    if "int" in accepts and (index or "float" not in accepts):
        return i64 if index else i32
    return f32 if "float" in accepts else bool_


def plain_index(value: IndexValue) -> bool:
    """Return whether the index is a single axis, size or position, printed without `index()`."""
    e = value.index
    if not isinstance(e, Expr) or len(e.terms) != 1:
        return False
    (atoms, factor) = e.terms[0]
    return factor == 1 and len(atoms) == 1 and atoms[0].kind in ("axis", "size", "value")


EXTREMES: Final = MappingProxyType(
    {"first": (True, False), "last": (True, True), "least": (False, False), "most": (False, True)}
)
"""Keywords for block extremes: (is the argument an axis, is it the largest)."""


def extreme_word(value: Extreme) -> str:
    """Return the keyword for a block extreme."""
    arg = value.arg
    atoms = (
        arg.index.terms[0][0]
        if isinstance(arg, IndexValue) and plain_index(arg) and isinstance(arg.index, Expr)
        else ()
    )
    of_axis = any(a.kind == "axis" for a in atoms)
    return next(w for w, key in EXTREMES.items() if key == (of_axis, value.largest))


_NAME = re.compile(r"[^\W\d]\w*")


def words_in(text: str) -> list[str]:
    """Return the identifiers in a text in order of first occurrence, without comments."""
    return list(dict.fromkeys(_NAME.findall(re.sub(r"#[^\n]*", "", text))))


# ---- printer ------------------------------------------------------------------------------------

WIDTH: Final = 100
"""Longest line of printed text, in columns."""
_PREFIX: Final = {name: symbol for symbol, name in UNARY.items()}


def text(kernel: ir.Kernel) -> str:
    """Return the kernel as text, without a final newline."""
    return _Printer(kernel).kernel_text()


def statement_text(statement: ir.Statement, kernel: ir.Kernel) -> str:
    """Return the text of one statement; of a stream only its first line."""
    printer = _Printer(kernel)
    printer.env = Env.after(kernel) if _well_formed(kernel) else printer.env
    return printer.head(statement)


def value_text(value: ir.Value, kernel: ir.Kernel) -> str:
    """Return the text of a value of a kernel."""
    printer = _Printer(kernel)
    printer.env = Env.after(kernel) if _well_formed(kernel) else printer.env
    return printer.value(value).text


def index_text(index: Iterable[Index]) -> str:
    """Return index expressions as they appear in brackets: `r,c` or `oy*2 + ky, c`."""
    parts = [_index(e) for e in index]
    return (", " if any(" " in p or "*" in p for p in parts) else ",").join(parts)


def _index(e: Index) -> str:
    """Print an index expression, starting with a positive term if there is one."""
    if not isinstance(e, expr.Expr) or e.terms[0][1] > 0:
        return expr.text(e, index=True)
    signs = sorted(e.terms, key=lambda term: term[1] < 0)
    first, *rest = (expr.text(_term(m, abs(c)), index=True) for m, c in signs)
    out = first if signs[0][1] > 0 else f"-{first}"
    return out + "".join(
        f" {'-' if c < 0 else '+'} {t}" for (_, c), t in zip(signs[1:], rest, strict=True)
    )


def _term(monomial: expr.Monomial, factor: int) -> Index:
    return expr.Expr(((monomial, factor),)) if monomial else factor


def param_text(param: ir.Param) -> str:
    """Return the text of a parameter: `x: f32[r,c] strides(?,1)`."""
    out = f"{param.name}: {param.dtype.name}[{shape_text(param.shape)}]"
    if param.strides is not None:
        out += f" strides({','.join('?' if s is None else str(s) for s in param.strides)})"
    return out


def _well_formed(kernel: ir.Kernel) -> bool:
    try:
        Env.after(kernel)
    except SmeltError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Piece:
    """Printed value: text, binding strength, and its type if known."""

    text: str
    level: int
    dtype: DType | None

    def at(self, level: int) -> str:
        """Return the text for a context that needs binding strength `level` or more."""
        return self.text if self.level >= level else f"({self.text})"


class _Printer:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.env = Env.of(kernel)
        self.extents = {a.name: a.extent for a in kernel.axes}
        self.order = {a.name: place for place, a in enumerate(kernel.axes)}
        self.fixed: frozenset[str] = frozenset()
        self.inline = True
        self.printed_axes: set[str] = set()
        self.streams = any(isinstance(s, ir.Stream) for s in kernel.body)
        self.second_pass = False
        self.lines: dict[int, str] = {}
        """Cached text of statements other than streams, by object id.

        It does not depend on the list of axes.
        """

    # ---- kernel --------------------------------------------------------------------------------

    def kernel_text(self) -> str:
        body = self._body()
        used = walk.axes_used(self.kernel)
        names = [a for a in words_in("\n".join(body)) if a in used]
        listed = names != list(self.extents) or not all(map(self._extent_is_implied, self.extents))
        lines = [*self._header(), *(f"  # {c}" for c in self.kernel.comments)]
        if listed:
            self.inline, self.second_pass = False, True
            shown = (a if self._has_default_extent(a) else self._axis_in(a) for a in self.extents)
            lines.append(f"  axis {', '.join(shown)}")
            body = self._body()
        lines.extend(f"  require {fact_text(fact)}" for fact in self.kernel.facts)
        return "\n".join(lines + body)

    def _extent_is_implied(self, axis: str) -> bool:
        """Return whether the parser knows the extent of an axis without an `axis` line."""
        params = (*self.kernel.inputs, *self.kernel.outputs)
        if not self._has_default_extent(axis):
            return axis in self.printed_axes
        return any(axis in expr.sizes_of(d) for p in params for d in p.shape)

    def _has_default_extent(self, axis: str) -> bool:
        return self.extents[axis] == expr.size(axis)

    def _axis_in(self, axis: str) -> str:
        return f"{axis} in {expr.text(self.extents[axis])}"

    def _header(self) -> list[str]:
        start = f"kernel {self.kernel.name}("
        inputs = _param_texts(self.kernel.inputs)
        input_set = set(self.kernel.inputs)
        outputs = _param_texts(self.kernel.outputs, input_set)
        line = f"{start}{', '.join(inputs)}) -> {', '.join(outputs)}"
        if len(line) <= WIDTH:
            return [line]
        first = [*(f"{p}," for p in inputs[:-1]), *(f"{p}" for p in inputs[-1:])]
        lines = [start, *_fill_lines(first), f") -> {', '.join(outputs)}"]
        if len(lines[-1]) > WIDTH:
            last = [*(f"{p}," for p in outputs[:-1]), outputs[-1]]
            lines[-1:] = [") -> (", *_fill_lines(last), ")"]
        return lines

    def _body(self) -> list[str]:
        self.env, self.printed_axes = Env.of(self.kernel), set()
        self.fixed = frozenset()
        lines: list[str] = []
        if self.kernel.grid:
            lines.append(f"  grid {', '.join(self._grid_entry(e) for e in self.kernel.grid)}")
        self._statements(self.kernel.body, lines, 2)
        return lines

    def _grid_entry(self, entry: ir.Block | ir.Split | ir.Each) -> str:
        if isinstance(entry, ir.Each):
            return "each"
        if isinstance(entry, ir.Split):
            self.fixed |= {entry.name}
            return f"{entry.name} in split({entry.axis}, {expr.text(entry.parts)})"
        return self._block(entry)

    def _block(self, block: ir.Block) -> str:
        out = block.axis
        if block.axis not in self.printed_axes and block.axis in self.extents:
            if self.inline and not self._has_default_extent(block.axis):
                extent = expr.text(self.extents[block.axis])
                out = f"{block.axis} in {f'({extent})' if ' ' in extent else extent}"
            self.printed_axes.add(block.axis)
        if block.size == 1:
            self.fixed |= {block.axis}
        else:
            out += "/all" if block.size is None else f"/{block.size}"
        if block.part is not None:
            out += f" of {block.part}"
        return out + self._bounds(block)

    def _bounds(self, block: ir.Block) -> str:
        """Print where a block starts and stops."""
        ends = (("from", block.start), ("to", block.stop))
        return "".join(f" {w} {self._bracketed(v)}" for w, v in ends if v is not None)

    # ---- statements ----------------------------------------------------------------------------

    def _statements(self, body: Iterable[ir.Statement], lines: list[str], depth: int) -> None:
        for s in body:
            outer = self.fixed
            line = None if isinstance(s, ir.Stream) else self.lines.get(id(s))
            if line is None:
                line = self.lines[id(s)] = self.head(s)
            lines.append(" " * depth + line)
            if self.streams or not self.second_pass:
                self._bind(s)
            if isinstance(s, ir.Stream):
                scope = self.env
                self.env = scope.child()
                self._statements(s.body, lines, depth + 2)
                self.env = scope
            self.fixed = outer

    def _bind(self, s: ir.Statement) -> None:
        with suppress(SmeltError):  # print malformed kernels too
            self.env.bind(s)

    def head(self, s: ir.Statement) -> str:
        """Return the first line of a statement."""
        match s:
            case ir.Let(name=name, value=ir.If(ir.Partial(cut), value, ir.Ref(old, False))) if (
                old == name
            ):
                return f"{name} = {self._bracketed(value)} if partial({self.value(cut).text})"
            case ir.Let(name=name, value=value):
                return f"{name} = {self.value(value).text}"
            case ir.Position(name=name, value=value, extent=extent):
                bound_text = _index(extent)
                return f"{name} = position({self.value(value).text}, {bound_text})"
            case ir.Update(state=name, value=value):
                bound = self.env.names.get(name)
                return f"{name}' = {self.value(value, bound.dtype if bound else None).text}"
            case ir.Store(param=name, index=index, value=value, where=where, join=join):
                param = self.env.params.get(name)
                shown = self.value(value, param.dtype.compute if param else None).text
                tail = "" if where is None else f" where {self.value(where).text}"
                how = f"{join}=" if join else "="
                return f"{name}[{index_text(index)}] {how} {shown}{tail}"
            case ir.Merge(part=part, states=states):
                return f"merge {part}: ({', '.join(states)})"
            case ir.Stream():
                return self._stream(s)

    def _stream(self, s: ir.Stream) -> str:
        out = f"stream {', '.join(self._block(b) for b in s.blocks)}"
        if s.where is not None:
            out += f" where {self._bracketed(s.where)}"
        if s.bounds:
            out += f" seeing {', '.join(b.axis + self._bounds(b) for b in s.bounds)}"
        if s.states:
            out += f" with {', '.join(self._state(x) for x in s.states)}"
        return out

    def _state(self, state: ir.State) -> str:
        out = f"{state.name} = {self._bracketed(state.init)}"
        return out if self._has_default_axes(state) else f"{out} [{','.join(state.axes)}]"

    def _has_default_axes(self, state: ir.State) -> bool:
        """Return whether the state's axes are those of its initial value."""
        try:
            axes = axes_of(state.init, self.env) - self.fixed
        except SmeltError:
            return False
        return state.axes == tuple(sorted(axes, key=lambda a: self.order.get(a, -1)))

    # ---- values --------------------------------------------------------------------------------

    def value(self, v: ir.Value, expected: DType | None = None) -> _Piece:
        """Print a value where untyped literals are read as `expected`."""
        kind = flexible(v)
        if kind is not None:
            assert isinstance(v, ir.Const | ir.IndexValue)
            return self._literal(v, typed=v.dtype != bare_type(kind, expected))
        match v:
            case ir.Const(value=number):
                shown = "none" if number == ir.NO_EXPONENT else "true" if number else "false"
                return _atom(shown, v.dtype)
            case ir.Load(param=name, index=index, other=other):
                return self._load(name, index, other)
            case ir.Apply():
                return self._apply(v)
            case ir.Cast(arg=arg, dtype=dtype):
                inner = self._typed(arg)
                return _atom(f"{dtype.name}({inner.text})", dtype.compute)
            case ir.Reduce(combine=name, arg=arg, over=over, dtype=dtype):
                return self._reduction(name, arg, "over", over, dtype)
            case ir.Scan(combine=name, arg=arg, along=along, dtype=dtype):
                return self._reduction(name, arg, "along", (along,), dtype)
            case ir.Rename(arg=arg, old=old, new=new):
                inner = self._typed(arg)
                return _atom(f"{RENAME}({inner.text}, {old} to {new})", inner.dtype)
            case ir.Dot():
                return self._dot(v)
            case ir.Ref(name=name, next=new):
                bound = (self.env.new if new else self.env.names).get(name)
                return _atom(f"{name}'" if new else name, bound.dtype if bound else None)
            case ir.If():
                return self._if(v, expected)
            case ir.Partial(condition=condition):
                return _atom(f"partial({self.value(condition).text})", self._dtype(v))
            case ir.Extreme(arg=arg):
                return _atom(f"{extreme_word(v)}({self.value(arg).text})", self._dtype(v))
            case _:
                raise AssertionError(f"{v} is not a value")

    def _dtype(self, v: ir.Value) -> DType | None:
        try:
            return dtype_of(v, self.env)
        except SmeltError:
            return None

    def _bracketed(self, v: ir.Value) -> str:
        """Print a value, with a conditional in brackets."""
        return self.value(v).at(LEVELS["if"] + 1)

    def _typed(self, v: ir.Value) -> _Piece:
        """Print a value, writing the type of a literal that would be misread."""
        if isinstance(v, ir.Const | ir.IndexValue) and flexible(v):
            return self._literal(v, typed=True)
        return self.value(v)

    def _literal(self, v: ir.Const | ir.IndexValue, *, typed: bool) -> _Piece:
        if isinstance(v, ir.Const):
            shown = _number_text(v)
            level = LEVELS["unary" if shown.startswith("-") else "atom"]
        else:
            shown = _index(v.index)
            shown = shown if plain_index(v) else f"index({shown})"
            level = LEVELS["atom"]
        if typed:
            return _atom(f"{v.dtype.name}({shown})", v.dtype)
        return _Piece(shown, level, v.dtype)

    def _load(self, name: str, index: tuple[Index, ...], other: ir.Const | None) -> _Piece:
        param = self.env.params.get(name)
        dtype = param.dtype.compute if param else None
        shown = f"{name}[{index_text(index)}]"
        if other is None:
            return _atom(shown, dtype)
        return _Piece(f"{shown} else {self.value(other, dtype).text}", LEVELS["else"], dtype)

    def _operands(self, op: str, args: tuple[ir.Value, ...]) -> list[_Piece]:
        """Print operands, writing types where the parser would infer another one."""
        pieces = [None if flexible(a) else self.value(a) for a in args]
        operand_dtypes: list[OperandType] = [
            p.dtype if p is not None else flexible(a) for a, p in zip(args, pieces, strict=True)
        ]
        while True:
            types = operand_types(op, tuple(operand_dtypes)) or (None,) * len(args)
            wrong = [
                place
                for place, (a, k) in enumerate(zip(args, operand_dtypes, strict=True))
                if isinstance(k, str)
                and isinstance(a, ir.Const | ir.IndexValue)
                and a.dtype != types[place]
            ]
            if not wrong:
                break
            for place in wrong:
                pieces[place] = self._typed(args[place])
                operand_dtypes[place] = self._dtype(args[place])
        return [
            p if p is not None else self.value(a, types[place])
            for place, (a, p) in enumerate(zip(args, pieces, strict=True))
        ]

    def _apply(self, v: ir.Apply) -> _Piece:
        row = SCALARS.get(v.op)
        pieces = self._operands(v.op, v.args)
        dtype = self._dtype(v)
        symbol = row.infix if row is not None else None
        if symbol is not None and symbol in LEVELS and len(pieces) == 2:
            level = LEVELS[symbol]
            left, right = pieces
            chains = level != LEVELS["<"]
            return _Piece(
                f"{left.at(level if chains else level + 1)} {symbol} {right.at(level + 1)}",
                level,
                dtype,
            )
        if v.op in _PREFIX and not isinstance(v.args[0], ir.Const):
            level = LEVELS["unary"]
            return _Piece(_PREFIX[v.op] + pieces[0].at(level + 1), level, dtype)
        return _atom(f"{v.op}({', '.join(p.text for p in pieces)})", dtype)

    def _reduction(
        self, name: str, arg: ir.Value, word: str, axes: tuple[str, ...], dtype: DType
    ) -> _Piece:
        piece = self.value(arg)
        tail = _dtype_suffix(name, piece.dtype, dtype)
        inner = f"{piece.at(LEVELS['if'] + 1)} {word} {', '.join(axes)}{tail}"
        return _atom(f"{name}({inner})", dtype.compute)

    def _dot(self, v: ir.Dot) -> _Piece:
        left, right = self._operands("mul", (v.left, v.right))
        tail = _dtype_suffix("sum", left.dtype, v.dtype)
        loose = LEVELS["if"] + 1
        inner = f"{left.at(loose)}, {right.at(loose)} over {', '.join(v.over)}{tail}"
        return _atom(f"dot({inner})", v.dtype.compute)

    def _if(self, v: ir.If, expected: DType | None) -> _Piece:
        first, second = flexible(v.value), flexible(v.other)
        # The parser takes the second side's type from it.
        expected_other = expected if first else self._dtype(v.value)
        expected_first = self._dtype(v.other) if first and not second else expected_other
        tight = LEVELS["else"] + 1  # else an `else` could be read as part of a load
        chosen = self.value(v.value, expected_first if first else None).at(tight)
        condition = self.value(v.condition).at(tight)
        other = self.value(v.other, expected_other).at(LEVELS["if"])
        return _Piece(f"{chosen} if {condition} else {other}", LEVELS["if"], expected_first)


def _atom(shown: str, dtype: DType | None) -> _Piece:
    return _Piece(shown, LEVELS["atom"], dtype)


def _dtype_suffix(combine: str, arg: DType | None, dtype: DType) -> str:
    """Return ` as f64` if a reduction's type does not follow from its argument's."""
    row = COMBINES.get(combine)
    try:
        usual = row.result(arg) if row is not None and arg is not None else None
    except SmeltError:
        usual = None
    return "" if usual == dtype else f" as {dtype.name}"


def _number_text(c: ir.Const) -> str:
    """Return the shortest text that reads back to the same number."""
    v = c.value
    if not isinstance(v, float):
        return str(v)
    if not math.isfinite(v):
        return number_text(v)
    if v == int(v) and abs(v) < 1e15 and (v != 0 or math.copysign(1, v) > 0):
        return str(int(v))
    return re.sub(r"e\+?(-?)0*", r"e\1", repr(v))


def fact_text(fact: Index) -> str:
    """Print `n - 5 >= 0` as `n >= 5`."""
    left: Index = 0
    right: Index = 0
    for monomial, factor in fact.terms if isinstance(fact, expr.Expr) else (((), fact),):
        term = _term(monomial, abs(factor))
        if factor >= 0:
            left = expr.add(left, term)
        else:
            right = expr.add(right, term)
    return f"{expr.text(left)} >= {expr.text(right)}"


def _param_texts(params: tuple[ir.Param, ...], inputs: set[ir.Param] | None = None) -> list[str]:
    """Print parameters: families of one type share it, in-place outputs need none."""
    out: list[str] = []
    place = 0
    while place < len(params):
        p = params[place]
        stop = place + 1
        if inputs and p in inputs:
            out.append(p.name)
        elif p.each:
            while stop < len(params) and _same_type(p, params[stop], inputs):
                stop += 1
            names = ", ".join(q.name for q in params[place:stop])
            out.append(f"{names}: {param_text(p)[len(p.name) + 2 :]} for each of {p.each}")
        else:
            out.append(param_text(p))
        place = stop
    return out


def _same_type(p: ir.Param, q: ir.Param, inputs: set[ir.Param] | None) -> bool:
    same_type = (p.dtype, p.shape, p.strides, p.each) == (q.dtype, q.shape, q.strides, q.each)
    return same_type and not (inputs and q in inputs)


def _fill_lines(parts: list[str]) -> list[str]:
    """Wrap parts into lines of at most `WIDTH` columns."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return lines
