"""Arithmetic that is recorded gives what Python computes."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from smelt.types.formula import (
    Formula,
    Number,
    Rows,
    choose,
    common_divisor,
    larger,
    smaller,
    whole,
)

FUNCTIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: (a + b * 3 - 7) // 4 + a % 5 - -b,
    lambda a, b: (3 - a) // larger(abs(b), 1) + 17 % larger(a, 2) + 100 // larger(b, 1),
    lambda a, b: choose(a < b, a / 4, b * 0.5) + (a >= b) + (a <= b) * 2,
    lambda a, b: 1.5 * smaller(a, 2.5 * b) - (7 - b / 3) + 2 / larger(a, 1),
    lambda a, b: common_divisor(a * 64, 4096) + (a == b) + (a != 3) * 10,
    lambda a, b: whole(a) + (a * 2.0 > b) + (b >= 0.5),
]


def run(rows: Rows, result: Any, *parameters: int) -> float:
    """Compute the rows as `library.c` does."""
    values: list[Any] = []
    floats = [False] * len(rows.table)
    binary: dict[str, Callable[[Any, Any], Any]] = {
        "ADD": lambda a, b: a + b,
        "SUB": lambda a, b: a - b,
        "MUL": lambda a, b: a * b,
        "LT": lambda a, b: int(a < b),
        "LE": lambda a, b: int(a <= b),
        "EQ": lambda a, b: int(a == b),
        "GCD": math.gcd,
    }
    for k, (op, a, b, c) in enumerate(rows.table):
        if op == "CONSTANT_OF":
            values.append(a)
        elif op == "PARAMETER":
            values.append(parameters[a])
        elif op == "SELECT":
            values.append(values[b] if values[a] else values[c])
        elif op == "TO_FLOAT":
            values.append(float(values[a]))
        else:
            x, y = (
                struct.unpack("<d", struct.pack("<q", v))[0]
                if "FLOAT" in op and type(v) is int
                else v
                for v in (values[a], values[b])
            )
            name = op.removeprefix("FLOAT_")
            if name in ("DIV", "MOD"):
                divide = x / y if "FLOAT" in op else divmod(x, y)[name == "MOD"] if y else 0
                values.append(divide)
            else:
                values.append(binary[name](x, y))
        floats[k] = isinstance(values[k], float)
    number = values[result.row]
    if result.is_float and type(number) is int:
        (number,) = struct.unpack("<d", struct.pack("<q", number))
    return float(number)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_recorded_arithmetic_is_pythons(function: Callable[[Any, Any], Any]) -> None:
    rows, numbers = Rows(), random.Random(0)
    recorded = function(rows.parameter(0), rows.parameter(1))
    assert isinstance(recorded, Number)
    for _ in range(200):
        a, b = numbers.randint(0, 40), numbers.randint(0, 40)
        assert run(rows, recorded, a, b) == function(a, b), (a, b)


def test_a_condition_cannot_branch() -> None:
    n = Rows().parameter(0)
    with pytest.raises(TypeError, match="choose"):
        _ = 1 if n > 3 else 2


@pytest.mark.parametrize(
    "body",
    [
        "(n, n*m) if n == m and n > 3 else None",
        "((k := n//2), k + m) if not (m < 2 or n < 2) else None",
        "(max(n, m, 7), min(n, m)) if n != m else (1, 2)",
        "(n if n > m else m, -n) if 1 < n <= m*2 else None",
        "()",
    ],
)
def test_formulas_are_recorded(body: str) -> None:
    formula, rows = Formula("n, m", body), Rows()
    accepted, values = formula.on([rows.parameter(0), rows.parameter(1)])
    for n in range(8):
        for m in range(8):
            want = formula(n, m)
            assert run(rows, rows.number(accepted), n, m) == (want is not None)
            if want is not None:
                assert tuple(run(rows, rows.number(v), n, m) for v in values) == want


def test_a_formula_of_floats_is_refused() -> None:
    for body in ("(n,) if s > 0.5 else None", "(n,) if s > 1 else None", "float(n)"):
        with pytest.raises(ValueError, match="formula"):
            Formula("n, s", body).on([Rows().parameter(0), None])
