"""`report.why` finds decisions by every kind of name and gives their numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain import handwritten_report
from tests.explain.handwritten_report import DATA, NODES
from tests.explain.programs import SIZES, compiled

from smelt import knobs
from smelt.errors import UnknownNameError
from smelt.explain.api import report as report_of
from smelt.explain.names import find
from smelt.explain.why import why

GOLDEN = Path(__file__).parents[1] / "golden" / "explain"


def ask(a: str, b: str, data=DATA):
    return why(data, find(NODES, a), find(NODES, b))


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("exp", (2,)),
        ("exp#0", (2,)),
        ("v0", (2,)),
        ("sum", (4,)),
        ("reduce.sum", (4,)),
        ("model.py:42", (4, 5)),
        ("ann/model.py:43", (6,)),
        ("x", (0,)),
        ("log", (8,)),
    ],
)
def test_names(name, numbers):
    assert find(NODES, name) == numbers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("expo", "did you mean exp"),
        ("other.py:42", "operator or line"),
        ("model.py:4", "model.py"),
        ("zzzzzzzzz", "there are exp#0, gather#1"),
    ],
)
def test_unknown_names_are_refused_with_the_known(name, message):
    with pytest.raises(UnknownNameError, match="no operator or line is called") as caught:
        find(NODES, name)
    assert message in str(caught.value)


# --- answers ------------------------------------------------------------------------------------


def test_refused_with_numbers_and_override():
    answer = ask("exp", "gather")
    assert (answer.together, answer.kernels, answer.reasons) == (False, (), ("F023",))
    assert str(answer) + "\n" == (GOLDEN / "why.txt").read_text()


def test_fused_with_numbers():
    answer = ask("gather", "model.py:42")
    assert (answer.together, answer.kernels, answer.reasons) == (True, (1,), ("F101",))
    message = str(answer)
    assert message.startswith(
        "gather#1 (model.py:41) and reduce.sum#2 (model.py:42) are in one kernel: k1"
    )
    assert "saves        25.2 MB" in message and "fused is 376 us faster" in message
    assert (
        'never_fuse=[("gather#1", "reduce.sum#2")]' in message
        and "The names mean 2 pairs" in message
    )


def test_a_chain_of_decisions_to_fuse():
    answer = ask("gather", "sub")
    assert answer.together and answer.decisions == (0, 1)
    assert "one kernel   450 us: touch 400 us, arithmetic 120 us" in str(answer)
    assert "launch" not in str(answer).split("one kernel   ")[1]  # below half a percent


def test_a_refusal_further_along_the_way():
    """exp and sub are no neighbours: what parts them is the decision about exp and gather."""
    answer = ask("exp", "sub")
    assert not answer.together and answer.decisions == (2,)


def test_a_view_answers_through_what_it_looks_at():
    answer = ask("gather", "reshape")
    assert answer.together and answer.decisions == (0,)


@pytest.mark.parametrize("both", [("exp", "log"), ("log", "exp")])
def test_nothing_in_common(both):
    answer = ask(*both, handwritten_report.without(2))
    assert answer.reasons == ("F024",) and "no-shared-data" in str(answer)


def test_an_input_is_in_no_kernel():
    answer = ask("x", "exp")
    assert not answer.together and answer.reasons == ()
    assert "memory (an input)" in str(answer) and "kernels read it from there" in str(answer)


def test_one_operator_twice():
    answer = ask("exp", "exp")
    assert answer.together and str(answer) == "exp#0 (model.py:40) is one operator, in k0."


def test_calls_are_barriers_even_without_a_decision():
    nodes = tuple(replace(n, kind="call") if n.op == "gather" else n for n in NODES)
    data = replace(handwritten_report.without(2), nodes=nodes)
    answer = ask("exp", "gather", data)
    assert answer.reasons == ("F004",) and "gather#1 runs outside the compiler" in str(answer)


def test_together_without_a_decision():
    data = handwritten_report.without(0, 1, 2)
    assert ask("gather", "reshape", data).reasons == ("F103",)
    assert "Nothing had to be decided" in str(ask("gather", "sub", data))


def test_the_last_verdict_counts():
    first = replace(DATA.decisions[2], id=3, code="F010", reason="cost")
    data = replace(DATA, decisions=(*DATA.decisions, first))
    assert ask("exp", "gather", data).reasons == ("F010",)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(range(len(NODES))),
    st.sampled_from(range(len(NODES))),
    st.sets(st.sampled_from(range(3))),
)
def test_any_question_has_an_answer(a, b, gone):
    answer = why(handwritten_report.without(*gone), (a,), (b,))
    assert answer.together == bool(set(NODES[a].kernels) & set(NODES[b].kernels))
    assert str(answer).strip() and "None" not in str(answer)


# --- on real programs ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reports():
    with knobs.config(cache=False):
        names = ("softmax", "layer", "twice", "apart", "library")
        return {name: report_of(compiled(name), SIZES) for name in names}


def test_every_pair_of_every_program_is_explained(reports):
    for report in reports.values():
        nodes = report.data.nodes
        for a in nodes:
            for b in nodes:
                answer = report.why(a.name, b.name)
                shared = set(a.kernels) & set(b.kernels)
                assert answer.together == bool(shared)
                if a.kind == b.kind == "operator" and a.id != b.id:
                    assert answer.reasons, (a.label, b.label, str(answer))


def test_nodes_themselves_are_taken(reports):
    report = reports["library"]
    graph = report.compiled.plan.graph
    by_op = {n.op.name: n for n in graph.nodes()}
    answer = report.why(by_op["exp"], by_op["extern.sort"])
    assert answer.reasons in (("F004",), ("F005",))
    with pytest.raises(UnknownNameError):
        report.why(compiled("library").graph.outputs[0], "add")


def test_a_line_of_the_program(reports):
    assert reports["softmax"].why("model.py:12", "model.py:13").together
    assert not reports["library"].why("model.py:10", "model.py:11").together


def test_the_setting_that_is_offered_works(reports):
    """What `try:` says, pasted, has the opposite effect."""
    report = reports["softmax"]
    answer = report.why("sub", "exp")
    assert answer.together
    pair = str(answer).split("never_fuse=[")[1].split("]")[0]
    a, b = (part.strip(' ()"') for part in pair.split(","))
    with knobs.config(cache=False, never_fuse=[(a, b)]):
        apart = report_of(compiled("softmax"), SIZES)
    assert not apart.why("sub", "exp").together
