"""What a stream of a region computes, derived once: prices at any sizes and words are told by it.

>>> from smelt.fusion.region import look
>>> from smelt.graph.text import parse
>>> units = Units(
...     parse('''graph f(x: f32[n,m]) {
...   v0 = reduce.max(x) {axes=(1,)}
...   v1 = reshape(v0) {shape=(n,1)}
...   v2 = sub(x, v1)
...   return v2
... }''')
... )
>>> region = look(units, 0b110, 0b100)
>>> derived(units, region, 1) is derived(units, region, 1)
True
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from smelt import knobs
from smelt.dataclass import dataclass
from smelt.fusion.cascade.analyse import Cascade, analyse
from smelt.fusion.cascade.block_sparsity import Visible
from smelt.fusion.cascade.collect import Collected, collect
from smelt.fusion.cascade.term import Term
from smelt.fusion.region import Region
from smelt.fusion.units import Units


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """The terms of a region of which an axis is streamed, and what becomes of its folds."""

    region: Region
    """For which it was derived: its places are those of others of the same units."""
    found: Collected
    cascade: Cascade
    own: tuple[Term, ...]
    """The terms of both; what is asked about them makes more."""
    looked: dict[Hashable, Visible] = field(default_factory=dict[Hashable, Visible])
    """What sweeps visit, by what their states fold and which axes stand still."""


def derived(units: Units, region: Region, a: int) -> Derived:
    """What is computed along axis number `a` of a region.  Raises NotCollected."""
    rounding = knobs.ROUNDING.get()
    key = region.members, region.stored, a, rounding
    known = units.derived.get(key)
    if isinstance(known, Derived) and known.region.places is region.places:
        return known
    found = collect(units, region, a, rounding)
    cascade = analyse(found.terms, found.roots.values(), f"a{a}")
    made = Derived(region, found, cascade, tuple(found.terms.known.values()))
    units.derived[key] = made
    return made
