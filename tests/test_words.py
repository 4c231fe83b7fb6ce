"""Names and docstrings use the field's words: `tools/words.py` finds no violation."""

from __future__ import annotations

import pytest
from tools import words

MOST_EXCEPTIONS = 30


def found_in(source: str) -> list[str]:
    return [v.word for v in words.violations("a.py", source)]


@pytest.mark.parametrize("folder", sorted({*words.FOLDERS, "tests"}))
def test_the_tree_has_no_violation(folder):
    every = [
        violation
        for path in words.modules([str(words.ROOT / folder)])
        if (name := path.relative_to(words.ROOT).as_posix()) != "tools/words.py"
        for violation in words.violations(name, path.read_text())
    ]
    assert not every, "\n" + "\n".join(map(str, every))


def test_exceptions_are_few_and_used():
    assert sum(map(len, words.ALLOWED.values())) <= MOST_EXCEPTIONS
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
