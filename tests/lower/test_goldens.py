"""Graph text -> kernel text, and both mean the same: graph interpreter, kernel interpreter, native.

A `.case` file under `tests/golden/kernels_lowered` is a list of

    [case name]
    [rounding eager] [sizes n=1000000 m=4]      likely sizes, where they matter
    graph f(x: f32[n]) { ... }
    [out]
    kernel k0(x: f32[n]) -> ...

`python -m tests.lower.test_goldens --update` writes the outputs anew; review the difference.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.codegen.llvm.single_kernel import SingleKernel, fuse
from tests.strategies import data

from smelt.graph.interp import run as run_graph
from smelt.kernel.interp import run as run_kernel
from smelt.kernel.text import parse, text
from smelt.kernel.verify import verify
from smelt.ops.spec import dims_at

FOLDER = Path(__file__).parents[1] / "golden" / "kernels_lowered"
SECTION = re.compile(r"^\[case (?P<name>[^\]]+)\]$", re.MULTILINE)
SIZES = ((4, 6, 3, 5), (1, 1, 1, 1), (8, 2, 70, 3), (33, 4, 2, 17))
"""Values of a graph's size symbols, in their order; `square` and `even` sizes fit every case."""


class Case(NamedTuple):
    """One case of a file."""

    file: str
    name: str
    head: str
    source: str
    out: str

    def whole(self) -> SingleKernel:
        return fuse(self.source, **self.options())

    def options(self) -> dict[str, Any]:
        """Rounding and likely sizes, as `fuse` takes them."""
        words = re.findall(r"[\w=]+", self.head)
        rounding = words[words.index("rounding") + 1] if "rounding" in words else "eager"
        hints = {name: int(n) for name, _, n in (w.partition("=") for w in words) if n}
        return {"rounding": rounding, **hints}

    def spelled(self) -> str:
        """The case as its file has it."""
        head = f"{self.head}\n" if self.head else ""
        return f"[case {self.name}]\n{head}{self.source}\n[out]\n{self.out}\n"


def read(path: Path) -> list[Case]:
    """The cases of a file, in order."""
    parts = SECTION.split(path.read_text())[1:]
    results: list[Case] = []
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        before, _, out = body.partition("[out]")
        at = before.index("graph ")
        results.append(Case(path.stem, name, before[:at].strip(), before[at:].strip(), out.strip()))
    return results


CASES = [case for path in sorted(FOLDER.glob("*.case")) for case in read(path)]


def arrays_for(
    kernel: SingleKernel, values: tuple[int, ...], seed: int
) -> list[np.ndarray[Any, Any]]:
    """Inputs of those sizes; whole numbers are positions of small arrays."""
    named = dict(zip(kernel.size_names, values, strict=False))
    built = [
        data.array(node.type.dtype, dims_at(node.type.shape, named), "normal", seed + k)
        for k, node in enumerate(kernel.graph.inputs)
    ]
    built = [np.zeros_like(a) if a.dtype.kind in "iu" else a for a in built]
    return [
        with_strides(a, node.op.strides) for a, node in zip(built, kernel.graph.inputs, strict=True)
    ]


def with_strides(a: np.ndarray[Any, Any], strides: Any) -> np.ndarray[Any, Any]:
    """The array with the strides that its input declares: 0 repeats."""
    for d, stride in enumerate(strides or ()):
        if stride == 0:
            a = np.broadcast_to(np.take(a, [0], axis=d), a.shape)
    return a


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file}-{c.name}")
def test_text(case: Case) -> None:
    kernel = case.whole().kernel
    assert text(kernel) == case.out
    assert parse(case.out) == kernel
    verify(kernel)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.file}-{c.name}")
def test_three_interpreters_agree(case: Case) -> None:
    kernel = case.whole()
    near = 2e-2 if "f16" in case.source else 2e-5
    for k, values in enumerate(SIZES):
        arrays = arrays_for(kernel, values, k)
        wanted = run_graph(kernel.graph, arrays)
        sizes = kernel.sizes(arrays)
        by_name = run_kernel(kernel.kernel, arrays, sizes, order="backward")
        native = kernel(*arrays)
        shown = [by_name[p.name] for p in kernel.kernel.outputs]
        for a, b, c in zip(wanted, shown, native, strict=True):
            for other in (b, c):
                assert other.dtype == a.dtype
                assert other.shape == a.shape
                assert np.allclose(
                    other.astype("f8"), a.astype("f8"), rtol=near, atol=near, equal_nan=True
                ), values


def test_names_are_unique() -> None:
    names = [(case.file, case.name) for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 40


def update() -> None:
    """Write every file anew with what lowering gives now."""
    for path in sorted(FOLDER.glob("*.case")):
        cases = [case._replace(out=text(case.whole().kernel)) for case in read(path)]
        path.write_text("\n".join(case.spelled() for case in cases))


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
