"""`python -m bench --gpu`: measure a GPU."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.dry_driver import DryDriver
from bench.gpu import LOST, DeviceLostError, all_rows, run, supervise
from bench.gpu_sections import SECTIONS, Settings
from smelt.errors import DeviceError, NoDriverError
from smelt.runtime.cuda.driver import system_driver, use_library

NO_DEVICE: Final = 2
"""Exit status where there is no device."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--gpu", action="store_true", required=True, help="measure a GPU")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the results file")
    parser.add_argument("--device", default="cuda:0", help="the device: cuda:0, cuda:1, ...")
    parser.add_argument("--section", action="append", default=[], choices=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no task after this")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the run itself")
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="start no other process: a kernel that fails then ends the run",
    )
    parser.add_argument(
        "--prepare",
        metavar="ARCH",
        help="without a GPU: compile what a run on sm_90, say, will find in the cache",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the measurements of a GPU and return the exit status."""
    options = parser().parse_args(arguments)
    settings = Settings(
        options.out, options.device, options.seconds, tuple(options.section), options.small
    )
    passed = sys.argv[1:] if arguments is None else arguments
    command = [sys.executable, "-m", "bench", *passed, "--one-process"]
    if options.prepare is not None and not options.one_process:
        return prepare(command, options.section or list(SECTIONS))
    if options.prepare is not None:
        with TemporaryDirectory() as folder, use_library(DryDriver(options.prepare)):
            path = Path(folder) / "dry.json"
            results = run(replace(settings, path=path, budget_s=math.inf, is_dry=True))
    elif options.one_process:
        try:
            results = run(settings)
        except DeviceLostError:
            return LOST
    elif (missing := _missing_device(settings.device)) is not None:
        print(missing)
        return NO_DEVICE
    else:
        results = supervise(command, settings)
    rows = all_rows(results)
    wrong = [r.get("name", "a section") for r in rows if "failed" in r or not r.get("ok", True)]
    if wrong:
        print(f"wrong or failed: {', '.join(wrong)}")
    return 1 if wrong or not results else 0


def _missing_device(device: str) -> str | None:
    """Return what to say where there is no such device, None where there is one."""
    try:
        system_driver().device(int(device.partition(":")[2] or 0))
    except (NoDriverError, DeviceError) as error:
        advice = "`--prepare sm_90` compiles here what a run on another machine needs."
        return f"Nothing was measured: {error.code} {error.message}. {advice}"
    return None


def prepare(command: list[str], sections: list[str]) -> int:
    """Compile the programs of the sections, each in a process of its own."""
    once = [x for k, x in enumerate(command) if "--section" not in command[max(k - 1, 0) : k + 1]]
    commands = [[*once, "--section", name] for name in sections]
    processes = [subprocess.Popen(c) for c in commands]  # noqa: S603 - this program
    return max(p.wait() for p in processes)
