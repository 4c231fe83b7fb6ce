"""Rewriting phases: what depends on an item follows it, and nothing changes its input."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from smelt.codegen.llvm.loopir.items import Apply, Item, Load, Phase
from smelt.codegen.llvm.loopir.rewrite import Draft, rebuild
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_nests import schedule
from smelt.kernel.text import parse
from smelt.machine.target import Target

SOFTMAX = """kernel softmax(x: f32[r,c]) -> y: f32[r,c]
  axis r, c
  grid r
  m = max(x[r,c] over c)
  e = exp(x[r,c] - m)
  s = sum(e over c)
  y[r,c] = e / s
"""
STREAM = """kernel k(x: f32[n,d], w: f32[d,m]) -> y: f32[n,m]
  axis n, m, d
  grid n, m
  stream d/4096 with a = 0 [n,m]
    x0 = x[n,d]
    w0 = w[d,m]
    a' = a * 0.5 + dot(x0, w0 over d)
  y[n,m] = a
"""


def lowered(text: str) -> Phase:
    (phase,) = program(parse(text)).phases
    return phase


def test_what_depends_on_an_item_follows_it() -> None:
    phase = lowered(SOFTMAX)
    before = phase.items
    load = next(i for i in phase.items if isinstance(i, Load))
    draft = Draft(phase)
    new = draft.insert(load, Apply((load,), load.axes, load.dtype, "neg", time=load.time))
    changed = draft.replace(load, replace(load))
    users = [i for i in draft.phase.items if changed in i.args]
    assert users and not any(load in i.args for i in draft.phase.items if i is not new)
    assert draft.phase.stores[0].value is draft.latest(phase.stores[0].value)
    assert draft.latest(load) is changed and phase.items is before


def test_an_equal_rebuild_is_the_same_items() -> None:
    for phase in map(lowered, (SOFTMAX, STREAM)):
        again = rebuild(phase)
        assert all(x is y for x, y in zip(again.items, phase.items, strict=True))
        assert again.segments == phase.segments and again.stores == phase.stores


def test_states_and_regions_follow_their_visits() -> None:
    phase = lowered(STREAM)
    shorter = rebuild(phase, visit=lambda v: replace(v, size=64))
    (region,) = shorter.regions()
    assert region.visits[0].size == 64
    (old,) = phase.regions()
    assert old.visits[0].size == 4096
    assert {i.time for i in shorter.items} == {i.time for i in phase.items}


@pytest.mark.parametrize("text", [SOFTMAX, STREAM])
def test_a_schedule_leaves_the_phase_as_it_was(text: str) -> None:
    phase = lowered(text)
    before = [(i, i.operation, i.args, i.axes) for i in phase.items], dict(phase.axes)
    for isa in ("avx512", "avx2"):
        schedule(phase, Target.for_isa(isa))
    assert ([(i, i.operation, i.args, i.axes) for i in phase.items], dict(phase.axes)) == before
    item: Item = phase.items[0]
    with pytest.raises(FrozenInstanceError):
        item.axes = frozenset()  # type: ignore[misc]
