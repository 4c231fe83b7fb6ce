"""Python blocks of pages run, and their commands exist."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec

import click
import pytest
from tests.docs.pages import PAGES, ROOT, commands, read
from tests.explain.gpu_reports import collect_programs
from tools import snippets

from bench import command as bench_command
from bench import gpu_command
from demo import main as demo_main
from smelt.cli.main import smelt

WITH_CODE = [page for page in PAGES if snippets.blocks(read(page))]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
CALLS = [(page, call) for page in PAGES for call in commands(read(page))]


def test_the_pages_have_code():
    assert {"README.md", "docs/start.md", "docs/explain.md", "docs/kernels.md"} <= set(WITH_CODE)
    assert snippets.blocks("```python\nx = 1\n```\n") == ["x = 1\n"]


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page != "ARCHITECTURE.md"])
def test_python_blocks_run_and_are_explained_for_gpus(page, tmp_path, monkeypatch):
    explain_for_gpus = collect_programs(monkeypatch)
    monkeypatch.chdir(tmp_path)  # blocks write files
    outputs = snippets.run(read(page), page)
    assert len(outputs) == len(snippets.blocks(read(page)))
    assert explain_for_gpus() or "sm." not in "".join(snippets.blocks(read(page)))


def test_a_block_that_fails_names_its_page():
    with pytest.raises(ZeroDivisionError) as caught:
        snippets.run("```python\nx = 1\n```\n```python\nx / 0\n```\n", "page.md")
    assert caught.value.__notes__ == ["in page.md:\nx / 0\n"]
    assert caught.traceback[-1].lineno == 1  # counted from 0, over the blocks before


WRITTEN_BY = re.compile(r"^.*(?:Generated|[Ww]ritten) by `.*$", re.MULTILINE)
FOR_CONTRIBUTORS = {"CONTRIBUTING.md", "CHANGELOG.md"}


@pytest.mark.parametrize("page", sorted(set(PAGES) - FOR_CONTRIBUTORS))
def test_commands_are_installed_or_called_in_a_clone(page):
    """What a wheel leaves out is written as `.venv/bin/python -m bench`."""
    assert not [c for c in commands(WRITTEN_BY.sub("", read(page))) if c.startswith("python")]


GPU_STATUS = "no gpu has run it yet"
"""What every page that speaks of running on a GPU says: one sentence to change when one has."""


@pytest.mark.parametrize(
    "page", ["README.md", "docs/gpu.md", "docs/limits.md", "docs/faq.md", "docs/from_jax.md"]
)
def test_pages_agree_whether_programs_run_on_a_gpu(page):
    assert GPU_STATUS in read(page).lower()


def test_pages_that_name_a_device_say_or_link_what_is_known_of_it():
    for page in set(PAGES) - FOR_CONTRIBUTORS:
        if "cuda:0" in read(page):
            assert GPU_STATUS in read(page).lower() or "gpu.md#running" in read(page), page
        assert "nothing runs" not in read(page), page


def test_there_are_commands():
    named = {call.split()[1] for _, call in CALLS if call.startswith("smelt ")}
    assert {"explain", "why", "doctor", "run"} <= named


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[call for _, call in CALLS])
def test_commands_exist(page, call):
    program, name, *words = shlex.split(call)
    if program == "make":
        assert name in TARGETS, f"{page}: {call}"
        return
    if name == "-m":
        assert options_of(words) <= options_of_module(words[0], words), f"{page}: {call}"
        return
    # A command remembers the help options of its first context: it has to be the real one.
    context = click.Context(smelt, info_name="smelt", **smelt.context_settings)
    command = smelt.get_command(context, name)
    assert command is not None, f"{page}: {call}"
    if isinstance(command, click.Group) and words:
        command = command.get_command(
            click.Context(command, info_name=name, parent=context), words[0]
        )
        assert command is not None, f"{page}: {call}"
    options = {option for parameter in command.params for option in parameter.opts}
    assert options_of(words) <= options | {"--help"}, f"{page}: {call}"


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def options_of_module(module: str, words: list[str]) -> set[str]:
    """Return the options of `python -m bench` or `python -m demo`; other modules have none."""
    if "--gpu" in words:
        return {option for a in gpu_command.parser()._actions for option in a.option_strings}
    commands = {"bench": bench_command.command, "demo": demo_main.command}
    if module not in commands:
        assert find_spec(module) is not None
        return set()
    return {option for parameter in commands[module].params for option in parameter.opts}
