"""`SMELT_LOG`: silent by default, topics by name, lines where a program's handlers want them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smelt import knobs
from smelt.errors import KnobError
from smelt.journal import facts as journal
from smelt.journal import logs
from smelt.journal.facts import CacheMiss, Decision, Journal, PassRan
from smelt.journal.logs import format_fact, selected_topics
from smelt.python.origin import Origin


@pytest.fixture(autouse=True)
def installed():
    logs.install()


# --- the grammar --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "topics"),
    [
        ("", ""),
        ("fusion", "fusion"),
        (" Fusion , cache,", "fusion cache"),
        ("+fusion", "fusion"),
        ("fusion,cache,-fusion", "cache"),
        ("-fusion,fusion", "fusion"),
        ("help", ""),
        ("help,cache", "cache"),
        ("all", " ".join(logs.TOPIC_HELP)),
        ("all,-all", ""),
        ("-tune", "trace passes fusion memory lower codegen cache"),
    ],
)
def test_grammar(setting, topics):
    assert selected_topics(setting) == set(topics.split())


def test_unknown_topic():
    with pytest.raises(KnobError, match="did you mean fusion"):
        selected_topics("fussion")
    with knobs.config(log="xyz"), pytest.raises(KnobError, match="SMELT_LOG=help"):
        Journal().record(PassRan("a", 1, 1, 0.0))


def test_every_topic_is_described():
    assert set(logs.TOPIC_HELP) == set(journal.TOPICS)


# --- where lines go -----------------------------------------------------------------------------


def test_silent_by_default(caplog, capfd):
    Journal().record(PassRan("cse", 7, 5, 1e-4))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_setting_sends_to_the_handlers(caplog):
    origin = Origin("user.py", 12, "f", "y = x + b")
    with knobs.config(log="fusion"):
        kept = Journal()
        kept.record(PassRan("cse", 7, 5, 1e-4))
        kept.record(Decision("exp", "sum", "split", "fuse-off", origin=origin))
    (record,) = caplog.records
    assert record.name == "smelt.fusion" and record.levelno == logging.INFO
    assert (record.pathname, record.lineno) == ("user.py", 12)
    expected = "not fused: exp -> sum: F022 fuse-off, fusion is switched off  user.py:12"
    assert record.getMessage() == expected


def test_levels_of_loggers_work_without_the_setting(caplog):
    with caplog.at_level(logging.INFO, "smelt.cache"):
        Journal().record(CacheMiss("0123456789abcdef", "opt_level 3 -> 2"))
        Journal().record(PassRan("cse", 7, 5, 1e-4))
    assert [record.getMessage() for record in caplog.records] == [
        "miss 0123456789ab: opt_level 3 -> 2"
    ]


def run(setting: str, more: str = "") -> subprocess.CompletedProcess[str]:
    program = (
        "from smelt.journal import logs\n"
        "from smelt.journal.facts import *\n"
        f"{more}\n"
        "logs.install(); logs.install()\n"
        "Journal().record(PassRan('50% cse', 7, 5, 1e-4))\n"
        "Journal().record(CacheMiss('0123456789abcdef', 'first time'))\n"
    )
    source = str(Path(logs.__file__).parents[2])
    environment = {"SMELT_LOG": setting, "PATH": "/usr/bin:/bin", "PYTHONPATH": source}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_stderr_if_nothing_is_configured():
    assert run("passes").stderr == "smelt.passes: 50% cse: 7 -> 5 nodes, 100 us\n"
    assert run("").stderr == ""


def test_programs_own_handlers_are_used_instead():
    done = run("passes", "import logging; logging.basicConfig(format='HERE %(message)s')")
    assert done.stderr == "HERE 50% cse: 7 -> 5 nodes, 100 us\n"


def test_help_lists_the_topics():
    lines = run("help").stderr.splitlines()
    assert lines == [f"smelt.{topic}: {about}" for topic, about in logs.TOPIC_HELP.items()]


# --- lines --------------------------------------------------------------------------------------

SAMPLES = {
    journal.Traced("f", 12, 2.5e-5): "f: 12 operators, 25 us",
    journal.Retraced("f", "n == 4", "n = 5"): "f again: needs n == 4, got n = 5",
    journal.LoopFound(3, 40): "loop of 3 operators a step: 40 steps at once, compiled once",
    PassRan("cse", 7, 5, 3.0): "cse: 7 -> 5 nodes, 3 s",
    journal.Planned("g", 9, 2, 2**20, 2**22, 1e-3): (
        "g: 9 operators in 2 kernels, saves 3 MiB, 1 ms"
    ),
    journal.BufferPlanned("v3", 4096, 64, 1, 4, reuses="v1"): (
        "v3: 4 KiB at arena+64, steps 1 to 4, in place of v1"
    ),
    journal.ArgumentCopied("x", "cuda:0", 2048, "it has strides (1, 6)"): (
        "x: copied on cuda:0, 2 KiB a call: it has strides (1, 6)"
    ),
    journal.KernelLowered("k0", "", ("exp", "sum"), ("exp",), 1e-3): (
        "k0: 2 operators, 1 recomputed, 1 ms"
    ),
    journal.KernelEmitted("k0", "", 240, 0.02, code_bytes=2048): (
        "k0: 240 instructions, 2 KiB, 20 ms"
    ),
    journal.CacheHit("0123456789abcdef", "memory", 1e-6): "hit 0123456789ab in memory, 1 us",
    journal.CacheStored("0123456789abcdef", 10): "stored 0123456789ab, 10 B, 0 ns",
    journal.OrderChosen(17, True, 3.9e6, 3.6e6): (
        "channels last behind 17 windows: 3.6 ms instead of 3.9 ms"
    ),
    journal.ConstantWeighed("w", "packed", 4096, 2e3, False, 64): (
        "w: 4 KiB packed, not kept, saves 2 us a call, 64 B of room"
    ),
    journal.LibraryProduct("v3", "NumPy", (1, 64, 32, 16), True, "faster", 2e3, 1e3): (
        "v3, product 1x64x32x16, by NumPy: measured to be faster here for products of this shape "
        "[2 us ours, 1 us by NumPy]"
    ),
    journal.LibraryProduct("v3", "NumPy", (1, 64, 32, 16), False, "fused"): (
        "v3, product 1x64x32x16, by a kernel: its kernel computes other operators too, which a "
        "call would separate"
    ),
    journal.Measured("dram read", 44.5, "GB/s", 40.0): "dram read: 44.5 GB/s (predicted 40)",
}


@pytest.mark.parametrize(("fact", "expected"), SAMPLES.items(), ids=lambda x: type(x).__name__)
def test_line(fact, expected):
    assert format_fact(fact) == expected


def test_every_kind_has_a_line():
    written = {type(fact) for fact in SAMPLES} | {Decision, CacheMiss}
    assert written == set(journal._KINDS.values())


def test_decision_line_has_both_times():
    fact = Decision(
        "gather",
        "norm",
        "split",
        "cost",
        fused_ns=9.1e5,
        split_ns=3.76e5,
        details={"slower_ns": 534e3},
    )
    assert format_fact(fact) == (
        "not fused: gather -> norm: F010 cost, the fused kernel is predicted to be 534,000 ns "
        "slower [910 us fused, 376 us apart]"
    )


# --- end to end ---------------------------------------------------------------------------------

ARRAY_CODE = """
import logging, sys
for name in sys.argv[1:]:
    logging.getLogger(name).setLevel(logging.INFO)
