"""`sm.save`: write a compiled function to a file that `sm.load` runs in another process.

sm.save(f, "f.smelt", sm.spec("f32[n,384]"))
g = sm.load("f.smelt")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, SaveError
from smelt.frontends.array.ahead_of_time import Executable, Lowered
from smelt.frontends.array.bind_args import BoundCall, Options, statics_to_data
from smelt.frontends.array.convert import is_foreign_array
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.trace import Argument, Spec
from smelt.frontends.array.tree import flatten, tree_to_data, unflatten
from smelt.graph.ir import Node
from smelt.saved.programs import Draft, save_programs
from smelt.saved.recording import Guard, Outcome, Parameter, Recording, SavedArgument
from smelt.types.dtype import from_numpy
from smelt.types.expr import sizes_of, substitute

MAX_VARIANTS = 8
"""Maximum recordings of one program for sizes that are 1: sizes of 1 and of more follow other rules
of broadcasting, so each combination is a recording of its own."""


def save(
    function: Callable[..., Any] | Mapping[str, Any] | Executable,
    path: str | Path,
    *args: Any,
    isa: str | Sequence[str] = "host",
    hints: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
    **kwargs: Any,
) -> None:
    """Compile a function for these arguments and write it to a file.

    The file holds graph, plans, machine code and constants; `sm.load` needs neither this function's
    source nor LLVM.

    Args:
        function: a plain function, one made by `sm.jit`, or what `lower(...).compile()` returned.
            A mapping of names to (function, arguments) saves several programs in one file, which
            share constants.
        path: the file, which appears whole or not at all.
        *args: arrays or `sm.spec`s, as for `lower`. The program is for all values of the sizes
            that specs name, 1 and (one size at a time) 0 among them.
        isa: instruction sets to hold code for, best first: "host", "avx512", "avx2", "portable".
        hints: likely values of the sizes; several mappings make several plans, and a call takes
            the nearest.
        **kwargs: arguments by keyword.

    Raises:
        SaveError for a program with a part that a file cannot hold; ArgumentError for an unknown
        instruction set; what recording and compilation raise; OSError.
    """
    first_hints = hints if isinstance(hints, Mapping) else dict(*hints[:1])
    _check_hints(
        hints, [args, kwargs, function] if isinstance(function, Mapping) else [args, kwargs]
    )
    programs = {
        name: [_draft(x) for x in lowered]
        for name, lowered in _recorded(function, args, kwargs, first_hints)
    }
    save_programs(path, programs, isa, hints)


def _recorded(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Mapping[str, int]
) -> Iterator[tuple[str, list[Lowered]]]:
    """Yield the name of each program with its recordings."""
    if isinstance(function, Executable):
        yield function.lowered.bound.options.name, [function.lowered]
    elif not isinstance(function, Mapping):
        jitted = _jitted(function)
        yield jitted.options.name, _variants(jitted, args, kwargs, sizes)
    elif args or kwargs or not function:
        raise ArgumentError(
            "save: a mapping has the arguments of each function: {name: (function, arguments)}"
        )
    else:
        for name, (program, arguments) in function.items():
            yield str(name), _variants(_jitted(program), tuple(arguments), {}, sizes)


def _check_hints(hints: Mapping[str, int] | Sequence[Mapping[str, int]], arguments: Any) -> None:
    """Raise ArgumentError for hints of sizes that no spec names."""
    specs = [x for x in flatten(arguments)[0] if isinstance(x, Spec)]
    names = {n for x in specs for d in x.shape for n in sizes_of(d)}
    choices = [hints] if isinstance(hints, Mapping) else hints
    unknown = [n for choice in choices for n in choice if names and n not in names]
    if unknown:
        listed = ", ".join(sorted(names))
        raise ArgumentError(op="save", argument="hints", value=unknown[0], expected=f"of {listed}")


def _jitted(function: Any) -> Jit[Any, Any]:
    if not callable(function):
        raise ArgumentError.of("save", "function", function, "a function")
    return function if isinstance(function, Jit) else Jit(Options(function))


# ---- recordings for sizes of 1 and 0 -------------------------------------------------------------


def _variants(
    jitted: Jit[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sizes: Mapping[str, int],
) -> list[Lowered]:
    """Record a program for sizes above 1, each choice of ones, and each zero."""
    leaves, tree = flatten(jitted.options.by_position(args, kwargs))
    leaves = [np.ascontiguousarray(x) if is_foreign_array(x) else x for x in leaves]
    dims = [d for x in leaves if isinstance(x, Spec) for d in x.shape]
    names = list(dict.fromkeys(n for d in dims for n in sizes_of(d)))
    choices = [
        dict.fromkeys(ones, 1)
        for count in range(len(names) + 1)
        for ones in combinations(names, count)
    ]
    choices = choices[:MAX_VARIANTS] + [{name: 0} for name in names]
    variants: list[Lowered] = []
    for values in choices:
        fixed = [_with_sizes(x, values) if isinstance(x, Spec) else x for x in leaves]
        positional, named = unflatten(tree, iter(fixed))
        try:
            variants.append(jitted.record(positional, named, sizes))
        except Exception:  # `x[1]` and the like do not take a size of 1
            if not variants:
                raise
    return variants


def _with_sizes(spec: Spec, values: Mapping[str, int]) -> Spec:
    return Spec(tuple(substitute(d, values, "size") for d in spec.shape), spec.dtype)


# ---- recordings as data --------------------------------------------------------------------------


def _draft(lowered: Lowered) -> Draft:
    trace, bound = lowered.trace, lowered.bound
    read = dict(zip(trace.arguments, trace.graph.inputs))
    turns = trace.permutations
    _check_statics(bound)
    recording = Recording(
        _parameters(bound.options),
        tree_to_data(bound.tree),
        statics_to_data(bound),
        tuple(bound.names),
        tuple(_argument(a, read.get(k)) for k, a in enumerate(lowered.arguments)),
        trace.graph,
        trace.arguments,
        tuple(map(evaluate, trace.captured)),
        tuple(
            Outcome(r.kind, r.position, evaluate(r.value) if r.kind == "captured" else r.value)
            for r in trace.results
        ),
        tree_to_data(trace.tree),
        trace.match,
        tuple(Guard(g.left, g.relation, g.right, g.origin) for g in trace.guards),
        trace.hints,
        trace.result_sizes,
        trace.value_dependent,
        trace.size_inputs,
        None if turns is None else (turns.inputs, turns.outputs),
        trace.parameters,
        trace.number_names,
    )
    return Draft(recording, lowered.settings or nullcontext())


def _argument(a: Argument, read: Node | None) -> SavedArgument:
    """Return what an argument has to be.

    `read` is the graph's input for it; None if it is not read.
    """
    if a.spec is not None:
        return SavedArgument(a.spec.dtype, a.spec.shape)
    if a.data is not None:
        shape = a.data.shape if read is None else read.type.shape
        return SavedArgument(from_numpy(a.data.dtype), tuple(shape))
    if a.is_static:
        return SavedArgument(constant=a.number)
    return SavedArgument(number=type(a.number).__name__)


def _parameters(options: Options) -> tuple[Parameter, ...]:
    try:
        parameters = inspect.signature(options.function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(Parameter(p.name, p.kind.name, p.default is not p.empty) for p in parameters)


def _check_statics(bound: BoundCall) -> None:
    for slot, kind, value, _ in bound.statics:
        if kind not in (bool, int, float, str, type(None)):
            raise SaveError(what=f"the static argument {slot!r} of type {kind.__name__}: {value!r}")
