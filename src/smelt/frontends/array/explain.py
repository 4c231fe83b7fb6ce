"""`sm.explain`: report how a call is compiled, and why.

print(sm.explain(f, x, y))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from smelt.errors import ArgumentError
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall, Options, as_arguments
from smelt.frontends.array.complex_array import ComplexArray
from smelt.frontends.array.convert import is_on_gpu
from smelt.frontends.array.engine import explain_package
from smelt.frontends.array.evaluate_pending import plan_pending
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.program_files import LoadedFunction
from smelt.frontends.array.results import buffers_of
from smelt.frontends.array.trace import Spec
from smelt.frontends.array.tree import flatten, unflatten
from smelt.machine.processor import INSTRUCTION_SETS
from smelt.python.imports import fork_safe_import
from smelt.types.expr import Index

if TYPE_CHECKING:
    from smelt.explain.api import Report

__all__ = ["explain", "explain_call"]


def explain(function: Callable[..., Any] | Array, /, *args: Any, **kwargs: Any) -> Report:
    """Report what the compiler makes of a call: kernels, bytes, times and decisions.

    Args:
        function: a plain function or one made by `sm.jit`; it is compiled if need be. An array
            whose elements are pending stands for the program that computes it; it stays pending.
            A function from a program file has the report of its plan, at the sizes it was made for.
        *args: arguments of a call.  With arrays times are measured, with `sm.spec`s predicted.
        **kwargs: keyword arguments of the call.  `target` names a GPU, such as "sm_90" or "h100",
            "cuda:0" for one that is here (where arguments are on it, its report is the default),
            or an instruction set, such as "neon", unless the function has an argument of that name:
            the report is then for that machine, with Triton programs for a GPU; nothing runs.

    Returns:
        A report: `print` it, query it with `why(a, b)`, or use `to_json()` and `kernels[i].text`.

    Raises ArgumentError for something that is not a function, and whatever the call raises.
    """
    if isinstance(function, Array):
        return _explain_pending(function, args, kwargs)
    names_machine = isinstance(kwargs.get("target"), str)  # or an argument of the function
    names_machine = names_machine and "target" not in signature(function).parameters
    target = kwargs.pop("target") if names_machine else None
    if not callable(function):
        raise ArgumentError.of(
            "explain", "function", function, "a function, or an array whose elements are pending"
        )
    if isinstance(function, LoadedFunction) and target is None:
        saved = function.report(*args, **kwargs)
        if saved is not None:
            return cast("Report", saved)  # what a report says without the program
    jitted = function if isinstance(function, Jit) else Jit(Options(function))
    bound = jitted.options.bind(args, kwargs)
    if any(map(is_on_gpu, bound.leaves)):  # nothing runs: shapes and types are enough
        args, kwargs, device = _without_elements(args, kwargs)
        bound, target = jitted.options.bind(args, kwargs), target or device
    if not any(a.spec is not None for a in as_arguments(bound)):
        return explain_call(jitted, bound, target=target)
    lowered = jitted.lower(*args, **kwargs)
    lowered.compile()
    trace = lowered.trace
    return explain_package().report(
        trace.executable, trace.hints, target=target, size_names=trace.source_size_names()
    )


def _without_elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return arguments with specs of arrays on a GPU, and the name of that."""
    buffer_of = fork_safe_import("smelt.frontends.array.device_array").buffer_of
    leaves, tree = flatten((args, kwargs))
    buffers = {k: buffer_of(x) for k, x in enumerate(leaves) if is_on_gpu(x)}
    specs = {k: Spec(b.shape, b.dtype) for k, b in buffers.items()}
    rest = unflatten(tree, iter([specs.get(k, x) for k, x in enumerate(leaves)]))
    return *rest, next(iter(buffers.values())).device.name


def explain_call(
    jitted: Jit[..., Any],
    bound: BoundCall,
    *,
    target: str | None = None,
    measured: bool = True,
    dims: Sequence[Index] = (),
) -> Report:
    """Report what the compiler makes of a call with arrays.

    Without `measured` nothing runs. `dims` are the dimensions of all arrays, as their author names
    them. Raises whatever the call raises, ArgumentError for an unknown target.
    """
    arguments = as_arguments(bound)
    # programs of a GPU read contiguous arrays, of which transposed arguments are copies
    is_device = target is not None and target not in INSTRUCTION_SETS
    trace, sizes = jitted.find_trace(bound, arguments, keeps_order=not is_device)
    names = trace.source_size_names(dims)
    if target is not None or not measured:
        return explain_package().report(trace.executable, sizes, target=target, size_names=names)
    buffers = trace.complete(buffers_of(trace, arguments), sizes)
    return explain_package().report(trace.executable, sizes, buffers, size_names=names)


def _explain_pending(
    array: Array, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Report:
    """Report what computes an array's elements, which stay pending."""
    target = keywords.get("target")
    if arguments or keywords.keys() - {"target"}:
        raise ArgumentError("explain: an array takes no arguments; pass the function that made it")
    parts = array.parts if isinstance(array, ComplexArray) else (array,)
    plan = plan_pending(*(x.node for x in parts))
    if plan is None:
        raise ArgumentError(
            f"explain: the elements of this {array.dtype} array of shape {array.shape} are computed"
            " already: nothing is pending. Explain the function that made it, or the array before"
            " it is read."
        )
    compiled, sizes, buffers = plan
    if target is not None:
        return explain_package().report(compiled, sizes, target=target)
    return explain_package().report(compiled, sizes, buffers)
