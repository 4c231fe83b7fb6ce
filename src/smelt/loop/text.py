'''Text form of loops: parsing what was printed gives an equal module.

Functions, and statements by indentation. Errors are LoopTextError and show the line with a caret.

>>> source = """func total(x: f32[c*r], y: out f32[r]; r, c)
...   chunk t in 0 .. r
...     each i in 0 .. c with s = sum 0.0
...       s <- x[c*t + i]
...     y[t] = s"""
>>> text(parse(source)) == source
True
>>> parse("func f(x: f32[n]; n)\\n  each i in 0 .. n\\n    y = x[j]")
Traceback (most recent call last):
    ...
smelt.errors.LoopTextError: E407 unreadable loops: j is not bound here
  at line 3, column 11:  y = x[j]
                               ^
  help: Compare the line with the examples on the page `The loop language`.
'''

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, cast

from smelt.errors import LoopTextError, SmeltError
from smelt.kernel.text_lex import MAX_NESTING, Cursor, Line, Token, fail
from smelt.kernel.text_lex import lines as split_lines
from smelt.kernel.text_print import BINARY, LEVELS, UNARY, fact_text
from smelt.loop import ir
from smelt.loop.env import INDEX, Array, Env, Type, place_type, type_of
from smelt.ops.combine import COMBINES
from smelt.ops.scalar import SCALARS
from smelt.types import dtype as dtypes
from smelt.types import expr
from smelt.types.dtype import bool_, f32, number_text
from smelt.types.expr import Index
from smelt.types.text import too_large, too_large_product

T = TypeVar("T")
_KINDS: Final = ("chunk", "each", "for", "unroll")
_SPACES: Final = ("registers", "task", "thread")
_MODES: Final = ("own", "f64", "pairs", "two_sum", "lanes", "places")
_PATTERNS: Final = ("transpose", "interleave", "deinterleave", "permute", "halves")
_DTYPES: Final = {d.name: d for d in dtypes.COMPUTABLE}
_RELATIONS: Final = {">=": (1, 0), "<=": (-1, 0), ">": (1, -1), "<": (-1, -1)}
_RESERVED: Final = frozenset(
    (*_KINDS, "if", "else", "alloc", "prefetch", "call", "in", "by", "with", "out", "inf", "nan")
) | {"true", "false"}

_TOKEN: Final = re.compile(
    r"(?P<space>[ \t]+|#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<number>(?:\d+\.(?!\.)\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<mark>\.\.|<-|(?://|[-+*%])!?|<<|>>|<=|>=|==|!=|[/&|^~<>=()\[\],:;@'!])"
)


def parse(source: str) -> ir.Module:
    """Parse a module.

    Raises LoopTextError.
    """
    source_lines = split_lines(source, _TOKEN, LoopTextError)
    if not source_lines:
        fail(source, Token("end", "", 0), "a function expected, found nothing", LoopTextError)
    reader = _Reader(source, source_lines)
    try:
        return reader.module()
    except RecursionError:
        last = source_lines[min(reader.place, len(source_lines) - 1)]
        fail(source, last.tokens[0], "a text with less nesting expected", LoopTextError)


