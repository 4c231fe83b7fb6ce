"""`smelt save`: write a compiled function to a program file.

smelt save model.py:layer --arg x=f32[n,512] --arg b=f32[512] -o layer.smelt
"""

from __future__ import annotations

from pathlib import Path

import click

from smelt.cli.explain import load_function, read_arguments, user_errors
from smelt.cli.inputs import pairs_of_options, sizes_of_options
from smelt.frontends.array.save import save
from smelt.frontends.array.trace import Spec
from smelt.types.tensor import TensorType


@click.command("save")
@click.argument("target")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE.smelt",
    help="The file to write.",
)
@click.option(
    "--arg",
    "specs",
    multiple=True,
    metavar="NAME=TYPE",
    help="An argument of the function: f32[n,512], or a Python value. Annotations and defaults "
    "are used for the others.",
)
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A likely size; repeatable.")
@click.option(
    "--isa",
    "sets",
    multiple=True,
    metavar="NAME",
    help="An instruction set to hold code for (avx512, avx2, portable, ..); repeatable, best "
    "first. This machine's by default.",
)
def command(
    target: str, output: Path, specs: tuple[str, ...], sizes: tuple[str, ...], sets: tuple[str, ...]
) -> None:
    """Write a compiled function to a program file.

    TARGET is FILE.py:FUNCTION.  `smelt.load` runs the file in a process without LLVM.
    """
    types = pairs_of_options(specs, "--arg", "NAME=TYPE or NAME=VALUE")
    with user_errors(target):
        function = load_function(target)
        arguments = {
            name: Spec(t.shape, t.dtype) if isinstance(t, TensorType) else t
            for name, t in read_arguments(function, types).items()
        }
        save(function, output, isa=sets or "host", hints=sizes_of_options(sizes), **arguments)
    click.echo(f"wrote {output} ({output.stat().st_size:,} bytes)", err=True)
