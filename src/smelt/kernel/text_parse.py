"""Parse kernel text: header, axes, grid, and statements by indentation.

Errors are KernelTextError and show the line with a caret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from smelt.errors import SmeltError
from smelt.kernel import ir
from smelt.kernel.env import Env, axes_of
from smelt.kernel.text_lex import MAX_NESTING, Cursor, Line, Token, fail, lines
from smelt.kernel.text_print import LEVELS, RESERVED, words_in
from smelt.kernel.text_value import DTYPES, IndexReader, Names, Typed, ValueReader
from smelt.python.dataclass import dataclass
from smelt.types import expr
from smelt.types.expr import Index

_RELATIONS = {">=": (1, 0), "<=": (-1, 0), ">": (1, -1), "<": (-1, -1)}
"""Comparisons as facts, as (sign, shift).

    a op b  <=>  sign*(a - b) + shift >= 0
"""


def parse(source: str) -> ir.Kernel:
    """Parse a kernel.

    Raises KernelTextError.
    """
    source_lines = lines(source)
    if not source_lines:
        fail(source, Token("end", "", 0), "a kernel expected, found nothing")
    reader = _Reader(source, source_lines)
    try:
        return reader.kernel()
    except RecursionError:
        last = source_lines[min(reader.place, len(source_lines) - 1)]
        fail(source, last.tokens[0], "a text with less nesting expected")


@dataclass
class _Header:
    name: str
    inputs: tuple[ir.Param, ...]
    outputs: tuple[ir.Param, ...]


class _Reader:
    def __init__(self, source: str, source_lines: list[Line]) -> None:
        self.source, self.lines, self.place = source, source_lines, 0
        self.names = Names(Env({}), {}, set())
        self.listed: dict[str, Index] = {}
        self.fixed: frozenset[str] = frozenset()
        self.facts: list[Index] = []
        self.grid: list[ir.Block | ir.Split | ir.Each] = []
        self.rank: dict[str, int] = {}
        self.count = 0
        self.depth = 0
        """Streams open around the statement."""

    # ---- kernel --------------------------------------------------------------------------------

    def kernel(self) -> ir.Kernel:
        first = self.lines[0]
        header = _HeaderReader(Cursor(self.source, first), self.names).read()
        self.place = 1
        self.names.env.params = {p.name: p for p in (*header.outputs, *header.inputs)}
        self.count = max((p.each for p in (*header.inputs, *header.outputs)), default=0)
        self._declare()
        self._front_lines()
        self._rank_axes()
        body = self._body(first.indent)
        if self.place < len(self.lines):
            c = Cursor(self.source, self.lines[self.place])
            c.fail("a line of the kernel has to stand further right than `kernel`")
        return ir.Kernel(
            header.name,
            header.inputs,
            header.outputs,
            self._axes(),
            tuple(self.grid),
            tuple(body),
            self._comments(first),
            tuple(self.facts),
        )

    def _rank_axes(self) -> None:
        """Order axes as listed, then by first mention in the text."""
        start = next(
            (k for k, line in enumerate(self.lines[1:], 1) if not _is_declaration(line)), None
        )
        offset = len(self.source) if start is None else self.lines[start].tokens[0].offset
        words = [*self.listed, *words_in(self.source[offset:])]
        self.rank = {word: place for place, word in enumerate(dict.fromkeys(words))}

    def _sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(axes, key=lambda a: self.rank.get(a, -1)))

    def _axes(self) -> tuple[ir.Axis, ...]:
        extents = self.names.extents
        return tuple(ir.Axis(a, extents[a]) for a in self._sorted(extents))

    def _comments(self, first: Line) -> tuple[str, ...]:
        """Collect the comment lines directly below the header."""
        last = first.tokens[-1]
        comments: list[str] = []
        for line in self.source[last.offset + len(last.text) :].splitlines()[1:]:
            if not line.lstrip().startswith("#"):
                break
            comments.append(line.lstrip()[1:].removeprefix(" "))
        return tuple(comments)

    def _declare(self) -> None:
        """Record the extents given in `axis`, `grid` and `stream` lines, anywhere in the text."""
        for line in self.lines[1:]:
            if line.tokens[0].text not in ("axis", "grid", "stream"):
                continue
            c = Cursor(self.source, line)
            while c.token.kind != "end":
                token = c.take()
                if c.at("in") and token.kind == "name":
                    c.take()
                    self._declare_one(c, token)

    def _declare_one(self, c: Cursor, token: Token) -> None:
        if c.at("split") and c.lookahead(1).text == "(":
            return
        extent = IndexReader(c, self.names).size_expression()
        declared = self.names.extents.setdefault(token.text, extent)
        if declared != extent:
            c.fail(f"{token.text} has the extent {declared} elsewhere", token)
        if token.text in RESERVED:
            c.fail(f"{token.text!r} cannot name an axis", token)

    def _front_lines(self) -> None:
        """Parse `axis`, `require` and `grid` lines."""
        while self.place < len(self.lines):
            line = self.lines[self.place]
            c = Cursor(self.source, line)
            if _is_declaration(line):
                read = self._listed_axis if c.take().text == "axis" else self._require
                c.listed(partial(read, c))
            elif c.at("grid") and c.lookahead(1).kind == "name":
                c.take()
                self.grid += c.listed(partial(self._grid_entry, c))
            else:
                return
            c.expect_end()
            self.place += 1

    def _listed_axis(self, c: Cursor) -> None:
        token = c.token
        name = c.name("an axis")
        if c.accept("in"):
            IndexReader(c, self.names).size_expression()
        extent = self.names.extents.setdefault(name, expr.size(name))
        if name in self.listed:
            c.fail(f"{name} is listed twice", token)
        self.listed[name] = extent

    def _require(self, c: Cursor) -> None:
        left = IndexReader(c, self.names).size_expression()
        mark = c.take()
        if mark.text not in (*_RELATIONS, "=="):
            c.fail(f"a comparison expected, found {mark.text!r}", mark)
        right = IndexReader(c, self.names).size_expression()
        gap = expr.sub(left, right)
        if mark.text == "==":
            self.facts += [gap, expr.mul(gap, -1)]
        else:
            sign, shift = _RELATIONS[mark.text]
            self.facts.append(expr.add(expr.mul(gap, sign), shift))

    def _grid_entry(self, c: Cursor) -> ir.Block | ir.Split | ir.Each:
        if c.at("each"):
            token = c.take()
            if not self.count:
                c.fail("no parameter is `for each of` several", token)
            return ir.Each(self.count)
        if (
            c.lookahead(1).text == "in"
            and c.lookahead(2).text == "split"
            and c.lookahead(3).text == "("
        ):
            name = c.name("a part")
            c.expect("in")
            c.expect("split")
            c.expect("(")
            axis = self._axis(c)
            c.expect(",")
            parts = IndexReader(c, self.names).size_expression()
            c.expect(")")
            self.fixed |= {name}
            self.names.parts[name] = parts
            return ir.Split(name, axis, parts)
        return self._block(c)

    def _axis(self, c: Cursor) -> str:
        token = c.token
        name = c.name("an axis")
        if self.names.axis(name) is None:
            c.fail(f"{name!r} is not an axis: neither declared, nor a size of a parameter", token)
        return name

    def _block(self, c: Cursor) -> ir.Block:
        axis = self._axis(c)
        if c.accept("in"):
            IndexReader(c, self.names).size_expression()
        block = ir.Block(axis, 1)
        if c.accept("/"):
            block = ir.Block(axis, None if c.accept("all") else c.number("a block's size"))
            if block.size == 0:
                c.fail("a block has at least one element")
        if c.accept("of"):
            block = replace(block, part=c.name("a part"))
        block = self._bounds(c, block)
        if block.size == 1:
            self.fixed |= {axis}
        return block

    def _bounds(self, c: Cursor, block: ir.Block) -> ir.Block:
        """Parse where a block starts and stops."""
        if c.accept("from"):
            block = replace(block, start=self._operand(c).value)
        if c.accept("to"):
            block = replace(block, stop=self._operand(c).value)
        return block

    # ---- statements ----------------------------------------------------------------------------

    def _body(self, above: int) -> list[ir.Statement]:
        out: list[ir.Statement] = []
        indent: int | None = None
        while self.place < len(self.lines) and self.lines[self.place].indent > above:
            line = self.lines[self.place]
            c = Cursor(self.source, line)
            if indent is None:
                indent = line.indent
            if line.indent != indent:
                c.fail("this line stands neither where its block began nor where it ended")
            self.place += 1
            outer = self.fixed
            statement = self._statement(c, line)
            out += self.names.hoisted
            self.names.hoisted.clear()
            out.append(statement)
            self.fixed = outer
        return out

    def _statement(self, c: Cursor, line: Line) -> ir.Statement:
        word, following = c.token, c.lookahead(1)
        if word.kind != "name":
            c.fail(f"a statement expected, found {c.token_text()}")
        if following.kind == "name" and word.text == "stream":
            return self._stream(c, line)
        if following.kind == "name" and word.text == "merge":
            return self._merge(c)
        if following.text == "[":
            return self._store(c)
        if following.text == "'":
            return self._update(c)
        return self._let(c)

    def _finish(self, c: Cursor, statement: ir.Statement, token: Token) -> ir.Statement:
        c.expect_end()
        try:
            self.names.env.bind(statement)
        except SmeltError as error:
            c.fail(error.message, token)
        return statement

    def _new_name(self, c: Cursor) -> Token:
        token = c.token
        name = c.name("a name")
        if name in RESERVED:
            c.fail(f"{name!r} cannot name a value", token)
        if name in self.names.extents:
            c.fail(f"{name} is an axis", token)
        return token

    def _let(self, c: Cursor) -> ir.Statement:
        token = self._new_name(c)
        c.expect("=")
        if c.at("position") and c.lookahead(1).text == "(":
            return self._position(c, token)
        reader = ValueReader(c, self.names)
        piece = reader.operand(LEVELS["if"] + 1)
        if not c.at("if"):
            value = reader.check_depth(reader.resolve_type(piece, None)).value
            return self._finish(c, ir.Let(token.text, value), token)
        c.take()
        cut = c.token
        condition = reader.condition()
        if c.at("else"):
            value = reader.check_depth(reader.finish_conditional(piece, condition)).value
            return self._finish(c, ir.Let(token.text, value), token)
        old = self.names.env.names.get(token.text)
        if not isinstance(condition.value, ir.Partial) or old is None:
            c.fail("'else' is missing (only `s = .. if partial(..)` may keep the old s)", cut)
        value = ir.If(
            condition.value, reader.resolve_type(piece, old.dtype).value, ir.Ref(token.text)
        )
        return self._finish(c, ir.Let(token.text, value), token)

    def _position(self, c: Cursor, token: Token) -> ir.Statement:
        c.take()
        c.expect("(")
        value = ValueReader(c, self.names).value()
        c.expect(",")
        extent = IndexReader(c, self.names).index_expression()
        c.expect(")")
        return self._finish(c, ir.Position(token.text, value.value, extent), token)

    def _update(self, c: Cursor) -> ir.Statement:
        token = c.take()
        c.expect("'")
        c.expect("=")
        old = self.names.env.names.get(token.text)
        if old is None:
            c.fail(f"{token.text} is not a state", token)
        value = ValueReader(c, self.names).value(old.dtype).value
        return self._finish(c, ir.Update(token.text, value), token)

    def _store(self, c: Cursor) -> ir.Statement:
        token = c.take()
        param = self.names.env.params.get(token.text)
        if param is None:
            c.fail(f"{token.text!r} is not a parameter", token)
        reader = ValueReader(c, self.names)
        index = reader.brackets(param)
        join = "" if c.at("=") else c.name("the operator of a scatter-reduce")
        c.expect("=")
        value = reader.value(param.dtype.compute).value
        where = reader.value().value if c.accept("where") else None
        return self._finish(c, ir.Store(param.name, index, value, where, join), token)

    def _merge(self, c: Cursor) -> ir.Statement:
        token = c.take()
        part = c.name("a part")
        c.expect(":")
        c.expect("(")
        names = c.listed(partial(c.name, "a state"))
        c.expect(")")
        return self._finish(c, ir.Merge(part, tuple(names)), token)

    # ---- streams -------------------------------------------------------------------------------

    def _operand(self, c: Cursor) -> Typed:
        """Parse a value that ends before a keyword such as `to` or `with`."""
        return ValueReader(c, self.names).value_tight()

    def _stream(self, c: Cursor, line: Line) -> ir.Statement:
        token = c.take()
        outer = self.fixed
        blocks = c.listed(partial(self._block, c))
        where = self._operand(c).value if c.accept("where") else None
        sees: list[ir.Block] = []
        if c.accept("seeing"):
            sees = c.listed(lambda: self._bounds(c, ir.Block(self._axis(c))))
        states = c.listed(partial(self._state, c)) if c.accept("with") else []
        c.expect_end()
        env = self.names.env
        env.bind(ir.Stream(tuple(blocks), tuple(states), ()))
        hoisted, self.names.hoisted = self.names.hoisted, []
        self.names.env = env.child()
        self.depth += 1
        if self.depth > MAX_NESTING:
            c.fail(f"streams nest deeper than {MAX_NESTING}", token)
        body = self._body(line.indent)
        self.depth -= 1
        self.names.env, self.names.hoisted, self.fixed = env, hoisted, outer
        if not body:
            c.fail("a stream needs statements, further right than itself", token)
        return ir.Stream(tuple(blocks), tuple(states), tuple(body), where, tuple(sees))

    def _state(self, c: Cursor) -> ir.State:
        token = self._new_name(c)
        c.expect("=")
        init = self._operand(c)
        if c.at("[") and not c.token.adjacent:
            c.take()
            axes = c.until("]", read=partial(self._axis, c))
            c.take()
            return ir.State(token.text, init.value, tuple(axes), init.dtype)
        axes_of_init = self._sorted(axes_of(init.value, self.names.env) - self.fixed)
        return ir.State(token.text, init.value, axes_of_init, init.dtype)


def _is_declaration(line: Line) -> bool:
    """Return whether a line lists axes or facts, which do not determine the axis order."""
    word = line.tokens[0].text
    return word in ("axis", "require") and len(line.tokens) > 1 and line.tokens[1].text != "="


class _HeaderReader:
    """Parse `kernel name(inputs) -> outputs`."""

    def __init__(self, c: Cursor, names: Names) -> None:
        self.c, self.names = c, names
        self.taken: set[str] = set()

    def read(self) -> _Header:
        """Parse the name and parameters."""
        c = self.c
        c.expect("kernel")
        name = c.name("the kernel's name")
        c.expect("(")
        inputs = self._params((), ")")
        c.expect(")")
        c.expect("->")
        if c.accept("("):
            self.taken = set()
            outputs = self._params(inputs, ")")
            c.expect(")")
        else:
            self.taken = set()
            outputs = self._params(inputs, "")
        c.expect_end()
        return _Header(name, inputs, outputs)

    def _params(self, inputs: tuple[ir.Param, ...], stop: str) -> tuple[ir.Param, ...]:
        """Parse parameters up to a bracket or the end, which is a token without text.

        Outputs that name an input need no type.
        """
        out: list[ir.Param] = []
        while not self.c.at(stop):
            if out:
                self.c.expect(",")
            token = self._name()
            same = next((p for p in inputs if p.name == token.text), None)
            if same is not None and not self.c.at(":"):
                out.append(same)
                continue
            tokens = [token]
            while self.c.accept(","):
                tokens.append(self._name())
            self.c.expect(":")
            out += self._typed(tokens)
        return tuple(out)

    def _name(self) -> Token:
        token = self.c.token
        name = self.c.name("a parameter")
        if name in self.taken:
            self.c.fail(f"two parameters are called {name}", token)
        self.taken.add(name)
        return token

    def _typed(self, tokens: list[Token]) -> list[ir.Param]:
        c = self.c
        token = c.token
        dtype = DTYPES.get(c.name("an element type"))
        if dtype is None:
            c.fail(f"{token.text!r} is not an element type (f32, i64; numbers count bits)", token)
        c.expect("[")
        shape = c.until("]", read=IndexReader(c, self.names).size_expression)
        c.take()
        strides = self._strides(len(shape)) if c.at("strides") else None
        count = 0
        if c.accept("for"):
            c.expect("each")
            c.expect("of")
            count = c.number("how many arrays there are")
            c.accept("parameters")
        return [ir.Param(t.text, dtype, tuple(shape), strides, count) for t in tokens]

    def _strides(self, rank: int) -> tuple[int | None, ...]:
        c = self.c
        token = c.take()
        c.expect("(")
        strides = c.until(")", read=partial(self._stride, c))
        c.take()
        if len(strides) != rank:
            c.fail(f"{rank} strides expected, found {len(strides)}", token)
        return tuple(strides)

    def _stride(self, c: Cursor) -> int | None:
        if c.accept("?"):
            return None
        sign = -1 if c.accept("-") else 1
        return sign * c.number("a stride")
