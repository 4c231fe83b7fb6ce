"""Round factors of products of a half type, for matrix units, which multiply no other.

    s' = s + dot(w, v[n,e] over n as bf16)      s' = s + dot(bf16(w), v[n,e] over n as bf16)

The units then multiply once, instead of once for each term of a float32 factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.kernel.ir import Cast, Dot, Kernel, Let, Load, Ref, Value
from smelt.kernel.walk import map_values, statements
from smelt.types.dtype import DType


def round_factors(kernel: Kernel) -> Kernel:
    """Return a kernel whose dots of a half type have both factors in that type."""
    values = {s.name: s.value for s in statements(kernel) if isinstance(s, Let)}
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}

    def rounded(value: Value, dtype: DType) -> Value:
        is_narrow = _type_of(value, values, types) == dtype
        return value if is_narrow else Cast(value, dtype)

    def change(v: Value) -> Value:
        if not isinstance(v, Dot) or not v.dtype.is_float or v.dtype.compute == v.dtype:
            return v
        left, right = rounded(v.left, v.dtype), rounded(v.right, v.dtype)
        return v if (left, right) == (v.left, v.right) else replace(v, left=left, right=right)

    return map_values(kernel, change)


def _type_of(value: Value, values: Mapping[str, Value], types: Mapping[str, DType]) -> DType | None:
    """Return the type of a loaded element, or that to which a value was rounded."""
    match value:
        case Ref(name=name, next=False) if name in values and values[name] != value:
            return _type_of(values[name], values, types)
        case Cast(arg=arg, dtype=dtype):
            return _type_of(arg, values, types) if dtype.compute == dtype else dtype
        case Load(param=name):
            return types[name]
        case _:
            return None
