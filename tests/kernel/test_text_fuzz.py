"""Damaged text is refused with a place, or is another kernel: nothing else ever comes out."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from tests.kernel.goldens import GOLDENS

from smelt.errors import KernelTextError, VerifyError
from smelt.kernel.ir import Kernel
from smelt.kernel.text import parse, text
from smelt.kernel.text_lex import lines
from smelt.kernel.verify import verify

WORDS = sorted({t.text for source in GOLDENS.values() for w in lines(source) for t in w.tokens})
EXTRA = [
    "99999999999999999999",
    "1e999",
    "0",
    "-1",
    "'",
    "((",
    "\n",
    "\n  ",
    "\t",
    "é",
    "\x00",
    "#",
]


def damaged(source: str, luck: random.Random) -> str:
    """The text with up to three words left out, doubled, swapped or replaced."""
    words = [t for line in lines(source) for t in line.tokens]
    for _ in range(luck.randint(1, 3)):
        word = luck.choice(words)
        end = word.offset + len(word.text)
        new = luck.choice(
            [
                "",
                word.text * 2,
                luck.choice(WORDS),
                luck.choice(EXTRA),
                f" {luck.choice(WORDS)} ",
                luck.choice("()[],=:<>+-*/%'"),
            ]
        )
        source = source[: word.offset] + new + source[end:]
    if luck.random() < 0.1:
        source = source[: luck.randrange(len(source))]
    return source


def parsed(source: str) -> Kernel | None:
    """The kernel, or None where a place in the text is to blame."""
    try:
        return parse(source)
    except KernelTextError as error:
        if error.line < 1 or error.column < 1:
            raise
        return None


@pytest.mark.parametrize("name", GOLDENS)
def test_damaged_text(name):
    luck = random.Random(name)
    for _ in range(150):
        source = damaged(GOLDENS[name], luck)
        kernel = parsed(source)
        if kernel is not None:
            assert parse(text(kernel)) == kernel, source
            with suppress(VerifyError):
                verify(kernel)


@pytest.mark.parametrize("open_", ["(", "-", "exp(", "max(x[n], ", "x[(", "~"])
def test_deep_nesting_is_refused(open_):
    source = f"kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = {open_ * 100_000}x[n]"
    with pytest.raises(KernelTextError):
        parse(source)


@pytest.mark.parametrize("head", ["y[n] =", "h ="])
@pytest.mark.parametrize("more", [" + x[n]", " if n < 3 else x[n]", " * (2 + x[n])", " & x[n]"])
def test_long_chains_are_refused_or_fine(more, head):
    for count in (30, 100, 400, 20_000):
        source = f"kernel k(x: i64[n]) -> y: i64[n]\n  {head} x[n]{more * count}"
        kernel = parsed(source)
        assert kernel is not None or count > 30
        if kernel is not None:
            assert parse(text(verify(kernel))) == kernel
