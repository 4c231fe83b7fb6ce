"""Report recordings of functions, and why one was recorded again, as facts for `SMELT_LOG`.

Imported by the first recording, since loading `logging` would slow `import smelt` down.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from smelt.frontends.array.sizes import RELATIONS
from smelt.frontends.array.trace import Argument, Trace
from smelt.journal import logs
from smelt.journal.facts import Journal, LoopFound, Retraced, Traced
from smelt.python.origin import Origin
from smelt.types.dtype import from_numpy
from smelt.types.expr import evaluate, sizes_of

_KEY_PARTS = (
    "structure of the arguments",
    "static arguments",
    "dtypes, ranks and layouts",
    "donated arguments",
    "use of out=",
    "settings",
)
"""The parts of the key under which `Jit.find` keeps recordings."""
_SIGNATURES = 2
"""Index of the arguments' signatures among them."""


def _journal() -> Journal:
    logs.install()
    return Journal(keep=False)


def report_traced(trace: Trace, seconds: float) -> None:
    """Report that a function was recorded."""
    operators = sum(bool(n.inputs) for n in trace.graph.nodes())
    _journal().record(Traced(trace.graph.name, operators, seconds))


def report_loop(operators: int, steps: int, origin: Origin | None) -> None:
    """Report that a lazy program is in a loop, whose first operator has an origin."""
    _journal().record(LoopFound(operators, steps, origin))


def report_retraced(
    name: str,
    traces: Mapping[Hashable, Sequence[Trace]],
    key: tuple[Any, ...],
    measures: Sequence[Any],
    labels: Sequence[str],
    arguments: Sequence[Argument],
) -> None:
    """Report why none of the earlier recordings of a function holds for a call.

    `key` and `measures` are what `Jit.find` looked for; nothing is reported for the first call.
    """
    if traces.get(key):
        guard, got = _failed_guard(traces[key][0], measures)
    else:
        others = [k for k in traces if k != key and traces[k] and isinstance(k, tuple)]
        if not others:
            return
        guard, got = _key_difference(others, key, labels, arguments)
    _journal().record(Retraced(name, guard, got))


def _failed_guard(trace: Trace, measures: Sequence[Any]) -> tuple[str, str]:
    """Return the guard on sizes that fails for a call, and the sizes in it."""
    values = dict(zip(trace.parameters, measures, strict=False))
    for guard in trace.guards:
        try:
            sides = evaluate(guard.left, values), evaluate(guard.right, values)
        except (KeyError, ZeroDivisionError):  # a size that is computed from others
            continue
        if not RELATIONS[guard.relation](*sides):
            names = dict.fromkeys((*sizes_of(guard.left), *sizes_of(guard.right)))
            return str(guard), ", ".join(f"{n} = {values[n]}" for n in names)
    listed = ", ".join(f"{n} = {x}" for n, x in values.items() if not n.startswith("_"))
    return "the numbers that it was recorded for", listed


def _key_difference(
    others: Sequence[tuple[Any, ...]],
    key: tuple[Any, ...],
    labels: Sequence[str],
    arguments: Sequence[Argument],
) -> tuple[str, str]:
    """Return what the most similar earlier key requires, and what the call has instead."""

    def differing(other: tuple[Any, ...]) -> list[int]:
        return [k for k, (a, b) in enumerate(zip(other, key, strict=True)) if a != b]

    nearest = min(reversed(others), key=lambda other: len(differing(other)))
    parts = differing(nearest)
    if parts == [_SIGNATURES]:
        for label, old, new, x in zip(labels, nearest[_SIGNATURES], key[_SIGNATURES], arguments):
            if old != new:
                return f"{label}: {_type_text(old)}", _argument_text(x, like=_type_text(old))
    names = " and ".join(_KEY_PARTS[k] for k in parts)
    return f"the {names} of the earlier call", "others"


def _type_text(signature: Any) -> str:
    """Return a signature of `smelt.frontends.array.trace.Argument` as text."""
    if isinstance(signature, tuple) and len(signature) == 3:
        dtype, shape, _ = signature
        dims = ",".join("n" if n < 0 else str(n) for n in shape)
        return f"{from_numpy(dtype).name}[{dims}]"
    if isinstance(signature, tuple):
        return str(signature[1])
    return getattr(signature, "__name__", str(signature))


def _argument_text(x: Argument, like: str) -> str:
    if x.data is None:
        return f"{type(x.number).__name__} {x.number}"
    dims = ",".join(map(str, x.data.shape))
    general = ",".join("n" if n > 1 else str(n) for n in x.data.shape)
    name = from_numpy(x.data.dtype).name
    return f"{name}[{dims}]{' in another layout' if f'{name}[{general}]' == like else ''}"
