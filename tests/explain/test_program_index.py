"""Indexes of GPU programs: those of the documentation, and what holds for their predictions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import smelt as sm
from smelt.cli import explain_folder
from smelt.cli.explain import _module, read_arguments

ROOT = Path(__file__).parents[2]
KERNELS, CATALOGUE = ROOT / "examples" / "kernels", ROOT / "tests" / "catalogue" / "index"
TARGETS = ("h100", "a100", "4090", "b200", "mi300x")


def programs(folder: Path) -> dict[str, explain_folder.Function]:
    return {
        f"{path.stem}.{name}": function
        for path in sorted(folder.glob("*.py"))
        for name, function in explain_folder.programs(
            _module(path), lambda f: read_arguments(f, {})
        )
    }


PROGRAMS = programs(KERNELS)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_prediction_lies_below_the_time_of_its_bytes(target: str, name: str):
    arguments = read_arguments(PROGRAMS[name], {})
    with sm.config(device_code=False):
        data = sm.explain(PROGRAMS[name], target=target, **arguments).data
    for k in data.kernels:
        assert k.predicted_ns is None or k.predicted_ns >= k.floor_ns, k.name
    assert data.total.predicted_ns is not None
    assert data.total.predicted_ns >= data.total.floor_ns


def test_slices_of_an_array_count_all_their_bytes():
    def both(x: Any) -> Any:
        return x[:, :4096] * x[:, 4096:]

    def whole(x: Any, y: Any) -> Any:
        return x * y

    half = sm.spec("f32[8192,4096]")
    times = [
        sm.explain(f, *specs, target="h100").data.total.predicted_ns
        for f, specs in ((both, [sm.spec("f32[8192,8192]")]), (whole, [half, half]))
    ]
    assert times[0] == pytest.approx(times[1], rel=0.02)


@pytest.mark.parametrize("target", TARGETS)
def test_masked_blocks_of_a_gradient_cost_nothing(target: str):
    def gradients(causal: bool) -> Any:
        def code(q: Any, k: Any, v: Any) -> Any:
            return sm.nn.attention(q, k, v, causal=causal)

        return lambda q, k, v, g: sm.vjp(code, q, k, v)[1](g)

    specs = [sm.spec("bf16[2,16,4096,128]")] * 4
    with sm.config(device_code=False):
        causal, plain = (
            sm.explain(gradients(c), *specs, target=target).data.total.predicted_ns
            for c in (True, False)
        )
    assert causal is not None and plain is not None and causal <= 0.6 * plain


@pytest.mark.parametrize(
    ("page", "folder", "least"),
    [("gpu_programs.md", KERNELS, 40), ("gpu_catalogue.md", CATALOGUE, 100)],
)
def test_the_documentation_lists_the_programs_of_a_folder(page: str, folder: Path, least: int):
    text = (ROOT / "docs" / page).read_text()
    listed = re.findall(r"^\| `(\w+\.\w+)` ", text, re.MULTILINE)
    assert listed == [*programs(folder)] and len(listed) >= least
    assert not re.search(r"\| E\d{3} ", text)  # each has a plan
