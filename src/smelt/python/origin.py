"""Source locations: the user's line behind each operator and error, resolved lazily.

Recording happens once per operator and has to take well under a microsecond, so it stores only a
code object and an instruction offset; the source file is read when the location is printed.

>>> def user():
...     return here()
>>> user().function
'user'
"""

from __future__ import annotations

import linecache
import sys
from itertools import islice
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from smelt.python.imports import fork_safe_import

if TYPE_CHECKING:
    from collections.abc import Mapping


_PACKAGE = __file__.rpartition("python/origin.")[0]
# Workloads that ship inside the package count as user code: their lines are shown.
_GUESTS = (_PACKAGE + "bench/", _PACKAGE + "demo/")
# File name -> whether it is Smelt's.  Strings cache their hash, so the lookup is cheap.
_OURS: dict[str, bool] = {}


class Place(NamedTuple):
    """A resolved origin. Lines count from 1 (0: unknown), columns from 0 (-1: unknown)."""

    file: str
    line: int
    function: str
    text: str
    column: int = -1
    end_column: int = -1


class Origin:
    """A place in the user's program: `file`, `line`, `function` and the `text` of that line.

    Two origins are equal if they name the same place. An origin made from data (a torch node, a
    report that was read back) and one recorded by `here` are indistinguishable.

    >>> str(Origin("user.py", 12, "forward", "y = x + b"))
    'user.py:12'
    """

    __slots__ = ("_code", "_lasti", "_place")

    _code: CodeType | None
    _lasti: int
    _place: Place | None

    def __init__(
        self,
        file: str,
        line: int,
        function: str = "",
        text: str = "",
        column: int = -1,
        end_column: int = -1,
    ) -> None:
        self._code = None
        self._lasti = -1
        self._place = Place(file, line, function, text, column, end_column)

    @staticmethod
    def here(depth: int = 1) -> Origin:
        """Record the innermost frame outside the package, at least `depth` frames above the caller.

        Costs a few hundred nanoseconds, since nothing is resolved. Returns `UNKNOWN` if every frame
        is the package's own (a helper thread, an `atexit` handler).
        """
        frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
        ours = _OURS
        while frame is not None:
            code = frame.f_code
            name = code.co_filename
            is_ours = ours.get(name)
            if is_ours is None:
                is_ours = ours[name] = _is_ours(name)
            if not is_ours:
                origin = Origin.__new__(Origin)
                origin._code = code
                origin._lasti = frame.f_lasti
                origin._place = None
                return origin
            frame = frame.f_back
        return UNKNOWN

    @staticmethod
    def of_caller() -> Origin | None:
        """Record the frame two above this call if it is the user's; None otherwise."""
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        name = frame.f_code.co_filename
        is_ours = _OURS.get(name)
        if is_ours is None:
            is_ours = _OURS[name] = _is_ours(name)
        if is_ours:
            return None
        origin = Origin.__new__(Origin)
        origin._code = frame.f_code
        origin._lasti = frame.f_lasti
        origin._place = None
        return origin

    @property
    def place(self) -> Place:
        """The resolved location; resolved on first use."""
        place = self._place
        if place is None:
            assert self._code is not None
            place = self._place = _resolve(self._code, self._lasti)
            self._code = None  # the code object may hold a whole module's constants alive
        return place

    @property
    def instruction(self) -> tuple[int, int] | None:
        """Identity of the code object and offset in it; None once the place is resolved."""
        return None if self._code is None else (id(self._code), self._lasti)

    @property
    def file(self) -> str:
        return self.place.file

    @property
    def line(self) -> int:
        """Line number from 1; 0 if unknown."""
        return self.place.line

    @property
    def function(self) -> str:
        return self.place.function

    @property
    def text(self) -> str:
        """The source line without indentation; empty if the file cannot be read."""
        return self.place.text

    @property
    def known(self) -> bool:
        return self.place.line > 0

    @property
    def assigned(self) -> str:
        """Name that the source gives to the expression; empty without one.

        That of the variable it is assigned to, or of the key, field or function it is the value of.
        """
        return self._source_names().values.get(_span(self.place), "")

    @property
    def called(self) -> tuple[str, ...]:
        """Names of what the program calls here: a function, or an operator of Python.

        The name comes first, then other spellings (`matmul`, `@`, `x @ w`); empty without source.
        """
        return self._source_names().calls.get(_span(self.place), ())

    @property
    def assigned_items(self) -> Mapping[int, str]:
        """Names of unpacked or indexed items, as in `n, d = x.shape`."""
        return self._source_names().items.get(_span(self.place), {})

    def without_name(self) -> Origin:
        """Return this place for another value than the one that the source names there.

        A gradient belongs to the line of the operator that it is of, and is not its value.
        """
        result = _UnnamedOrigin.__new__(_UnnamedOrigin)
        result._code, result._lasti, result._place = self._code, self._lasti, self._place
        return result

    def _source_names(self) -> Any:
        """Return the names in the source file; only reports import the parser."""
        return fork_safe_import("smelt.python.source_names").names_of_file(self.place.file)

    def matches_name(self, name: str) -> bool:
        """Return whether a front end knows this operator by `name` (such as a module path)."""
        return False

    def caret(self) -> str:
        """Return blanks and carets to print under `text`; empty if the columns are unknown.

        >>> print(Origin("u.py", 1, "", "y = x + b", 4, 9).caret())
            ^^^^^
        """
        place = self.place
        if place.column < 0 or place.end_column <= place.column or not place.text:
            return ""
        width = min(place.end_column, len(place.text)) - place.column
        return " " * place.column + "^" * width if width > 0 else ""

    def __str__(self) -> str:
        place = self.place
        return f"{place.file}:{place.line}" if place.line else place.file

    def __repr__(self) -> str:
        return f"Origin({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.place == other.place if isinstance(other, Origin) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.place)

    def __reduce__(self) -> tuple[type[Origin], tuple[str | int, ...]]:
        return Origin, tuple(self.place)


