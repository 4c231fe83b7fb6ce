"""Every program of the catalogue, of the corpus and of the examples is explained in all forms."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.catalogue.harness import MACHINE, matched, record
from tests.catalogue.rows import Row, draw, small, wanted
from tests.programs.rows import PROGRAMS

import smelt as sm
from smelt import driver
from smelt.explain.analysis import memory_analysis
from smelt.explain.data import ReportData
from smelt.explain.report import report
from smelt.frontends.array.trace import Trace

SAMPLE = 4
"""One program in so many is explained by `make test`, all of them by `make nightly`."""
for family in ("images", "physics", "finance", "learning", "integers"):
    import_module(f"tests.programs.{family}")
CATALOGUE = {
    row.id: row
    for path in sorted((Path(__file__).parents[1] / "catalogue").glob("test_[a-h]_*.py"))
    for row in getattr(import_module(f"tests.catalogue.{path.stem}"), "ROWS", ())
}


def recorded_row(row: Row) -> tuple[Trace, dict[str, int]]:
    trace = record(row.code, draw(row, small(row, 3), "f32"))
    return trace, matched(trace, [n for x in row.inputs for n in wanted(x, "f32").dims(row.sizes)])


def recorded_program(name: str) -> tuple[Trace, dict[str, int]]:
    program = PROGRAMS[name]
    arrays = program.make(np.random.default_rng(0), 64, np.float32)
    trace = sm.jit(lambda *xs: program.run(sm, *xs)).lower(*arrays).trace
    return trace, trace.hints


def recorded_example() -> tuple[Trace, dict[str, int]]:
    norm = import_module("examples.norm").norm
    x = sm.spec((4096, 768), np.float32)
    trace = sm.jit(norm).lower(x, x, sm.spec((768,), np.float32)).trace
    return trace, trace.hints


MAKERS: dict[str, Callable[[], tuple[Trace, dict[str, int]]]] = {
    **{f"row {k}": partial(recorded_row, row) for k, row in CATALOGUE.items()},
    **{f"program {k}": partial(recorded_program, k) for k in PROGRAMS},
    "example norm": recorded_example,
}


def cases() -> list[Any]:
    return [
        pytest.param(
            name,
            id=name.replace(" ", "_"),
            marks=() if zlib.crc32(name.encode()) % SAMPLE == 0 else (pytest.mark.nightly,),
        )
        for name in MAKERS
    ]


@pytest.mark.parametrize("name", cases())
def test_it_is_explained_and_moves_no_more_than_its_operators(name: str) -> None:
    trace, sizes = MAKERS[name]()
    if not any(n.inputs for n in trace.graph.nodes()):
        pytest.skip("it computes nothing")
    compiled = driver.compile(trace.graph, hints=sizes, target=MACHINE)
    compiled_report = report(compiled, sizes)
    assert compiled_report.text(4) and memory_analysis(compiled, sizes).argument_size_in_bytes >= 0
    msgspec.json.decode(compiled_report.to_json(), type=ReportData, strict=True)
    total = compiled_report.data.total
    assert total.bytes <= total.bytes_unfused, f"{total.bytes:,} of {total.bytes_unfused:,} bytes"


@pytest.mark.parametrize("name", cases())
def test_it_is_explained_for_a_gpu(name: str) -> None:
    """Each kernel has a program, or a reason why not, and a predicted time."""
    trace, sizes = MAKERS[name]()
    if not any(n.inputs for n in trace.graph.nodes()):
        pytest.skip("it computes nothing")
    compiled = driver.compile(trace.graph, hints=sizes, target=MACHINE)
    with sm.config(device_code=False):
        device_report = report(compiled, sizes, target="h100")
    assert "NVIDIA H100" in device_report.text(3)
    for k in device_report.data.kernels:
        assert k.device is not None and k.predicted_ns is not None
        assert (k.device.source is None) == (k.device.refused is not None)
        assert k.kind not in ("kernel", "check") or k.device.refused is None, k.device.refused


def test_there_are_programs() -> None:
    assert len(CATALOGUE) > 40 and len(PROGRAMS) > 20
