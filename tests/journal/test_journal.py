"""Facts: recorded, stored, reloaded by this version and others, and logged."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.errors import REASONS, ExprTextError, UnsupportedError
from smelt.journal import facts as journal
from smelt.journal.facts import VERSION, Decision, Fact, Journal, KernelLowered, PassRan
from smelt.python.origin import Origin, here

KINDS = sorted(journal._KINDS.values(), key=lambda kind: kind.__name__)
ORIGINS = st.builds(
    Origin, st.text(max_size=9), st.integers(0, 99), st.text(max_size=5), st.text(max_size=9)
)
PLAIN = {
    "str": st.text(max_size=12),
    "bool": st.booleans(),
    "int": st.integers(-(2**63), 2**63),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "float | None": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "Origin | None": st.none() | ORIGINS,
    "tuple[str, ...]": st.lists(st.text(max_size=5), max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
    "Mapping[str, Any]": st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=4)),
    "Verdict": st.sampled_from(["fused", "split"]),
}


def fact_of(kind: type[Fact]) -> st.SearchStrategy[Fact]:
    return st.builds(
        kind, **{column.name: PLAIN[column.type] for column in dataclasses.fields(kind)}
    )


FACTS = st.one_of([fact_of(kind) for kind in KINDS])


# --- recording ----------------------------------------------------------------------------------


def test_facts_are_frozen_and_typed():
    for kind in KINDS:
        assert kind.topic in journal.TOPICS
        assert {column.type for column in dataclasses.fields(kind)} <= set(PLAIN), kind
    fact = PassRan("cse", 2, 1, 0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.before = 3  # type: ignore[misc]


def test_order_and_selection():
    facts = [PassRan("a", 3, 2, 0.1), Decision("x", "y", "split", "cost"), PassRan("b", 2, 2, 0.2)]
    kept = Journal()
    for fact in facts:
        kept.record(fact)
    assert list(kept) == facts and len(kept) == 3
    assert [fact.name for fact in kept.of(PassRan)] == ["a", "b"]
    assert kept.of(Fact) == facts


def test_keep_false_only_notifies_listeners():
    heard: list[Fact] = []
    stop = journal.subscribe(heard.append)
    try:
        silent = Journal(keep=False)
        silent.record(PassRan("a", 1, 1, 0.0))
    finally:
        stop()
    silent.record(PassRan("b", 1, 1, 0.0))
    assert len(silent) == 0 and [fact.name for fact in heard] == ["a"]


def test_threads_lose_nothing():
    shared = Journal()

    def work(name: int) -> None:
        for i in range(500):
            shared.record(PassRan(str(name), i, i, 0.0))

    workers = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for name in range(8):
        assert [f.before for f in shared.of(PassRan) if f.name == str(name)] == list(range(500))


# --- the stored form ----------------------------------------------------------------------------


@given(st.lists(FACTS, max_size=6))
def test_json_round_trip(facts):
    kept = Journal(facts)
    text = kept.to_json()
    assert Journal.from_json(text) == kept
    assert Journal.from_json(text).to_json() == text
    assert json.loads(text) == kept.to_data()


def test_recorded_origin_survives():
    fact = Decision("a", "b", "fused", "sibling", origin=here(), details={"bytes": 4})
    again = Journal.from_json(Journal([fact]).to_json()).of(Decision)[0]
    assert again == fact
    assert again.origin is not None and again.origin.text.startswith("fact = Decision(")


def test_numpy_scalars_and_symbols_become_plain():
    class Size:
        def __str__(self) -> str:
            return "4*n"

    fact = Decision(
        "a",
        "b",
        "split",
        "cost",
        saves_bytes=np.int64(7),
        saves_ns=np.float32(0.5),
        details={"n": Size(), "x": np.float64(2.0), "nested": (1, np.int8(2))},
    )
    again = Journal.from_json(Journal([fact]).to_json()).of(Decision)[0]
    assert (again.saves_bytes, again.saves_ns) == (7, 0.5)
    assert again.details == {"n": "4*n", "x": 2.0, "nested": [1, 2]}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_still_json(value):
    text = Journal([Decision("a", "b", "split", "cost", fused_ns=value), PassRan("p", 1, 1, value)])
    stored = json.loads(text.to_json(), parse_constant=pytest.fail)
    assert stored["facts"][0]["fused_ns"] is None
    again = Journal.from_json(text.to_json())
    assert again.of(Decision)[0].fused_ns is None
    assert math.isnan(again.of(PassRan)[0].seconds)


def test_other_versions():
    data = Journal([PassRan("a", 1, 1, 0.0)]).to_data()
    data["facts"].append({"fact": "FromTheFuture", "x": 1})
    data["facts"].append("nonsense")
    data["facts"][0]["new_field"] = [1, 2]
    again = Journal.from_data(data)
    assert list(again) == [PassRan("a", 1, 1, 0.0)], "what is not known is left out"
    old = {"fact": "Decision", "a": "x", "b": "y", "verdict": "fused", "reason": "cost"}
    assert Journal.from_data({"version": 1, "facts": [old]}).of(Decision)[0].saves_bytes == 0
    with pytest.raises(UnsupportedError, match=f"journal version {VERSION + 1}"):
        Journal.from_data({**data, "version": VERSION + 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"version": true, "facts": []}',
        '{"version": "1", "facts": []}',
        '{"version": 1}',
        '{"version": 1, "facts": {}}',
        '{"version": 1, "facts": [{"fact": "PassRan"}]}',
        (
            '{"version": 1, "facts": [{"fact": "Traced", "function": "f", "operators": 1,'
            ' "seconds": 0, "origin": [1]}]}'
        ),
    ],
)
def test_malformed_text_is_refused(text):
    with pytest.raises(ExprTextError):
        Journal.from_json(text)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists))
def test_hostile_rows_do_not_escape(row):
    with contextlib.suppress(ExprTextError):
        Journal.from_data({"version": 1, "facts": [row, {"fact": row}]})


def test_journals_are_equal_by_their_facts():
    assert Journal([PassRan("a", 1, 1, 0.0)]) != Journal()
    assert Journal() != 3
    with pytest.raises(TypeError):
        hash(Journal())


def test_defaults_are_not_shared():
    one, other = KernelLowered("k", "text"), Decision("a", "b", "fused", "cost")
    assert one.operators == () and other.details == {}
    assert other.details is not Decision("a", "b", "fused", "cost").details


def test_reasons_of_decisions_are_rows():
    assert Decision("a", "b", "split", "cost").reason in REASONS
