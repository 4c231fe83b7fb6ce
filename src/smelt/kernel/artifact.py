"""Machine code of a kernel and how it is called: what the cache stores of it.

`Built` says in plain data how the code is called, so that a warm start needs neither the kernel nor
code generation.

>>> from smelt.types.expr import size
>>> made = Built(b"", ("x", "y"), ("n",), (), (), (Function("k", size("n"), 0, size("n")),), 7)
>>> Built.read(made.facts(), b"") == made
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smelt.dataclass import dataclass
from smelt.types.expr import Index, evaluate, size, text
from smelt.types.parse_expr import parse_sizes

__all__ = ["Built", "Form", "Forms", "Function", "Limits", "form_for", "meant"]

Form = str
"""What a kernel's code takes for granted: nothing, or that all its products are "small", or that
they have few "rows" ("columns"), or that windows slide over "tiny" images or along "narrow" lines,
or lines so short that they are "turned", or that its one product is "tall", with few columns and
summed positions, or "wide", with many rows and columns and so few summed positions that one pass
takes them all, or "few" with fewer rows, or "deep" with any number of summed positions, or that
right operands are to be "packed" once, for many rows that tasks take few of.  Behind an @ stand
sizes that are numbers: "small@a1=3,a2=8"."""
Limits = tuple[tuple[Index, int], ...]
"""Sizes and what each must not exceed."""
Forms = tuple[tuple[Form, Limits], ...]
"""The forms that a kernel has beside the usual one, best first."""


class Function(NamedTuple):
    """One entry point: symbol, tasks, scratch bytes, cycles of one core."""

    symbol: str
    tasks: Index
    scratch: Index
    cycles: Index


@dataclass(frozen=True, slots=True)
class Built:
    """Object code of a kernel and how to call it; see `smelt.codegen.llvm.module.Artifact`."""

    code: bytes
    buffers: tuple[str, ...]
    sizes: tuple[str, ...]
    strides: tuple[tuple[str, str, int], ...]
    partials: tuple[tuple[str, Index], ...]
    functions: tuple[Function, ...]
    ir_size: int
    form: Form = ""

    def facts(self) -> dict[str, Any]:
        """Everything but the code, as JSON data."""
        return {
            "buffers": self.buffers,
            "sizes": self.sizes,
            "strides": self.strides,
            "partials": [(name, text(n)) for name, n in self.partials],
            "functions": [
                (f.symbol, text(f.tasks), text(f.scratch), text(f.cycles)) for f in self.functions
            ],
            "ir_size": self.ir_size,
            "form": self.form,
        }

    @staticmethod
    def read(facts: dict[str, Any], code: bytes) -> Built:
        """The inverse of `facts`.  Raises KeyError, TypeError or ValueError if it is not that."""
        return Built(
            code,
            tuple(facts["buffers"]),
            tuple(facts["sizes"]),
            tuple((n, p, int(d)) for n, p, d in facts["strides"]),
            tuple((name, parse_sizes(n)) for name, n in facts["partials"]),
            tuple(Function(s, *(parse_sizes(e) for e in rest)) for s, *rest in facts["functions"]),
            int(facts["ir_size"]),
            facts["form"],
        )


def meant(name: str) -> Index:
    """The size that a name of a plain kernel stands for: one of the kernel's own, or a number.

    >>> meant("n"), meant("7")
    (n, 7)
    """
    return int(name) if name.isdigit() else size(name)


def form_for(forms: Forms, sizes: Mapping[str, int]) -> Form:
    """The form for given sizes: the first one whose limits hold, else the usual one."""
    for form, limits in forms:
        if all(evaluate(n, sizes) <= most for n, most in limits):
            return form
    return ""
