"""Functions that NumPy computes: sorting, searching in sorted arrays, dense linear algebra.

Each is an extern row: inside a plan it is one call, a barrier that nothing fuses across.

>>> x = from_host(np.asarray([3.0, 1.0, 2.0]))
>>> call("sort", x, axis=0, descending=False, stable=True).type
TensorType(dtype=f64, shape=(3,))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from smelt.errors import ExternError, UnsupportedError
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.value import Buffer, Value, record
from smelt.knobs import STRICT
from smelt.ops import extern_derivatives as derive
from smelt.ops.extern import Extern, ExternRow, register
from smelt.types.dtype import i64
from smelt.types.tensor import TensorType

__all__ = ["allowed", "call", "from_host"]


def call(name: str, *values: Value, **options: Any) -> Value:
    """A library call on values of one dtype.  Raises UnsupportedError under `SMELT_STRICT`."""
    allowed(name)
    return record(Extern(name, tuple(options.items())), values)


def allowed(name: str) -> None:
    """Raises UnsupportedError where nothing may run outside the compiler."""
    if STRICT.get():
        raise UnsupportedError(f"{name} runs outside the compiler, which SMELT_STRICT forbids")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, what it raises told as an ExternError."""

    def run(*arrays: Buffer, **options: Any) -> Any:
        try:
            return function(*arrays, **options)
        except Exception as error:
            raise ExternError(op=name, reason=str(error)) from error

    return run


def _order(x: Buffer, axis: int, descending: bool, stable: bool) -> Buffer:
    """Positions that sort; equal elements keep their order in both directions."""
    kind = "stable" if stable else "quicksort"
    if x.dtype.kind == "V":  # bfloat16 sorts by the values it stands for
        x = x.astype(np.float32)
    if not descending:
        return np.argsort(x, axis=axis, kind=kind)
    backwards = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind=kind), axis)
    return x.shape[axis] - 1 - backwards


def _sort(x: Buffer, axis: int, descending: bool, stable: bool) -> Buffer:
    order = _order(x, axis, descending, stable)
    return np.take_along_axis(x, order, axis)


def _search(x: Buffer, wanted: Buffer, side: Any) -> Buffer:
    if x.dtype.kind == "V":
        x, wanted = x.astype(np.float32), wanted.astype(np.float32)
    return np.searchsorted(x, wanted, side=side).astype(np.int64)


def _like(x: TensorType, *_others: TensorType, **_options: Any) -> TensorType:
    return x


def _places(x: TensorType, **_options: Any) -> TensorType:
    return TensorType(i64, x.shape)


def _wanted(x: TensorType, wanted: TensorType, **_options: Any) -> TensorType:
    return TensorType(i64, wanted.shape)


def _determinant(x: TensorType) -> TensorType:
    return TensorType(x.dtype, x.shape[:-2])


def _solution(a: TensorType, b: TensorType) -> TensorType:
    return b


def _solve(a: Buffer, b: Buffer) -> Buffer:
    if b.ndim == 1:  # NumPy's gufunc takes vectors only as columns
        return np.linalg.solve(a, b[:, None])[:, 0]
    return np.linalg.solve(a, b)


_ROWS = (
    ExternRow("sort", "elements in order along an axis", _like, _sort, derive.of_sort),
    ExternRow("argsort", "positions that sort along an axis", _places, _order),
    ExternRow("searchsorted", "where elements belong in a sorted vector", _wanted, _search),
    ExternRow("linalg_inv", "inverse matrices", _like, np.linalg.inv, derive.of_inverse),
    ExternRow(
        "linalg_cholesky", "lower Cholesky factors", _like, np.linalg.cholesky, derive.of_cholesky
    ),
    ExternRow("linalg_det", "determinants", _determinant, np.linalg.det, derive.of_determinant),
    ExternRow("linalg_solve", "solutions of linear systems", _solution, _solve, derive.of_solution),
)
for _row in _ROWS:
    register(replace(_row, call=_guarded(_row.name, _row.call)))
