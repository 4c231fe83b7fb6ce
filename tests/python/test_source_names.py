"""Names that source text gives to expressions, and origins that look them up."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from smelt.python.origin import UNKNOWN, Origin, here
from smelt.python.source_names import names_of_source


def named(source: str) -> set[str]:
    return set(names_of_source(source).values.values())


@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("x @ w", ("matmul", "@", "x @ w")),
        ("sm.nn.softmax(x)", ("softmax", "sm.nn.softmax", "sm.nn.softmax(x)")),
        ("x.sum(axis=0)", ("sum", "x.sum", "x.sum(axis=0)")),
        ("f(x)", ("f", "f(x)")),
        ("-x", ("neg", "-", "-x")),
        ("x <= y", ("le", "<=", "x <= y")),
        ("x[0]", ("getitem", "[]", "x[0]")),
        ("x.T", ("T", "x.T")),
        ("u += v", ("add", "+", "u += v")),
        ("f()(x)", ("f()(x)",)),
    ],
)
def test_what_an_expression_calls(source: str, called: tuple[str, ...]) -> None:
    calls = names_of_source(source).calls
    assert calls.get((1, 0, len(source)), (source,)) == called


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = b = x + y", {"a"}),
        ("self.h = x + y", {"h"}),
        ("h: Array = x + y", {"h"}),
        ("q, k = x @ w, x @ v", {"q", "k"}),
        ("x[mask] = y", {"x"}),
        ("x[mask] += y", {"x"}),
        ("if (n := len(x)) > 3: pass", {"n"}),
        ("f(scores=x + y)", {"scores"}),
        ("y = {'logits': x + 1, 'no name': x, **z}", {"y", "logits"}),
        ("def softmax(x):\n    return e / s", {"softmax"}),
        ("def f(x):\n    return x, y", set()),
        ("x + y", set()),
        ("this is no Python", set()),
    ],
)
def test_names_of_statements(source: str, names: set[str]) -> None:
    assert named(source) == names


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("n, d = x.shape", {0: "n", 1: "d"}),
        ("*batch, n, d = x.shape", {-2: "n", -1: "d"}),
        ("n, *_ = x.shape", {0: "n"}),
        ("_, d = x.shape", {1: "d"}),
        ("n = x.shape[0]", {0: "n"}),
        ("d = x.shape[-1]", {-1: "d"}),
        ("d = x.shape[k]", None),
    ],
)
def test_names_of_items(source: str, items: dict[int, str] | None) -> None:
    assert list(names_of_source(source).items.values()) == ([items] if items else [])


def test_an_origin_knows_what_it_is_assigned_to() -> None:
    class Recorder:
        def __matmul__(self, other: object) -> Origin:
            return here(2)

    x = Recorder()
    both = [f"{'ä'}", wide := x @ x]  # columns count characters, not bytes
    assert len(both) == 2
    of_line = x @ x
    assert (wide.assigned, of_line.assigned) == ("wide", "of_line")
    assert (x @ x).assigned == "" and (UNKNOWN.assigned, UNKNOWN.assigned_items) == ("", {})


def test_a_changed_file_gives_no_wrong_name(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("scores = q @ k\n")
    origin = Origin(str(file), 1, "f", "scores = q @ k", 9, 14)
    assert origin.assigned == "scores"
    file.write_text("\n\nweights = exp(q)\n")
    linecache.checkcache(str(file))
    assert origin.assigned == ""
