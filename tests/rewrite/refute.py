"""Try to refute rewrite rules: by all values, by edges and chance, by z3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import z3
from tests.strategies.comparison import same_bits
from tests.strategies.data import special_floats

from smelt.rewrite.engine import Call, Num, Rule, Term, Var, evaluate, infer, variables
from smelt.types.dtype import COMPUTABLE, DType, from_numpy

Array = np.ndarray[Any, Any]
EPS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
RANDOM = 3000


def claimed(rule: Rule) -> list[tuple[DType, dict[str, DType]]]:
    """Each element type that the rule claims, with the types of all variables."""
    results: list[tuple[DType, dict[str, DType]]] = []
    for dtype in COMPUTABLE:
        types = infer(rule.left, dtype)
        if types is None or types[0][rule.subject] != dtype or not rule.accepts(dtype):
            continue
        if all(n.value_for(dtype) is not None for n in _numbers_of(rule.left)):
            results.append((dtype, types[0]))
    return results


def _numbers_of(t: Term) -> Iterator[Num]:
    if isinstance(t, Num):
        yield t
    elif isinstance(t, Call):
        for a in t.args:
            yield from _numbers_of(a)


# ---- values ----------------------------------------------------------------------------------


def edges(dtype: DType) -> Array:
    """Values at which things go wrong."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_float:
        more = np.array([3.0, -3.0, 10.0, 0.1, 1.5, -2.5, 1e-3]).astype(dtype.numpy)
        with np.errstate(all="ignore"):
            return np.concatenate([special_floats(dtype), more])
    info = np.iinfo(dtype.numpy)
    near = {info.min, info.min + 1, info.max - 1, info.max, -2, -1, 0, 1, 2, 3, 7, 8, 10}
    return np.array(sorted(v for v in near if info.min <= v <= info.max), dtype.numpy)


def every(dtype: DType) -> Array:
    """All values of a type of 8 or 16 bits."""
    if dtype.kind == "bool":
        return np.array([False, True])
    bits = np.arange(1 << dtype.bits).astype(f"u{dtype.itemsize}")
    return bits.view(dtype.numpy)


