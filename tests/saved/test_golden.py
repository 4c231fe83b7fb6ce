"""Files of releases: this version runs them, or refuses with what to do; graphs always compile."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.saved.golden_programs import CASES, FOLDER

import smelt as sm
from smelt.errors import ProgramFileError, ProgramMachineError, ProgramVersionError
from smelt.frontends.array.tree import flatten
from smelt.packages.version import __version__
from smelt.saved.file import ProgramFile, Writer

FILES = sorted(FOLDER.glob("*.smelt"))
WITHOUT_LLVM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llvmlite":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
from tests.saved.test_golden import check
import numpy as np
import smelt as sm
try:
    check(sm.load(sys.argv[1]))
except sm.errors.ProgramVersionError as error:
    assert "compile=True" in str(error)
try:
    sm.jit(lambda x: x + 1)(np.ones(3))
except sm.errors.MissingCompilerError as error:
    assert "llvmlite" in str(error)
else:
    raise AssertionError("it compiled")
"""


def check(programs: Any) -> None:
    for name, case in CASES.items():
        if name not in programs:  # an older file has fewer
            continue
        got, want = (f(*case.arguments) for f in (programs[name], case.reference))
        for x, y in zip(flatten(got)[0], flatten(want)[0], strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=1e-6)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy that nobody else may write to, whatever the checkout's modes."""
    copy = tmp_path / request.param.name
    shutil.copyfile(request.param, copy)
    copy.chmod(0o644)
    return copy


def test_a_released_file_runs_or_says_what_to_do(path: Path) -> None:
    refusal = ""
    try:
        check(sm.load(path))
    except (ProgramVersionError, ProgramMachineError) as error:
        refusal = str(error)
    assert "compile=True" in refusal or not refusal
    check(sm.load(path, compile=True))
    check(sm.load(path, trust="graph"))


def test_a_released_file_without_llvm(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLVM, str(path)],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(sys.path), "SMELT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_this_version_has_a_file_of_every_case() -> None:
    newest = ProgramFile(FOLDER / f"{__version__}.smelt", mapped=False)
    assert newest.facts["programs"].keys() == CASES.keys()
    assert all(p.stat().st_size < 1 << 17 for p in FILES), "keep them small"


@pytest.mark.parametrize("part", ["abi", "form", "runtime"])
def test_parts_of_another_version_are_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ProgramFile(FILES[-1], mapped=False)
    facts = json.loads(json.dumps(file.facts))
    if part == "runtime":
        facts["runtime"] = {"another": 0}
        monkeypatch.setattr("smelt.saved.plans.llvm_version", lambda: "none")
    else:
        for entries in facts["programs"].values():
            for plan in (plan for e in entries for plan in e["plans"]):
                plan[part] = 0
    writer = Writer()
    for number in range(len(file.sections)):
        writer.add(file.read(number))
    other = tmp_path / "other.smelt"
    writer.write(other, facts)
    with pytest.raises(ProgramVersionError, match="compile=True"):
        sm.load(other)
    check(sm.load(other, compile=True))


def test_facts_of_another_version_are_not_called_damage(tmp_path: Path) -> None:
    file = ProgramFile(FILES[-1], mapped=False)
    writer = Writer()
    for number in range(len(file.sections)):
        writer.add(file.read(number))
    other = tmp_path / "other.smelt"
    for wrote, error in (("99.0", ProgramVersionError), (__version__, ProgramFileError)):
        writer.write(other, file.facts | {"smelt": wrote, "programs": {"layer": [{"new": 1}]}})
        with pytest.raises(error, match="malformed"):
            sm.load(other)
