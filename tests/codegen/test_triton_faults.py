"""The stand-in of Triton notices faults that are planted into printed programs."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from tests.codegen.checked_triton import CheckError, launch, named_sizes
from tests.codegen.test_triton_goldens import PRINTED, stored, with_lanes
from tests.kernel.goldens import GOLDENS
from tests.kernel.references import REFERENCES, extra_sizes

from smelt.codegen.triton.source import triton_source
from smelt.kernel.text import parse

HARMLESS = {
    "causal_attention": 5,  # the causal mask hides keys beyond the last query too
    "columns": 1,  # a lane beyond the last column reads the next row, and stores nothing
    "conv_bn_relu": 1,  # the fills of loads are zeros already
    "embed": 5,  # 8 columns fill a block
    "variance": 1,  # as for columns
    "ragged": 2,  # the stream ends where the array does
    "windows": 2,  # a load of one element; a place whose value is the identity
}
"""Faults that change no result, by golden."""


def faults(source: str) -> Iterator[tuple[str, str]]:
    """Programs with one fault: a mask or a `tl.where` is missing, a bound is one too far."""
    tree = ast.parse(source)
    function = next(n for n in tree.body if getattr(n, "name", "").startswith("kernel_"))
    for k, node in enumerate(ast.walk(function)):
        for name, change in CHANGES.items():
            if not isinstance(node, ast.expr) or not change(copy.deepcopy(node)):
                continue
            planted = copy.deepcopy(tree)
            inside = next(n for n in planted.body if getattr(n, "name", "") == function.name)
            change(list(ast.walk(inside))[k])
            yield f"{name} at line {node.lineno}", ast.unparse(planted)


def without_mask(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not any(a.arg == "mask" for a in node.keywords):
        return False
    node.keywords = [a for a in node.keywords if a.arg not in ("mask", "other")]
    return True


def without_where(node: ast.AST) -> bool:
    """Take a value for what was selected; a constant stood for lanes that do not exist."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "tl.where":
        return False
    mask, value, other = node.args
    if not ast.unparse(mask).startswith("in_") or not isinstance(other, (ast.Constant, ast.Call)):
        return False
    node.func, node.args = ast.parse("(lambda x: x)", mode="eval").body, [value]
    return True


def one_too_far(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not ast.unparse(node).startswith("i_"):
        return False
    if not isinstance(node.ops[0], ast.Lt) or "size_" not in ast.unparse(node.comparators[0]):
        return False
    node.ops = [ast.LtE()]
    return True


CHANGES = {"no mask": without_mask, "no where": without_where, "a bound": one_too_far}


def outcome(name: str, source: str, scale: int) -> str:
    kernel, reference = parse(GOLDENS[name]), REFERENCES[name]
    inputs = reference.inputs(np.random.default_rng(scale), scale)
    arrays = [stored(p, inputs[p.name]) for p in kernel.inputs]
    source = with_lanes(source, 16 if "tl.dot" in source else 4)
    try:
        results = launch(source, arrays, **named_sizes(extra_sizes(name, inputs)))
    except CheckError as error:
        return str(error)
    return str([np.asarray(r, np.float64).tolist() for r in results])


@pytest.mark.timeout(120)
def test_planted_faults_are_caught():
    planted, survivors = list[str](), list[str]()
    for name in PRINTED:
        source = triton_source(parse(GOLDENS[name]))
        right = {scale: outcome(name, source, scale) for scale in (3, 2)}
        for what, wrong in faults(source):
            planted.append(f"{name}: {what}")
            if all(outcome(name, wrong, scale) == result for scale, result in right.items()):
                survivors.append(f"{name}: {what}")
    assert len(planted) > 80
    assert Counter(s.partition(":")[0] for s in survivors) == HARMLESS, survivors
