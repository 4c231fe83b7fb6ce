"""Names that NumPy has and the array API standard spells otherwise: what who asks for one is told.

Most programs begin as NumPy's.  A name that is missing here says what to write instead, so that the
same line runs with NumPy as its namespace too:

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
"""NumPy's (or a reader's) name -> ours."""

NOWHERE: Final[dict[str, str]] = {
    "fft": ": there are no complex numbers; numpy.fft takes np.asarray(x)",
}
"""What there is no function for -> why, and what to do instead."""

METHODS: Final[dict[str, str]] = {
    **{name: name for name in (
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "max", "mean", "min",
        "nonzero", "prod", "repeat", "reshape", "round", "searchsorted", "sort", "squeeze", "std",
        "sum", "take", "var")},
    "copy": "asarray", "cumprod": "cumulative_prod", "cumsum": "cumulative_sum",
    "dot": "matmul", "flatten": "reshape", "ravel": "reshape", "swapaxes": "permute_dims",
    "transpose": "permute_dims", "fill": "full_like", "view": "astype",
}  # fmt: skip
"""Methods of NumPy's arrays -> functions of ours."""


def missing(name: str) -> NoReturn:
    """Raises the AttributeError of a name that the package does not have."""
    ours = FUNCTIONS.get(name)
    told = (
        f": the array API standard has sm.{ours} for it"
        if ours and "." not in ours
        else f": it is sm.{ours}"
        if ours
        else NOWHERE.get(name, "")
    )
    raise AttributeError(f"module 'smelt' has no attribute {name!r}{told}", name=name)


class Elsewhere:
    """A method that arrays do not have; asking for it says which function there is.

    It costs nothing to look up what does exist, as a `__getattr__` of the class would.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name, self.function = name, function

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        raise AttributeError(
            f"'Array' object has no attribute {self.name!r}: the array API standard has functions"
            f" instead of methods; write sm.{self.function}(x, ...)",
            name=self.name,
        )
