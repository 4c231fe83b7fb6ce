"""Error hints for names of NumPy that the array API standard spells differently.

Most programs begin as NumPy's.  A missing name says what to write instead, in a form that also runs
with NumPy as the namespace:

    sm.concatenate([x, y])     AttributeError: .. the array API standard has sm.concat for it
    x.meen(axis=0)             AttributeError: .. did you mean 'mean'?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from smelt import errors

FUNCTIONS: Final[dict[str, str]] = {
    "absolute": "abs", "alltrue": "all", "amax": "max", "amin": "min", "arccos": "acos",
    "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "around": "round", "array": "asarray",
    "asanyarray": "asarray", "ascontiguousarray": "asarray", "concatenate": "concat",
    "cumprod": "cumulative_prod", "cumsum": "cumulative_sum",
    "dot": "matmul", "fabs": "abs", "fmax": "maximum", "fmin": "minimum",
    "hstack": "concat", "inner": "vecdot", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "mod": "remainder", "power": "pow", "product": "prod",
    "ravel": "reshape", "right_shift": "bitwise_right_shift", "rint": "round",
    "argwhere": "nonzero", "flatnonzero": "nonzero", "digitize": "searchsorted",
    "identity": "eye", "conjugate": "conj", "fliplr": "flip", "flipud": "flip",
    "column_stack": "stack", "dstack": "concat", "matvec": "matmul", "vecmat": "matmul",
    "vdot": "vecdot", "split": "unstack", "select": "where", "trapz": "trapezoid",
    "diag": "linalg.diagonal", "diagonal": "linalg.diagonal", "trace": "linalg.trace",
    "outer": "linalg.outer", "cross": "linalg.cross", "norm": "linalg.vector_norm",
    "swapaxes": "permute_dims", "transpose": "permute_dims", "true_divide": "divide",
    "unique": "unique_values", "vstack": "concat",
    "gelu": "nn.gelu", "layer_norm": "nn.layer_norm", "log_softmax": "nn.log_softmax",
    "logsumexp": "nn.logsumexp", "relu": "nn.relu", "silu": "nn.silu", "softmax": "nn.softmax",
}  # fmt: skip
"""Other names, mostly NumPy's -> names of this package."""


def raise_missing(name: str, names: Iterable[str] = ()) -> NoReturn:
    """Raise AttributeError for a name that the package does not have, with a hint.

    `names` are those that it has, of which the nearest is suggested.
    """
    ours = FUNCTIONS.get(name)
    hint = (
        f": the array API standard has sm.{ours} for it"
        if ours and "." not in ours
        else f": it is sm.{ours}"
        if ours
        else ""
    )
    if not hint and not name.startswith("_"):
        hint = nearest_hint(name, names)
    raise AttributeError(f"module 'smelt' has no attribute {name!r}{hint}", name=name)


def missing_names(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__`, which raises AttributeError with the nearest of `names`.

    >>> missing_names("smelt.nn", ["relu", "gelu"])("relux")
    Traceback (most recent call last):
    AttributeError: module 'smelt.nn' has no attribute 'relux'; did you mean 'relu'?
    """

    def missing(name: str) -> NoReturn:
        raise _missing(f"module {module!r}", name, names)

    return missing


def missing_attribute(owner: str, name: str, names: Any) -> AttributeError:
    """Return the error for an attribute that does not exist, with the nearest name.

    `names` is an object whose public attributes are candidates.
    """
    return _missing(owner, name, dir(names))


def _missing(owner: str, name: str, names: Iterable[str]) -> AttributeError:
    hint = "" if name.startswith("_") else nearest_hint(name, names)
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)


def nearest_hint(name: str, names: Iterable[str]) -> str:
    """Return a hint with the name that is most like `name`; empty if none is.

    >>> nearest_hint("cumsun", ["cumsum", "sum"])
    "; did you mean 'cumsum'?"
    """
    public = [n for n in names if not n.startswith("_")]
    near = errors.nearest(name, public)
    return f"; did you mean {near!r}?" if near else ""
