"""Mutated kernel and graph texts raise errors of ours or none, whatever they say."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from pathlib import Path

import click
import numpy as np
import pytest
from tests.kernel.goldens import GOLDENS

from smelt.cli.judges import read
from smelt.errors import SmeltError

GRAPHS = [
    text
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*.case"))
    for text in re.findall(r"^graph .*?^}", path.read_text(), re.DOTALL | re.MULTILINE)
]
WORD = re.compile(r"\d+\.?\d*|[^\W\d][\w.]*|\s+|.", re.DOTALL)
NUMBERS = ["9223372036854775807", "9" * 25, "1e999", "0", "-1", "1" * 500, "inf", "nan", "-0.0"]


def mutated(source: str, luck: random.Random) -> str:
    words = WORD.findall(source)
    for _ in range(luck.choice([1, 1, 2, 3])):
        k, j = luck.randrange(len(words)), luck.randrange(len(words))
        kind = luck.randrange(4)
        if kind == 0 and len(words) > 1:
            del words[k]
        elif kind == 1:
            words[k:k] = words[k : k + 4]
        elif kind == 2:
            words[k], words[j] = words[j], words[k]
        else:
            numbers = [i for i, w in enumerate(words) if w[0].isdigit()] or [k]
            words[luck.choice(numbers)] = luck.choice(NUMBERS)
    return "".join(words)


@pytest.mark.parametrize("sources", [list(GOLDENS.values()), GRAPHS], ids=["kernels", "graphs"])
def test_only_our_errors_come_out(sources):
    luck = random.Random(7)
    for _ in range(400):
        source = mutated(luck.choice(sources), luck)
        with suppress(SmeltError, click.ClickException), np.errstate(all="ignore"):
            program = read(source)
            program.verify({name: luck.choice([0, 1, 3, 8]) for name in program.sizes})


HOSTILE = [
    "f32[" + "(" * 3000 + "n" + ")" * 3000 + "]",
    "f32[n" + "+n" * 20_000 + "]",
    "f32[n" + "".join(f"%{900 - k}" for k in range(400)) + "]",
    "f32[" + "1" * 10_000 + "]",
    "f32[" + "-" * 3000 + "n]",
]


@pytest.mark.parametrize("kind", HOSTILE, ids=range(len(HOSTILE)))
def test_endless_types_are_refused(kind):
    with pytest.raises(SmeltError):
        read(f"graph f(x: {kind}) {{\n v0 = exp(x)\n return v0\n}}")


OUTSIDE = [
    "slice(x) {starts=(1,), sizes=(n,), steps=(1,)}",
    'contract(x, x) {spec="i+j; j -> i", extents=(("i", n),)}',
    "expand(x) {shape=(m, n)}",
]


@pytest.mark.parametrize("operator", OUTSIDE)
def test_graphs_that_read_outside_are_refused(operator):
    program = read(f"graph f(x: f32[n]) {{\n v0 = {operator}\n return v0\n}}")
    with pytest.raises(SmeltError):
        program.verify({"n": 5, "m": 3})
