"""The page that explains the language: every kernel on it is one, and prints as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify

PAGE = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
KERNELS = re.findall(r"```text\n(kernel .*?)\n```", PAGE, flags=re.DOTALL)


def test_the_page_has_kernels():
    assert len(KERNELS) >= 8


@pytest.mark.parametrize("source", KERNELS, ids=lambda s: s.split("(")[0])
def test_a_kernel_of_the_page(source):
    assert text(verify(parse(source))) == source
