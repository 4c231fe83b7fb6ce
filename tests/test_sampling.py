"""Cases put off until night: no whole value, other ones at another commit."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import (
    BUDGET_SECONDS,
    MIN_EXAMPLES,
    PROPERTY_SECONDS,
    SETS,
    SHARE,
    commit_seed,
    draw_examples,
    put_off,
    share_of_examples,
)


def cases(test: str, *params: Any) -> list[Any]:
    """What pytest collects of a test with each of these for its parameters."""
    return [
        SimpleNamespace(
            nodeid=f"{test}[{'-'.join(map(str, inputs))}]",
            callspec=SimpleNamespace(
                params=dict(enumerate(inputs)),
                indices={k: [*params[k]].index(value) for k, value in enumerate(inputs)},
            ),
        )
        for inputs in product(*params)
    ]


def isas(items: Any) -> set[str]:
    return {p for i in items for p in i.callspec.params.values() if p in SETS}


@pytest.mark.parametrize(("widest", "narrower"), [("avx512", 2), ("avx2", 1)])
def test_a_fourth_of_the_narrower_ones_is_left(widest, narrower):
    items = cases("t", SETS, range(300))
    late = put_off(items, widest)
    assert isas(late) == set(SETS[-narrower:])
    assert len(late) == narrower * 300 * 3 // 4


@pytest.mark.parametrize("last", [False, True])
def test_every_type_is_left_and_not_the_same_cases_of_both(last):
    order = (range(24), ("f32", "f64", "bf16"))
    items = cases("t", *order, SETS) if last else cases("t", SETS, *order)
    late = put_off(items, "avx512")
    left = [i for i in items if i not in late]
    drawn = [{p for p in i.callspec.params.values() if p != "avx512"} for i in left]
    for isa, dtype in product(SETS[1:], order[1]):
        assert sum({isa, dtype} <= inputs for inputs in drawn) > 2
    inputs = [{*i.callspec.params.values()} for i in left]
    both = [one - {*SETS} for one in inputs if not one.isdisjoint(SETS[1:])]
    assert sum(both.count(one) > 1 for one in both) <= len(both) // 3


def test_what_has_no_case_on_the_widest_set_runs_whole():
    items = cases("t", SETS[1:], range(9))
    assert not put_off(items, "avx512")
    assert not put_off([SimpleNamespace(nodeid="u")], "avx512")  # type: ignore[list-item]
    assert not put_off(cases("t", SETS, range(9)), "neon")
    assert put_off([*items, *cases("t", ["avx512"], range(9))], "avx512")


def test_a_long_sweep_takes_its_budget_and_has_every_value():
    items = cases("t", range(12), ("f32", "f64", "bf16"))
    seconds = BUDGET_SECONDS / 12
    left = [i for i in items if i not in put_off(items, "avx512", {"t": seconds})]
    assert len(left) == 12
    for position, count in ((0, 12), (1, 3)):
        assert len({i.callspec.params[position] for i in left}) == count
    assert not put_off(items, "avx512", {"t": seconds / 3})
    assert len(put_off(items, "avx512", {"t": 100.0})) == len(items) - 1


def test_both_rules_hold_together():
    items = cases("t", SETS, range(40))
    late = put_off(items, "avx512", {"t": BUDGET_SECONDS / 15})
    left = [i.callspec.params[0] for i in items if i not in late]
    assert [left.count(isa) for isa in SETS] == [10, 3, 3]


def test_commits_draw_other_cases_until_all_have_run():
    items, seconds = cases("t", range(40)), {"t": BUDGET_SECONDS / 10}
    late = [put_off(items, "avx512", seconds, f"commit {k}") for k in range(30)]
    assert late[0] == put_off(items, "avx512", seconds, "commit 0")
    assert late[0] != late[1]
    assert not set.intersection(*({i.nodeid for i in one} for one in late))


@pytest.mark.parametrize(("times", "examples"), [(0.5, 40), (4, 10), (1000, MIN_EXAMPLES)])
def test_long_properties_have_fewer_examples(times, examples):
    count = 0

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def check(x: int) -> None:
        nonlocal count
        count += 1

    items: Any = [SimpleNamespace(nodeid=f"p[{k}]", obj=check, stash={}) for k in range(2)]
    seconds = {"p": times * PROPERTY_SECONDS}
    share = share_of_examples(items[0], seconds)
    other: Any = SimpleNamespace(nodeid="q", obj=cases)
    draw_examples([*items, other], seconds)
    assert [i.stash.get(SHARE, 1.0) for i in items] == [share] * 2 == [examples / 40] * 2
    check()
    assert count == examples


def test_the_seed_is_the_commit():
    assert commit_seed() == commit_seed()
    assert all(c in "0123456789abcdef" for c in commit_seed())
