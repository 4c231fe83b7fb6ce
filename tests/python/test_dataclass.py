"""Our data classes behave as the standard library's, option by option."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from dataclasses import field
from typing import Any, ClassVar

import pytest

import smelt.python.dataclass
from smelt.python.dataclass import dataclass

NAN = float("nan")
OPTIONS: list[dict[str, bool]] = [
    {"frozen": frozen, "slots": slots, "eq": eq, "kw_only": kw_only}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
    for kw_only in (False, True)
]


def built(make: Any, options: dict[str, bool]) -> Any:
    class Thing:
        """A thing."""

        a: int
        b: float = 2.0
        c: list[int] = field(default_factory=list[int])
        d: int = field(default=5, compare=False, repr=False)
        e: int = field(init=False, default=7)
        f: list[int] = field(init=False, compare=False, default_factory=lambda: [3])
        kind: ClassVar[str] = "thing"

    return make(**options)(Thing)


def outcome(f: Any) -> Any:
    try:
        return f()
    except Exception as error:  # noqa: BLE001 - both are asked for the same
        return type(error)


QUESTIONS: dict[str, Any] = {
    "defaults": lambda t: t(a=1),
    "all": lambda t: t(a=1, b=3.0, c=[4], d=6),
    "by place": lambda t: t(1, 3.0),
    "too few": lambda t: t(),
    "too many": lambda t: t(1, 2, 3, 4, 5, 6, 7),
    "another name": lambda t: t(a=1, e=3),
    "equal": lambda t: (t(a=1) == t(a=1), t(a=1) == t(a=2), t(a=1, d=4) == t(a=1), t(a=1) == 3),
    "not a number": lambda t: t(a=1, b=NAN) == t(a=1, b=NAN),
    "hash": lambda t: hash(x := t(a=1, c=())) == hash(y := t(a=1, c=(), d=2)) or x is y,
    "own factories": lambda t: t(a=1).c is t(a=1).c,
    "assignment": lambda t: setattr(t(a=1), "a", 2),
    "deletion": lambda t: delattr(t(a=1), "a"),
    "new attribute": lambda t: isinstance(outcome(lambda: setattr(t(a=1), "z", 2)), type),
    "replace": lambda t: dataclasses.replace(t(a=1, c=[8]), b=9.0),
    "as a dict": lambda t: dataclasses.asdict(t(a=1)),
    "fields": lambda t: [(f.name, f.init, f.kw_only) for f in dataclasses.fields(t)],
    "pattern": lambda t: t.__match_args__,
    "copy": lambda t: copy.deepcopy(t(a=1, c=[2])),
    "slots": lambda t: hasattr(t(a=1), "__dict__"),
    "doc": lambda t: t.__doc__,
    "is one": dataclasses.is_dataclass,
    "hashable": lambda t: t.__hash__ is None,
}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(k for k in o if o[k]) or "-")
@pytest.mark.parametrize("question", QUESTIONS)
def test_as_the_standard_library(question: str, options: dict[str, bool]) -> None:
    ours, theirs = (
        outcome(lambda m=m: QUESTIONS[question](built(m, options)))
        for m in (dataclass, dataclasses.dataclass)
    )
    assert repr(ours) == repr(theirs)  # an instance shows all that it holds, its class by name


@dataclass(frozen=True, slots=True)
class Base:
    x: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", abs(self.x))


@dataclass(frozen=True, slots=True)
class Derived(Base):
    y: int = 1

    def __repr__(self) -> str:
        return "mine"


@dataclass(eq=True)
class Own:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3


class Plain(Base):
    """No data class itself, and may have more."""


def test_what_a_class_has_itself_stays() -> None:
    assert repr(Derived(-2, 3)) == "mine"
    assert (Derived(-2).x, Base(-3).x) == (2, 3)
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 3
    assert Base(2) != Derived(2)
    plain = Plain(4)
    plain.more = 5  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        plain.x = 5  # type: ignore[misc]


def test_pickles() -> None:
    for x in (Base(2), Derived(-1, 4)):
        assert pickle.loads(pickle.dumps(x)) == x


def test_pickles_of_other_fields_are_refused() -> None:
    short = Base(2).__reduce_ex__(2)
    assert isinstance(short, tuple)
    with pytest.raises(ValueError, match="another version of Smelt"):
        Base(2).__setstate__([*short[2], 1])  # type: ignore[attr-defined]


def test_methods_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    plain = smelt.python.dataclass._make_method

    def noted(name: str, *rest: Any) -> Any:
        names.append(name)
        return plain(name, *rest)

    monkeypatch.setattr(smelt.python.dataclass, "_make_method", noted)
    kind = built(dataclass, {"frozen": True, "slots": True})
    assert names == []
    first = kind(1, c=())
    assert names == ["__init__"]
    assert (first == kind(1, c=()), hash(first) == hash(kind(1, c=()))) == (True, True)
    assert names == ["__init__", "__eq__", "__hash__"]


def test_many_threads_make_the_first_instance() -> None:
    kind = built(dataclass, {"frozen": True, "slots": True})
    gate, result = threading.Barrier(8), []

    def make(k: int) -> None:
        gate.wait()
        result.append(kind(k).a)

    threads = [threading.Thread(target=make, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(result) == list(range(8))
