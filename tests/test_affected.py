"""Tests that a change can affect: the nearest by imports, and no more than the time allows."""

from __future__ import annotations

import pytest
from tests.affected import BUDGET_SECONDS, FAR, choose, distances, module_seconds

SOURCES = {
    "src/smelt/__init__.py": "from smelt.top import face",
    "src/smelt/top.py": "from smelt.passes import one, two",
    "src/smelt/late.py": "def f():\n    return fork_safe_import('smelt.passes.one')",
    "src/smelt/passes/__init__.py": "",
    "src/smelt/passes/one.py": "'''>>> 1 + 1\n2\n'''",
    "src/smelt/passes/two.py": "",
    "tests/passes/test_one.py": "import smelt as sm",
    "tests/passes/test_two.py": "import smelt.passes.two",
    "tests/passes/test_users.py": "from smelt.passes.one import rewrite",
    "tests/test_face.py": "import smelt as sm",
    "tests/test_pages.py": "PAGE = 'table.json'",
    "tests/docs/test_links.py": "",
}


def test_distances_count_imports():
    near = distances(["src/smelt/passes/one.py"], SOURCES)
    assert near["src/smelt/passes/one.py"] == near["tests/passes/test_one.py"] == 0
    assert near["tests/passes/test_users.py"] == near["src/smelt/late.py"] == 1
    assert near["tests/test_face.py"] == 3
    assert near["tests/passes/test_two.py"] == near["tests/docs/test_links.py"] == FAR


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("README.md", ["tests/docs/test_links.py"]),
        ("tests/table.json", ["tests/test_face.py", "tests/test_pages.py"]),
        ("tests/passes/conftest.py", [t for t in SOURCES if t.startswith("tests/passes/")]),
    ],
)
def test_other_files_reach_modules_that_name_them_or_stand_beside(changed, tests):
    assert sorted(p for p, d in distances([changed], SOURCES).items() if d < FAR) == sorted(tests)


def test_the_nearest_run_and_then_the_cheapest():
    seconds = {"tests/passes/test_users.py": BUDGET_SECONDS, "tests/test_face.py": 5.0}
    choice = choose(["src/smelt/passes/one.py"], SOURCES, seconds)
    nearest = ("src/smelt/passes/one.py", "tests/passes/test_one.py", "tests/test_face.py")
    assert choice.paths == nearest
    assert (choice.seconds, choice.affected) == (7.0, 4)


def test_the_tests_of_a_day_fit_two_processors_for_twenty_minutes():
    assert 60 < sum(module_seconds().values()) < 40 * 60
