"""Log the journal's facts with the standard `logging` module: `SMELT_LOG=fusion,cache,-tune`.

Silent by default. The setting selects topics; their lines go to the handlers that the program has
configured, or to stderr if there are none. Without the setting, levels set on the loggers `smelt`,
`smelt.fusion`, `smelt.cache`, ... decide. The level of the root logger does not: a program that
logs at INFO wants no line per decision of its compiler.

>>> sorted(selected_topics("cache,fusion"))
['cache', 'fusion']
>>> "tune" in selected_topics("-tune"), "cache" in selected_topics("-tune")
(False, True)
"""

from __future__ import annotations

import logging
import sys
from functools import lru_cache

from smelt import knobs
from smelt.errors import KnobError, escape_controls, nearest, reason
from smelt.journal import facts as journal
from smelt.journal.facts import Fact
from smelt.python.origin import UNKNOWN, Origin

TOPIC_HELP = {
    "trace": "functions recorded, and why one was retraced",
    "passes": "what each pass did to the graph",
    "fusion": "every decision with its reason and numbers",
    "memory": "where values are stored and which memory they reuse",
    "lower": "clusters lowered to kernels",
    "codegen": "native code: size and time",
    "cache": "hits, misses and their reasons",
    "tune": "what was measured on this machine",
}
"""One line per topic; `SMELT_LOG=help` prints them."""

_SMELT = logging.getLogger("smelt")
_LOGGERS = {topic: logging.getLogger(f"smelt.{topic}") for topic in journal.TOPICS}
_installed: list[object] = []