class _Reader:
    def __init__(self, source: str, source_lines: list[Line]) -> None:
        self.source, self.lines, self.place = source, source_lines, 0
        self.env = Env()
        self.indices: dict[str, Index] = {}
        """Names that index expressions read: sizes, numbers, variables, scalars of i64."""
        self.depth = 0

    def _cursor(self) -> Cursor:
        return Cursor(self.source, self.lines[self.place], LoopTextError)

    # ---- module --------------------------------------------------------------------------------

    def module(self) -> ir.Module:
        name, facts = "", []
        c = self._cursor()
        if c.accept("module"):
            name = c.name("the module's name")
            c.expect_end()
            self.place += 1
            facts = self._facts()
        funcs: list[ir.Func] = []
        while self.place < len(self.lines):
            funcs.append(self._func())
        if not funcs:
            c.fail("a function expected after the module's name")
        return ir.Module(name or funcs[-1].name, tuple(funcs), tuple(facts))

    def _facts(self) -> list[Index]:
        facts: list[Index] = []
        while self.place < len(self.lines):
            c = self._cursor()
            if not c.accept("require"):
                break
            words = [t.text for t in c.line.tokens[1:] if t.kind == "name"]
            self.indices = {w: expr.size(w) for w in words if w not in ("min", "max")}
            left = self._index(c)
            if not c.at(*_RELATIONS):
                c.fail(f"a comparison expected, found {c.token_text()}")
            sign, shift = _RELATIONS[c.take().text]
            gap = expr.sub(left, self._index(c))
            facts.append(expr.add(expr.mul(gap, sign), shift))
            c.expect_end()
            self.place += 1
        return facts

    def _func(self) -> ir.Func:
        line, c = self.lines[self.place], self._cursor()
        if not c.at("func", "tile"):
            c.fail(f"`func` or `tile` expected, found {c.token_text()}")
        kind = c.take().text
        name = c.name("the function's name")
        sizes, numbers = _arguments(line, kind)
        self.env = Env(dict.fromkeys((*sizes, *numbers), INDEX), {})
        self.indices = {n: expr.size(n) for n in sizes} | {n: ir.number(n) for n in numbers}
        c.expect("(")
        params = self._list(c, ";", ")", lambda: self._param(c))
        while c.accept(";"):
            self._list(c, ";", ")", lambda: self._new_name(c))
        c.expect(")")
        c.expect_end()
        self.place += 1
        body = self._body(line.indent)
        if self.place < len(self.lines) and self.lines[self.place].indent > line.indent:
            self._cursor().fail("this line stands neither where its block began nor ended")
        return ir.Func("tile" if kind == "tile" else "func", name, params, sizes, numbers, body)

    def _param(self, c: Cursor) -> ir.Param:
        name = self._new_name(c)
        c.expect(":")
        written = c.accept("out")
        dtype = self._dtype(c)
        c.expect("[")
        elements = None if c.at("]") else self._index(c)
        c.expect("]")
        alignment = c.number("an alignment in bytes") if c.accept("align") else 1
        self.env.arrays[name] = Array(dtype, elements, written)
        return ir.Param(name, dtype, elements, written, alignment)

    def _dtype(self, c: Cursor) -> dtypes.DType:
        token = c.token
        dtype = _DTYPES.get(c.name("an element type"))
        if dtype is None:
            c.fail(f"{token.text!r} is not an element type (f32, i64; numbers count bits)", token)
        return dtype

    def _list(self, c: Cursor, *ends: Any) -> tuple[Any, ...]:
        """Parse items between commas up to one of some marks; the last argument parses one."""
        *stops, item = ends
        return tuple(c.until(*stops, read=item))

    def _new_name(self, c: Cursor) -> str:
        token = c.token
        name = c.name("a name")
        if name in _RESERVED:
            c.fail(f"{name!r} cannot name a value", token)
        return name

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, above: int) -> tuple[ir.Statement, ...]:
        out: list[ir.Statement] = []
        indent: int | None = None
        self.depth += 1
        if self.depth > MAX_NESTING:
            self._cursor().fail(f"loops nest deeper than {MAX_NESTING}")
        while self.place < len(self.lines) and self.lines[self.place].indent > above:
            line, c = self.lines[self.place], self._cursor()
            indent = line.indent if indent is None else indent
            if line.indent != indent:
                c.fail("this line stands neither where its block began nor ended")
            self.place += 1
            out.append(self._statement(c, line))
        self.depth -= 1
        return tuple(out)

    def _statement(self, c: Cursor, line: Line) -> ir.Statement:
        word, following = c.token, c.lookahead(1)
        if word.kind != "name":
            c.fail(f"a statement expected, found {c.token_text()}")
        if word.text in _KINDS:
            return self._for(c, line)
        if word.text == "if":
            return self._if(c, line)
        if word.text in ("alloc", "prefetch", "call"):
            statement = getattr(self, f"_{c.take().text}")(c)
        elif word.text == "poll" and following.text not in ("=", "<-", "'", "["):
            c.take()
            statement = ir.Poll()
        elif following.text == "[":
            statement = self._store(c)
        else:
            statement = self._assignment(c, following.text)
        c.expect_end()
        return statement

    def _assignment(self, c: Cursor, mark: str) -> ir.Statement:
        token = c.token
        name = self._new_name(c)
        if mark == "'":
            c.take()
            c.expect("=")
            return ir.Next(name, self._value(c))
        if mark == "<-":
            c.take()
            value = self._value(c)
            return ir.Fold(name, value, self._value(c) if c.accept("@") else None)
        c.expect("=")
        value = self._value(c)
        self._bind(name, self._checked(c, token, lambda: type_of(value, self.env)))
        return ir.Let(name, value)

    def _bind(self, name: str, bound: Type) -> None:
        self.env.values[name] = bound
        if bound == INDEX:
            self.indices[name] = ir.number(name)

    def _checked(self, c: Cursor, token: Token, compute: Callable[[], T]) -> T:
        """Return a result; a failure points at `token`."""
        try:
            return compute()
        except SmeltError as error:
            c.fail(error.message, token)

    def _store(self, c: Cursor) -> ir.Statement:
        place, _ = self._place(c)
        join, nontemporal = "", ir.CACHE_LINE if c.accept("nt") else 0
        if nontemporal and c.token.kind == "number":
            nontemporal = c.number("an alignment in bytes")
        if c.token.kind == "name":
            join = c.take().text
        c.expect("=")
        return ir.Store(place, self._value(c), join, nontemporal)

    def _alloc(self, c: Cursor) -> ir.Statement:
        name = self._new_name(c)
        c.expect(":")
        dtype = self._dtype(c)
        c.expect("[")
        elements = self._index(c)
        c.expect("]")
        pad = c.number("elements of padding") if c.accept("pad") else 0
        c.expect("in")
        space = cast("ir.Space", self._word(c, _SPACES))
        self.env.arrays[name] = Array(dtype, elements, True, space, pad)
        return ir.Alloc(name, dtype, elements, space, pad)

    def _prefetch(self, c: Cursor) -> ir.Statement:
        place, _ = self._place(c)
        level = c.number("a level of cache") if c.accept("level") else 1
        if level not in (1, 2, 3):
            c.fail("a level of cache is 1, 2 or 3")
        write = c.accept("for") and bool(c.expect("write"))
        return ir.Prefetch(place, level, write)

    def _call(self, c: Cursor) -> ir.Statement:
        name = c.name("a tile")
        c.expect("(")
        windows = self._list(c, ";", ")", lambda: self._window(c))
        numbers = self._list(c, ")", lambda: self._index(c)) if c.accept(";") else ()
        c.expect(")")
        return ir.Call(name, windows, numbers)

    def _window(self, c: Cursor) -> ir.Place:
        name = c.name("an array")
        c.expect("@")
        return ir.Place(name, self._index(c))

    def _word(self, c: Cursor, words: tuple[str, ...]) -> str:
        if not c.at(*words):
            c.fail(f"one of {', '.join(words)} expected, found {c.token_text()}")
        return c.take().text

    # ---- loops and branches --------------------------------------------------------------------

    def _for(self, c: Cursor, line: Line) -> ir.Statement:
        kind = cast("ir.LoopKind", c.take().text)
        token = c.token
        var = self._new_name(c)
        c.expect("in")
        low = self._index(c)
        c.expect("..")
        high = self._index(c)
        step = self._index(c) if c.accept("by") else 1
        carry = c.listed(lambda: self._carry(c)) if c.accept("with") else ()
        c.expect_end()
        head = ir.For(kind, var, low, high, (), step, tuple(carry))
        self.env.values[var] = INDEX
        self.indices[var] = ir.variable(head)
        for name, bound in self._checked(c, token, lambda: self.env.carries(head)).items():
            self._bind(name, bound)
        return ir.For(kind, var, low, high, self._body(line.indent), step, tuple(carry))

    def _carry(self, c: Cursor) -> ir.Carry:
        name = self._new_name(c)
        position = self._new_name(c) if c.accept("@") else ""
        c.expect("=")
        combine, mode = "", "own"
        if c.at(*COMBINES) and not (c.lookahead(1).text == "(" and c.lookahead(1).adjacent):
            combine = c.take().text
            mode = self._word(c, _MODES) if c.accept(":") else mode
        init = self._value(c)
        start = self._value(c) if c.accept("from") else None
        return ir.Carry(name, init, combine, cast("ir.Mode", mode), position, start)

    def _if(self, c: Cursor, line: Line) -> ir.Statement:
        token = c.take()
        cond = self._value(c)
        results = tuple(c.listed(lambda: self._new_name(c))) if c.accept("with") else ()
        c.expect_end()
        then, other = self._body(line.indent), ()
        for s in then:
            if isinstance(s, ir.Next) and s.name in results:
                self._bind(s.name, self._checked(c, token, lambda v=s.value: type_of(v, self.env)))
        if self.place < len(self.lines) and self.lines[self.place].indent == line.indent:
            c = self._cursor()
            if c.accept("else"):
                c.expect_end()
                self.place += 1
                other = self._body(line.indent)
        return ir.If(cond, then, other, results)

    # ---- values --------------------------------------------------------------------------------

    def _index(self, c: Cursor, level: int = LEVELS["|"] + 1) -> Index:
        token = c.token
        index = ir.as_index(self._value(c, level))
        if index is None:
            c.fail("an index expression of integers, sizes and names of i64 expected", token)
        return index

    def _place(self, c: Cursor) -> tuple[ir.Place, ir.Const | None]:
        token = c.token
        name = c.name("an array")
        c.expect("[")
        value = self._value(c, LEVELS["|"] + 1)
        index = ir.as_index(value)
        lanes, stride, mask, other, group = 1, 1, None, None, list[int]()
        if c.accept(":"):
            lanes = c.number("a number of lanes")
            stride = self._index(c, LEVELS["*"] + 1) if c.accept("*") else stride
            while c.accept("," if group else "with"):
                sign = -1 if c.accept("-") else 1
                group.append(sign * c.number("a distance"))
        if c.accept("|"):
            mask = self._value(c)
            if c.accept(":"):
                other = self._value(c)
                if not isinstance(other, ir.Const):
                    c.fail("a number expected for the elements outside")
        c.expect("]")
        place = ir.Place(name, value if index is None else index, lanes, stride, mask, (*group,))
        self._checked(c, token, lambda: place_type(place, self.env))
        return place, other

    def _value(self, c: Cursor, level: int = LEVELS["if"] + 1) -> ir.Value:
        """Parse a value that binds at least as tightly as `level`."""
        left = self._unary(c)
        while c.token.kind == "mark" and (symbol := c.token.text.rstrip("!")) in BINARY:
            mark = c.token
            binding = LEVELS[symbol]
            if binding < level:
                break
            c.take()
            left = self._apply(c, mark, BINARY[symbol], left, self._value(c, binding + 1))
            if binding == LEVELS["<"] and c.at("==", "!=", "<", "<=", ">", ">="):
                c.fail("comparisons do not chain: use brackets and &")
        return left

    def _apply(self, c: Cursor, token: Token, op: str, *args: ir.Value) -> ir.Value:
        """Return index arithmetic if operands are positions and `token` has no mark."""
        if token.text.endswith("!"):
            return ir.Apply(op, args)
        pair = [i for a in args if (i := ir.as_index(a)) is not None]
        if len(pair) == 2 and op == "mul":
            self._limit(c, token, too_large_product(*pair))
        if len(pair) == 2 and pair[1] == 0 and op in ("floordiv", "mod"):
            c.fail("division by zero", token)
        value = ir.apply(op, *args)
        index = ir.as_index(value)
        self._limit(c, token, "" if index is None else too_large(index))
        return value

    def _limit(self, c: Cursor, token: Token, reason: str) -> None:
        if reason:
            c.fail(f"{reason} expected", token)

    def _unary(self, c: Cursor) -> ir.Value:
        mark = c.token
        symbol = mark.text.rstrip("!")
        if mark.kind != "mark" or symbol not in UNARY:
            return self._primary(c)
        c.take()
        if mark.text == "-" and (c.token.kind == "number" or c.at("inf", "nan")):
            return self._literal(c, -1)
        inner = self._unary(c)
        index = ir.as_index(inner)
        if mark.text == "-" and index is not None:
            return ir.position(expr.mul(index, -1))
        return ir.Apply(UNARY[symbol], (inner,))

    def _literal(self, c: Cursor, sign: int) -> ir.Value:
        text = c.take().text
        if text.isdigit():
            return ir.position(sign * int(text))
        return ir.Const(float(f"{'-' if sign < 0 else ''}{text}"), f32)

    def _primary(self, c: Cursor) -> ir.Value:
        token, following = c.token, c.lookahead(1)
        if token.kind == "number" or c.at("inf", "nan"):
            return self._literal(c, 1)
        if c.accept("("):
            value = self._value(c)
            c.expect(")")
            return value
        if ir.AT in self.indices and c.accept(ir.AT):
            return ir.position(self.indices[ir.AT])
        if token.kind != "name":
            c.fail(f"a value expected, found {c.token_text()}")
        if following.text == "[":
            place, other = self._place(c)
            return ir.Load(place, other)
        if following.text in ("(", "!"):
            return self._function(c)
        name = c.take().text
        if name in ("true", "false"):
            return ir.Const(name == "true", bool_)
        if name in self.indices:
            return ir.position(self.indices[name])
        if name not in self.env.values:
            c.fail(f"{name} is not bound here", token)
        return ir.Ref(name)

    def _function(self, c: Cursor) -> ir.Value:
        token = c.take()
        is_marked = c.accept("!")
        c.expect("(")
        word = token.text
        if word in ("across", "scan", "shuffle"):
            return self._lanes_of(c, word)
        if word in _DTYPES:
            return self._conversion(c, _DTYPES[word])
        if word == "lane":
            lanes = c.number("a number of lanes")
            c.expect(")")
            return ir.Lane(lanes)
        if word == "lanes":
            return self._lane_index(c)
        if word in ("prefix", "splat"):
            value = self._index(c) if word == "prefix" else self._value(c)
            c.expect(",")
            lanes = c.number("a number of lanes")
            c.expect(")")
            return (
                ir.Splat(value, lanes)
                if not isinstance(value, int | expr.Expr)
                else ir.Prefix(value, lanes)
            )
        args = self._list(c, ")", lambda: self._value(c))
        c.expect(")")
        row = SCALARS.get(word)
        if row is None:
            c.fail(f"{word!r} is not a scalar operator", token)
        if row.arity != len(args):
            c.fail(f"{word} takes {row.arity} operands, not {len(args)}", token)
        return ir.Apply(word, args) if is_marked else self._apply(c, token, word, *args)

    def _lane_index(self, c: Cursor) -> ir.Value:
        """Parse `j, 16 align 4; @//3)`."""
        start = self._index(c)
        c.expect(",")
        lanes = c.number("a number of lanes")
        align = c.number("a divisor") if c.accept("align") else 1
        c.expect(";")
        self.indices[ir.AT] = ir.lane_variable(start)
        index = self._index(c)
        del self.indices[ir.AT]
        c.expect(")")
        return ir.LaneIndex(index, start, lanes, align)

    def _conversion(self, c: Cursor, dtype: dtypes.DType) -> ir.Value:
        """Parse `f64(0.5)`, a constant, or `f64(x)`."""
        token = c.token
        is_literal = c.lookahead(1 + c.at("-")).text == ")" and (
            c.lookahead(int(c.at("-"))).kind == "number"
            or c.lookahead(int(c.at("-"))).text in ("inf", "nan")
        )
        value = self._value(c)
        c.expect(")")
        if not is_literal:
            return ir.cast(value, dtype)
        number = value.value if isinstance(value, ir.Const) else ir.as_index(value)
        if not isinstance(number, int | float) or (not dtype.is_float and number != int(number)):
            c.fail(f"{token.text} is not {dtype.name}", token)
        return ir.Const(number, dtype)

    def _lanes_of(self, c: Cursor, word: str) -> ir.Value:
        first = c.name("an operator of reductions or a pattern")
        args: list[ir.Value] = []
        while c.accept(","):
            args.append(self._value(c))
        table = self._list(c, ")", lambda: c.number("a lane")) if c.accept(";") else ()
        c.expect(")")
        if word == "shuffle":
            if first not in _PATTERNS:
                c.fail(f"{first!r} is not one of {', '.join(_PATTERNS)}")
            return ir.Shuffle(tuple(args), first, table)
        return ir.Across(first, tuple(args), word == "scan")


def _arguments(line: Line, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sizes and numbers of a function, which its parameters already read."""
    lists: list[list[str]] = [[]]
    for token in line.tokens:
        if token.text == ";":
            lists.append([])
        elif token.kind == "name":
            lists[-1].append(token.text)
    _, *rest = map(tuple, lists)
    rest = [(), *rest] if kind == "tile" else rest
    rest += [(), ()]
    return rest[0], rest[1]


# ---- printing ------------------------------------------------------------------------------------

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
