"""Error hints for names of NumPy that the array API standard spells differently.

Most programs begin as NumPy's.  A missing name says what to write instead, in a form that also runs
with NumPy as the namespace:

    sm.concatenate([x, y])     AttributeError: .. the array API standard has sm.concat for it
    x.meen(axis=0)             AttributeError: .. did you mean 'mean'?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NoReturn

from smelt.errors.missing import MissingAttribute, nearest_hint

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
    raise MissingAttribute("module 'smelt'", partial(_package_hint, names=names), name=name)


def _package_hint(name: str, names: Iterable[str]) -> str:
    ours = FUNCTIONS.get(name)
    if ours:
        return (
            f": it is sm.{ours}"
            if "." in ours
            else f": the array API standard has sm.{ours} for it"
        )
    return nearest_hint(name, names)


def missing_names(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """Return a module's `__getattr__`, which raises AttributeError with the nearest of `names`.

    >>> missing_names("smelt.nn", ["relu", "gelu"])("relux")
    Traceback (most recent call last):
    AttributeError: module 'smelt.nn' has no attribute 'relux'; did you mean 'relu'?
    """
    owner, hint = f"module {module!r}", partial(nearest_hint, names=names)

    def missing(name: str) -> NoReturn:
        raise MissingAttribute(owner, hint, name=name)

    return missing


def missing_attribute(owner: str, name: str, cls: type) -> AttributeError:
    """Return the error for an attribute that a class lacks, with a hint."""
    return MissingAttribute(owner, lambda name: nearest_hint(name, dir(cls)), name=name)
