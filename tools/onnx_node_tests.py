"""Count ONNX's node tests that pass: `python -m tools.onnx_node_tests [PATTERN] [--fallback]`.

Prints a line for each test that fails, with its cause, and the share that passes. Needs the package
onnx. With --fallback, onnx's reference evaluator computes operators without a rule.
"""

# The package onnx is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

import smelt.onnx


def differs(got: Any, want: Any, rtol: float, atol: float) -> str:
    """Return how a result differs; empty if it does not."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return "another sequence"
        return next(filter(None, (differs(g, w, rtol, atol) for g, w in zip(got, want))), "")
    if want is None or got is None:
        return "" if got is want else "another optional"
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, {want.dtype}{list(want.shape)} expected"
    if want.dtype.kind in "OUS":
        return "" if np.array_equal(got.astype(str), want.astype(str)) else "another text"
    if want.dtype.kind == "V" or want.dtype.name not in np.sctypeDict:
        got, want = got.astype(np.float32), want.astype(np.float32)
    with np.errstate(all="ignore"):
        if not np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
            gap = np.nanmax(np.abs(got.astype(np.float64) - want.astype(np.float64)))
            return f"differs by {gap:.3g}"
    return ""


def plain(x: Any) -> Any:
    """Return a stored value in NumPy."""
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    if isinstance(x, onnx.SequenceProto):
        return onnx.numpy_helper.to_list(x)
    return onnx.numpy_helper.to_optional(x) if isinstance(x, onnx.OptionalProto) else x


def run_case(case: Any, fallback: str) -> str:
    """Return the cause of a failure; empty if the test passes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = smelt.onnx.load(case.model.SerializeToString(), fallback=fallback)
            for inputs, wanted in case.data_sets:
                values = (plain(x) for x in inputs)
                feeds = dict(zip([a.name for a in session.inputs], values, strict=False))
                for got, want in zip(session.run(None, feeds), wanted, strict=True):
                    cause = differs(got, plain(want), case.rtol, case.atol)
                    if cause:
                        return cause
    except Exception as error:  # noqa: BLE001 - a count of causes
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def all_cases(pattern: str) -> list[Any]:
    """Return the tests whose names match a regular expression."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [c for c in collect_testcases(None) if re.search(pattern, c.name)]


def main() -> None:
    """Run the tests whose names match and print what fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--fallback", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = all_cases(options.pattern)
    causes: dict[str, str] = {}
    start = time.perf_counter()
    for case in cases:
        begin = time.perf_counter()
        causes[case.name] = run_case(case, "reference" if options.fallback else "error")
        spent = time.perf_counter() - begin
        if causes[case.name] or spent > 20:
            print(f"{case.name} ({spent:.1f} s): {causes[case.name]}", flush=True)
    passed = sum(not c for c in causes.values())
    kinds = Counter(re.sub(r"[\d.]+", "#", c)[:60] for c in causes.values() if c)
    for kind, n in kinds.most_common(25):
        print(f"{n:5} {kind}", file=sys.stderr)
    share = 100 * passed / max(len(cases), 1)
    took = time.perf_counter() - start
    print(f"{passed} of {len(cases)} node tests pass ({share:.1f} %), {took:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(causes, indent=1) + "\n")


if __name__ == "__main__":
    main()
