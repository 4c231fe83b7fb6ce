"""Code for instructions that the processor lacks is made and shown, never run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import smelt as sm
from smelt import knobs
from smelt.cli import run
from smelt.compiler import driver
from smelt.errors import TargetError
from smelt.graph.text import parse
from smelt.machine.processor import Processor
from smelt.machine.target import Target, classify, limit_isa
from smelt.runtime.host import host, unsupported_reason

GRAPHS = {
    "one kernel": "graph f(x: f32[n]) { y = exp(x)  return y }",
    "constants": "graph f(x: f32[n], w: f32[4] constant) { a = reduce.sum(w) {axes=(0,)}\n"
    " b = mul(x, a)  return b }",
}
KERNEL = "kernel f(x: f32[n]) -> y: f32[n]\n  grid n/64\n  y[n] = x[n] * 2\n"


@pytest.mark.parametrize("name", GRAPHS)
def test_a_plan_for_another_processor_does_not_run(name: str) -> None:
    graph = parse(GRAPHS[name].replace("  return", "\n return"))
    compiled = driver.compile(graph, hints={"n": 8}, target=Target.for_isa("avx2"))
    arrays = [
        np.ones(8 if n.type.shape[0] == graph.inputs[0].type.shape[0] else 4, "f4")
        for n in graph.inputs
    ]
    with knobs.config(host_isa="portable"), pytest.raises(TargetError, match=r"no avx, avx2"):
        compiled.run(arrays, (8,))


def test_functions_for_another_processor_do_not_run() -> None:
    with sm.config(host_isa="portable", target="avx2", cache=False):
        f = sm.jit(lambda x: sm.exp(x) * 2)
        with pytest.raises(TargetError, match="can be shown, not run"):
            f(np.ones(3, "f4"))
        assert "ymm" in f.lower(np.ones(3, "f4")).compile().as_text("asm")
        with pytest.raises(TargetError):
            sm.explain(f, np.ones(3, "f4"))


def test_kernels_of_the_command_do_not_run(tmp_path: Path) -> None:
    (tmp_path / "f.smelt").write_text(KERNEL)
    command = [str(tmp_path / "f.smelt"), "--size", "n=3"]
    assert CliRunner().invoke(run.command, command).exit_code == 0
    with sm.config(host_isa="portable", target="avx2"):
        actual = CliRunner().invoke(run.command, command)
    assert actual.exit_code != 0
    assert isinstance(actual.exception, TargetError) or "E503" in actual.output


def test_the_host_can_be_taken_for_a_lesser_processor() -> None:
    for isa in ("avx2", "portable"):
        with knobs.config(host_isa=isa):
            target = host()
            assert target.isa in (isa, "portable", "neon")
            assert not unsupported_reason(target)
    whole = Target.for_isa("avx512").features
    mine = Processor("x86_64-unknown-linux-gnu", "znver5", (*whole, "avx512vnni"), ("amx-tile",))
    lesser = limit_isa(mine, "avx2")
    assert classify(lesser.triple, frozenset(lesser.features)) == "avx2"
    assert {"avx512f", "avx512vnni", "amx-tile"} <= set(lesser.disabled)
    assert limit_isa(mine, "auto") is mine
