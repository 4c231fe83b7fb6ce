"""Write records as JSON data, and read them back by the types of their fields.

Records are data classes and named tuples. Their fields become the keys of an object; those that
have their default values are left out. Index expressions, dtypes, bytes and what `register` adds
are text. A union of records is read as the first one that has the keys as fields.

>>> from typing import NamedTuple
>>> from smelt.types.expr import size
>>> class Block(NamedTuple):
...     extents: tuple[Index, ...]
...     itemsize: int = 4
>>> to_data(Block((size("n") * 2, 3))), to_data(Block((), 8), full=True)
({'extents': ['n*2', 3]}, {'extents': [], 'itemsize': 8})
>>> from_data(Block, {"extents": ["n*2", 3]}) == Block((size("n") * 2, 3))
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from smelt.types.dtype import DTYPES, DType
from smelt.types.expr import Expr, Index, text
from smelt.types.text import parse_sizes

__all__ = ["Index", "from_data", "register", "to_data"]

Reader = Callable[[Any], Any]
_DTYPES: Final = {d.name: d for d in DTYPES}
_PLAIN: Final = (str, int, float, bool, NoneType)
_LEAVES: Final[dict[Any, tuple[Callable[[Any], Any], Reader]]] = {
    Expr: (text, parse_sizes),
    DType: (lambda dtype: dtype.name, _DTYPES.__getitem__),
    bytes: (bytes.hex, bytes.fromhex),
}
"""How values of a type are written and read, other than records and collections."""


def register(kind: type, write: Callable[[Any], Any], read: Reader) -> None:
    """Say how values of a type become JSON data and are read again."""
    _LEAVES[kind] = write, read


def to_data(value: Any, *, full: bool = False) -> Any:
    """Return dicts, lists and scalars for `json`; non-finite numbers become None.

    With `full`, fields that have their default values are written too.
    """
    kind = type(value)
    if kind in _LEAVES:
        return _LEAVES[kind][0](value)
    defaults = _defaults(kind)
    if defaults is not None:
        pairs = ((n, getattr(value, n), default) for n, default in defaults.items())
        return {n: to_data(x, full=full) for n, x, d in pairs if full or d is MISSING or x != d}
    if isinstance(value, tuple | list):
        return [to_data(x, full=full) for x in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(k): to_data(x, full=full) for k, x in items}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_data(kind: Any, data: Any) -> Any:
    """Rebuild a value of a type from `to_data`.

    Raises TypeError, ValueError or KeyError for malformed data.
    """
    return _reader(kind)(data)


@cache
def _defaults(kind: type) -> Mapping[str, Any] | None:
    """Return the fields of a record with their defaults; None for another type."""
    if is_dataclass(kind):
        return {f.name: f.default for f in fields(kind)}
    names: tuple[str, ...] | None = getattr(kind, "_fields", None)
    defaults: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
    return None if names is None else {n: defaults.get(n, MISSING) for n in names}


@cache
def _reader(kind: Any) -> Reader:
    """Return what reads values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda data: data
    if kind in _LEAVES:
        return _LEAVES[kind][1]
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is Literal:
        return _choice_reader(arguments)
    if origin is tuple and arguments[-1] is not ...:
        readers = tuple(map(_reader, arguments))
        return lambda data: tuple(r(x) for r, x in zip(readers, _items(data), strict=True))
    if origin in (tuple, list):
        read_each = _each_reader(arguments[0])
        return lambda data: origin(read_each(_items(data)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read_each = _each_reader(arguments[1])
        return lambda data: dict(zip(_object(data), read_each(data.values()), strict=True))
    return _plain_reader(kind) if kind in _PLAIN else _record_reader(kind)


def _each_reader(kind: Any) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return what reads many values of a type, most often plain ones."""
    read, as_they_are = _reader(kind), {_plain_kind(kind)}
    return lambda items: items if {*map(type, items)} == as_they_are else map(read, items)


def _record_reader(kind: Any) -> Reader:
    """Return what reads a record, whose fields may have records of this type inside."""
    readers: dict[str, Reader] = {}
    plain: dict[str, Any] = {}

    def read(data: Any) -> Any:
        if not readers:
            types = {n: t for n, t in get_type_hints(kind).items() if n in (_defaults(kind) or ())}
            plain.update({n: _plain_kind(t) for n, t in types.items()})
            readers.update({n: _reader(t) for n, t in types.items()})
        pairs = _object(data).items()
        return kind(**{n: x if type(x) is plain.get(n) else readers[n](x) for n, x in pairs})

    return read


def _plain_kind(kind: Any) -> Any:
    """Return the plain type among those of a union, or None."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((k for k in kinds if k in _PLAIN), None)


def _union_reader(kinds: Sequence[Any]) -> Reader:
    """Return what reads a value of one of several types."""
    nested = [k for k in kinds if k not in _PLAIN]

    def read(data: Any) -> Any:
        if type(data) in kinds:
            return data
        if type(data) is int and float in kinds:
            return float(data)
        for kind in nested:
            if len(nested) == 1 or _object(data).keys() <= (_defaults(kind) or {}).keys():
                return _reader(kind)(data)
        raise TypeError(f"{data!r:.40} is of none of {kinds}")

    return read


def _choice_reader(choices: Sequence[Any]) -> Reader:
    def read(data: Any) -> Any:
        if data not in choices:
            raise ValueError(f"{data!r:.40} is none of {choices}")
        return data

    return read


def _plain_reader(kind: Any) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind and (kind, type(data)) != (float, int):
            raise TypeError(f"{data!r:.40} is not of type {kind.__name__}")
        return kind(data)

    return read


def _items(data: Any) -> Sequence[Any]:
    if type(data) not in (list, tuple):
        raise TypeError(f"{data!r:.40} is not a list")
    return cast("Sequence[Any]", data)


def _object(data: Any) -> dict[str, Any]:
    if type(data) is not dict:
        raise TypeError(f"{data!r:.40} is not an object")
    return cast("dict[str, Any]", data)
