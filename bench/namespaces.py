"""Array namespaces of the libraries, so that one function text runs in all of them.

A namespace has functions with the array API's names and keywords, plus `erf` and `contiguous`. Each
is the library's own function, wrapped only where its keywords differ from the standard's; compilers
trace through the wrappers.

>>> xp = numpy_namespace()
>>> float(xp.erf(xp.asarray([0.5]))[0]) == __import__("math").erf(0.5)
True
"""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

STANDARD = (
    *("asarray", "exp", "log", "sqrt", "maximum", "sum", "mean", "var", "max", "argmax"),
    *("reshape", "permute_dims", "take_along_axis"),
)


def numpy_namespace() -> Any:
    """Return NumPy, with SciPy's `erf` if SciPy is installed and the C library's otherwise."""
    return _standard(np, erf=_numpy_erf(), contiguous=np.ascontiguousarray)


def jax_namespace() -> Any:
    """Return `jax.numpy`, where a compiled function's result is always row-major."""
    special = importlib.import_module("jax.scipy.special")
    return _standard(importlib.import_module("jax.numpy"), erf=special.erf, contiguous=_identity)


def smelt_namespace(smelt: Any) -> Any:
    """Return Smelt's array front end, whose results are always row-major."""
    nn = getattr(smelt, "nn", None)
    erf = getattr(smelt, "erf", None) or getattr(nn, "erf", None)
    return _standard(smelt, erf=erf, contiguous=getattr(smelt, "contiguous", _identity))


def torch_namespace() -> Any:
    """Return PyTorch; its reductions and `maximum` are wrapped to take the standard's keywords."""
    torch = importlib.import_module("torch")

    def maximum(x: Any, y: Any) -> Any:
        return torch.clamp(x, min=y) if isinstance(y, float) else torch.maximum(x, y)

    def reduction(function: Any) -> Any:
        def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
            return function(x) if axis is None else function(x, dim=axis, keepdim=keepdims)

        return reduce

    def var(x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
        return torch.var(x, dim=axis, correction=correction, keepdim=keepdims)

    def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
        return torch.take_along_dim(x, indices, dim=axis)

    def contiguous(x: Any) -> Any:
        return x.contiguous()

    return SimpleNamespace(
        **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "erf", "reshape")},
        asarray=torch.asarray,
        permute_dims=torch.permute,
        maximum=maximum,
        sum=reduction(torch.sum),
        mean=reduction(torch.mean),
        max=reduction(torch.amax),
        argmax=reduction(torch.argmax),
        var=var,
        take_along_axis=take_along_axis,
        contiguous=contiguous,
    )


def _standard(module: Any, **extra: Any) -> Any:
    """Return the standard functions that the module has; rows that need others fail."""
    functions = {name: getattr(module, name) for name in STANDARD if hasattr(module, name)}
    return SimpleNamespace(**functions, **{k: f for k, f in extra.items() if f is not None})


def _identity(x: Any) -> Any:
    return x


def _numpy_erf() -> Any:
    try:
        return importlib.import_module("scipy.special").erf
    except ImportError:
        return _library_erf


def _library_erf(x: NDArray[Any]) -> NDArray[Any]:
    """Compute `math.erf` of each element, in the array's type."""
    flat = np.fromiter((math.erf(v) for v in x.reshape(-1).tolist()), np.float64, x.size)
    return flat.reshape(x.shape).astype(x.dtype)
