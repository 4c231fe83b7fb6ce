"""Define rewrite rules: two terms, the types they are valid for, and a condition.

>>> double = rule("double negation", "neg(neg(x))", "x", NUMBERS)
>>> double.text, double.accepts(f32), double.accepts(bool_)
('neg(neg(x)) -> x', True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field

from smelt.python.caches import cached_property
from smelt.python.dataclass import dataclass
from smelt.rewrite.match import arrangements
from smelt.rewrite.term import Call, Number, Term, term, variables
from smelt.types.dtype import DType, bool_, f32

__all__ = [
    "ANY",
    "BITS",
    "FLOATS",
    "INTEGERS",
    "NUMBERS",
    "Numbers",
    "Rule",
    "bool_",
    "f32",
    "rule",
]

Numbers = Mapping[str, Number]
Compute = Callable[[Numbers], Number]
NUMBERS = ("int", "uint", "float")
INTEGERS = ("int", "uint")
BITS = ("bool", "int", "uint")
ANY = ("bool", "int", "uint", "float")
FLOATS = ("float",)


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right` if the type is accepted and `when` holds.

    `subject` is the variable whose element type counts, by default the first of the left side.
    `when` gets the values of the constant variables; `compute` gives numbers that only the right
    side names.
    """

    name: str
    left: Call
    right: Term
    kinds: tuple[str, ...] = ANY
    when: Callable[[Numbers, DType], bool] | None = None
    fast: bool = False
    compute: Mapping[str, Callable[[Numbers], Number]] = field(default_factory=dict[str, Compute])
    only: tuple[str, ...] = ()
    """Names of the element types, if the rule is not valid for all of a kind."""

    def accepts(self, dtype: DType) -> bool:
        """Whether the rule is valid for the type."""
        return dtype.kind in self.kinds and (not self.only or dtype.name in self.only)

    @cached_property
    def subject(self) -> str:
        named = variables(self.left)
        return next((v.name for v in named if v.name != "m"), named[0].name)

    @cached_property
    def constants(self) -> frozenset[str]:
        """Names of the variables that match constants only."""
        return frozenset(v.name for v in variables(self.left) if v.constant)

    @cached_property
    def arrangements(self) -> tuple[Call, ...]:
        """The left side with operands in every distinct order."""
        return tuple(t for t in arrangements(self.left) if isinstance(t, Call))

    @property
    def text(self) -> str:
        return f"{self.left} -> {self.right}"


class RuleSet:
    """Rules in order of trial, indexed by the operator of their left side."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self.by_operator: dict[str, list[tuple[Call, Rule]]] = {}
        for candidate in self.rules:
            for left in candidate.arrangements:
                self.by_operator.setdefault(left.op, []).append((left, candidate))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


def rule(name: str, left: str, right: str, kinds: tuple[str, ...] = ANY, **more: object) -> Rule:
    """Return a rule from the text of its sides."""
    pattern = term(left)
    assert isinstance(pattern, Call)
    return Rule(name, pattern, term(right), kinds, **more)  # type: ignore[arg-type]
