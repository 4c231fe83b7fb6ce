"""Explain for GPUs whatever a test compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import smelt as sm
from smelt.compiler import driver
from smelt.explain.report import report
from smelt.graph.text import text

DEVICES = {"h100": "NVIDIA H100", "mi300x": "AMD Instinct MI300X"}


def collect_programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Collect what is compiled from now on; return a function that explains it.

    That function returns how many programs there are. Each kernel has a program and a predicted
    time on each device.
    """
    compile_graph = driver.compile
    programs: dict[Any, tuple[Any, Mapping[str, int]]] = {}

    def collect(graph: Any, *, hints: Mapping[str, int] | None = None, **options: Any) -> Any:
        compiled = compile_graph(graph, hints=hints, **options)
        sizes = dict(hints or {})
        programs.setdefault((text(graph), *sorted(sizes.items())), (compiled, sizes))
        return compiled

    def explain() -> int:
        for compiled, sizes in programs.values():
            for target, card in DEVICES.items():
                with sm.config(device_code=False):
                    explained = report(compiled, sizes, target=target)
                assert card in explained.text(3) and explained.to_json()
                for k in explained.data.kernels:
                    assert k.device is not None and k.predicted_ns is not None
                    refused = k.kind in ("kernel", "check") and k.device.refused
                    assert not refused, f"{compiled.graph.name}: {k.device.refused}"
        return len(programs)

    monkeypatch.setattr(driver, "compile", collect)
    return explain
