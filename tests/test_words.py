"""Violations that are planted are found; `make words` looks for others in the whole tree."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from tools import words

MAX_EXCEPTIONS = 30


def found_in(source: str) -> list[str]:
    return [v.word for v in words.violations("a.py", source)]


def sources() -> dict[str, str]:
    """Return the text of every module of the package, benchmarks and demo by its path."""
    paths = words.modules([str(words.ROOT / folder) for folder in ("src", "bench", "demo")])
    return {p.relative_to(words.ROOT).as_posix(): p.read_text() for p in paths}


def test_words_of_the_glossary_occur_in_the_code():
    lines = (words.ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [a for a, b in pairwise(lines) if b.startswith(": ")]
    assert len(terms) > 20 and len(set(terms)) == len(terms)
    code = "\n".join(sources().values()).lower()
    for term in (word.strip() for line in terms for word in line.split(",")):
        assert re.search(rf"\b{re.escape(term)}", code), term


def test_exceptions_are_few_and_used():
    assert sum(map(len, words.ALLOWED.values())) <= MAX_EXCEPTIONS
    for path, allowed in words.ALLOWED.items():
        assert allowed <= set(every_word(path)), path


def every_word(path: str) -> list[str]:
    """Return the words of a file that would be violations without `ALLOWED`."""
    return [v.word for v in words.violations(f"./{path}", (words.ROOT / path).read_text())]


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def turned_side(x): ...", "turned_side"),
        ("class RowsAbreast: ...", "RowsAbreast"),
        ("def f(x):\n    found = x", "found"),
        ("def f(told): ...", "told"),
        ("self.asked_rows = 1", "asked_rows"),
        ("x = 1  # lies along the rows", "lies along"),
        ("def f():\n    'Emit a running fold.'", "running fold"),
        ("def f():\n    'The same for rows.'", "The same "),
        ("def f():\n    'Raise if x is no vector.'", "is no"),
        ("x = 1  # that which is left", "that which"),
        ('MIN_ROWS = 8\n"""Rows from which a merge pays."""', "Rows from which"),
        ('MAX_ROWS = 8\n"""Most rows of a task."""', "Most "),
        ("def f():\n    '" + "word " * 18 + "'", "18 words"),
    ],
)
def test_a_planted_violation_is_found(source, word):
    assert found_in(source) == [word]


@pytest.mark.parametrize(
    "source",
    [
        "def returned(x): ...",
        "def f():\n    'Return `turned` rows.'",
        "def f():\n    'There is no lock.'",
        'MIN_ROWS = 8\n"""Minimum rows for a merge."""',
        "def f():\n    '" + "word " * 15 + "'",
        "x.update(found=1)",
    ],
)
def test_other_words_are_free(source):
    assert found_in(source) == []


def test_the_command_names_file_line_word_and_replacement(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("x = 1\nturned = 2\n")
    assert words.main([str(tmp_path / "a.py")]) == 1
    assert capsys.readouterr().out == "a.py:2: 'turned': say transposed\n"
