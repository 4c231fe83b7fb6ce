"""What is shipped: metadata, size, import time, files that belong to a project."""

from __future__ import annotations

import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.pace import pace

import smelt
from smelt.packages.version import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = Path(smelt.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_core_dependencies():
    names = {re.split(r"[<>=]", entry)[0] for entry in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "llvmlite", "ml_dtypes", "platformdirs", "click", "rich"}
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


TEXTS = {".py", ".typed", ".html", ".json", ".js", ".css", ".svg", ".c", ".h", ".ll"}


def shipped() -> list[Path]:
    """Return the files of the wheel: those of the package."""
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": [PACKAGE.relative_to(ROOT).as_posix()]}
    return [
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def test_wheel_is_small_and_pure():
    """The wheel holds text alone, and downloads within a second at 20 Mbit/s."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in shipped():
            wheel.write(path, path.relative_to(PACKAGE.parent))
            assert path.suffix in TEXTS
    assert packed.tell() < 2_700_000


def test_the_wheel_works_without_benchmarks_and_demo(tmp_path):
    for path in shipped():
        target = tmp_path / path.relative_to(PACKAGE.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    settings = os.environ | {"PYTHONPATH": str(tmp_path)}
    listing = run([sys.executable, "-m", "smelt", "--help"], env=settings)
    assert listing.returncode == 0 and "explain" in listing.stdout
    for name in ("bench", "demo"):
        assert not (PACKAGE / name).exists()
    help_text = run([sys.executable, "-m", "smelt", "bench", "--help"], env=settings).stdout
    assert "MODEL" in help_text and "`python -m bench`" in " ".join(help_text.split())
    program = "import smelt as sm; print(float(sm.sum(sm.exp(sm.zeros(3)))), sm.__file__)"
    done = run([sys.executable, "-c", program], env=settings)
    assert done.stdout.split() == ["3.0", str(tmp_path / "smelt" / "__init__.py")], done.stderr


def test_classifiers_name_the_systems_that_are_tested():
    systems = [c for c in PROJECT["project"]["classifiers"] if c.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_project_files_exist(name):
    assert len((ROOT / name).read_text()) > 100


def test_continuous_integration_runs_the_same_command():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "make test" in script.read_text()


def test_every_layer_is_in_the_contract():
    """`make layers` refuses a folder without a floor; this names the file to change."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    layered = {c["containers"][0]: c for c in contracts if "containers" in c}
    assert layered.keys() == {"smelt", "smelt.codegen.llvm", "smelt.compiler"}
    for container, contract in layered.items():
        assert contract["exhaustive"]
        floors = set(re.findall(r"\w+", " ".join(contract["layers"])))
        folder = PACKAGE.joinpath(*container.split(".")[1:])
        modules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert modules - floors - {"__init__", "__pycache__", "py"} == set()


@pytest.mark.clock
def test_import_takes_little_beyond_numpy():
    # Of the processor's time: what the machine does besides is none of the package's business.
    program = (
        "import time\n"
        "start = time.thread_time()\n"
        "import numpy\n"
        "between = time.thread_time()\n"
        "import smelt\n"
        "print(between - start, time.thread_time() - between)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    # An installed package has its byte code, whatever is set for this process.
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
    pairs = [map(float, run(command, env=settings).stdout.split()) for _ in range(5)]
    numpys, ours = map(min, zip(*pairs, strict=True))
    # Modules are read and loaded at another pace than the interpreter's, which NumPy's import has.
    assert ours < max(0.045 * pace(), 1.25 * numpys), f"{ours * 1e3:.0f} ms"
