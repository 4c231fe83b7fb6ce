"""Print the walks of docs/gpu.md: a function, its kernel, its Triton program and excerpts of PTX.

Registers and PTX depend on Triton's version: with another than `VERSION`, or without Triton, the
parts stay as they are on the page.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import smelt as sm
from smelt.explain.device_code import launch_lines

__all__ = ["PARTS"]

PAGE = Path(__file__).parent.parent / "docs" / "gpu.md"
VERSION = "3.6.0"
"""Version of Triton that the page is written with."""
SHOWN = (
    "ld.global.v4",
    "ld.global.L1",
    "cp.async.cg",
    "cp.async.bulk.tensor",
    "shfl.sync",
    "wgmma.mma_async",
    "mma.sync",
    "ex2.approx",
    "fma.rn.f32",
    "div.full",
    "div.rn",
    "st.global.v4",
)
"""Instructions of which the excerpt has the first."""
INTRODUCTION = (
    "What it needs on an H100, compiled and not run, and the first of each telling kind of its PTX:"
)
MAX_CHARACTERS = 110


def softmax(x: Any) -> Any:
    e = sm.exp(x - sm.max(x, axis=1, keepdims=True))
    return e / sm.sum(e, axis=1, keepdims=True)


def linear_gelu(x: Any, w: Any, b: Any) -> Any:
    return sm.nn.gelu(x @ w + b)


def attention(q: Any, k: Any, v: Any) -> Any:
    return sm.nn.attention(q, k, v, causal=True)


def _walk(
    name: str, function: Callable[..., Any], arguments: tuple[str, ...], rounding: str
) -> str:
    if not _is_version():
        return _on_the_page(name)
    specs = [sm.spec(a) for a in arguments]
    with sm.config(rounding=rounding):
        report = sm.explain(function, *specs, target="h100")
    (kernel,) = report.kernels
    (launch,) = report.data.kernels[0].device.launches
    call = ", ".join(f'sm.spec("{a}")' for a in arguments)
    program = kernel.source[kernel.source.index(f"def {launch.name}(") :]
    program = program.partition("\n\n\n")[0]
    shown = f'report = sm.explain({function.__name__}, {call}, target="h100")'
    if rounding != "eager":
        shown = f'with sm.config(rounding="{rounding}"):\n    {shown}'
    code = f"{textwrap.dedent(inspect.getsource(function)).strip()}\n\n{shown}"
    code = re.sub(r": Any|\) -> Any", lambda m: ")" if ")" in m[0] else "", code)
    return "\n".join(
        [
            f"```text\n{code}\n```\n",
            f"One kernel:\n\n```text\n{kernel.text.strip()}\n```\n",
            f"Its program:\n\n```text\n@triton.jit\n{program.strip()}\n```\n",
            f"{INTRODUCTION}\n\n```text\n{_needs(launch)}\n```\n",
        ]
    )


def _needs(launch: Any) -> str:
    lines = [line.strip() for line in launch_lines(launch, 1)]
    every = [line.strip() for line in launch.code.assembly.splitlines()]
    for mnemonic in SHOWN:
        matching = [" ".join(x.split()) for x in every if re.search(rf"\b{mnemonic}", x)]
        if matching:
            first = matching[0]
            first = first if len(first) < MAX_CHARACTERS else f"{first[:MAX_CHARACTERS]} ..."
            lines.append(f"  {len(matching):3} x  {first}")
    return "\n".join(
        textwrap.fill(x, 118, subsequent_indent="  ") if k < 2 else x for k, x in enumerate(lines)
    )


def _is_version() -> bool:
    try:
        return importlib.metadata.version("triton") == VERSION
    except importlib.metadata.PackageNotFoundError:
        return False


def _on_the_page(name: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
    return page.partition(begin)[2].partition(end)[0]


PARTS: Mapping[str, Callable[[], str]] = {
    name: partial(_walk, name, function, arguments, rounding)
    for name, function, arguments, rounding in (
        ("softmax", softmax, ("f32[4096,1000]",), "eager"),
        ("linear", linear_gelu, ("bf16[4096,1024]", "bf16[1024,4096]", "bf16[4096]"), "eager"),
        ("attention", attention, ("bf16[4,16,2048,128]",) * 3, "fast"),
    )
}
