"""Kernel -> machine code with its calling facts, by way of the cache's form.

`Built` is what the cache stores: JSON facts and object code.  It says in plain data how the code is
called, so that a warm start needs no code generation at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from smelt.codegen.llvm.contract import Form
from smelt.codegen.llvm.module import Forms, emit, forms_of
from smelt.codegen.llvm.optimize import assembly, object_code
from smelt.kernel.ir import Dot, Kernel
from smelt.kernel.walk import statements, values_of, visit
from smelt.target import Target
from smelt.types.expr import Index, evaluate, size, substitute, text
from smelt.types.parse_expr import parse
from smelt.version import __version__

SOURCES = ("blocks.py", "codegen", "kernel", "ops", "types")
"""The modules and packages whose text decides what code a kernel's text becomes."""


@cache
def generator() -> str:
    """Which code generator this is: the package's version and a digest of its own text, so that
    code from before a change is never loaded after it.  Read once a process, in a millisecond."""
    package, found = Path(__file__).parents[1], hashlib.sha256()
    for name in SOURCES:
        place = package / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found.update(path.read_bytes())
    return f"{__version__} {found.hexdigest()}"


@dataclass(frozen=True, slots=True)
class Function:
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
            "functions": [(f.symbol, text(f.tasks), text(f.scratch), text(f.cycles))
                          for f in self.functions],
            "ir_size": self.ir_size,
            "form": self.form,
        }  # fmt: skip

    def renamed(self, names: Mapping[str, str]) -> Built:
        """The same code for a kernel in which `names` are called otherwise."""
        values = {old: size(new) for old, new in names.items()}

        def named(e: Index) -> Index:
            return substitute(e, values, "size")

        return replace(
            self,
            buffers=tuple(names.get(b, b) for b in self.buffers),
            sizes=tuple(names.get(s, s) for s in self.sizes),
            strides=tuple((n, names.get(p, p), d) for n, p, d in self.strides),
            partials=tuple((names.get(name, name), named(n)) for name, n in self.partials),
            functions=tuple(
                Function(f.symbol, named(f.tasks), named(f.scratch), named(f.cycles))
                for f in self.functions
            ),
        )

    @staticmethod
    def read(facts: dict[str, Any], code: bytes) -> Built:
        """The inverse of `facts`.  Raises KeyError, TypeError or ValueError if it is not that."""
        return Built(
            code,
            tuple(facts["buffers"]),
            tuple(facts["sizes"]),
            tuple((n, p, int(d)) for n, p, d in facts["strides"]),
            tuple((name, parse(n, size)) for name, n in facts["partials"]),
            tuple(Function(s, *(parse(e, size) for e in rest)) for s, *rest in facts["functions"]),
            int(facts["ir_size"]),
            facts["form"],
        )


def build(
    kernel: Kernel, target: Target, opt_level: int = 2, *, streaming: bool = False, form: Form = ""
) -> Built:
    """Compiles a kernel; with `streaming`, for results that no cache would hold; in one of its
    forms, for sizes that the form is for.

    Raises UnsupportedError for what the back end cannot run.
    """
    made = emit(kernel, target, streaming=streaming, form=form)
    code = object_code(made.llvm, target, opt_level)
    functions = tuple(Function(e.symbol, e.tasks, e.scratch, e.cycles) for e in made.entries)
    return Built(code, made.buffers, made.sizes, made.strides, made.partials, functions,
                 made.llvm.count("\n"), form)  # fmt: skip


def forms(kernel: Kernel, target: Target) -> Forms:
    """The forms that a kernel has beside the usual one, with the sizes that decide."""
    return forms_of(kernel, target) if _has_products(kernel) else ()


def form_for(forms: Forms, sizes: Mapping[str, int]) -> Form:
    """The form for given sizes: the first one whose limits hold, else the usual one."""
    for form, limits in forms:
        if all(evaluate(n, sizes) <= most for n, most in limits):
            return form
    return ""


def _has_products(kernel: Kernel) -> bool:
    roots = (root for s in statements(kernel) for root in values_of(s))
    return any(isinstance(v, Dot) for root in roots for v in visit(root))


def llvm_text(kernel: Kernel, target: Target) -> str:
    """The LLVM module of a kernel, before LLVM's optimisations."""
    return emit(kernel, target).llvm


def asm_text(kernel: Kernel, target: Target, opt_level: int = 2) -> str:
    """The assembly of a kernel."""
    return assembly(emit(kernel, target).llvm, target, opt_level)


__all__ = ["Built", "Form", "Forms", "Function", "asm_text", "build", "form_for", "forms",
           "generator", "llvm_text"]  # fmt: skip
