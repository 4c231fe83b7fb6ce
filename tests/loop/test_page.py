"""The page that explains loops: every function on it parses, verifies and prints as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smelt.loop.text import parse, text
from smelt.loop.verify import verify

PAGE = (Path(__file__).parents[2] / "docs" / "loop.md").read_text()
MODULES = re.findall(r"```text\n((?:func|tile) .*?)\n```", PAGE, flags=re.DOTALL)


def test_the_page_has_functions():
    assert len(MODULES) >= 4


@pytest.mark.parametrize("source", MODULES, ids=lambda s: s.split("(")[0])
def test_a_function_of_the_page(source):
    assert text(verify(parse(source))) == source
