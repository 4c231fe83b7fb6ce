"""`python -m smelt.bench --gpu`: measure a GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from smelt.bench.gpu import SECTIONS, Settings, run


def main(arguments: list[str] | None = None) -> int:
    """Run the measurements of a GPU and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m smelt.bench", description=__doc__)
    parser.add_argument("--gpu", action="store_true", required=True, help="measure a GPU")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="the results file")
    parser.add_argument("--device", default="cuda:0", help="the device: cuda:0, cuda:1, ...")
    parser.add_argument("--section", action="append", default=[], choices=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no section after this")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the run itself")
    options = parser.parse_args(arguments)
    settings = Settings(
        options.out, options.device, options.seconds, tuple(options.section), options.small
    )
    results = run(settings)
    failed = [name for name, entry in results.items() if "failed" in entry]
    wrong = [r["name"] for r in results.get("correct", {}).get("rows", ()) if not r["ok"]]
    if wrong:
        print(f"wrong or failed: {', '.join(wrong)}")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
