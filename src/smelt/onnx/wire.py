"""Decode protobuf's wire format with limits, without the protobuf package.

A message is read by a table, field number -> (name, kind). Lengths are checked against the bytes
that are left, nesting and the number of messages are limited, and bytes stay views of the file.

>>> reader = Reader(memoryview(bytes([8, 5, 18, 2, 104, 105])))
>>> reader.message({1: ("size", INTEGER), 2: ("name", TEXT)})
{'size': 5, 'name': 'hi'}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from smelt.errors import OnnxFileError, OnnxLimitError

MAX_NESTED_MESSAGES = 110
"""Deepest nesting of messages: a graph inside a node's attribute takes three levels."""
MAX_MESSAGES = 5_000_000
MAX_NAME_BYTES = 1 << 20

INTEGER, FLOAT, DOUBLE, TEXT, BYTES = "integer", "float", "double", "text", "bytes"
Schema = Mapping[int, tuple[str, Any]]
"""Field number -> (name, kind): a kind above, a schema for a message, or `Many` of one."""

_PACKED = {FLOAT: np.dtype("<f4"), DOUBLE: np.dtype("<f8")}
_FIXED = {FLOAT: (5, "<f"), DOUBLE: (1, "<d")}


class Many:
    """Kind of a repeated field."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any) -> None:
        self.kind = kind


def schemas(text: str) -> dict[str, dict[int, tuple[str, Any]]]:
    """Return schemas by name from lines `Name: number field kind, ..`; `*kind` is repeated.

    >>> schemas("Point: 1 x float, 2 of Line\\nLine: 3 ends *Point")["Point"][1]
    ('x', 'float')
    """
    lines = [line.partition(":") for line in text.strip().splitlines()]
    messages: dict[str, dict[int, tuple[str, Any]]] = {name.strip(): {} for name, _, _ in lines}
    kinds: dict[str, Any] = {k: k for k in (INTEGER, FLOAT, DOUBLE, TEXT, BYTES)} | messages
    for name, _, fields in lines:
        for field in filter(str.strip, fields.split(",")):
            number, label, kind = field.split()
            one = kinds[kind.removeprefix("*")]
            messages[name.strip()][int(number)] = label, Many(one) if kind[0] == "*" else one
    return messages


class Reader:
    """Reads messages from the bytes of one file."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._messages_left = MAX_MESSAGES

    def message(
        self, schema: Schema, begin: int = 0, end: int | None = None, depth: int = 0
    ) -> dict[str, Any]:
        """Return the fields of a message by name; unknown fields are skipped.

        Raises OnnxFileError for bytes that are not a message, OnnxLimitError beyond the limits.
        """
        if depth > MAX_NESTED_MESSAGES:
            raise OnnxLimitError(f"messages nested more than {MAX_NESTED_MESSAGES} deep")
        self._messages_left -= 1
        if self._messages_left < 0:
            raise OnnxLimitError(f"more than {MAX_MESSAGES:,} messages")
        fields: dict[str, Any] = {}
        for number, wire, value, first, last in self._fields(
            begin, len(self.data) if end is None else end
        ):
            entry = schema.get(number)
            if entry is None:
                continue
            name, kind = entry
            if isinstance(kind, Many):
                values = fields.setdefault(name, [])
                self._append(values, kind.kind, wire, value, first, last, depth)
            else:
                fields[name] = self._one(kind, wire, value, first, last, depth)
        return fields

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield (field number, wire type, integer, begin, end) of each field."""
        while at < end:
            key, at = self._integer(at, end)
            wire = key & 7
            if wire == 0:
                value, at = self._integer(at, end)
                yield key >> 3, 0, value, at, at
                continue
            size = {1: 8, 5: 4}.get(wire, 0)
            if wire == 2:
                size, at = self._integer(at, end)
            elif not size:
                raise OnnxFileError(f"no field of a message at byte {at}")
            if size > end - at:
                raise OnnxFileError(f"{size} bytes announced at byte {at}, {end - at} are left")
            yield key >> 3, wire, 0, at, at + size
            at += size

    def _integer(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self.data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF, at
        raise OnnxFileError(f"a number without an end at byte {at}")

    def _one(self, kind: Any, wire: int, value: int, first: int, last: int, depth: int) -> Any:
        if kind is INTEGER:
            self._expect(wire == 0, first)
            return value - (1 << 64) if value >> 63 else value
        if not isinstance(kind, str):
            self._expect(wire == 2, first)
            return self.message(kind, first, last, depth + 1)
        if kind in _FIXED:
            self._expect(wire == _FIXED[kind][0], first)
            return struct.unpack_from(_FIXED[kind][1], self.data, first)[0]
        self._expect(wire == 2, first)
        return self.data[first:last] if kind is BYTES else self._text(first, last)

    def _append(
        self, values: list[Any], kind: Any, wire: int, value: int, first: int, last: int, depth: int
    ) -> None:
        """Append one element, or the elements of a packed field."""
        if wire != 2 or not isinstance(kind, str) or kind not in (INTEGER, FLOAT, DOUBLE):
            values.append(self._one(kind, wire, value, first, last, depth))
        elif kind is INTEGER:
            values.extend(self._packed_integers(first, last))
        else:
            self._expect((last - first) % _PACKED[kind].itemsize == 0, first)
            values.extend(np.frombuffer(self.data[first:last], _PACKED[kind]).tolist())

    def _packed_integers(self, first: int, last: int) -> list[int]:
        """Decode a packed field of integers at once: each ends with a byte below 128."""
        raw = np.frombuffer(self.data[first:last], np.uint8)
        ends = np.flatnonzero(raw < 128)
        self._expect(not raw.size or (bool(ends.size) and int(ends[-1]) == raw.size - 1), first)
        starts = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
        lengths = ends - starts + 1
        self._expect(not lengths.size or int(lengths.max()) <= 10, first)
        result = np.zeros(ends.size, np.uint64)
        for k in range(int(lengths.max()) if lengths.size else 0):
            among = lengths > k
            part = (raw[starts[among] + k] & 127).astype(np.uint64)
            result[among] |= part << np.uint64(7 * k)
        return result.view(np.int64).tolist()

    def _text(self, first: int, last: int) -> str:
        if last - first > MAX_NAME_BYTES:
            raise OnnxLimitError(f"a name of {last - first} bytes")
        try:
            return bytes(self.data[first:last]).decode("utf-8")
        except UnicodeDecodeError:
            raise OnnxFileError(f"a name at byte {first} is not UTF-8") from None

    def _expect(self, fits: bool, at: int) -> None:
        if not fits:
            raise OnnxFileError(f"a field of another type at byte {at}")
