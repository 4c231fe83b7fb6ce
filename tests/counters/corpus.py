"""Exact counts of a fixed corpus: kernels, bytes, memory and code size.

    python -m tests.counters.corpus             print them, and what differs from those stored
    python -m tests.counters.corpus --update    store them

Everything is planned for a machine that is the same everywhere (the generic AVX-512 target with
assumed speeds), and nothing is timed, so that a number differs only if the compiler does. A lower
number is an improvement and has to be stored too: the difference belongs into the commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from bench.namespaces import smelt_namespace
from bench.workloads import WORKLOADS
from demo import minilm
from smelt.codegen.llvm.program import program
from smelt.codegen.llvm.schedule.build_schedules import build_schedules
from smelt.explain.report import report
from smelt.kernel.ir import Kernel
from smelt.machine.target import Target

STORED = Path(__file__).parent / "counters.json"
TARGET = "avx512"

Array = np.ndarray[Any, Any]
Program = tuple[Callable[..., Any], tuple[Array, ...]]
Counters = dict[str, int]


def _empty(*shape: int, dtype: str = "float32") -> Array:
    """An array whose memory is never touched: only its shape counts here."""
    return np.empty(shape, dtype)


def _linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return sm.nn.gelu(x @ w + b)


def _linear_norm(x: Any, w: Any, b: Any, r: Any, g: Any, s: Any) -> Any:
    return sm.nn.layer_norm(x @ w + b + r, g, s)


def _heads(x: Any, q: Any, k: Any, v: Any) -> Any:
    return x @ q, x @ k, x @ v


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ sm.matrix_transpose(k) / 8
    weights = sm.exp(scores - sm.max(scores, axis=-1, keepdims=True))
    return (weights / sm.sum(weights, axis=-1, keepdims=True)) @ v


def _embedding(table: Any, ids: Any, g: Any) -> Any:
    return sm.nn.rms_norm(sm.take(table, ids, axis=0), g)


def _running(x: Any) -> Any:
    return sm.cumulative_sum(sm.exp(x), axis=-1)


def _encoder(layers: int) -> Program:
    """The demo's network with some of its layers, and weights that are never looked at."""
    weights = minilm.random_weights(hidden=384, layers=layers, vocabulary=64, positions=128, seed=0)
    names = tuple(weights)

    def encode(ids: Any, mask: Any, *values: Any) -> Any:
        return minilm.encode(sm, dict(zip(names, values, strict=True)), ids, mask)

    ids, mask = _empty(16, 128, dtype="int64"), _empty(16, 128, dtype="bool")
    return encode, (ids, mask, *weights.values())


def _workload(name: str) -> Program:
    row = WORKLOADS[name]
    kinds = [array.dtype.name for array in row.arrays(small=True)]
    arrays = (_empty(*item.shape, dtype=kind) for item, kind in zip(row.inputs, kinds, strict=True))
    return partial(row.call, smelt_namespace(sm)), tuple(arrays)


def programs() -> dict[str, Callable[[], Program]]:
    """The corpus: the benchmark's rows, and what they leave out."""
    m, n, k = 2048, 1536, 384
    x, heads = _empty(m, k), _empty(2, 12, 256, 64)
    vector, wide = _empty(k), _empty(n)
    extra: dict[str, Program] = {
        "linear_gelu": (_linear_gelu, (x, _empty(k, n), wide)),
        "linear_norm": (_linear_norm, (x, _empty(k, k), vector, x, vector, vector)),
        "heads": (_heads, (x, _empty(k, k), _empty(k, k), _empty(k, k))),
        "attention": (_attention, (heads, heads, heads)),
        "embedding_norm": (_embedding, (_empty(30000, k), _empty(4096, dtype="int64"), vector)),
        "running_sum": (_running, (_empty(m, n),)),
    }
    results: dict[str, Callable[[], Program]] = {
        name: partial(_workload, name) for name in WORKLOADS
    }
    results |= {name: lambda built=built: built for name, built in extra.items()}
    return results | {f"encoder_{layers}": partial(_encoder, layers) for layers in (1, 2)}


def count(program: Program) -> Counters:
    """The numbers of one program."""
    function, arrays = program
    with sm.config(target=TARGET, cache=False, must_fuse="", never_fuse="", rounding="eager"):
        trace = sm.jit(function).lower(*arrays).trace
        compiled_report = report(trace.executable, trace.hints)
    total = compiled_report.data.total
    return {
        "operators": total.operators,
        "kernels": total.kernels,
        "calls": total.calls,
        "launches": len(compiled_report.data.launches),
        "checks": len(compiled_report.checks),
        "bytes": total.bytes,
        "bytes_unfused": total.bytes_unfused,
        "arena_bytes": compiled_report.data.memory.temp,
        "ir_lines": sum(k.ir_size for k in compiled_report.kernels if k.kernel is not None),
        "nests": sum(nests_without_loops(k.kernel) for k in compiled_report.kernels if k.kernel),
    }


def nests_without_loops(kernel: Kernel) -> int:
    """The nests of a kernel that are products, whose drivers emit them: it only falls."""
    schedules = (
        s
        for phase in program(kernel).phases
        for s in build_schedules(phase, Target.for_isa(TARGET), "")
    )
    return sum(nest.product is not None for s in schedules for nest in s.nests)


def stored() -> dict[str, Counters]:
    """What the compiler did when somebody last looked."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def differences(name: str, old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """One line for each number that differs."""
    return [
        f"{name}: {key} {old.get(key)} -> {new.get(key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def main(arguments: list[str]) -> None:
    """The command."""
    old = stored()
    new = {name: count(make()) for name, make in programs().items()}
    headers = list(next(iter(new.values())))
    print(f"{'':<22}" + "".join(f"{header:>15}" for header in headers))
    for name, counters in new.items():
        print(f"{name:<22}" + "".join(f"{counters[key]:>15,}" for key in headers))
    for name in old.keys() | new.keys() if old else ():
        for line in differences(name, old.get(name, {}), new.get(name, {})):
            print(line)
    if arguments == ["--update"]:
        rows = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in new.items())
        STORED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
