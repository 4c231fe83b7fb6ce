"""Run the tests behind docs/trust.md, and generate its table.

    python -m tools.trust                 run the tests of every figure, and store their values
    python -m tools.trust kills spelling  run those of some figures only
    python -m tools.pages docs/trust.md   write the table (`make pages`)

A figure's value is what its tests said when they last ran: how many passed, and the numbers that
they measured (`tests/trust.py`). It is stored with its date in docs/trust.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "PARTS", "Figure"]

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs" / "trust.json"
EVERYDAY = "not nightly and not clock"


@dataclass(frozen=True)
class Figure:
    """What is promised, and what tests it."""

    name: str
    """One word, by which the command selects it."""
    subject: str
    goal: str
    tests: tuple[str, ...] = ()
    """Files, or tests in files, as pytest takes them."""
    unmeasured: str = ""
    """Why there is no value; empty if there is one."""
    marks: str = EVERYDAY


THREADS = "tests/runtime/test_pool.py"
JUDGES = "tests/property/test_oracles.py"
CACHE = "tests/runtime/test_cache_hostile.py"
POOL = "tests/runtime/test_pool_processes.py"
COMPILE = "tests/runtime/test_compile_processes.py"

FIGURES = (
    Figure(
        "programs",
        "Random programs, run by the interpreters of graphs and of kernels and as native code",
        "no difference beyond rounding",
        (
            f"{JUDGES}::test_graph_interpreter_and_native_code_agree",
            f"{JUDGES}::test_kernel_interpreter_and_native_code_agree",
        ),
    ),
    Figure(
        "exact",
        'Random programs with `rounding="exact"`, fused and one kernel per operator',
        "no bit differs",
        (f"{JUDGES}::test_exact_rounding_has_the_bits_of_one_kernel_per_operator",),
    ),
    Figure(
        "spellings",
        "Equivalent programs: rewrite rules run backwards, and ways to write attention, masks,"
        " dropout, norms and losses",
        "the same number of kernels and bytes stored, without exceptions",
        ("tests/fusion/test_spellings.py",),
    ),
    Figure(
        "models",
        "Random PyTorch modules through `torch.compile`",
        "values, strides and shared memory as in eager code",
        ("tests/frontends/torch/test_random_modules.py",),
    ),
    Figure(
        "opinfo",
        "PyTorch's own samples of each of its operators, in three types",
        "no wrong value, no crash",
        ("tests/frontends/torch/test_opinfo.py",),
        marks="nightly",
    ),
    Figure(
        "standard",
        "The array API standard 2024.12",
        "at least 98 % of array-api-tests",
        (
            "tests/frontends/array/test_standard.py",
            "tests/frontends/array/test_array_api_strict.py",
        ),
        unmeasured="array-api-tests is not a package; tests compare with array-api-strict",
    ),
    Figure(
        "onnx",
        "ONNX's node tests",
        "all operators that are claimed",
        unmeasured="there is no ONNX front end",
    ),
    Figure(
        "accuracy",
        "Errors of functions in units of the last place ([table](accuracy.md))",
        "exp, log, tanh at most 1.5; erf at most 2.5; none above its promise",
        ("tests/codegen/test_math_accuracy.py",),
    ),
    Figure(
        "special",
        "±0, ±∞, NaN, subnormal and largest numbers in every operator",
        "as NumPy and the standard define",
        ("tests/codegen/test_math_rows.py",),
    ),
    Figure(
        "zeros",
        "±0, ±∞, NaN, subnormal and largest numbers in exact functions of both front ends",
        "the bits of PyTorch's eager code and of NumPy",
        (
            "tests/frontends/torch/test_special_numbers.py",
            "tests/frontends/numpy/test_special_numbers.py",
        ),
    ),
    Figure(
        "numbers",
        "Half types with numbers and 0-d tensors through `torch.compile`, each row that takes one",
        "the bits of eager code, or its neighbour's for approximated functions",
        ("tests/frontends/torch/test_half_numbers.py",),
    ),
    Figure(
        "counts",
        "Gradients of reductions and gathers of 70,000 equal halves, in both front ends",
        "those of float64, rounded",
        ("tests/autodiff/test_half_counts.py", "tests/frontends/torch/test_half_counts.py"),
    ),
    Figure(
        "bools",
        "Functions of `smelt.numpy` that sum or subtract bools",
        "NumPy's values and types",
        ("tests/frontends/numpy/test_bools.py",),
    ),
    Figure(
        "environment",
        "Floating-point control, errno and signal masks after compiling and running",
        "unchanged",
        (
            "tests/codegen/test_math_environment.py",
            f"{THREADS}::test_floating_point_control_is_the_default_in_every_thread",
            f"{THREADS}::test_helpers_block_all_signals_and_the_caller_none",
        ),
    ),
    Figure(
        "threads",
        "Random programs on different numbers of threads",
        "no bit differs",
        (
            f"{JUDGES}::test_results_have_the_same_bits_for_every_number_of_threads",
            f"{THREADS}::test_results_are_the_same_bits_for_every_number_of_threads",
        ),
    ),
    Figure(
        "rescaling",
        "Online reductions (softmax, norms, losses) under other scales, and with planted faults",
        "no false alarm; every planted fault is found",
        ("tests/catalogue/test_gauges.py", "tests/lower/test_gauges.py"),
    ),
    Figure(
        "rules",
        "Every rewrite rule in every type it is for",
        "all 8- and 16-bit values, special and random wider ones; z3 proves those of integers",
        ("tests/rewrite/test_rules.py",),
    ),
    Figure(
        "bounds",
        "Kernels with a wrong index, stride, size or mask",
        "all are refused before they run; no right kernel is",
        ("tests/kernel/test_mutants.py", "tests/kernel/test_bounds.py"),
    ),
    Figure(
        "mutation",
        "Tests that fail if a line of a pass, of fusion or of lowering is changed",
        "90 % of changes",
        unmeasured="a run over all passes takes days on two processors",
    ),
    Figure(
        "errors",
        "Every class of error: code, text, line of the user, hint",
        "each has a page, an example that raises it, and a test",
        ("tests/errors/test_errors.py",),
    ),
    Figure(
        "kills",
        "Processes killed at random moments of a cold compilation, or while they write the cache",
        "the next process is right; no damaged entry, no file that stays",
        (
            f"{COMPILE}::test_a_killed_compilation_leaves_a_cache_that_the_next_one_can_use",
            f"{CACHE}::test_writers_killed_at_any_moment",
        ),
    ),
    Figure(
        "damage",
        "Entries of the cache that are cut, changed, mixed, exchanged or old",
        "each is found, removed and written again",
        ("tests/runtime/test_cache.py::test_500_damaged_entries_are_found_removed_and_repaired",),
    ),
    Figure(
        "calls",
        "Each system call of the cache fails, in eleven ways; full disks; no descriptor, no thread",
        "right results; at most one warning; no unfinished file",
        (
            f"{CACHE}::test_every_single_call_may_fail",
            f"{CACHE}::test_a_full_disk",
            f"{CACHE}::test_no_descriptors_left",
            f"{POOL}::test_a_refused_thread_is_done_without",
        ),
    ),
    Figure(
        "directories",
        "A cache that belongs to others, that others may write to, or that is not a directory",
        "nothing foreign is read; compilation works without it",
        tuple(
            f"{CACHE}::test_{name}"
            for name in (
                "a_directory_that_others_may_write_to",
                "a_symbolic_link_instead_of_the_directory",
                "a_file_instead_of_the_directory_or_its_parent",
                "what_is_no_file_of_ours_is_never_read",
                "a_foreign_owner",
                "as_another_user",
                "no_home",
            )
        ),
    ),
    Figure(
        "processes",
        "Sixteen processes on one cold cache, with eviction",
        "no error, the same results",
        (f"{CACHE}::test_sixteen_processes_on_a_cold_cache_with_eviction",),
    ),
    Figure(
        "forks",
        "Forks, spawned processes and fork servers before, during and after use",
        "no hang, no wrong result",
        tuple(
            f"{POOL}::test_{name}"
            for name in (
                "children_of_a_fork_have_a_pool_of_their_own",
                "forks_while_other_threads_run_compile_and_allocate",
                "a_handler_that_forks_in_the_middle_of_a_run",
                "multiprocessing",
            )
        ),
    ),
    Figure(
        "signals",
        "Interrupt, alarm and termination in the middle of a run or a compilation",
        "the exception comes within 200 ms; the next call is right",
        (
            f"{COMPILE}::test_a_signal_ends_a_compilation_and_the_next_call_is_right",
            f"{POOL}::test_control_c_leaves_the_pool_usable",
            f"{POOL}::test_an_interrupt_at_any_moment_leaves_the_pool_free",
            "tests/runtime/test_signals.py",
        ),
    ),
    Figure(
        "callers",
        "Eight Python threads that call at once, on two processors",
        "at most 1.3 times as long as one after the other; the same bits",
        (
            f"{THREADS}::test_eight_python_threads_at_once",
            f"{THREADS}::test_eight_callers_take_no_longer_than_one_after_the_other",
        ),
        marks="not nightly",
    ),
    Figure(
        "hostile",
        "Hostile texts, sizes, strides and empty arrays",
        "a result or a typed error",
        (
            "tests/property/test_hostile_texts.py",
            "tests/kernel/test_text_fuzz.py",
            "tests/frontends/array/test_large_numbers.py",
            "tests/frontends/array/test_empty_networks.py",
            "tests/frontends/numpy/test_empty.py",
        ),
    ),
    Figure(
        "numpy",
        "NumPy's functions over types, ranks 0 to 3, empty arrays and single rows",
        "NumPy's shapes and types of a sixth of 29,610 calls (all at night), values of some",
        (
            "tests/frontends/numpy/test_grid.py",
            "tests/frontends/numpy/test_new_axes.py",
            "tests/frontends/numpy/test_everyday_python.py",
        ),
    ),
    Figure(
        "endurance",
        "10,000 calls, and functions that are compiled and dropped",
        "less than 1 MB for 1,000; descriptors and threads constant",
        ("tests/runtime/test_endurance.py",),
    ),
    Figure(
        "bisection",
        "Planted faults that a command traces to a pass or a decision",
        "20 of 20",
        unmeasured="there is no such command; `smelt opt` replays single passes",
    ),
    Figure(
        "instructions",
        "Code for a processor with more instructions, and a cache that two processors share",
        "never run; never an illegal instruction",
        ("tests/runtime/test_foreign_code.py",),
    ),
)


# ---- the tests ----------------------------------------------------------------------------------

ABORTED = "<testsuite><testcase><failure/></testcase></testsuite>"
"""The report of a process that ended before it wrote one."""


def run(figure: Figure) -> dict[str, Any]:
    """Run a figure's tests; return what is stored of them."""
    with tempfile.TemporaryDirectory() as folder:
        report, numbers = Path(folder) / "report.xml", Path(folder) / "numbers"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-m", figure.marks]
        subprocess.run(
            [*command, *figure.tests],
            cwd=ROOT,
            env={**os.environ, "TRUST_VALUES": str(numbers), "SAMPLE_SEED": "all"},
            check=False,
        )
        value = counts(report.read_text(encoding="utf-8") if report.exists() else ABORTED)
        lines = numbers.read_text(encoding="utf-8").splitlines() if numbers.exists() else []
    value["numbers"] = dict(sorted(json.loads(line) for line in lines))  # the largest of a name
    value["date"] = datetime.now(UTC).date().isoformat()
    return value


