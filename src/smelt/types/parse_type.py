"""Parse the text of a type: `f32[n,4]`.

>>> parse_type("f32[n*4, 3]"), parse_type("float32[min(m, n)]").dtype
(TensorType(dtype=f32, shape=(n*4, 3)), f32)
"""

from __future__ import annotations

import re

from smelt.errors import ExprTextError
from smelt.types.dtype import parse_in_text
from smelt.types.expr import Index, size
from smelt.types.parse_expr import parse
from smelt.types.tensor import TensorType

_TYPE = re.compile(r"\s*([^\s\[\]]+)\s*\[([^\[\]]*)\]\s*")
"""Element type, and dimensions in brackets."""
_COMMA = re.compile(r",(?![^()]*\))")
"""Comma outside of `min(m, n)`."""


def parse_type(source: str) -> TensorType:
    """Return the type that a text names; the number of its element type counts bits.

    Raises ExprTextError for other text, DTypeError for an unknown element type.
    """
    match = _TYPE.fullmatch(source)
    if match is None:
        raise ExprTextError(f"{source!r} is not a type such as f32[n,4]")
    dims = _COMMA.split(match[2]) if match[2].strip() else []
    return TensorType(parse_in_text(match[1]), tuple(parse_dimension(d.strip()) for d in dims))


def parse_dimension(source: str) -> Index:
    """Return the number or expression over sizes that a text names.

    Raises ExprTextError.
    """
    try:
        return parse(source, size)
    except ValueError:
        raise ExprTextError(
            f"{source!r} is not a dimension",
            source=source,
            line=1,
            column=1,
            length=len(source),
            hint="Use numbers, names of sizes, + - * // and %.",
        ) from None