class _Stderr(logging.Handler):
    """Handler for the current `sys.stderr`, which tests and notebooks replace."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


_STDERR = _Stderr()
_STDERR.setFormatter(logging.Formatter("%(name)s: %(message)s"))


def install() -> None:
    """Connect journals to logging, once; print the topics for `SMELT_LOG=help`.

    Raises `KnobError` for an unknown topic.
    """
    if not _installed:
        selected_topics(knobs.LOG.get())
        _installed.append(journal.subscribe(_listen))
        if "help" in knobs.LOG.get().split(","):
            for topic, about in TOPIC_HELP.items():
                _send(_LOGGERS[topic], about, None)


@lru_cache(maxsize=64)
def selected_topics(setting: str) -> frozenset[str]:
    """Return the topics that a setting enables.

    A comma-separated list of topics, `all`, and topics to exclude with a minus; with exclusions
    only, all others are enabled. Raises `KnobError` for an unknown topic.
    """
    words = [word.strip().lower() for word in setting.split(",") if word.strip()]
    only_minus = bool(words) and all(word.startswith("-") for word in words)
    topics: set[str] = set(TOPIC_HELP) if only_minus else set()
    for word in words:
        name = word.lstrip("+-")
        if name == "all":
            topics = set() if word.startswith("-") else set(TOPIC_HELP)
        elif name not in TOPIC_HELP and name != "help":
            close = nearest(name, list(TOPIC_HELP))
            hint = f"did you mean {close}?" if close else "SMELT_LOG=help lists the topics"
            raise KnobError(name="log", reason=f"no topic {name!r}; {hint}", origin=UNKNOWN)
        elif name != "help":
            topics = topics - {name} if word.startswith("-") else topics | {name}
    return frozenset(topics)


def is_shown(topic: str) -> bool:
    """Return whether the lines of a topic are logged.

    Either the setting or the level of a logger enables them.
    """
    setting, logger = knobs.LOG.get(), _LOGGERS[topic]
    if setting and topic in selected_topics(setting):
        return True
    has_level = logger.level != logging.NOTSET or _SMELT.level != logging.NOTSET
    return has_level and logger.isEnabledFor(logging.INFO)


def _listen(fact: Fact) -> None:
    if is_shown(fact.topic):
        _send(_LOGGERS[fact.topic], format_fact(fact), getattr(fact, "origin", None))


def _send(logger: logging.Logger, message: str, origin: Origin | None) -> None:
    place = origin or UNKNOWN
    line = escape_controls(message)
    record = logger.makeRecord(logger.name, logging.INFO, place.file, place.line, line, (), None)
    (logger if logger.hasHandlers() else _STDERR).handle(record)


def format_fact(fact: Fact) -> str:
    """Format a fact as one line for people.

    >>> format_fact(journal.PassRan("cse", 7, 5, 1e-4))
    'cse: 7 -> 5 nodes, 100 us'
    """
    text = _text(fact)
    origin = getattr(fact, "origin", None)
    return f"{text}  {origin}" if isinstance(origin, Origin) and origin.known else text


def _text(fact: Fact) -> str:
    match fact:
        case journal.Traced():
            return f"{fact.function}: {fact.operators} operators, {_time(fact.seconds)}"
        case journal.Retraced():
            return f"{fact.function} again: needs {fact.guard}, got {fact.found}"
        case journal.LoopFound():
            step = f"loop of {fact.operators} operators a step"
            return f"{step}: {fact.steps} steps at once, compiled once"
        case journal.PassRan():
            return f"{fact.name}: {fact.before} -> {fact.after} nodes, {_time(fact.seconds)}"
        case journal.OrderChosen():
            times = _time(fact.last_ns * 1e-9), _time(fact.first_ns * 1e-9)
            name, (chosen_ns, other_ns) = ("last", times) if fact.last else ("first", times[::-1])
            return (
                f"channels {name} behind {fact.windows} windows: {chosen_ns} instead of {other_ns}"
            )
        case journal.Decision():
            return _decision(fact)
        case journal.Planned():
            saved = knobs.values.show_bytes(max(fact.bytes_unfused - fact.bytes, 0))
            count = f"{fact.operators} operators in {fact.kernels} kernels"
            return f"{fact.graph}: {count}, saves {saved}, {_time(fact.seconds)}"
        case journal.BufferPlanned():
            size = knobs.values.show_bytes(fact.bytes)
            inplace = f", in place of {fact.reuses}" if fact.reuses else ""
            steps = f"steps {fact.first} to {fact.last}"
            return f"{fact.value}: {size} at {fact.place}+{fact.offset}, {steps}{inplace}"
        case journal.ArgumentCopied():
            size = knobs.values.show_bytes(fact.bytes)
            return f"{fact.argument}: copied on {fact.device}, {size} a call: {fact.reason}"
        case journal.ConstantWeighed():
            size, room = map(knobs.values.show_bytes, (fact.bytes, fact.room_bytes))
            verdict = "kept" if fact.kept else "not kept"
            gain = f"saves {_time(fact.saves_ns * 1e-9)} a call"
            return f"{fact.value}: {size} {fact.what}, {verdict}, {gain}, {room} of room"
        case journal.LibraryProduct():
            maker = fact.library if fact.taken else "a kernel"
            shape = "x".join(map(str, fact.shape))
            return f"{fact.value}, product {shape}, by {maker}: {_library_reason(fact)}"
        case journal.KernelLowered():
            again = f", {len(fact.recomputed)} recomputed" if fact.recomputed else ""
            return f"{fact.name}: {len(fact.operators)} operators{again}, {_time(fact.seconds)}"
        case journal.KernelEmitted():
            code = knobs.values.show_bytes(fact.code_bytes)
            return f"{fact.name}: {fact.ir_size} instructions, {code}, {_time(fact.seconds)}"
        case journal.CacheHit():
            return f"hit {fact.key[:12]} in {fact.place}, {_time(fact.seconds)}"
        case journal.CacheMiss():
            return f"miss {fact.key[:12]}: {fact.reason}"
        case journal.CacheStored():
            size = knobs.values.show_bytes(fact.bytes)
            return f"stored {fact.key[:12]}, {size}, {_time(fact.seconds)}"
        case journal.Measured():
            prediction = "" if fact.predicted is None else f" (predicted {fact.predicted:.4g})"
            return f"{fact.what}: {fact.value:.4g} {fact.unit}{prediction}"
        case _:
            return repr(fact)


def _library_reason(fact: journal.LibraryProduct) -> str:
    sentence = journal.LIBRARY_REASONS[fact.reason]
    if fact.own_ns is None or fact.library_ns is None:
        return sentence
    ours, library = (_time(ns * 1e-9) for ns in (fact.own_ns, fact.library_ns))
    return f"{sentence} [{ours} ours, {library} by {fact.library}]"


def _decision(fact: journal.Decision) -> str:
    row = reason(fact.reason)
    word = "fused" if fact.verdict == "fused" else "not fused"
    times = ""
    if fact.fused_ns is not None and fact.split_ns is not None:
        times = f" [{_time(fact.fused_ns * 1e-9)} fused, {_time(fact.split_ns * 1e-9)} apart]"
    sentence = row.explain(**fact.details)
    return f"{word}: {fact.a} -> {fact.b}: {row.code} {row.name}, {sentence}{times}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
