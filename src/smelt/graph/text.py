"""Print and parse graphs as text.  Equal text means equal graphs; it is the cache's key.

    graph   = "graph" NAME "(" [input {"," input}] ")" "{" {require} {line} return "}"
    input   = NAME ":" type ["constant"] ["strides" "(" stride {"," stride} ")"]
    stride  = INT | "?"
    type    = DTYPE "[" [expr {"," expr}] "]"
    require = "require" expr ("==" | "!=" | "<" | "<=") expr END-OF-LINE
    line    = NAME "=" OPERATOR "(" [operand {"," operand}] ")" ["{" attributes "}"] [":" type]
    operand = NAME | number ":" DTYPE                              a constant is written inline
    number  = INT | FLOAT | ["-"] ("inf" | "nan") | "true" | "false"
    attributes = NAME "=" value {"," value}
    value   = number | expr | STRING | DTYPE | "none" | graph | "(" [value {"," value}] [","] ")"
    return  = "return" [operand {"," operand}] [";" "check" operand {"," operand}]

`#` starts a comment.  A missing type is inferred; a given one is trusted (only `smelt.graph.verify`
checks it).  Sizes, values and operators have separate namespaces.

>>> print(
...     text(
...         parse('''graph f(x: f32[n,4], b: f32[4]) {
...   h = add(x, b)
...   y = max(h, 0.0:f32)
...   return y
... }''')
...     )
... )
graph f(x: f32[n,4], b: f32[4]) {
  v0 = add(x, b) : f32[n,4]
  v1 = max(v0, 0.0:f32) : f32[n,4]
  return v1
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import numpy as np

from smelt.errors import GraphTextError, SmeltError
from smelt.graph import build
from smelt.graph.ir import Fact, Graph, Node
from smelt.graph.names import make_operator
from smelt.ops.create import Constant, Input
from smelt.types.dtype import DTYPES, DType, number_text
from smelt.types.expr import Expr, Index, size
from smelt.types.expr import text as expr_text
from smelt.types.json_data import register
from smelt.types.tensor import TensorType
from smelt.types.text import MAX_NESTED, BeyondLimit, beyond_limits
from smelt.types.text import parse as parse_expr

T = TypeVar("T")

LINE_WIDTH, MAX_QUOTED_CHARS = 100, 40
"""Maximum columns of inputs on one line, and characters of a quotation in an error."""

# ---- printer ---------------------------------------------------------------------------------


def text(graph: Graph, *, origins: bool = False) -> str:
    """Print a graph; with `origins`, each line names the user's line in a comment."""
    names = name_values(graph)
    lines = [_head(graph)]
    lines += [f"  require {_relation(fact)}" for fact in graph.facts]
    types: dict[TensorType, str] = {}
    for node in graph.nodes():
        if not isinstance(node.op, (Input, Constant)):
            lines.append(f"  {_line(node, names, types)}{_comment(node) if origins else ''}")
    results, printed_checks = (
        ", ".join([names[n] for n in s]) for s in (graph.results, graph.check_outputs)
    )
    checks = f"; check {printed_checks}" if printed_checks else ""
    return "\n".join([*lines, f"  return {results}".rstrip() + checks, "}"])


def name_values(graph: Graph) -> dict[Node, str]:
    """Return the printed name of each node; constants are spelled out, as `0.5:f32`."""
    names: dict[Node, str] = {node: _input(node).label for node in graph.inputs}
    used = set(names.values())
    number = 0
    for node in graph.nodes():
        op = node.op
        if isinstance(op, Constant):
            names[node] = f"{_value(op.value)}:{op.dtype.name}"
        elif isinstance(op, Input):
            names.setdefault(node, op.label)
        else:
            while (name := f"v{number}") in used:
                number += 1
            names[node] = name
            number += 1
    return names


def operator_text(node: Node) -> tuple[str, str]:
    """Return the operator's name and its attributes in braces (empty without any)."""
    attributes = node.op.attributes()
    if not attributes:
        return node.op.name, ""
    inside = ", ".join([f"{key}={_value(value)}" for key, value in attributes.items()])
    return node.op.name, " {" + inside + "}"


