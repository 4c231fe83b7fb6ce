"""`smelt bench`: time an ONNX model in turns with ONNX Runtime.

>>> command.name
'bench'
"""

from __future__ import annotations

from pathlib import Path

import click

from smelt.cli.onnx_model import bench_model


@click.command("bench")
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--threads", type=click.IntRange(1), help="Threads for both (default: all cores).")
@click.option("--quick", is_flag=True, help="Fewer rounds.")
def command(model: Path, threads: int | None, quick: bool) -> None:
    """Time an ONNX model in turns with ONNX Runtime, if that is installed.

    The benchmarks of Smelt itself are part of its repository: `python -m bench`.
    """
    bench_model(model, threads, quick=quick)
