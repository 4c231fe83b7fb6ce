"""Count ONNX's node tests that pass: `python -m tools.onnx_node_tests [PATTERN] [--fallback]`.

Prints a line for each test that fails, with its cause, and the share that passes. Needs the package
onnx. With --fallback, onnx's reference evaluator computes operators without a rule.
"""

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
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import smelt.onnx


def feeds_of(folder: Path, kind: str, ports: Any) -> list[Any]:
    """Return the stored inputs or outputs of a test."""
    values: list[Any] = []
    for k, port in enumerate(ports):
        data = (folder / f"{kind}_{k}.pb").read_bytes()
        values.append(_value(data, port.type))
    return values


def _value(data: bytes, type_: Any) -> Any:
    if type_.HasField("sequence_type"):
        sequence = onnx.SequenceProto.FromString(data)
        return numpy_helper.to_list(sequence)
    if type_.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


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


def run_case(case: Any, fallback: str) -> str:
    """Return the cause of a failure; empty if the test passes."""
    folder = Path(case.model_dir)
    proto = onnx.load(folder / "model.onnx")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = smelt.onnx.load(folder / "model.onnx", fallback=fallback)
            for data in sorted(folder.glob("test_data_set_*")):
                initial = {t.name for t in proto.graph.initializer}
                ports = [p for p in proto.graph.input if p.name not in initial]
                inputs = dict(zip([p.name for p in ports], feeds_of(data, "input", ports)))
                wanted = feeds_of(data, "output", proto.graph.output)
                for got, want in zip(session.run(None, inputs), wanted, strict=True):
                    cause = differs(got, want, case.rtol, case.atol)
                    if cause:
                        return cause
    except Exception as error:  # noqa: BLE001 - a count of causes
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def main() -> None:
    """Run the tests whose names match and print what fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--fallback", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = [c for c in load_model_tests(kind="node") if re.search(options.pattern, c.name)]
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
