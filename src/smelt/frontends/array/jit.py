"""`sm.jit`: a function recorded once for all sizes, then run as compiled kernels.

    @sm.jit
    def layer(x, w, b):
        return sm.maximum(x @ w + b, 0)

A call is answered in one of three ways: arrays of exactly the types and shapes of an earlier call
find their plan in one dictionary look-up; other sizes check the guards of the recordings made so
far; only where none holds is the function recorded, and compiled, again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

import numpy as np

from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import Bound, Options
from smelt.frontends.array.convert import from_host
from smelt.frontends.array.evaluate_pending import flush, realise
from smelt.frontends.array.layouts import Buffer, lies
from smelt.frontends.array.lowered import Lowered, as_arguments, signature
from smelt.frontends.array.number import Number
from smelt.frontends.array.results import deliver, in_place, is_same, measure, pack
from smelt.frontends.array.shortcut import MOST_RECORDS, NUMBERS, Exact, notice
from smelt.frontends.array.trace import Argument, Trace, record_call
from smelt.frontends.array.value import STATE, leaf
from smelt.knobs import fingerprint
from smelt.knobs.steer import Names, fuse
from smelt.types.dtype import DTYPES

if TYPE_CHECKING:
    from smelt.runtime.call_cache import Record

P = ParamSpec("P")
R = TypeVar("R")
__all__ = ["Jit", "jit"]

_EXACT_LIMIT = 512
_RECORDINGS_LIMIT = 256
_READABLE = 0x101
"""NumPy's flags C_CONTIGUOUS and ALIGNED."""
_WRITTEN = 0x501
"""The same and WRITEABLE."""


