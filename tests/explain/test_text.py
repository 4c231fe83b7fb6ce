"""Text reports: a golden of each level, line widths, and the same text when reloaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.explain.handwritten_report import DATA, KERNELS
from tests.explain.programs import SIZES, TEXTS, arrays, compiled

import smelt as sm
from smelt import knobs
from smelt.errors import ArgumentError
from smelt.explain.api import report as report_of
from smelt.explain.data import ConstantData, OrderData, ReportData, to_data
from smelt.explain.text import page, refusals
from smelt.explain.units import show_bytes, show_count, show_rate, show_time

GOLDEN = Path(__file__).parents[1] / "golden" / "explain"


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_page(level):
    assert page(DATA, level) + "\n" == (GOLDEN / f"embed{level}.txt").read_text()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6"])
def test_a_report_that_was_stored_reads_the_same(version):
    """A reader of 1.x must go on taking every one of them."""
    stored = (GOLDEN / f"embed-{version}.json").read_text()
    if version == DATA.version:
        assert json.loads(stored) == json.loads(json.dumps(to_data(DATA)))
    data = msgspec.json.decode(stored, type=ReportData)
    assert replace(data, version=DATA.version) == DATA and page(data) == page(DATA)


def test_constants_without_room_are_reported():
    one = ConstantData(value="w", what="packed", nbytes=3_000_000, saves_ns=2e5, kept=False, room=9)
    few = replace(DATA, constants=(one, one, replace(one, kept=True)))
    line = "once     6.00 MB of constants, kept, would save 400 us a call (constants_extra)"
    assert line in page(few)
    few = replace(few, memory=replace(DATA.memory, packed=3_000_000))
    line = "once     3.00 MB packed, kept for the next calls; 6.00 MB more would save 400 us a call"
    assert line in page(few)


def test_an_input_layout_other_than_planned_is_reported():
    one = OrderData(windows=2, last=True, first_ns=3e6, last_ns=2.5e6)
    line = "order    channels last between kernels: 2.50 ms instead of 3.00 ms (predicted)"
    assert line in page(replace(DATA, orders=(one,)))
    assert "order " not in page(replace(DATA, orders=(replace(one, last=False),)))


def test_a_python_loop_that_was_unrolled_is_reported():
    def step(u, w):
        return sm.tanh(w * u + 1)

    def pieces(u, w, steps):
        for k in range(steps):
            u = u + 0.1 * sm.roll(u, 1)
            u = step(u, w) if k else sm.exp(u)
        return u * 2

    line = pieces.__code__.co_firstlineno + 2
    u, w = np.ones(9), np.ones(9)
    report = sm.explain(sm.jit(lambda u, w: pieces(u, w, 60)), u, w)
    for level in (1, 2, 3, 4):
        text = report.text(level)
        (shown,) = [x for x in text.splitlines() if x.startswith("unrolled ")]
        assert shown.startswith("unrolled 60 steps of ") and f"at test_text.py:{line};" in shown
        assert shown.endswith("; sm.scan or sm.fori_loop compiles one")
    for few in (
        lambda u, w: pieces(u, w, 10),
        lambda u, w: sm.fori_loop(0, 60, lambda _, c: c + w, u),
    ):
        assert "unrolled" not in str(sm.explain(sm.jit(few), u, w))


def test_lines_fit():
    for level in (1, 2, 3, 4):
        assert max(map(len, page(DATA, level).splitlines())) <= 102


@pytest.mark.parametrize("name", TEXTS)
def test_small_programs_fit_a_screen(name):
    with knobs.config(cache=False):
        program = compiled(name)
        report = report_of(program, SIZES, arrays(program.graph.inputs))
    lines = str(report).splitlines()
    assert len(lines) <= 25, len(lines)
    assert max(map(len, lines)) <= 110
    assert "\x1b" not in str(report)
    assert repr(report).startswith(f"<report of {name}: ")


def test_slowest_kernel_is_the_one_that_is_shown():
    assert "\nk1, 53 % of the time: reads" in page(DATA)
    assert "kernel k0(" not in page(DATA) and "kernel k0(" in page(DATA, 3)


def test_refusals_leave_out_pairs_that_met():
    assert [d.id for d in refusals(DATA)] == [2]
    met = replace(DATA.decisions[0], id=3, verdict="split")
    assert [d.id for d in refusals(replace(DATA, decisions=(*DATA.decisions, met)))] == [2]


def test_predictions_are_marked():
    kernels = tuple(replace(k, measured=None) for k in KERNELS)
    text = page(replace(DATA, kernels=kernels), 1)
    assert "~396 us" in text


def test_upper_bounds_are_marked():
    text = page(replace(DATA, total=replace(DATA.total, exact=False)), 1)
    assert "101 MB through memory became at most 50.4 MB (2.0x less)\n" in text


def test_the_first_line_is_a_sentence():
    total = DATA.total
    few = replace(total, operators=1, kernels=1, bytes=6_000_000, bytes_unfused=6_000_000)
    texts = {
        "5 operators became 3 kernels; 101 MB through memory became 50.4 MB (2.0x less)": total,
        "1 operator runs as 1 kernel; 6.00 MB through memory": few,
        "3 operators run as 2 kernels and 1 library call; 6.00 MB through memory": replace(
            few, operators=3, kernels=2, calls=1
        ),
    }
    for text, t in texts.items():
        assert page(replace(DATA, total=t), 1).startswith(f"embed: {text}\n")


def test_refusals_say_what_is_at_stake_and_how_to_ask():
    text = page(DATA)
    assert 'report.why("exp#0", "gather#1")' in text
    assert text.index("kept apart") < text.index("kernel k1(")
    line = next(x for x in text.splitlines() if "one kernel would" in x)
    assert line.startswith("  exp#0 and gather#1 [model.py:41]: one kernel would move 25.2 MB less")


def test_unknown_level():
    with knobs.config(cache=False):
        report = report_of(compiled("apart"), SIZES)
    with pytest.raises(ArgumentError, match="1 to 4"):
        report.text(5)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (show_bytes(0), "0 B"),
        (show_bytes(999), "999 B"),
        (show_bytes(1000), "1.00 kB"),
        (show_bytes(999_600), "1.00 MB"),
        (show_bytes(2.5e13), "25.0 TB"),
        (show_time(0), "0 ns"),
        (show_time(0.4), "0.40 ns"),
        (show_time(999.6), "1.00 us"),
        (show_time(6.1e10), "61.0 s"),
        (show_rate(1.5e12), "1500 GB/s"),
        (show_count(1, "kernel"), "1 kernel"),
    ],
)
def test_units(shown, text):
    assert shown == text


def test_a_donated_argument_that_a_result_replaces_is_named():
    def append(cache, k, pos):
        return cache.at[1, :, pos].set(k)

    specs = sm.spec("f32[4,8,64,8]"), sm.spec("f32[8,8]"), sm.spec("i64[]")
    donating = sm.explain(sm.jit(append, donate="cache"), *specs)
    assert "; a result takes the place of cache\n" in str(donating)
    assert "takes the place" not in str(sm.explain(append, *specs))
