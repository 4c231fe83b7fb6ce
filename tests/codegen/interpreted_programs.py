"""Run programs of GPUs by Triton's own interpreter; fail where they compute something else.

    python -m tests.codegen.interpreted_programs [--dtype bf16] [--target mi300x] [NAME ...]
    python -m tests.codegen.interpreted_programs --random 100 [--seed 7]

runs the catalogue (`device_catalogue`), or those whose names have a part `NAME`; or random
functions (`drawn_functions`). Kernels are printed for large sizes and run on small arrays. Triton
decides when it is imported whether it interprets, so that this is a process of its own.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton asks when it is imported

import argparse
import sys
import time
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.codegen import test_triton_catalogue as catalogue
from tests.codegen import test_triton_programs as programs
from tests.codegen.device_catalogue import EXAMPLES, has_dtype
from tests.codegen.drawn_functions import FAMILIES, check_drawn
from tests.codegen.triton_interpreter import launch, repair

from smelt.backend.gpus import gpu
from smelt.errors import DeviceKernelError
from smelt.tune.scheduled_gpu import scheduled


def run_catalogue(parts: list[str], dtype: str, target: str, patch: pytest.MonkeyPatch) -> bool:
    """Run programs of the catalogue, and print what is wrong; return whether nothing is."""
    patch.setattr(catalogue, "launch", launch)
    machine, is_right = scheduled(gpu(target)), True
    for name in EXAMPLES:
        if not has_dtype(name, dtype) or (parts and not any(p in name for p in parts)):
            continue
        began = time.process_time()
        with pytest.MonkeyPatch.context() as inner:
            try:
                catalogue.check(name, dtype, machine, inner)
                status = "ok"
            except DeviceKernelError as error:
                status = f"refused: {error}".splitlines()[0]
            except AssertionError as error:
                status, is_right = f"WRONG {error}", False
            except Exception as error:  # noqa: BLE001 - a crash of a printed program is its fault
                status, is_right = f"WRONG {type(error).__name__}: {error}"[-2000:], False
        print(f"{name}: {status} ({time.process_time() - began:.1f} s)", flush=True)
    return is_right


def run_random(count: int, first: int, target: str, patch: pytest.MonkeyPatch) -> bool:
    """Run random functions of every family; return whether all are right."""
    patch.setattr(programs, "launch", launch)
    problems = [run_family(family, count, first + k, target) for k, family in enumerate(FAMILIES)]
    return not any(problems)


def run_family(family: str, count: int, first: int, target: str) -> str:
    """Run drawn functions of a family, and print what is wrong; return that."""
    judged: list[str] = []

    @seed(first)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(st.data())
    def check(data):
        judged.append(check_drawn(data.draw, family, target))

    problem, began = "", time.process_time()
    try:
        check()
    except Exception as error:  # noqa: BLE001 - a crash of a printed program is its fault
        notes = "\n".join(getattr(error, "__notes__", ()))
        problem = f"WRONG {type(error).__name__}: {error}"[-4000:] + notes
    refused = len(judged) - judged.count("judged")
    seconds = time.process_time() - began
    print(
        f"{family}: {len(judged)} programs, {refused} refused ({seconds:.1f} s) {problem}",
        flush=True,
    )
    return problem


def main() -> int:
    """Return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--target", default="h100")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    repair()
    with pytest.MonkeyPatch.context() as patch:
        if options.random:
            return not run_random(options.random, options.seed, options.target, patch)
        return not run_catalogue(options.names, options.dtype, options.target, patch)


if __name__ == "__main__":
    sys.exit(main())
