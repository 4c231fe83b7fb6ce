"""`sm.load`: run a program from a file, without the function that it was made from.

A loaded function binds its arguments, checks guards and runs as a jitted function does; in place of
recording and compiling it looks for a recording in the file, and raises GuardError if none fits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt.errors import (
    ArgumentError,
    GuardError,
    ProgramFileError,
    StructureError,
    UnsupportedError,
)
from smelt.frontends.array import sizes
from smelt.frontends.array.ahead_of_time import Lowered, as_arguments
from smelt.frontends.array.bind_args import BoundCall, Options, statics_to_data
from smelt.frontends.array.engine import Permutations
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.results import buffers_of, match_parameters
from smelt.frontends.array.trace import Argument, Result, Trace
from smelt.frontends.array.tree import tree_from_data, tree_to_data
from smelt.frontends.array.value import leaf
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.graph.walk import input_size_names
from smelt.ops.create import Input
from smelt.ops.spec import dims_at
from smelt.python.dataclass import dataclass
from smelt.saved.plans import StoredProgram
from smelt.saved.programs import Entry, Plan, open_programs
from smelt.saved.recording import Recording, SavedArgument

if TYPE_CHECKING:
    from smelt.explain.saved_report import SavedReport

__all__ = ["LoadedFunction", "Programs", "load"]


def load(
    path: str | Path,
    *,
    trust: str = "code",
    sha256: str = "",
    compile: bool = False,
    mmap: bool = True,
    verify: bool = False,
) -> LoadedFunction | Programs:
    """Load a program that `sm.save` wrote.

    Args:
        path: the file.
        trust: "code" runs the file's machine code, which takes a file that only this user or root
            may write to; "graph" runs nothing of the file and compiles its graph.
        sha256: digest of the whole file, in place of the check of its owner.
        compile: compile the graph where the file has no code for this processor or version.
        mmap: map constants; otherwise they are read at once.
        verify: compare constants with their checksums too, which reads all of them.

    Returns:
        A function with the parameters of the saved one. For a file of several programs, a mapping
        of their names, which are attributes too.

    Raises:
        ProgramFileError for a damaged file, ProgramVersionError for one of another version,
        ProgramMachineError if it has no code for this processor, ProgramTrustError if others may
        have written it; OSError.
    """
    if trust not in ("code", "graph"):
        raise ArgumentError.of("load", "trust", trust, "'code' or 'graph'")
    file, programs = open_programs(
        path,
        runs_code=trust == "code",
        sha256=sha256,
        may_compile=compile,
        mapped=mmap,
        verify=verify,
    )
    with file.reading():
        functions = {name: LoadedFunction(name, entries) for name, entries in programs.items()}
    if len(functions) == 1:
        return next(iter(functions.values()))
    return Programs(Path(path).name, functions)


# ---- recordings ----------------------------------------------------------------------------------


@dataclass(slots=True)
class SavedTrace(Trace):
    """Recording of a file, which has no plan for results that replace arguments."""

    def for_overwriting(self, pairs: tuple[tuple[int, int], ...]) -> Trace:
        """Return itself: such results are computed elsewhere and copied."""
        return self


class SavedCall:
    """A recording of a file, and what its arguments have to be."""

    def __init__(self, entry: Entry) -> None:
        self.recording = r = entry.recording
        trace = _trace(r)
        self.traces = [_planned(trace, plan) for plan in entry.plans] or [trace]
        """The recording with each plan; plans differ in the sizes they were made for."""

    def fits(self, arguments: Sequence[Argument]) -> bool:
        """Return whether the arguments have the dtypes, ranks and fixed dimensions."""
        pairs = zip(self.recording.leaves, arguments, strict=True)
        return all(saved.accepts(a.data, a.number) for saved, a in pairs)

    def distance(self, arguments: Sequence[Argument]) -> tuple[int, int]:
        """Return how many arguments have another type or rank, and how many other sizes."""
        others = sizes = 0
        for saved, a in zip(self.recording.leaves, arguments, strict=True):
            if saved.accepts(a.data, a.number):
                continue
            if a.data is None or saved.dtype is None:
                others += 1
                continue
            others += a.data.dtype != saved.dtype.numpy or a.data.ndim != len(saved.shape)
            pairs = zip(a.data.shape, saved.shape, strict=False)
            sizes += sum(n != d if isinstance(d, int) else n < 2 for n, d in pairs)
        return others, sizes

    def check_sizes(self, name: str, values: Sequence[Any], arguments: Sequence[Argument]) -> None:
        """Raise ProgramFileError if the graph's inputs are not of the arguments' sizes.

        The formula that gives the sizes is data of a file, and may say anything.
        """
        trace = self.traces[0]
        names = input_size_names(trace.graph)
        sizes = dict(zip(names, values, strict=False))
        buffers = trace.complete(buffers_of(trace, arguments), tuple(values))
        is_whole = len(names) == len(values) and all(type(n) is int and n >= 0 for n in values)
        inputs = trace.graph.inputs[: len(buffers) - len(trace.size_inputs)]
        if not is_whole or not all(
            x.shape == dims_at(node.type.shape, sizes) and x.dtype == node.type.dtype.numpy
            for x, node in zip(buffers, inputs)
        ):
            raise ProgramFileError(path=name, reason="its sizes are not those of its arguments")

    def trace_for(self, sizes: tuple[int, ...]) -> Trace:
        """Return the recording with the plan that was made for the nearest sizes."""
        if len(self.traces) == 1:
            return self.traces[0]
        return min(self.traces, key=lambda t: _distance(sizes, tuple(t.hints.values())))

    def __str__(self) -> str:
        pairs = zip(self.recording.names, self.recording.leaves, strict=True)
        return ", ".join(f"{name}: {x}" for name, x in pairs)


def _distance(sizes: Sequence[int], hints: Sequence[int]) -> float:
    """Return how far apart sizes are: the sum of the ratios' logarithms."""
    pairs = zip(sizes, hints, strict=True)
    return sum(abs(math.log(max(a, 1) / max(b, 1))) for a, b in pairs)


