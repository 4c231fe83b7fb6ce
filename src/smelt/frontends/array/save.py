"""`sm.save`: write a compiled program to a file that `sm.load` runs in another process.

    sm.save(f, "f.smelt", sm.spec("f32[n,384]"))
    g = sm.load("f.smelt")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from smelt.errors import ArgumentError, SaveError
from smelt.frontends.array.ahead_of_time import Executable, Lowered
from smelt.frontends.array.bind_args import BoundCall, Options
from smelt.frontends.array.convert import is_foreign_array
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.recording_format import argument_to_data, recording_to_data
from smelt.frontends.array.trace import Argument, Spec, Trace
from smelt.frontends.array.tree import flatten, tree_to_data, unflatten
from smelt.instruction_sets import INSTRUCTION_SETS
from smelt.runtime.host import host
from smelt.saved.file import Writer
from smelt.saved.plans import write_plan, write_runtime
from smelt.target import Target
from smelt.tune.memory import Program
from smelt.types.expr import size, sizes_of, substitute
from smelt.version import __version__

__all__ = ["save"]

MAX_VARIANTS = 8
"""Most recordings of one program for sizes that are 1: sizes of 1 and of more follow other rules
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
            that specs name, 1 among them.
        isa: instruction sets to hold code for, best first: "host", "avx512", "avx2", "portable".
        hints: likely values of the sizes; several mappings make several plans, and a call takes
            the nearest.
        **kwargs: arguments by keyword.

    Raises:
        SaveError for a program with a part that a file cannot hold; ArgumentError for an unknown
        instruction set; what recording and compilation raise; OSError.
    """
    writer = Writer()
    targets = _targets(isa)
    wanted = [hints] if isinstance(hints, Mapping) else list(hints)
    entries: dict[str, list[dict[str, Any]]] = {}
    for name, program in _programs(function, args, kwargs):
        lowered = [program] if isinstance(program, Lowered) else _variants(*program)
        entries[name] = [_entry(writer, x, targets, wanted) for x in lowered]
    facts = {"smelt": __version__, "runtime": write_runtime(writer), "entries": entries}
    writer.write(Path(path), facts)


def _programs(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the name of each program, with its recording or its function and arguments."""
    if isinstance(function, Executable):
        yield function.lowered.bound.options.name, function.lowered
        return
    if not isinstance(function, Mapping):
        yield _jitted(function).options.name, (_jitted(function), args, kwargs)
        return
    if args or kwargs or not function:
        raise ArgumentError(
            "save: a mapping has the arguments of each function: {name: (function, arguments)}"
        )
    for name, (program, *rest) in function.items():
        yield str(name), (_jitted(program), *_split(rest))


def _split(rest: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = rest[0] if rest else ()
    return tuple(args) if isinstance(args, Sequence) else (args,), dict(*rest[1:2])


def _jitted(function: Any) -> Jit[Any, Any]:
    if not callable(function):
        raise ArgumentError(
            op="save", argument="function", value=repr(function), expected="a function"
        )
    return function if isinstance(function, Jit) else Jit(Options(function))


def _targets(isa: str | Sequence[str]) -> list[Target]:
    """Return the targets of the named instruction sets, with this machine's other facts.

    Raises ArgumentError for an unknown one.
    """
    targets: list[Target] = []
    for name in [isa] if isinstance(isa, str) else isa:
        if name != "host" and name not in INSTRUCTION_SETS:
            raise ArgumentError(
                op="save",
                argument="isa",
                value=repr(name),
                expected=f"host, {', '.join(INSTRUCTION_SETS)}",
            )
        here = host()
        target = here if name == "host" else replace(Target.for_isa(name), cores=here.cores)
        targets.append(target)
    return targets


# ---- recordings for sizes of 1 -------------------------------------------------------------------


def _variants(
    jitted: Jit[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Lowered]:
    """Record a program for sizes of more than 1, and for each choice of sizes that are 1."""
    leaves, tree = flatten(jitted.options.by_position(args, kwargs))
    leaves = [np.ascontiguousarray(x) if is_foreign_array(x) else x for x in leaves]
    names = list(
        dict.fromkeys(n for x in leaves if isinstance(x, Spec) for d in x.shape for n in sizes_of(d))
    )
    choices = [ones for count in range(len(names) + 1) for ones in combinations(names, count)]
    variants: list[Lowered] = []
    for ones in choices[:MAX_VARIANTS]:
        fixed = [_with_ones(x, ones) if isinstance(x, Spec) else x for x in leaves]
        positional, named = unflatten(tree, iter(fixed))
        variants.append(jitted.lower(*positional, **named))
    return variants


def _with_ones(spec: Spec, ones: Sequence[str]) -> Spec:
    values = dict.fromkeys(ones, 1)
    return Spec(tuple(substitute(d, values, "size") for d in spec.shape), spec.dtype)


# ---- entries -------------------------------------------------------------------------------------


def _entry(
    writer: Writer,
    program: Lowered,
    targets: Sequence[Target],
    hints: Sequence[Mapping[str, int]],
) -> dict[str, Any]:
    """Compile one recording for all targets and hints, and return everything as data."""
    trace, bound = program.trace, program.bound
    with program.settings or nullcontext():
        plans = [
            _plan(writer, trace, target, {**trace.hints, **_known(trace, more)})
            for target in targets
            for more in hints or [{}]
        ]
    return {
        "parameters": _parameters(bound.options),
        "call": tree_to_data(bound.tree),
        "statics": _statics(bound),
        "names": bound.names,
        "arguments": _arguments(trace, program.arguments),
        "recording": recording_to_data(writer, replace(trace, donate=())),
        "plans": plans,
    }


def _known(trace: Trace, hints: Mapping[str, int]) -> dict[str, int]:
    return {name: int(n) for name, n in hints.items() if name in trace.hints}


def _plan(
    writer: Writer, trace: Trace, target: Target, hints: Mapping[str, int]
) -> dict[str, Any]:
    first = len(trace.arguments)
    constants = {first + k: evaluate(x) for k, x in enumerate(trace.captured)}
    return write_plan(writer, Program(trace.graph, hints), (), target, constants)


def _arguments(trace: Trace, arguments: Sequence[Argument]) -> list[dict[str, Any]]:
    read = dict(zip(trace.arguments, trace.graph.inputs))
    return [argument_to_data(a, read.get(k)) for k, a in enumerate(arguments)]


def _parameters(options: Options) -> list[Any]:
    """Return names and kinds of the function's parameters; empty if it does not tell."""
    try:
        parameters = inspect.signature(options.function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [[p.name, p.kind.name, p.default is not p.empty] for p in parameters]


def _statics(bound: BoundCall) -> list[Any]:
    for slot, kind, value in bound.statics:
        if kind not in (bool, int, float, str, type(None)):
            raise SaveError(what=f"the static argument {slot!r} of type {kind.__name__}: {value!r}")
    return [[slot, kind.__name__, value] for slot, kind, value in bound.statics]
