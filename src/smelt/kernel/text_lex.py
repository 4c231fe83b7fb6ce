"""Tokenise kernel text into logical lines.

Errors point at a token.

>>> [t.text for t in lines("y[r] = x[r]  # copy")[0].tokens]
['y', '[', 'r', ']', '=', 'x', '[', 'r', ']']
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, TypeVar

from smelt.errors import KernelTextError, TextError
from smelt.python.dataclass import dataclass
from smelt.types.text import MAX_NESTED, beyond_limits

T = TypeVar("T")

_TOKEN: Final = re.compile(
    r"(?P<space>[ \t]+|#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<mark>->|//|<<|>>|<=|>=|==|!=|[-+*/%&|^~<>=()\[\],:'?])"
)


MAX_NESTING: Final = MAX_NESTED
"""Maximum brackets, signs or conditions open at once; bounds the parser's recursion."""


class Token(NamedTuple):
    """Token: its kind (`name`, `number`, `mark` or `end`), text and source offset."""

    kind: str
    text: str
    offset: int
    adjacent: bool = False
    """Whether it follows the previous token without a space."""


@dataclass(frozen=True, slots=True)
class Line:
    """Logical line: its tokens and starting column; open brackets join source lines."""

    tokens: tuple[Token, ...]
    indent: int


def fail(
    source: str, token: Token, message: str, error: type[TextError] = KernelTextError
) -> NoReturn:
    """Raise an error of class `error` at a token."""
    at = TextError.position(source, token.offset)
    length = max(len(token.text), 1)
    raise error(message, source=source, line=at["line"], column=at["column"], length=length)


def lines(
    source: str, words: re.Pattern[str] = _TOKEN, error: type[TextError] = KernelTextError
) -> list[Line]:
    """Split a text into logical lines of tokens that the groups of `words` name.

    Raises an error of class `error` for a character that starts no token.
    """
    limit = beyond_limits(source)
    if limit is not None:
        fail(source, Token("number", "", limit[0]), f"{limit[1]} expected", error)
    out: list[Line] = []
    current: list[Token] = []
    depth = at = 0
    touching = False
    for match in words.finditer(source):
        if match.start() != at:
            break
        kind, text = str(match.lastgroup), match.group()
        touches, touching = touching, kind not in ("space", "newline")
        if touching:
            current.append(Token(kind, text, at, touches))
            if kind == "mark":
                depth += (text in "([") - (text in ")]")
                if depth > MAX_NESTING:
                    fail(source, current[-1], f"brackets nest deeper than {MAX_NESTING}", error)
        elif kind == "newline" and depth <= 0:
            _finish_line(out, current, source, error)
        at += len(text)
    if at < len(source):
        message = f"{source[at]!r} is not a word of this language"
        fail(source, Token("mark", source[at], at), message, error)
    _finish_line(out, current, source, error)
    return out


def _finish_line(
    out: list[Line], current: list[Token], source: str, error: type[TextError]
) -> None:
    if not current:
        return
    run = conditions = 0
    for token in current:
        run = run + 1 if token.text in ("-", "~") else 0
        conditions += token.text == "if"
        if max(run, conditions) > MAX_NESTING:
            message = f"more than {MAX_NESTING} signs or conditions in one value"
            fail(source, token, message, error)
    first = current[0].offset
    out.append(Line(tuple(current), first - (source.rfind("\n", 0, first) + 1)))
    current.clear()


class Cursor:
    """Read position in a line; `error` is the class that it raises."""

    def __init__(self, source: str, line: Line, error: type[TextError] = KernelTextError) -> None:
        self.source, self.line, self.place, self.error = source, line, 0, error
        self.token = line.tokens[0]
        """Next token; past the end one of kind `end` with empty text."""

    def lookahead(self, count: int) -> Token:
        """Return the token `count` positions further on."""
        tokens = self.line.tokens
        if self.place + count < len(tokens):
            return tokens[self.place + count]
        last = tokens[-1]
        return Token("end", "", last.offset + len(last.text))

    def take(self) -> Token:
        """Consume and return the next token."""
        token = self.token
        self.place += 1
        self.token = self.lookahead(0)
        return token

    def at(self, *texts: str) -> bool:
        """Return whether the next token is one of these."""
        return self.token.text in texts

    def accept(self, text: str) -> bool:
        """Consume the next token if it matches, and return whether it did."""
        if self.token.text == text:
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Consume the next token, which must match."""
        if not self.at(text):
            self.fail(f"{text!r} expected, found {self.token_text()}")
        return self.take()

    def name(self, what: str) -> str:
        """Consume a name."""
        if self.token.kind != "name":
            self.fail(f"{what} expected, found {self.token_text()}")
        return self.take().text

    def number(self, what: str) -> int:
        """Consume an integer."""
        if self.token.kind != "number" or not self.token.text.isdigit():
            self.fail(f"{what} expected, found {self.token_text()}")
        return int(self.take().text)

    def listed(self, read: Callable[[], T]) -> list[T]:
        """Read one item or more, between commas."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return items

    def until(self, *stops: str, read: Callable[[], T]) -> list[T]:
        """Read items between commas, up to one of some marks, which stays."""
        items: list[T] = []
        while not self.at(*stops):
            if items:
                self.expect(",")
            items.append(read())
        return items

    def token_text(self) -> str:
        """Return the next token for an error message."""
        return repr(self.token.text) if self.token.kind != "end" else "the end of the line"

    def expect_end(self) -> None:
        """Fail unless the line is finished."""
        if self.token.kind != "end":
            self.fail(f"the end of the line expected, found {self.token_text()}")

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        """Raise the error at `token`, or at the next token."""
        fail(self.source, token or self.token, message, self.error)
