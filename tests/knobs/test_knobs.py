"""The settings: three faces that agree, refuse the same mistakes and cost next to nothing."""

from __future__ import annotations

import contextlib
import threading
import timeit
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pace import pace

from smelt import knobs
from smelt.errors import KnobError, KnobWarning
from smelt.knobs import KNOBS, config, values

EVERY = pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
# Values other than the default that a knob takes, as text and as what they become.
OTHER = {
    "threads": ("3", 3),
    "spin_us": ("0", 0),
    "cache": ("off", False),
    "cache_dir": ("/tmp/somewhere", Path("/tmp/somewhere")),
    "cache_size": ("1.5 KiB", 1536),
    "log": ("fusion,-tune", "fusion,-tune"),
    "rounding": ("exact", "exact"),
    "fuse": ("0", False),
    "library_products": ("plain", "plain"),
    "must_fuse": ("exp+sum, a+b", (("exp", "sum"), ("a", "b"))),
    "require_fused": ("a+b+c", (("a", "b"), ("b", "c"))),
    "small_elements": ("100", 100),
    "tiers": ("auto", "auto"),
    "tune": ("race", "race"),
    "tune_seconds": ("9", 9),
    "never_fuse": ("q.py:3+q.py:4", (("q.py:3", "q.py:4"),)),
    "max_extra_memory": ("2GB", 2_000_000_000),
    "pool_limit": ("0", 0),
    "constants": ("0", 0),
    "constants_extra": ("64 MiB", 64 << 20),
    "huge_pages": ("false", False),
    "target": ("AVX2", "avx2"),
    "host_isa": ("AVX2", "avx2"),
    "opt_level": ("1", 1),
    "probe": ("now", "now"),
    "device_code": ("off", False),
    "device_launch": ("torch", "torch"),
    "verify": ("yes", True),
    "bounds_check": ("true", True),
    "check_positions": ("off", False),
    "native_calls": ("off", False),
    "strict": ("1", True),
    "quiet": ("on", True),
    "traceback": ("full", "full"),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Without variables of the machine the tests run on, and nothing remembered afterwards."""
    for knob in KNOBS.values():
        monkeypatch.delenv(knob.env, raising=False)
    knobs.reset()
    yield
    knobs.reset()


# --- the table ----------------------------------------------------------------------------------


def test_table_is_complete():
    assert set(OTHER) == set(KNOBS)
    assert [name for name, knob in KNOBS.items() if getattr(knobs, name.upper()) is not knob] == []


@EVERY
def test_row(knob):
    assert knob.doc.endswith(".") and knob.values and knob.name == knob.name.lower()
    assert knob.env == f"SMELT_{knob.name.upper()}"
    shown = knob.show(knob.default)
    assert shown
    if knob.name not in ("log", "must_fuse", "never_fuse", "require_fused", "cache_dir"):
        assert knob.parse(shown) == knob.default, "what is shown can be given"
    assert knob.get() == knob.default and knob.source == "default"


# --- faces --------------------------------------------------------------------------------------


@EVERY
def test_all_faces_take_the_same_text(knob, monkeypatch):
    text, expected = OTHER[knob.name]
    with config(**{knob.name: text}):
        assert knob.get() == expected and knob.source == "config"
    with config({knob.name: text}):
        assert knob.get() == expected
    with config(**{knob.name: expected}):
        assert knob.get() == expected, "and the value itself"
    assert knob.get() == knob.default
    monkeypatch.setenv(knob.env, text)
    knobs.reset()
    assert knob.get() == expected and knob.source == "environment"


@EVERY
def test_type_is_stable(knob):
    inputs, expected = OTHER[knob.name]
    assert type(knob.parse(inputs)) is type(expected)


def test_environment_is_read_when_first_needed(monkeypatch):
    monkeypatch.setenv("SMELT_OPT_LEVEL", "1")
    assert knobs.OPT_LEVEL.get() == 1
    monkeypatch.setenv("SMELT_OPT_LEVEL", "2")
    assert knobs.OPT_LEVEL.get() == 1, "not read again"
    knobs.reset()
    assert knobs.OPT_LEVEL.get() == 2


def test_empty_variable_is_unset(monkeypatch):
    monkeypatch.setenv("SMELT_THREADS", "")
    assert knobs.THREADS.get() == 0 and knobs.THREADS.source == "default"


def test_innermost_wins_and_all_is_restored(monkeypatch):
    monkeypatch.setenv("SMELT_THREADS", "5")
    with config(threads=2, fuse=False):
        with config(threads=3):
            assert (knobs.THREADS.get(), knobs.FUSE.get()) == (3, False)
        assert knobs.THREADS.get() == 2
    assert (knobs.THREADS.get(), knobs.FUSE.get()) == (5, True)


def test_exception_restores():
    with pytest.raises(ZeroDivisionError), config(strict=True):
        raise ZeroDivisionError
    assert not knobs.STRICT.get()


def test_one_object_can_be_entered_again_and_within_itself():
    twice = config(opt_level=1)
    with twice, twice:
        assert knobs.OPT_LEVEL.get() == 1
    with twice:
        assert knobs.OPT_LEVEL.get() == 1
    assert knobs.OPT_LEVEL.get() == 2


def test_decorator_keeps_the_function():
    @config(rounding="exact")
    def documented(mark: str) -> str:
        """Doc."""
        return knobs.ROUNDING.get() + mark

    assert (
        documented("!") == "exact!"
        and documented.__doc__ == "Doc."
        and knobs.ROUNDING.get() == "eager"
    )


def test_threads_do_not_see_each_other():
    shared = config(opt_level=0)
    barrier = threading.Barrier(8)

    def work(level: int) -> list[int]:
        seen = [knobs.OPT_LEVEL.get()]
        for _ in range(50):
            with shared, config(opt_level=level % 4):
                barrier.wait(timeout=20)
                seen.append(knobs.OPT_LEVEL.get() - level % 4)
        return [*seen, knobs.OPT_LEVEL.get()]

    with config(opt_level=3), ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert results == [[2, *[0] * 50, 2]] * 8, "a new thread begins with the environment's values"


def test_context_carries_into_a_thread():
    with config(threads=7):
        context = copy_context()
    thread_saw: list[int] = []
    thread = threading.Thread(
        target=lambda: context.run(lambda: thread_saw.append(knobs.THREADS.get()))
    )
    thread.start()
    thread.join()
    assert thread_saw == [7] and knobs.THREADS.get() == 0


# --- mistakes -----------------------------------------------------------------------------------

BAD = [
    ("threads", "-1"),
    ("threads", "many"),
    ("threads", 2.0),
    ("threads", True),
    ("threads", 100_000),
    ("threads", "9" * 5000),
    ("cache_size", "1 XiB"),
    ("cache_size", "-5"),
    ("cache_size", -5),
    ("cache_size", "9" * 400),
    ("cache_size", "9e9TiB"),
    ("cache_size", None),
    ("cache_dir", 7),
    ("cache_dir", "~nobody-of-that-name/x"),
    ("fuse", "maybe"),
    ("fuse", 2),
    ("fuse", None),
    ("rounding", "sloppy"),
    ("target", "z80"),
    ("opt_level", 4),
    ("must_fuse", "exp"),
    ("must_fuse", "a+b+c"),
    ("must_fuse", "a+"),
    ("must_fuse", [("a", 1)]),
    ("must_fuse", 7),
    ("log", 7),
    ("probe", "later"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda x: repr(x)[:20])
def test_wrong_values_are_refused_by_every_face(name, value, monkeypatch):
    with pytest.raises(KnobError) as caught:
        config(**{name: value})
    assert caught.value.code == "E601" and f"{name}: {value!r} is not " in str(caught.value)
    assert caught.value.origin.file == __file__, "the user's line"
    assert KNOBS[name].get() == KNOBS[name].default, "nothing was changed"
    if isinstance(value, str):
        monkeypatch.setenv(KNOBS[name].env, value)
        knobs.reset()
        with pytest.raises(KnobError, match=f"^E601 wrong setting: SMELT_{name.upper()}: "):
            KNOBS[name].get()


@pytest.mark.parametrize(
    ("name", "meant"), [("thread", "threads"), ("Rounding", "rounding"), ("cachedir", "cache_dir")]
)
def test_unknown_setting_names_the_nearest(name, meant):
    with pytest.raises(KnobError, match=f"did you mean {meant}"):
        config(**{name: 1})
    with pytest.raises(KnobError, match=r"no such setting\n"):
        config(completely_different=1)


def test_unknown_variable_warns_once(monkeypatch):
    monkeypatch.setenv("SMELT_THREDS", "4")
    with pytest.warns(KnobWarning, match="SMELT_THREDS is not a setting; did you mean SMELT_THR"):
        knobs.THREADS.get()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knobs.FUSE.get()


# --- values -------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1))
def test_any_number_of_bytes(count):
    assert values.size(count) == count
    assert values.size(str(count)) == values.size(f"{count}.9 B") == count


@given(st.integers(0, 2**62))
def test_shown_bytes_are_read_back_closely(count):
    assert values.size(values.show_bytes(count)) == pytest.approx(count, rel=1e-3)


@given(st.lists(st.tuples(*[st.text("abcxyz_.:0189", min_size=1)] * 2)))
def test_pairs_round_trip(pairs):
    assert values.pairs(pairs) == tuple(pairs)
    assert not pairs or values.pairs(values.show_pairs(tuple(pairs))) == tuple(pairs)


@given(st.text(max_size=30))
def test_parsers_only_ever_raise_value_error(text):
    for knob in KNOBS.values():
        with contextlib.suppress(ValueError):
            knob.parse(text)


def test_numpy_values_are_distinguished():
    with pytest.raises(KnobError):
        config(threads=np.float64(2))


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    with config(cache_dir="~/c"):
        assert knobs.CACHE_DIR.get() == Path("/home/ada/c")


# --- fingerprint --------------------------------------------------------------------------------


@EVERY
def test_fingerprints_have_exactly_what_changes_plans_and_code(knob):
    before, code = knobs.fingerprint(), knobs.code_fingerprint()
    with config(**{knob.name: OTHER[knob.name][0]}):
        assert (knobs.fingerprint() != before) == (knob.changes != "nothing")
        assert (knobs.code_fingerprint() != code) == (knob.changes == "code")
    assert knobs.fingerprint() == before


def test_fingerprint_is_exact():
    seen = set()
    for limit in (2**31, 2**31 + 1, None, "none"):
        with config(max_extra_memory=limit):
            seen.add(knobs.fingerprint())
    assert len(seen) == 3


# --- others' variables, cost --------------------------------------------------------------------


def test_foreign_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (knobs.foreign("OMP_NUM_THREADS"), knobs.foreign("NO_COLOR")) == ("3", None)
    with pytest.raises(AssertionError):
        knobs.foreign("PATH")


@pytest.mark.clock
@pytest.mark.parametrize("read", [knobs.THREADS.get, knobs.fingerprint], ids=["get", "fingerprint"])
def test_reading_costs_less_than_300_ns(read):
    with config(fuse=True), config(quiet=True):
        best = min(timeit.repeat(read, number=20_000, repeat=15)) / 20_000
    assert best < 300e-9 * pace(), f"{best * 1e9:.0f} ns"
