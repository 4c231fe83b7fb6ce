"""Say what computes each function of the array API standard, for docs/array_api.md.

    python -m tools.array_api        print the table

The verdicts come from recordings: a function of real or complex samples is recorded by `sm.jit`.
Its graph says whether one operator, several or a library call compute it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import array_api_strict as strict
import numpy as np
from tools import array_api_suite

import smelt as sm
from smelt.errors import SmeltError, TracerError

__all__ = ["EXCEPTIONS", "PARTS", "Difference", "functions", "verdict"]

LATER: Final = frozenset({"isin", "broadcast_shapes", "linalg.eig", "linalg.eigvals"})
"""Functions of the standard of 2025."""
_UNRECORDED: Final = frozenset({"__array_namespace_info__"})
"""Functions that are not functions of arrays or dtypes."""


def functions() -> list[str]:
    """Return the functions of the standard, those of extensions with their module."""
    names: list[str] = []
    spaces: Any = (("", strict), ("linalg.", strict.linalg), ("fft.", strict.fft))
    for prefix, space in spaces:
        # Setting a flag of the reference sorts its names; this order does not depend on that.
        for name in sorted(space.__all__):
            is_function = inspect.isfunction(getattr(space, name)) and "strict_flags" not in name
            if is_function and prefix + name not in LATER | _UNRECORDED:
                names.append(prefix + name)
    return names


class Difference(NamedTuple):
    """Calls whose results differ from those of the reference, and the reason."""

    functions: str
    when: str
    """A condition that the tests know: "loses", "special", "zero", "mixed" or "scalar"."""
    what: str


EXCEPTIONS: Final = (
    Difference(
        "astype asarray sum prod cumulative_sum cumulative_prod linalg.trace",
        "loses",
        "A complex array does not become a real one: DTypeError in place of lost imaginary parts.",
    ),
    Difference(
        "sign expm1 log1p sin cos tan sinh cosh tanh exp log log2 log10",
        "special",
        "Complex infinities and NaN are treated as in C99, Annex G, which leaves some signs open;"
        " `sign` of one infinite part is its direction, and `expm1` does not subtract infinities.",
    ),
    Difference(
        "reciprocal pow operator.pow",
        "zero",
        "The reciprocal of a complex zero has an infinite real part, as in C99; NumPy has NaN."
        " Whole powers of infinities follow from products.",
    ),
    Difference(
        "multiply divide add subtract square operator.mul operator.truediv operator.add"
        " operator.sub",
        "special",
        "A real operand gets no imaginary part of zero, so that a product with an infinity has no"
        " NaN; products of infinities are those of the parts.",
    ),
    Difference(
        "argsort sort argmax argmin cumulative_sum cumulative_prod",
        "scalar",
        "An array of rank 0 has no axis: ShapeError or AxisError, as the standard allows.",
    ),
)
"""Differences from array_api_strict that the tests allow."""


class _Samples(NamedTuple):
    """Arrays of one kind for calls."""

    vector: Any
    matrix: Any
    truth: Any
    index: Any


_CALLS: Final[dict[str, Callable[[Any, _Samples], Any]]] = {
    "arange": lambda f, s: f(7),
    "linspace": lambda f, s: f(0.0, 1.0, 5),
    "eye": lambda f, s: f(3, dtype=s.matrix.dtype),
    "full": lambda f, s: f((3,), 1.0, dtype=s.vector.dtype),
    **dict.fromkeys(("zeros", "ones", "empty"), lambda f, s: f((3,), dtype=s.vector.dtype)),
    "full_like": lambda f, s: f(s.vector, 1.0),
    "asarray": lambda f, s: f(s.vector, copy=True),
    "astype": lambda f, s: f(s.vector, "complex128" if s.vector.dtype.kind == "complex" else "f64"),
    "broadcast_to": lambda f, s: f(s.vector, (3, *s.vector.shape)),
    "searchsorted": lambda f, s: f(s.vector, s.vector),
    "clip": lambda f, s: f(s.vector, 0.5, 1.5),
    **dict.fromkeys(("concat", "stack"), lambda f, s: f([s.vector, s.vector])),
    "expand_dims": lambda f, s: f(s.vector, axis=0),
    "squeeze": lambda f, s: f(s.vector[None, :], axis=0),
    "moveaxis": lambda f, s: f(s.matrix, 0, 1),
    "permute_dims": lambda f, s: f(s.matrix, (1, 0)),
    "repeat": lambda f, s: f(s.vector, 2),
    "reshape": lambda f, s: f(s.matrix, (-1,)),
    "roll": lambda f, s: f(s.vector, 1),
    "tile": lambda f, s: f(s.vector, (2,)),
    "take": lambda f, s: f(s.vector, s.index),
    "take_along_axis": lambda f, s: f(s.vector, s.index),
    "where": lambda f, s: f(s.truth, s.vector, s.vector),
    "linalg.matrix_power": lambda f, s: f(s.matrix, 3),
    "linalg.cross": lambda f, s: f(s.vector[:3], s.vector[:3]),
    **dict.fromkeys(
        ("linalg.outer", "vecdot", "linalg.vecdot"), lambda f, s: f(s.vector, s.vector)
    ),
    **dict.fromkeys(("fft.fftfreq", "fft.rfftfreq"), lambda f, s: f(8)),
    **dict.fromkeys(
        ("bitwise_left_shift", "bitwise_right_shift"), lambda f, s: f(s.index, s.index)
    ),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), lambda f, s: f(s.index, s.index)),
    "bitwise_invert": lambda f, s: f(s.index),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), lambda f, s: f(s.truth, s.truth)),
    "logical_not": lambda f, s: f(s.truth),
}
"""Function -> its call of samples, where not one or two matrices are passed."""
_REAL_ONLY: Final = """
    arange bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift
    bitwise_right_shift logical_and logical_or logical_xor logical_not fft.fftfreq
    fft.rfftfreq
