"""`smelt save`: write a compiled function to a program file.

smelt save model.py:layer --arg x=f32[n,512] --arg b=f32[512] -o layer.smelt
smelt save model.onnx --size batch=8 -o model.smelt
"""

from __future__ import annotations

from pathlib import Path

import click

from smelt.cli.explain import load_function, read_arguments, user_errors
from smelt.cli.inputs import pairs_of_options, sizes_of_options
from smelt.cli.onnx_model import SUFFIX
from smelt.frontends.array.program_files import save
from smelt.frontends.array.trace import Spec
from smelt.onnx import load
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

    TARGET is FILE.py:FUNCTION or MODEL.onnx.  `smelt.load` runs the file in a process without LLVM.
    """
    types = pairs_of_options(specs, "--arg", "NAME=TYPE or NAME=VALUE")
    isa, hints = sets or "host", sizes_of_options(sizes)
    with user_errors(target):
        if target.endswith(SUFFIX):
            if types:
                raise click.UsageError("--arg is for functions: an ONNX model says its types")
            if not Path(target).is_file():
                raise click.UsageError(f"there is no file {target!r}")
            load(target).save(output, isa=isa, hints=hints)
        else:
            function = load_function(target)
            arguments = {
                name: Spec(t.shape, t.dtype) if isinstance(t, TensorType) else t
                for name, t in read_arguments(function, types).items()
            }
            save(function, output, isa=isa, hints=hints, **arguments)
    click.echo(f"wrote {output} ({output.stat().st_size:,} bytes)", err=True)