def counts(report: str) -> dict[str, Any]:
    """Count the tests of a JUnit report that passed, failed or were skipped.

    >>> counts("<s><testcase/><testcase><failure/></testcase></s>")
    {'passed': 1, 'failed': 1, 'expected': 0, 'skipped': 0}
    """
    cases = ET.fromstring(report).iter("testcase")  # noqa: S314 - pytest has just written it
    outcomes = Counter(map(_outcome, cases))
    return {name: outcomes[name] for name in ("passed", "failed", "expected", "skipped")}


def _outcome(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "expected" if skipped.get("type") == "pytest.xfail" else "skipped"


# ---- the page -----------------------------------------------------------------------------------


def stored(path: Path = STORED) -> dict[str, Any]:
    """Return the values by the figures' names."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def value_text(value: dict[str, Any]) -> str:
    """Return a value as the table shows it.

    >>> value_text(
    ...     {"passed": 2, "failed": 0, "expected": 1, "skipped": 0, "numbers": {"b": 1234.5}}
    ... )
    '2 passed, 1 listed exception; b: 1,234'
    """
    parts = [f"{value['passed']:,} passed"]
    if value["failed"]:
        parts.append(f"**{value['failed']} failed**")
    if many := value["expected"]:
        parts.append(f"{many} listed exception{'s' if many > 1 else ''}")
    if value["skipped"]:
        parts.append(f"{value['skipped']} skipped")
    return "; ".join(
        [
            ", ".join(parts),
            *(
                f"{n}: {x:,.4g}" if abs(x) < 1000 else f"{n}: {x:,.0f}"
                for n, x in value["numbers"].items()
            ),
        ]
    )


def files(tests: Iterable[str]) -> list[str]:
    """Return the files of tests, each once."""
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def table(path: Path = STORED) -> str:
    """Return a row for each figure."""
    values = stored(path)
    rows = [
        "| what is tested | goal | last value | date | tests |",
        "| --- | --- | --- | --- | --- |",
    ]
    for figure in FIGURES:
        value = values.get(figure.name)
        text = value_text(value) if value else _without_value(figure)
        if figure.unmeasured:
            text = f"not measured, because {figure.unmeasured}" + (f": {text}" if value else "")
        where = (
            ", ".join(f"`{file.removeprefix('tests/')}`" for file in files(figure.tests)) or "none"
        )
        date = value["date"] if value else ""
        rows.append(f"| {figure.subject} | {figure.goal} | {text} | {date} | {where} |")
    return "\n".join(rows) + "\n"


def _without_value(figure: Figure) -> str:
    is_nightly = figure.marks == "nightly"
    return "not measured, because `make nightly` alone runs it" if is_nightly else "not run yet"


PARTS = {"table": table}


def main(names: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    figures = {figure.name: figure for figure in FIGURES}
    if unknown := [name for name in names if name not in figures]:
        print(
            f"no such figure: {', '.join(unknown)}; there are {', '.join(figures)}", file=sys.stderr
        )
        return 2
    for name in names or [figure.name for figure in FIGURES if figure.tests]:
        print(f"== {name}", flush=True)
        value = run(figures[name])
        values = {**stored(), name: value}
        text = json.dumps(dict(sorted(values.items())), indent=1, ensure_ascii=False)
        STORED.write_text(text + "\n", encoding="utf-8")
    failed = [name for name, value in stored().items() if value["failed"]]
    print(f"failed: {', '.join(failed)}" if failed else "every figure's tests pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
