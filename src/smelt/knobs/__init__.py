"""Settings ("knobs"): typed, documented, and set in three ways.

A setting is a row of the table below. It is set by an environment variable (`SMELT_THREADS=2`, read
when the setting is first needed), temporarily by `with config(threads=2):`, or as a mapping of
options, `config({"threads": 2})`. The innermost wins. All ways take the same values and reject the
same mistakes with `KnobError`. Only this module reads the environment.

>>> THREADS.env, ROUNDING.default
('SMELT_THREADS', 'eager')
>>> with config(threads=2, cache_size="64MiB"):
...     THREADS.get(), CACHE_SIZE.get()
(2, 67108864)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast

from smelt.errors import KnobError, KnobWarning, nearest
from smelt.knobs import values
from smelt.python.origin import UNKNOWN, Origin, here

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Changes: TypeAlias = Literal["code", "plan", "nothing"]

_PREFIX = "SMELT_"


class _Scope(dict[str, Any]):
    """The settings in force: overrides on top of a parent, cached on first use."""

    __slots__ = ("given", "parent", "printed")

    def __init__(self, parent: _Scope | None, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.parent = parent
        self.given = frozenset(given)
        self.printed: str | None = None

    def __missing__(self, name: str) -> Any:
        value = _from_environment(name) if self.parent is None else self.parent[name]
        self[name] = value
        return value


_BASE = _Scope(None, {})
_SCOPE: ContextVar[_Scope] = ContextVar("smelt_knobs", default=_BASE)


class Knob(Generic[T]):
    """A setting. `get()` costs about 100 ns.

    `values` describes the accepted values; `changes` is "code" for settings that belong in the
    cache key of a compiled kernel, and "plan" for those that affect a program's key only.
    """

    __slots__ = ("changes", "default", "doc", "name", "parse", "show", "values")

    def __init__(
        self,
        name: str,
        parse: Callable[[object], T],
        default: T,
        doc: str,
        *,
        values: str,
        changes: Changes = "nothing",
        show: Callable[[T], str] = str,
    ) -> None:
        self.name = name
        self.parse = parse
        self.default = default
        self.doc = doc
        self.values = values
        self.changes: Changes = changes
        self.show = show

    def get(self) -> T:
        """Return the value in force; raise `KnobError` if the environment's is wrong."""
        return _SCOPE.get()[self.name]

    @property
    def env(self) -> str:
        return _PREFIX + self.name.upper()

    @property
    def source(self) -> Literal["config", "environment", "default"]:
        """The origin of the value in force."""
        scope: _Scope | None = _SCOPE.get()
        while scope is not None:
            if self.name in scope.given:
                return "config"
            scope = scope.parent
        return "environment" if os.environ.get(self.env) else "default"

    def validate(self, value: object, given_as: str, origin: Origin) -> T:
        """Convert `value` to this knob's type; `given_as` is its name in a `KnobError`."""
        try:
            return self.parse(value)
        except (ValueError, TypeError) as error:
            reason = f"{value!r} is not {error}" if error.args else f"{value!r} is not valid"
            raise KnobError(name=given_as, reason=reason, origin=origin) from None

    def __repr__(self) -> str:
        return f"<knob {self.name}>"


def _switch(name: str, default: bool, doc: str, *, changes: Changes = "nothing") -> Knob[bool]:
    return Knob(
        name,
        values.flag,
        default,
        doc,
        values="on | off",
        changes=changes,
        show=values.show_flag,
    )


def _size(name: str, default: int, doc: str) -> Knob[int]:
    return Knob(
        name, values.size, default, doc, values="bytes, such as 64MiB", show=values.show_bytes
    )


# --- the table ---------------------------------------------------------------------------------

