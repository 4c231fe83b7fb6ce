"""`sm.load`: run a program from a file, without the function that it was made from.

A loaded function binds its arguments, checks guards and runs as a jitted function does; in place of
recording and compiling it looks for a recording in the file, and raises GuardError if none fits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from smelt.dataclass import dataclass
from smelt.errors import (
    ArgumentError,
    GuardError,
    ProgramMachineError,
    ProgramVersionError,
    StructureError,
    UnknownNameError,
    UnsupportedError,
)
from smelt.frontends.array.ahead_of_time import Lowered, as_arguments
from smelt.frontends.array.bind_args import BoundCall, Options
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.recording_format import (
    SavedArgument,
    argument_from_data,
    recording_from_data,
)
from smelt.frontends.array.results import match_parameters
from smelt.frontends.array.trace import Argument, Trace
from smelt.frontends.array.tree import tree_to_data
from smelt.graph.text import text
from smelt.saved.file import ProgramFile
from smelt.saved.plans import choose_plans, load_plan, load_runtime
from smelt.tune.memory import Program

__all__ = ["LoadedFunction", "Programs", "load"]


def load(
    path: str | Path,
    *,
    trust: str = "code",
    sha256: str = "",
    compile: bool = False,
    mmap: bool = True,
) -> LoadedFunction | Programs:
    """Load a program that `sm.save` wrote.

    Args:
        path: the file.
        trust: "code" runs the file's machine code, which takes a file that only this user or root
            may write to; "graph" runs nothing of the file and compiles its graph.
        sha256: digest of the whole file, in place of the check of its owner.
        compile: compile the graph where the file has no code for this processor or version.
        mmap: map constants; otherwise they are read at once.

    Returns:
        A function with the parameters of the saved one. For a file of several programs, a mapping
        of their names, which are attributes too.

    Raises:
        ProgramFileError for a damaged file, ProgramVersionError for one of another version,
        ProgramMachineError if it has no code for this processor, ProgramTrustError if others may
        have written it; OSError.
    """
    if trust not in ("code", "graph"):
        raise ArgumentError(
            op="load", argument="trust", value=repr(trust), expected="'code' or 'graph'"
        )
    file = ProgramFile(Path(path), mapped=mmap)
    runs_code = trust == "code"
    if runs_code or sha256:
        file.check_trust(sha256)
    with file.reading():
        if runs_code:
            runs_code = _can_run(file, compile)
        functions = {
            str(name): LoadedFunction(name, [_entry(file, e, runs_code) for e in entries])
            for name, entries in file.facts["entries"].items()
        }
    if len(functions) == 1:
        return next(iter(functions.values()))
    return Programs(file.path.name, functions)


def _can_run(file: ProgramFile, compile: bool) -> bool:
    """Return whether the file's code runs here; if not, raise unless it may be compiled."""
    try:
        load_runtime(file, file.facts["runtime"])
        for entries in file.facts["entries"].values():
            for entry in entries:
                choose_plans(file, entry["plans"])
    except (ProgramMachineError, ProgramVersionError):
        if compile:
            return False
        raise
    return True


# ---- entries -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A recording of a program, with what its arguments have to be."""

    call: Any
    statics: Any
    names: tuple[str, ...]
    arguments: tuple[SavedArgument, ...]
    parameters: Sequence[Any]
    traces: tuple[Trace, ...]
    """The recording with each plan; plans differ in the sizes they were made for."""

    def fits(self, arguments: Sequence[Argument]) -> bool:
        """Return whether the arguments have the dtypes, ranks and fixed dimensions."""
        return all(
            saved.accepts(a) for saved, a in zip(self.arguments, arguments, strict=True)
        )

    def trace_for(self, sizes: tuple[int, ...]) -> Trace:
        """Return the recording with the plan that was made for the nearest sizes."""
        if len(self.traces) == 1:
            return self.traces[0]
        return min(self.traces, key=lambda t: _distance(sizes, tuple(t.hints.values())))

    def describe(self) -> str:
        """Return the arguments as text."""
        return ", ".join(
            f"{name}: {a}" for name, a in zip(self.names, self.arguments, strict=True)
        )


def _distance(sizes: Sequence[int], hints: Sequence[int]) -> float:
    """Return how far apart sizes are: the sum of the ratios' logarithms."""
    pairs = zip(sizes, hints, strict=True)
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in pairs)


def _entry(file: ProgramFile, facts: Mapping[str, Any], runs_code: bool) -> Entry:
    trace = recording_from_data(file, facts["recording"])
    traces = [trace]
    if runs_code:
        traces = [_planned(file, trace, plan) for plan in choose_plans(file, facts["plans"])]
    return Entry(
        facts["call"],
        facts["statics"],
        tuple(map(str, facts["names"])),
        tuple(map(argument_from_data, facts["arguments"])),
        facts["parameters"],
        tuple(traces),
    )


