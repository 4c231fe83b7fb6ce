"""What races found: settings of a program, kept in the cache of compiled code.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\\n  v0 = exp(x)\\n  return v0\\n}")
>>> a, b, c = (Program(graph, {"n": n}) for n in (1000, 1010, 5000))
>>> machine = Target.for_isa("avx2")
>>> a.key(machine) == b.key(machine), a.key(machine) == c.key(machine)
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from smelt import knobs
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.knobs.values import Pairs
from smelt.knobs.values import pairs as read_pairs
from smelt.runtime.cache import Cache
from smelt.runtime.probe import machine_id
from smelt.target import Target

FORMAT = "smelt tuned plan 1"

Settings: TypeAlias = Mapping[str, Pairs]
"""`must_fuse` and `never_fuse`, complete: with what the user has asked for."""


@dataclass(frozen=True, slots=True)
class Program:
    """A graph and the sizes that its plan is chosen for."""

    graph: Graph
    sizes: Mapping[str, int]

    def key(self, target: Target) -> bytes:
        """What a found plan holds for: the program, the settings, this machine, and sizes of the
        same magnitude (between two powers of two)."""
        magnitudes = " ".join(f"{n}:{s.bit_length()}" for n, s in sorted(self.sizes.items()))
        with knobs.config(tune="off"):
            settings = knobs.fingerprint()
        parts = FORMAT, text(self.graph), magnitudes, settings, machine_id(target)
        return hashlib.sha256("\0".join(parts).encode()).digest()


def recall(key: bytes) -> Settings | None:
    """What was found for a program, None if nothing was."""
    if not knobs.CACHE.get():
        return None
    entry = Cache.default().get(key)
    if entry is None or entry.meta.get("format") != FORMAT:
        return None
    return {name: read_pairs(entry.meta[name]) for name in ("must_fuse", "never_fuse")}


def remember(key: bytes, settings: Settings, gain: float) -> None:
    """Keep what was found; `gain` says how many times faster than the first plan it was."""
    if not knobs.CACHE.get():
        return
    meta: dict[str, object] = {name: list(map(list, pairs)) for name, pairs in settings.items()}
    Cache.default().put(key, {**meta, "format": FORMAT, "gain": round(gain, 3)}, b"")
