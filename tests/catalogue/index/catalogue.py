"""The catalogue's rows as functions that say their types, for an index of their GPU programs.

    PYTHONPATH=. smelt explain tests/catalogue/index --target h100 --out pages

Types are float32, sizes those that a row is planned for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any

from tests.catalogue.rows import Row, wanted

import smelt as sm

MODULES = (
    *("a_elementwise", "b_reductions", "c_contractions", "d_convolutions"),
    *("f_losses", "g_training"),
)


def _programs() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in MODULES:
        for row in import_module(f"tests.catalogue.test_{name}").ROWS:
            yield re.sub(r"\W+", "_", row.id).strip("_"), _program(row)


def _program(row: Row) -> Callable[..., Any]:
    def program(*arrays: Any) -> Any:
        return row.code(sm, *arrays)

    inputs = [wanted(x, "f32") for x in row.inputs]
    types = [str(sm.spec(w.dims(row.sizes), w.dtype)) for w in inputs]
    program.__doc__ = f"{row.id}: {', '.join(types)}."
    kind = Parameter.POSITIONAL_OR_KEYWORD
    program.__signature__ = Signature(  # type: ignore[attr-defined]
        Parameter(f"x{k}", kind, annotation=t) for k, t in enumerate(types)
    )
    return program


globals().update(_programs())
