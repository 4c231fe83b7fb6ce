"""Tests put off until night: none on the widest vectors, no whole type on others."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from tests.isa_sampling import SETS, put_off


def cases(test: str, *params: Any) -> list[Any]:
    """What pytest collects of a test with each of these for its parameters."""
    return [
        SimpleNamespace(
            nodeid=f"{test}[{'-'.join(map(str, inputs))}]",
            callspec=SimpleNamespace(params=dict(enumerate(inputs))),
        )
        for inputs in product(*params)
    ]


def isas(items: Any) -> set[str]:
    return {p for i in items for p in i.callspec.params.values() if p in SETS}


def test_a_fourth_of_the_narrower_ones_is_left() -> None:
    items = cases("t", SETS, range(300))
    for widest, narrower in (("avx512", {"avx2", "portable"}), ("avx2", {"portable"})):
        late = put_off(items, widest)
        assert isas(late) == narrower
        assert 0.68 < len(late) / 300 / len(narrower) < 0.82
        for isa in narrower:
            assert items[SETS.index(isa) * 300] not in late  # the first


@pytest.mark.parametrize("last", [False, True])
def test_every_type_is_left_and_not_the_same_cases_of_both(last: bool) -> None:
    order = (range(24), ("f32", "f64", "bf16"))
    items = cases("t", *order, SETS) if last else cases("t", SETS, *order)
    late = put_off(items, "avx512")
    left = [i for i in items if i not in late]
    drawn = [{p for p in i.callspec.params.values() if p != "avx512"} for i in left]
    for isa, dtype in product(SETS[1:], order[1]):
        assert sum({isa, dtype} <= inputs for inputs in drawn) > 2
    inputs = [{*i.callspec.params.values()} for i in left]
    both = [one - {*SETS} for one in inputs if not one.isdisjoint(SETS[1:])]
    assert sum(both.count(one) > 1 for one in both) <= 2  # the first of both


def test_what_has_no_case_on_the_widest_set_runs_whole() -> None:
    items = cases("t", SETS[1:], range(9))
    assert not put_off(items, "avx512")
    assert not put_off([SimpleNamespace(nodeid="u")], "avx512")  # type: ignore[list-item]
    assert not put_off(cases("t", SETS, range(9)), "neon")
    assert put_off([*items, *cases("t", ["avx512"], range(9))], "avx512")
