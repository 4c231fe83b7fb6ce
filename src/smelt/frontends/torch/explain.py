"""Implement `smelt.torch.explain`: report what the compiler makes of a model.

print(smelt.torch.explain(model, x))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.frontends.torch.backend import backend
from smelt.frontends.torch.record import Record, record


def fresh_backend() -> Callable[..., Any]:
    """Return the backend as a new function, so that Dynamo traces a known program again."""

    def again(module: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None = None) -> Any:
        return backend(module, inputs, options=options)

    return again


def explain(
    model: Callable[..., Any],
    /,
    *args: Any,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Record:
    """Compile and run `model(*args, **kwargs)` anew and report every kernel with its time.

    Each kernel is measured on the data of that call.

    Args:
        model: a module or a function.
        *args: arguments as of a call.
        options: settings of `smelt.config`.
        dynamic: as of `torch.compile`.
        **kwargs: keyword arguments as of a call.

    Returns:
        A record: `print` it, or read `kernels`, `left`, `breaks` and `graphs`.

    Raises what the call raises.
    """
    settings: Any = dict(options) if options else None
    with record(measures=True) as result:
        torch.compile(model, backend=fresh_backend(), options=settings, dynamic=dynamic)(
            *args, **kwargs
        )
    return result
