r"""Results of races: a program's settings, stored in the cache of compiled code.

Apart from the races: a warm start recalls settings and loads nothing that plans.

>>> from smelt.graph.text import parse
>>> graph = parse("graph f(x: f32[n]) {\n  v0 = exp(x)\n  return v0\n}")
>>> a, b, c = (Program(graph, {"n": n}) for n in (1000, 1010, 5000))
>>> a.key("one machine") == b.key("one machine"), a.key("one machine") == c.key("one machine")
(True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from smelt import knobs
from smelt.errors import SmeltError
from smelt.graph.ir import Graph
from smelt.graph.text import text
from smelt.graph.walk import input_size_names
from smelt.knobs.values import Pairs
from smelt.knobs.values import pairs as read_pairs
from smelt.ops.library_product import provider
from smelt.python.caches import cached_property
from smelt.runtime.cache import Cache
from smelt.runtime.prelude import Allowance

FORMAT = "smelt tuned plan 1"
LIBRARY = knobs.LIBRARY_PRODUCTS.name
GUESS = 64
"""Default of a size without a hint."""

Settings: TypeAlias = Mapping[str, Pairs | str]
"""`must_fuse` and `never_fuse`, including the user's own, and `library_products` if it was raced.
"""


class Program:
    """A graph with the sizes that its plan is chosen for.

    Sizes without a hint get a default. `allowance` is the memory that it may take, if limited.
    """

    def __init__(
        self, graph: Graph, hints: Mapping[str, int], allowance: Allowance | None = None
    ) -> None:
        self.graph, self.hints, self.allowance = graph, hints, allowance
        self.sizes = {**dict.fromkeys(input_size_names(graph), GUESS), **hints}

    @cached_property
    def text(self) -> str:
        """The graph's text, independent of its name; raises SmeltError for a graph without one."""
        return text(replace(self.graph, name="program"))

    def key(self, machine: str) -> bytes:
        """Return the key of a race's result; raises SmeltError as `text`.

        It consists of the program, the settings, the machine (by all that decides who wins there),
        and the magnitudes of the sizes (their power of two).
        """
        magnitudes = " ".join(f"{n}:{s.bit_length()}" for n, s in sorted(self.sizes.items()))
        with knobs.config(tune="off"):
            settings = knobs.fingerprint()
        parts = [FORMAT, self.text, magnitudes, settings, machine]
        if provider().name != "numpy":
            parts.append(provider().name)
        return hashlib.sha256("\0".join(parts).encode()).digest()


def recall(program: Program, machine: str) -> Settings | None:
    """Return the settings of an earlier race on a machine, or None.

    There are none if `tune` is off.
    """
    if knobs.TUNE.get() == "off" or not (knobs.CACHE.get() and knobs.FUSE.get()):
        return None
    try:
        entry = Cache.default().get(program.key(machine))
    except SmeltError:
        return None
    if entry is None or entry.meta.get("format") != FORMAT:
        return None
    settings: dict[str, Pairs | str] = {
        name: read_pairs(entry.meta[name]) for name in ("must_fuse", "never_fuse")
    }
    if (wish := entry.meta.get(LIBRARY)) is not None:
        settings[LIBRARY] = str(wish)
    return settings


def remember(program: Program, machine: str, settings: Settings, gain: float) -> None:
    """Store the winning settings; `gain` is the speed-up over the first plan."""
    if not knobs.CACHE.get():
        return
    meta: dict[str, object] = {
        name: value if isinstance(value, str) else list(map(list, value))
        for name, value in settings.items()
    }
    meta |= {"what": "race", "format": FORMAT, "gain": round(gain, 3)}
    with suppress(SmeltError):
        Cache.default().put(program.key(machine), meta, b"")