class Jit(Generic[P, R]):
    """A function that is recorded and compiled when it is called; made by `sm.jit`."""

    __slots__ = ("__dict__", "__weakref__", "line")

    line: bytes | None
    """The records of calls that native code answers."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.traces: dict[Hashable, list[Trace]] = {}
        """Every recording made so far, by structure, dtypes, ranks and layouts of the arguments."""
        self._exact: dict[Hashable, Exact] = {}
        self.line = None
        self.records: tuple[Record, ...] = ()
        self._plain = not options.static and not options.donate
        self._noticed = type(self) is Jit
        functools.update_wrapper(self, options.function, updated=())
        for name, value in getattr(options.function, "__dict__", {}).items():
            # a wrapper of a compiled function has got that one's attributes: ours stay our own
            self.__dict__.setdefault(name, value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if STATE.tapes or (STATE.following and self._is_followed(kwargs)):
            bound = self.options.bind(args, kwargs)
            return bound.call(
                [Array.of(from_host(x)) if x.__class__ is np.ndarray else x for x in bound.leaves]
            )
        out = None
        if kwargs or not self._plain:
            out = kwargs.get("out") if len(kwargs) == 1 and self._plain else None
            if out.__class__ is not np.ndarray or self.options.takes_out:
                return self._nested(args, kwargs)
        key: list[Any] = [fingerprint()]
        buffers: list[Buffer] = []
        data: Any
        for data in args:
            if data.__class__ is Array:
                data = data.node.data
                if data.__class__ is not np.ndarray:
                    return self._nested(args, kwargs)
            elif data.__class__ is not np.ndarray:
                return self._nested(args, kwargs)
            buffers.append(data)
            flags = data.flags.num & _READABLE
            key += data.dtype, data.shape, flags if flags & 1 else (flags, lies(data))
        if out is not None:
            return self._into(out, key, buffers, lambda: self.options.bind(args, {}))
        exact = tuple(key)
        found = self._exact.get(exact)
        if found is None:
            return self._general(self.options.bind(args, kwargs), exact, None)
        results = _again(found, buffers)
        if self._noticed and found.made <= MOST_RECORDS:
            notice(self, found, args, {}, args)
        return results

    def _is_followed(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call during a recording becomes a part of it, whatever it is given: what it
        reads may change.  Others write to memory, and run."""
        writes = "out" in kwargs and not self.options.takes_out
        return not writes and not self.options.donate

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself, as of a function: a copy of what holds one runs what is compiled."""
        return self

    def __reduce__(self) -> Any:
        """Pickled by name, as functions are; under another name it is made anew of its function."""
        name = getattr(self, "__qualname__", "")  # a functools.partial has none
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (type(self), self._made_of())

    def _made_of(self) -> tuple[Any, ...]:
        return (self.options,)

    def _nested(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with containers, numbers, keywords or options."""
        out = None
        if "out" in kwargs and not self.options.takes_out:
            kwargs = dict(kwargs)
            out = kwargs.pop("out")
        bound = self.options.bind(args, kwargs)
        if self.options.donate or (out is not None and out.__class__ is not np.ndarray):
            return self._general(bound, None, out)
        key: list[Any] = [fingerprint(), bound.tree, bound.statics]
        buffers: list[Buffer] = []
        for x in bound.leaves:
            if x is True or x is False:  # a part of the recording, which reads no memory for it
                buffers.append(_NOTHING)
                key.append(x)
                continue
            data = _memory(x)
            if data is None:
                return self._general(bound, None, out)
            buffers.append(data)
            flags = data.flags.num & _READABLE
            key += data.dtype, data.shape, flags if flags & 1 else (flags, lies(data))
            key.append(_KINDS.get(x.__class__))
        if out is not None:
            return self._into(out, key, buffers, lambda: bound)
        exact: Hashable = tuple(key)
        found = self._exact.get(exact)
        if found is _BY_VALUE:
            exact = exact, tuple([x for x in bound.leaves if x.__class__ in NUMBERS])
            found = self._exact.get(exact)
        if found is None:
            return self._general(bound, exact, None)
        results = _again(found, buffers)
        if self._noticed and found.made <= MOST_RECORDS and self._plain:
            notice(self, found, args, kwargs, bound.leaves)
        return results

    def _into(
        self, out: Any, key: list[Any], buffers: list[Buffer], bound: Callable[[], Bound]
    ) -> Any:
        """A call into an array of the caller's, `key` being what is known of the arguments."""
        exact = (*key, "out", out.dtype, out.shape, out.flags.num & _WRITTEN)
        found = self._exact.get(exact)
        if found is not None and _write(found, buffers, out):
            return out
        return self._general(bound(), exact, out)

    def _general(self, bound: Bound, exact: Hashable, out: Any) -> Any:
        """Any call; `exact` is the key under which it will be found next time."""
        if any(_traced(x) for x in bound.leaves):
            if out is not None:
                raise UnsupportedError("out= inside a recording: the result has no memory yet")
            return bound.call(bound.leaves)
        arguments = as_arguments(bound)
        trace, sizes = self.find(bound, arguments, turns=out is None)
        found = deliver(trace, sizes, arguments, bound, out)
        simple = out is None or (trace.single and not trace.fixed)
        if exact is not None and simple and _repeatable(trace, bound, arguments):
            if len(self._exact) >= _EXACT_LIMIT:
                self._exact.clear()
            if trace.fixed and exact[-1].__class__ is not tuple:  # type: ignore[index]
                self._exact[exact] = _BY_VALUE
            else:
                self._exact[exact] = Exact(trace, sizes)
        return found

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Record ahead of time, for arrays or `sm.spec`s in place of arguments."""
        bound = self.options.bind(args, kwargs)
        arguments = as_arguments(bound)
        trace = record_call(self.options.name, bound.names, arguments, bound.call, bound.donated)
        return Lowered(trace, bound, tuple(arguments))

    def find(
        self, bound: Bound, arguments: Sequence[Argument], *, turns: bool = True
    ) -> tuple[Trace, tuple[int, ...]]:
        """The recording that is valid for these arguments, made now if there is none.  With `turns`
        its results lie in memory as the arguments do, where those agree."""
        donated = _to_overwrite(bound, arguments)
        key = (
            bound.tree,
            bound.statics,
            tuple(signature(a) for a in arguments),
            donated,
            turns,
            fingerprint(),
        )
        traces = self.traces.setdefault(key, [])
        measures = measure(arguments)
        for place, trace in enumerate(traces):
            sizes = trace.match(*measures)
            if sizes is not None:
                if place:
                    traces.insert(0, traces.pop(place))
                return trace, sizes
        trace = record_call(
            self.options.name, bound.names, arguments, bound.call, donated, turns=turns
        )
        sizes = trace.match(*measures)
        assert sizes is not None, "a recording does not hold for the call it was made in"
        traces.insert(0, trace)
        del traces[_RECORDINGS_LIMIT:]
        return trace, sizes


def _traced(x: Any) -> bool:
    if isinstance(x, Array):
        scope = x.node.scope
        return scope is not None and scope.alive(x.node)
    return isinstance(x, Number)


def _to_overwrite(bound: Bound, arguments: Sequence[Argument]) -> tuple[int, ...]:
    """The donated leaves whose memory may really be written: nobody else can see it."""
    found: list[int] = []
    for k in bound.donated:
        data, given = arguments[k].data, bound.leaves[k]
        if data is None or not (data.flags.c_contiguous and data.flags.writeable):
            continue
        if isinstance(given, Array) and (given.node.shared or given.node.is_kept):
            continue
        others = [a.data for j, a in enumerate(arguments) if j != k and a.data is not None]
        if not any(np.may_share_memory(data, other) for other in others):
            found.append(k)
    return tuple(found)


_KINDS: dict[type, str] = dict.fromkeys((d.numpy.type for d in DTYPES), "scalar") | {
    float: "number",
    int: "number",
    np.float64: "float64",
}
"""What is no array, though it gives kernels the same memory to read."""
_NOTHING = np.zeros((), np.bool_)
_BY_VALUE: Any = object()
"""Stands in the table of exact calls for: look again, with the values of the numbers."""


def _memory(x: Any) -> Buffer | None:
    """What a leaf gives a kernel to read, if that takes no thinking."""
    kind = x.__class__
    if kind is np.ndarray:
        return x
    if kind is Array:
        data = x.node.data
        return data if data.__class__ is np.ndarray else None
    if kind is float:
        return np.array(x)
    if kind is int:
        return np.array(x, np.int64) if abs(x) < 2**63 else None
    return np.asarray(x) if kind in _KINDS else None


def _repeatable(trace: Trace, bound: Bound, arguments: Sequence[Argument]) -> bool:
    """Whether a call with the same types and shapes may skip everything but running."""
    return trace.plain and all(
        a.data is x or not isinstance(x, np.ndarray)
        for a, x in zip(arguments, bound.leaves, strict=True)
    )


def _again(found: Exact, buffers: list[Buffer]) -> Any:
    """Run what an equal call ran."""
    trace, sizes = found.trace, found.sizes
    if not trace.whole:
        buffers = [buffers[k] for k in trace.arguments]
    if trace.captured:
        buffers += [realise(x) for x in trace.captured]
    results = trace.run(buffers, sizes)
    if trace.single:
        return Array.of(leaf(results[0]))
    return pack(trace, [Array.of(leaf(data)) for data in results])


def _write(found: Exact, buffers: list[Buffer], out: Buffer) -> bool:
    """Whether an equal call could be made again into the same kind of array, apart from all else:
    then it has been."""
    trace, sizes = found.trace, found.sizes
    if not trace.whole:
        buffers = [buffers[k] for k in trace.arguments]
    if trace.captured:
        buffers += [realise(x) for x in trace.captured]
    place: Buffer | None = out
    if any(np.may_share_memory(out, x) for x in buffers):
        trace, place = in_place(trace, [out], buffers), None
        if trace is found.trace:
            return False
    flush()  # what is pending reads the old values
    results = trace.run(buffers, sizes, (place, *[None] * (len(trace.graph.outputs) - 1)))
    if place is None and not is_same(out, results[0]):
        out[...] = results[0]
    return True


class SteeredJit(Jit[P, R]):
    """A function whose fusion is steered: it is planned, and runs, under settings of its own."""

    def __init__(self, options: Options, settings: fuse) -> None:
        super().__init__(options)
        self.settings = settings

    def _made_of(self) -> tuple[Any, ...]:
        return self.options, self.settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if STATE.scope is not None:  # as a part of what is recorded
            return super().__call__(*args, **kwargs)
        with self.settings:
            return super().__call__(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Record ahead of time; the settings hold where the result is compiled."""
        with self.settings:
            found = super().lower(*args, **kwargs)
        return Lowered(found.trace, found.bound, found.arguments, self.settings)

    def find(
        self, bound: Bound, arguments: Sequence[Argument], *, turns: bool = True
    ) -> tuple[Trace, tuple[int, ...]]:
        """The recording that is valid for these arguments, compiled under the settings."""
        with self.settings:
            trace, sizes = super().find(bound, arguments, turns=turns)
            assert trace.executable
            return trace, sizes


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
    operators it applies are fused and compiled.  Later calls run the result, for all sizes.

    Args:
        function: takes and returns arrays nested in tuples, lists, dicts and dataclasses, and
            Python numbers (which do not compile again when they change).
        static_argnums: places of arguments that are part of the key; they must be hashable.
        static_argnames: names of such arguments.
        donate: places or names of arguments whose memory the call may reuse for its results.
        must, never, max_extra_memory, rounding: what the function is planned under, as `sm.fuse`
            takes them.  They hold for its calls, not where another recording calls it.

    Returns:
        A callable with the same parameters and, unless the function has one, a keyword `out`: a
        nest of arrays like the result, which is written there.

    Raises:
        TracerError where the function needs a value while it is recorded; StaticArgError,
        StructureError, OutArgumentError, AliasError and DonatedError about arguments; FusionError
        where `must` cannot be met.
    """
    settings = fuse(must=must, never=never, max_extra_memory=max_extra_memory, rounding=rounding)

    def made(function: Any) -> Any:
        options = Options(function, static_argnums, static_argnames, donate)
        return SteeredJit(options, settings) if settings.given else Jit(options)

    return made if function is None else made(function)