def chance(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Random bits, and for floats numbers of usual size too."""
    if dtype.kind == "bool":
        return rng.random(count) < 0.5
    bits = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_float:
        usual = (rng.standard_normal(count) * 4).astype(dtype.numpy)
        with np.errstate(all="ignore"):
            quiet = np.where(np.isnan(bits), np.array(np.nan, dtype.numpy), bits)
            return np.where(rng.random(count) < 0.5, usual, quiet)
    return bits


def grids(types: dict[str, DType]) -> Iterator[dict[str, Array]]:
    """Assignments of arrays to the variables: complete for small types, else edges and chance."""
    names = list(types)
    bits = sum(1 if d.kind == "bool" else d.bits for d in types.values())
    if bits <= 17:
        yield _cross({n: every(d) for n, d in types.items()})
        return
    yield _cross({n: edges(d) for n, d in types.items()})
    rng = np.random.default_rng(len(names))
    yield {n: chance(d, RANDOM, rng) for n, d in types.items()}
    for name in names:  # one at an edge, the others anywhere
        at_edge = np.resize(edges(types[name]), RANDOM)
        yield {n: at_edge if n == name else chance(d, RANDOM, rng) for n, d in types.items()}


def _cross(axes: dict[str, Array]) -> dict[str, Array]:
    grid = np.meshgrid(*axes.values(), indexing="ij") if axes else []
    return {name: g.ravel() for name, g in zip(axes, grid, strict=True)}


def constants(rule: Rule, types: dict[str, DType], dtype: DType) -> Iterator[dict[str, Array]]:
    """Values of the constant variables for which the rule may be used."""
    names = sorted(rule.constants)
    pools = [_constants(types[n]) for n in names]
    for values in product(*pools):
        bound = {n: _number(v) for n, v in zip(names, values, strict=True)}
        if rule.when is None or rule.when(bound, dtype):
            yield dict(zip(names, (np.asarray(v) for v in values), strict=True))


def _constants(dtype: DType) -> Array:
    if dtype.kind == "bool" or dtype.bits <= 8:
        return np.unique(edges(dtype)) if dtype.kind != "bool" else edges(dtype)
    if dtype.is_float:
        powers = 2.0 ** np.array([-100, -14, -13, -3, -1, 1, 2, 7, 14, 100])
        with np.errstate(all="ignore"):
            return np.concatenate([edges(dtype), powers.astype(dtype.numpy)])
    powers = np.array([1 << k for k in range(dtype.bits - 1)], dtype.numpy)
    return np.unique(np.concatenate([edges(dtype), powers]))


def _number(value: Any) -> Any:
    wide = np.asarray(value)
    with np.errstate(all="ignore"):
        return (wide.astype(np.float64) if wide.dtype.kind not in "biu" else wide).item()


# ---- refuting --------------------------------------------------------------------------------


def refutation(rule: Rule, dtype: DType, types: dict[str, DType]) -> str:
    """A counterexample, or an empty string if none was found."""
    free = {n: d for n, d in types.items() if n not in rule.constants}
    for fixed in constants(rule, types, dtype):
        numbers = {n: _number(v) for n, v in fixed.items()}
        computed = {n: np.asarray(f(numbers)).astype(dtype.numpy) for n, f in rule.compute.items()}
        for values in grids(free) if free else [{}]:
            with np.errstate(all="ignore"):
                left = evaluate(rule.left, values | fixed, dtype)
                right = evaluate(rule.right, values | fixed | computed, from_numpy(left.dtype))
            left, right = np.broadcast_arrays(left, right)
            bad = _differs(rule, left, right, values)
            if bad.any():
                at = int(np.argmax(bad.ravel()))
                shown = {n: v.ravel()[at] for n, v in values.items()}
                return f"{shown} {numbers}: {left.ravel()[at]!r} became {right.ravel()[at]!r}"
    return ""


def _differs(rule: Rule, left: Array, right: Array, values: dict[str, Array]) -> Array:
    if left.dtype != right.dtype:
        return np.ones(left.shape, bool)
    if not rule.fast:
        if same_bits(np.ascontiguousarray(left), np.ascontiguousarray(right)):
            return np.zeros(left.shape, bool)
        width = f"u{left.dtype.itemsize}"
        with np.errstate(all="ignore"):
            nan = (left != left) & (right != right)
        bits = np.ascontiguousarray(left).view(width) != np.ascontiguousarray(right).view(width)
        return bits & ~nan
    return _beyond_rounding(left, right, values)


def _beyond_rounding(left: Array, right: Array, values: dict[str, Array]) -> Array:
    """Fast rules: equal in what is not finite, close for operands and results of usual size."""
    eps = EPS[next(d.name for d in COMPUTABLE if d.numpy == left.dtype)]
    with np.errstate(all="ignore"):
        a, b = left.astype(np.float64), right.astype(np.float64)
    usual = np.ones(left.shape, bool)
    special = np.ones(left.shape, bool)
    for v in values.values():
        with np.errstate(all="ignore"):
            x = np.abs(v.astype(np.float64))
        usual &= (x > 0.05) & (x < 8)
        special &= ~np.isfinite(x) | (x == 0) | (x == 1)
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= 8 * eps * np.maximum(np.maximum(np.abs(a), np.abs(b)), 1)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return (usual & ~same & ~close) | (special & ~same & ~close)


# ---- z3 --------------------------------------------------------------------------------------

Bits = Any


def _floor_division(signed: bool) -> Callable[[Bits, Bits], tuple[Bits, Bits]]:
    def divide(x: Bits, y: Bits) -> tuple[Bits, Bits]:
        zero = z3.BitVecVal(0, x.size())
        if not signed:
            return z3.If(y == zero, zero, z3.UDiv(x, y)), z3.If(y == zero, zero, z3.URem(x, y))
        q, r = x / y, z3.SRem(x, y)
        moved = z3.And(r != 0, (r < 0) != (y < 0))
        quotient, rest = z3.If(moved, q - 1, q), z3.If(moved, r + y, r)
        return z3.If(y == zero, zero, quotient), z3.If(y == zero, zero, rest)

    return divide


def _operators(signed: bool) -> dict[str, Callable[..., Bits]]:
    less = (lambda x, y: x < y) if signed else z3.ULT
    divide = _floor_division(signed)
    return {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "neg": lambda x: -x,
        "square": lambda x: x * x,
        "abs": lambda x: z3.If(x < 0, -x, x) if signed else x,
        "and": lambda x, y: z3.And(x, y) if z3.is_bool(x) else x & y,
        "or": lambda x, y: z3.Or(x, y) if z3.is_bool(x) else x | y,
        "xor": lambda x, y: z3.Xor(x, y) if z3.is_bool(x) else x ^ y,
        "not": lambda x: z3.Not(x) if z3.is_bool(x) else ~x,
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "lt": less,
        "gt": lambda x, y: less(y, x),
        "le": lambda x, y: z3.Not(less(y, x)),
        "ge": lambda x, y: z3.Not(less(x, y)),
        "max": lambda x, y: z3.If(less(y, x), x, y),
        "min": lambda x, y: z3.If(less(x, y), x, y),
        "select": z3.If,
        "floordiv": lambda x, y: divide(x, y)[0],
        "mod": lambda x, y: divide(x, y)[1],
        "shr": lambda x, n: x >> n if signed else z3.LShR(x, n),
        **dict.fromkeys(("floor", "ceil", "round", "trunc"), lambda x: x),
        "isnan": lambda x: z3.BoolVal(False),
        "isinf": lambda x: z3.BoolVal(False),
        "isfinite": lambda x: z3.BoolVal(True),
    }


def _names(t: Term) -> set[str]:
    return {t.op, *(n for a in t.args for n in _names(a))} if isinstance(t, Call) else set()


def provable(rule: Rule) -> bool:
    """Whether z3 knows all operators of the rule."""
    supported = set(_operators(True))
    return (_names(rule.left) | _names(rule.right)) <= supported


def proof(rule: Rule, dtype: DType, types: dict[str, DType]) -> str:
    """A counterexample that z3 found for an integer type, or an empty string if it proved none."""
    operators = _operators(dtype.kind == "int")

    def sort(name: str) -> Bits:
        if types[name].kind == "bool":
            return z3.Bool(name)
        return z3.BitVec(name, types[name].bits)

    def spell(t: Term, bound: dict[str, Bits]) -> Bits:
        if isinstance(t, Var):
            return bound[t.name]
        if isinstance(t, Num):
            value = t.value_for(dtype)
            return z3.BoolVal(value) if isinstance(value, bool) else z3.BitVecVal(value, dtype.bits)
        return operators[t.op](*[spell(a, bound) for a in t.args])

    symbols = {v.name: sort(v.name) for v in variables(rule.left)}
    choices = [symbols]
    if rule.compute:
        choices = []
        for fixed in constants(rule, types, dtype):
            numbers = {n: _number(v) for n, v in fixed.items()}
            computed = {n: f(numbers) for n, f in rule.compute.items()}
            values = {n: z3.BitVecVal(v, dtype.bits) for n, v in (numbers | computed).items()}
            choices.append(symbols | values)
    for bound in choices:
        solver = z3.Solver()
        solver.set("timeout", 20000)
        solver.add(spell(rule.left, bound) != spell(rule.right, bound))
        if solver.check() != z3.unsat:
            return f"{rule.text} for {dtype}: {solver.check()} {bound}"
    return ""
