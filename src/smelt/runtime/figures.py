"""Samples of the machine's figures: several tries of each, with the quietness of the machine.

One measurement of a shared machine proves little: what other processes do makes it slower, and
memory traffic of others does not even show in the processor time. So every figure is measured in
several tries apart from each other, the best of them counts, and the distance of the best two is
its spread. A figure is settled by two tries in which the machine was quiet and which agree, or
after MAX_TRIES, since some machines are never quiet. Samples expire, since machines change.

>>> quiet = Sample(40.0, 1.0, 0.0)
>>> is_settled("nt_copy_gbs", [quiet, Sample(38.0, 0.98, 1.0)])
True
>>> is_settled("nt_copy_gbs", [quiet, Sample(38.0, 0.5, 1.0)])
False
>>> f"{spread('nt_copy_gbs', [Sample(22.0, 0.4, 0.0), quiet, Sample(38.0, 0.98, 1.0)]):.3f}"
'0.053'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

from smelt.machine.target import DEFAULT_OP_NS, LEVELS, Bandwidth, Rates, Target

MIN_QUIET_SHARE = 0.85
"""Minimum share of a processor that an undisturbed measuring thread gets."""
AGREEMENT = 0.25
"""Largest relative distance of two tries that confirm each other."""
MAX_TRIES = 4
"""Tries after which the best figure is believed, whatever the machine did meanwhile."""
APART_S = 300.0
"""Seconds until a try of a busy machine is repeated: what disturbed it may have ended."""
EXPIRY_S = 30 * 86400.0
"""Age in seconds at which a sample no longer counts."""

EXP_INSTRUCTIONS = 14
"""Vector instructions of one polynomial exponential in the probe, including its feedback."""

_KINDS = ("read", "write", "copy")
_SIDES = ("one_thread", "all_threads")
BANDWIDTHS = tuple(f"{s}.{level}.{k}" for s in _SIDES for level in LEVELS for k in _KINDS)
NONTEMPORAL = ("nt_store_gbs", "nt_copy_gbs")
OPERATIONS = tuple(f"op_ns.{name}" for name in DEFAULT_OP_NS)
CALLS = ("dispatch_ns", "launch_ns")
FAULTS = ("page_fault_ns_per_byte", "huge_fault_ns_per_byte")
COMPILATION = ("compile_ns_per_instr",)
NAMES = (*BANDWIDTHS, *NONTEMPORAL, *OPERATIONS, *CALLS, *FAULTS, *COMPILATION)
"""Every measured figure, by the field of `Target` that it goes into."""
_RATES = frozenset((*BANDWIDTHS, *NONTEMPORAL))
"""Figures of which more is better; the others are times."""


class Sample(NamedTuple):
    """One try of a figure.

    `share` is the share of a processor that the measuring threads got, and `time` the seconds
    since the epoch.
    """

    value: float
    share: float
    time: float

    @property
    def is_quiet(self) -> bool:
        return self.share >= MIN_QUIET_SHARE


Samples: TypeAlias = Mapping[str, Sequence[Sample]]
"""The tries of each figure, oldest first."""


def best(name: str, tries: Iterable[Sample]) -> float:
    """Return the best value of a figure's tries: disturbances only make it worse."""
    values = (s.value for s in tries)
    return max(values) if name in _RATES else min(values)


def spread(name: str, tries: Iterable[Sample]) -> float:
    """Return the relative distance of a figure's two best tries; infinity for fewer."""
    values = sorted((s.value for s in tries), reverse=name in _RATES)[:2]
    return max(values) / min(values) - 1 if len(values) > 1 else math.inf


def is_settled(name: str, tries: Sequence[Sample]) -> bool:
    """Return whether a figure can be trusted; see the module's text."""
    quiet = [s for s in tries if s.is_quiet]
    return len(tries) >= MAX_TRIES or spread(name, quiet) <= AGREEMENT


def all_settled(samples: Samples) -> bool:
    """Return whether every figure can be trusted."""
    return all(is_settled(name, samples.get(name, ())) for name in NAMES)


def is_due(name: str, tries: Sequence[Sample], now: float) -> bool:
    """Return whether a figure is to be tried at the time `now`."""
    if is_settled(name, tries):
        return False
    return not tries or tries[-1].is_quiet or abs(now - tries[-1].time) >= APART_S


def add_samples(samples: Samples, taken: Mapping[str, Sample]) -> dict[str, tuple[Sample, ...]]:
    """Return samples with one more try of some figures."""
    return {
        **{name: tuple(tries) for name, tries in samples.items()},
        **{name: (*samples.get(name, ()), sample) for name, sample in taken.items()},
    }


