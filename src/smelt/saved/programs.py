"""Write programs to a file and read them back, whichever front end recorded them.

A file has named programs. Each is one or several recordings (for sizes of 1 and of more, say), each
with plans for the instruction sets and the sizes that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smelt.errors import ArgumentError, ProgramMachineError, ProgramVersionError
from smelt.graph.verify import verify
from smelt.machine.processor import INSTRUCTION_SETS
from smelt.machine.target import Target
from smelt.packages.version import __version__
from smelt.runtime.host import host
from smelt.saved import recording
from smelt.saved.file import ProgramFile, Writer
from smelt.saved.plans import (
    StoredProgram,
    choose_plans,
    load_plan,
    load_runtime,
    write_plan,
    write_runtime,
)
from smelt.saved.recording import Recording
from smelt.tune.memory import Program

__all__ = ["Draft", "Entry", "Plan", "open_programs", "save_programs"]

Array = np.ndarray[Any, Any]
Hints = Mapping[str, int] | Sequence[Mapping[str, int]]


class Draft(NamedTuple):
    """A recording to be compiled under settings."""

    recording: Recording
    settings: AbstractContextManager[Any] = nullcontext()


class Plan(NamedTuple):
    """A compiled plan of a recording, and the constants computed ahead for it."""

    program: StoredProgram
    hints: Mapping[str, int]
    held: tuple[Array, ...]


class Entry(NamedTuple):
    """A recording of a file with its plans; without any it has to be compiled."""

    recording: Recording
    plans: tuple[Plan, ...]


# ---- writing -------------------------------------------------------------------------------------


def save_programs(
    path: str | Path,
    programs: Mapping[str, Sequence[Draft]],
    isa: str | Sequence[str],
    hints: Hints,
) -> None:
    """Compile recordings for instruction sets and likely sizes, and write them to a file.

    Raises ArgumentError for an unknown instruction set, SaveError and GraphTextError for what has
    no form in a file, what compilation raises, and OSError.
    """
    writer, targets = Writer(), _targets(isa)
    choices = [hints] if isinstance(hints, Mapping) else list(hints)
    entries = {
        name: [
            _write_entry(writer, draft, targets, choices or [{}], reports=not k)
            for k, draft in enumerate(drafts)
        ]
        for name, drafts in programs.items()
    }
    facts = {"smelt": __version__, "runtime": write_runtime(writer), "programs": entries}
    writer.write(Path(path), facts)


def _targets(isa: str | Sequence[str]) -> list[Target]:
    """Return the targets of instruction sets, with this machine's number of cores."""
    names = [isa] if isinstance(isa, str) else list(isa)
    unknown = [name for name in names if name != "host" and name not in INSTRUCTION_SETS]
    if unknown or not names:
        raise ArgumentError.of("save", "isa", isa, f"some of host, {', '.join(INSTRUCTION_SETS)}")
    here = host()
    return [
        here if name == "host" else replace(Target.for_isa(name), cores=here.cores)  # type: ignore[arg-type]
        for name in names
    ]


def _write_entry(
    writer: Writer,
    draft: Draft,
    targets: Sequence[Target],
    hints: Sequence[Mapping[str, int]],
    *,
    reports: bool,
) -> dict[str, Any]:
    r, first = draft.recording, len(draft.recording.arguments)
    constants = {first + k: x for k, x in enumerate(r.constants)}
    with draft.settings:
        plans = [
            write_plan(
                writer,
                Program(r.graph, _with_hints(r.hints, more)),
                (),
                target,
                constants,
                reports=reports,
            )
            for target in targets
            for more in hints
        ]
    return {"recording": recording.write(writer, r), "plans": plans}


def _with_hints(sizes: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: int(more.get(name, n)) for name, n in sizes.items()}


# ---- reading -------------------------------------------------------------------------------------


def open_programs(
    path: str | Path,
    *,
    runs_code: bool,
    sha256: str,
    may_compile: bool,
    mapped: bool,
    verify: bool,
) -> tuple[ProgramFile, dict[str, list[Entry]]]:
    """Return a file and its programs, with plans if its code may run here.

    Args:
        path: the file.
        runs_code: use the file's machine code; otherwise nothing of it runs.
        sha256: digest of the whole file, in place of the check of its owner.
        may_compile: leave out plans that do not run here, in place of raising.
        mapped: map constants; otherwise they are read.
        verify: compare constants with their checksums too.

    Raises ProgramFileError, ProgramVersionError, ProgramMachineError, ProgramTrustError, OSError.
    """
    file = ProgramFile(Path(path), mapped=mapped)
    if runs_code or sha256:
        file.check_trust(sha256)
    if verify:
        file.verify()
    with file.reading():
        programs: dict[str, list[Any]] = dict(file.facts["programs"])
        runs_code = runs_code and _runs_here(file, programs, may_compile)
        read = {
            str(name): [_read_entry(file, e, runs_code) for e in entries]
            for name, entries in programs.items()
        }
        if not read or not all(read.values()):
            raise ValueError("a program without a recording")
    return file, read


def _runs_here(file: ProgramFile, programs: Mapping[str, Sequence[Any]], may_compile: bool) -> bool:
    """Return whether the file's code runs here; if not, raise unless it may be compiled."""
    try:
        load_runtime(file, file.facts["runtime"])
        for entry in (e for entries in programs.values() for e in entries):
            choose_plans(file, entry["plans"])
    except (ProgramMachineError, ProgramVersionError):
        if may_compile:
            return False
        raise
    return True


def _read_entry(file: ProgramFile, facts: Mapping[str, Any], runs_code: bool) -> Entry:
    r = recording.read(file, facts["recording"])
    if not runs_code:  # a stranger's graph may say anything of its types
        verify(r.graph)
    return Entry(r, tuple(_read_plans(file, r, facts["plans"])) if runs_code else ())


def _read_plans(
    file: ProgramFile, r: Recording, plans: Sequence[Mapping[str, Any]]
) -> Iterator[Plan]:
    for facts in choose_plans(file, plans):
        hints = {str(name): int(n) for name, n in facts["hints"].items()}
        program = load_plan(file, facts, Program(r.graph, hints), ())
        held = tuple(map(file.array, facts["held"]))
        prelude = program.executable.prelude
        if len(held) != (0 if prelude is None else len(prelude.parts)):
            raise ValueError("other constants than the plan computes")
        yield Plan(program, hints, held)
