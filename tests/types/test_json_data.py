"""Records as JSON data: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pytest

from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, f32
from smelt.types.expr import Index, floordiv, size
from smelt.types.json_data import from_data, to_data


class Leaf(NamedTuple):
    name: str
    nbytes: Index = 4


@dataclass(frozen=True, slots=True)
class Tree:
    dtype: DType
    shape: tuple[Index, ...]
    inside: tuple[Leaf | Tree, ...] = ()
    pair: tuple[int, str] = (0, "")
    rate: float = 1.0
    kind: Literal["a", "b"] = "a"
    digest: bytes = b""
    parent: Leaf | None = None
    names: Mapping[str, float] | None = None
    rest: Any = None


N = size("n")
TREE = Tree(
    f32,
    (N * 3, 7, floordiv(N, 2)),
    (Leaf("x", N), Tree(f32, ())),
    (5, "five"),
    0.5,
    "b",
    b"\0\xff",
    Leaf("y"),
    {"one": 1.0},
    ["anything", 1],
)


@pytest.mark.parametrize("full", [False, True])
def test_records_survive(full: bool) -> None:
    data = to_data(TREE, full=full)
    assert from_data(Tree, data) == from_data(Tree, json.loads(json.dumps(data))) == TREE
    assert ("rate" in to_data(Tree(f32, ()), full=full)) == full


@pytest.mark.parametrize(
    ("field", "value"),
    {
        "dtype": "f31",
        "shape": "n",
        "inside": [{"nothing": 1}],
        "pair": [1, "one", 1],
        "rate": "1.0",
        "kind": "c",
        "digest": 7,
        "parent": ["y"],
        "names": {"one": "1"},
        "other": 1,
    }.items(),
)
def test_other_data_is_refused(field: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        from_data(Tree, {**to_data(TREE), field: value})


def test_numbers_are_those_of_the_type() -> None:
    assert isinstance(from_data(float, 1), float) and to_data(math.inf) is None
    for kind, value in ((int, True), (int, 1.0), (bool, 1), (str, 1)):
        with pytest.raises(TypeError):
            from_data(kind, value)