THREADS: Knob[int] = Knob(
    "threads",
    values.threads,
    0,
    "Threads of one call, including the caller. auto: as many as the process may use, by affinity "
    "and container quota.",
    values="auto | 1 ... 1024",
    show=lambda n: str(n) if n else "auto",
)
SPIN_US: Knob[int] = Knob(
    "spin_us",
    values.integer(0, 1_000_000),
    50,
    "Microseconds that an idle helper thread spins before it sleeps.",
    values="0 ... 1000000",
)
CACHE = _switch("cache", True, "Keep compiled kernels on disk for the next process.")
CACHE_DIR: Knob[Path | None] = Knob(
    "cache_dir",
    values.directory,
    None,
    "Directory of compiled kernels. It must belong to you and be writable by nobody else.",
    values="a directory; default: the user's cache directory",
    show=lambda path: str(path) if path else "auto",
)
CACHE_SIZE = _size("cache_size", 2**30, "Size the cache on disk is trimmed to, oldest use first.")
LOG: Knob[str] = Knob(
    "log",
    values.text,
    "",
    "Topics to log on stderr through the standard logging module; `help` lists them.",
    values="fusion,cache,-tune | all | help",
    show=lambda text: text or "none",
)
ROUNDING: Knob[Literal["fast", "eager", "exact"]] = Knob(
    "rounding",
    values.choice("fast", "eager", "exact"),
    "eager",
    "How fusion may change rounding: intermediates keep more bits (fast), or are rounded as if "
    "stored (eager); with exact, sums and products are kernels of their own and no axis is "
    "streamed, so that results are bitwise equal to those of one kernel per operator.",
    values="fast | eager | exact",
    changes="code",
)
FUSE = _switch(
    "fuse",
    True,
    "off gives every operator a kernel of its own: to compare, or to find a bug.",
    changes="plan",
)
TIERS: Knob[Literal["default", "fused", "auto", "numpy"]] = Knob(
    "tiers",
    values.choice("default", "fused", "auto", "numpy"),
    "default",
    "Who computes array code that is not jitted: compiled code at once (fused), NumPy until "
    "compiling is predicted to pay (auto), or NumPy where it can. The default is auto once "
    "smelt.numpy is imported, else fused.",
    values="default | fused | auto | numpy",
)
SMALL_ELEMENTS: Knob[int] = Knob(
    "small_elements",
    values.integer(0, 1 << 24),
    1 << 16,
    "Elements of the largest float64 array that `smelt.numpy` leaves to NumPy: 8 bytes each; read "
    "once, at its import.",
    values="0 to 16777216",
)
LIBRARY_PRODUCTS: Knob[Literal["auto", "never", "plain", "always"]] = Knob(
    "library_products",
    values.choice("auto", "never", "plain", "always"),
    "auto",
    "Matrix products that a library (NumPy, PyTorch) computes instead of a kernel: those with "
    "nothing fused to them where the library was measured to be faster here (auto), "
    "none (never), all with nothing fused to them (plain), or all that a library can compute "
    "(always). Never under rounding=exact or strict.",
    values="auto | never | plain | always",
    changes="plan",
)
MUST_FUSE: Knob[values.Pairs] = Knob(
    "must_fuse",
    values.pairs,
    (),
    "Pairs of operators to fuse wherever that is legal, regardless of the cost model.",
    values="a+b,c+d (operators, values or file:line)",
    changes="plan",
    show=values.show_pairs,
)
TUNE: Knob[Literal["off", "remembered", "race"]] = Knob(
    "tune",
    values.choice("off", "remembered", "race"),
    "remembered",
    "What to do if the cost model is unsure: measure the plans at the first call (on a GPU, also "
    "schedules of kernels) and store the fastest on disk (race), use earlier results of this "
    "machine (remembered), or trust the model (off).",
    values="off | remembered | race",
    changes="plan",
)
TUNE_SECONDS: Knob[int] = Knob(
    "tune_seconds",
    values.integer(1, 3600),
    5,
    "Maximum seconds for racing the plans of one program, without its compilation.",
    values="1 ... 3600",
)
NEVER_FUSE: Knob[values.Pairs] = Knob(
    "never_fuse",
    values.pairs,
    (),
    "Pairs of operators to keep in separate kernels.",
    values="a+b,c+d (operators, values or file:line)",
    changes="plan",
    show=values.show_pairs,
)
REQUIRE_FUSED: Knob[values.Pairs] = Knob(
    "require_fused",
    values.groups,
    (),
    "Operators that must share a kernel: a program whose plan cannot do that is rejected with the "
    "reason. all: the complete program is one kernel.",
    values="all | a+b+c,d+e (operators, values or file:line)",
    changes="plan",
    show=values.show_pairs,
)
MAX_EXTRA_MEMORY: Knob[int | None] = Knob(
    "max_extra_memory",
    values.limit,
    None,
    "Maximum bytes a call may use beyond its inputs, for intermediates and results: large values "
    "are computed in row chunks where that keeps within it, regardless of time; otherwise the call "
    "fails before it starts.",
    values="none | bytes, such as 2GiB",
    changes="plan",
    show=values.show_bytes,
)
POOL_LIMIT = _size("pool_limit", 2**31, "Maximum bytes kept for reuse after results are released.")
CONSTANTS: Knob[int] = Knob(
    "constants",
    values.size,
    2**32,
    "Maximum bytes for values computed once from constant inputs (parameters, captured arrays) "
    "and kept between calls; 0 computes them in every call.",
    values="bytes, such as 4GiB",
    changes="plan",
    show=values.show_bytes,
)
CONSTANTS_EXTRA: Knob[int | None] = Knob(
    "constants_extra",
    values.limit,
    0,
    "Bytes of such kept values beyond the memory that fusion saves: with 0 a program takes no "
    "more memory than unfused execution. none: as much as `constants` allows.",
    values="none | bytes, such as 64MiB",
    changes="plan",
    show=values.show_bytes,
)
HUGE_PAGES = _switch("huge_pages", True, "Back large arrays with huge pages.")
TARGET: Knob[Literal["auto", "avx512", "avx2", "portable", "neon", "neon-bf16"]] = Knob(
    "target",
    values.choice("auto", "avx512", "avx2", "portable", "neon", "neon-bf16"),
    "auto",
    "Instructions to generate code for; auto takes the best this processor has.",
    values="auto | avx512 | avx2 | portable | neon | neon-bf16",
    changes="code",
)
HOST_ISA: Knob[Literal["auto", "avx2", "portable"]] = Knob(
    "host_isa",
    values.choice("auto", "avx2", "portable"),
    "auto",
    "Hide wider instructions of this processor, to test other machines.",
    values="auto | avx2 | portable",
    changes="code",
)
OPT_LEVEL: Knob[int] = Knob(
    "opt_level",
    values.integer(0, 3),
    2,
    "LLVM's optimisation level.",
    values="0 ... 3",
    changes="code",
)
PROBE: Knob[Literal["auto", "off", "now"]] = Knob(
    "probe",
    values.choice("auto", "off", "now"),
    "auto",
    "When to measure this machine for the cost model: once in the background (auto), never (off), "
    "or before the first plan (now).",
    values="auto | off | now",
)
DEVICE_CODE = _switch(
    "device_code",
    True,
    "Compile the programs of reports for a GPU, where Triton is installed.",
)
DEVICE_LAUNCH: Knob[Literal["driver", "torch"]] = Knob(
    "device_launch",
    values.choice("driver", "torch"),
    "driver",
    "Who launches the programs of torch's tensors on a GPU: Smelt's runtime, or printed files by "
    "Triton's launcher (AMD, virtual GPUs, placing a fault).",
    values="driver | torch",
)
VERIFY = _switch("verify", False, "Check every representation after every step.")
BOUNDS_CHECK = _switch(
    "bounds_check",
    False,
    "Check every load and store in native code: slow, for finding a bug.",
    changes="code",
)
CHECK_POSITIONS = _switch(
    "check_positions",
    True,
    "Check that data-dependent indices are inside of their axis, and raise an error otherwise; "
    "off: the caller guarantees that they are.",
    changes="plan",
)
NATIVE_CALLS = _switch(
    "native_calls",
    True,
    "Dispatch repeated calls of a jitted function in native code; off: in Python, to find a bug.",
)
NATIVE_FROM_CALL = 2
"""Number of the first call that uses native dispatch: earlier calls may be the only ones."""
STRICT = _switch(
    "strict",
    False,
    "Raise an error for array operators that would run outside the compiler (extern), and behind "
    "torch.compile for a graph that would fall back to eager.",
)
TRACEBACK: Knob[Literal["short", "full"]] = Knob(
    "traceback",
    values.choice("short", "full"),
    "short",
    "full shows Smelt's own frames in tracebacks of errors in the user's program.",
    values="short | full",
)
QUIET = _switch(
    "quiet",
    False,
    "Show no progress. Otherwise a compilation of more than a second shows a line on a terminal.",
)

