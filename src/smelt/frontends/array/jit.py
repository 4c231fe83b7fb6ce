"""`sm.jit`: record a function once for all sizes, then run compiled kernels.

    @sm.jit
    def layer(x, w, b):
        return sm.maximum(x @ w + b, 0)

A call takes one of three paths.  Arguments of exactly the types and shapes of an earlier call find
their plan in one dictionary look-up.  For other sizes, the guards of earlier recordings are
checked.  Only if none holds is the function recorded and compiled again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, overload

import numpy as np

from smelt.errors import ArgumentError, UnsupportedError
from smelt.frontends.array.ahead_of_time import Lowered
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import BoundCall, Options, as_arguments
from smelt.frontends.array.convert import from_host, is_on_gpu
from smelt.frontends.array.engine import reporting, spans_of
from smelt.frontends.array.evaluate_pending import evaluate, flush_readers
from smelt.frontends.array.function_objects import FunctionObject, function_text
from smelt.frontends.array.memory import Buffer, memory_order
from smelt.frontends.array.number import Number
from smelt.frontends.array.numpy_hints import missing_attribute
from smelt.frontends.array.results import (
    is_same_memory,
    match_parameters,
    may_overlap_itself,
    overwriting_trace,
    pack,
    run_call,
)
from smelt.frontends.array.shortcut import MAX_RECORDS, NUMBER_TYPES, ExactCall, Outputs, count_call
from smelt.frontends.array.trace import Argument, Trace, record_call
from smelt.frontends.array.tree import LEAF, flatten, leaves_like
from smelt.frontends.array.value import STATE, leaf
from smelt.knobs import fingerprint
from smelt.knobs.steer import Names, fuse
from smelt.python.imports import fork_safe_import
from smelt.types.dtype import DTYPES

if TYPE_CHECKING:
    from smelt.frontends.array.device_call import KnownCalls
    from smelt.runtime.call_cache import Record

P = ParamSpec("P")
R = TypeVar("R")

_EXACT_LIMIT = 512
"""Maximum calls, by exact types and shapes, that a function remembers."""
_RECORDINGS_LIMIT = 256
"""Maximum recordings that are kept for one structure of arguments."""
_INPUT_FLAGS = 0x101
"""NumPy's flags C_CONTIGUOUS and ALIGNED."""
_OUT_FLAGS = 0x501
"""NumPy's flags C_CONTIGUOUS, ALIGNED and WRITEABLE."""


