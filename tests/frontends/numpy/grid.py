"""Cases of NumPy's functions over element types and shapes, made from the samples.

A case is a sample whose arrays have another dtype and another shape: rank 0, no element, one
element, one row, three dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy  # noqa: ICN001 - `np` is either namespace
from tests.frontends.numpy.samples import SAMPLES

__all__ = ["CASES", "Case", "outcome"]

DTYPES = ("bool", "int8", "int16", "uint8", "uint32", "int64", "float16", "float32", "float64")
"""Element types of the arrays of a sample; strings and numbers stay as they are."""


def _first(x: Any) -> Any:
    return x.reshape(-1)[:1].reshape(()) if x.size else x


SHAPES: dict[str, Callable[[Any], Any]] = {
    "same": lambda x: x,
    "rank0": _first,
    "empty": lambda x: x[:0],
    "single": lambda x: x[:1],
    "row": lambda x: x.reshape(1, -1),
    "column": lambda x: x.reshape(-1, 1),
    "rank3": lambda x: numpy.stack([x.reshape(x.shape[0], -1)] * 2),
}
"""Name -> what becomes of each array of a sample."""


class Case(NamedTuple):
    """A call: a function, a sample of it, a dtype and a shape."""

    name: str
    sample: int
    dtype: str
    shape: str

    def arguments(self, np: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call for a namespace."""
        args, options = SAMPLES[self.name][self.sample](numpy)
        return self._changed(np, args), self._changed(np, options)

    def _changed(self, np: Any, x: Any) -> Any:
        if isinstance(x, numpy.ndarray) and x.ndim:
            if x.dtype.kind in "biuf":
                x = SHAPES[self.shape](_cast(x, self.dtype))
            return np.asarray(x)
        if isinstance(x, dict):
            return {name: self._changed(np, item) for name, item in x.items()}
        if isinstance(x, (list, tuple)):
            return type(x)([self._changed(np, item) for item in x])  # type: ignore[call-arg]
        return x


def _cast(x: Any, dtype: str) -> Any:
    if dtype.startswith("u"):
        x = numpy.abs(x)
    scale = 1 if dtype.startswith("f") or x.dtype.kind != "f" else 4
    with numpy.errstate(all="ignore"):
        return (x * scale).astype(dtype) if x.dtype.kind == "f" else x.astype(dtype)


def _cases() -> Iterator[Case]:
    for name, samples in SAMPLES.items():
        for k in range(len(samples)):
            args, options = samples[k](numpy)
            arrays = [x for x in (*args, *options.values()) if isinstance(x, numpy.ndarray)]
            if any(x.ndim for x in arrays):
                for dtype in DTYPES:
                    for shape in SHAPES:
                        yield Case(name, k, dtype, shape)


CASES = list(_cases())
"""All cases."""


def outcome(np: Any, case: Case) -> Any:
    """Return the result of a call, or the error that it raises."""
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            args, options = case.arguments(np)
            return getattr(np, case.name)(*args, **options)
        except Exception as error:  # noqa: BLE001 - whatever a namespace raises is its outcome
            return error