def _line(node: Node, names: dict[Node, str], types: dict[TensorType, str]) -> str:
    name, attributes = operator_text(node)
    operands = ", ".join([names[operand] for operand in node.inputs])
    shown = types.get(node.type)
    if shown is None:
        shown = types[node.type] = str(node.type)
    return f"{names[node]} = {name}({operands}){attributes} : {shown}"


def _head(graph: Graph) -> str:
    inputs = [_declaration(_input(node)) for node in graph.inputs]
    line = f"graph {graph.name}({', '.join(inputs)}) {{"
    if len(line) <= LINE_WIDTH:
        return line
    return "\n".join([f"graph {graph.name}(", *(f"    {i}," for i in inputs)])[:-1] + ") {"


def _declaration(op: Input) -> str:
    plain = f"{op.label}: {op.type}{' constant' if op.constant else ''}"
    if op.strides is None:
        return plain
    return f"{plain} strides({','.join('?' if s is None else str(s) for s in op.strides)})"


def _input(node: Node) -> Input:
    assert isinstance(node.op, Input)
    return node.op


def _relation(fact: Fact) -> str:
    return f"{expr_text(fact.left)} {fact.relation} {expr_text(fact.right)}"


def _comment(node: Node) -> str:
    origin = node.origin
    return f"  # {origin}" if origin is not None and origin.known else ""