def _trace(r: Recording) -> Trace:
    """Return the front end's recording, not compiled yet."""
    return SavedTrace(
        r.graph,
        r.arguments,
        tuple(map(leaf, r.constants)),
        tuple(
            Result(x.kind, x.position, leaf(x.value) if x.kind == "captured" else x.value)
            for x in r.outcomes
        ),
        tree_from_data(r.result),
        r.match,
        tuple(sizes.Guard(*g) for g in r.guards),
        dict(r.hints),
        (),
        len(r.leaves),
        r.result_sizes,
        r.value_dependent,
        r.size_inputs,
        _bounds(r.graph),
        None if r.permutations is None else Permutations(*r.permutations),
        r.match_names,
        (),
        r.number_names,
    )


def _bounds(graph: Graph) -> BoundsChecks:
    """Return the bounds checks of a graph, whose flag is its last output."""
    if not graph.checks:
        return BoundsChecks()
    (flag,) = graph.check_outputs
    checks = collect_bounds_checks(
        graph.results, trusted=lambda _, plain: isinstance(plain.op, Input) and plain.op.constant
    )
    return replace(checks, flag=flag)


def _planned(trace: Trace, plan: Plan) -> Trace:
    """Return the recording with a plan of the file in place of compilation."""
    prelude = plan.program.executable.prelude
    if prelude is not None:
        first = len(trace.arguments)
        owners = [trace.captured[k - first] for k in prelude.sources]
        prelude.adopt(owners, (None,) * len(owners), plan.held)
    return replace(trace, hints=dict(plan.hints), compiled=plan.program)


# ---- functions -----------------------------------------------------------------------------------


