"""Facts about compiling and running, as data: what ran, what was decided, what it cost.

Stages append frozen facts; nothing here formats or prints. A journal is stored with the compiled
code, so that a warm start explains as well as a cold one, and `explain` renders it.

>>> journal = Journal()
>>> journal.record(PassRan("cse", before=7, after=5, seconds=1e-4))
>>> journal.record(Decision("exp", "sum", "fused", "saves-traffic", saves_bytes=4096))
>>> [d.reason for d in journal.of(Decision)]
['saves-traffic']
>>> Journal.from_json(journal.to_json()) == journal
True
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, ClassVar, Literal, TypeVar, cast

from smelt.errors import ExprTextError, UnsupportedError
from smelt.python.dataclass import dataclass
from smelt.python.origin import Origin
from smelt.types.json_data import register, to_data

VERSION = 1
"""Version of the JSON form. Adding a field keeps the version; any other change raises it."""

Verdict = Literal["fused", "split"]


@dataclass(frozen=True, slots=True)
class Fact:
    """Base of all facts; `topic` is the name under which `SMELT_LOG` shows them."""

    topic: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Traced(Fact):
    """A function was recorded: `operators` nodes in `seconds`."""

    topic: ClassVar[str] = "trace"
    function: str
    operators: int
    seconds: float
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Retraced(Fact):
    """A function is recorded again: earlier recordings need `guard`, the call has `found`."""

    topic: ClassVar[str] = "trace"
    function: str
    guard: str
    found: str
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class LoopFound(Fact):
    """A lazy program is in a loop of `operators` a step, which is compiled once.

    `steps` of them are computed at once.
    """

    topic: ClassVar[str] = "trace"
    operators: int
    steps: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class PassRan(Fact):
    """A pass took a graph (or a kernel) of `before` nodes to one of `after`."""

    topic: ClassVar[str] = "passes"
    name: str
    before: int
    after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OrderChosen(Fact):
    """The memory layout chosen for convolution-like results: channels `last` or first.

    `windows` counts the reductions over windows concerned; `first_ns` and `last_ns` are the
    predicted times of what differs between the layouts.
    """

    topic: ClassVar[str] = "passes"
    windows: int
    last: bool
    first_ns: float
    last_ns: float


@dataclass(frozen=True, slots=True)
class Decision(Fact):
    """Whether `a` and `b` share a kernel, why, and what either way costs.

    `reason` names a row of `smelt.errors.REASONS`; `details` are the fields of its sentence.  Bytes
    and nanoseconds are predictions: `saves_*` what fusing avoids, `costs_*` what it adds,
    `fused_ns` and `split_ns` the two totals that were compared (None if illegal: not computed).
    """

    topic: ClassVar[str] = "fusion"
    a: str
    b: str
    verdict: Verdict
    reason: str
    saves_bytes: int = 0
    saves_ns: float = 0.0
    costs_bytes: int = 0
    costs_ns: float = 0.0
    fused_ns: float | None = None
    split_ns: float | None = None
    a_origin: Origin | None = None
    origin: Origin | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)


@dataclass(frozen=True, slots=True)
class Planned(Fact):
    """A graph of `operators` became `kernels`; bytes are transfers with fusion and without."""

    topic: ClassVar[str] = "fusion"
    graph: str
    operators: int
    kernels: int
    bytes: int
    bytes_unfused: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BufferPlanned(Fact):
    """The storage of a value from step `first` to step `last`.

    `place` is `arena`, `input`, `output`, `constant`, or the result whose memory holds the value
    until that result is written; `offset` counts from its start. `reuses` names the value whose
    memory is overwritten in place.
    """

    topic: ClassVar[str] = "memory"
    value: str
    bytes: int
    offset: int
    first: int
    last: int
    place: str = "arena"
    reuses: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentCopied(Fact):
    """Programs of a device do not read an argument where it lies: calls copy it before."""

    topic: ClassVar[str] = "memory"
    argument: str
    device: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConstantWeighed(Fact):
    """Whether a value computed from constant inputs alone is kept between calls.

    `what` is `packed` (prepacked for a matrix product) or `computed`; keeping it takes `bytes`,
    with `room_bytes` left in the budget, and is predicted to save `saves_ns` per call.
    """

    topic: ClassVar[str] = "memory"
    value: str
    what: str
    bytes: int
    saves_ns: float
    kept: bool
    room_bytes: int


LIBRARY_REASONS: Mapping[str, str] = {
    "faster": "measured to be faster here for products of this shape",
    "slower": "measured not to be faster here for products of this shape",
    "fused": "its kernel computes other operators too, which a call would separate",
    "small": "a call of the library would take longer than so little work",
    "unmeasured": "the library was not measured for this shape and type",
    "chunks": "it would be called for one chunk of rows after another",
    "threads": "the library would take more threads than a call may",
    "setting": "chosen by the setting `library_products`, or in a race of whole programs",
}
"""Why a product is computed by a library or by a kernel of ours."""


@dataclass(frozen=True, slots=True)
class LibraryProduct(Fact):
    """Whether a numerical library computes a product instead of a kernel, and why.

    `shape` is the stack, rows, columns and summed terms; `reason` a key of `LIBRARY_REASONS`. The
    predicted times of the product alone, by our kernel and by the library, are None where they are
    not known: of a product that shares a kernel, and of a library that was not measured.
    """

    topic: ClassVar[str] = "fusion"
    value: str
    library: str
    shape: tuple[int, ...]
    taken: bool
    reason: str
    own_ns: float | None = None
    library_ns: float | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class KernelLowered(Fact):
    """A cluster was lowered to a kernel, with its operators in execution order.

    `text` is set if the journal is full.
    """

    topic: ClassVar[str] = "lower"
    name: str
    text: str
    operators: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelEmitted(Fact):
    """Native code was generated: `ir_size` LLVM instructions, `code_bytes` of object code.

    `text` is set if the journal is full.
    """

    topic: ClassVar[str] = "codegen"
    name: str
    text: str
    ir_size: int
    seconds: float
    target: str = ""
    code_bytes: int = 0
    llvm: str = ""
    asm: str = ""


@dataclass(frozen=True, slots=True)
class CacheHit(Fact):
    """Code came from the cache: from `memory` or from `disk`."""

    topic: ClassVar[str] = "cache"
    key: str
    place: str = "disk"
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheMiss(Fact):
    """Code had to be generated; `reason` is a changed key part or a defect."""

    topic: ClassVar[str] = "cache"
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class CacheStored(Fact):
    """Code was written to the cache."""

    topic: ClassVar[str] = "cache"
    key: str
    bytes: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured(Fact):
    """A number measured on this machine, for the cost model or in a race."""

    topic: ClassVar[str] = "tune"
    what: str
    value: float
    unit: str
    predicted: float | None = None


_KINDS: Mapping[str, type[Fact]] = {
    kind.__name__: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, Fact) and kind is not Fact
}
TOPICS: tuple[str, ...] = tuple(dict.fromkeys(kind.topic for kind in _KINDS.values()))
"""The names that `SMELT_LOG` takes, in pipeline order."""

F = TypeVar("F", bound=Fact)
register(Origin, lambda origin: list(origin.place), lambda place: Origin(*place))
Listener = Callable[[Fact], None]
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every fact of every journal; return a function that stops it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


class Journal:
    """The facts of one compilation (or of one process), in the order they happened.

    With `keep=False` facts go to listeners only. With `full`, facts also have texts, which cost
    time and memory.
    """

    __slots__ = ("facts", "full", "keep")

    def __init__(
        self, facts: Iterable[Fact] = (), *, keep: bool = True, full: bool = False
    ) -> None:
        self.facts: list[Fact] = list(facts)
        self.keep = keep
        self.full = full

    def record(self, fact: Fact) -> None:
        """Append a fact. Safe from several threads: appending to a list is atomic."""
        if self.keep:
            self.facts.append(fact)
        for listener in _listeners:
            listener(fact)

    def of(self, kind: type[F]) -> list[F]:
        """Return all facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    def __eq__(self, other: object) -> bool:
        return self.facts == other.facts if isinstance(other, Journal) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def to_data(self) -> dict[str, Any]:
        """Return plain dicts and lists, ready for `json`; non-finite numbers become null."""
        return {
            "version": VERSION,
            "facts": [{"fact": type(f).__name__, **to_data(f, full=True)} for f in self.facts],
        }

    def to_json(self) -> str:
        """Return the stored form: one line, keys in field order."""
        data = self.to_data()
        return json.dumps(data, allow_nan=False, separators=(",", ":"), default=_scalar)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Journal:
        """Read the output of `to_data`; ignore kinds and fields of other versions.

        Raises `UnsupportedError` for a later version, `ExprTextError` for anything malformed.
        """
        version = data.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise ExprTextError("a journal without a version")
        if version > VERSION:
            what = f"journal version {version}; this Smelt reads versions up to {VERSION}"
            raise UnsupportedError(what, hint="Read it with the version that wrote it.")
        rows = data.get("facts")
        if not isinstance(rows, list):
            raise ExprTextError("a journal without facts")
        facts = (_from_data(row) for row in cast("list[Any]", rows))
        return cls(fact for fact in facts if fact is not None)

    @classmethod
    def from_json(cls, text: str) -> Journal:
        """Read the output of `to_json`; raises as `from_data`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ExprTextError(f"a journal that is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ExprTextError("a journal that is not a JSON object")
        return cls.from_data(cast("dict[str, Any]", data))


def _scalar(value: Any) -> Any:
    """Convert values unknown to json: NumPy scalars to Python numbers, sizes and dtypes to text."""
    return to_data(value.item()) if hasattr(value, "item") else str(value)


def _from_data(row: Any) -> Fact | None:
    """Return the fact of a row; None for an unknown kind."""
    name = cast("dict[str, Any]", row).get("fact") if isinstance(row, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    values: dict[str, Any] = {}
    for column in fields(kind):
        value: Any = row.get(column.name)
        if value is None:
            if column.default is MISSING and column.default_factory is MISSING:
                if column.name not in row:
                    raise ExprTextError(f"a {kind.__name__} without {column.name}")
                value = math.nan  # a number that was not finite
            else:
                continue
        values[column.name] = _typed(column.name, value)
    return kind(**values)


def _typed(name: str, value: Any) -> Any:
    if name.endswith("origin") and isinstance(value, list):
        try:
            return Origin(*cast("list[Any]", value))
        except TypeError as error:
            raise ExprTextError(f"an origin that is not one: {error}") from None
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value