class _UnnamedOrigin(Origin):
    """Origin of a value that its line does not name."""

    __slots__ = ()

    @property
    def assigned(self) -> str:
        return ""

    @property
    def called(self) -> tuple[str, ...]:
        return ()


UNKNOWN = Origin("<unknown>", 0)


here = Origin.here


def is_package_file(file: str) -> bool:
    """Return whether a file is Smelt's own code, and no workload that ships with it."""
    if file.startswith(_PACKAGE):
        return not file.startswith(_GUESTS)
    return file.startswith("<smelt ")  # code generated by a front end


def user_frame(depth: int = 1) -> FrameType | None:
    """Return the innermost frame outside the package, at least `depth` above the caller."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        name = frame.f_code.co_filename
        is_ours = _OURS.get(name)
        if is_ours is None:
            is_ours = _OURS[name] = _is_ours(name)
        if not is_ours:
            break
        frame = frame.f_back
    return frame


def _is_ours(file: str) -> bool:
    """Return whether a file is Smelt's, NumPy's or PyTorch's: the user's line calls those."""
    if file.startswith((_PACKAGE, "<smelt ")):
        return is_package_file(file)
    paths = (getattr(sys.modules.get(name), "__file__", None) for name in ("numpy", "torch"))
    return any(path and file.startswith(path.rpartition("/")[0] + "/") for path in paths)


def _resolve(code: CodeType, lasti: int) -> Place:
    """Resolve line and columns of an instruction.

    `co_positions` has one entry per two-byte code unit.
    """
    position = (
        next(islice(code.co_positions(), lasti // 2, None), (None,) * 4) if lasti >= 0 else ()
    )
    line, end_line, column, end_column = position or (None,) * 4
    line = line or code.co_firstlineno
    raw = linecache.getline(code.co_filename, line).rstrip("\n")
    text = raw.strip()
    indent = len(raw) - len(raw.lstrip())
    if column is None or end_column is None or not text:
        return Place(code.co_filename, line, code.co_name, text)
    # Columns count UTF-8 bytes: convert, and let an expression of several lines end with the first.
    start = _characters(raw, column) - indent
    end = _characters(raw, end_column) - indent if end_line == line else len(text)
    return Place(code.co_filename, line, code.co_name, text, start, end)


def _span(place: Place) -> tuple[int, int, int]:
    return place.line, place.column, place.end_column


def _characters(line: str, offset: int) -> int:
    return len(line.encode()[:offset].decode(errors="replace"))