"""
"""Functions whose samples are real whatever is asked for."""
_DTYPES: Final = frozenset({"can_cast", "finfo", "iinfo", "isdtype", "result_type"})
"""Functions of dtypes, which compute nothing."""


def _samples(dtype: str) -> _Samples:
    rng = np.random.default_rng(0)
    part = 0 if dtype == "float64" else 1j
    vector = rng.uniform(0.1, 0.9, 20) + part * rng.uniform(0.1, 0.9, 20)
    half = rng.uniform(0.1, 0.9, (20, 20)) + part * rng.uniform(0.1, 0.9, (20, 20))
    matrix = half @ half.conj().T + np.eye(20)
    index = np.arange(20)
    return _Samples(*[sm.asarray(x) for x in (vector, matrix, index > 3, index)])


def _call(name: str, samples: _Samples) -> Any:
    function: Any = sm
    for part in name.split("."):
        function = getattr(function, part)
    if name in _CALLS:
        return _CALLS[name](function, samples)
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(samples.vector, samples.vector)
    has_axis = any(p.name == "axis" for p in parameters)
    arrays = [samples.vector if has_axis else samples.matrix] * max(len(required), 1)
    return function(*arrays)


def verdict(name: str, dtype: str = "float64") -> str:
    """Return what computes a function of arrays of a dtype.

    It is "generated kernel" for one operator, "composite" for several, "library call", "library
    call outside of jit" where the result's shape depends on values, or "refused".
    """
    if name in _DTYPES:
        return "no computation"
    if dtype != "float64" and name in _REAL_ONLY.split():
        return "refused" if name[0] in "bl" else "no complex arguments"
    samples = _samples(dtype)
    try:
        recorded = sm.jit(lambda *arrays: _call(name, _Samples._make(arrays))).lower(*samples)
    except TracerError:
        _call(name, samples)
        return "library call outside of jit"
    except SmeltError:
        return "refused"
    lines = [line.strip() for line in recorded.as_text().splitlines() if " = " in line]
    operators = [line.partition(" = ")[2].partition("(")[0] for line in lines]
    if any(operator.startswith("extern.") for operator in operators):
        return "library call"
    return "composite" if len(operators) > 1 else "generated kernel"


def table() -> str:
    """Return the counts of verdicts and a row for each function."""
    rows = [(name, verdict(name), verdict(name, "complex128")) for name in functions()]
    counts = Counter(real for _, real, _ in rows)
    summary = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    head = ["| function | real numbers | complex numbers |", "| --- | --- | --- |"]
    body = [f"| `{name}` | {real} | {other} |" for name, real, other in rows]
    return "\n".join([f"{len(rows)} functions: {summary}.", "", *head, *body]) + "\n"


def exceptions() -> str:
    """Return the differences from the reference, with reasons."""
    head = ["| functions | difference |", "| --- | --- |"]
    names = [
        ", ".join(f"`{n}`" for n in e.functions.split() if "operator" not in n) for e in EXCEPTIONS
    ]
    body = [f"| {functions} | {e.what} |" for functions, e in zip(names, EXCEPTIONS, strict=True)]
    return "\n".join([*head, *body]) + "\n"


PARTS = {"functions": table, "exceptions": exceptions, "suite": array_api_suite.report}

if __name__ == "__main__":
    print(table())
