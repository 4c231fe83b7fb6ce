"""Error hints for names of NumPy that the array API standard spells differently.

Most programs begin as NumPy's.  A missing name says what to write instead, in a form that also runs
with NumPy as the namespace:

    sm.concatenate([x, y])     AttributeError: .. the array API standard has sm.concat for it
    x.mean(axis=0)             AttributeError: .. write sm.mean(x, axis=0)
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

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

UNSUPPORTED: Final[dict[str, str]] = {
    "fft": ": there are no complex numbers; numpy.fft takes np.asarray(x)",
}
"""Names without a function here -> reason and alternative."""

METHODS: Final[dict[str, str]] = {
    **{name: name for name in (
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "max", "mean", "min",
        "nonzero", "prod", "repeat", "reshape", "round", "searchsorted", "sort", "squeeze", "std",
        "sum", "take", "var")},
    "copy": "asarray", "cumprod": "cumulative_prod", "cumsum": "cumulative_sum",
    "dot": "matmul", "flatten": "reshape", "ravel": "reshape", "swapaxes": "permute_dims",
    "transpose": "permute_dims", "fill": "full_like", "view": "astype",
}  # fmt: skip
"""Methods of NumPy's arrays -> functions of this package."""


def raise_missing(name: str) -> NoReturn:
    """Raise AttributeError for a name that the package does not have, with a hint."""
    ours = FUNCTIONS.get(name)
    hint = (
        f": the array API standard has sm.{ours} for it"
        if ours and "." not in ours
        else f": it is sm.{ours}"
        if ours
        else UNSUPPORTED.get(name, "")
    )
    raise AttributeError(f"module 'smelt' has no attribute {name!r}{hint}", name=name)


class MissingMethod:
    """Descriptor for a method that arrays lack; access raises an error with a hint.

    Unlike `__getattr__` it does not slow down look-ups of attributes that exist.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name, self.function = name, function

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        raise AttributeError(
            f"'Array' object has no attribute {self.name!r}: the array API standard has functions"
            f" instead of methods; write sm.{self.function}(x, ...)",
            name=self.name,
        )
