"""The command line: lazy, quiet on success, honest exit codes, machine-readable where it counts."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from smelt import errors, knobs
from smelt.cli import checks, main, terminal, why
from smelt.cli.main import COMMANDS
from smelt.knobs import KNOBS
from smelt.packages.version import __version__
from smelt.runtime.cache import SUFFIX, Cache

FOLDER = Path(main.__file__).parent
MACHINERY = {"__init__", "main", "terminal", "checks"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call `smelt ...` with a cache of its own; a mistake of ours shows as itself."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SMELT_THREADS", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    knobs.reset()
    runner = CliRunner()

    def call(*words: str, code: int = 0) -> str:
        result = runner.invoke(main.smelt, list(words), catch_exceptions=True)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    yield call
    knobs.reset()


# --- the group ----------------------------------------------------------------------------------


def test_registry_and_files_agree():
    files = {path.stem for path in FOLDER.glob("*.py")} - MACHINERY
    assert set(COMMANDS) <= files, "a command without its file"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_begins_with_its_line(name, run):
    command = import_module(f"smelt.cli.{name}").command
    assert isinstance(command, click.Command) and command.name == name
    assert (command.help or "").splitlines()[0] == COMMANDS[name]
    assert COMMANDS[name] in " ".join(run(name, "--help").split())


def test_help_lists_everything(run):
    text = run("--help")
    assert all(f"  {name} " in text and line in text for name, line in COMMANDS.items())
    assert run("-h") == text


def test_version(run):
    assert run("--version") == f"smelt, version {__version__}\n"


def test_unknown_command_lists_the_known(run):
    text = run("dcotor", code=2)
    assert "No such command 'dcotor'" in text and "doctor" in text


def test_help_loads_no_command():
    program = (
        "import sys\n"
        "sys.argv = ['smelt', '--help']\n"
        "from smelt.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('rich', 'smelt.cli.'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == ["smelt.cli.main"]


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smelt", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_error_of_ours_prints_without_traceback():
    done = process("why", "E1O1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "E108 unknown name: no error or reason is called 'E1O1'; did you mean E101?\n"
    )


def test_wrong_setting_prints_without_traceback():
    done = process("doctor", "--knobs", SMELT_OPT_LEVEL="9")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "E601 wrong setting: SMELT_OPT_LEVEL: '9' is not an integer from 0 to 3" in done.stderr


def test_an_answer_that_nobody_can_take_prints_without_traceback():
    shell = f"{sys.executable} -m smelt errors"
    for where, reported in (
        ("> /dev/full", "Error: [Errno 28] No space left on device\n"),
        ("| :", ""),
    ):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {shell} {where}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (1, "", reported)


# --- why, errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", errors.pages(), ids=lambda page: page.code)
def test_why_prints_the_whole_page(page, run):
    output = " ".join(run("why", page.code).split())
    for text in (page.title, page.summary, page.meaning, page.why, page.example, page.fix):
        assert " ".join(text.split()) in output
    assert json.loads(run("why", page.code, "--json"))["fix"] == page.fix


def test_errors_lists_every_code(run):
    text = run("errors")
    assert all(f"{page.code}  " in text for page in errors.pages())
    assert [row["code"] for row in json.loads(run("errors", "--json"))] == [
        page.code for page in errors.pages()
    ]


# --- doctor -------------------------------------------------------------------------------------


def test_doctor(run, tmp_path):
    text = run("doctor")
    groups = ("versions", "processor", "threads", "cache", "cost model")
    titles = [line.strip() for line in text.splitlines()]
    assert [title for title in titles if title in groups] == list(groups)
    assert ["smelt", "ok", __version__] in [line.split() for line in text.splitlines()]
    assert "cache" in text and str(tmp_path)[:20] in text
    assert "(from " in text, "threads name their source"


def test_doctor_as_data(run):
    rows = json.loads(run("doctor", "--json"))
    assert {row["verdict"] for row in rows} <= {"ok", "warn", "fail", ""}
    assert not [row for row in rows if row["verdict"] == "fail"]
    names = [(row["group"], row["name"]) for row in rows]
    assert len(names) == len(set(names))


def test_doctor_reports_a_broken_check_and_fails(run, monkeypatch):
    def broken() -> None:
        raise OSError("no such machine")

    monkeypatch.setattr(checks.Target, "host", broken)
    text = run("doctor", code=1)
    assert "OSError: no such machine" in text and "versions" in text


def test_doctor_names_the_source_of_threads(tmp_path):
    done = process("doctor", SMELT_THREADS="1", SMELT_CACHE_DIR=str(tmp_path / "c"))
    assert "1 (from SMELT_THREADS)" in done.stdout


def test_knobs_table(run, monkeypatch):
    monkeypatch.setenv("SMELT_OPT_LEVEL", "1")
    knobs.reset()
    rows = {row["name"]: row for row in json.loads(run("doctor", "--knobs", "--json"))}
    assert set(rows) == set(KNOBS)
    assert (rows["opt_level"]["value"], rows["opt_level"]["source"]) == ("1", "environment")
    text = " ".join(run("doctor", "--knobs").split())
    assert all(knob.env in text for knob in KNOBS.values())
    assert all(name in text for name in knobs.FOREIGN)


# --- cache --------------------------------------------------------------------------------------


@pytest.fixture
def filled(run, tmp_path):
    cache = Cache.default()
    assert cache.path == tmp_path / "cache"
    for i in range(3):
        cache.put(f"key{i}".encode(), {"kernel": f"k{i}"}, b"code" * 100)
    return tmp_path / "cache"


def test_cache_path_and_info(run, filled):
    assert run("cache", "path") == f"{filled}\n"
    assert "entries  3" in run("cache", "info") and "in use" in run("cache", "info")
    assert json.loads(run("cache", "info", "--json"))["entries"] == 3


def test_cache_verify_finds_and_removes_damage(run, filled):
    assert run("cache", "verify") == "3 entries checked, 0 damaged\n"
    victim = sorted(filled.glob(f"*{SUFFIX}"))[1]
    victim.write_bytes(victim.read_bytes()[:-1])
    text = run("cache", "verify", "--keep", code=1)
    assert victim.name in text and "1 damaged and found" in text and victim.exists()
    assert "1 damaged and removed" in run("cache", "verify", code=1)
    assert not victim.exists()
    assert run("cache", "verify") == "2 entries checked, 0 damaged\n"


def test_cache_list_shows_kinds(run, filled):
    cache = Cache.default()
    cache.put(b"plan", {"what": "plan", "recipe": {"steps": [1, 2]}}, b"")
    cache.put(b"code", {"functions": [["k0", "n", "0", "n"]]}, b"code")
    text = run("cache", "list")
    assert "plan" in text and "2 steps" in text and "kernel" in text and "k0" in text
    next(iter(filled.iterdir())).write_bytes(b"nonsense")
    rows = json.loads(run("cache", "list", "--json"))
    assert len(rows) == 5
    assert [r["what"] for r in rows].count("damaged") == 1


def test_cache_clear(run, filled):
    assert run("cache", "clear").startswith("3 files removed, ")
    assert not list(filled.glob(f"*{SUFFIX}"))
    assert run("cache", "clear").startswith("0 files removed")


def test_cache_switched_off_is_said(run, filled, monkeypatch):
    monkeypatch.setenv("SMELT_CACHE", "off")
    knobs.reset()
    assert "switched off" in run("cache", "info")
    rows = json.loads(run("doctor", "--json"))
    assert [row["verdict"] for row in rows if row["group"] == "cache"] == ["warn"]


# --- output -------------------------------------------------------------------------------------


def test_paragraphs_flow_and_lists_keep_their_lines(run):
    """They kept the ends of lines of the page's source, which made rags of them when narrow."""
    lines = run("why", "E101").splitlines()
    assert any("the array API broadcasts), and" in line for line in lines)
    assert why.flowing("a\nb\n\n- c\n- d\n\n    e\n    f") == "a b\n\n- c\n- d\n\n    e\n    f"


def test_no_colours_in_a_pipe(run):
    for words in (("why", "E101"), ("errors",), ("doctor",), ("doctor", "--knobs")):
        assert "\x1b" not in run(*words)


def test_console_is_as_wide_as_a_page_in_a_pipe():
    assert terminal.console().width == 100


# --- program files --------------------------------------------------------------------------------


def test_save_and_show(run, tmp_path):
    source, saved = tmp_path / "model.py", tmp_path / "layer.smelt"
    source.write_text(
        'import smelt as sm\n\ndef layer(x: "f32[n,8]", w: "f32[8]"):\n    return sm.exp(x) * w\n'
    )
    assert "wrote" in run("save", f"{source}:layer", "-o", str(saved), "--size", "n=16")
    shown = run("show", str(saved), "--verify")
    assert "every checksum agrees" in shown
    assert "x: f32[n,8], w: f32[8]" in shown
    assert "n=16" in shown
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(errors.ProgramFileError):
        run("show", str(saved))
    with pytest.raises(errors.ProgramFileError, match="not a program file: it begins with"):
        run("build", str(source), "-o", str(tmp_path / "liblayer.so"))
