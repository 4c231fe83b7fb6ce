r"""Run the Python blocks of a page and capture what they print.

>>> blocks("```python\nx = 1\n```\nand\n```python\nprint(x)\n```\n")
['x = 1\n', 'print(x)\n']
>>> run_last_block("```python\nx = 1\n```\nand\n```python\nprint(x)\n```\n", "page.md")
'1\n'
"""

from __future__ import annotations

import linecache
import re
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any

import smelt as sm

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAME = "model.py"
"""The file name of a page's program in reports."""


def blocks(page: str) -> list[str]:
    """Return the Python blocks of a page, in order."""
    return _BLOCK.findall(page)


def run(page: str, where: str) -> list[str]:
    """Run the blocks of a page in one namespace; return what each of them prints.

    A block's lines are numbered as in the concatenation of all blocks. Blocks that need PyTorch
    print nothing where it is not installed. Raises what a block raises, with a note that names the
    page and shows the block.
    """
    program = "".join(blocks(page))
    linecache.cache[NAME] = len(program), None, program.splitlines(keepends=True), NAME
    names: dict[str, Any] = {"__name__": "page"}
    outputs: list[str] = []
    above = 0
    for block in blocks(page):
        shown = StringIO()
        left_out = "torch" in block and find_spec("torch") is None
        try:
            with redirect_stdout(shown):
                code = compile("" if left_out else "\n" * above + block, NAME, "exec")
                exec(code, names)  # noqa: S102 - our own pages
        except Exception as error:
            error.add_note(f"in {where}:\n{block}")
            raise
        outputs.append(shown.getvalue())
        above += block.count("\n")
    return outputs


def run_last_block(page: str, where: str) -> str:
    """Return what the last block prints, on a generic machine with an empty cache."""
    with sm.config(target="avx512", cache=False):
        return run(page, where)[-1]


def output_before(page: str, part: str, where: str) -> str:
    """Return what the block before a generated part prints, as a code block."""
    before, marker, _ = page.partition(f"<!-- generated: {part} -->")
    assert marker, f"{where} has no part {part}"
    return f"```text\n{run_last_block(before, where).strip()}\n```\n"
