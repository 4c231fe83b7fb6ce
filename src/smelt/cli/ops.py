"""`smelt ops`: list the operators, or describe one of them.

>>> describe("add")["identity"]
'0'
"""

from __future__ import annotations

from typing import Any

import click

from smelt.cli.terminal import console, print_json, table
from smelt.errors import UnknownNameError, nearest
from smelt.graph.names import operators
from smelt.ops.combine import COMBINES
from smelt.ops.extern import EXTERNS
from smelt.ops.scalar import SCALARS
from smelt.ops.spec import ScalarOp, TensorOp
from smelt.types.dtype import f32, i32


@click.command("ops")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List every operator, or describe the one called NAME."""
    names = operators()
    if name is not None and name not in names:
        close = nearest(name, list(names))
        raise UnknownNameError(
            kind="operator", name=name, suggestion=f"; did you mean {close}?" if close else ""
        )
    rows = [describe(n) for n in (names if name is None else [name])]
    if as_json:
        print_json(rows)
    elif name is not None:
        _print_one(rows[0])
    else:
        _print_table(rows)


def describe(name: str) -> dict[str, Any]:
    """Return the columns of an operator as text, without the empty ones."""
    row = SCALARS.get(name)
    return _scalar(row) if row is not None else _tensor(name, operators()[name])


def _scalar(row: ScalarOp) -> dict[str, Any]:
    rule = row.rule
    columns: dict[str, Any] = {
        "name": row.name,
        "family": "elementwise",
        "doc": row.doc,
        "operands": "; ".join(", ".join(kinds) for kinds in rule.accepts),
        "result": str(rule.result),
        "cost": row.cost,
        "written": row.infix,
        "commutative": row.commutative,
        "associative": row.associative,
        "idempotent": row.idempotent,
        "identity": _number(row.identity),
        "annihilator": _number(row.annihilator),
        "monotone": ", ".join(f"{m:+d}" if m else "0" for m in row.monotone),
        "differentiable": row.derivative is not None,
    }
    return {key: value for key, value in columns.items() if value not in (None, False, "")}


def _number(column: Any) -> str | None:
    """Return a type-dependent column's value: for floats, else for integers."""
    if column is None:
        return None
    for_float = column(f32)
    return repr(column(i32) if for_float is None else for_float)


def _tensor(name: str, row: type[TensorOp]) -> dict[str, Any]:
    member = name.partition(".")[2]
    families = (COMBINES, EXTERNS)
    doc = next((rows[member].doc for rows in families if member in rows), row.doc)
    columns: dict[str, Any] = {
        "name": name,
        "family": "view" if row.is_view else "source" if row.is_source else row.__name__.lower(),
        "doc": doc,
        "attributes": ", ".join(f.split(":")[0] for f in row.__dataclass_fields__),
        "fusible": row.fusible,
    }
    return {key: value for key, value in columns.items() if value != ""}


def _print_table(rows: list[dict[str, Any]]) -> None:
    listed = table("operator", "family", "cost", "what it computes")
    for row in rows:
        listed.add_row(row["name"], row["family"], str(row.get("cost", "")), row["doc"])
    console().print(listed)


def _print_one(row: dict[str, Any]) -> None:
    listed = table("", "")
    for key, value in row.items():
        listed.add_row(key, str(value))
    console().print(listed)
