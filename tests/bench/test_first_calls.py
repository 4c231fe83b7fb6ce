"""The bench of first calls: its stages add up, and its table has a row for every program."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.numpy.programs import PROGRAMS
from tests.programs.rows import PROGRAMS as WHOLE_PROGRAMS
from tests.programs.test_programs import FAMILIES
from tools import first_calls


def test_every_program_is_there() -> None:
    assert {*first_calls.EAGER} <= {p.__name__ for p in PROGRAMS}
    families = {f.__name__.rpartition(".")[2] for f in FAMILIES}
    assert {*first_calls.WHOLE} <= families
    names = {name for family in first_calls.WHOLE.values() for name in family}
    assert names <= {*WHOLE_PROGRAMS}


def test_stages_add_up_to_the_whole(tmp_path: Path) -> None:
    tree = first_calls.Tree(first_calls.ROOT / "src", tmp_path)
    times = tree.measure("greeks")
    assert tuple(times) == ("total", *first_calls.STAGES)
    assert abs(times.pop("total") - sum(times.values())) < 1e-9
    assert all(times[stage] > 0 for stage in ("import", "fusion", "lower", "codegen", "llvm"))