def _planned(file: ProgramFile, trace: Trace, facts: Mapping[str, Any]) -> Trace:
    """Return the recording with a plan of the file in place of compilation."""
    hints = {str(name): int(n) for name, n in facts["hints"].items()}
    program = load_plan(file, facts, Program(trace.graph, hints), ())
    prelude = program.executable.prelude
    if prelude is not None:
        first = len(trace.arguments)
        owners = [trace.captured[k - first] for k in prelude.sources]
        arrays = [file.array(x) for x in facts["held"]]
        if len(arrays) != len(prelude.parts):
            raise ValueError("other constants than the plan computes")
        prelude.adopt(owners, (None,) * len(owners), arrays)
    return replace(trace, hints=hints, compiled=program)


# ---- functions -----------------------------------------------------------------------------------


class SavedOptions(Options):
    """Parameters of a saved function; keywords are bound as in the calls that were saved."""

    def __init__(self, name: str, parameters: Sequence[Any]) -> None:
        kinds = {kind.name: kind for kind in (inspect.Parameter(n, k).kind for n, k in _KINDS)}
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    str(n), kinds[kind], default=... if has_default else inspect.Parameter.empty
                )
                for n, kind, has_default in parameters
            ]
        )

        def function(*args: Any, **kwargs: Any) -> NoReturn:
            raise UnsupportedError(f"{name} was loaded from a file, which does not have its source")

        function.__name__ = function.__qualname__ = name
        function.__signature__ = signature  # type: ignore[attr-defined]
        super().__init__(function)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """Bind the arguments of a call by position where parameters allow it."""
        return super().bind(*self.by_position(args, kwargs))


_KINDS = [("x", kind) for kind in (0, 1, 2, 3, 4)]


class LoadedFunction(Jit[Any, Any]):
    """Function of a program file: it runs or raises an error, but never records."""

    def __init__(self, name: str, entries: Sequence[Entry]) -> None:
        super().__init__(SavedOptions(name, entries[0].parameters))
        self.entries = tuple(entries)
        self._noticed = True

    def __repr__(self) -> str:
        """Show the signature of each saved call."""
        calls = "; ".join(dict.fromkeys(e.describe() for e in self.entries))
        return f"<smelt.load: {self.options.name}({calls})>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.options.name} lies in a file: pass its path, and load it there")

    def as_text(self) -> str:
        """Return the graph of the first recording as text."""
        return text(self.entries[0].traces[0].graph)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Return the saved recording for these arguments; raises GuardError if there is none."""
        bound = self.options.bind(args, kwargs)
        arguments = as_arguments(bound)
        trace, _ = self.find_trace(bound, arguments)
        return Lowered(trace, bound, tuple(arguments))

    def arguments_of(self, bound: BoundCall) -> list[Argument]:
        """Return the leaves of a call as contiguous arguments, which all saved programs read."""
        return [
            a
            if a.data is None or a.data.flags.c_contiguous
            else Argument(np.ascontiguousarray(a.data))
            for a in as_arguments(bound)
        ]

    def find_trace(
        self, bound: BoundCall, arguments: Sequence[Argument], *, turns: bool = True
    ) -> tuple[Trace, tuple[int, ...]]:
        """Return the saved recording for these arguments and the values of its sizes.

        Raises StructureError for arguments of another nesting, GuardError for other arrays.
        """
        call = tree_to_data(bound.tree)
        statics = [[slot, kind.__name__, value] for slot, kind, value in bound.statics]
        entries = [e for e in self.entries if e.call == call and e.statics == statics]
        if not entries:
            raise StructureError(
                f"{self.options.name}: the arguments are nested otherwise than when it was saved",
                hint=f"It was saved for {self}.",
            )
        measures = match_parameters(arguments)
        for entry in entries:
            sizes = entry.traces[0].match(*measures) if entry.fits(arguments) else None
            if sizes is not None:
                return entry.trace_for(sizes), sizes
        raise GuardError(guard=_wanted(entries), found=_given(entries[0].names, arguments))


def _wanted(entries: Sequence[Entry]) -> str:
    """Return what the saved recordings are for, with their guards."""
    texts: dict[str, None] = {}
    for e in entries:
        guards = " and ".join(map(str, e.traces[0].guards))
        texts[f"{e.describe()}{' where ' * bool(guards)}{guards}"] = None
    return "; or ".join(texts)


def _given(names: Sequence[str], arguments: Sequence[Argument]) -> str:
    texts = [
        repr(a.number) if a.data is None else f"{a.data.dtype.name}{list(a.data.shape)}"
        for a in arguments
    ]
    return "it is called with " + ", ".join(
        f"{name}: {given}" for name, given in zip(names, texts, strict=True)
    )


class Programs(Mapping[str, LoadedFunction]):
    """The functions of a file of several programs, by name."""

    def __init__(self, file: str, functions: Mapping[str, LoadedFunction]) -> None:
        self._file, self._functions = file, dict(functions)

    def __getitem__(self, name: str) -> LoadedFunction:
        return self._functions[name]

    def __iter__(self) -> Any:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __getattr__(self, name: str) -> LoadedFunction:
        """Return a program by name; raises AttributeError."""
        functions = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(f"{self._file} has no program {name!r}: {', '.join(functions)}")
        return functions[name]

    def __repr__(self) -> str:
        return f"<smelt.load: {self._file} with {', '.join(self._functions)}>"