def _value(value: Any) -> str:
    """Print an attribute so that `_Reader.value` reads it back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, Expr):
        return expr_text(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        items = [_value(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, np.generic):
        return _value(value.item())
    if value is None:
        return "none"
    if isinstance(value, Graph):  # the body of a loop
        return text(value).replace("\n", "\n    ")
    raise GraphTextError(f"{value!r} has no text form and cannot be an attribute")


# ---- parser ----------------------------------------------------------------------------------

_NAME = re.compile(r"[^\W\d][\w.]*")
_GRAPH_NAME = re.compile(r"[^\s(){}]+")
_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_CONSTANT = re.compile(
    r"(-?(?:inf|nan|true|false|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?))\s*:\s*([a-z]\w*)"
)
_FLOAT = re.compile(r"-?\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)$")
_RELATION = re.compile(r"([^=!<\n#}]+?)\s*(==|!=|<=|<)\s*([^=!<\n#}]+)")
_STRIDE = re.compile(r"\?|\d+")
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
    "-nan": float("-nan"),
}
_DTYPES: dict[str, DType] = {d.name: d for d in DTYPES}
RESERVED = frozenset({*_WORDS, *_DTYPES, "min", "max", "size"})
"""Words that cannot name a size."""


def parse(source: str) -> Graph:
    """Parse a graph.

    Raises GraphTextError with the position of the fault, or ShapeError and DTypeError for operands
    that do not fit an operator whose type is left out.
    """
    reader = _Reader(source)
    try:
        return reader.graph()
    except RecursionError:
        reader.fail("a text with less nesting")


@lru_cache(maxsize=1024)
def _index(source: str) -> Index:
    return parse_expr(source, size)


class _Reader:
    """A cursor over the text, with one method for each rule of the grammar."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.values: dict[str, Node] = {}
        self.constants: dict[tuple[str, str], Node] = {}
        self.nested = 0
        """Tuples open around the value that is read."""
        limit = beyond_limits(source)
        if limit is not None:
            self.fail(limit[1], limit[0], MAX_QUOTED_CHARS)

    # -- the cursor

    def fail(self, expected: str, at: int | None = None, length: int = 1) -> NoReturn:
        self.blank()
        position_in_source = self.at if at is None else at
        quoted = self.source[
            position_in_source : position_in_source + min(max(length, 12), MAX_QUOTED_CHARS)
        ].split("\n")[0]
        position = GraphTextError.position(self.source, position_in_source)
        raise GraphTextError(
            expected=expected,
            found=repr(quoted[: max(length, 1)] if length > 1 else quoted) if quoted else "the end",
            source=self.source,
            length=length,
            line=position["line"],
            column=position["column"],
        )

    def blank(self) -> None:
        match = _BLANK.match(self.source, self.at)
        assert match is not None
        self.at = match.end()

    def sees(self, literal: str) -> bool:
        """Consume `literal` if it comes next; return whether it did."""
        self.blank()
        if not self.source.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def need(self, literal: str) -> None:
        if not self.sees(literal):
            self.fail(f"`{literal}`")

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        self.blank()
        match = pattern.match(self.source, self.at)
        if match is None:
            self.fail(expected)
        self.at = match.end()
        return match

    def name(self, expected: str) -> str:
        return self.match(_NAME, expected)[0]

    def listed(self, end: str, item: Callable[[], T]) -> list[T]:
        """Parse items with commas between them, up to their end."""
        items: list[T] = []
        while not self.sees(end):
            if items:
                self.need(",")
            items.append(item())
        return items

    def end(self) -> None:
        self.blank()
        if self.at < len(self.source):
            self.fail("the end")

    def raw(self) -> str:
        """Consume everything up to a comma or closing bracket outside all brackets."""
        depth = 0
        start = self.at
        while self.at < len(self.source):
            c = self.source[self.at]
            if depth == 0 and c in ",)]}\n":
                break
            depth += (c in "([") - (c in ")]")
            if depth > MAX_NESTED:
                self.fail(f"at most {MAX_NESTED} brackets inside one another")
            self.at += 1
        return self.source[start : self.at]

    def index(self) -> Index:
        self.blank()
        start = self.at
        source = self.raw().strip()
        return self.expression(source, start)

    def expression(self, source: str, start: int) -> Index:
        try:
            return _index(source)
        except BeyondLimit as error:
            self.fail(str(error), start, min(len(source), MAX_QUOTED_CHARS))
        except (ValueError, ZeroDivisionError):
            self.fail("an index expression", start, len(source))

    # -- the grammar

    def graph(self) -> Graph:
        graph = self.nested_graph()
        self.end()
        return graph

    def body(self) -> Graph:
        """Parse a graph that is an attribute; it has names of its own."""
        outer, self.values, self.constants = (self.values, self.constants), {}, {}
        self.nested += 1
        if self.nested > MAX_NESTED:
            self.fail(f"at most {MAX_NESTED} graphs inside one another")
        graph = self.nested_graph()
        self.nested -= 1
        self.values, self.constants = outer
        return graph

    def nested_graph(self) -> Graph:
        self.need("graph")
        name = self.match(_GRAPH_NAME, "the graph's name")[0]
        self.need("(")
        inputs = self.listed(")", self.input)
        self.need("{")
        facts: list[Fact] = []
        while self.word("require"):
            facts.append(self.fact())
        while not self.word("return"):
            self.line()
        outputs, checks = self.operands(), list[Node]()
        if self.sees(";"):
            self.need("check")
            checks = self.operands()
        self.need("}")
        return Graph(name, tuple(inputs), (*outputs, *checks), tuple(facts), len(checks))

    def operands(self) -> list[Node]:
        """Parse the operands of a return, up to its end."""
        self.blank()
        result: list[Node] = []
        while not self.source.startswith((";", "}"), self.at):
            if result:
                self.need(",")
            result.append(self.operand())
            self.blank()
        return result

    def word(self, word: str) -> bool:
        self.blank()
        match = _NAME.match(self.source, self.at)
        if match is None or match[0] != word:
            return False
        self.at = match.end()
        return True

    def define(self, name: str, node: Node, at: int) -> Node:
        if name in self.values:
            self.fail("a new name", at, len(name))
        self.values[name] = node
        return node

    def input(self) -> Node:
        self.blank()
        at = self.at
        label = self.name("an input's name")
        self.need(":")
        declared = self.type()
        constant = bool(self.word("constant"))
        strides: tuple[int | None, ...] | None = None
        if self.word("strides"):
            self.need("(")
            strides = tuple(self.listed(")", self.stride))
        op = Input(label, declared, strides, constant)
        return self.define(label, Node(op, (), declared), at)

    def stride(self) -> int | None:
        stride = self.match(_STRIDE, "a stride or `?`")[0]
        return None if stride == "?" else int(stride)

    def type(self) -> TensorType:
        self.blank()
        at = self.at
        name = self.name("an element type")
        if name not in _DTYPES:
            self.fail("an element type (f32, i64; numbers count bits)", at, len(name))
        self.need("[")
        return TensorType(_DTYPES[name], tuple(self.listed("]", self.index)))

    def fact(self) -> Fact:
        match = self.match(_RELATION, "a relation of sizes")
        left, right = (self.expression(match[k].strip(), match.start(k)) for k in (1, 3))
        return Fact(left, match[2], right)

    def line(self) -> None:
        self.blank()
        at = self.at
        name = self.name("a value, `require` or `return`")
        self.need("=")
        self.blank()
        operator_at = self.at
        operator = self.name("an operator")
        self.need("(")
        operands = self.listed(")", self.operand)
        attributes = self.attributes()
        declared = self.type() if self.sees(":") else None
        self.define(name, self.node(operator, attributes, operands, declared, operator_at), at)

    def node(
        self,
        operator: str,
        attributes: dict[str, Any],
        operands: list[Node],
        declared: TensorType | None,
        at: int,
    ) -> Node:
        try:
            op = make_operator(operator, attributes)
        except LookupError:
            self.fail("an operator", at, len(operator))
        except build.MISTAKES as error:
            if isinstance(error, SmeltError):
                raise
            self.fail(f"the attributes of {operator} ({error})", at, len(operator))
        if declared is None:
            try:
                return build.apply(op, *operands)
            except build.MISTAKES as error:
                if isinstance(error, SmeltError):
                    raise
                self.fail(f"operands that {operator} takes ({error})", at, len(operator))
        return Node(op, tuple(operands), declared)

    def operand(self) -> Node:
        self.blank()
        at = self.at
        constant = _CONSTANT.match(self.source, at)
        if constant is not None:
            self.at = constant.end()
            return self.constant(constant[1], constant[2], at)
        name = self.name("a value")
        if name not in self.values:
            self.fail("a value defined above", at, len(name))
        return self.values[name]

    def constant(self, number: str, dtype: str, at: int) -> Node:
        if dtype not in _DTYPES:
            self.fail("a constant with its element type", at)
        key = number, dtype
        if key not in self.constants:
            self.constants[key] = build.constant(_number(number), _DTYPES[dtype])
        return self.constants[key]

    def attributes(self) -> dict[str, Any]:
        return dict(self.listed("}", self.attribute)) if self.sees("{") else {}

    def attribute(self) -> tuple[str, Any]:
        key = self.name("an attribute")
        self.need("=")
        return key, self.value()

    def value(self) -> Any:
        self.blank()
        start = self.at
        if not self.in_brackets() and self.sees("("):
            items: list[Any] = []
            self.nested += 1
            if self.nested > MAX_NESTED:
                self.fail(f"at most {MAX_NESTED} brackets inside one another", start)
            while not self.sees(")"):
                if items:
                    self.need(",")
                    if self.sees(")"):
                        break
                items.append(self.value())
            self.nested -= 1
            return tuple(items)
        if self.source.startswith('"', start):
            return self.string()
        if self.source.startswith("graph ", start):
            return self.body()
        source = self.raw().strip()
        if source in _WORDS or _FLOAT.match(source):
            return _number(source)
        return _DTYPES[source] if source in _DTYPES else self.expression(source, start)

    def in_brackets(self) -> bool:
        """Whether a bracket here opens a part of an expression, not a tuple.

        An example is (n + 1)//2.
        """
        depth = 0
        for position in range(self.at, len(self.source)):
            depth += {"(": 1, ")": -1}.get(self.source[position], 0)
            if depth == 0:
                return position > self.at and self.source[position + 1 :].lstrip()[:1] in tuple(
                    "+-*/%"
                )
        return False

    def string(self) -> str:
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.source, self.at)
        except ValueError:
            self.fail("a closed string")
        return str(value)


def _number(source: str) -> Any:
    if source in _WORDS:
        return _WORDS[source]
    return float(source) if _FLOAT.match(source) else int(source)


@lru_cache(maxsize=512)
def _parse_cached(source: str) -> Graph:
    """Parse a stored graph, cached because the layers of a network repeat them."""
    return parse(source)


register(Graph, text, _parse_cached)
