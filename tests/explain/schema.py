"""The JSON schema of reports, from the dataclasses: `python -m tests.explain.schema` writes it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from smelt.explain import data

PATH = Path(data.__file__).with_name("report.schema.json")


def schema_text() -> str:
    """The schema as the shipped file has it."""
    result = msgspec.json.schema(data.ReportData)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{data.FORMAT} {data.VERSION}",
    }
    return json.dumps(head | result, indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(schema_text())
