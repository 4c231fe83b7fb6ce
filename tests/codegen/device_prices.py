"""Compare what a plan is decided by with the times of its schedules, for programs and GPUs.

    python -m tests.codegen.device_prices [TARGET ...]

prints the ratio of both for every program of `device_programs`, and the predicted microseconds.
"""

from __future__ import annotations

import sys

from tests.codegen.device_programs import PROGRAMS, Program

import smelt as sm

TARGETS = ("h100", "a100", "4090", "b200", "mi300x")


def prices(program: Program, target: str) -> tuple[float, float]:
    """Return the nanoseconds that decided a program's plan, and those of its launches."""
    with sm.config(device_code=False, rounding=program.rounding):
        report = sm.explain(program.function, *map(sm.spec, program.arguments), target=target)
    kernels = [k for k in report.data.kernels if k.within is None and k.device is not None]
    planned = sum(k.device.planned_ns or 0.0 for k in kernels if k.device is not None)
    predicted = report.data.total.predicted_ns
    assert predicted is not None
    return planned, predicted


def main() -> None:
    """Print the table."""
    targets = tuple(sys.argv[1:]) or TARGETS
    print(f"{'':36}" + "".join(f"{t:>16}" for t in targets))
    for name, program in PROGRAMS.items():
        if callable(program.function):
            both = [prices(program, t) for t in targets]
            cells = (f"{a / b:8.2f}{b / 1e3:8.0f}" for a, b in both)
            print(f"{name:36}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
