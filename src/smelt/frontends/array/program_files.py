"""Programs as files: `sm.save` writes a compiled function, which `sm.load` runs.

A loaded function binds its arguments, checks guards and runs as a jitted function does, in another
process and without the function that it was made from; in place of recording and compiling it looks
for a recording in the file, and raises GuardError if none fits.

    sm.save(f, "f.smelt", sm.spec("f32[n,384]"))
    g = sm.load("f.smelt")
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from smelt.errors import (
    ArgumentError,
    GuardError,
    ProgramFileError,
    SaveError,
    StructureError,
    UnsupportedError,
)
from smelt.frontends.array.ahead_of_time import Executable, Lowered
from smelt.frontends.array.bind_args import BoundCall, Options, as_arguments, statics_to_data
from smelt.frontends.array.convert import is_foreign_array
from smelt.frontends.array.engine import Permutations
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.results import buffers_of, match_parameters
from smelt.frontends.array.trace import Argument, Result, Spec, Trace
from smelt.frontends.array.tree import flatten, tree_from_data, tree_to_data, unflatten
from smelt.frontends.array.value import leaf
from smelt.graph.bounds_checks import BoundsChecks, collect_bounds_checks
from smelt.graph.ir import Graph, Node
from smelt.graph.text import text
from smelt.graph.walk import input_size_names
from smelt.ops.create import Input
from smelt.ops.spec import dims_at
from smelt.python.dataclass import dataclass
from smelt.saved.plans import StoredProgram
from smelt.saved.programs import Draft, Entry, Plan, open_programs, save_programs
from smelt.saved.recording import Outcome, Parameter, Recording, SavedArgument
from smelt.types.dtype import from_numpy
from smelt.types.expr import sizes_of, substitute

if TYPE_CHECKING:
    from smelt.explain.saved_report import SavedReport

__all__ = ["LoadedFunction", "Programs", "load", "save"]

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
    permutations = trace.permutations
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
        trace.guards,
        trace.hints,
        trace.result_sizes,
        trace.value_dependent,
        trace.size_inputs,
        None if permutations is None else (permutations.inputs, permutations.outputs),
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


# ---- loading -------------------------------------------------------------------------------------


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
        r.guards,
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
        defaults = {True: ..., False: inspect.Parameter.empty}
        signature = inspect.Signature(
            [
                inspect.Parameter(p.name, _KINDS[p.kind], default=defaults[p.has_default])
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


_KINDS = {kind.name: kind for kind in type(inspect.Parameter.POSITIONAL_ONLY)}


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
        self, bound: BoundCall, arguments: Sequence[Argument], *, keeps_order: bool = True
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