class SavedOptions(Options):
    """Parameters of a saved function; keywords are bound as in the calls that were saved."""

    def __init__(self, name: str, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        parameters, statics = recordings[0].parameters, recordings[0].statics
        signature = inspect.Signature(
            [
                inspect.Parameter(
                    p.name,
                    _KINDS[p.kind],
                    default=... if p.has_default else inspect.Parameter.empty,
                )
                for p in parameters
            ]
        )

        def function(*args: Any, **kwargs: Any) -> NoReturn:
            raise UnsupportedError(f"{name} was loaded from a file, which does not have its source")

        function.__name__ = function.__qualname__ = name
        function.__signature__ = signature  # type: ignore[attr-defined]
        slots = [slot for slot, _, _ in statics]
        super().__init__(
            function,
            static_argnums=[s for s in slots if isinstance(s, int)],
            static_argnames=[s for s in slots if isinstance(s, str)],
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """Bind the arguments of a call by position where parameters allow it.

        A number becomes an array where every saved call has an array without axes of one type.
        """
        bound = super().bind(*self.by_position(args, kwargs))
        if not any(type(x) in _KINDS_OF for x in bound.leaves):
            return bound
        call, statics = tree_to_data(bound.tree), statics_to_data(bound)
        saved = [r.leaves for r in self.recordings if (r.call, r.statics) == (call, statics)]
        if not saved:
            return bound
        leaves = [_as_scalar(x, set(wanted)) for x, *wanted in zip(bound.leaves, *saved)]
        return replace(bound, leaves=leaves)


_KINDS_OF = {bool: ("bool",), int: ("int", "uint", "float"), float: ("float",)}
"""Kinds of dtypes that take numbers of Python."""


def _as_scalar(x: Any, wanted: Collection[SavedArgument]) -> Any:
    """Return a number as an array of the wanted type, or unchanged if unfit.

    As operators convert numbers: floats are rounded, integers are exact, nothing overflows.
    """
    (only,) = wanted if len(wanted) == 1 else (SavedArgument(),)
    if type(x) not in _KINDS_OF or only.dtype is None or only.shape:
        return x
    with np.errstate(over="ignore"):
        try:
            array = np.asarray(x).astype(only.dtype.numpy)
        except OverflowError:  # an integer beyond 64 bits
            return x
    if only.dtype.kind not in _KINDS_OF[type(x)]:
        return x
    fits = math.isinf(x) == np.isinf(array) if type(x) is float else array.item() == x
    return array if fits else x


_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


class LoadedFunction(Jit[Any, Any]):
    """Function of a program file: it runs or raises an error, but never records."""

    def __init__(self, name: str, entries: Sequence[Entry]) -> None:
        super().__init__(SavedOptions(name, [e.recording for e in entries]))
        self.calls = tuple(map(SavedCall, entries))
        self._noticed = True

    def __repr__(self) -> str:
        """Show the signature of each saved call."""
        calls = "; ".join(dict.fromkeys(map(str, self.calls)))
        return f"<smelt.load: {self.options.name}({calls})>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.options.name} lies in a file: pass its path, and load it there")

    def __str__(self) -> str:
        """Show the signatures and the report that was saved with the program."""
        report = self.report()
        return repr(self) if report is None else f"{self!r}\n\n{report}"

    def report(self, *args: Any, **kwargs: Any) -> SavedReport | None:
        """Return the report of the plan for these arguments, without any of the first plan.

        It is for the sizes that the plan was made for; None where the file has no report, or its
        graph was compiled here.
        """
        traces = [t for c in self.calls for t in c.traces]
        if args or kwargs:
            bound = self.options.bind(args, kwargs)
            traces.insert(0, self.find_trace(bound, self.arguments_of(bound))[0])
        stored = (t.compiled for t in traces if isinstance(t.compiled, StoredProgram))
        return next((r for r in (s.report() for s in stored) if r is not None), None)

    def as_text(self) -> str:
        """Return the graph of the first recording as text."""
        return text(self.calls[0].recording.graph)

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
        statics = statics_to_data(bound)
        calls = [
            c for c in self.calls if c.recording.call == call and c.recording.statics == statics
        ]
        if not calls:
            raise StructureError(
                f"{self.options.name}: the arguments are nested otherwise than when it was saved, "
                "or static ones have other values",
                hint=f"It was saved for {self!r}.",
            )
        measures = match_parameters(arguments)
        for c in calls:
            values = c.recording.match(*measures) if c.fits(arguments) else None
            if values is not None:
                c.check_sizes(self.options.name, values, arguments)
                return c.trace_for(values), values
        raise GuardError(
            guard=_wanted(calls, arguments),
            found=_describe(calls[0].recording.names, arguments),
            hint="Save the program for these arguments too: a loaded program never compiles.",
        )


MAX_LISTED = 3
"""Maximum saved recordings, and guards of each, that an error lists."""


def _wanted(calls: Sequence[SavedCall], arguments: Sequence[Argument]) -> str:
    """Return what the saved recordings are for, with their guards, the nearest ones first."""
    texts: dict[str, None] = {}
    for c in sorted(calls, key=lambda c: c.distance(arguments)):
        guards = [str(g) for g in c.traces[0].guards]
        more = [f"{len(guards) - MAX_LISTED} more"] if len(guards) > MAX_LISTED else []
        conditions = " and ".join([*guards[:MAX_LISTED], *more])
        texts[f"{c}{' where ' * bool(conditions)}{conditions}"] = None
    first, rest = list(texts)[:MAX_LISTED], len(texts) - MAX_LISTED
    return "; or ".join([*first, *([f"{rest} more, see print(loaded)"] if rest > 0 else [])])


def _describe(names: Sequence[str], arguments: Sequence[Argument]) -> str:
    texts = [
        repr(a.number) if a.data is None else f"{a.data.dtype.name}{list(a.data.shape)}"
        for a in arguments
    ]
    return "it is called with " + ", ".join(
        f"{name}: {text}" for name, text in zip(names, texts, strict=True)
    )


class Programs(Mapping[str, LoadedFunction]):
    """The functions of a file of several programs, by name."""

    def __init__(self, file: str, functions: Mapping[str, LoadedFunction]) -> None:
        self._file, self._functions = file, dict(functions)

    def __getitem__(self, name: str) -> LoadedFunction:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError: one of the programs has to be chosen."""
        first = next(iter(self._functions))
        raise UnsupportedError(
            f"calling {self._file}, which has {len(self)} programs: {', '.join(self)}",
            hint=f"Choose one: sm.load(path)[{first!r}](..).",
        )

    def __getattr__(self, name: str) -> LoadedFunction:
        """Return a program by name; raises AttributeError."""
        functions = self.__dict__.get("_functions", {})
        if name not in functions:
            raise AttributeError(f"{self._file} has no program {name!r}: {', '.join(functions)}")
        return functions[name]

    def __repr__(self) -> str:
        return f"<smelt.load: {self._file} with {', '.join(self._functions)}>"
