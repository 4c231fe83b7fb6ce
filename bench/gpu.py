"""Measure a GPU in one run: `python -m bench --gpu`, at most eight minutes.

Sections run in order: the machine, correct results, programs in layers (`gpu_layers`), rows,
products, attention, models, torch's kernels and races. Times are of the device, between two events;
every row is the median of several runs after one that compiles.

A kernel that fails ends the context of its process, and one that never ends cannot be stopped. So
sections run in a process of their own (`supervise`), which writes the results file after each task:
a new one goes on behind the task that has failed or hung. A later run goes on where one was
interrupted, too, and runs sections again that failed as a whole.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.gpu_sections import SECTIONS, Row, Settings, Task
from smelt.errors import DriverCallError
from smelt.runtime.cuda.driver import Device, system_driver

__all__ = ["LOST", "DeviceLostError", "all_rows", "run", "supervise"]

LOST: Final = 3
"""Exit status of a process whose device has to be set up anew."""
TASK_SECONDS: Final = 90.0
"""Time that a task may take, with the compilation of its programs."""
MAX_LOST: Final = 20
"""Processes that may be lost before a run gives up."""


class DeviceLostError(Exception):
    """A task has failed, and every later call of this process would."""


def _say(line: str) -> None:
    print(line, flush=True)  # a process that is stopped prints nothing more


# ---- one process ---------------------------------------------------------------------------------


def run(settings: Settings, say: Callable[[str], None] = _say) -> dict[str, Any]:
    """Run the tasks that the results file does not have, and return all results.

    Raises NoDriverError and DeviceError where there is no such device, ValueError for a section
    that does not exist, and DeviceLostError behind a task that has ended the context.
    """
    unknown = set(settings.only) - set(SECTIONS)
    if unknown:
        raise ValueError(f"no section {min(unknown)!r}; there are {', '.join(SECTIONS)}")
    device = system_driver().device(int(settings.device.partition(":")[2] or 0))
    deadline = time.perf_counter() + settings.budget_s
    results = stored(settings.path)
    for name, section in SECTIONS.items():
        if results.get(name, {}).get("complete") or (settings.only and name not in settings.only):
            continue
        if time.perf_counter() > deadline:
            say(f"{name}: not begun, {settings.budget_s:.0f} s are spent")
            break
        entry = results.setdefault(name, {"rows": [], "done": [], "seconds": 0.0})
        entry["device"] = device.model
        try:
            for task in section(device, settings):
                if time.perf_counter() > deadline:
                    say(f"{name}: stopped, {settings.budget_s:.0f} s are spent")
                    return results
                if task.name not in entry["done"]:
                    _run_task(task, entry, results, device, settings.path)
        except DeviceLostError:
            say(f"{name}: the device is lost after {entry['done'][-1]}")
            raise
        except Exception:  # noqa: BLE001 - the other sections still run
            entry["failed"] = traceback.format_exc()
        entry["complete"] = "failed" not in entry
        _write(settings.path, results)
        say(f"{name}: {_summary(entry)}")
    return results


def _run_task(
    task: Task, entry: dict[str, Any], results: Mapping[str, Any], device: Device, path: Path
) -> None:
    """Run a task and write its rows, or its failure, to the results file."""
    start = time.perf_counter()
    entry["running"] = task.name
    _write(path, results)
    failed = False
    try:
        rows = task.rows()
    except Exception as error:  # noqa: BLE001 - one program's failure is its own row
        rows, failed = [_failure(task.name, f"{type(error).__name__}: {error}")], True
    del entry["running"]
    entry["rows"] += rows
    entry["done"].append(task.name)
    entry["seconds"] += time.perf_counter() - start
    _write(path, results)
    if failed and _is_lost(device):
        raise DeviceLostError


def _failure(task: str, reason: str) -> Row:
    return {"name": task, "ok": False, "failed": reason}


def _is_lost(device: Device) -> bool:
    try:
        device.synchronize(0)
    except DriverCallError:
        return True
    return False


def _write(path: Path, results: Mapping[str, Any]) -> None:
    """Replace the results file; a process that ends here leaves the old one."""
    other = path.with_suffix(".part")
    other.write_text(json.dumps(results, indent=1), encoding="utf-8")
    other.replace(path)


def stored(path: Path) -> dict[str, Any]:
    """Return the results of an earlier run, without sections that failed as a whole.

    A task that was running when its process ended has failed.
    """
    if not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    results = {name: entry for name, entry in results.items() if "failed" not in entry}
    for entry in results.values():
        if task := entry.pop("running", None):
            entry["rows"].append(_failure(task, "its process ended, or was stopped"))
            entry["done"].append(task)
    return results


# ---- processes -----------------------------------------------------------------------------------


def supervise(
    command: Sequence[str], settings: Settings, say: Callable[[str], None] = _say
) -> dict[str, Any]:
    """Run a command that calls `run`, again where it is lost, and return all results.

    It is passed the seconds that are left. A task that takes too long is stopped.
    """
    deadline = time.monotonic() + settings.budget_s
    for _ in range(MAX_LOST):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        before = stored(settings.path)
        status = _wait([*command, "--seconds", f"{left:.0f}"], settings.path, deadline)
        if status in (0, 1):
            break
        if stored(settings.path) == before:
            say(f"the process ended with status {status} before its first task")
            break
        say(f"the process ended with status {status}; another one goes on")
    results = stored(settings.path)
    if results:
        _write(settings.path, results)
    return results


def _wait(command: Sequence[str], path: Path, deadline: float) -> int:
    """Return the exit status of a command; stop it when a task takes too long."""
    process = subprocess.Popen(command)  # noqa: S603 - this program
    changed, written = time.monotonic(), None
    while process.poll() is None:
        time.sleep(0.2)
        now = path.stat().st_mtime_ns if path.exists() else None
        if now != written:
            changed, written = time.monotonic(), now
        if time.monotonic() > min(changed + TASK_SECONDS, deadline + TASK_SECONDS / 10):
            process.kill()
            process.wait()
    return process.returncode


# ---- results -------------------------------------------------------------------------------------


def all_rows(results: Mapping[str, Any]) -> list[Row]:
    """Return the rows of all sections, and the sections that failed as a whole."""
    failed = [entry for entry in results.values() if "failed" in entry]
    return [*failed, *(row for entry in results.values() for row in entry.get("rows", ()))]


def _summary(entry: Mapping[str, Any]) -> str:
    if "failed" in entry:
        return f"failed: {str(entry['failed']).strip().splitlines()[-1]}"
    rows = entry["rows"]
    failed = sum("failed" in r or r.get("ok") is False for r in rows)
    rates = [f"{r['name']} {r['gb_s']:.0f} GB/s" for r in rows if "gb_s" in r and "name" in r]
    rates += [f"{r['name']} {r['tflop_s']:.1f} TFLOP/s" for r in rows if "tflop_s" in r]
    text = f"{len(rows)} rows, {failed} failed, {math.ceil(entry['seconds'])} s"
    return f"{text}; {', '.join(rates[:6])}" if rates else text
