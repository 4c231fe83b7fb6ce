"""Ahead-of-time compilation with JAX's interface: `sm.jit(f).lower(specs).compile()`.

>>> spec((3, "n"), "float32"), spec("i64[b,4]")
(spec('f32[3,n]'), spec('i64[b,4]'))
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from smelt.errors import ArgumentError, GuardError, StructureError
from smelt.frontends.array.bind_args import BoundCall, as_arguments
from smelt.frontends.array.dtypes import DTypeLike, as_dtype
from smelt.frontends.array.engine import explain_package
from smelt.frontends.array.results import match_parameters, run_call
from smelt.frontends.array.trace import Argument, Spec, Trace
from smelt.knobs import config
from smelt.python.imports import fork_safe_import
from smelt.types.dtype import from_numpy, refuse_ambiguous
from smelt.types.expr import Expr, Index, sizes_of
from smelt.types.text import parse_dimension, parse_type

if TYPE_CHECKING:
    from pathlib import Path


def spec(shape: Any, dtype: DTypeLike = "float64") -> Spec:
    """Return the shape and dtype of an argument, in place of an array.

    Both `spec((3, "n"), sm.float32)` and `spec("f32[3,n]")` are accepted.

    Args:
        shape: a dimension, or a sequence of them.  A dimension is a number, the name of a size,
            which is equal wherever it has this name, or an expression over names (`"n*2"`).
        dtype: float64 by default; part of the text in the second form, where its number counts
            bits, as in reports: `u8[n]` is uint8.

    Raises ExprTextError for other text, ArgumentError for negative numbers, DTypeError for an
    unknown dtype, for "f4[n]" (bytes), and for `dtype="u8"` (bytes in NumPy, bits in reports).
    """
    refuse_ambiguous(dtype)
    if isinstance(shape, str) and "[" in shape:
        kind = parse_type(shape)
        shape, dtype = kind.shape, kind.dtype
    elif isinstance(shape, (int, str)):
        shape = (shape,)
    return Spec(tuple(_dimension(d) for d in shape), as_dtype(dtype))


def _dimension(d: Any) -> Index:
    dim: Index = (
        d
        if isinstance(d, Expr)
        else operator.index(d)
        if not isinstance(d, str)
        else (parse_dimension(d))
    )
    if isinstance(dim, Expr):
        if {"min", "max"} & set(sizes_of(dim)):
            raise ArgumentError("spec: min and max cannot be names of sizes")
    elif dim < 0:
        raise ArgumentError(op="spec", argument="dimension", value=dim, expected="0 or more")
    return dim


class Lowered:
    """A function recorded for certain arguments, not compiled yet; made by `lower`."""

    def __init__(
        self,
        trace: Trace,
        bound: BoundCall,
        arguments: tuple[Argument, ...],
        settings: config | None = None,
    ) -> None:
        self.trace = trace
        self.bound = bound
        self.arguments = arguments
        self.settings = settings

    def as_text(self, form: str = "graph") -> str:
        """Return the recorded graph as text.

        Raises ArgumentError for another form.
        """
        if form != "graph":
            raise ArgumentError.of("as_text", "form", form, "'graph'; compile() has the others")
        return str(fork_safe_import("smelt.graph.text").text(self.trace.graph))

    def compile(self) -> Executable:
        """Generate code and return an `Executable`.

        Raises FusionError if `must` demands one kernel and there is none.
        """
        with self.settings or nullcontext():
            assert self.trace.executable
        return Executable(self)


class Executable:
    """A function compiled ahead of time: it runs or raises an error, but never compiles."""

    FORMS = ("graph", "plan", "kernel", "llvm", "asm")

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.trace = lowered.trace
        self._bound = lowered.bound
        self._expected = lowered.arguments

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run with arguments like those of `lower`; `out` receives the results.

        Raises GuardError for arguments that it was not compiled for, StructureError for another
        nesting; OutArgumentError and AliasError for `out`.
        """
        bound = self._bound.options.bind(args, kwargs)
        if bound.tree != self._bound.tree or bound.statics != self._bound.statics:
            raise StructureError(
                "the arguments are nested, or their static ones are, otherwise than in lower()"
            )
        arguments = as_arguments(bound)
        for name, *pair in zip(bound.names, arguments, self._expected, strict=True):
            _check(name, *pair)
        sizes = self.trace.match(*match_parameters(arguments))
        if sizes is None:
            shapes = [list(a.data.shape) for a in arguments if a.data is not None]
            guards = " and ".join(map(str, self.trace.guards))
            raise GuardError(guard=guards, found=f"arguments of shapes {shapes}")
        return run_call(self.trace, sizes, arguments, bound, out)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the program to a file, with the options `isa` and `hints` of `smelt.save`."""
        fork_safe_import("smelt.frontends.array.program_files").save(self, path, **options)

    def as_text(self, form: str = "kernel") -> str:
        """Return one representation as text: "graph", "plan", "kernel", "llvm" or "asm".

        Raises ArgumentError for another name.
        """
        if form not in self.FORMS:
            raise ArgumentError.of("as_text", "form", form, f"one of {self.FORMS}")
        return explain_package().as_text(self.trace.executable, form)

    def cost_analysis(self) -> dict[str, Any]:
        """Return counts for the sizes of `lower`: flops, bytes accessed and saved."""
        return explain_package().cost_analysis(self.trace.executable, self.trace.hints)

    def memory_analysis(self) -> Any:
        """Return bytes of arguments, outputs, temporaries and code for the sizes of `lower`."""
        return explain_package().memory_analysis(self.trace.executable, self.trace.hints)


def _check(name: str, argument: Argument, expected: Argument) -> None:
    """Raise GuardError unless an argument has the compiled dtype, rank, fixed sizes and layout."""
    expected_text, actual_text = (_describe(a) for a in (expected, argument))
    same = expected_text == actual_text
    if expected.spec is not None and argument.data is not None:
        shape = expected.spec.shape
        same = (
            from_numpy(argument.data.dtype) is expected.spec.dtype
            and len(shape) == argument.data.ndim
            and all(
                n == d if isinstance(d, int) else n > 1
                for n, d in zip(argument.data.shape, shape, strict=True)
            )
            and argument.data.flags.c_contiguous
        )
    elif argument.data is not None or expected.data is not None:
        same = argument.signature == expected.signature
    if not same:
        raise GuardError(guard=f"argument {name}: {expected_text}", found=f"it is {actual_text}")


def _describe(a: Argument) -> str:
    if a.spec is not None:
        return str(a.spec)
    if a.data is None:
        return repr(a.number) if a.is_static else type(a.number).__name__
    strided = "" if a.data.flags.c_contiguous else " with strides"
    shape = ",".join(map(str, a.data.shape))
    return f"{from_numpy(a.data.dtype).name}[{shape}]{strided}"