KNOBS: Mapping[str, Knob[Any]] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Knob)
}
_CODE = tuple(knob for knob in KNOBS.values() if knob.changes == "code")
_PLAN = tuple(knob for knob in KNOBS.values() if knob.changes != "nothing")

# Other programs' variables that Smelt honours: this module alone reads the environment.
FOREIGN: Mapping[str, str] = {
    "OMP_NUM_THREADS": "An upper limit for threads, as for other numerical libraries.",
    "XDG_CACHE_HOME": "The parent of the cache directory on Linux, unless SMELT_CACHE_DIR is set.",
    "NO_COLOR": "If set, the command prints without colours.",
}


# --- setting and reading -----------------------------------------------------------------------


class config:  # noqa: N801 - used as a function: with sm.config(threads=2):
    """Settings for a `with` block or a decorated function, in this thread or task only.

    Takes settings as keywords or as one mapping of options; nests; raises `KnobError` immediately.

    >>> with config(fuse=False, rounding="exact"):
    ...     with config({"fuse": "on"}):
    ...         FUSE.get(), ROUNDING.get()
    (True, 'exact')
    """

    __slots__ = ("_given",)

    def __init__(self, options: Mapping[str, object] | None = None, /, **settings: object) -> None:
        origin = here(2)
        self._given = {
            name: _find(name, origin).validate(value, name, origin)
            for name, value in {**(options or {}), **settings}.items()
        }

    @property
    def checked_settings(self) -> Mapping[str, object]:
        """The settings by name, validated."""
        return self._given

    def __enter__(self) -> None:
        _SCOPE.set(_Scope(_SCOPE.get(), self._given))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not a token: one object may be entered by several threads at once.
        _SCOPE.set(_SCOPE.get().parent or _BASE)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: the settings apply while it runs."""

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return wrapper


def fingerprint() -> str:
    """Return the settings that change a plan or its code, for cache keys.

    >>> with config(rounding="exact", opt_level=1):
    ...     "rounding=exact" in fingerprint() and "opt_level=1" in fingerprint()
    True
    """
    scope = _SCOPE.get()
    if scope.printed is None:
        scope.printed = _format_settings(scope, _PLAN)
    return scope.printed


def context_variable() -> tuple[ContextVar[Any], type]:
    """Return the context variable that holds the settings in force, and its value's class.

    While it holds the same object, with the same text in the slot `printed`, no setting has
    changed.
    """
    return _SCOPE, _Scope


def code_fingerprint() -> str:
    """Return the settings that change the code of a kernel with a given text."""
    return _format_settings(_SCOPE.get(), _CODE)


def _format_settings(scope: _Scope, chosen: tuple[Knob[Any], ...]) -> str:
    # Exact values: `show` rounds bytes.
    return " ".join(f"{knob.name}={_exact_text(scope[knob.name])}" for knob in chosen)


def _exact_text(value: object) -> str:
    return (
        values.show_pairs(cast("values.Pairs", value)) if isinstance(value, tuple) else str(value)
    )


def foreign(name: str) -> str | None:
    """Return an environment variable of the table `FOREIGN`; None if unset or empty."""
    assert name in FOREIGN, name
    return os.environ.get(name) or None


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of a process to start, with changes; None removes a variable."""
    kept = {name: text for name, text in os.environ.items() if name not in changes}
    return kept | {name: text for name, text in changes.items() if text is not None}


def reset() -> None:
    """Forget the values read from the environment, so that changed variables count."""
    _BASE.clear()
    _BASE.printed = None


def _find(name: str, origin: Origin) -> Knob[Any]:
    knob = KNOBS.get(name)
    if knob is None:
        close = nearest(name, list(KNOBS))
        reason = f"no such setting; did you mean {close}?" if close else "no such setting"
        raise KnobError(name=name, reason=reason, origin=origin)
    return knob


def _from_environment(name: str) -> object:
    if not _BASE:
        _warn_unknown()
    knob = KNOBS[name]
    text = os.environ.get(knob.env)
    return knob.validate(text, knob.env, UNKNOWN) if text else knob.default


def _warn_unknown() -> None:
    """Warn about misspelt variables, which have no effect; once per process and reset."""
    names = {knob.env for knob in KNOBS.values()}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in names:
            close = nearest(name, sorted(names)) or "one of them (smelt doctor --knobs)"
            warning = KnobWarning(name=name, suggestion=close, origin=UNKNOWN)
            warnings.warn(warning, stacklevel=5)
