"""Smelt: a kernel-fusion compiler for array code.

This module implements the Python array API standard (2024.12) and adds `jit` and `explain`, network
layers in `nn`, optimisers in `optim`, random numbers from explicit keys in `random`, and settings
in `config`.

>>> import smelt as sm
>>> f = sm.jit(lambda x, b: sm.log(sm.maximum(x + b, 1)))
>>> f(sm.asarray([0.0, 1.0]), 2.0)
Array([0.69314718, 1.09861229])
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from smelt import errors
from smelt.frontends.array import linalg, methods
from smelt.frontends.array.ahead_of_time import spec
from smelt.frontends.array.array import Array
from smelt.frontends.array.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from smelt.frontends.array.dtypes import (
    __array_api_version__,
    __array_namespace_info__,
    astype,
    can_cast,
    e,
    finfo,
    iinfo,
    inf,
    isdtype,
    nan,
    newaxis,
    pi,
    result_type,
)
from smelt.frontends.array.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from smelt.frontends.array.jit import jit
from smelt.frontends.array.linalg import (
    matmul,
    matrix_transpose,
    tensordot,
    vecdot,
)
from smelt.frontends.array.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from smelt.frontends.array.numpy_hints import raise_missing
from smelt.frontends.array.searching import (
    argmax,
    argmin,
    nonzero,
    searchsorted,
    take,
    take_along_axis,
)
from smelt.frontends.array.sorting import (
    argsort,
    sort,
    top_k,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from smelt.frontends.array.statistical import (
    all,
    any,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from smelt.journal.tracebacks import install_hooks
from smelt.knobs import config
from smelt.knobs.steer import fuse
from smelt.packages.c_library import open_c_library
from smelt.packages.version import DISTRIBUTION, __version__
from smelt.python.imports import fork_safe_import, when_imported
from smelt.types.dtype import bf16 as bfloat16
from smelt.types.dtype import bool_ as bool
from smelt.types.dtype import c64 as complex64
from smelt.types.dtype import c128 as complex128
from smelt.types.dtype import f16 as float16
from smelt.types.dtype import f32 as float32
from smelt.types.dtype import f64 as float64
from smelt.types.dtype import i8 as int8
from smelt.types.dtype import i16 as int16
from smelt.types.dtype import i32 as int32
from smelt.types.dtype import i64 as int64
from smelt.types.dtype import u8 as uint8
from smelt.types.dtype import u16 as uint16
from smelt.types.dtype import u32 as uint32
from smelt.types.dtype import u64 as uint64

if TYPE_CHECKING:
    from smelt.frontends.array import fft, nn, optim, random
    from smelt.frontends.array.control import cond, fori_loop, scan, while_loop
    from smelt.frontends.array.einsum import einsum
    from smelt.frontends.array.explain import explain
    from smelt.frontends.array.numerical import (
        allclose,
        average,
        convolve,
        corrcoef,
        cov,
        gradient,
        histogram,
        interp,
        isclose,
        isin,
        nan_to_num,
        pad,
        trapezoid,
    )
    from smelt.frontends.array.numpy_statistics import (
        median,
        nanargmax,
        nanargmin,
        nancumprod,
        nancumsum,
        nanmax,
        nanmean,
        nanmedian,
        nanmin,
        nanpercentile,
        nanprod,
        nanquantile,
        nanstd,
        nansum,
        nanvar,
        percentile,
        quantile,
    )
    from smelt.frontends.array.program_files import load, save
    from smelt.frontends.array.segments import (
        bincount,
        segment_max,
        segment_mean,
        segment_min,
        segment_prod,
        segment_sum,
    )
    from smelt.frontends.array.transformations import grad, stop_gradient, value_and_grad, vjp, vmap
    from smelt.saved.library import save_library

__all__ = [
    "Array", "__array_api_version__", "__array_namespace_info__", "__version__", "abs", "acos",
    "acosh", "add", "all", "allclose", "any", "arange", "argmax", "argmin", "argsort",
    "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "average", "bfloat16",
    "bincount", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_to",
    "can_cast", "ceil", "clip", "complex64", "complex128", "concat", "cond", "config", "conj",
    "convolve", "copysign", "corrcoef", "cos", "cosh", "count_nonzero", "cov",
    "cumulative_prod", "cumulative_sum", "diff", "divide", "e", "einsum", "empty", "empty_like",
    "equal", "erf", "erfc", "errors", "exp", "exp2", "expand_dims", "explain", "expm1", "eye",
    "fft", "finfo", "flip", "float16", "float32", "float64", "floor", "floor_divide", "fori_loop",
    "from_dlpack", "full", "full_like", "fuse", "grad", "gradient", "greater", "greater_equal",
    "histogram", "hypot", "iinfo", "imag", "inf", "int8", "int16", "int32", "int64", "interp",
    "isclose", "isdtype", "isfinite", "isin", "isinf", "isnan", "jit", "less", "less_equal",
    "linalg", "linspace", "load", "log", "log1p", "log2", "log10", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum",
    "mean", "median", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "nan_to_num",
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian",
    "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
    "negative", "newaxis", "nextafter", "nn", "nonzero", "not_equal", "ones", "ones_like",
    "optim", "pad", "percentile", "permute_dims", "pi", "positive", "pow", "prod", "quantile",
    "random", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll",
    "round", "rsqrt", "save", "save_library", "scan", "searchsorted", "segment_max", "segment_mean",
    "segment_min", "segment_prod", "segment_sum", "sigmoid", "sign", "signbit", "sin", "sinh",
    "sort", "spec",
    "sqrt", "square", "squeeze", "stack", "std", "stop_gradient", "subtract", "sum", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "top_k", "trapezoid", "tril", "triu",
    "trunc", "uint8", "uint16", "uint32", "uint64", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "unstack", "value_and_grad", "var", "vecdot", "vjp",
    "vmap", "where", "while_loop", "zeros", "zeros_like",
]  # fmt: skip


_LATE = {
    "": "fft nn optim random",
    "control": "cond fori_loop scan while_loop",
    "einsum": "einsum",
    "numerical": """
        allclose average convolve corrcoef cov gradient histogram interp isclose isin nan_to_num
        pad trapezoid
    """,
    "numpy_statistics": """
        median nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin
        nanpercentile nanprod nanquantile nanstd nansum nanvar percentile quantile
    """,
    "program_files": "load save",
    "segments": "bincount segment_max segment_mean segment_min segment_prod segment_sum",
    "transformations": "grad stop_gradient value_and_grad vjp vmap",
}
"""Modules of array code that few programs need -> their public names, imported on first use."""
_MODULES = {name: module for module, names in _LATE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import on first use what few programs need, and `torch`, which needs PyTorch."""
    if name in _MODULES:
        module = fork_safe_import(f"smelt.frontends.array.{_MODULES[name] or name}")
        value = globals()[name] = getattr(module, name) if _MODULES[name] else module
        return value
    if name == "onnx":
        return fork_safe_import("smelt.onnx")
    if name == "save_library":
        return fork_safe_import("smelt.saved.library").save_library
    if name not in ("record", "torch"):
        raise_missing(name, __all__)
    try:
        torch_module = fork_safe_import("smelt.torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"smelt.{name} is for torch.compile, and needs PyTorch: {DISTRIBUTION}[torch]"
        raise AttributeError(message, name=name) from None
    return torch_module if name == "torch" else torch_module.record


def __dir__() -> list[str]:
    """List the public API, without imported modules and `torch`, which needs PyTorch."""
    return list(__all__)


class _Package(ModuleType):
    """The package as a module whose attribute `explain` remains the function.

    Importing the subpackage `smelt.explain` would overwrite it. Tests may replace the function.
    """

    @property
    def explain(self) -> Any:
        """See `smelt.frontends.array.explain.explain`."""
        if "explain" in vars(self):
            return vars(self)["explain"]
        return fork_safe_import("smelt.frontends.array.explain").explain

    @explain.setter
    def explain(self, value: Any) -> None:
        if not isinstance(value, ModuleType):
            vars(self)["explain"] = value

    @explain.deleter
    def explain(self) -> None:
        vars(self).pop("explain", None)


sys.modules[__name__].__class__ = _Package
methods.attach()
open_c_library()  # an import that fails says more than the first call that does
install_hooks()
when_imported(
    "einops._backends",
    lambda module: fork_safe_import("smelt.frontends.array.einops_backend").define(module),
)