class Jit(FunctionObject, Generic[P, R]):
    """Function that is recorded and compiled when it is called; made by `sm.jit`.

    Calling it runs the compiled code; `lower` compiles ahead of time.
    """

    __slots__ = ("__dict__", "__weakref__", "line")

    line: bytes | None
    """Encoded records of the calls that native code answers, see `shortcut`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.traces: dict[Hashable, list[Trace]] = {}
        """All recordings, by structure, dtypes, ranks and layouts of the arguments."""
        self.device_recordings: dict[Hashable, list[Any]] = {}
        """Recordings for arrays on GPUs, by the same and the device."""
        self.known_device_calls: KnownCalls | None = None
        self._exact: dict[Hashable, ExactCall] = {}
        self.line = None
        self.records: tuple[Record, ...] = ()
        self._plain = not options.static and not options.donate
        self._noticed = type(self).__call__ is Jit.__call__
        functools.update_wrapper(self, options.function, updated=())
        for name, value in getattr(options.function, "__dict__", {}).items():
            # the function may wrap another compiled one and carry its attributes: keep our own
            self.__dict__.setdefault(name, value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if STATE.tapes or (STATE.following and self._becomes_part(kwargs)):
            bound = self.options.bind(args, kwargs)
            return bound.call(
                [Array.of(from_host(x)) if x.__class__ is np.ndarray else x for x in bound.leaves]
            )
        out = None
        if kwargs or not self._plain:
            out = kwargs.get("out") if len(kwargs) == 1 and self._plain else None
            if out.__class__ is not np.ndarray or self.options.takes_out:
                return self._call_nested(args, kwargs)
        key: list[Any] = [fingerprint()]
        buffers: list[Buffer] = []
        data: Any
        for data in args:
            if data.__class__ is Array:
                data = data.node.data
                if data.__class__ is not np.ndarray:
                    return self._call_nested(args, kwargs)
            elif data.__class__ is not np.ndarray:
                return self._call_nested(args, kwargs)
            buffers.append(data)
            flags = data.flags.num & _INPUT_FLAGS
            key += data.dtype, data.shape, flags if flags & 1 else (flags, memory_order(data))
        if out is not None:
            return self._call_into(out, key, buffers, (args, kwargs), None)
        exact = tuple(key)
        known_call = self._exact.get(exact)
        if known_call is None:
            bound = self.options.bind(args, kwargs)
            if len(bound.leaves) != len(args):  # complex arrays are two leaves each
                return self._call_nested(args, kwargs)
            return self._call_general(bound, exact, None)
        results = _run_known(known_call, buffers)
        if self._noticed and known_call.records_made <= MAX_RECORDS:
            count_call(self, known_call, args, {}, args)
        return results

    def _becomes_part(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call during a recording becomes a part of it.

        It does regardless of its arguments, since what it reads may change.  Calls that write to
        memory run instead.
        """
        writes = "out" in kwargs and not self.options.takes_out
        return not writes and not self.options.donate

    def __repr__(self) -> str:
        """Name the function, where it is defined, and how often it was recorded.

        >>> double = jit(lambda x: x * 2)
        >>> double
        <smelt.jit of <lambda>, not recorded yet>
        >>> double(np.ones(3)), double
        (Array([2., 2., 2.]), <smelt.jit of <lambda>, recorded once>)
        """
        count = sum(map(len, self.traces.values()))
        times = "once" if count == 1 else f"{count} times"
        recorded = f"recorded {times}" if count else "not recorded yet"
        return f"<smelt.jit of {function_text(self.options.function)}, {recorded}>"

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError with the nearest name."""
        raise missing_attribute("'Jit' object", name, type(self))

    def __reduce__(self) -> Any:
        """Pickle by name, as functions are, or by the options.

        Options are used if the name means something else.
        """
        name = getattr(self, "__qualname__", "")  # a functools.partial has none
        target: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            target = getattr(target, part, None)
        return name if target is self else (type(self), self._init_args())

    def _init_args(self) -> tuple[Any, ...]:
        return (self.options,)

    def _call_nested(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call with containers, numbers, keywords or options."""
        out, keywords, on_device = None, kwargs, self.known_device_calls
        if "out" in kwargs and not self.options.takes_out:
            kwargs = dict(kwargs)
            out = kwargs.pop("out")
        is_simple = self._plain and not kwargs
        if on_device is not None and is_simple:
            results = on_device.answer(None, args, out)
            if results is not NotImplemented:
                return results
        bound = self.options.bind(args, kwargs)
        if on_device is not None and not (is_simple and bound.is_flat):
            structure = None if bound.is_flat else (bound.tree, bound.statics)
            results = on_device.answer(structure, bound.leaves, out, bound.donated)
            if results is not NotImplemented:
                return results
        if self.options.donate:
            return self._call_general(bound, None, out)
        key: list[Any] = [fingerprint(), bound.tree, bound.statics]
        buffers: list[Buffer] = []
        for x in bound.leaves:
            if x is True or x is False:  # a constant of the recording, which reads no memory
                buffers.append(_NOTHING)
                key.append(x)
                continue
            data = _memory(x)
            if data is None:
                return self._call_general(bound, None, out)
            buffers.append(data)
            flags = data.flags.num & _INPUT_FLAGS
            key += data.dtype, data.shape, flags if flags & 1 else (flags, memory_order(data))
            key.append(_KINDS.get(x.__class__))
        if out is not None:
            return self._call_into(out, key, buffers, (args, keywords), bound)
        exact: Hashable = tuple(key)
        known_call = self._exact.get(exact)
        if known_call is _BY_VALUE:
            exact = exact, tuple([x for x in bound.leaves if x.__class__ in NUMBER_TYPES])
            known_call = self._exact.get(exact)
        if known_call is None:
            return self._call_general(bound, exact, None)
        results = _run_known(known_call, buffers)
        if self._noticed and known_call.records_made <= MAX_RECORDS and self._plain:
            count_call(self, known_call, args, kwargs, bound.leaves)
        return results

    def _call_into(
        self,
        out: Any,
        key: list[Any],
        buffers: list[Buffer],
        call: tuple[tuple[Any, ...], dict[str, Any]],
        bound: BoundCall | None,
    ) -> Any:
        """Answer a call with `out=`; `key` describes the arguments, `bound` has them if known."""
        args, kwargs = call
        targets, tree = ([out], LEAF) if out.__class__ is np.ndarray else flatten(out)
        replaces = _replaced(targets, buffers)
        exact: Any = replaces
        if replaces:
            memory = [(x.dtype, x.shape, x.flags.num & _OUT_FLAGS) for x in targets]
            exact = (*key, "out", tree, replaces, *memory)
        known_call = self._exact.get(exact) if exact else None
        if replaces and known_call is not None and len(buffers) == known_call.trace.leaves:
            places = {id(x): k for x, k in zip(targets, replaces, strict=True)}
            ordered = leaves_like("out=", out, known_call.trace.tree)
            if all(id(x) in places for x in ordered):  # no parts of a complex array
                outputs = Outputs(ordered, [places[id(x)] for x in ordered])
                if _run_known_into(known_call, buffers, outputs):
                    if self._noticed and self._plain and known_call.records_made <= MAX_RECORDS:
                        leaves = args if bound is None else bound.leaves
                        count_call(self, known_call, args, kwargs, leaves, outputs)
                    return out
        return self._call_general(bound or self.options.bind(args, {}), exact or None, out)

    def _call_general(self, bound: BoundCall, exact: Hashable, out: Any) -> Any:
        """Answer any call and remember it under the key `exact`."""
        if any(_is_symbolic(x) for x in bound.leaves):
            if out is not None:
                raise UnsupportedError("out= inside a recording: the result has no memory yet")
            return bound.call(bound.leaves)
        if any(map(is_on_gpu, bound.leaves)):
            device_call = fork_safe_import("smelt.frontends.array.device_call")
            return device_call.call_on_device(self, bound, out)
        arguments = self.arguments_of(bound)
        try:
            trace, sizes = self.find_trace(bound, arguments, keeps_order=out is None)
            results = run_call(trace, sizes, arguments, bound, out)
        except Exception as error:
            fork_safe_import("smelt.journal.tracebacks").hide_frames(error)
            raise
        simple = out is None or not trace.value_dependent
        if exact is not None and simple and _is_repeatable(trace, bound, arguments):
            if len(self._exact) >= _EXACT_LIMIT:
                self._exact.clear()
            if trace.value_dependent and exact[-1].__class__ is not tuple:  # type: ignore[index]
                self._exact[exact] = _BY_VALUE
            else:
                self._exact[exact] = ExactCall(trace, sizes)
        return results

    def arguments_of(self, bound: BoundCall) -> list[Argument]:
        """Return the leaves of a call as arguments; see `as_arguments`."""
        return as_arguments(bound)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Record ahead of time, for arrays or `sm.spec`s as arguments.

        Returns a `Lowered`, whose `compile()` gives an executable.  Raises what recording raises:
        TracerError, StaticArgError, StructureError; ArgumentError for sizes of specs that no
        argument determines.
        """
        return self.record(args, kwargs, {})

    def record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Mapping[str, int]
    ) -> Lowered:
        """Record ahead of time; `sizes` are likely values of the sizes that specs name."""
        bound = self.options.bind(args, kwargs)
        arguments = as_arguments(bound)
        trace = record_call(
            self.options.name, bound.names, arguments, bound.call, bound.donated, sizes=sizes
        )
        return Lowered(trace, bound, tuple(arguments))

    def find_trace(
        self, bound: BoundCall, arguments: Sequence[Argument], *, keeps_order: bool = True
    ) -> tuple[Trace, tuple[int, ...]]:
        """Return a recording that is valid for these arguments and the values of its sizes.

        It is recorded now if there is none.  With `keeps_order` results get the memory order of the
        arguments, if these agree.
        """
        donated = _overwritable(bound, arguments)
        key = (
            bound.tree,
            bound.statics,
            tuple(a.signature for a in arguments),
            donated,
            keeps_order,
            fingerprint(),
        )
        traces = self.traces.setdefault(key, [])
        measures = match_parameters(arguments)
        for index, trace in enumerate(traces):
            sizes = trace.match(*measures)
            if sizes is not None:
                if index:
                    traces.insert(0, traces.pop(index))
                return trace, sizes
        reporting().report_retraced(
            self.options.name, self.traces, key, measures, bound.names, arguments
        )
        trace = record_call(
            self.options.name, bound.names, arguments, bound.call, donated, keeps_order=keeps_order
        )
        sizes = trace.match(*measures)
        assert sizes is not None, "a recording does not hold for the call it was made in"
        traces.insert(0, trace)
        del traces[_RECORDINGS_LIMIT:]
        return trace, sizes


def _is_symbolic(x: Any) -> bool:
    if isinstance(x, Array):
        scope = x.node.scope
        return scope is not None and scope.check_open(x.node)
    return isinstance(x, Number)


def _overwritable(bound: BoundCall, arguments: Sequence[Argument]) -> tuple[int, ...]:
    """Return the donated leaves whose memory may be overwritten: nothing else refers to it."""
    positions: list[int] = []
    spans = spans_of([a.data for a in arguments] if bound.donated else [])
    for k in bound.donated:
        data, leaf = arguments[k].data, bound.leaves[k]
        if data is None or not (data.flags.c_contiguous and data.flags.writeable):
            continue
        if isinstance(leaf, Array) and (leaf.node.shared or leaf.node.has_snapshot):
            continue
        if all(other == k for other in spans.overlapping(data)):
            positions.append(k)
    return tuple(positions)


_KINDS: dict[type, str] = dict.fromkeys((d.numpy.type for d in DTYPES), "scalar") | {
    float: "number",
    int: "number",
    np.float64: "float64",
}
"""Types of numbers, which give kernels the same memory to read as an array of rank 0."""
_NOTHING = np.zeros((), np.bool_)
_BY_VALUE: Any = object()
"""Entry of the table of exact calls that means: look up again, with the values of numbers."""


def _memory(x: Any) -> Buffer | None:
    """Return the memory of an argument leaf that a kernel can read directly.

    None if the leaf takes more work.
    """
    type_ = x.__class__
    if type_ is np.ndarray:
        return x
    if type_ is Array:
        data = x.node.data
        return data if data.__class__ is np.ndarray else None
    if type_ is float:
        return np.array(x)
    if type_ is int:
        return np.array(x, np.int64) if abs(x) < 2**63 else None
    return np.asarray(x) if type_ in _KINDS else None


def _is_repeatable(trace: Trace, bound: BoundCall, arguments: Sequence[Argument]) -> bool:
    """Return whether calls with the same types and shapes may skip everything but running."""
    return trace.only_outputs and all(
        a.data is x or not isinstance(x, np.ndarray)
        for a, x in zip(arguments, bound.leaves, strict=True)
    )


def _run_known(known_call: ExactCall, buffers: list[Buffer]) -> Any:
    """Run the recording of an earlier call with the same types and shapes."""
    trace, sizes = known_call.trace, known_call.sizes
    if not trace.reads_all_leaves:
        buffers = [buffers[k] for k in trace.arguments]
    if trace.captured:
        buffers += [evaluate(x) for x in trace.captured]
    results = trace.run(buffers, sizes)
    if trace.single:
        return Array.of(leaf(results[0]))
    return pack(trace, [Array.of(leaf(data)) for data in results])


def _replaced(targets: Sequence[Any], buffers: Sequence[Buffer]) -> tuple[int, ...] | None:
    """Return the argument that is the same memory as each array of `out=`.

    -1 stands for none.  None if they overlap in another way or themselves, or are not plain arrays.
    """
    if any(x.__class__ is not np.ndarray for x in targets):
        return None
    written, read = spans_of(targets), spans_of(buffers)
    replaced: list[int] = []
    for target in targets:
        overlapping = read.overlapping(target)
        if len(written.overlapping(target)) > 1 or len(overlapping) > 1:
            return None
        if overlapping and not is_same_memory(target, buffers[overlapping[0]]):
            return None
        if not target.flags.forc and may_overlap_itself(target):
            return None
        replaced.append(overlapping[0] if overlapping else -1)
    return tuple(replaced)


def _run_known_into(known_call: ExactCall, buffers: list[Buffer], outputs: Outputs) -> bool:
    """Run the recording of an earlier call into arrays of `out=`.

    Returns whether that is possible.  The recording of `known_call` becomes the variant that
    overwrites arguments, if some are.
    """
    trace, sizes, targets = known_call.trace, known_call.sizes, outputs.arrays
    if not trace.reads_all_leaves:
        buffers = [buffers[k] for k in trace.arguments]
    if trace.captured:
        captured = [evaluate(x) for x in trace.captured]
        read = spans_of(captured)
        if any(read.overlapping(x) for x in targets):
            return False
        buffers += captured
    free = [None if k in trace.arguments else x for x, k in zip(targets, outputs.replaces)]
    if any(x is None for x in free) and not trace.donate:
        trace = overwriting_trace(trace, targets, buffers)
        if not trace.donate:
            return False
        known_call.trace = trace
    flush_readers(*targets)  # pending operators read the old values
    results = trace.run(buffers, sizes, [*free, *[None] * (len(trace.graph.outputs) - len(free))])
    for target, data in zip(targets, results, strict=True):
        if not is_same_memory(target, data):
            target[...] = data
    return True


class SteeredJit(Jit[P, R]):
    """Jitted function that is planned and run under its own fusion settings."""

    def __init__(self, options: Options, settings: fuse) -> None:
        super().__init__(options)
        self.settings = settings

    def _init_args(self) -> tuple[Any, ...]:
        return self.options, self.settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if STATE.scope is not None:  # as a part of what is recorded
            return super().__call__(*args, **kwargs)
        with self.settings:
            return super().__call__(*args, **kwargs)

    def record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: Mapping[str, int]
    ) -> Lowered:
        """Record ahead of time; the settings hold where the result is compiled."""
        with self.settings:
            lowered = super().record(args, kwargs, sizes)
        return Lowered(lowered.trace, lowered.bound, lowered.arguments, self.settings)

    def find_trace(
        self, bound: BoundCall, arguments: Sequence[Argument], *, keeps_order: bool = True
    ) -> tuple[Trace, tuple[int, ...]]:
        """Return a valid recording and its sizes, compiled under the settings."""
        with self.settings:
            trace, sizes = super().find_trace(bound, arguments, keeps_order=keeps_order)
            assert trace.executable
            return trace, sizes


def _merge_settings(inner: fuse, outer: fuse) -> fuse:
    """Return the fusion settings of a function that is jitted twice.

    Raises ArgumentError if both set the same to different values.
    """
    settings = {**outer.checked_settings, **inner.checked_settings}
    for name, value in outer.checked_settings.items():
        if settings[name] != value:
            raise ArgumentError.of(
                "jit",
                _OPTION_NAMES.get(name, name),
                value,
                f"{settings[name]!r}, as the function's own jit says, or nothing",
            )
    return fuse.of_settings(settings)


_OPTION_NAMES = {"require_fused": "must", "never_fuse": "never", "fuse": "never"}
"""Options by the setting that they become."""


@overload
def jit(
    function: Callable[P, R],
    /,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate: int | str | Iterable[int | str] = (),
    must: Names = (),
    never: Names = (),
    max_extra_memory: int | str | None = None,
    rounding: str | None = None,
) -> Jit[P, R]: ...
@overload
def jit(
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate: int | str | Iterable[int | str] = (),
    must: Names = (),
    never: Names = (),
    max_extra_memory: int | str | None = None,
    rounding: str | None = None,
) -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(
    function: Any = None,
    /,
    *,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate: int | str | Iterable[int | str] = (),
    must: Names = (),
    never: Names = (),
    max_extra_memory: int | str | None = None,
    rounding: str | None = None,
) -> Any:
    """Compile a function of arrays.

    The function is called once with arrays that have dtypes and symbolic shapes but no values; the
    operators that it applies are fused and compiled.  Later calls run the compiled code, for all
    sizes.  If a call has other dtypes or ranks, or sizes for which the function would take another
    path, it is recorded again.

    Args:
        function: takes and returns arrays nested in tuples, lists, dicts and dataclasses, and
            Python numbers (a changed number does not compile again, unless the function used its
            value).  If it is omitted, `jit` returns a decorator.
        static_argnums: positions of arguments whose values are constants of the recording; they
            must be hashable.
        static_argnames: names of such arguments.
        donate: positions or names of arguments whose memory the call may reuse for its results;
            reading them afterwards raises DonatedError.
        must, never, max_extra_memory, rounding: fusion settings, as in `sm.fuse`.  They hold for
            calls of this function, not where another recording calls it.

    A function that is jitted already keeps its options, and gets those that it lacks.

    Returns:
        A callable with the same parameters and, unless the function has one, a keyword `out`: a
        nest of arrays like the result, into which the results are written.

    Raises:
        TracerError where the function needs a value while it is recorded; StaticArgError,
        StructureError, OutArgumentError, AliasError and DonatedError about arguments; FusionError
        where `must` cannot be met; ArgumentError for an option that differs from the one the
        function was jitted with.
    """
    settings = fuse(must=must, never=never, max_extra_memory=max_extra_memory, rounding=rounding)

    def decorate(function: Any) -> Any:
        options, kept = Options(function, static_argnums, static_argnames, donate), settings
        if isinstance(function, Jit):
            options = options.merged_with(function.options)
        inner = getattr(function, "func", getattr(function, "__func__", function))
        if isinstance(inner, SteeredJit):  # itself, or a functools.partial or a method of it
            kept = _merge_settings(inner.settings, settings)
        return SteeredJit(options, kept) if kept.checked_settings else Jit(options)

    return decorate if function is None else decorate(function)
