"""`smelt opt` and `smelt ops`, called as a shell calls them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from smelt.cli import explain, ops, opt, run
from smelt.errors import GraphTextError, UnknownNameError, VerifyError
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
    output = call_opt("--pass", "simplify", "--pass", "cse")
    assert output.exit_code == 0
    lines = ["graph f(x: f32[n]) {", "  v0 = div(x, 10.0:f32) : f32[n]", "  return v0", "}"]
    assert output.stdout.split("\n") == [*lines, ""]


def test_opt_runs_the_pipeline_by_rounding() -> None:
    assert "div(x, 10.0:f32)" in call_opt("--rounding", "eager").stdout
    assert "mul(x, 0.1:f32)" in call_opt("--rounding", "fast").stdout


def test_opt_reports_what_passes_did() -> None:
    assert "simplify: 5 -> 3 nodes" in call_opt("--time").stderr


def test_opt_lists_passes_and_rules() -> None:
    assert "canonicalize" in call_opt("--list").stdout
    assert "neg(neg(x)) -> x" in call_opt("--rules").stdout


def test_opt_refuses_unknown_passes_and_bad_graphs() -> None:
    output = call_opt("--pass", "simplfy")
    assert isinstance(output.exception, UnknownNameError)
    assert "did you mean simplify?" in str(output.exception)
    assert isinstance(
        call_opt(source=GRAPH.replace("v0 = neg(x) : f32[n]", "v0 = neg(x) : f32[4]")).exception,
        VerifyError,
    )


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


def test_binary_files_are_reported(tmp_path: Path) -> None:
    """A mistake in the call, with the byte, for every command that reads a program."""
    for data, reported in (
        (b"graph \xff", "byte 6 is 0xff"),
        ("graph f".encode("utf-16"), "byte 0"),
    ):
        file = tmp_path / "data.smelt"
        file.write_bytes(data)
        for command in (opt.command, run.command, explain.command):
            actual = CliRunner().invoke(command, [str(file)])
            assert actual.exit_code == 2
            assert f"{file} is not text: {reported}" in actual.stderr
            assert "UTF-8" in actual.stderr


def test_text_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "marked.smelt"
    file.write_bytes(b"\xef\xbb\xbf" + GRAPH.encode())
    assert CliRunner().invoke(opt.command, [str(file)]).exit_code == 0


def test_errors_show_a_part_of_a_long_line() -> None:
    for before, after in (("", "(" * 3000), (f"{'x' * 900}: f32[4], ", "%")):
        error = call_opt(source=f"graph f({before}y: f32[{after}]) {{\n  return y\n}}\n").exception
        assert isinstance(error, GraphTextError)
        first, line, caret, *_ = str(error).splitlines()
        assert max(map(len, (first, line, caret))) < 260
        assert line[caret.index("^")] in "(%"


def test_errors_keep_the_caret_under_what_is_not_printable() -> None:
    error = call_opt(source="graph f(x: f32[4]) {\n\t\x00 return x\n}\n").exception
    assert isinstance(error, GraphTextError)
    *_, line, caret, _ = str(error).splitlines()
    assert line[caret.index("^")] == "?"
