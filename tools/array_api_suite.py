"""Run the test suite of the array API standard against Smelt and NumPy, and compare.

    python -m tools.array_api_suite CHECKOUT [--examples N] [TEST ...]

CHECKOUT is a clone of https://github.com/data-apis/array-api-tests with its submodule.  Tests in
tools/array_api_failures.txt may fail, for the reasons there.  The counts and the other failures are
written to docs/array_api.json, which docs/array_api.md shows.  The exit code is 1 if a test fails
that NumPy passes and the list does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

__all__ = ["compare", "expected_failures", "main", "report", "run_suite"]

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "docs" / "array_api.json"
FAILURES: Final = Path(__file__).with_name("array_api_failures.txt")
MODULES: Final = ("smelt", "numpy")
"""Namespaces that are tested, the reference last."""
REPOSITORY: Final = "https://github.com/data-apis/array-api-tests"


def expected_failures(path: Path = FAILURES) -> dict[str, str]:
    """Return the reasons of the tests that may fail: lines `TEST  # reason`.

    Raises ValueError for a line without a reason.
    """
    reasons: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        test, _, reason = (part.strip() for part in line.partition("#"))
        if not test:
            continue
        if not reason:
            raise ValueError(f"{path.name}: {test} has no reason")
        reasons[test] = reason
    return reasons


def run_suite(
    checkout: Path, module: str, tests: Sequence[str] = (), examples: int = 20
) -> dict[str, str]:
    """Run the suite against a namespace; return "passed", "failed" or "skipped" by test.

    Raises RuntimeError if no test ran, such as for a folder without the suite.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            f"--max-examples={examples}",
            f"--junitxml={results}",
            *(tests or ["array_api_tests"]),
        ]
        paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **os.environ,
            "ARRAY_API_TESTS_MODULE": module,
            "ARRAY_API_TESTS_VERSION": "2024.12",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        done = subprocess.run(
            command, cwd=checkout, env=variables, capture_output=True, text=True, check=False
        )
        if not results.is_file():
            raise RuntimeError(f"{checkout}: the suite did not run:\n{done.stdout}{done.stderr}")
        tree = ET.parse(results)  # noqa: S314 - pytest wrote it
        cases = tree.getroot().iter("testcase")
        outcomes = {_name(case): _outcome(case) for case in cases}
    if not outcomes:
        raise RuntimeError(f"{checkout}: no tests were found\n{done.stdout}{done.stderr}")
    return outcomes


def _name(case: Any) -> str:
    """Return a test's name as pytest selects it."""
    path = case.get("classname", "").replace(".", "/")
    return f"{path}.py::{case.get('name')}"


def _outcome(case: Any) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def compare(
    ours: Mapping[str, str], reference: Mapping[str, str], expected: Mapping[str, str]
) -> dict[str, Any]:
    """Return the counts of a run, and the tests that fail though the reference passes.

    `failures` maps each of them to its reason, empty if the list of expected ones lacks it.
    """
    wanted = [test for test, outcome in reference.items() if outcome == "passed"]
    passed = [test for test in wanted if ours.get(test) == "passed"]
    failures = {t: expected.get(t, "") for t in wanted if ours.get(t) != "passed"}
    return {"reference": len(wanted), "passed": len(passed), "failures": failures}


def report(path: Path = RESULTS) -> str:
    """Return the part of the page about the last run."""
    if not path.is_file():
        return (
            f"The [suite of the standard]({REPOSITORY}) has not been run against this version:"
            " `python -m tools.array_api_suite CHECKOUT` runs it and fills in this part.\n"
        )
    results = json.loads(path.read_text(encoding="utf-8"))
    share = 100 * results["passed"] / max(results["reference"], 1)
    lines = [
        (
            f"Of {results['reference']} tests of the [suite of the standard]({REPOSITORY}) that"
            f" NumPy passes, Smelt passes {results['passed']} ({share:.1f} %)."
        ),
    ]
    if results["failures"]:
        lines += ["", "| test | reason |", "| --- | --- |"]
        lines += [f"| `{t}` | {why or 'not known yet'} |" for t, why in results["failures"].items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.array_api_suite")
    parser.add_argument("checkout", type=Path, help="a clone of array-api-tests")
    parser.add_argument("tests", nargs="*", help="tests of the clone; all by default")
    parser.add_argument("--examples", type=int, default=20, help="drawn examples for each test")
    options = parser.parse_args(arguments)
    if not (options.checkout / "array_api_tests").is_dir():
        print(f"{options.checkout} is no clone of {REPOSITORY}", file=sys.stderr)
        return 2
    ours, reference = (
        run_suite(options.checkout, module, options.tests, options.examples) for module in MODULES
    )
    outcome = compare(ours, reference, expected_failures())
    if not options.tests:  # a part of the suite says nothing about the whole
        results.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    unexpected = [test for test, reason in outcome["failures"].items() if not reason]
    print(f"{outcome['passed']} of {outcome['reference']} tests pass that NumPy passes")
    print(*(f"failed: {test}" for test in unexpected), sep="\n")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
