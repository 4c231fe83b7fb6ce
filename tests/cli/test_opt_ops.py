"""`smelt opt` and `smelt ops`, called as a shell calls them."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from smelt.cli import ops, opt
from smelt.errors import UnknownNameError, VerifyError
from smelt.graph.names import operators

GRAPH = """graph f(x: f32[n]) {
  v0 = neg(x) : f32[n]
  v1 = neg(v0) : f32[n]
  v2 = div(v1, 10.0:f32) : f32[n]
  return v2
}
"""


def call_opt(*arguments: str, source: str = GRAPH) -> Result:
    return CliRunner().invoke(opt.command, list(arguments), input=source)


def test_opt_runs_named_passes_in_order() -> None:
    found = call_opt("--pass", "simplify", "--pass", "cse")
    assert found.exit_code == 0
    lines = ["graph f(x: f32[n]) {", "  v0 = div(x, 10.0:f32) : f32[n]", "  return v0", "}"]
    assert found.stdout.split("\n") == [*lines, ""]


def test_opt_runs_the_pipeline_by_rounding() -> None:
    assert "div(x, 10.0:f32)" in call_opt("--rounding", "eager").stdout
    assert "mul(x, 0.1:f32)" in call_opt("--rounding", "fast").stdout


def test_opt_tells_what_passes_did() -> None:
    assert "simplify: 5 -> 3 nodes" in call_opt("--time").stderr


def test_opt_lists_passes_and_rules() -> None:
    assert "canonicalize" in call_opt("--list").stdout
    assert "neg(neg(x)) -> x" in call_opt("--rules").stdout


def test_opt_refuses_unknown_passes_and_bad_graphs() -> None:
    found = call_opt("--pass", "simplfy")
    assert isinstance(found.exception, UnknownNameError)
    assert "did you mean simplify?" in str(found.exception)
    assert isinstance(call_opt(source=GRAPH.replace("v0 = neg(x) : f32[n]", "v0 = neg(x) : f32[4]"))
                      .exception, VerifyError)  # fmt: skip


def call_ops(*arguments: str) -> Result:
    return CliRunner().invoke(ops.command, list(arguments))


def test_ops_lists_every_operator() -> None:
    rows = json.loads(call_ops("--json").stdout)
    assert [row["name"] for row in rows] == list(operators())
    assert all(row["doc"] for row in rows)
    assert "permute" in call_ops().stdout


def test_ops_describes_one() -> None:
    (row,) = json.loads(call_ops("max", "--json").stdout)
    assert row["idempotent"] is True
    assert row["identity"] == "-inf"
    assert row["annihilator"] == "nan"
    assert "row-major" not in call_ops("permute").stdout
    assert "did you mean permute?" in str(call_ops("permut").exception)
