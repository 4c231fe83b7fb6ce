"""`python -m bench`: the benchmarks; with `--gpu`, those of a GPU."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if "--gpu" in sys.argv:
        from bench import gpu_command

        sys.exit(gpu_command.main())
    from bench.command import command

    command(prog_name="python -m bench")
