"""`sm.explain`: report how a call is compiled, and why.

print(sm.explain(f, x, y))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from smelt.errors import ArgumentError
from smelt.frontends.array.ahead_of_time import as_arguments
from smelt.frontends.array.bind_args import Options
from smelt.frontends.array.engine import explain_package
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.results import buffers_of
from smelt.instruction_sets import INSTRUCTION_SETS

if TYPE_CHECKING:
    from smelt.explain import Report

__all__ = ["explain"]


def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Report what the compiler makes of a call: kernels, bytes, times and decisions.

    Args:
        function: a plain function or one made by `sm.jit`; it is compiled if need be.
        *args: arguments of a call.  With arrays times are measured, with `sm.spec`s predicted.
        **kwargs: keyword arguments of the call.  `target` names a GPU, such as "sm_90" or "h100",
            or an instruction set, such as "neon", unless the function has an argument of that name:
            the report is then for that machine, with Triton programs for a GPU; nothing runs.

    Returns:
        A report: `print` it, query it with `why(a, b)`, or use `to_json()` and `kernels[i].text`.

    Raises ArgumentError for something that is not a function, and whatever the call raises.
    """
    target = kwargs.pop("target") if _names_target(function, kwargs) else None
    if not callable(function):
        raise ArgumentError(
            op="explain", argument="function", value=repr(function), expected="a function"
        )
    jitted = function if isinstance(function, Jit) else Jit(Options(function))
    bound = jitted.options.bind(args, kwargs)
    arguments = as_arguments(bound)
    if any(a.spec is not None for a in arguments):
        lowered = jitted.lower(*args, **kwargs)
        lowered.compile()
        names = lowered.trace.source_size_names()
        return explain_package().report(
            lowered.trace.executable, lowered.trace.hints, target=target, size_names=names
        )
    # programs of a GPU read contiguous arrays, of which transposed arguments are copies
    is_device = target is not None and target not in INSTRUCTION_SETS
    trace, sizes = jitted.find_trace(bound, arguments, turns=not is_device)
    names = trace.source_size_names()
    if target is not None:
        return explain_package().report(trace.executable, sizes, target=target, size_names=names)
    buffers = trace.complete(buffers_of(trace, arguments), sizes)
    return explain_package().report(trace.executable, sizes, buffers, size_names=names)


def _names_target(function: Callable[..., Any], keywords: Mapping[str, Any]) -> bool:
    """Whether the keyword `target` names a machine, and is not an argument of the function."""
    if not isinstance(keywords.get("target"), str):
        return False
    return "target" not in signature(function).parameters