import numpy as np, smelt as sm
@sm.jit
def f(x, y):
    total = sm.sum(sm.exp(x))
    return total + sm.sum(y) if x.shape[0] == y.shape[0] else total
for rows, others in ((4, 4), (9, 9), (9, 4)):
    f(np.ones((rows, 5), np.float32), np.ones((others, 5), np.float32))
f(np.ones(3, np.float32), np.ones((4, 5), np.float32))
"""
TORCH_CODE = """
import logging, sys
for name in sys.argv[1:]:
    logging.getLogger(name).setLevel(logging.INFO)
import torch
f = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="smelt")
f(torch.ones(40, 50))
"""


def program_lines(
    code: str, folder: Path, setting: str = "", loggers: tuple[str, ...] = ()
) -> list[str]:
    more = {"SMELT_LOG": setting, "SMELT_CACHE_DIR": str(folder), "SMELT_VERIFY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, *loggers],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=True,
    )
    return [x for x in done.stderr.splitlines() if x.startswith("smelt.")]


def test_array_code_logs_the_requested_topics_with_cold_and_warm_caches(tmp_path):
    for _ in range(2):
        lines = program_lines(ARRAY_CODE, tmp_path, "fusion,trace")
        assert {x.partition(":")[0] for x in lines} == {"smelt.fusion", "smelt.trace"}
        assert any("operators in 1 kernels" in x for x in lines)
        again = [x for x in lines if x.startswith("smelt.trace: f again: ")]
        assert again == [
            "smelt.trace: f again: needs n0 == n2, got n0 = 9, n2 = 4",
            "smelt.trace: f again: needs x: f32[n,n], got f32[3]",
        ]


def test_levels_of_loggers_work_in_a_program(tmp_path):
    assert program_lines(ARRAY_CODE, tmp_path) == []
    lines = program_lines(ARRAY_CODE, tmp_path, loggers=("smelt.fusion",))
    assert lines and all(x.startswith("smelt.fusion: ") for x in lines)


def test_the_level_of_the_root_logger_shows_nothing(tmp_path):
    assert program_lines(ARRAY_CODE, tmp_path, loggers=("",)) == []


def test_compiled_modules_log_too(tmp_path):
    pytest.importorskip("torch")
    lines = program_lines(TORCH_CODE, tmp_path, "fusion")
    assert any("operators in 1 kernels" in x for x in lines)