def merge(a: Samples, b: Samples) -> dict[str, tuple[Sample, ...]]:
    """Return the tries of both, each once, in order of time."""
    return {
        name: tuple(sorted({*a.get(name, ()), *b.get(name, ())}, key=lambda s: s.time))
        for name in NAMES
        if name in a or name in b
    }


def without_expired(samples: Samples, now: float) -> dict[str, tuple[Sample, ...]]:
    """Return the samples that still count at the time `now`."""
    fresh = {
        name: tuple(s for s in tries if abs(now - s.time) < EXPIRY_S)
        for name, tries in samples.items()
    }
    return {name: tries for name, tries in fresh.items() if tries}


def quietest_share(samples: Samples) -> float:
    """Return the least share of a processor over the quietest tries of all figures."""
    return min((max(s.share for s in tries) for tries in samples.values()), default=0.0)


def largest_spread(samples: Samples) -> tuple[str, float]:
    """Return the figure whose best tries differ most, and by how much."""
    spreads = {n: x for n, tries in samples.items() if (x := spread(n, tries)) < math.inf}
    name = max(spreads, key=lambda n: spreads[n], default="")
    return name, spreads.get(name, math.inf)


# ---- the target ----------------------------------------------------------------------------------


def target_of(host: Target, samples: Samples) -> Target | None:
    """Return `host` with the best of each figure; None if one has no sample."""
    if any(not samples.get(name) for name in NAMES):
        return None
    value = {name: best(name, samples[name]) for name in NAMES}
    op_ns = {name: value[f"op_ns.{name}"] for name in DEFAULT_OP_NS}
    one, many = (_rates(side, value) for side in _SIDES)
    # Noise makes no outer level faster than an inner one, and no thread slower than it is alone.
    one = _never_rising(one)
    many = _never_rising([{k: max(a[k], b[k]) for k in _KINDS} for a, b in zip(one, many)])
    plain = (*NONTEMPORAL, *CALLS, *FAULTS, *COMPILATION)
    return replace(
        host,
        measured=True,
        one_thread=_bandwidth(one),
        all_threads=_bandwidth(many),
        op_ns=op_ns,
        fma_gflops=2 * host.lanes(4) / op_ns["fma"],
        op_cost_scale=op_ns["exp"] / (EXP_INSTRUCTIONS * op_ns["fma"]),
        **{name: value[name] for name in plain},
    )


def agree(a: Target, b: Target) -> bool:
    """Return whether figures of two targets differ as little as tries that confirm each other.

    New figures change the keys of stored plans, so that such differences are not worth having.
    """
    ratios = (_figure(a, name) / _figure(b, name) for name in NAMES)
    return all(max(r, 1 / r) <= 1 + AGREEMENT for r in ratios)


def _figure(target: Target, name: str) -> float:
    """Return a figure of a target by its name."""
    value: Any = target
    for part in name.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return float(value)


def _rates(side: str, value: Mapping[str, float]) -> list[dict[str, float]]:
    return [{k: value[f"{side}.{level}.{k}"] for k in _KINDS} for level in LEVELS]


def _never_rising(levels: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return the rates of the levels, none above that of an inner level."""
    limited: list[dict[str, float]] = []
    for rates in levels:
        limited.append({k: min(rates[k], limited[-1][k]) if limited else rates[k] for k in _KINDS})
    return limited


def _bandwidth(levels: list[dict[str, float]]) -> Bandwidth:
    return Bandwidth(*(Rates(**rates) for rates in levels))


# ---- as data -------------------------------------------------------------------------------------


def to_data(samples: Samples) -> dict[str, list[list[float]]]:
    """Return samples as JSON data."""
    return {name: [list(s) for s in tries] for name, tries in samples.items()}


def from_data(data: Any) -> dict[str, tuple[Sample, ...]]:
    """Read the output of `to_data`; raise ValueError or TypeError for anything else."""
    samples: dict[str, tuple[Sample, ...]] = {}
    for name, rows in cast("dict[str, Any]", dict(data)).items():
        if name not in NAMES:
            raise ValueError(f"unknown figure {name!r}")
        tries = tuple(Sample(*map(float, row)) for row in rows)
        if not all(0 < s.value < 1e15 and 0 <= s.share <= 1 for s in tries):
            raise ValueError(f"impossible samples of {name}")
        samples[name] = tries
    return samples
