"""`smelt build`: make a shared library for C of a program file, without a toolchain.

smelt build model.smelt -o libmodel.so
"""

from __future__ import annotations

from pathlib import Path

import click

from smelt.saved.library import save_library


@click.command("build")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="LIBNAME.so",
    help="The library to write; NAME begins the names of its functions.",
)
@click.option(
    "--header",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="NAME.h",
    help="The C header; NAME.h beside the library by default.",
)
def command(file: Path, output: Path, header: Path | None) -> None:
    """Make a shared library for C of a program file.

    C, C++, Rust and others call it by its header; it needs neither Python nor Smelt.
    """
    written = save_library(file, output, header=header)
    for path in written:
        click.echo(f"wrote {path} ({path.stat().st_size:,} bytes)", err=True)
