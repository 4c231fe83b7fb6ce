"""Entry point of `smelt`: the table of subcommands, which are imported on demand.

Answers go to stdout, everything else to stderr. Exit codes: 0 success, 1 a problem with the
inspected thing (a damaged cache, a failed check), 2 a mistake in the command line.

>>> smelt.name
'smelt'
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from smelt.errors import SmeltError, escape_controls
from smelt.packages.version import __version__
from smelt.python.origin import UNKNOWN

COMMANDS: dict[str, str] = {
    "bench": "Time an ONNX model in turns with ONNX Runtime, if that is installed.",
    "build": "Make a shared library for C of a program file.",
    "cache": "Inspect, verify or clear the cache of plans and compiled kernels.",
    "doctor": "Check the installation, and show what Smelt detects on this machine.",
    "errors": "List every error, warning and reason with its code.",
    "explain": "Report how a function, a graph or a model is compiled, and why.",
    "ops": "List every operator, or describe the one called NAME.",
    "opt": "Run passes on a graph's text.",
    "run": "Run a graph or a kernel in text form, or an ONNX model.",
    "save": "Write a compiled function to a program file.",
    "show": "List what a program file holds.",
    "why": "Explain an error (E101) or the reason of a decision (F010).",
}
"""Name -> summary. `smelt X` runs `smelt.cli.X:command`, whose help begins with the summary."""


class LazyGroup(click.Group):
    """A group that imports a subcommand only to run it: `smelt --help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: Any = import_module(f"smelt.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click suggests close names itself, but only after loading every command.
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. Commands: {', '.join(sorted(COMMANDS))}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; names in its messages cannot steer the terminal."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = escape_controls(error.message)
            raise


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="smelt")
def smelt() -> None:
    """Smelt fuses array code into few native kernels, and explains why.

    `smelt COMMAND --help` describes a command.
    """


def main() -> None:
    """Run the command line; errors of Smelt or of the system print their message only."""
    try:
        try:
            smelt()
        finally:
            sys.stdout.flush()  # here, so that a failed write is reported
    except SmeltError as error:
        click.echo(_message(error), err=True)
        sys.exit(1)
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more
        if not isinstance(error, BrokenPipeError):  # the reader closed the pipe: `smelt ops | head`
            click.echo(escape_controls(f"Error: {error}"), err=True)
        sys.exit(1)


def _message(error: SmeltError) -> str:
    """Return an error's message, without a location inside the command line's own code."""
    own_folders = (str(Path(click.__file__).parent), sys.argv[0], str(Path(sys.executable).parent))
    if error.origin.file.startswith(own_folders):
        error.origin = UNKNOWN
    return str(error)
