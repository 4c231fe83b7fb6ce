"""Round computed factors of products whose other factor and results have one half type.

    s' = s + dot(w, v[n,e] over n)                s' = s + dot(bf16(w), v[n,e] over n)
    y[m,e] = s / l                                y[m,e] = s / l

Matrix units multiply factors of one half type; a float32 beside them takes a product for each of
its terms. Operators that run one by one round a factor to the type of the other one, and so do the
attention kernels of T. Dao, "FlashAttention-2", 2023: weights meet the values in their type, which
is the result's. Sums of weights keep all bits.

A factor that is an array of float32 keeps its bits, and so does one whose products reach a result
of more bits. A float16 has fewer exponents than a float32: weights that are scaled later might
exceed them, so that only bfloat16 counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from smelt.kernel.ir import Cast, Dot, Kernel, Let, Load, Ref, Statement, Store, Update, Value
from smelt.kernel.walk import map_values, statements, visit_statement
from smelt.types.dtype import DType, bf16, f32


def round_factors(kernel: Kernel) -> Kernel:
    """Return a kernel whose float32 factors beside bfloat16 ones are rounded, for such results."""
    body = list(statements(kernel))
    values = {s.name: s.value for s in body if isinstance(s, Let)}
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)}
    dots = {v for s in body for v in visit_statement(s) if isinstance(v, Dot) and v.dtype == f32}
    rounded: dict[Value, Dot] = {}
    for dot in dots:
        new = _rounded(dot, values, types)
        if new is not dot and _result_types(dot, body, types) == {bf16}:
            rounded[dot] = new
    return map_values(kernel, lambda v: rounded.get(v, v)) if rounded else kernel


def _rounded(dot: Dot, values: Mapping[str, Value], types: Mapping[str, DType]) -> Dot:
    """Return a contraction with its computed factor rounded to the type of the loaded one."""
    left, right = (_source(v, values) for v in (dot.left, dot.right))
    if _is_computed(left) and _type_of(right, types) == bf16:
        return replace(dot, left=Cast(dot.left, bf16))
    if _is_computed(right) and _type_of(left, types) == bf16:
        return replace(dot, right=Cast(dot.right, bf16))
    return dot


def _source(value: Value, values: Mapping[str, Value]) -> Value:
    """Return what a value is behind names and conversions to wider types."""
    match value:
        case Ref(name=name, next=False) if name in values and values[name] != value:
            return _source(values[name], values)
        case Cast(arg=arg, dtype=dtype) if dtype.compute == dtype:
            return _source(arg, values)
        case _:
            return value


def _is_computed(value: Value) -> bool:
    return not isinstance(value, Load | Cast)


def _type_of(value: Value, types: Mapping[str, DType]) -> DType | None:
    """Return the type of an array's elements, or that to which a value is rounded."""
    match value:
        case Load(param=name):
            return types[name]
        case Cast(dtype=dtype):
            return dtype
        case _:
            return None


def _result_types(dot: Dot, body: Iterable[Statement], types: Mapping[str, DType]) -> set[DType]:
    """Return the types of all results that depend on a contraction."""
    names: set[str] = set()
    result: set[DType] = set()
    count = -1
    while count != len(names) + len(result):
        count = len(names) + len(result)
        for s in body:
            if not any(
                v == dot or (isinstance(v, Ref) and v.name in names) for v in visit_statement(s)
            ):
                continue
            match s:
                case Store(param=param):
                    result.add(types[param])
                case Update(state=state):
                    names.add(state)
                case Let(name=name):
                    names.add(name)
                case _:  # a loop's end or a position
                    return set()
    return result
