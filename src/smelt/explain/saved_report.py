"""`SavedReport`: a report as plain data, of a program that is not at hand.

A program file holds the report of its plans, so that whoever loads it reads every decision without
planning again, and without LLVM. `smelt.explain.report` adds what needs the program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smelt.errors import ArgumentError, escape_controls
from smelt.explain.data import ReportData, to_data
from smelt.explain.names import find
from smelt.explain.repeats import Repeats
from smelt.explain.text import page
from smelt.explain.why import Why, why
from smelt.types.json_data import from_data

__all__ = ["LEVELS", "SavedReport"]

LEVELS = (1, 2, 3, 4)
"""What `text` shows: totals and kernels, what `print` shows, all kernels, every decision."""


class SavedReport:
    """A report at the sizes that a program was planned for; `print` it."""

    def __init__(self, data: ReportData) -> None:
        self.data = data

    @staticmethod
    def from_json(text: str) -> SavedReport:
        """Read what `to_json` wrote; raises TypeError, ValueError or KeyError for anything else."""
        return SavedReport(from_data(ReportData, json.loads(text)))

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes that all numbers are for."""
        return self.data.sizes

    @property
    def decisions(self) -> Sequence[Any]:
        """Every candidate fusion in the planner's order, as `smelt.explain.data.DecisionData`."""
        return self.data.decisions

    def text(self, level: int = 2) -> str:
        """Return the page at one of `LEVELS`; raise ArgumentError for another level."""
        if level not in LEVELS:
            raise ArgumentError(op="text", argument="level", value=level, expected="1 to 4")
        return escape_controls(page(self.data, level, self._repeats()))

    def _repeats(self) -> Repeats | None:
        """Return a loop that was unrolled, where the program is at hand."""
        return None

    def why(self, a: Any, b: Any) -> Why:
        """Explain why two operators are, or are not, in one kernel, with the decision's numbers.

        Operators are named as `exp` (any of that name), `exp#3` (as the page shows it), `v3` (as
        the graph's text shows it), `model.py:41` (recorded on that line), by names of the front end
        that recorded them (PyTorch's `addmm`, and the path of a module), or passed as nodes.

        Raises UnknownNameError for a name that nothing in the graph has after the passes.
        """
        return why(self.data, self._find(a), self._find(b))

    def _find(self, name: Any) -> tuple[int, ...]:
        return find(self.data.nodes, str(name))

    def to_data(self) -> dict[str, Any]:
        """Return dicts, lists and scalars, as `to_json` writes them."""
        data: dict[str, Any] = to_data(self.data)
        return data

    def to_json(self, *, times: bool = True, indent: int | None = None) -> str:
        """Return the report as JSON, in the form of `report.schema.json` in this folder.

        Keys come in the order of the schema. Without `times`, measured times and cache states are
        null, so that equal programs give equal texts.
        """
        data = self.to_data()
        if not times:
            data = _without_times(data)
        return json.dumps(data, allow_nan=False, indent=indent)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        t = self.data.total
        text = f"<report of {self.data.name}: {t.operators} operators, {t.kernels} kernels>"
        return escape_controls(text)


_TIMES = frozenset(
    {
        "seconds",
        "compile_seconds",
        "lower_seconds",
        "emit_seconds",
        "load_seconds",
        "measured",
    }
)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        cleaned = {k: None if k in _TIMES else _without_times(v) for k, v in value.items()}
        return cleaned | {"cache": "none", "reason": ""} if "cache" in cleaned else cleaned
    return [_without_times(v) for v in value] if isinstance(value, list) else value
