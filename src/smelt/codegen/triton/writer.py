"""Write the lines of a Triton function: expressions with named axes, and temporaries.

>>> writer = Writer({"r": 0, "c": 1})
>>> row, column = Text("a", ("r",), f32), Text("b", ("c",), f32)
>>> writer.spread(row, ("r", "c")), writer.spread(column, ("r", "c"))
('a[:, None]', 'b[None, :]')
>>> writer.bind("a + a", ("r",), f32).code, writer.lines
('t1', ['    t1 = a + a'])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

from smelt.errors import DeviceKernelError
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, f32, i32

_TYPE_NAMES = {"bool": "int1", "bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def type_name(dtype: DType) -> str:
    """Return the name of an element type in Triton.

    >>> type_name(bool_), type_name(i32)
    ('tl.int1', 'tl.int32')
    """
    return f"tl.{_TYPE_NAMES.get(dtype.name, dtype.long)}"


@dataclass(frozen=True, slots=True)
class Text:
    """A value in the program: its expression, its lane axes in the kernel's order, its type.

    A literal also has its `number`. `is_atom` says that the expression needs no parentheses.
    `narrow` is a type of fewer bits that represents every element.
    """

    code: str
    axes: tuple[str, ...]
    dtype: DType
    number: float | int | bool | None = None
    is_atom: bool = True
    narrow: DType | None = None
    stored: Text | None = None
    """The elements in their type in memory, with zeros in lanes that do not exist."""

    @property
    def operand(self) -> str:
        """The expression as an operand of another one."""
        return self.code if self.is_atom else f"({self.code})"


def literal(dtype: DType, value: float | int | bool) -> Text:
    """Return a constant of a register type.

    Numbers of Python are float32 or int32 in Triton; other types are spelled with `tl.full`.
    """
    value, dtype = dtype.round_number(value), dtype.compute
    if dtype.is_float:
        with np.errstate(over="ignore"):
            number = float(np.asarray(value, np.float64).astype(dtype.numpy))
        code = _float_code(number, dtype)
    elif dtype == bool_:
        number, code = bool(value), str(bool(value))
    else:
        bits = np.array(int(value) & ((1 << dtype.bits) - 1), f"u{dtype.itemsize}")
        number = int(bits.view(dtype.numpy))
        code = str(number)
    if dtype not in (f32, i32):
        code = f"tl.full([], {code}, {type_name(dtype)})"
    return Text(code, (), dtype, number)


def _float_code(number: float, dtype: DType) -> str:
    """Return the shortest text that is the number after rounding to its type."""
    if math.isnan(number):
        return 'float("nan")'
    if math.isinf(number):
        return 'float("inf")' if number > 0 else 'float("-inf")'
    short = str(dtype.numpy.type(number))
    return short if float(dtype.numpy.type(float(short))) == number else repr(number)


def full(text: Text) -> Text:
    """Return a literal as a tensor without axes; other values unchanged."""
    if text.number is None or text.code.startswith("tl.full"):
        return text
    return Text(f"tl.full([], {text.code}, {type_name(text.dtype)})", (), text.dtype, text.number)


class Writer:
    """Collects the lines of one function; values are aligned by the names of their axes."""

    def __init__(self, order: Mapping[str, int], indent: int = 1) -> None:
        self.order = order
        self.lines: list[str] = []
        self.indent = indent
        self.temporaries = 0

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.indent + text)

    def open(self, text: str) -> None:
        """Append a line that opens a block."""
        self.line(text)
        self.indent += 1

    @contextmanager
    def block(self) -> Generator[None]:
        """Close the blocks that are opened within."""
        before = self.indent
        yield
        self.indent = before

    def inlined(self, emit: Callable[[], Text]) -> Text:
        """Return what `emit` writes, as an expression if that is one line."""
        first, count = len(self.lines), self.temporaries
        result = emit()
        if len(self.lines) != first + 1:
            return result
        name, _, code = self.lines[first].strip().partition(" = ")
        if name != result.code:
            return result
        self.lines.pop()
        self.temporaries = count
        return Text(code, result.axes, result.dtype, is_atom=_is_call(code))

    def bind(self, code: str, axes: tuple[str, ...], dtype: DType) -> Text:
        """Assign an expression to a new temporary."""
        self.temporaries += 1
        name = f"t{self.temporaries}"
        self.line(f"{name} = {code}")
        return Text(name, axes, dtype)

    def bind_pair(
        self, code: str, axes: tuple[str, ...], first: DType, second: DType
    ) -> tuple[Text, Text]:
        """Assign an expression of two values to new temporaries."""
        names = [f"t{self.temporaries + k}" for k in (1, 2)]
        self.temporaries += 2
        self.line(f"{', '.join(names)} = {code}")
        return Text(names[0], axes, first), Text(names[1], axes, second)

    def joint(self, *texts: Text) -> tuple[str, ...]:
        """Return the axes of several values, in the kernel's order."""
        return self.sorted(a for t in texts for a in t.axes)

    def sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return axes without duplicates, in the kernel's order."""
        return tuple(sorted(set(axes), key=self.order.__getitem__))

    @contextmanager
    def ordered(self, axes: Sequence[str]) -> Generator[None]:
        """Write values with their axes in another order, of texts that have one axis each."""
        before, self.order = self.order, {a: k for k, a in enumerate(axes)}
        yield
        self.order = before

    def spread(self, text: Text, axes: tuple[str, ...], *, is_argument: bool = False) -> str:
        """Return the operand with one dimension per axis, of length 1 along missing ones.

        An argument of a function needs no parentheses.
        """
        if text.axes == axes or not text.axes:
            return text.code if is_argument else text.operand
        return f"{text.operand}[{', '.join(':' if a in text.axes else 'None' for a in axes)}]"


def _is_call(code: str) -> bool:
    depth = 0
    for k, character in enumerate(code):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0:
            return k == len(code) - 1 and code.partition("(")[0].replace(".", "").isidentifier()
    return False


def refuse(kernel: str, missing: str) -> NoReturn:
    """Raise DeviceKernelError: the kernel needs `missing`, which Triton's printer lacks."""
    raise DeviceKernelError(kernel=kernel, missing=missing)
